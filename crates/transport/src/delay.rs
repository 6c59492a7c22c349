//! Requests that are answered late: once something has changed, or their time is over.
//!
//! The idea: the thread of a connection has nothing else to do while its peer waits, so it sleeps until a descriptor is
//! signalled, and only then has the service answer. No lock is held meanwhile. It wakes as well when the peer sends
//! another request, or leaves: replies come in the order of requests, and a delayed one must not hold up others.

use farpool_host::clock;
use farpool_host::waiting::time_left;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Signal that ends the delay of a request. Clones are the same signal. Any thread may give it.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes a signal that was not given yet.
    ///
    /// Errors: the process has too many open files.
    pub fn new() -> io::Result<Waker> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Waker(Arc::new(eventfd(0, flags)?)))
    }

    /// Gives the signal. It does not wait.
    pub fn wake(&self) {
        // An error means that the counter is full, so the signal was given already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Reports whether the signal was given.
    pub fn is_woken(&self) -> bool {
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

/// Peer whose request is delayed, as the connection to it knows it.
pub(crate) trait DelayedPeer {
    /// Reports whether the peer has sent something, or has left.
    fn has_stirred(&mut self) -> bool;
    /// Returns the descriptor that is readable once the peer has. `None` if the connection has none.
    fn watched(&self) -> Option<BorrowedFd<'_>>;
}

/// Delay of a request, which ends when the signal is given, or at the end of its time.
pub struct Delay {
    /// Signal that ends the delay.
    pub waker: Waker,
    /// Longest time of the delay, in ms.
    pub ms: u64,
    /// Value that is dropped at the end of the delay.
    pub kept: Box<dyn Send>,
}

impl Delay {
    /// Sleeps until the delay ends, or until the peer sends something or leaves. Returns at once over a connection
    /// without a descriptor.
    pub(crate) fn sleep(self, peer: &mut impl DelayedPeer) -> io::Result<()> {
        let until = clock::now().plus_ms(self.ms);
        while !self.waker.is_woken() && !peer.has_stirred() {
            let left = time_left(until, clock::now());
            let Some((socket, left)) = peer.watched().zip(left) else { break };
            let woken = self.waker.0.as_fd();
            let mut waited = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
            match poll(&mut waited, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Socket;
    use farpool_lock::Mutex;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// Longest delay of these tests. One that lasts as long was not ended.
    const MS: u64 = 60_000;

    fn delay(waker: &Waker, ms: u64) -> Delay {
        Delay { waker: waker.clone(), ms, kept: Box::new(()) }
    }

    fn ends_early(end: impl FnOnce(UnixStream, &Waker) + Send) -> bool {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let (mut socket, waker) = (Socket::unix(near).expect("a socket"), Waker::new().expect("a signal"));
        let begun = clock::now();
        std::thread::scope(|scope| {
            scope.spawn(|| end(far, &waker));
            delay(&waker, MS).sleep(&mut socket).expect("slept");
        });
        clock::now().ms_since(begun) < MS
    }

    #[test]
    fn delay_ends_when_woken_and_when_the_peer_sends_something_or_leaves() {
        let kept = Mutex::new(Vec::new());
        let keep = |far| kept.lock().push(far);
        assert!(ends_early(|far, waker| {
            keep(far);
            waker.wake();
            waker.wake();
        }));
        assert!(ends_early(|mut far, _| {
            far.write_all(b"more").expect("written");
            keep(far);
        }));
        assert!(ends_early(|far, _| drop(far)));
    }

    #[test]
    fn delay_that_nothing_ends_lasts_its_time_and_then_lets_go_of_what_it_kept() {
        let (near, _far) = UnixStream::pair().expect("a pair of sockets");
        let (mut socket, waker) = (Socket::unix(near).expect("a socket"), Waker::new().expect("a signal"));
        let (begun, kept) = (clock::now(), Arc::new(()));
        let delay = Delay { kept: Box::new(Arc::clone(&kept)), ..delay(&waker, 30) };
        delay.sleep(&mut socket).expect("slept");
        assert!(clock::now().ms_since(begun) >= 30 && !waker.is_woken());
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
