//! Memory of another process, read and written over one TCP connection with tokio. `farpool bench io --beside tokio`
//! runs this program to compare it with far memory.
//!
//! The idea: this is what an engineer who knows tokio well would write in a day. The server has a task for each
//! connection, and answers all pending requests with one vectored write. The client has one connection that many
//! requests share. Requests have numbers. One task writes them, and another one reads the replies.
//!
//! ```text
//! farpool-rival-tokio serve BYTES
//! farpool-rival-tokio client ADDRESS BASE BYTES FILE
//! ```
//!
//! BYTES is the size of a file in the server's memory. `bench/src/io/rivals/program.rs` describes BASE and FILE, the
//! commands on standard input and the answers on standard output. Server and client end at the end of their standard
//! input.

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
        // The server has a file for each connection, so the client's offset in a common memory (BASE) is not needed.
        ["client", address, _base, bytes, file] => {
            bytes.parse().map_err(io::Error::other).and_then(|bytes| {
                // One thread is faster: with more, each answer would wake another thread, which takes longer than
                // reading the answer.
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

/// Serves files of up to `bytes` each, until the end of standard input.
fn serve(bytes: u64) -> io::Result<()> {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    println!("ready {}", listener.local_addr()?);
    runtime.spawn(server::accept(listener, bytes));
    io::stdin().read_to_end(&mut Vec::new())?;
    runtime.shutdown_background();
    Ok(())
}
