//! The driver and the volume server as processes, over a real pool: volumes that pods write to, and processes that are
//! killed. Needs root and /dev/fuse.

mod machine;

use farpool_tests::programs::PATIENCE;
use machine::csi::volume_capability::access_mode::Mode;
use machine::csi::volume_capability::{AccessType, BlockVolume};
use machine::csi::*;
use machine::{MIB, Machine, Process, capability};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, words: &[&str]) {
    let status = answer.expect_err("it is refused");
    let said = status.message();
    assert_eq!(status.code(), code, "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is said: {said}"));
}

/// Waits until something holds.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < give_up, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_of_a_pod_has_its_size_is_anybodys_to_write_and_ends_with_the_pod() {
    let machine = Machine::new();
    let all = machine.free_bytes().await;
    let of_pod = [("size", "4Mi"), ("protection", "none")];
    let at = machine.publish_inline("csi-1", "one", &of_pod).await.expect("published");
    machine.publish_inline("csi-1", "one", &of_pod).await.expect("again");
    assert_eq!(fs::metadata(&at).expect("there").permissions().mode() & 0o7777, 0o777);
    let written = Command::new("/bin/sh")
        .args(["-c", "head -c 1048576 /dev/urandom > \"$0/file\" && sync \"$0/file\""])
        .arg(&at)
        .uid(65534)
        .gid(65534)
        .status();
    assert!(written.expect("a shell").success(), "a user without rights may write");
    assert_eq!(fs::metadata(at.join("file")).expect("there").uid(), 65534);
    assert_eq!(machine.usage("csi-1", "one").await.expect("known"), (4 << 20, 1 << 20, 3 << 20));

    let mut file = fs::File::create(at.join("more")).expect("created");
    let full = file.write_all(&vec![7; 4 << 20]).and_then(|()| file.sync_all());
    assert_eq!(full.expect_err("the volume has 4 MiB").kind(), ErrorKind::StorageFull);
    drop(file);

    machine.unpublish("csi-1", "one").await.expect("unpublished");
    machine.unpublish("csi-1", "one").await.expect("again");
    assert!(!at.exists(), "the target is gone");
    assert_eq!(machine.records(), 0);
    until("the pool has its memory again", async || machine.free_bytes().await == all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_of_a_claim_keeps_its_bytes_until_it_is_deleted() {
    let machine = Machine::new();
    let volume = machine.create("pvc-1", 2 * MIB, &[("encrypted", "true"), ("protection", "none")]).await;
    let volume = volume.expect("created");
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("pvc-1", 2 << 20));
    assert_eq!(volume.accessible_topology[0].segments["topology.farpool.io/node"], "m1");
    let one = machine.publish("pvc-1", "one", &[]).await.expect("published");
    fs::write(one.join("file"), b"bytes").expect("written");
    let two = machine.publish("pvc-1", "two", &[]).await.expect("to a second pod");
    assert_eq!(fs::read(two.join("file")).expect("read"), b"bytes");
    refused(machine.delete("pvc-1").await, Code::FailedPrecondition, &["in use", "pods/one"]);
    machine.unpublish("pvc-1", "one").await.expect("unpublished");
    machine.unpublish("pvc-1", "two").await.expect("unpublished");
    let again = machine.publish("pvc-1", "three", &[]).await.expect("published");
    assert_eq!(fs::read(again.join("file")).expect("read"), b"bytes");
    machine.unpublish("pvc-1", "three").await.expect("unpublished");
    machine.delete("pvc-1").await.expect("deleted");
    machine.delete("pvc-1").await.expect("again");
    refused(machine.publish("pvc-1", "one", &[]).await, Code::NotFound, &["no volume pvc-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_that_only_reads_is_not_written() {
    let machine = Machine::new();
    machine.create("pvc-1", MIB, &[]).await.expect("created");
    let request = NodePublishVolumeRequest {
        volume_id: "pvc-1".into(),
        target_path: machine.target("one"),
        volume_capability: Some(capability(Mode::SingleNodeReaderOnly)),
        readonly: true,
        ..Default::default()
    };
    machine.node().node_publish_volume(request.clone()).await.expect("published");
    machine.node().node_publish_volume(request).await.expect("again");
    let written = fs::write(Path::new(&machine.target("one")).join("file"), b"bytes");
    assert_eq!(written.expect_err("it only reads").kind(), ErrorKind::ReadOnlyFilesystem);
    refused(machine.publish("pvc-1", "one", &[]).await, Code::FailedPrecondition, &["another mount"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_with_the_reason() {
    let mut machine = Machine::new();
    let large = machine.create("pvc-1", 65 * MIB, &[]).await;
    refused(large, Code::OutOfRange, &["65 MiB", "larger than the pool", "64 MiB"]);
    let two = machine.create("pvc-1", 33 * MIB, &[("protection", "mirror")]).await;
    refused(two, Code::OutOfRange, &["in two copies"]);
    let inline = machine.publish_inline("csi-1", "one", &[("size", "1Gi")]).await;
    refused(inline, Code::OutOfRange, &["1 GiB", "larger than the pool"]);
    let word = machine.create("pvc-1", MIB, &[("protecton", "mirror")]).await;
    refused(word, Code::InvalidArgument, &["protecton", "did you mean protection?"]);
    let pool = machine.publish_inline("csi-1", "one", &[("pool", "farpool://elsewhere:1")]).await;
    refused(pool, Code::InvalidArgument, &["pool", "storage class"]);
    let block = VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume::default())),
        ..capability(Mode::SingleNodeWriter)
    };
    let many = capability(Mode::MultiNodeMultiWriter);
    for (asked, word) in [(block, "block volumes"), (many, "on one machine")] {
        let request = CreateVolumeRequest {
            name: "pvc-1".into(),
            volume_capabilities: vec![asked],
            ..Default::default()
        };
        refused(machine.controller().create_volume(request).await, Code::InvalidArgument, &[word]);
    }
    machine.create("pvc-2", MIB, &[]).await.expect("created");
    refused(machine.create("pvc-2", 2 * MIB, &[]).await, Code::AlreadyExists, &["pvc-2", "another size"]);
    let request = NodePublishVolumeRequest {
        volume_id: "pvc-2".into(),
        target_path: machine.text("elsewhere"),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        ..Default::default()
    };
    let elsewhere = machine.node().node_publish_volume(request).await;
    refused(elsewhere, Code::InvalidArgument, &["elsewhere", "--targets"]);

    let at = machine.publish("pvc-2", "two", &[]).await.expect("published");
    fs::write(at.join("file"), b"bytes").expect("written");
    machine.broker.take().expect("it runs").kill();
    let gone = machine.publish_inline("csi-2", "three", &[]).await;
    refused(gone, Code::Unavailable, &["pool"]);
    assert_eq!(fs::read(at.join("file")).expect("the other volume is untouched"), b"bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_process_is_told_and_its_volume_never_reads_as_empty_elsewhere() {
    let machine = Machine::new();
    machine.create("pvc-1", MIB, &[]).await.expect("created");
    let at = machine.publish("pvc-1", "one", &[]).await.expect("published");
    fs::write(at.join("file"), b"bytes").expect("written");
    kill_process(machine.process_of("pvc-1"), Signal::KILL).expect("killed");
    until("the loss is seen", async || machine.usage("pvc-1", "one").await.is_err()).await;
    refused(machine.usage("pvc-1", "one").await, Code::DataLoss, &["pvc-1", "delete the pod"]);
    assert_eq!(fs::read(at.join("file")).expect_err("it is gone").kind(), ErrorKind::NotConnected);
    refused(machine.publish("pvc-1", "two", &[]).await, Code::DataLoss, &["lost its contents"]);
    // The same pod starts again, as after a restart of its machine.
    machine.unpublish("pvc-1", "one").await.expect("unpublished");
    let at = machine.publish("pvc-1", "one", &[]).await.expect("published");
    assert_eq!(fs::read_dir(&at).expect("there").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_killed_in_the_middle_of_any_request_answers_it_when_it_is_asked_again() {
    let mut machine = Machine::new();
    let all = machine.free_bytes().await;
    // Each delay is a point of the request, from its beginning to after its end.
    for delay_ms in [0, 1, 3, 10, 30, 100] {
        let delay = Duration::from_millis(delay_ms);
        let volume = format!("pvc-{delay_ms}");
        for step in ["create", "publish", "stats", "unpublish", "delete"] {
            let killed = machine.driver.take().expect("it runs");
            let killing = tokio::task::spawn_blocking(move || {
                std::thread::sleep(delay);
                killed.kill();
            });
            let (_, done) = tokio::join!(ask(&machine, step, &volume), killing);
            done.expect("killed");
            machine.start_driver();
            // The volume server may still work on the first request.
            until("the request is answered again", async || match ask(&machine, step, &volume).await {
                Ok(()) => true,
                Err(status) => {
                    let may_be = [Code::Aborted, Code::Unavailable].contains(&status.code());
                    assert!(may_be, "{step} after {delay:?}: {status}");
                    false
                }
            })
            .await;
            let at = PathBuf::from(machine.target(&volume));
            match step {
                "publish" => fs::write(at.join("file"), delay_ms.to_string()).expect("written"),
                "stats" => {
                    assert_eq!(fs::read_to_string(at.join("file")).expect("read"), delay_ms.to_string());
                }
                "unpublish" => assert!(!at.exists()),
                _ => {}
            }
        }
    }
    assert_eq!(machine.records(), 0);
    until("the pool has its memory again", async || machine.free_bytes().await == all).await;
}

async fn ask(machine: &Machine, step: &str, volume: &str) -> Result<(), Status> {
    match step {
        "create" => machine.create(volume, 2 * MIB, &[]).await.map(drop),
        "publish" => machine.publish(volume, volume, &[]).await.map(drop),
        "stats" => machine.usage(volume, volume).await.map(drop),
        "unpublish" => machine.unpublish(volume, volume).await,
        _ => machine.delete(volume).await,
    }
}

/// A control group, which holds a process and its descendants.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Group {
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let root = if v1.is_dir() { v1 } else { Path::new("/sys/fs/cgroup") };
        let path = root.join(format!("farpool-csi-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("root may make a control group");
        Group(path)
    }

    fn take(&self, process: &Process) {
        fs::write(self.0.join("cgroup.procs"), process.child.id().to_string()).expect("moved");
    }

    fn processes(&self) -> Vec<Pid> {
        let listed = fs::read_to_string(self.0.join("cgroup.procs")).expect("listed");
        listed.lines().map(|line| Pid::from_raw(line.parse().expect("a number")).expect("not 0")).collect()
    }

    /// Kills what is in the group, as a container runtime does.
    fn kill(&self) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < give_up, "{left:?} do not end");
            for process in left {
                // It may have ended since it was listed.
                let _ = kill_process(process, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_in_use_outlives_all_processes_of_the_drivers_control_group() {
    let mut machine = Machine::new();
    let group = Group::new("driver");
    group.take(machine.driver.as_ref().expect("it runs"));
    machine.create("pvc-1", 8 * MIB, &[("protection", "none")]).await.expect("created");
    let at = machine.publish("pvc-1", "one", &[]).await.expect("published");
    let inline = machine.publish_inline("csi-1", "two", &[]).await.expect("published");
    let bytes: Vec<u8> = (0..4 * MIB).map(|at| (at * 31 % 251) as u8).collect();
    fs::write(at.join("before"), &bytes).expect("written");
    let mut open = fs::File::create(inline.join("open")).expect("created");
    open.write_all(&bytes[..1 << 20]).expect("written");
    assert!(!group.processes().is_empty());
    group.kill();
    machine.driver.take().expect("it ran").kill();

    assert_eq!(fs::read(at.join("before")).expect("read without a driver"), bytes);
    open.write_all(&bytes[1 << 20..2 << 20]).expect("written without a driver");
    open.sync_all().expect("synced");
    machine.start_driver();
    assert_eq!(machine.usage("pvc-1", "one").await.expect("known").1, 4 << 20);
    assert_eq!(fs::read(inline.join("open")).expect("read"), bytes[..2 << 20]);
    drop(open);
    machine.unpublish("csi-1", "two").await.expect("unpublished");
    machine.unpublish("pvc-1", "one").await.expect("unpublished");
    machine.delete("pvc-1").await.expect("deleted");
}
