//! Service *Node* of CSI: volumes in pods.

use crate::csi::node_server::Node;
use crate::csi::node_service_capability::{Rpc, Type, rpc};
use crate::csi::volume_usage::Unit;
use crate::csi::*;
use crate::records::{Origin, VolumeRecord};
use crate::spec::{Stater, VolumeSpec, check_use, is_for_one_pod, is_inline, is_only_to_read, pod_of};
use crate::state::{Driver, check_id, of_server, topology};
use crate::volumes::{BindRequest, ServeRequest, ServedVolume, UnbindRequest};
use farpool_files::units::show_bytes;
use farpool_host::{Event, Host, Machine};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tonic::{Code, Request, Response, Status};

pub(crate) struct NodeService(pub(crate) Arc<Driver>);

/// Returns a path of a pod as the kernel writes it.
fn target_of(text: &str) -> Result<String, Status> {
    let path = Path::new(text);
    match text {
        "" => Err(Status::invalid_argument("the request names no target path")),
        _ if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) => Err(
            Status::invalid_argument(format!("target path {text}: an absolute path without .. is permitted")),
        ),
        _ => Ok(path.components().collect::<PathBuf>().display().to_string()),
    }
}

/// Reports whether Kubernetes takes an error for the last word: it then asks neither again nor for the volume to be
/// taken away.
fn is_final(status: &Status) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
    ![Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable].contains(&status.code())
}

impl NodeService {
    /// Returns the record of a volume that is to be put into a pod, or makes that of a volume that begins with it.
    async fn record_of(&self, asked: &NodePublishVolumeRequest) -> Result<VolumeRecord, Status> {
        let (id, attributes) = (&asked.volume_id, &asked.volume_context);
        let there = self.0.record(id).await?;
        if !is_inline(attributes) {
            return match there {
                Some(record) if record.origin == Origin::Claim => Ok(record),
                _ => Err(Status::not_found(format!("there is no volume {id} on this machine"))),
            };
        }
        // The default may have changed since the volume began.
        let default_bytes = there.as_ref().map_or(self.0.default_size_bytes, |record| record.spec.size_bytes);
        let spec = VolumeSpec::read(Stater::Pod, attributes, default_bytes)?;
        match there {
            Some(record) if record.origin == Origin::Pod && record.spec == spec => Ok(record),
            Some(_) => Err(Status::already_exists(format!("volume {id} exists, with other attributes"))),
            None => {
                self.0.check_size(&spec).await?;
                Ok(VolumeRecord::new(Origin::Pod, spec))
            }
        }
    }

    /// Puts a volume into a pod. `served` is its state before.
    async fn put(
        &self,
        id: &str,
        target: &str,
        record: VolumeRecord,
        served: &ServedVolume,
    ) -> Result<(), Status> {
        if let Some(last) = record.last_target.as_ref().filter(|_| !served.is_alive) {
            if last != target {
                return Err(Status::data_loss(format!(
                    "volume {id} has lost its contents: the process that served it has ended; delete its claim"
                )));
            }
            // The pod starts again, and finds the volume as after a restart of the machine.
            let message = format!("volume {id} begins empty again: the process that served it has ended");
            Machine.log(&Event::warn("volume_begins_again", message).about(id));
        }
        // Written first: what is served has a record, whatever is killed.
        self.0.keep(id, &record).await?;
        let mut server = self.0.server();
        let serve = ServeRequest { volume: id.to_owned(), options: Some(record.spec.options()) };
        server.serve(serve).await.map_err(of_server)?;
        // A pod can write from the next request on, so the volume has contents to lose.
        let record = VolumeRecord { last_target: Some(target.to_owned()), ..record };
        self.0.keep(id, &record).await?;
        let read_only = record.is_read_only;
        let bind = BindRequest { volume: id.to_owned(), target: target.to_owned(), read_only };
        server.bind(bind).await.map_err(of_server)?;
        Ok(())
    }

    /// Takes a volume that begins and ends with its pod away again. Returns the error to answer.
    async fn undo(&self, id: &str, target: &str, status: Status) -> Status {
        let unbind = UnbindRequest { volume: id.to_owned(), target: target.to_owned() };
        let unbound = self.0.server().unbind(unbind).await.map_err(of_server);
        let undone = match unbound {
            Ok(_) => self.0.end(id).await,
            Err(status) => Err(status),
        };
        match undone {
            Ok(()) => status,
            Err(undone) => Status::unavailable(format!(
                "{}; what was begun for it is not undone yet: {}",
                status.message(),
                undone.message()
            )),
        }
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let id = &asked.volume_id;
        check_id(id)?;
        let target = target_of(&asked.target_path)?;
        check_use(asked.volume_capability.as_ref())?;
        let _held = self.0.hold(id)?;
        let record = self.record_of(&asked).await?;
        let served = self.0.served(id).await?.unwrap_or_default();
        let capability = asked.volume_capability.unwrap_or_default();
        if is_for_one_pod(&capability)
            && let Some(other) = served.targets.iter().find(|other| **other != target)
        {
            return Err(Status::failed_precondition(format!(
                "volume {id} is for one pod alone (ReadWriteOncePod), and is mounted at {other}"
            )));
        }
        let is_read_only = asked.readonly || is_only_to_read(&capability);
        let is_there = served.targets.contains(&target) && record.last_target.as_ref() == Some(&target);
        if is_there && record.is_read_only != is_read_only {
            return Err(Status::already_exists(format!(
                "volume {id} is at {target} already, and not {}",
                if is_read_only { "only to read" } else { "to write" }
            )));
        }
        let (origin, size_bytes) = (record.origin, record.spec.size_bytes);
        let pod = pod_of(&asked.volume_context);
        let of_pod = pod.as_ref().map_or(String::new(), |pod| format!(" of pod {pod}"));
        let record = VolumeRecord { pod, is_read_only, ..record };
        if let Err(status) = self.put(id, &target, record, &served).await {
            let is_unused = served.targets.is_empty();
            return Err(match origin == Origin::Pod && is_unused && is_final(&status) {
                true => self.undo(id, &target, status).await,
                false => status,
            });
        }
        let message = format!("volume {id}{of_pod} has {} at {target}", show_bytes(size_bytes));
        Machine.log(&Event::info("volume_published", message).about(id.as_str()));
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id: id, target_path } = request.into_inner();
        check_id(&id)?;
        let target = target_of(&target_path)?;
        let _held = self.0.hold(&id)?;
        let unbind = UnbindRequest { volume: id.clone(), target: target.clone() };
        self.0.server().unbind(unbind).await.map_err(of_server)?;
        match self.0.record(&id).await {
            Ok(Some(VolumeRecord { origin: Origin::Claim, .. })) => {}
            Ok(Some(VolumeRecord { origin: Origin::Pod, .. })) => self.0.end(&id).await?,
            Err(status) if status.code() != Code::DataLoss => return Err(status),
            // A volume without a readable record can never be put into a pod again. If another pod has it, it ends
            // after that one.
            _ => match self.0.end(&id).await {
                Err(status) if status.code() == Code::FailedPrecondition => {}
                ended => ended?,
            },
        }
        let message = format!("volume {id} has left {target}");
        Machine.log(&Event::info("volume_unpublished", message).about(id));
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let asked = request.into_inner();
        check_id(&asked.volume_id)?;
        if asked.volume_path.is_empty() {
            return Err(Status::invalid_argument("the request names no volume path"));
        }
        let nowhere =
            || Status::not_found(format!("volume {} is not at {}", asked.volume_id, asked.volume_path));
        // A path at which no volume can be is one at which this one is not.
        let path = target_of(&asked.volume_path).map_err(|_| nowhere())?;
        let served = self.0.served(&asked.volume_id).await?;
        let served = served.filter(|served| served.targets.contains(&path)).ok_or_else(nowhere)?;
        if !served.is_alive {
            return Err(Status::data_loss(format!(
                "volume {} is lost: the process that served it has ended; delete the pod",
                asked.volume_id
            )));
        }
        if !served.answers {
            return Err(Status::unavailable(format!(
                "the process of volume {} does not answer at present",
                asked.volume_id
            )));
        }
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let bytes = VolumeUsage {
            unit: Unit::Bytes.into(),
            total: signed(served.size_bytes),
            used: signed(served.used_bytes),
            available: signed(served.size_bytes.saturating_sub(served.used_bytes)),
        };
        let files =
            VolumeUsage { unit: Unit::Inodes.into(), used: signed(served.files), ..Default::default() };
        Ok(Response::new(NodeGetVolumeStatsResponse { usage: vec![bytes, files] }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let kinds = [rpc::Type::GetVolumeStats, rpc::Type::SingleNodeMultiWriter];
        let capabilities =
            kinds.map(|kind| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.to_vec() }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.0.node_id.clone(),
            accessible_topology: Some(topology(&self.0.node_id)),
            ..Default::default()
        }))
    }
}
