//! Shared memory over a socket in a folder (`farpool node --shm-dir`), for clients in other network namespaces, such as
//! pods of one machine. Needs root.

use crate::processes::Process;
use crate::programs::PATIENCE;
use farpool::{CreateOptions, FileClass, Pool, PoolOptions, Protection, TransportChoice};
use farpool_host::clock;
use farpool_transport::LinkError;
use farpool_transport::shm;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs;
use std::path::{Path, PathBuf};

fn node(url: &str, folder: &Path) -> Process {
    let sizes = ["--memory", "16MiB", "--region-size", "1MiB", "--broker", url];
    let folder = folder.to_str().expect("letters");
    Process::start(&[&["node", "--name", "n1", "--shm-dir", folder][..], &sizes].concat())
}

fn sockets(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("there").map(|entry| entry.expect("listed").path()).collect()
}

/// Writes and reads, and returns how many reads needed no request. The first one maps the memory.
fn mapped_reads(url: &str, transport: TransportChoice) -> u64 {
    let protection = Some(Protection::None);
    let pool = Pool::connect_with(url, PoolOptions { transport, protection, ..PoolOptions::default() });
    let pool = pool.expect("a session");
    let file = pool.create("spill", FileClass::Scratch, CreateOptions::default()).expect("created");
    file.write_at(0, b"bytes").expect("written");
    for _ in 0..2 {
        let mut read = [0; 5];
        file.read_at(0, &mut read).expect("read");
        assert_eq!(&read, b"bytes");
    }
    pool.stats().mapped_read_ops
}

#[test]
fn node_shares_memory_over_a_socket_that_other_network_namespaces_reach() {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let first = node(&broker.ready, folder.path());
    for transport in [TransportChoice::Shm, TransportChoice::Auto] {
        assert_eq!(mapped_reads(&broker.ready, transport), 1);
    }
    let [socket] = &sockets(folder.path())[..] else { panic!("one socket") };
    let path = socket.to_str().expect("letters").to_owned();
    let elsewhere = std::thread::spawn(move || {
        // SAFETY: no memory or descriptor is shared less than before; only this thread enters the namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root may make a namespace");
        let deadline = clock::now().plus_ms(PATIENCE.as_millis() as u64);
        shm::connect(&path, Default::default(), deadline).map(drop)
    });
    elsewhere.join().expect("no panic").expect("the node answers in another namespace");
    first.kill();
    let _second = node(&broker.ready, folder.path());
    let [again] = &sockets(folder.path())[..] else { panic!("the socket of the earlier life is gone") };
    assert_ne!(again, socket);
}

#[test]
fn client_that_does_not_see_the_folder_uses_tcp_and_connects_to_no_other_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let inner = folder.path().join("sockets");
    fs::create_dir(&inner).expect("made");
    let _node = node(&broker.ready, &inner);
    fs::rename(&inner, folder.path().join("elsewhere")).expect("renamed");
    assert_eq!(mapped_reads(&broker.ready, TransportChoice::Auto), 0);
    let listener = std::os::unix::net::UnixListener::bind(folder.path().join("other.sock")).expect("bound");
    let path = folder.path().join("other.sock").display().to_string();
    let refused = shm::connect(&path, Default::default(), clock::now().plus_ms(PATIENCE.as_millis() as u64));
    assert!(matches!(refused.map(drop), Err(LinkError::Disconnected(_))));
    listener.set_nonblocking(true).expect("set");
    assert_eq!(listener.accept().expect_err("nobody came").kind(), std::io::ErrorKind::WouldBlock);
}
