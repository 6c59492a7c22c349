//! Service *Identity* of CSI: who the driver is, what it can do, and whether it is ready.

use crate::csi::identity_server::Identity;
use crate::csi::plugin_capability::{Service, Type, service};
use crate::csi::*;
use crate::state::NAME;
use tonic::{Request, Response, Status};

pub(crate) struct IdentityService;

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        // A volume is served on the machine where it was created.
        let services = [service::Type::ControllerService, service::Type::VolumeAccessibilityConstraints];
        let capabilities = services
            .map(|one| PluginCapability { r#type: Some(Type::Service(Service { r#type: one.into() })) });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities.to_vec() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        // The volume server is not asked: Kubernetes would restart this driver if that did not answer. `/readyz` asks.
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
