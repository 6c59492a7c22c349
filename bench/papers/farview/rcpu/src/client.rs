//! Client. It reads one command from each line of standard input, and prints one answer for each except `save`.
//!
//! ```text
//! read BYTES DEPTH COUNT     COUNT turns; in each, DEPTH ranges of BYTES bytes are requested at once
//! select ROWS A X B Y        rows with column A < X and column B < Y
//! decrypted ROWS A X B Y     as select, over encrypted rows
//! distinct ROWS KEY          distinct values of column KEY
//! group ROWS KEY VALUE       sums of column VALUE, grouped by column KEY
//! regex ROWS WIDTH PATTERN   texts of WIDTH bytes that match PATTERN, the rest of the line
//! save FILE                  write the rows of the next answer to FILE, outside the timed part
//! ```
//!
//! The answer is `done NANOSECONDS BYTES`, or `failed WHY`, after which the client ends. The time ends when the last
//! byte of the result is in the buffer of this process. The answer to `read` has the median time of a turn, and the
//! bytes of a turn.

use crate::protocol::{REQUEST_BYTES, Request};
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Connection to the server, and the buffer that receives results.
struct Asker {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Asker {
    /// Receives one reply into the buffer, starting at index `at`. Returns the index of its end.
    fn take(&mut self, mut at: usize) -> io::Result<usize> {
        loop {
            let mut length = [0; 4];
            self.stream.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            if length == 0 {
                return Ok(at);
            }
            let end = at + length;
            let place = self
                .buffer
                .get_mut(at..end)
                .ok_or_else(|| io::Error::other(format!("a result of {end} bytes or more for the buffer")))?;
            self.stream.read_exact(place)?;
            at = end;
        }
    }

    /// Sends one request. Returns the time until its reply is complete, in ns, and the length of the reply in bytes.
    fn ask(&mut self, request: &Request) -> io::Result<(u128, usize)> {
        let begun = Instant::now();
        self.stream.write_all(&request.encode())?;
        let bytes = self.take(0)?;
        Ok((begun.elapsed().as_nanos(), bytes))
    }

    /// Reads `depth` ranges of `bytes` at once at random offsets of the table, `count` times. Returns the median time
    /// of such a turn in ns, and the bytes that a turn reads.
    fn read(&mut self, bytes: u64, depth: usize, count: usize) -> io::Result<(u128, usize)> {
        let mut times = Vec::with_capacity(count);
        // The caller makes the buffer as large as the table. Ranges start at multiples of their size.
        let places = (self.buffer.len() as u64 / bytes).max(1);
        let (mut place, mut read) = (0u64, 0);
        for _ in 0..count {
            let mut messages = Vec::with_capacity(depth * REQUEST_BYTES);
            for _ in 0..depth {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let offset = (place >> 33) % places * bytes;
                messages.extend_from_slice(&Request::Read { offset, bytes }.encode());
            }
            let begun = Instant::now();
            self.stream.write_all(&messages)?;
            read = 0;
            for _ in 0..depth {
                read = self.take(read)?;
            }
            times.push(begun.elapsed().as_nanos());
        }
        times.sort_unstable();
        Ok((times.get(count / 2).copied().unwrap_or(0), read))
    }
}

/// Parses the next number of a line.
fn number<T: std::str::FromStr>(words: &mut std::str::SplitWhitespace<'_>) -> io::Result<T> {
    words
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| io::Error::other("a number is missing or is none"))
}

fn parse(line: &str) -> io::Result<Request> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or("");
    let rows = number(&mut words)?;
    match name {
        "select" => Ok(Request::Select {
            rows,
            a: number(&mut words)?,
            x: number(&mut words)?,
            b: number(&mut words)?,
            y: number(&mut words)?,
        }),
        "decrypted" => Ok(Request::Decrypted {
            rows,
            a: number(&mut words)?,
            x: number(&mut words)?,
            b: number(&mut words)?,
            y: number(&mut words)?,
        }),
        "distinct" => Ok(Request::Distinct { rows, key: number(&mut words)? }),
        "group" => Ok(Request::Group { rows, key: number(&mut words)?, value: number(&mut words)? }),
        "regex" => {
            let width = number(&mut words)?;
            let pattern =
                line.splitn(4, ' ').nth(3).ok_or_else(|| io::Error::other("a pattern is missing"))?;
            Ok(Request::Regex { rows, width, pattern: pattern.to_owned() })
        }
        _ => Err(io::Error::other(format!("{name:?} is no request"))),
    }
}

/// Connects to a server, and runs the commands of standard input until its end.
pub(crate) fn run(address: &str, buffer_bytes: usize) -> io::Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    // The buffer is written, not only reserved, so that no page fault is timed.
    let mut asker = Asker { stream, buffer: vec![1; buffer_bytes] };
    println!("ready");
    let mut save = None;
    for line in io::stdin().lock().lines() {
        let line = line?;
        if let Some(file) = line.strip_prefix("save ") {
            save = Some(file.to_owned());
            continue;
        }
        let (nanoseconds, bytes) = match line.strip_prefix("read ") {
            Some(rest) => {
                let mut words = rest.split_whitespace();
                let (bytes, depth, count) = (number(&mut words)?, number(&mut words)?, number(&mut words)?);
                asker.read(bytes, depth, count)?
            }
            None => asker.ask(&parse(&line)?)?,
        };
        if let Some(file) = save.take() {
            std::fs::write(file, &asker.buffer[..bytes])?;
        }
        println!("done {nanoseconds} {bytes}");
    }
    Ok(())
}
