//! Connection of the client, shared by many requests. One task writes the requests. Another one reads the replies and
//! passes each to the request that waits for it.

use crate::protocol::{HELLO_BYTES, Kind, REPLY_BYTES, Reply, Request};
use crate::server::write_all;
use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

/// Limit for requests that wait for the task that writes them.
const WAITING_MAX: usize = 1024;
/// Limit for requests that are written by one system call.
const REQUESTS_AT_ONCE: usize = 256;
/// Size of the buffer for replies, in bytes. The data of longer reads is received directly into its destination.
const INPUT_BYTES: usize = 64 << 10;

/// Requests without a reply, by number: the buffer to read into (empty for a write), and the channel to the task that
/// waits for the reply.
type Expected = Arc<Mutex<HashMap<u64, (Vec<u8>, oneshot::Sender<Vec<u8>>)>>>;

struct Outgoing {
    header: Request,
    /// Data of a write.
    from: Option<Arc<Vec<u8>>>,
}

/// Connection with its two tasks, which end when it is dropped.
pub(crate) struct Connection {
    outgoing: mpsc::Sender<Outgoing>,
    expected: Expected,
    next: u64,
}

/// Reply that may not have arrived yet: the filled buffer of a read, or an empty buffer for a write.
pub(crate) struct Answer(oneshot::Receiver<Vec<u8>>);

impl Answer {
    pub(crate) async fn get(self) -> io::Result<Vec<u8>> {
        self.0.await.map_err(|_| gone())
    }
}

fn gone() -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, "the server is gone, or said what nobody understands")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Connects, and has the server create a file of `bytes`.
    pub(crate) async fn open(address: &str, bytes: u64) -> io::Result<Connection> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&bytes.to_le_bytes()).await?;
        stream.read_exact(&mut [0; HELLO_BYTES]).await?;
        let (input, output) = stream.into_split();
        let (outgoing, requests) = mpsc::channel(WAITING_MAX);
        let expected = Expected::default();
        tokio::spawn(write(output, requests));
        tokio::spawn(read(input, expected.clone()));
        Ok(Connection { outgoing, expected, next: 0 })
    }

    /// Requests as many bytes at an offset as `into` is long.
    pub(crate) async fn read(&mut self, offset: u64, into: Vec<u8>) -> io::Result<Answer> {
        let length = into.len();
        self.ask(Kind::Read, offset, length, into, None).await
    }

    /// Requests to write bytes at an offset.
    pub(crate) async fn write(&mut self, offset: u64, from: Arc<Vec<u8>>) -> io::Result<Answer> {
        self.ask(Kind::Write, offset, from.len(), Vec::new(), Some(from)).await
    }

    async fn ask(
        &mut self,
        kind: Kind,
        offset: u64,
        length: usize,
        into: Vec<u8>,
        from: Option<Arc<Vec<u8>>>,
    ) -> io::Result<Answer> {
        let length = u32::try_from(length).map_err(io::Error::other)?;
        let number = self.next;
        self.next += 1;
        let (sender, receiver) = oneshot::channel();
        locked(&self.expected).insert(number, (into, sender));
        let header = Request { number, offset, length, kind };
        self.outgoing.send(Outgoing { header, from }).await.map_err(|_| gone())?;
        Ok(Answer(receiver))
    }
}

/// Writes queued requests, all that wait with one system call, until the connection is dropped or breaks.
async fn write(mut output: OwnedWriteHalf, mut requests: mpsc::Receiver<Outgoing>) {
    let mut batch = Vec::with_capacity(REQUESTS_AT_ONCE);
    while requests.recv_many(&mut batch, REQUESTS_AT_ONCE).await > 0 {
        let headers: Vec<_> = batch.iter().map(|outgoing| outgoing.header.encode()).collect();
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(2 * batch.len());
        for (header, outgoing) in headers.iter().zip(&batch) {
            slices.push(IoSlice::new(header));
            slices.extend(outgoing.from.iter().map(|from| IoSlice::new(from)));
        }
        // The task that reads replies notices the broken connection too, and ends all waiting requests.
        if write_all(&mut output, &mut slices).await.is_err() {
            return;
        }
        batch.clear();
    }
}

/// Passes each reply to the request that waits for it. When the connection ends, all waiting requests fail.
async fn read(input: OwnedReadHalf, expected: Expected) {
    let mut input = BufReader::with_capacity(INPUT_BYTES, input);
    while take_reply(&mut input, &expected).await.is_ok() {}
    locked(&expected).clear();
}

async fn take_reply(input: &mut BufReader<OwnedReadHalf>, expected: &Expected) -> io::Result<()> {
    let mut header = [0; REPLY_BYTES];
    input.read_exact(&mut header).await?;
    let reply = Reply::decode(&header);
    let found = locked(expected).remove(&reply.number);
    let (mut into, waiter) = found.filter(|(into, _)| into.len() as u64 == reply.length).ok_or_else(gone)?;
    input.read_exact(&mut into).await?;
    // The receiver may be gone. Then the reply is dropped.
    let _ = waiter.send(into);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server;
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;
    use tokio::runtime;

    const BYTES: u64 = 1 << 20;

    fn with_server<T>(test: impl AsyncFnOnce(String) -> T) -> T {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            tokio::spawn(server::accept(listener, BYTES));
            test(address).await
        })
    }

    #[test]
    fn requests_that_share_a_connection_bring_their_own_bytes() {
        with_server(async |address| {
            let mut connection = Connection::open(&address, BYTES).await.unwrap();
            let mut answers = Vec::new();
            for block in 0..16_u8 {
                let from = Arc::new(vec![block; 65_536]);
                answers.push(connection.write(u64::from(block) * 65_536, from).await.unwrap());
            }
            for answer in answers.drain(..) {
                assert!(answer.get().await.unwrap().is_empty());
            }
            for block in 0..16_u8 {
                let into = vec![0xff; 4096];
                answers.push(connection.read(u64::from(15 - block) * 65_536, into).await.unwrap());
            }
            for (block, answer) in answers.into_iter().enumerate() {
                assert_eq!(answer.get().await.unwrap(), vec![15 - block as u8; 4096]);
            }
        });
    }

    #[test]
    fn range_beyond_the_file_and_a_file_too_large_end_the_connection() {
        with_server(async |address| {
            let mut connection = Connection::open(&address, BYTES).await.unwrap();
            let answer = connection.read(BYTES - 4095, vec![0; 4096]).await.unwrap();
            assert!(answer.get().await.is_err());
            assert!(Connection::open(&address, BYTES + 1).await.is_err());
        });
    }
}
