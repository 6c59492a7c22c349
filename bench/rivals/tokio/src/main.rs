//! Memory of another process, read and written over one TCP connection with tokio: what `farpool bench io --beside
//! tokio` compares with.
//!
//! The idea: what somebody would write who knows tokio well and has a day for it. The server has a task for each
//! connection and answers what has come together with one vectored write. The client has one connection that many
//! requests share, told apart by numbers, with a task that writes and a task that reads.
//!
//! ```text
//! farpool-rival-tokio serve BYTES
//! farpool-rival-tokio client ADDRESS BASE BYTES FILE
//! ```
//!
//! What is said over the standard input and output, and what lies in FILE, stands in
//! `bench/src/io/rivals/program.rs`. The end of the standard input is the end of either.

#![forbid(unsafe_code)]
#![expect(clippy::disallowed_types, reason = "a rival has the locks that it would have")]

mod bursts;
mod connection;
mod protocol;
mod server;

use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::runtime;

const USAGE: &str = "usage: farpool-rival-tokio serve BYTES | client ADDRESS BASE BYTES FILE";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["serve", bytes] => bytes.parse().map_err(io::Error::other).and_then(serve),
        // Each connection has a file of its own, so where it starts among others is no matter here.
        ["client", address, _base, bytes, file] => {
            bytes.parse().map_err(io::Error::other).and_then(|bytes| {
                // One thread: each answer would have to wake another one, which takes longer than reading it.
                let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
                bursts::run(&runtime, address, bytes, Path::new(file))
            })
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves files of up to `bytes` until the standard input ends.
fn serve(bytes: u64) -> io::Result<()> {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    println!("ready {}", listener.local_addr()?);
    runtime.spawn(server::accept(listener, bytes));
    io::stdin().read_to_end(&mut Vec::new())?;
    runtime.shutdown_background();
    Ok(())
}
