//! Ways out of the sandbox, tried by native code that its caller has signed: each works outside, and none inside.
//!
//! The ways are in `escapes.c`, one entry for each. Each way first runs outside, on a victim of its own, which shows
//! that it works on this system. Then it runs as a function, on another victim, which must be unchanged afterwards.

use crate::hostile::options;
use crate::native::{compile, signed, signer, trusting};
use crate::pool::*;
use farpool::TransportChoice::Shm;
use farpool::function::{CallerOptions, Function};
use farpool_functions::SandboxOptions;
use farpool_functions::confinement::Confinement;
use farpool_tests::programs::{output_of, wait_for_line};
use rustix::process::{Pid, getpriority_process};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// All ways out of the sandbox, by the names of their entry functions in `escapes.c`.
const WAYS: [&str; 79] = [
    // Signals.
    "kill_process",
    "kill_thread",
    "kill_thread_of_group",
    "queue_signal",
    "queue_signal_to_thread",
    "signal_by_pidfd",
    "signal_by_socket",
    "own_descriptor",
    "own_descriptor_by_thread",
    "choose_descriptor_signal",
    "own_socket",
    "open_peer_process",
    // Limits and CPUs.
    "limit_cpu_time",
    "limit_files",
    "read_limit",
    "raise_own_limit",
    "set_cpus",
    "set_own_cpus",
    "read_cpus",
    "read_cpu_time",
    "renice",
    "schedule_as_batch",
    "schedule_own_in_real_time",
    "set_io_priority",
    "raise_out_of_memory_score",
    // Other processes.
    "trace",
    "read_memory",
    "write_memory",
    "write_memory_file",
    "read_environment",
    "read_program_link",
    "take_descriptor",
    "compare_process",
    "read_robust_list",
    "read_session",
    "enter_namespace",
    "count_events",
    "start_process",
    "start_program",
    "make_namespaces",
    "become_another_user",
    // Files.
    "read_file",
    "write_file",
    "look_at_file",
    "truncate_file",
    "change_mode",
    "change_times",
    "remove_file",
    "rename_file",
    "create_file",
    "link_file",
    "link_by_name",
    "make_folder",
    "list_folder",
    "go_to_folder",
    "change_root",
    "mount_folder",
    "open_by_handle",
    "watch_file",
    "write_to_nodes_messages",
    // Devices and the kernel.
    "read_device",
    "make_device",
    "read_kernel_log",
    "name_host",
    "load_program_into_kernel",
    "queue_work_in_kernel",
    "answer_page_faults",
    "keep_a_key",
    // Sockets and other channels between processes.
    "connect_by_tcp",
    "connect_by_message",
    "address_a_message",
    "listen_by_tcp",
    "send_by_udp",
    "connect_to_socket_file",
    "connect_to_abstract_socket",
    "ask_kernel_for_interfaces",
    "listen_to_packets",
    "attach_shared_memory",
    "make_message_queue",
];

/// Smallest number of ways that must work outside, whoever runs the tests. Ways that need more rights than the tests'
/// user has are skipped.
const SHOWN_MIN: usize = 40;

/// The compiled programs, and the ways that work outside the sandbox.
struct Built {
    _folder: tempfile::TempDir,
    /// Shared object of `escapes.c`, with one entry function for each way.
    object: PathBuf,
    /// Program of `escapes_outside.c`, which runs the ways outside the sandbox and is the victim process.
    outside: PathBuf,
    /// Names of the ways that work outside the sandbox on this system.
    shown: Vec<&'static str>,
}

/// A process, files and sockets that the ways out try to reach.
struct Victim {
    process: Child,
    asked: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    tcp: TcpListener,
    udp: UdpSocket,
    sockets: [UnixListener; 2],
    /// Bytes of the struct `target` of `escapes.c`.
    target: Vec<u8>,
}

impl Victim {
    fn start(outside: &Path) -> Victim {
        let mut command = Command::new(outside);
        command.arg("victim").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let asked = process.stdin.take().unwrap();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        let mut said = String::new();
        answers.read_line(&mut said).unwrap();
        let numbers: Vec<u64> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [pid, shared_memory, word_at] = numbers[..] else { panic!("the victim says {said:?}") };
        // File permissions admit everybody, so that only the sandbox can refuse an access.
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "secret").unwrap();
        fs::create_dir(path("folder")).unwrap();
        for (name, mode) in [("", 0o777), ("file", 0o666), ("folder", 0o777)] {
            fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        }
        let name = format!("farpool-victim-{pid}");
        let abstract_socket = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets =
            [UnixListener::bind(path("socket")).unwrap(), UnixListener::bind_addr(&abstract_socket).unwrap()];
        fs::set_permissions(path("socket"), Permissions::from_mode(0o777)).unwrap();
        sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        let ports = [tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()];
        let mut target = Vec::new();
        for number in [pid as u32, shared_memory as u32, ports[0].into(), ports[1].into()] {
            target.extend(number.to_le_bytes());
        }
        target.extend(word_at.to_le_bytes());
        let texts = [(path("file"), 128), (path("folder"), 128), (path("socket"), 104), (name.into(), 104)];
        for (text, room) in texts {
            let bytes = text.as_os_str().as_encoded_bytes();
            assert!(bytes.len() < room, "{} is too long a path", text.display());
            let end = target.len() + room;
            target.extend(bytes);
            target.resize(end, 0);
        }
        Victim { process, asked, answers, folder, tcp, udp, sockets, target }
    }

    /// Returns everything of the victim that a way could have changed, as text. The state of the process is missing if
    /// the process has ended.
    fn state(&mut self) -> String {
        let mut said = String::new();
        if self.asked.write_all(b"\n").is_ok() {
            self.answers.read_line(&mut said).unwrap();
        }
        let file = self.folder.path().join("file");
        let mode = fs::metadata(&file).ok().map(|data| (data.permissions().mode(), data.modified().unwrap()));
        let list = |path: &Path| fs::read_dir(path).unwrap().count();
        let names = [list(self.folder.path()), list(&self.folder.path().join("folder"))];
        let reached = (
            self.tcp.accept().is_ok(),
            self.udp.recv(&mut [0; 8]).is_ok(),
            self.sockets.each_ref().map(|socket| socket.accept().is_ok()),
        );
        format!("{said}{:?} {mode:?} {names:?} {reached:?}", fs::read(&file).ok())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn build() -> Built {
    let folder = tempfile::tempdir().unwrap();
    let (object, outside) = (folder.path().join("escapes.so"), folder.path().join("outside"));
    compile(include_str!("escapes.c"), &["-fPIC", "-shared"], &object);
    compile(include_str!("escapes_outside.c"), &[], &outside);
    let mut shown = Vec::new();
    for way in WAYS {
        let victim = Victim::start(&outside);
        let mut command = Command::new(&outside);
        command.arg(&object).arg(way).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        process.stdin.take().unwrap().write_all(&victim.target).unwrap();
        let ended = output_of(process, way);
        let why = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        match ended.status.code() {
            Some(0) => shown.push(way),
            Some(2) => eprintln!("{way} is not looked at: it does not work outside either: {why}"),
            _ => panic!("{way} does not work outside: {} {why}", ended.status),
        }
    }
    assert!(shown.len() >= SHOWN_MIN, "only {} ways work outside: {shown:?}", shown.len());
    Built { _folder: folder, object, outside, shown }
}

/// Returns the programs, which are compiled once for all tests.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(build)
}

/// Tries every way that works outside, in sandboxes that this thread starts. Returns those that work inside.
fn escapes() -> Vec<&'static str> {
    let built = built();
    let object = fs::read(&built.object).unwrap();
    let signer = signer();
    let running = Running::start(1, trusting(&signer));
    // Uses shared memory, so that the sandbox has a socket whose other end is a process of this machine.
    let pool = running.connect(Shm);
    let bytes = bytes_of(&(1..=1_000).collect::<Vec<_>>());
    let file = publish(&pool, "words", &bytes);
    let calls = file.caller(CallerOptions { output_bytes: 4_096, ..CallerOptions::default() }).unwrap();
    let mut victim = Victim::start(&built.outside);
    let mut before = victim.state();
    let mut worked = Vec::new();
    for way in &built.shown {
        // A refusal is an error number or the end of the process.
        match calls.call(&signed(&signer, &object, way), &victim.target, options(60_000)) {
            Ok(called) if called.output[..4] == [0; 4] => {}
            Ok(_) => worked.push(*way),
            Err(error) => assert!(error.how_it_ended().is_some(), "{way}: {error}"),
        }
        let now = victim.state();
        if now != before {
            eprintln!("{way}: the victim was\n{before}\nand is\n{now}");
            victim = Victim::start(&built.outside);
            before = victim.state();
            worked.push(*way);
        }
        let mut read = vec![0; bytes.len()];
        file.read_at(0, &mut read).unwrap();
        assert!(read == bytes, "{way}: the node serves what was published");
    }
    worked
}

/// Runs `run` on a thread on which these system calls fail with this error, also in all processes that it starts. The
/// error is that of a kernel that does not have the calls, or of one that does not permit them.
fn without<T: Send>(calls: &[i64], error: i32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| {
        let run = threads.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
            let (action, arch) =
                (SeccompAction::Errno(error as u32), std::env::consts::ARCH.try_into().unwrap());
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
            apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
            run()
        });
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

const LANDLOCK: [i64; 3] =
    [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self];

fn confinement() -> Confinement {
    sandbox().confinement().unwrap()
}

/// Reports whether the user of the tests may create namespaces, and prints a note if not.
fn has_namespaces() -> bool {
    let has = Command::new("unshare").args(["-Unmipf", "true"]).status().is_ok_and(|status| status.success());
    if !has {
        eprintln!("no user namespaces here: what they are good for is not looked at");
    }
    has
}

/// Returns the number behind this name in a file of `/proc`; `None` if the file is gone or does not have the name.
fn of_status(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the folders in `/proc` of the sandbox processes that this process has started.
fn sandboxes() -> Vec<PathBuf> {
    let parent = |process: &Path| of_status(&process.join("status"), "PPid:");
    let ours = u64::from(std::process::id());
    let is_ours = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "farpool-sandbox")
            && parent(process).is_some_and(|first| {
                first == ours || parent(&PathBuf::from(format!("/proc/{first}"))) == Some(ours)
            })
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours).collect()
}

/// Returns, for each sandbox process, the seccomp modes of all its threads. Mode 2 is a filter of system calls.
fn filters() -> Vec<Vec<u64>> {
    let modes = |process: PathBuf| {
        let threads = fs::read_dir(process.join("task")).ok()?;
        let mode = |thread: std::io::Result<fs::DirEntry>| {
            of_status(&thread.ok()?.path().join("status"), "Seccomp:")
        };
        Some(threads.filter_map(mode).collect())
    };
    sandboxes().into_iter().filter_map(modes).collect()
}

#[test]
fn sandboxes_stand_back_as_far_as_their_node_says() {
    let running = Running::start(1, SandboxOptions { niceness: 7, ..sandbox() });
    let pool = running.connect(Shm);
    let calls = publish(&pool, "list", &list(64, 64)).caller(CallerOptions::default()).unwrap();
    let walk = Function::wasm(module(WALK), "walk").unwrap();
    calls.call(&walk, &bytes_of(&[0, 1, 0]), options(60_000)).unwrap();
    let niceness = |process: &PathBuf| {
        let number: i32 = process.file_name()?.to_str()?.parse().ok()?;
        getpriority_process(Pid::from_raw(number)).ok()
    };
    let found: Vec<i32> = sandboxes().iter().filter_map(niceness).collect();
    let wanted = 19.min(getpriority_process(None).unwrap() + 7);
    assert!(found.contains(&wanted), "{wanted} is not among {found:?}");
}

#[test]
fn every_thread_of_a_sandbox_has_its_filter_also_those_that_compile() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Shm);
    let calls = publish(&pool, "list", &list(64, 64)).caller(CallerOptions::default()).unwrap();
    let walk = Function::wasm(module(WALK), "walk").unwrap();
    calls.call(&walk, &bytes_of(&[0, 1, 0]), options(60_000)).unwrap();
    let filters = filters();
    // Processes in reserve have no filter yet, and processes that only wait for others never see a caller's bytes.
    let locked: Vec<_> = filters.iter().filter(|modes| modes.contains(&2)).collect();
    assert!(!locked.is_empty(), "the sandbox that was called has a filter: {filters:?}");
    assert!(locked.iter().all(|modes| modes.iter().all(|mode| *mode == 2)), "{filters:?}");
}

#[test]
fn native_function_finds_no_way_out_of_its_sandbox() {
    if has_namespaces() {
        assert!(confinement().is_whole(), "{:?}", confinement());
        assert_eq!(escapes(), Vec::<&str>::new());
    }
}

#[test]
fn native_function_finds_no_way_out_where_the_kernel_has_no_landlock() {
    if has_namespaces() {
        built();
        assert_eq!(without(&LANDLOCK, libc::ENOSYS, escapes), Vec::<&str>::new());
    }
}

#[test]
fn native_function_finds_no_way_out_but_names_of_files_where_namespaces_are_refused() {
    built();
    without(&[libc::SYS_unshare], libc::EPERM, || {
        let root = rustix::process::geteuid().is_root();
        assert_eq!(confinement(), Confinement { namespaces: false, files: false, user: root });
        assert!(confinement().to_string().contains("without namespaces"), "{}", confinement());
        // Landlock lets a process look at names of files, and the filter of system calls does not see names.
        assert_eq!(escapes(), ["look_at_file"]);
    });
}

#[test]
fn node_that_is_refused_namespaces_says_what_its_functions_run_without() {
    if !has_namespaces() {
        return;
    }
    // Makes a user namespace in which no others may be created.
    let refusing = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let farpool =
        std::env::var("FARPOOL_BIN").expect("FARPOOL_BIN names the farpool binary: run `make test`");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", refusing, &farpool, "node", "--name", "n"]);
    command.args(["--memory", "16MiB", "--region-size", "1MiB", "--broker", "farpool://127.0.0.1:1"]);
    command.env("FARPOOL_SANDBOX", sandbox().program).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut node = command.spawn().unwrap();
    let says = "shipped functions run without namespaces for processes, network and IPC";
    wait_for_line(node.stderr.take().unwrap(), says, "the node's standard error");
    node.kill().unwrap();
    node.wait().unwrap();
}

#[test]
fn process_whose_node_ends_while_it_starts_ends_without_a_word() {
    // The bytes that the node has sent before it ends: none, or the first one.
    for said in [&[][..], &[1]] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(said).unwrap();
        drop(ours);
        let mut command = Command::new(sandbox().program);
        command.arg("0").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = output_of(command.spawn().unwrap(), "the sandbox");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "after {said:?}");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn native_function_is_refused_where_nothing_keeps_it_from_files() {
    let object = fs::read(&built().object).unwrap();
    let refused: Vec<i64> = LANDLOCK.into_iter().chain([libc::SYS_unshare]).collect();
    without(&refused, libc::EPERM, || {
        let signer = signer();
        let running = Running::start(1, trusting(&signer));
        let pool = running.connect(Shm);
        let file = publish(&pool, "words", &bytes_of(&[7; 512]));
        let calls = file.caller(CallerOptions::default()).unwrap();
        let error = calls.call(&signed(&signer, &object, "read_session"), &[], options(60_000)).unwrap_err();
        assert!(error.to_string().contains("cannot be loaded"), "{error}");
        let module = module(WALK);
        let walk = Function::wasm(module, "walk").unwrap();
        let called = calls.call(&walk, &bytes_of(&[0, 0, 0]), options(60_000)).unwrap();
        assert_eq!(words_of(&called.output), [0, 0]);
    });
}
