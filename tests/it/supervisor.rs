//! Messages of servers to systemd, by a socket of the test's own; and `mount.farpool`, by which mount(8) and fstab
//! mount.

use crate::processes::{Process, binary};
use crate::programs::{PATIENCE, first_line, output, output_of, reserved_address};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Socket of a service manager, and its folder.
struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("bound");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        Manager { socket, folder }
    }

    /// Returns a command that has this manager, and a watchdog if its timeout in µs is given.
    fn command(&self, args: &[&str], watchdog_us: Option<&str>) -> Command {
        let mut command = Command::new(binary());
        command.args(args).env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        if let Some(timeout) = watchdog_us {
            command.env("WATCHDOG_USEC", timeout);
        }
        command
    }

    /// Returns the lines of the next message.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8_lossy(&bytes[..length]).lines().map(str::to_owned).collect()
    }

    /// Checks that a server is ready, shows that it is alive several times, and says that it stops.
    fn sees(&self, server: Process, status: &str) {
        assert_eq!(self.next(), [format!("STATUS=serving {status}"), "READY=1".to_owned()]);
        for _ in 0..3 {
            assert_eq!(self.next(), ["WATCHDOG=1"]);
        }
        server.signal(Signal::TERM);
        let stops = std::iter::repeat_with(|| self.next()).find(|message| message[..] != ["WATCHDOG=1"]);
        assert_eq!(stops.expect("endless"), ["STOPPING=1"]);
        assert!(server.ends_within(PATIENCE).success());
    }
}

/// Waits until the log of a program has a text.
fn wait_for_text(log: &Path, text: &str, what: &str) {
    let give_up = Instant::now() + PATIENCE;
    while !fs::read_to_string(log).is_ok_and(|written| written.contains(text)) {
        assert!(Instant::now() < give_up, "{what} does not log {text:?}: {:?}", fs::read_to_string(log));
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Timeout of a watchdog in µs, of which a third passes between two messages.
const OFTEN: Option<&str> = Some("30000");
const NODE: [&str; 6] = ["--memory", "16MiB", "--region-size", "1MiB", "--no-reserve", "--no-lock"];

#[test]
fn broker_node_and_mount_tell_systemd_that_they_are_ready_alive_and_stopping() {
    let manager = Manager::new();
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let node = Process::start(&[&["node", "--name", "other", "--broker", &broker.ready][..], &NODE].concat());
    let mut command = manager.command(&["broker", "--listen", "127.0.0.1:0"], OFTEN);
    let told = Process::begin(&mut command);
    let status = told.ready.clone();
    manager.sees(told, &status);

    let args = [&["node", "--name", "n", "--broker", &broker.ready][..], &NODE].concat();
    let told = Process::begin(&mut manager.command(&args, OFTEN));
    let status = told.ready.replace("n ", "n at ");
    manager.sees(told, &status);

    let far = manager.folder.path().join("far");
    fs::create_dir(&far).expect("made");
    let far = far.to_str().expect("letters");
    let args = ["mount", "scratch", far, "--pool", &broker.ready, "--protection", "none"];
    manager.sees(Process::begin(&mut manager.command(&args, OFTEN)), far);
    drop(node);
}

#[test]
fn node_is_ready_for_systemd_only_when_the_broker_has_admitted_it() {
    let manager = Manager::new();
    let address = reserved_address().to_string();
    let url = format!("farpool://{address}");
    let args = [&["node", "--name", "n", "--broker", &url][..], &NODE].concat();
    let log = manager.folder.path().join("log");
    let mut command = manager.command(&args, None);
    let stderr = fs::File::create(&log).expect("created");
    let mut node = command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("started");
    wait_for_text(&log, &address, "a node without a broker");
    manager.socket.set_nonblocking(true).expect("set");
    let nothing = manager.socket.recv(&mut [0; 64]).expect_err("it is not ready");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    manager.socket.set_nonblocking(false).expect("set");
    let _broker = Process::start(&["broker", "--listen", &address]);
    assert!(first_line(node.stdout.take().expect("piped"), "the node").starts_with("ready n "));
    assert_eq!(manager.next().last().map(String::as_str), Some("READY=1"));
    node.kill().expect("killed");
    node.wait().expect("gone");
}

#[test]
fn socket_of_systemd_that_does_not_exist_is_an_error_that_names_it() {
    let mut command = Command::new(binary());
    command.args(["broker", "--listen", "127.0.0.1:0"]).env("NOTIFY_SOCKET", "/nonexistent/notify");
    let told = output(&mut command);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(told.status.code(), Some(2), "{said}");
    assert!(said.contains("NOTIFY_SOCKET /nonexistent/notify"), "{said}");
}

/// The server of a mount needs no privileges, and the service of systemd has none.
#[test]
fn mount_without_the_right_to_mount_is_mounted_by_another_process() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let node = Process::start(&[&["node", "--name", "n", "--broker", &broker.ready][..], &NODE].concat());
    let manager = Manager::new();
    let far = manager.folder.path().join("far");
    fs::create_dir(&far).expect("made");
    let path = far.to_str().expect("letters");
    let start = || {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-all", "--no-new-privs", "--"]).arg(binary());
        command.args(["mount", "scratch", path, "--pool", &broker.ready, "--protection", "none"]);
        command.args(["--wait-for-attach", "--allow-other"]);
        command.env("NOTIFY_SOCKET", manager.folder.path().join("notify"));
        let server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        assert_eq!(manager.next(), [format!("STATUS=serving {path}"), "READY=1".to_owned()]);
        server
    };
    let attach = |pid: u32| {
        output(Command::new(binary()).args([
            "mount",
            "attach",
            path,
            "--allow-other",
            "--pid",
            &pid.to_string(),
        ]))
    };
    let server = start();
    let refused = String::from_utf8_lossy(&attach(std::process::id()).stderr).into_owned();
    assert!(refused.contains("has not opened /dev/fuse"), "{refused}");
    let attached = attach(server.id());
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    fs::write(far.join("f"), b"far").expect("written");
    assert_eq!(fs::read(far.join("f")).expect("read"), b"far");
    // Somebody who may write to a folder above could put a link there, so a command of root follows none.
    let link = manager.folder.path().join("link");
    symlink(&far, &link).expect("linked");
    let detach = |at: &Path| {
        let told = output(Command::new(binary()).args(["mount", "detach"]).arg(at));
        (told.status.success(), String::from_utf8_lossy(&told.stderr).into_owned())
    };
    let (is_done, said) = detach(&link);
    assert!(!is_done && said.contains("symbolic link"), "{said}");
    assert!(detach(&far).0 && !far.join("f").exists());
    let ended = output_of(server, "the server of the mount");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(manager.next(), ["STOPPING=1"]);

    // Nothing of Farpool's is there now, and what is there stays.
    assert!(output(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&far)).status.success());
    fs::write(far.join("kept"), b"").expect("written");
    let (is_done, said) = detach(&far);
    assert!(is_done && said.contains("nothing of Farpool"), "{said}");
    assert!(far.join("kept").exists());
    assert!(output(Command::new("umount").arg(&far)).status.success());

    // It can be stopped before anybody has mounted the directory.
    let server = start();
    let pid = i32::try_from(server.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
    rustix::process::kill_process(pid, Signal::TERM).expect("sent");
    let ended = output_of(server, "the server that waits");
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("stopped by a signal"));
    drop(node);
}

/// Makes `mount.farpool`, as the packages install it.
fn helper(folder: &Path) -> PathBuf {
    let helper = folder.join("mount.farpool");
    symlink(fs::canonicalize(binary()).expect("it is there"), &helper).expect("linked");
    helper
}

#[test]
fn mount_farpool_returns_when_the_directory_is_mounted_and_the_mount_stays() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let node = Process::start(&[&["node", "--name", "n", "--broker", &broker.ready][..], &NODE].concat());
    let folder = tempfile::tempdir().expect("a folder");
    let (far, log) = (folder.path().join("far"), folder.path().join("log"));
    fs::create_dir(&far).expect("made");
    let options = format!("rw,_netdev,pool=\"{}\",protection=none,log={}", broker.ready, log.display());
    let told = output(
        Command::new(helper(folder.path()))
            .args(["farpool".as_ref(), far.as_os_str()])
            .args(["-o", &options]),
    );
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    fs::write(far.join("f"), b"far").expect("written");
    assert_eq!(fs::read(far.join("f")).expect("read"), b"far");
    // The command that serves the mount ends with it, and has its log where the option says.
    assert!(output(Command::new("umount").arg(&far)).status.success());
    wait_for_text(&log, "were written to far memory", "the command that served the mount");
    assert!(!far.join("f").exists());
    drop(node);
}

#[test]
fn mount_farpool_that_fails_says_why_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let helper = helper(folder.path());
    let far = folder.path().to_str().expect("letters");
    let cases = [
        (&["farpool", far, "-o", "colour=red"][..], 1, "colour=red is unknown"),
        (&["tmpfs", far], 1, "the source \"tmpfs\""),
        (&["farpool", far, "-o", "quota=much"], 32, "quota"),
        (&["farpool", "/nonexistent", "-o", "pool=nonsense"], 32, "nonsense"),
    ];
    for (args, code, part) in cases {
        let told = output(Command::new(&helper).args(args));
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(part) && said.starts_with("mount.farpool: "), "{args:?}: {said}");
    }
}
