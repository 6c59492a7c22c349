//! Server: a thread for each connection, which answers one request after another.

use crate::protocol::{CHUNK_BYTES, PATTERN_BYTES_MAX, REQUEST_BYTES, Request};
use crate::query::{self, Sink};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Serves the rows of a file at an address of this machine, until the end of standard input.
pub(crate) fn run(file: &Path, ip: Ipv4Addr) -> io::Result<()> {
    let table: Arc<[u8]> = std::fs::read(file)?.into();
    let listener = TcpListener::bind((ip, 0))?;
    println!("ready {}", listener.local_addr()?);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                // The client reports a lost connection itself, if it still waits for rows.
                if let Err(error) = serve(stream, &table) {
                    eprintln!("a connection ended: {error}");
                }
            });
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Reply under construction: rows are collected in a chunk, which is sent when it is full.
struct Chunks<'a> {
    stream: &'a mut TcpStream,
    /// Four bytes for the length of the chunk, which is filled in when it is sent, and the rows.
    chunk: &'a mut Vec<u8>,
}

impl Chunks<'_> {
    fn send(&mut self) -> io::Result<()> {
        let bytes = u32::try_from(self.chunk.len() - 4).map_err(io::Error::other)?;
        self.chunk[..4].copy_from_slice(&bytes.to_le_bytes());
        self.stream.write_all(self.chunk)?;
        self.chunk.truncate(4);
        Ok(())
    }

    /// Sends the remaining rows and the empty last chunk.
    fn end(mut self) -> io::Result<()> {
        if self.chunk.len() > 4 {
            // One write sends both chunks, because a second write would wake the client again.
            let bytes = u32::try_from(self.chunk.len() - 4).map_err(io::Error::other)?;
            self.chunk[..4].copy_from_slice(&bytes.to_le_bytes());
            self.chunk.extend_from_slice(&[0; 4]);
            self.stream.write_all(self.chunk)?;
            self.chunk.truncate(4);
            return Ok(());
        }
        self.send()
    }
}

impl Sink for Chunks<'_> {
    fn row(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while self.chunk.len() + bytes.len() > CHUNK_BYTES + 4 {
            // The range of a `Read` may be longer than a chunk and is split over several. A row is never split.
            let fitting = CHUNK_BYTES + 4 - self.chunk.len();
            let (now, later) = bytes.split_at(if bytes.len() > CHUNK_BYTES { fitting } else { 0 });
            self.chunk.extend_from_slice(now);
            bytes = later;
            self.send()?;
        }
        self.chunk.extend_from_slice(bytes);
        Ok(())
    }
}

fn serve(mut stream: TcpStream, table: &[u8]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut header, mut pattern) = ([0; REQUEST_BYTES], [0; PATTERN_BYTES_MAX]);
    let mut chunk = Vec::with_capacity(CHUNK_BYTES + 8);
    loop {
        match stream.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let pattern = &mut pattern[..Request::pattern_bytes(&header)?];
        stream.read_exact(pattern)?;
        let request = Request::decode(&header, pattern)?;
        chunk.clear();
        chunk.extend_from_slice(&[0; 4]);
        let mut chunks = Chunks { stream: &mut stream, chunk: &mut chunk };
        query::run(table, &request, &mut chunks)?;
        chunks.end()?;
    }
}
