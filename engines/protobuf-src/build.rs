//! Two programs in one: without arguments it is Cargo's build script of this crate; with arguments it is the `protoc`
//! that prost-build runs.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.is_empty() {
        println!("cargo::rerun-if-changed=build.rs");
        println!("cargo::rustc-env=FARPOOL_PROTOC={}", std::env::current_exe()?.display());
        return Ok(());
    }
    compile(args)
}

/// Writes the descriptors of some files and of all files that they import, with comments.
fn compile(args: Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut args = args.into_iter();
    let (mut to, mut folders, mut files) = (None, Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-o" => to = args.next().map(PathBuf::from),
            "-I" => folders.extend(args.next()),
            "--include_imports" | "--include_source_info" => {}
            other if other.starts_with('-') => return Err(format!("{other} is not known here").into()),
            _ => files.push(arg),
        }
    }
    let to = to.ok_or("-o FILE is missing")?;
    let mut compiler = protox::Compiler::new(folders)?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;
    std::fs::write(to, compiler.encode_file_descriptor_set())?;
    Ok(())
}
