//! The driver and the volume server as processes, over a real pool: volumes that pods write to, and processes that are
//! killed. Needs root and /dev/fuse.

mod machine;

use farpool_tests::programs::PATIENCE;
use machine::csi::volume_capability::access_mode::Mode;
use machine::csi::volume_capability::{AccessType, BlockVolume};
use machine::csi::*;
use machine::points::At;
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

/// Writes so many bytes to a new file, and waits until the volume has them.
fn fill(file: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = fs::File::create(file)?;
    file.write_all(&vec![7; bytes as usize])?;
    file.sync_all()
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

    let full = fill(&at.join("more"), 4 * MIB).expect_err("the volume has 4 MiB");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let is_told = |line: &str| {
        ["volume_warns", "quota of 4 MiB", r#""subject":"csi-1""#].iter().all(|part| line.contains(part))
    };
    until("the log says which volume is full", async || machine.server_log().lines().any(is_told)).await;

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
    refused(machine.publish("pvc-1", "one", &[]).await, Code::AlreadyExists, &["not to write"]);
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
    machine.usage("pvc-2", "two").await.expect("whether a volume is well does not depend on the broker");
    assert_eq!(fs::read(at.join("file")).expect("the other volume is untouched"), b"bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_process_is_told_and_its_volume_never_reads_as_empty_elsewhere() {
    let machine = Machine::new();
    machine.create("pvc-1", MIB, &[]).await.expect("created");
    let at = machine.publish("pvc-1", "one", &[]).await.expect("published");
    fs::write(at.join("file"), b"bytes").expect("written");
    kill_process(machine.process_of("pvc-1"), Signal::KILL).expect("killed");
    // While it ends, it is only said not to answer.
    until("the loss is seen", async || {
        machine.usage("pvc-1", "one").await.is_err_and(|status| status.code() == Code::DataLoss)
    })
    .await;
    refused(machine.usage("pvc-1", "one").await, Code::DataLoss, &["pvc-1", "delete the pod"]);
    assert_eq!(fs::read(at.join("file")).expect_err("it is gone").kind(), ErrorKind::NotConnected);
    refused(machine.publish("pvc-1", "two", &[]).await, Code::DataLoss, &["lost its contents"]);
    // The same pod starts again, as after a restart of its machine.
    machine.unpublish("pvc-1", "one").await.expect("unpublished");
    let at = machine.publish("pvc-1", "one", &[]).await.expect("published");
    assert_eq!(fs::read_dir(&at).expect("there").count(), 0);
}

/// The driver is killed before and after each request that it sends to the volume server, for each step of a volume.
#[tokio::test(flavor = "multi_thread")]
async fn driver_killed_in_the_middle_of_any_request_answers_it_when_it_is_asked_again() {
    let mut machine = Machine::new();
    let all = machine.free_bytes().await;
    let points = machine.add_kill_points();
    let mut kills = 0;
    for origin in ["claim", "pod"] {
        for number in 1.. {
            let mut has_killed = false;
            for at in [At::Before(number), At::After(number)] {
                let volume = format!("{origin}-{at:?}").replace(['(', ')'], "-") + "x";
                for step in ["create", "publish", "stats", "unpublish", "delete"] {
                    let driver = machine.driver.as_ref().expect("it runs");
                    points.set(at, Pid::from_child(&driver.child));
                    let first = ask(&machine, step, origin, &volume).await;
                    if points.clear() {
                        (has_killed, kills) = (true, kills + 1);
                        machine.driver.take().expect("it ran").kill();
                        machine.start_driver();
                        answered(&machine, step, origin, &volume).await;
                    } else {
                        first.unwrap_or_else(|status| panic!("{step} of {volume}: {status}"));
                    }
                    let file = PathBuf::from(machine.target(&volume)).join("file");
                    match step {
                        "publish" => fs::write(file, &volume).expect("written"),
                        "stats" => assert_eq!(fs::read_to_string(file).expect("read"), volume),
                        "unpublish" => assert!(!Path::new(&machine.target(&volume)).exists()),
                        _ => {}
                    }
                }
            }
            if !has_killed {
                break;
            }
        }
    }
    assert!(kills >= 16, "publish and unpublish send several requests each: {kills} kills");
    assert_eq!((machine.records(), machine.served()), (0, 0));
    until("the pool has its memory again", async || machine.free_bytes().await == all).await;
}

/// Asks again until the driver has answered. The volume server may still work on what it was asked before.
async fn answered(machine: &Machine, step: &str, origin: &str, volume: &str) {
    until(&format!("{step} of {volume} is answered"), async || {
        match ask(machine, step, origin, volume).await {
            Ok(()) => true,
            Err(status) => {
                let may_be = [Code::Aborted, Code::Unavailable].contains(&status.code());
                assert!(may_be, "{step} of {volume}: {status}");
                false
            }
        }
    })
    .await;
}

/// The volume server is killed with volumes in use, which their processes serve on, and begins again.
#[tokio::test(flavor = "multi_thread")]
async fn volume_server_that_starts_again_goes_on_with_its_volumes() {
    let mut machine = Machine::new();
    machine.create("pvc-1", 2 * MIB, &[("protection", "none")]).await.expect("created");
    let at = machine.publish("pvc-1", "one", &[]).await.expect("published");
    fs::write(at.join("file"), b"bytes").expect("written");
    let process = machine.process_of("pvc-1");
    machine.server.take().expect("it runs").kill();
    // Nobody reads its log any more, and it has something to say.
    let full = fill(&at.join("large"), 4 * MIB).expect_err("the volume has 2 MiB");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    refused(machine.publish("pvc-1", "two", &[]).await, Code::Unavailable, &["volume server"]);
    machine.start_server();
    answered_publish(&machine, "pvc-1", "two").await;
    assert_eq!(machine.process_of("pvc-1"), process, "no second one was started");
    assert_eq!(fs::read(Path::new(&machine.target("two")).join("file")).expect("read"), b"bytes");
    // Both at once, and the process of a volume.
    machine.server.take().expect("it runs").kill();
    machine.driver.take().expect("it runs").kill();
    machine.start_server();
    machine.start_driver();
    assert_eq!(fs::read(at.join("file")).expect("read"), b"bytes");
    machine.unpublish("pvc-1", "one").await.expect("unpublished");
    machine.unpublish("pvc-1", "two").await.expect("unpublished");
    machine.delete("pvc-1").await.expect("deleted");
    assert_eq!((machine.records(), machine.served()), (0, 0));
}

async fn answered_publish(machine: &Machine, volume: &str, pod: &str) {
    until("the volume server is found again", async || match machine.publish(volume, pod, &[]).await {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            false
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_one_volume_at_the_same_time_make_one_volume() {
    let machine = Machine::new();
    let of_pod = [("size", "1Mi"), ("protection", "none")];
    let publish = || machine.publish_inline("csi-1", "one", &of_pod);
    let (first, second) = tokio::join!(publish(), publish());
    let refusals: Vec<Code> =
        [&first, &second].iter().filter_map(|one| Some(one.as_ref().err()?.code())).collect();
    assert!(refusals.len() < 2 && refusals.iter().all(|code| *code == Code::Aborted), "{refusals:?}");
    assert_eq!((machine.records(), machine.served()), (1, 1));
    machine.unpublish("csi-1", "one").await.expect("unpublished");
    assert_eq!((machine.records(), machine.served()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_that_could_not_be_put_into_its_pod_leaves_nothing_behind() {
    let machine = Machine::new();
    let all = machine.free_bytes().await;
    // A directory of the pod is gone: an error after the volume is served, which Kubernetes takes for the last word.
    let request = NodePublishVolumeRequest {
        volume_id: "csi-1".into(),
        target_path: machine.text("pods/gone/volumes/far"),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        volume_context: machine::attributes(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "1Mi")]),
        ..Default::default()
    };
    refused(machine.node().node_publish_volume(request).await, Code::NotFound, &["pods/gone"]);
    assert_eq!((machine.records(), machine.served()), (0, 0));
    until("the pool has its memory again", async || machine.free_bytes().await == all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_record_keeps_no_pod_and_no_claim_from_ending() {
    let machine = Machine::new();
    machine.publish_inline("csi-1", "one", &[("size", "1Mi")]).await.expect("published");
    machine.create("pvc-1", MIB, &[]).await.expect("created");
    machine.publish("pvc-1", "two", &[]).await.expect("published");
    machine.damage_record("csi-1");
    machine.damage_record("pvc-1");
    refused(machine.publish("pvc-1", "two", &[]).await, Code::DataLoss, &["record of volume pvc-1"]);
    machine.unpublish("csi-1", "one").await.expect("unpublished");
    machine.unpublish("pvc-1", "two").await.expect("unpublished");
    machine.delete("pvc-1").await.expect("deleted");
    assert_eq!((machine.records(), machine.served()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_is_unmounted_only_from_where_it_is() {
    let machine = Machine::new();
    machine.create("pvc-1", MIB, &[]).await.expect("created");
    machine.create("pvc-2", MIB, &[]).await.expect("created");
    let one = machine.publish("pvc-1", "one", &[]).await.expect("published");
    machine.publish("pvc-2", "two", &[]).await.expect("published");
    fs::write(one.join("file"), b"bytes").expect("written");
    refused(machine.unpublish("pvc-2", "one").await, Code::FailedPrecondition, &["not this volume's"]);
    assert_eq!(fs::read(one.join("file")).expect("read"), b"bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_has_no_more_files_than_its_volume_has_room_for() {
    let machine = Machine::new();
    let at = machine.publish_inline("csi-1", "one", &[("size", "1Mi")]).await.expect("published");
    let made = (0..2000).find_map(|number| fs::create_dir(at.join(number.to_string())).err());
    assert_eq!(made.expect("a volume of 1 MiB has at most 1024").kind(), ErrorKind::StorageFull);
}

/// Sends a request for a volume of a claim, or for one that begins and ends with its pod.
async fn ask(machine: &Machine, step: &str, origin: &str, volume: &str) -> Result<(), Status> {
    match (step, origin) {
        ("create", "claim") => machine.create(volume, 2 * MIB, &[]).await.map(drop),
        ("delete", "claim") => machine.delete(volume).await,
        ("publish", "claim") => machine.publish(volume, volume, &[]).await.map(drop),
        ("publish", _) => machine.publish_inline(volume, volume, &[("size", "2Mi")]).await.map(drop),
        ("stats", _) => machine.usage(volume, volume).await.map(drop),
        ("unpublish", _) => machine.unpublish(volume, volume).await,
        _ => Ok(()),
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
