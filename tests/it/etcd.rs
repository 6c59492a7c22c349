//! Real etcd clusters for tests. Members can be stopped, continued and killed, and proxies can isolate them.

use crate::certificates::{Ca, Issued, Wish};
use crate::programs::{PATIENCE, reserved_address};
use farpool_lock::Mutex;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Returns the path of the etcd program, which `FARPOOL_ETCD` names.
fn program() -> String {
    std::env::var("FARPOOL_ETCD")
        .expect("FARPOOL_ETCD names an etcd program: run `make test`, or install etcd-server")
}

struct Member {
    name: String,
    clients: SocketAddr,
    peers: SocketAddr,
    process: Option<Child>,
}

/// Cluster of etcd members on this machine. Dropping this value ends it.
pub struct Cluster {
    members: Vec<Member>,
    folder: tempfile::TempDir,
    /// True if clients need TLS and a certificate of the cluster's CA.
    is_tls: bool,
}

impl Cluster {
    /// Starts a cluster of `count` members, and waits until it answers.
    pub fn start(count: usize) -> Cluster {
        let member = |index| Member {
            name: format!("e{index}"),
            clients: reserved_address(),
            peers: reserved_address(),
            process: None,
        };
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = Cluster { members: (0..count).map(member).collect(), folder, is_tls: false };
        (0..count).for_each(|index| cluster.start_member(index));
        cluster.await_writes();
        cluster
    }

    /// Starts one member that requires TLS and trusts this CA.
    pub fn start_tls(ca: &Ca) -> Cluster {
        let (clients, peers) = (reserved_address(), reserved_address());
        let member = Member { name: "e0".to_owned(), clients, peers, process: None };
        let folder = tempfile::tempdir().expect("a folder");
        let Issued { cert, key } = ca.issue(&Wish { names: &[&clients.ip().to_string()], days: (-1, 1) });
        for (file, text) in [("ca.pem", &ca.pem), ("cert.pem", &cert), ("key.pem", &key)] {
            std::fs::write(folder.path().join(file), text).expect("written");
        }
        let mut cluster = Cluster { members: vec![member], folder, is_tls: true };
        cluster.start_member(0);
        cluster
    }

    /// Starts a member again that was killed, with the data that it had stored.
    pub fn start_member(&mut self, index: usize) {
        let all: Vec<String> =
            self.members.iter().map(|member| format!("{}=http://{}", member.name, member.peers)).collect();
        let member = &mut self.members[index];
        let scheme = if self.is_tls { "https" } else { "http" };
        let (clients, peers) = (format!("{scheme}://{}", member.clients), format!("http://{}", member.peers));
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let folder = self.folder.path().join(&member.name);
        let mut command = Command::new(program());
        if self.is_tls {
            command.args(["--cert-file", &file("cert.pem"), "--key-file", &file("key.pem")]);
            command.args(["--client-cert-auth", "--trusted-ca-file", &file("ca.pem")]);
        }
        let process = command
            .args(["--name", &member.name, "--data-dir", &folder.display().to_string()])
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args([
                "--initial-cluster",
                &all.join(","),
                "--initial-cluster-state",
                "new",
                "--log-level",
                "error",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        member.process = Some(process);
    }

    /// Waits until every member that runs accepts a write.
    pub fn await_writes(&self) {
        let begun = Instant::now();
        for member in self.members.iter().filter(|member| member.process.is_some()) {
            while !writes(member.clients) {
                assert!(begun.elapsed() < PATIENCE, "{} takes no writes", member.name);
                std::thread::park_timeout(Duration::from_millis(50));
            }
        }
    }

    /// Returns the `host:port` of each member, for clients.
    pub fn members(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.clients).collect()
    }

    /// Returns the URL of the cluster, for a broker.
    pub fn url(&self) -> String {
        let members: Vec<String> = self.members.iter().map(|member| member.clients.to_string()).collect();
        format!("{}://{}", if self.is_tls { "etcds" } else { "etcd" }, members.join(","))
    }

    pub fn signal(&self, index: usize, signal: Signal) {
        if let Some(process) = &self.members[index].process {
            rustix::process::kill_process(rustix::process::Pid::from_child(process), signal)
                .expect("signalled");
        }
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut process) = self.members[index].process.take() {
            process.kill().expect("killed");
            process.wait().expect("gone");
        }
    }

    /// Waits until the cluster has a leader and kills it. Returns its index.
    pub fn kill_leader(&mut self) -> usize {
        let begun = Instant::now();
        loop {
            let leads = |member: &&Member| {
                let status = post(member.clients, "/v3/maintenance/status", "{}").unwrap_or_default();
                let of = |field: &str| Some(status.split_once(field)?.1.split('"').nth(1)?.to_owned());
                of("\"leader\":").is_some_and(|leader| of("\"member_id\":") == Some(leader))
            };
            let running = self.members.iter().filter(|member| member.process.is_some());
            if let Some(name) = running.into_iter().find(leads).map(|member| member.name.clone()) {
                let index =
                    self.members.iter().position(|member| member.name == name).expect("it is of them");
                self.kill(index);
                return index;
            }
            assert!(begun.elapsed() < PATIENCE, "no member leads");
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Returns the number of leases, according to the first running member.
    pub fn leases(&self) -> usize {
        let member = self.members.iter().find(|member| member.process.is_some()).expect("one runs");
        let answer = post(member.clients, "/v3/lease/leases", "{}").expect("etcd answers");
        answer.matches("\"ID\":").count()
    }

    /// Ends the lead of the broker that leads, as an operator could, or etcd itself ahead of time: deletes its key.
    pub fn revoke_lead(&self, prefix: &str) {
        self.delete(&format!("{prefix}/leader"));
    }

    /// Returns the value of a key, in base64 as in etcd's JSON.
    pub fn value(&self, key: &str) -> String {
        let range = format!("{{\"key\":\"{}\"}}", encoded(key));
        let answer = post(self.members[0].clients, "/v3/kv/range", &range).expect("etcd answers");
        let (_, value) =
            answer.split_once("\"value\":\"").unwrap_or_else(|| panic!("{key} is there: {answer}"));
        value.split_once('"').expect("its end").0.to_owned()
    }

    /// Sets the value of a key, in base64.
    pub fn put(&self, key: &str, value: &str) {
        let put = format!("{{\"key\":\"{}\",\"value\":\"{value}\"}}", encoded(key));
        let answer = post(self.members[0].clients, "/v3/kv/put", &put).expect("etcd answers");
        assert!(answer.contains("200 OK"), "{answer}");
    }

    /// Deletes a key.
    pub fn delete(&self, key: &str) {
        let delete = format!("{{\"key\":\"{}\"}}", encoded(key));
        let answer = post(self.members[0].clients, "/v3/kv/deleterange", &delete).expect("etcd answers");
        assert!(answer.contains("200 OK"), "{answer}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|index| self.kill(index));
    }
}

fn writes(member: SocketAddr) -> bool {
    let put = format!("{{\"key\":\"{}\",\"value\":\"\"}}", encoded("test/ready"));
    post(member, "/v3/kv/put", &put).is_ok_and(|answer| answer.contains("200 OK"))
}

fn post(member: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&member, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn encoded(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| -> String {
        let word =
            bytes.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
        let digit = |at: usize| char::from(DIGITS[(word >> (18 - 6 * at)) as usize & 63]);
        (0..4).map(|at| if at <= bytes.len() { digit(at) } else { '=' }).collect()
    };
    text.as_bytes().chunks(3).map(group).collect()
}

/// Proxy to a server. While the server is isolated, the proxy drops all bytes in both directions without closing
/// connections.
pub struct Way {
    pub address: SocketAddr,
    is_isolated: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    pub fn to(server: SocketAddr) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (is_isolated, streams) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (isolated, kept): (Arc<AtomicBool>, Arc<Mutex<Vec<TcpStream>>>) =
            (is_isolated.clone(), streams.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(server) else { continue };
                let pairs = [(&near, &far), (&far, &near)];
                for (from, to) in pairs {
                    let (mut from, mut to) = (from.try_clone().expect("open"), to.try_clone().expect("open"));
                    kept.lock().push(from.try_clone().expect("open"));
                    let isolated = Arc::clone(&isolated);
                    std::thread::spawn(move || {
                        let mut bytes = [0; 64 << 10];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            // Bytes that arrive while the server is isolated are lost, as if the cable were pulled.
                            if !isolated.load(Ordering::Relaxed) && to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Way { address, is_isolated, streams }
    }

    pub fn isolate(&self) {
        self.is_isolated.store(true, Ordering::Relaxed);
    }

    /// Ends the isolation for new connections. Closes all connections that were there before.
    pub fn mend(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.is_isolated.store(false, Ordering::Relaxed);
    }
}
