//! Server: a task for each connection. Each connection has a file in memory of its own, so no lock is needed.

use crate::protocol::{HELLO_BYTES, Kind, REPLY_BYTES, REQUEST_BYTES, Reply, Request};
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Size of the buffer for requests, in bytes. The data of longer writes is received directly into the file.
const INPUT_BYTES: usize = 64 << 10;
/// Limit for replies that are sent by one system call. Each takes two slices, and the kernel accepts 1024 slices.
const ANSWERS_AT_ONCE: usize = 512;

/// Accepts connections for ever. The file of a connection has at most `bytes_max` bytes.
pub(crate) async fn accept(listener: TcpListener, bytes_max: u64) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            if let Err(error) = serve(stream, bytes_max).await {
                eprintln!("farpool-rival-tokio: a connection ended: {error}");
            }
        });
    }
}

fn wrong(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

async fn serve(mut stream: TcpStream, bytes_max: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let bytes = u64::from_le_bytes(hello);
    if bytes > bytes_max {
        return Err(wrong(format!("a file of {bytes} bytes; up to {bytes_max} are permitted")));
    }
    // The file is touched now, so that no page fault is timed.
    let mut file = vec![1; bytes as usize];
    stream.write_all(&hello).await?;
    let (input, mut output) = stream.into_split();
    let mut input = BufReader::with_capacity(INPUT_BYTES, input);
    let mut answers = Answers::default();
    while let Some(request) = next(&mut input).await? {
        let range = checked(request, bytes)?;
        match request.kind {
            Kind::Read => answers.push(request.number, range),
            Kind::Write => {
                // Replies to earlier reads take their data from the file when they are sent, so they are sent before it
                // changes.
                if answers.have_reads {
                    answers.send(&file, &mut output).await?;
                }
                input.read_exact(&mut file[range]).await?;
                answers.push(request.number, 0..0);
            }
        }
        if input.buffer().len() < REQUEST_BYTES || answers.ranges.len() == ANSWERS_AT_ONCE {
            answers.send(&file, &mut output).await?;
        }
    }
    Ok(())
}

/// Reads the next request. `None` if the client has closed the connection.
async fn next(input: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Request>> {
    let mut header = [0; REQUEST_BYTES];
    match input.read_exact(&mut header).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let request = Request::decode(&header);
    request.map(Some).ok_or_else(|| wrong(format!("{header:02x?} is no request")))
}

/// Returns the range of a request. A range beyond the file of `bytes` is an error.
fn checked(request: Request, bytes: u64) -> io::Result<Range<usize>> {
    let end = request.offset.checked_add(u64::from(request.length)).filter(|end| *end <= bytes);
    let end = end.ok_or_else(|| {
        wrong(format!("{} bytes at {}; the file has {bytes}", request.length, request.offset))
    })?;
    Ok(request.offset as usize..end as usize)
}

/// Replies that wait to be sent by one write: their headers, and the ranges of the file that follow them.
#[derive(Default)]
struct Answers {
    headers: Vec<[u8; REPLY_BYTES]>,
    ranges: Vec<Range<usize>>,
    have_reads: bool,
}

impl Answers {
    fn push(&mut self, number: u64, range: Range<usize>) {
        self.headers.push(Reply { number, length: range.len() as u64 }.encode());
        self.have_reads |= !range.is_empty();
        self.ranges.push(range);
    }

    async fn send(&mut self, file: &[u8], output: &mut OwnedWriteHalf) -> io::Result<()> {
        let parts = self.headers.iter().zip(&self.ranges);
        let mut slices: Vec<IoSlice<'_>> = parts
            .flat_map(|(header, range)| [&header[..], &file[range.clone()]])
            .filter(|part| !part.is_empty())
            .map(IoSlice::new)
            .collect();
        write_all(output, &mut slices).await?;
        self.headers.clear();
        self.ranges.clear();
        self.have_reads = false;
        Ok(())
    }
}

/// Writes all slices, none of which may be empty.
pub(crate) async fn write_all(output: &mut OwnedWriteHalf, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let count = output.write_vectored(slices).await?;
        if count == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, count);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_beyond_the_file_is_refused() {
        let request = |offset, length| Request { number: 1, offset, length, kind: Kind::Read };
        assert_eq!(checked(request(90, 10), 100).unwrap(), 90..100);
        for (offset, length) in [(91, 10), (u64::MAX, 1), (0, 101)] {
            assert!(
                checked(request(offset, length), 100).is_err_and(|error| error.to_string().contains("100"))
            );
        }
    }
}
