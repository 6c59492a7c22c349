//! A volume server in front of the real one, at which the driver is killed in the middle of its requests.

use super::volumes::volume_server_client::VolumeServerClient;
use super::volumes::volume_server_server::{VolumeServer, VolumeServerServer};
use super::volumes::*;
use farpool_lock::Mutex;
use farpool_tests::programs::PATIENCE;
use rustix::process::{Pid, Signal, kill_process_group};
use std::path::Path;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// When the driver is killed: at the n-th request after [`KillPoints::set`], before it reaches the volume server or
/// after that has done it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Before(u32),
    After(u32),
}

#[derive(Debug, Default)]
struct Armed {
    point: Option<(At, Pid)>,
    requests: u32,
    has_killed: bool,
}

/// Forwards the requests of the driver.
#[derive(Clone, Debug)]
pub struct KillPoints {
    to: VolumeServerClient<Channel>,
    armed: Arc<Mutex<Armed>>,
}

impl KillPoints {
    /// Listens at `at`, and forwards to the volume server at `to`.
    pub fn start(at: &Path, to: &Path) -> KillPoints {
        let to = Endpoint::from_shared(format!("unix://{}", to.display())).expect("an address");
        let to = VolumeServerClient::new(to.timeout(PATIENCE).connect_lazy());
        let points = KillPoints { to, armed: Arc::default() };
        let listener = UnixListenerStream::new(UnixListener::bind(at).expect("bound"));
        let router = Server::builder().add_service(VolumeServerServer::new(points.clone()));
        tokio::spawn(router.serve_with_incoming(listener));
        points
    }

    /// Kills a driver at a point from now on.
    pub fn set(&self, at: At, driver: Pid) {
        *self.armed.lock() = Armed { point: Some((at, driver)), ..Armed::default() };
    }

    /// Kills nothing from now on. Returns whether the point was reached.
    pub fn clear(&self) -> bool {
        std::mem::take(&mut *self.armed.lock()).has_killed
    }

    fn pass(&self, is_after: bool) {
        let mut armed = self.armed.lock();
        armed.requests += u32::from(!is_after);
        let Some((at, driver)) = armed.point else { return };
        let reached = if is_after { At::After(armed.requests) } else { At::Before(armed.requests) };
        if at == reached && !armed.has_killed {
            armed.has_killed = true;
            let _ = kill_process_group(driver, Signal::KILL);
        }
    }

    /// Says that nobody waits for an answer any more.
    fn killed<T>(&self) -> Result<Response<T>, Status> {
        Err(Status::cancelled("the driver is killed"))
    }

    fn has_killed(&self) -> bool {
        self.armed.lock().has_killed
    }
}

macro_rules! forward {
    ($($name:ident: $asked:ty => $answer:ty),* $(,)?) => {
        #[tonic::async_trait]
        impl VolumeServer for KillPoints {
            $(async fn $name(&self, request: Request<$asked>) -> Result<Response<$answer>, Status> {
                self.pass(false);
                if self.has_killed() {
                    return self.killed();
                }
                let done = self.to.clone().$name(request.into_inner()).await;
                self.pass(true);
                done
            })*
        }
    };
}

forward! {
    serve: ServeRequest => ServeResponse,
    bind: BindRequest => BindResponse,
    unbind: UnbindRequest => UnbindResponse,
    end: EndRequest => EndResponse,
    list: ListRequest => ListResponse,
}
