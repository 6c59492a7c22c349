//! AES-128 in counter mode by the library Crypto++, for comparison. The benchmark compiles a C++ program when it runs,
//! so building the benchmark does not need the headers of Crypto++.

use crate::exit::Failure;
use crate::harness::processes::find_program;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SOURCE: &str = include_str!("../../rivals/cryptopp.cpp");

/// Program that decrypts its buffer once for each line of its input, prints GB/s, and ends at the end of its input.
pub(crate) struct CryptoPp {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl CryptoPp {
    /// Compiles and starts the program, with a buffer of `mib` MiB.
    pub(crate) fn start(mib: usize) -> Result<CryptoPp, Failure> {
        let folder = std::env::temp_dir().join(format!("farpool-cryptopp-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let started = Self::compile_and_start(&folder, mib);
        // The running program does not need its file any more.
        let removed = std::fs::remove_dir_all(&folder);
        let started = started?;
        removed?;
        Ok(started)
    }

    fn compile_and_start(folder: &std::path::Path, mib: usize) -> Result<CryptoPp, Failure> {
        let compiler = find_program("c++", "g++")?;
        let (source, program) = (folder.join("cryptopp.cpp"), folder.join("cryptopp"));
        std::fs::write(&source, SOURCE)?;
        let output = Command::new(compiler)
            .args(["-O2", "-o"])
            .args([&program, &source])
            .arg("-lcryptopp")
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Failed(format!(
                "c++ does not compile the rival that uses Crypto++; the Debian package libcrypto++-dev has its headers \
                 (apt-get install libcrypto++-dev): {}",
                said.trim()
            )));
        }
        let mut process = Command::new(program)
            .arg(mib.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let piped = process.stdin.take().zip(process.stdout.take());
        let (input, output) = piped.ok_or_else(|| Failure::Failed("Crypto++ has no pipes".to_owned()))?;
        Ok(CryptoPp { process, input: Some(input), output: BufReader::new(output) })
    }

    /// Lets the program decrypt its buffer once. Returns the GB/s that it measured.
    pub(crate) fn measure(&mut self) -> Result<f64, Failure> {
        if let Some(input) = &mut self.input {
            input.write_all(b"\n")?;
        }
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let said = line.trim();
        said.parse().map_err(|_| Failure::Failed(format!("Crypto++ said {said:?} instead of GB/s")))
    }
}

impl Drop for CryptoPp {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}
