//! Figures of each volume, over HTTP: metrics, readiness, and the resource `volumes` of the API.

use crate::records::{Origin, VolumeRecord};
use crate::state::Driver;
use crate::volumes::{ListRequest, ServedVolume};
use farpool_host::{Event, Host, Machine};
use farpool_monitoring::{Monitored, Readiness, Resource, Scrape, families};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::Status;

/// Longest time for the volume server to answer. A scrape is given up after 10 s by default.
const ANSWER: Duration = Duration::from_secs(5);

/// The driver as its monitoring sees it.
pub(crate) struct Figures {
    pub(crate) driver: Arc<Driver>,
    pub(crate) runtime: Handle,
}

impl Figures {
    /// Returns the volumes with a record. Those that no pod has had yet are not served.
    fn volumes(&self) -> Result<Vec<(String, VolumeRecord, Option<ServedVolume>)>, Status> {
        let listed = self.runtime.block_on(async {
            let mut server = self.driver.server();
            timeout(ANSWER, server.list(ListRequest::default())).await
        });
        let listed = listed.map_err(|_| Status::unavailable("the volume server does not answer"))??;
        let mut served: BTreeMap<String, ServedVolume> =
            listed.into_inner().volumes.into_iter().map(|one| (one.volume.clone(), one)).collect();
        let ids = self.driver.records.all().map_err(|error| Status::internal(error.to_string()))?;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            match self.driver.records.load(&id) {
                Ok(Some(record)) => {
                    let served = served.remove(&id);
                    found.push((id, record, served));
                }
                Ok(None) => {}
                // One damaged record hides no other volume.
                Err(status) => {
                    Machine.log(&Event::error("record_damaged", status.message()).about(id));
                }
            }
        }
        Ok(found)
    }
}

impl Monitored for Figures {
    fn program(&self) -> &'static str {
        "csi driver"
    }

    fn measure(&self, into: &mut Scrape) {
        // Volumes that cannot be asked are missing, and `/readyz` says why.
        for (id, record, served) in self.volumes().unwrap_or_default() {
            let pod = record.pod.unwrap_or_default();
            let Some(served) = served else { continue };
            let labels = [id.as_str(), pod.as_str()];
            into.set(&families::VOLUME_UP, &labels, served.is_alive.into());
            into.set(&families::VOLUME_SIZE, &labels, record.spec.size_bytes);
            // Nothing is better than 0 while its process does not answer.
            if served.answers {
                into.set(&families::VOLUME_USED, &labels, served.used_bytes);
                into.set(&families::VOLUME_FILES, &labels, served.files);
            }
        }
    }

    fn readiness(&self) -> Readiness {
        match self.volumes() {
            Ok(volumes) => Readiness::Ready(format!("{} volumes", volumes.len())),
            Err(status) => Readiness::NotReady(status.message().to_owned()),
        }
    }

    fn resources(&self) -> &'static [&'static str] {
        &["status", "volumes"]
    }

    fn resource(&self, name: &str, query: &BTreeMap<String, String>) -> Resource {
        if let Some(wrong) = query.keys().next() {
            return Resource::WrongQuery(format!("there is no parameter {wrong:?}; there are none here"));
        }
        match self.volumes() {
            Ok(volumes) if name == "status" => Resource::Found(json!({
                "program": self.program(),
                "version": env!("CARGO_PKG_VERSION"),
                "machine": self.driver.node_id,
                "volumes": volumes.len(),
            })),
            Ok(volumes) => Resource::Found(json!({
                "volumes": volumes.into_iter().map(shown).collect::<Vec<Value>>(),
            })),
            Err(status) => Resource::Unavailable(status.message().to_owned()),
        }
    }
}

/// Shows a volume as the API does.
fn shown((id, record, served): (String, VolumeRecord, Option<ServedVolume>)) -> Value {
    let state = match &served {
        None => "not served",
        Some(served) if served.is_alive => "served",
        Some(_) => "lost",
    };
    let served = served.unwrap_or_default();
    json!({
        "volume": id,
        "origin": match record.origin { Origin::Claim => "claim", Origin::Pod => "pod" },
        "pod": record.pod,
        "state": state,
        "size_bytes": record.spec.size_bytes,
        "used_bytes": served.used_bytes,
        "files": served.files,
        "targets": served.targets,
    })
}
