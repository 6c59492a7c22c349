//! Lower bound of a round trip: 24 bytes out and 16 bytes back over loopback TCP, between two threads that spin.

use crate::exit::Failure;
use crate::harness::cpu::{allowed_cpus, pin};
use crate::harness::statistics::quantiles;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a Farpool request for one read, without checksum and session.
const REQUEST_BYTES: usize = 24;
/// Bytes of a Farpool reply, without the data.
const REPLY_BYTES: usize = 16;
/// Time limit for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the first two CPUs that this process may use. An error if there is only one.
fn two_cpus() -> Result<[usize; 2], Failure> {
    match allowed_cpus()?[..] {
        [one, other, ..] => Ok([one, other]),
        _ => Err(Failure::failed("empty round trips between two threads that spin need two CPUs")),
    }
}

/// Measures round trips for some seconds. Returns the quantiles p50, p90, p99 and p99.9 of their times, in us.
pub(crate) fn measure(seconds: f64) -> Result<[f64; 4], Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // Two spinning threads on one CPU would only wait for each other.
    let [asking, answering] = two_cpus()?;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut stream, _) = listener.accept()?;
            pin(&[answering])?;
            prepare(&stream)?;
            let mut request = [0; REQUEST_BYTES];
            while read_spinning(&mut stream, &mut request)? {
                write_spinning(&mut stream, &[request[0]; REPLY_BYTES])?;
            }
            Ok::<(), Failure>(())
        });
        let stream = TcpStream::connect(address)?;
        let client = scope.spawn(move || ask(stream, asking, seconds));
        let panicked = || Failure::failed("a thread of empty round trips panicked");
        let times = client.join().map_err(|_| panicked())?;
        server.join().map_err(|_| panicked())??;
        times
    })
}

fn ask(mut stream: TcpStream, cpu: usize, seconds: f64) -> Result<[f64; 4], Failure> {
    pin(&[cpu])?;
    prepare(&stream)?;
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    let mut mark = 0u8;
    while (last - begun).as_secs_f64() < seconds {
        mark = mark.wrapping_add(1);
        write_spinning(&mut stream, &[mark; REQUEST_BYTES])?;
        let mut reply = [0; REPLY_BYTES];
        if !read_spinning(&mut stream, &mut reply)? || reply != [mark; REPLY_BYTES] {
            return Err(Failure::failed("an empty round trip came back wrong"));
        }
        let now = Instant::now();
        times.push(now - last);
        last = now;
    }
    Ok(quantiles(&mut times))
}

fn prepare(stream: &TcpStream) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    Ok(stream.set_nonblocking(true)?)
}

/// Fills the buffer. Returns false if the peer closed the connection before the first byte.
fn read_spinning(stream: &mut TcpStream, into: &mut [u8]) -> Result<bool, Failure> {
    let mut filled = 0;
    let begun = Instant::now();
    let mut tries = 0u32;
    while filled < into.len() {
        match stream.read(&mut into[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(Failure::failed("an empty round trip was cut off")),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::hint::spin_loop();
                tries = tries.wrapping_add(1);
                if tries.is_multiple_of(1 << 16) && begun.elapsed() > PATIENCE {
                    return Err(Failure::failed("no answer to an empty round trip"));
                }
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset && filled == 0 => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn write_spinning(stream: &mut TcpStream, mut from: &[u8]) -> Result<(), Failure> {
    while !from.is_empty() {
        match stream.write(from) {
            Ok(count) => from = &from[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_timed_and_end() {
        match measure(0.01) {
            Ok([p50, _, _, p999]) => assert!(p50 > 0.0 && p999 >= p50),
            Err(_) => assert!(two_cpus().is_err()),
        }
    }
}
