//! Service *Node* of CSI: volumes in pods.

use crate::csi::node_server::Node;
use crate::csi::node_service_capability::{Rpc, Type, rpc};
use crate::csi::volume_usage::Unit;
use crate::csi::*;
use crate::records::{Origin, VolumeRecord};
use crate::spec::{Stater, VolumeSpec, check_use, is_for_one_pod, is_inline, pod_of};
use crate::state::{Driver, check_id, of_server, topology};
use crate::volumes::{BindRequest, EndRequest, ServeRequest, UnbindRequest};
use farpool_files::units::show_bytes;
use farpool_host::{Event, Host, Machine};
use std::sync::Arc;
use tonic::{Request, Response, Status};

pub(crate) struct NodeService(pub(crate) Arc<Driver>);

impl NodeService {
    /// Returns the record of a volume that is to be put into a pod, and makes that of a volume that begins with it.
    async fn record_of(&self, asked: &NodePublishVolumeRequest) -> Result<VolumeRecord, Status> {
        let (id, attributes) = (&asked.volume_id, &asked.volume_context);
        let there = self.0.records.load(id)?;
        if !is_inline(attributes) {
            return match there {
                Some(record) if record.origin == Origin::Claim => Ok(record),
                _ => Err(Status::not_found(format!("there is no volume {id} on this machine"))),
            };
        }
        let spec = VolumeSpec::read(Stater::Pod, attributes, self.0.default_size_bytes)?;
        match there {
            Some(record) if record.origin == Origin::Pod && record.spec == spec => Ok(record),
            Some(_) => Err(Status::already_exists(format!("volume {id} exists, with other attributes"))),
            None => {
                self.0.check_size(spec.far_bytes(), spec.size_bytes).await?;
                Ok(VolumeRecord { origin: Origin::Pod, spec, last_target: None, pod: None })
            }
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
        let (id, target) = (&asked.volume_id, &asked.target_path);
        check_id(id)?;
        if target.is_empty() {
            return Err(Status::invalid_argument("the request names no target path"));
        }
        check_use(asked.volume_capability.as_ref())?;
        let _held = self.0.hold(id)?;
        let record = self.record_of(&asked).await?;
        let served = self.0.served(id).await?.unwrap_or_default();
        let is_alone = asked.volume_capability.as_ref().is_some_and(is_for_one_pod);
        if let Some(other) = served.targets.iter().find(|other| is_alone && *other != target) {
            return Err(Status::failed_precondition(format!(
                "volume {id} is for one pod alone (ReadWriteOncePod), and is mounted at {other}"
            )));
        }
        let is_alive = served.is_alive;
        if let Some(last) = record.last_target.as_ref().filter(|_| !is_alive) {
            if last != target {
                return Err(Status::data_loss(format!(
                    "volume {id} has lost its contents: the process that served it has ended; delete its claim"
                )));
            }
            // The pod starts again, and finds the volume as after a restart of the machine.
            let message = format!("volume {id} begins empty again: the process that served it has ended");
            Machine.log(&Event::warn("volume_begins_again", message));
        }
        let spec = record.spec.clone();
        let pod = pod_of(&asked.volume_context);
        let record = VolumeRecord { last_target: Some(target.clone()), pod, ..record };
        // Written first: what is served has a record, whatever is killed.
        self.0.records.store(id, &record)?;
        let mut server = self.0.server();
        let serve = ServeRequest { volume: id.clone(), options: Some(spec.options()) };
        server.serve(serve).await.map_err(of_server)?;
        let bind = BindRequest { volume: id.clone(), target: target.clone(), read_only: asked.readonly };
        server.bind(bind).await.map_err(of_server)?;
        let of_pod = record.pod.map_or(String::new(), |pod| format!(" of pod {pod}"));
        let message = format!("volume {id}{of_pod} has {} at {target}", show_bytes(spec.size_bytes));
        Machine.log(&Event::info("volume_published", message));
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id: id, target_path: target } = request.into_inner();
        check_id(&id)?;
        if target.is_empty() {
            return Err(Status::invalid_argument("the request names no target path"));
        }
        let _held = self.0.hold(&id)?;
        let mut server = self.0.server();
        server
            .unbind(UnbindRequest { volume: id.clone(), target: target.clone() })
            .await
            .map_err(of_server)?;
        let is_of_pod = self.0.records.load(&id)?.is_some_and(|record| record.origin == Origin::Pod);
        if is_of_pod {
            server.end(EndRequest { volume: id.clone() }).await.map_err(of_server)?;
            self.0.records.remove(&id)?;
        }
        Machine.log(&Event::info("volume_unpublished", format!("volume {id} has left {target}")));
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
        let served = self.0.served(&asked.volume_id).await?;
        let served =
            served.filter(|served| served.targets.contains(&asked.volume_path)).ok_or_else(|| {
                Status::not_found(format!("volume {} is not at {}", asked.volume_id, asked.volume_path))
            })?;
        if !served.is_alive {
            return Err(Status::data_loss(format!(
                "volume {} is lost: the process that served it has ended; delete the pod",
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
        Ok(Response::new(NodeGetVolumeStatsResponse { usage: vec![bytes, files], ..Default::default() }))
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
