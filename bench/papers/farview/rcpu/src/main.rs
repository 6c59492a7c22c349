//! The baseline RCPU of `bench/papers/farview`: a table in the memory of another process, whose CPU answers queries
//! over plain two-sided requests and replies.
//!
//! The idea: what section 6.1 of the paper compares with, and nothing cleverer. The server has rows, not columns, looks
//! at one after the other, with the hash map and the regular expressions that one would take from the shelf, and sends
//! what is left while it goes on. It is given every advantage that costs nothing: results leave in chunks as they come
//! about, and the client has its buffer ready before it asks.
//!
//! ```text
//! farpool-farview-rcpu serve FILE [IP]
//! farpool-farview-rcpu client ADDRESS BUFFER_BYTES
//! ```
//!
//! `serve` reads the rows from FILE, says `ready ADDRESS`, and ends with its standard input. What a client reads from
//! its standard input stands in `client.rs`. There is neither authentication nor encryption, so it serves loopback if
//! no other address of this machine is given.

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
