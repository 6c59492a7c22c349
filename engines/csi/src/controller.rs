//! Service *Controller* of CSI: volumes for claims. The external provisioner runs beside the driver on each machine, so
//! a volume is created where its pod will run.

use crate::csi::controller_server::Controller;
use crate::csi::controller_service_capability::{Rpc, Type, rpc};
use crate::csi::*;
use crate::records::{Origin, VolumeRecord, is_id};
use crate::spec::{SIZE_MIN, Stater, VolumeSpec, size_in};
use crate::state::{Capacity, DIGEST, Driver, check_id, check_uses, digest, is_here, topology};
use std::sync::Arc;
use tonic::{Code, Request, Response, Status};

pub(crate) struct ControllerService(pub(crate) Arc<Driver>);

/// Returns the id of the volume with a name. It is the name itself, if that can be one.
fn id_of(name: &str) -> String {
    if is_id(name) && !name.starts_with(DIGEST) { name.to_owned() } else { digest(name) }
}

impl ControllerService {
    fn volume(&self, id: &str, spec: &VolumeSpec) -> Volume {
        Volume {
            volume_id: id.to_owned(),
            capacity_bytes: i64::try_from(spec.size_bytes).unwrap_or(i64::MAX),
            accessible_topology: vec![topology(&self.0.node_id)],
            ..Default::default()
        }
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let asked = request.into_inner();
        if asked.name.is_empty() {
            return Err(Status::invalid_argument("the request names no volume"));
        }
        check_uses(&asked.volume_capabilities)?;
        if asked.volume_content_source.is_some() {
            return Err(Status::invalid_argument("a volume begins empty: it is no copy of another"));
        }
        let requisite = asked.accessibility_requirements.unwrap_or_default().requisite;
        if !requisite.is_empty() && !requisite.iter().any(|one| is_here(one, &self.0.node_id)) {
            return Err(Status::resource_exhausted(format!(
                "the volume is wanted on other machines, and this is {}",
                self.0.node_id
            )));
        }
        let range = asked.capacity_range.as_ref();
        let size_bytes = size_in(range, self.0.default_size_bytes)?;
        let spec = VolumeSpec::read(Stater::StorageClass, &asked.parameters, size_bytes)?;
        let id = id_of(&asked.name);
        let _held = self.0.hold(&id)?;
        if let Some(there) = self.0.record(&id).await? {
            let most = range.map_or(0, |range| range.limit_bytes.unsigned_abs());
            let has_size = there.spec.size_bytes
                >= range.map_or(0, |range| range.required_bytes.unsigned_abs())
                && (most == 0 || there.spec.size_bytes <= most);
            let is_same = VolumeSpec { size_bytes: there.spec.size_bytes, ..spec } == there.spec;
            if there.origin != Origin::Claim || !has_size || !is_same {
                return Err(Status::already_exists(format!(
                    "a volume of the name {} exists, with another size or other parameters",
                    asked.name
                )));
            }
            return Ok(Response::new(CreateVolumeResponse { volume: Some(self.volume(&id, &there.spec)) }));
        }
        self.0.check_size(&spec).await?;
        let volume = self.volume(&id, &spec);
        self.0.keep(&id, &VolumeRecord::new(Origin::Claim, spec)).await?;
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        match check_id(&id) {
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(status),
            Ok(()) => {
                let _held = self.0.hold(&id)?;
                match self.0.record(&id).await {
                    // It ends with its pod, and is no volume that can be deleted.
                    Ok(Some(VolumeRecord { origin: Origin::Pod, .. })) => {}
                    Err(status) if status.code() != Code::DataLoss => return Err(status),
                    // A record that is damaged, or gone, is no reason to leave its volume behind.
                    _ => self.0.end(&id).await?,
                }
            }
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        use validate_volume_capabilities_response::Confirmed;
        let asked = request.into_inner();
        check_id(&asked.volume_id)?;
        if asked.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("the request names no volume capability"));
        }
        let Some(record) = self.0.record(&asked.volume_id).await? else {
            return Err(Status::not_found(format!("there is no volume {}", asked.volume_id)));
        };
        let has_parameters = || {
            let spec = VolumeSpec::read(Stater::StorageClass, &asked.parameters, record.spec.size_bytes)?;
            match asked.parameters.is_empty() || spec == record.spec {
                true => Ok(()),
                false => Err(Status::invalid_argument("the volume has other parameters")),
            }
        };
        let answer = match check_uses(&asked.volume_capabilities).and_then(|()| has_parameters()) {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: asked.volume_context,
                    volume_capabilities: asked.volume_capabilities,
                    parameters: asked.parameters,
                    ..Default::default()
                }),
                ..Default::default()
            },
            Err(status) => ValidateVolumeCapabilitiesResponse {
                message: status.message().to_owned(),
                ..Default::default()
            },
        };
        Ok(Response::new(answer))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let asked = request.into_inner();
        let is_elsewhere = asked.accessible_topology.is_some_and(|one| !is_here(&one, &self.0.node_id));
        let is_refused =
            !asked.volume_capabilities.is_empty() && check_uses(&asked.volume_capabilities).is_err();
        let spec = VolumeSpec::read(Stater::StorageClass, &asked.parameters, SIZE_MIN)?;
        let pool = match (is_elsewhere || is_refused, &spec.pool) {
            (true, _) => Capacity { total_bytes: 0, free_bytes: 0, hosts: 0 },
            // The pool of a class is asked only by the process that serves a volume, so nothing is refused here.
            (false, Some(_)) => Capacity { total_bytes: u64::MAX, free_bytes: u64::MAX, hosts: 0 },
            (false, None) => self.0.capacity().await?,
        };
        let copies = spec.copies(pool.hosts);
        let signed = |bytes: u64| i64::try_from(bytes / copies).unwrap_or(i64::MAX);
        Ok(Response::new(GetCapacityResponse {
            available_capacity: signed(pool.free_bytes),
            maximum_volume_size: Some(signed(pool.total_bytes)),
            minimum_volume_size: Some(SIZE_MIN as i64),
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let kinds = [rpc::Type::CreateDeleteVolume, rpc::Type::GetCapacity, rpc::Type::SingleNodeMultiWriter];
        let capabilities = kinds
            .map(|kind| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_a_volume_is_its_name_or_stands_for_it() {
        assert_eq!(id_of("pvc-7d3e"), "pvc-7d3e");
        for name in ["../../etc", "two words", "sha256-00", "é"] {
            let id = id_of(name);
            assert!(is_id(&id) && id.starts_with(DIGEST) && id.len() == DIGEST.len() + 64, "{name}: {id}");
            assert_ne!(id, id_of(&format!("{name}.")));
        }
    }
}
