//! `farpool fn build`: compiles modules from C with the installed clang, and from WebAssembly text.

use super::failed;
use crate::exit::Failure;
use crate::{Outcome, input, units};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The header that C functions include.
const HEADER: &str = include_str!("../../../../sdk/c/farpool.h");
/// Largest source in WebAssembly text, in bytes. The text is several times as long as the module.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Names of compilers, tried in this order unless `CLANG` names one.
const CLANGS: [&str; 6] = ["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17"];
/// Compiler flags: no start function, no imports, no bulk-memory instructions (they cannot read the window of mapped
/// file bytes), no maximum for the memory.
const FLAGS: [&str; 9] = [
    "--target=wasm32",
    "-O3",
    "-nostdlib",
    "-ffreestanding",
    "-fno-builtin",
    "-mno-bulk-memory",
    "-fuse-ld=lld",
    "-Wl,--no-entry",
    "-Wl,-z,stack-size=65536",
];

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool fn build walk.c   makes walk.wasm")]
pub(crate) struct Args {
    /// Function in C (.c), with #include \"farpool.h\", or in WebAssembly text (.wat)
    source: PathBuf,
    /// Module to write [default: beside the source, with the extension .wasm]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Use vector instructions. Such a function cannot be interrupted: its deadline ends its sandbox process
    #[arg(long)]
    simd: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let output = args.output.clone().unwrap_or_else(|| args.source.with_extension("wasm"));
    match args.source.extension().and_then(|ending| ending.to_str()) {
        Some("c") => compile(&args.source, &output, args.simd)?,
        Some("wat") => {
            let module = module_of_text(&args.source)?;
            std::fs::write(&output, module).map_err(|error| failed(&output, error))?;
        }
        _ => return Err(failed(&args.source, "it is neither .c nor .wat")),
    }
    let bytes = std::fs::metadata(&output).map_err(|error| failed(&output, error))?.len();
    writeln!(std::io::stdout(), "{}: {}", output.display(), units::show_bytes(bytes))?;
    Ok(())
}

/// Compiles a file of WebAssembly text to a module.
pub(super) fn module_of_text(file: &Path) -> Result<Vec<u8>, Failure> {
    let text =
        input::file(file, TEXT_BYTES_MAX).and_then(input::text).map_err(|error| failed(file, error))?;
    wat::parse_str(text).map_err(|error| failed(file, error))
}

/// Returns the name of the compiler: `CLANG`, or the first of [`CLANGS`] that can be started.
fn compiler() -> Result<String, Failure> {
    if let Ok(named) = std::env::var("CLANG") {
        return Ok(named);
    }
    let is_there =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|done| done.status.success());
    let found = CLANGS.into_iter().find(is_there);
    found.map(str::to_owned).ok_or_else(|| {
        let message =
            "no clang was found to compile C to WebAssembly: install clang and lld, or name one in CLANG";
        Failure::Failed(message.to_owned())
    })
}

fn compile(source: &Path, output: &Path, simd: bool) -> Outcome {
    let compiler = compiler()?;
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("farpool.h"), HEADER)?;
    let mut command = Command::new(&compiler);
    command.args(FLAGS).arg("-I").arg(folder.path());
    if simd {
        command.arg("-msimd128");
    }
    let status = command.arg("-o").arg(output).arg(source).status();
    let status = status.map_err(|error| Failure::Failed(format!("{compiler}: {error}")))?;
    match status.success() {
        true => Ok(()),
        // The compiler has printed its own errors already.
        false => Err(Failure::Failed(format!("{compiler} failed to make {}", output.display()))),
    }
}
