//! Tests of `farpool mount` with a real kernel. They need root and /dev/fuse.

use crate::processes::{Process, binary, until};
use crate::programs::{PATIENCE, ended, first_line, output};
use farpool::{Pool, PoolOptions};
use farpool_tests::random::Random;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Pool of one node, and a scratch folder in it that is mounted at a path.
struct Stage {
    mount: Option<Process>,
    at: PathBuf,
    broker: Process,
    node: Process,
    _folder: tempfile::TempDir,
}

impl Stage {
    fn new(more: &[&str]) -> Stage {
        let broker =
            Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", "1s", "--grace", "500ms"]);
        let size = ["--memory", "64MiB", "--region-size", "1MiB", "--no-reserve"];
        let node =
            Process::start(&[&["node", "--name", "n0", "--broker", &broker.ready][..], &size].concat());
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("far");
        fs::create_dir(&at).expect("created");
        let mut stage = Stage { mount: None, at, broker, node, _folder: folder };
        stage.mount = Some(Process::start(&stage.args(more)));
        stage
    }

    fn args<'s>(&'s self, more: &[&'s str]) -> Vec<&'s str> {
        let path = self.at.to_str().expect("a path of letters");
        let args = ["mount", "scratch", path, "--pool", &self.broker.ready, "--protection", "none"];
        [&args[..], more].concat()
    }

    fn file(&self, name: &str) -> File {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).to_owned();
        options.open(self.at.join(name)).expect("opened")
    }

    fn pool(&self) -> Pool {
        Pool::connect_with(&self.broker.ready, PoolOptions::default()).expect("a session")
    }

    /// Ends the mount by SIGTERM, whereupon it unmounts and exits.
    fn end(&mut self) {
        let mount = self.mount.take().expect("it runs");
        mount.signal(Signal::TERM);
        assert!(mount.ends_within(PATIENCE).success());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // If the process was killed, the mount remains until it is detached.
        drop(self.mount.take());
        detach(&self.at);
    }
}

/// Returns the types of all file systems that are mounted at a path, the topmost last.
fn mounted_at(at: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").expect("readable");
    let of = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        (fields.next()? == at.to_str()?).then(|| fields.next().map(str::to_owned))?
    };
    table.lines().filter_map(of).collect()
}

fn succeeds(command: &mut Command) {
    let done = output(command);
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Unmounts everything that is mounted at a path.
fn detach(at: &Path) {
    for _ in mounted_at(at) {
        output(Command::new("umount").arg("--lazy").arg(at));
    }
}

/// Drops a file's pages from the page cache, so that reads reach the pool.
fn forget(file: &File) {
    file.sync_all().expect("flushed");
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

#[test]
fn file_of_a_scratch_folder_holds_what_a_file_holds_whatever_is_written_truncated_and_punched() {
    for more in [&[][..], &["--write-through"]] {
        let mut stage = Stage::new(more);
        let model = tempfile::tempfile().expect("a file");
        let file = stage.file("f");
        let mut random = Random(7);
        for round in 0..2_000 {
            let offset = random.below(1 << 20);
            let length = (random.below(200 * KIB) as usize >> random.below(12)).max(1);
            match random.below(10) {
                0..5 => {
                    let bytes = random.bytes(length);
                    for file in [&file, &model] {
                        file.write_all_at(&bytes, offset).expect("written");
                    }
                }
                5 => [&file, &model].into_iter().for_each(|file| file.set_len(offset).expect("cut")),
                6 => {
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    for file in [&file, &model] {
                        fallocate(file, punch, offset, length as u64).expect("punched");
                    }
                }
                7 => forget(&file),
                _ => {
                    let (mut here, mut there) = (vec![0; length], vec![0; length]);
                    let read = file.read_at(&mut here, offset).expect("read");
                    assert_eq!(read, model.read_at(&mut there, offset).expect("read"), "round {round}");
                    assert!(here == there, "round {round}: {length} bytes at {offset}");
                }
            }
            let lengths = [&file, &model].map(|file| file.metadata().expect("stat").len());
            assert_eq!(lengths[0], lengths[1], "round {round}");
        }
        forget(&file);
        let (mut here, mut there) = (vec![0; 2 * MIB as usize], vec![0; 2 * MIB as usize]);
        let read = file.read_at(&mut here, 0).expect("read");
        assert_eq!(read, model.read_at(&mut there, 0).expect("read"));
        assert!(here == there);
        drop(file);
        stage.end();
    }
}

#[test]
fn scratch_folder_keeps_names_links_and_rights_and_the_contents_of_what_is_open() {
    let mut stage = Stage::new(&[]);
    let at = stage.at.clone();
    fs::create_dir_all(at.join("a/b")).expect("made");
    fs::write(at.join("a/b/f"), b"inside").expect("written");
    fs::hard_link(at.join("a/b/f"), at.join("g")).expect("linked");
    symlink("a/b/f", at.join("s")).expect("linked");
    fs::rename(at.join("a"), at.join("c")).expect("renamed");
    assert_eq!(fs::read(at.join("g")).expect("read"), b"inside");
    assert_eq!(fs::read_link(at.join("s")).expect("read"), Path::new("a/b/f"));
    fs::set_permissions(at.join("g"), fs::Permissions::from_mode(0o640)).expect("set");
    let told = fs::metadata(at.join("c/b/f")).expect("stat");
    assert_eq!((told.nlink(), told.mode() & 0o7777, told.len()), (2, 0o640, 6));
    let names: Vec<_> = fs::read_dir(&at).expect("listed").map(|one| one.expect("one").file_name()).collect();
    assert_eq!(names, ["c", "g", "s"]);
    // A deleted file lives on while it is open. Once it is closed, its memory returns to the pool.
    let open = stage.file("open");
    open.write_all_at(&vec![9; 8 * MIB as usize], 0).expect("written");
    forget(&open);
    fs::remove_file(at.join("open")).expect("removed");
    let mut back = vec![0; 8 * MIB as usize];
    open.read_exact_at(&mut back, 0).expect("read");
    assert!(back.iter().all(|byte| *byte == 9));
    drop((open, back));
    let error = fs::remove_dir(at.join("c")).expect_err("it is not empty");
    assert_eq!(errno(&error), Some(Errno::NOTEMPTY));
    stage.end();
    assert_eq!(fs::read_dir(&at).expect("what was mounted over").count(), 0);
    until(&stage.pool(), PATIENCE, "all memory is free", |status| {
        status.nodes.iter().all(|node| node.counts.leased == 0)
    });
}

#[test]
fn pool_and_quota_of_a_scratch_folder_come_from_the_environment() {
    let mut stage = Stage::new(&[]);
    stage.end();
    let variables = [("FARPOOL_POOL", stage.broker.ready.as_str()), ("FARPOOL_MOUNT_SCRATCH_QUOTA", "4MiB")];
    let mut command = Command::new(binary());
    command.args(["mount", "scratch"]).arg(&stage.at).envs(variables);
    stage.mount = Some(Process::begin(&mut command));
    assert_eq!(mounted_at(&stage.at), ["fuse"]);
    let space = rustix::fs::statvfs(&stage.at).expect("told");
    assert_eq!(space.f_blocks * space.f_frsize, 4 * MIB);
}

#[test]
fn quota_of_a_scratch_folder_is_told_as_a_full_disk_and_room_is_had_again() {
    for more in [&["--quota", "4MiB"][..], &["--quota", "4MiB", "--write-through"]] {
        let mut stage = Stage::new(more);
        let file = stage.file("big");
        let written = file.write_all_at(&vec![1; 6 * MIB as usize], 0).and_then(|()| file.sync_all());
        assert_eq!(errno(&written.expect_err("over the quota")), Some(Errno::NOSPC), "{more:?}");
        // Bytes of a write that was refused must not read as zeros.
        let _ = file.sync_all();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
        let mut back = vec![0; 6 * MIB as usize];
        match file.read_at(&mut back, 0) {
            Ok(count) => assert!(back[..count].iter().all(|byte| *byte == 1), "{more:?}"),
            Err(error) => assert_eq!(errno(&error), Some(Errno::IO), "{more:?}"),
        }
        drop(file);
        fs::remove_file(stage.at.join("big")).expect("removed");
        fs::write(stage.at.join("small"), vec![2; 3 * MIB as usize]).expect("there is room");
        let space = rustix::fs::statvfs(&stage.at).expect("told");
        assert_eq!(space.f_blocks * space.f_frsize, 4 * MIB);
        assert_eq!(space.f_bfree * space.f_frsize, MIB);
        stage.end();
    }
}

#[test]
fn scratch_folder_whose_node_died_answers_an_error_and_never_other_bytes_and_takes_new_files() {
    let mut stage = Stage::new(&[]);
    let file = stage.file("lost");
    file.write_all_at(&vec![7; 4 * MIB as usize], 0).expect("written");
    forget(&file);
    let size = ["--memory", "64MiB", "--region-size", "1MiB", "--no-reserve"];
    let args = ["node", "--name", "n1", "--broker", &stage.broker.ready];
    let next = Process::start(&[&args[..], &size].concat());
    std::mem::replace(&mut stage.node, next).kill();
    let mut back = vec![0; 4 * MIB as usize];
    let killed = Instant::now();
    let error = loop {
        match file.read_exact_at(&mut back, 0) {
            // Memory that the mount has mapped outlives its node, and stays readable until the session notices the
            // loss.
            Ok(()) => assert!(back.iter().all(|byte| *byte == 7) && killed.elapsed() < PATIENCE),
            Err(error) => break error,
        }
        forget(&file);
    };
    assert_eq!(errno(&error), Some(Errno::IO));
    drop(file);
    let pool = stage.pool();
    until(&pool, PATIENCE, "the other node is there", |status| {
        status.nodes.iter().any(|node| *node.info.name == *"n1")
    });
    fs::remove_file(stage.at.join("lost")).expect("removed");
    fs::write(stage.at.join("next"), b"goes on").expect("written to the other node");
    assert_eq!(fs::read(stage.at.join("next")).expect("read"), b"goes on");
    stage.end();
}

#[test]
fn folder_that_cannot_be_mounted_over_is_refused_with_what_can() {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("something"), b"").expect("written");
    let missing = folder.path().join("missing");
    for (at, wanted) in [(folder.path(), "is not empty"), (&missing, "an existing folder")] {
        let args = ["mount", "scratch", at.to_str().expect("letters"), "--pool", &broker.ready];
        let output = output(Command::new(binary()).args(args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{said}");
    }
}

#[test]
fn mount_in_use_that_is_told_to_stop_ends_well_and_leaves_its_folder_free() {
    let mut scratch = Stage::new(&[]);
    let mut kept = Kept::new();
    for (at, mount) in [(&scratch.at, scratch.mount.take()), (&kept.at, kept.mount.take())] {
        let path = at.join("f");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("opened");
        file.write_all_at(&[7; 4096], 0).expect("written");
        let mount = mount.expect("it runs");
        mount.signal(Signal::TERM);
        assert!(mount.ends_within(PATIENCE).success());
        assert_eq!(mounted_at(at), [""; 0]);
        assert!(fs::read_dir(at).expect("what was mounted over").next().is_none());
        let error = file.set_len(0).expect_err("nobody serves it");
        assert_eq!(errno(&error), Some(Errno::NOTCONN));
    }
    let mount = Process::start(&scratch.args(&[]));
    assert_eq!(mounted_at(&scratch.at), ["fuse"]);
    scratch.mount = Some(mount);
    scratch.end();
}

#[test]
fn mount_that_another_mount_namespace_has_as_well_ends_when_it_is_told_to() {
    let mut stage = Stage::new(&[]);
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", "echo there; read gone"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    assert_eq!(first_line(other.stdout.take().expect("piped"), "the other namespace"), "there");
    let mount = stage.mount.take().expect("it runs");
    mount.signal(Signal::TERM);
    assert!(mount.ends_within(PATIENCE).success());
    assert_eq!(mounted_at(&stage.at), [""; 0]);
    drop(other.stdin.take());
    ended(&mut other, "the other namespace", PATIENCE);
}

#[test]
fn folder_whose_mounts_were_killed_is_mounted_over_again() {
    let mut scratch = Stage::new(&[]);
    for _ in 0..2 {
        scratch.file("f").write_all_at(b"gone", 0).expect("written");
        scratch.mount.take().expect("it runs").kill();
        let error = fs::read_dir(&scratch.at).expect_err("nobody serves it");
        assert_eq!(errno(&error), Some(Errno::NOTCONN));
        scratch.mount = Some(Process::start(&scratch.args(&[])));
        assert_eq!(mounted_at(&scratch.at), ["fuse"]);
        assert!(fs::read_dir(&scratch.at).expect("listed").next().is_none());
    }
    scratch.end();
    assert_eq!(mounted_at(&scratch.at), [""; 0]);
    // A folder over which its own cache was mounted can be mounted again after the mount was killed.
    let mut kept = Kept::over_itself();
    fs::write(kept.at.join("f"), b"stays").expect("written");
    kept.mount.take().expect("it runs").kill();
    kept.mount = Some(Process::start(&kept.args(&[])));
    assert_eq!(fs::read(kept.at.join("f")).expect("read"), b"stays");
    kept.end();
    assert_eq!(mounted_at(&kept.at), [""; 0]);
}

#[test]
fn block_of_which_the_kernel_holds_half_is_read_short_once_its_mount_was_killed_and_never_wrong() {
    // PostgreSQL reported "read only 4096 of 8192 bytes" when its mount was killed: the kernel had half of the block
    // cached.
    let mut stage = Stage::new(&[]);
    let block = Random(3).bytes(8192);
    let file = stage.file("f");
    file.write_all_at(&block, 0).expect("written");
    forget(&file);
    // The kernel is asked not to read ahead, so that only one page gets into its cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("told");
    file.read_exact_at(&mut [0; 4096], 0).expect("read");
    stage.mount.take().expect("it runs").kill();
    let mut found = vec![0; 8192];
    assert_eq!(file.read_at(&mut found, 0).expect("the half that the kernel holds"), 4096);
    assert!(found[..4096] == block[..4096]);
    let error = file.read_at(&mut found, 4096).expect_err("nobody has the other half");
    assert_eq!(errno(&error), Some(Errno::NOTCONN));
}

#[test]
fn dead_mount_of_another_program_is_named_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("letters");
    // The foreign mount ends when the shell that holds its descriptor ends.
    let options = "fd=9,rootmode=40000,user_id=0,group_id=0";
    let mount = format!("exec 9<>/dev/fuse && mount -i -t fuse.other -o {options} other {path}");
    succeeds(Command::new("sh").args(["-c", &mount]));
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let output = output(Command::new(binary()).args(["mount", "scratch", path, "--pool", &broker.ready]));
    let left = mounted_at(folder.path());
    succeeds(Command::new("umount").arg(path));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("fuse.other"), "{said}");
    assert_eq!(left, ["fuse.other"]);
}

#[test]
fn volume_that_is_mounted_over_itself_stays_when_somebody_unmounts_the_mount() {
    let mut kept = Kept::over_itself();
    kept.end();
    succeeds(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&kept.at));
    fs::write(kept.at.join("f"), b"of the volume").expect("written");
    let mount = Process::start(&kept.args(&[]));
    assert_eq!(mounted_at(&kept.at), ["tmpfs", "fuse"]);
    succeeds(Command::new("umount").arg(&kept.at));
    assert!(mount.ends_within(PATIENCE).success());
    assert_eq!(mounted_at(&kept.at), ["tmpfs"]);
    assert_eq!(fs::read(kept.at.join("f")).expect("read"), b"of the volume");
}

/// Pool of one node, a folder of this machine, and a mount that shows that folder with a cache in the pool.
struct Kept {
    mount: Option<Process>,
    at: PathBuf,
    folder: PathBuf,
    node: Option<Process>,
    broker: Process,
    _around: tempfile::TempDir,
}

impl Kept {
    fn new() -> Kept {
        Kept::with(&[])
    }

    fn with(more: &[&str]) -> Kept {
        Kept::at("kept", more)
    }

    fn over_itself() -> Kept {
        Kept::at("folder", &[])
    }

    fn at(name: &str, more: &[&str]) -> Kept {
        let broker =
            Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", "1s", "--grace", "500ms"]);
        let size = ["--memory", "64MiB", "--region-size", "1MiB", "--no-reserve"];
        let node =
            Process::start(&[&["node", "--name", "n0", "--broker", &broker.ready][..], &size].concat());
        let around = tempfile::tempdir().expect("a folder");
        let (folder, at) = (around.path().join("folder"), around.path().join(name));
        [&folder, &at].into_iter().for_each(|folder| fs::create_dir_all(folder).expect("created"));
        let mut kept = Kept { mount: None, at, folder, node: Some(node), broker, _around: around };
        kept.mount = Some(Process::start(&kept.args(more)));
        kept
    }

    fn args<'k>(&'k self, more: &[&'k str]) -> Vec<&'k str> {
        let (from, to) = (self.folder.to_str().expect("letters"), self.at.to_str().expect("letters"));
        let args = [
            "mount",
            "cache",
            from,
            to,
            "--pool",
            &self.broker.ready,
            "--size",
            "32MiB",
            "--local-cache",
            "0B",
        ];
        let fresh = ["--block", "16KiB", "--max-age", "0ms"];
        [&args[..], &fresh, more].concat()
    }

    fn end(&mut self) {
        let mount = self.mount.take().expect("it runs");
        mount.signal(Signal::TERM);
        assert!(mount.ends_within(PATIENCE).success());
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.mount.take());
        detach(&self.at);
    }
}

#[test]
fn file_of_a_kept_folder_is_what_the_folder_has_whoever_writes_and_whether_the_node_lives() {
    let mut kept = Kept::new();
    let mut random = Random(11);
    let mut model = random.bytes(1 << 20);
    fs::write(kept.folder.join("f"), &model).expect("written");
    let options = OpenOptions::new().read(true).write(true).to_owned();
    let file = options.open(kept.at.join("f")).expect("opened");
    let behind = options.open(kept.folder.join("f")).expect("opened");
    for round in 0..1_500 {
        let offset = random.below(model.len() as u64);
        let length = (random.below(200 * KIB) as usize >> random.below(10)).max(1);
        match random.below(12) {
            0..3 => {
                let bytes = random.bytes(length);
                file.write_all_at(&bytes, offset).expect("written");
                let end = offset as usize + length;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&bytes);
            }
            3 => {
                let length = length.min(model.len() - offset as usize);
                let bytes = random.bytes(length);
                behind.write_all_at(&bytes, offset).expect("written");
                model[offset as usize..offset as usize + length].copy_from_slice(&bytes);
            }
            4 => {
                file.set_len(offset + 1).expect("cut");
                model.truncate(offset as usize + 1);
                model.resize(300 << 10, 0);
                file.set_len(300 << 10).expect("grown");
            }
            5 if round == 1_000 => drop(kept.node.take().map(Process::kill)),
            _ => {
                forget(&file);
                let mut found = vec![0; length];
                let count = file.read_at(&mut found, offset).expect("read");
                let wanted = &model[offset as usize..model.len().min(offset as usize + length)];
                assert_eq!(count, wanted.len(), "round {round}");
                assert!(found[..count] == *wanted, "round {round}: {count} bytes at {offset}");
            }
        }
    }
    drop((file, behind));
    kept.end();
    assert!(fs::read(kept.folder.join("f")).expect("read") == model, "all of it is in the folder");
}

#[test]
fn what_is_appended_to_a_kept_file_stands_behind_what_others_appended() {
    let mut kept = Kept::new();
    let append = |folder: &Path| File::options().create(true).append(true).open(folder.join("log"));
    let mut ours = append(&kept.at).expect("opened");
    let mut theirs = append(&kept.folder).expect("opened");
    let mut wanted = Vec::new();
    for round in 0..50_u8 {
        for file in [&mut ours, &mut theirs] {
            let line = vec![round; 1 + 3 * usize::from(round)];
            file.write_all(&line).expect("written");
            wanted.extend(line);
        }
    }
    assert!(fs::read(kept.folder.join("log")).expect("read") == wanted);
    drop(ours);
    assert!(fs::read(kept.at.join("log")).expect("read") == wanted);
    kept.end();
}

#[test]
fn kept_folder_passes_names_rights_and_attributes_through() {
    let mut kept = Kept::new();
    let (at, folder) = (kept.at.clone(), kept.folder.clone());
    fs::create_dir_all(at.join("a/b")).expect("made");
    fs::write(at.join("a/b/f"), b"inside").expect("written");
    fs::hard_link(at.join("a/b/f"), at.join("g")).expect("linked");
    symlink("a/b/f", at.join("s")).expect("linked");
    fs::rename(at.join("a"), at.join("c")).expect("renamed");
    fs::set_permissions(at.join("g"), fs::Permissions::from_mode(0o640)).expect("set");
    for root in [&at, &folder] {
        let told = fs::metadata(root.join("c/b/f")).expect("stat");
        assert_eq!((told.nlink(), told.mode() & 0o7777, told.len()), (2, 0o640, 6));
        assert_eq!(fs::read_link(root.join("s")).expect("read"), Path::new("a/b/f"));
        let mut names: Vec<_> =
            fs::read_dir(root).expect("listed").map(|one| one.expect("one").file_name()).collect();
        names.sort();
        assert_eq!(names, ["c", "g", "s"]);
    }
    fs::write(folder.join("behind"), b"its back").expect("written");
    assert_eq!(fs::read(at.join("behind")).expect("found"), b"its back");
    fs::remove_file(folder.join("behind")).expect("removed");
    assert!(!at.join("behind").exists(), "it is gone");
    let file = File::open(at.join("g")).expect("opened");
    file.sync_all().expect("synced");
    drop(file);
    fs::remove_file(at.join("g")).expect("removed");
    assert_eq!(fs::remove_dir(at.join("c")).map_err(|error| errno(&error)), Err(Some(Errno::NOTEMPTY)));
    kept.end();
    assert_eq!(fs::read(folder.join("c/b/f")).expect("read"), b"inside");
}

/// Encodes an access control list for the kernel (`posix_acl_xattr_header` and `posix_acl_xattr_entry`).
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_control_lists_of_a_kept_folder_count_and_are_passed_on_to_what_is_made_in_it() {
    const NOBODY: u32 = u32::MAX;
    let (owner, user, group, mask, other) = (1, 2, 4, 0x10, 0x20);
    let mut kept = Kept::with(&["--allow-other"]);
    for folder in [kept.folder.parent().expect("one"), &kept.folder] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("set");
    }
    fs::write(kept.folder.join("f"), b"for one").expect("written");
    let list = |permissions| {
        let named = (user, permissions, 4_321);
        acl(&[(owner, 6, NOBODY), named, (group, 0, NOBODY), (mask, permissions, NOBODY), (other, 0, NOBODY)])
    };
    let set = |path: PathBuf, name, list: &[u8]| {
        rustix::fs::setxattr(path, name, list, rustix::fs::XattrFlags::empty())
            .expect("the file system has them");
    };
    set(kept.folder.join("f"), "system.posix_acl_access", &list(4));
    let reads = |path: PathBuf, user| output(Command::new("cat").arg(path).uid(user).gid(user)).stdout;
    assert_eq!(reads(kept.at.join("f"), 4_321), b"for one");
    assert_eq!(reads(kept.at.join("f"), 4_322), b"");
    // The group bits of the mode are the mask of the access control list. Without the list, every member of the group
    // could read the file.
    assert_eq!(fs::metadata(kept.at.join("f")).expect("stat").mode() & 0o777, 0o640);

    set(kept.folder.clone(), "system.posix_acl_default", &list(6));
    fs::write(kept.folder.join("direct"), b"").expect("written");
    fs::write(kept.at.join("made"), b"made").expect("written");
    fs::create_dir(kept.folder.join("direct folder")).expect("made");
    fs::create_dir(kept.at.join("made folder")).expect("made");
    for (made, direct) in [("made", "direct"), ("made folder", "direct folder")] {
        for name in ["system.posix_acl_access", "system.posix_acl_default"] {
            let get = |path: &str| {
                let mut bytes = vec![0; 256];
                rustix::fs::getxattr(kept.folder.join(path), name, &mut bytes)
                    .map(|count| bytes[..count].to_vec())
            };
            assert_eq!(get(made), get(direct), "{name} of {made}");
        }
        let mode = |path: &str| fs::metadata(kept.folder.join(path)).expect("stat").mode();
        assert_eq!(mode(made), mode(direct), "{made}");
    }
    // Set-user-ID and set-group-ID bits are preserved.
    let set_ids = |folder: &Path| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o4755).open(folder.join("program")).expect("made");
        let mode = fs::metadata(folder.join("program")).expect("stat").mode();
        fs::remove_file(folder.join("program")).expect("removed");
        mode
    };
    assert_eq!(set_ids(&kept.at), set_ids(&kept.folder));
    assert_eq!(reads(kept.at.join("made"), 4_321), b"made");
    assert_eq!(reads(kept.at.join("made"), 4_322), b"");
    kept.end();
}

#[test]
fn file_system_without_access_control_lists_is_used_by_those_who_may() {
    let mut kept = Kept::with(&["--allow-other"]);
    let below = kept.folder.join("below");
    fs::create_dir(&below).expect("made");
    succeeds(Command::new("mount").args(["-t", "ramfs", "none"]).arg(&below));
    fs::write(below.join("f"), b"of somebody").expect("written");
    std::os::unix::fs::chown(below.join("f"), Some(4_321), Some(4_321)).expect("given away");
    fs::set_permissions(below.join("f"), fs::Permissions::from_mode(0o644)).expect("set");
    let found = fs::read(kept.at.join("below/f"));
    let made = fs::write(kept.at.join("below/g"), b"new");
    detach(&below);
    assert_eq!(found.expect("root may"), b"of somebody");
    made.expect("root may");
    kept.end();
}

#[test]
fn file_of_a_kept_folder_is_truncated_when_it_is_opened_for_reading_alone() {
    let mut kept = Kept::new();
    fs::write(kept.at.join("f"), b"much").expect("written");
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC;
    rustix::fs::open(kept.at.join("f"), flags, rustix::fs::Mode::empty()).expect("opened");
    assert_eq!(fs::read(kept.folder.join("f")).expect("read"), b"");
    kept.end();
}

/// Starts a scratch mount through the program `env` with this option, and with a standard error whose reader is gone.
fn unheard_mount(env: &str) -> (Process, tempfile::TempDir, [Process; 2]) {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0"]);
    let size = ["--memory", "16MiB", "--region-size", "1MiB", "--no-reserve"];
    let node = Process::start(&[&["node", "--name", "n0", "--broker", &broker.ready][..], &size].concat());
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("env");
    command.args([env, &binary(), "mount", "scratch"]).arg(folder.path());
    command.args(["--pool", &broker.ready, "--quota", "1MiB", "--write-through"]);
    // The reading end is closed, so writes to standard error fail.
    let (_, unread) = io::pipe().expect("a pipe");
    (Process::begin(command.stderr(unread)), folder, [broker, node])
}

#[test]
fn scratch_folder_goes_on_when_nobody_hears_what_it_has_to_say_and_ends_with_its_terminal() {
    let (mount, folder, _pool) = unheard_mount("--default-signal=HUP");
    for _ in 0..5 {
        let error = fs::write(folder.path().join("f"), vec![7; 2 << 20]).expect_err("it is too much");
        assert_eq!(errno(&error), Some(Errno::NOSPC));
    }
    fs::write(folder.path().join("f"), b"fits").expect("written");
    assert_eq!(fs::read(folder.path().join("f")).expect("read"), b"fits");
    // SIGHUP is sent when a terminal is closed. It ends the mount.
    mount.signal(Signal::HUP);
    assert!(mount.ends_within(PATIENCE).success());
    assert!(fs::read_dir(folder.path()).expect("unmounted").next().is_none());
}

#[test]
fn scratch_folder_outlives_its_terminal_if_it_was_told_to() {
    // Ignores SIGHUP, as `nohup` does.
    let (mount, folder, _pool) = unheard_mount("--ignore-signal=HUP");
    let status = fs::read_to_string(format!("/proc/{}/status", mount.id())).expect("it runs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("told");
    let ignored = u64::from_str_radix(ignored.trim(), 16).expect("a mask");
    assert_eq!(ignored & 1, 1, "SIGHUP is the first signal, and it is ignored still");
    mount.signal(Signal::HUP);
    fs::write(folder.path().join("f"), b"goes on").expect("written");
    mount.signal(Signal::TERM);
    assert!(mount.ends_within(PATIENCE).success());
    assert!(fs::read_dir(folder.path()).expect("unmounted").next().is_none());
}
