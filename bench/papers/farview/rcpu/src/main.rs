//! Baseline RCPU of `bench/papers/farview`: a table in the memory of another process, whose CPU answers queries over
//! plain requests and replies. The measurements compare Farpool with it.
//!
//! It is the system that section 6.1 of the paper ("Farview") compares with, without improvements. The server stores
//! rows, not columns. It processes them one by one, with a standard hash map and a standard regex library. It has the
//! advantages that cost nothing: results are sent in chunks as soon as they are ready, and the client's buffer is
//! prepared in advance.
//!
//! ```text
//! farpool-farview-rcpu serve FILE [IP]
//! farpool-farview-rcpu client ADDRESS BUFFER_BYTES
//! ```
//!
//! `serve` reads the rows from FILE, prints `ready ADDRESS`, and ends at the end of its standard input. `client.rs`
//! describes the requests that a client reads from its standard input. There is neither authentication nor encryption,
//! so the server listens on loopback unless another address of this machine is given.

#![forbid(unsafe_code)]

mod client;
mod protocol;
mod query;
mod server;

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: farpool-farview-rcpu serve FILE [IP] | client ADDRESS BUFFER_BYTES";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["serve", file] => server::run(Path::new(file), Ipv4Addr::LOCALHOST),
        ["serve", file, ip] => {
            ip.parse().map_err(io::Error::other).and_then(|ip| server::run(Path::new(file), ip))
        }
        ["client", address, bytes] => {
            bytes.parse().map_err(io::Error::other).and_then(|bytes| client::run(address, bytes))
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
