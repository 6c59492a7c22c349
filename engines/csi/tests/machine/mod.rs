//! A machine of a cluster: a pool, the volume server, the driver, and a folder like that of the kubelet.

use farpool_tests::programs::{PATIENCE, first_line};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub mod points;

#[allow(clippy::all, dead_code, reason = "generated code")]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

#[allow(clippy::all, dead_code, reason = "generated code")]
pub mod volumes {
    tonic::include_proto!("farpool.csi.v1");
}

use csi::controller_client::ControllerClient;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, MountVolume};
use csi::*;
use points::KillPoints;

pub const MIB: u64 = 1 << 20;

/// Process that is killed with its process group when it is dropped.
pub struct Process {
    pub child: Child,
    ready: String,
}

impl Process {
    fn start(program: &Path, args: &[&str]) -> Process {
        Process::start_with_log(program, args, Stdio::inherit())
    }

    fn start_with_log(program: &Path, args: &[&str], log: Stdio) -> Process {
        let mut command = Command::new(program);
        command.args(args).env("FARPOOL_CONFIG", "/dev/null").stdout(Stdio::piped()).process_group(0);
        command.stderr(log);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let line = first_line(child.stdout.take().expect("piped"), &format!("{command:?}"));
        let ready = line.strip_prefix("ready ").unwrap_or_else(|| panic!("{command:?} said {line:?}"));
        Process { child, ready: ready.to_owned() }
    }

    /// Kills the process, if it has not ended yet.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

pub struct Machine {
    folder: tempfile::TempDir,
    pub driver: Option<Process>,
    pub server: Option<Process>,
    /// Socket that the driver takes for the volume server's.
    server_socket: String,
    node: Option<Process>,
    pub broker: Option<Process>,
}

fn farpool() -> PathBuf {
    std::env::var_os("FARPOOL_BIN").expect("FARPOOL_BIN names the farpool binary: run `make test`").into()
}

impl Machine {
    /// Starts everything. The pool has 64 MiB.
    pub fn new() -> Machine {
        let mut machine = Machine {
            folder: tempfile::tempdir().expect("a folder"),
            driver: None,
            server: None,
            server_socket: "volumes.sock".into(),
            node: None,
            broker: Some(Process::start(&farpool(), &["broker", "--listen", "127.0.0.1:0"])),
        };
        fs::create_dir(machine.path("pods")).expect("made");
        let url = machine.url();
        let node = ["node", "--name", "n", "--memory", "64MiB", "--region-size", "1MiB", "--no-reserve"];
        machine.node = Some(Process::start(&farpool(), &[&node[..], &["--broker", &url]].concat()));
        machine.start_server();
        machine.start_driver();
        machine
    }

    fn url(&self) -> String {
        self.broker.as_ref().map_or_else(|| "farpool://127.0.0.1:1".to_owned(), |broker| broker.ready.clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn start_server(&mut self) {
        let (listen, volumes, targets) = (self.text("volumes.sock"), self.text("volumes"), self.text("pods"));
        let args = ["volume-server", "--listen", &listen, "--volumes", &volumes, "--targets", &targets];
        let pool = self.url();
        let program = Path::new(env!("CARGO_BIN_EXE_farpool-csi"));
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("server.log"));
        let log = log.expect("a file").into();
        self.server = Some(Process::start_with_log(program, &[&args[..], &["--pool", &pool]].concat(), log));
    }

    pub fn start_driver(&mut self) {
        let (endpoint, server, records) =
            (self.text("csi.sock"), self.text(&self.server_socket), self.text("records"));
        let args = ["driver", "--node-id", "m1", "--endpoint", &endpoint, "--volume-server", &server];
        let pool = self.url();
        let more = ["--records", &records, "--pool", &pool, "--default-size", "8MiB"];
        let program = Path::new(env!("CARGO_BIN_EXE_farpool-csi"));
        self.driver = Some(Process::start(program, &[&args[..], &more].concat()));
    }

    /// Puts kill points between the driver and the volume server, and starts the driver again.
    pub fn add_kill_points(&mut self) -> KillPoints {
        self.server_socket = "points.sock".into();
        let points = KillPoints::start(&self.path("points.sock"), &self.path("volumes.sock"));
        self.driver.take().expect("it runs").kill();
        self.start_driver();
        points
    }

    /// Returns the log of the volume server.
    pub fn server_log(&self) -> String {
        fs::read_to_string(self.path("server.log")).expect("there")
    }

    fn channel(&self) -> Channel {
        let endpoint =
            Endpoint::from_shared(format!("unix://{}", self.text("csi.sock"))).expect("an address");
        endpoint.timeout(PATIENCE).connect_lazy()
    }

    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel())
    }

    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }

    /// Returns the path at which a pod has its volume, and makes the folder above it, as the kubelet does.
    pub fn target(&self, pod: &str) -> String {
        let above = self.path("pods").join(pod).join("volumes");
        fs::create_dir_all(&above).expect("made");
        above.join("far").display().to_string()
    }

    pub async fn publish(
        &self,
        volume: &str,
        pod: &str,
        context: &[(&str, &str)],
    ) -> Result<PathBuf, Status> {
        let target = self.target(pod);
        let request = NodePublishVolumeRequest {
            volume_id: volume.into(),
            target_path: target.clone(),
            volume_capability: Some(capability(Mode::SingleNodeWriter)),
            volume_context: attributes(context),
            ..Default::default()
        };
        self.node().node_publish_volume(request).await.map(|_| target.into())
    }

    /// Publishes a volume that lives and ends with its pod.
    pub async fn publish_inline(
        &self,
        volume: &str,
        pod: &str,
        context: &[(&str, &str)],
    ) -> Result<PathBuf, Status> {
        let inline = ("csi.storage.k8s.io/ephemeral", "true");
        self.publish(volume, pod, &[context, &[inline]].concat()).await
    }

    pub async fn unpublish(&self, volume: &str, pod: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest { volume_id: volume.into(), target_path: self.target(pod) };
        self.node().node_unpublish_volume(request).await.map(drop)
    }

    pub async fn create(
        &self,
        name: &str,
        bytes: u64,
        parameters: &[(&str, &str)],
    ) -> Result<Volume, Status> {
        let request = CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 }),
            volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
            parameters: attributes(parameters),
            ..Default::default()
        };
        let made = self.controller().create_volume(request).await?.into_inner();
        Ok(made.volume.expect("an answer has the volume"))
    }

    pub async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: volume.into(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    /// Returns total, used and available bytes.
    pub async fn usage(&self, volume: &str, pod: &str) -> Result<(i64, i64, i64), Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.into(),
            volume_path: self.target(pod),
            ..Default::default()
        };
        let usage = self.node().node_get_volume_stats(request).await?.into_inner().usage;
        Ok((usage[0].total, usage[0].used, usage[0].available))
    }

    pub async fn free_bytes(&self) -> i64 {
        let asked = self.controller().get_capacity(GetCapacityRequest::default()).await;
        asked.expect("the pool answers").into_inner().available_capacity
    }

    /// Returns the process that serves a volume.
    pub fn process_of(&self, volume: &str) -> Pid {
        let folder = self.text(&format!("volumes/{volume}"));
        let serves = |entry: &fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == folder.as_bytes())
        };
        let found = fs::read_dir("/proc").expect("proc").filter_map(Result::ok).find(serves);
        let name = found.expect("it is served").file_name();
        Pid::from_raw(name.to_str().expect("digits").parse().expect("a number")).expect("not 0")
    }

    pub fn records(&self) -> usize {
        fs::read_dir(self.path("records")).expect("there").count()
    }

    /// Returns the number of volumes with a mount or a process.
    pub fn served(&self) -> usize {
        fs::read_dir(self.path("volumes/.locks")).expect("there").count()
    }

    /// Leaves half a record of a volume.
    pub fn damage_record(&self, volume: &str) {
        fs::write(self.path("records").join(format!("{volume}.json")), b"{\"origin\":").expect("written");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Mounts would outlive the test, and keep their folder.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let prefix = self.folder.path().display().to_string();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        for at in places.filter(|at| at.starts_with(&prefix)) {
            let _ = Command::new("umount").args(["--lazy", at]).status();
        }
    }
}

pub fn attributes(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}
