//! `farpool csi volume-server`: mounts volumes, and keeps them mounted whatever happens to the driver.

use crate::binding::Targets;
use crate::records::is_id;
use crate::serving::{Served, blocking, mount_fuse_control};
use crate::sockets;
use crate::volumes::volume_server_server::{VolumeServer, VolumeServerServer};
use crate::volumes::*;
use farpool_command::exit::Failure;
use farpool_command::{exposure, programs, supervisor};
use farpool_fuse::KernelMount;
use farpool_host::{Event, Host};
use farpool_lock::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Flags of the volume server.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Socket to take requests of the driver at
    #[arg(long, value_name = "unix:///PATH", value_parser = sockets::path, default_value = SOCKET)]
    listen: PathBuf,
    /// Directory to mount volumes in, each in one of its name. Only root may enter it. In a container, mounts in it and
    /// in that of --targets must reach the machine (mountPropagation: Bidirectional)
    #[arg(long, value_name = "DIR", default_value = "/var/lib/farpool-csi/volumes")]
    volumes: PathBuf,
    /// Directory of the kubelet's pods, below which volumes are mounted; its path has no symbolic link
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/pods")]
    targets: PathBuf,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

/// Socket of the volume server by default.
pub(crate) const SOCKET: &str = "unix:///run/farpool-csi/volumes.sock";

/// Longest time for a request to wait until an earlier one for the same volume is done.
const TURN: Duration = Duration::from_secs(5);

/// Serves until SIGINT or SIGTERM. Volumes are served on until their processes end as well.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Certificates that are missing are a mistake now, and not at the first volume.
    args.exposure.exposure()?;
    let program = programs::own("farpool", "build")?;
    let volumes = folder("--volumes", &args.volumes)?;
    // Whoever reached a volume here could read and write it, whatever pod has it.
    fs::set_permissions(&volumes, fs::Permissions::from_mode(0o700))?;
    let _alone = sockets::alone("--volumes", &volumes)?;
    let targets = folder("--targets", &args.targets)?;
    if targets != args.targets {
        return Err(Failure::Usage(format!(
            "--targets {}: the path is relative or has a symbolic link; give {}, here and to the kubelet (--root-dir)",
            args.targets.display(),
            targets.display()
        )));
    }
    mount_fuse_control();
    let served = Served::new(volumes, program, args.exposure.variables())?;
    let machine = Arc::new(Machine { served, targets: Targets::new(targets), locks: Mutex::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(serve(args, machine));
    // A thread may wait for a volume whose process does not answer.
    runtime.shutdown_background();
    done
}

/// Makes a directory, and returns its canonical path.
fn folder(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
    made.map_err(|error| Failure::Failed(format!("{flag} {}: {error}", path.display())))
}

async fn serve(args: &Args, machine: Arc<Machine>) -> Result<(), Failure> {
    let stop = sockets::stop()?;
    let listener = sockets::listen("--listen", &args.listen).await?;
    for volume in machine.served.list().await.map_err(|status| Failure::failed(status.message()))? {
        let said = match volume.is_alive {
            true => "is served by a process that an earlier volume server started",
            false => "has lost its process",
        };
        farpool_host::Machine.log(&Event::info("volume_found", format!("volume {} {said}", volume.volume)));
    }
    writeln!(std::io::stdout(), "ready unix://{}", args.listen.display())?;
    let ready = supervisor::ready("serving volumes", || {})?;
    let router = Server::builder().add_service(VolumeServerServer::new(VolumeService(machine)));
    let served = sockets::serve(router, listener, &args.listen, stop).await;
    drop(ready);
    served
}

/// State that the requests share.
struct Machine {
    served: Served,
    targets: Targets,
    /// Locks of volumes: one request at a time changes a volume, also while a driver that was killed has left one.
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

struct VolumeService(Arc<Machine>);

impl VolumeService {
    /// Runs a request about a volume while no other one does. It goes on when the driver that sent it is killed.
    async fn alone<T, F>(
        &self,
        volume: String,
        work: impl FnOnce(Arc<Machine>, String) -> F,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        if !is_id(&volume) {
            return Err(Status::invalid_argument(format!("{volume:?} is no id of a volume")));
        }
        let machine = Arc::clone(&self.0);
        let lock = Arc::clone(machine.locks.lock().entry(volume.clone()).or_default());
        let Ok(held) = timeout(TURN, Arc::clone(&lock).lock_owned()).await else {
            return Err(Status::aborted(format!(
                "an earlier request for volume {volume} is not done yet; ask again"
            )));
        };
        let work = work(Arc::clone(&machine), volume.clone());
        let done = tokio::spawn(async move {
            let done = work.await;
            drop(held);
            let mut locks = machine.locks.lock();
            // Two: this one, and that in the map. Nobody else waits for it.
            if Arc::strong_count(&lock) == 2 {
                locks.remove(&volume);
            }
            done
        });
        done.await.map_err(|error| Status::internal(error.to_string()))?.map(Response::new)
    }
}

#[tonic::async_trait]
impl VolumeServer for VolumeService {
    async fn serve(&self, request: Request<ServeRequest>) -> Result<Response<ServeResponse>, Status> {
        let ServeRequest { volume, options } = request.into_inner();
        let options = options.ok_or_else(|| Status::invalid_argument("the request has no options"))?;
        let serve = |machine: Arc<Machine>, volume: String| async move {
            machine.served.serve(&volume, &options).await.map(|()| ServeResponse {})
        };
        self.alone(volume, serve).await
    }

    async fn bind(&self, request: Request<BindRequest>) -> Result<Response<BindResponse>, Status> {
        let BindRequest { volume, target, read_only } = request.into_inner();
        let bind = move |machine: Arc<Machine>, volume: String| async move {
            let mounted = machine.served.mount_of(&volume)?;
            let (mount, _) = mounted
                .ok_or_else(|| Status::failed_precondition(format!("volume {volume} is not served")))?;
            blocking(move || machine.targets.bind(&mount, &target, read_only)).await?;
            Ok(BindResponse {})
        };
        self.alone(volume, bind).await
    }

    async fn unbind(&self, request: Request<UnbindRequest>) -> Result<Response<UnbindResponse>, Status> {
        let UnbindRequest { volume, target } = request.into_inner();
        let unbind = |machine: Arc<Machine>, volume: String| async move {
            blocking(move || {
                let is_permitted = |mount: &KernelMount| {
                    Ok(machine.served.volume_of(mount)?.is_none_or(|other| other == volume))
                };
                machine.targets.unbind(&target, is_permitted)
            })
            .await?;
            Ok(UnbindResponse {})
        };
        self.alone(volume, unbind).await
    }

    async fn end(&self, request: Request<EndRequest>) -> Result<Response<EndResponse>, Status> {
        let EndRequest { volume } = request.into_inner();
        let end = |machine: Arc<Machine>, volume: String| async move {
            machine.served.end(&volume).await.map(|()| EndResponse {})
        };
        self.alone(volume, end).await
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let ListRequest { volume } = request.into_inner();
        let volumes = match volume.is_empty() {
            true => self.0.served.list().await?,
            false if is_id(&volume) => self.0.served.list_one(&volume).await?.into_iter().collect(),
            false => Vec::new(),
        };
        Ok(Response::new(ListResponse { volumes }))
    }
}
