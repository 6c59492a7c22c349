//! Metrics, health and state of brokers and nodes, for the HTTP server.

use crate::status::{file_json, node_json, regions_json, tenant_json, traffic_json};
use farpool_broker::{Broker, BrokerService};
use farpool_monitoring::{Monitored, Readiness, Resource, Scrape, families};
use farpool_node::{NodeState, NodeView};
use farpool_transport::times::{BOUNDS_NS, OperationTime};
use farpool_wire::Text;
use farpool_wire::control::{ListNames, NameInfo, NodeStatus, RegionCounts, StatusReport};
use farpool_wire::limits::NAMES_PAGE_MAX;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Limit of the sessions that a broker lists.
const SESSIONS_MAX: usize = 1_000;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Broker that is monitored.
pub(crate) struct MonitoredBroker(pub(crate) Arc<Broker>);

/// Node that is monitored.
pub(crate) struct MonitoredNode(pub(crate) NodeView);

impl Monitored for MonitoredBroker {
    fn program(&self) -> &'static str {
        "broker"
    }

    fn measure(&self, into: &mut Scrape) {
        measure_times(&self.0.times(), into);
        let leading = self.0.leading();
        into.set(&families::BROKER_LEADS, &[], leading.is_some().into());
        let Some(leading) = leading else { return };
        let report = leading.status();
        into.set(&families::BROKER_TERM, &[], report.term.0);
        into.set(&families::POOL_SESSIONS, &[], report.sessions.into());
        into.set(&families::POOL_TICKETS, &[], report.tickets_open.into());
        into.set(&families::POOL_WAITS, &[], leading.waiting() as u64);
        measure_files(&leading, into);
        let repairs = leading.repairs();
        for (state, files, bytes) in [
            ("endangered", repairs.endangered_files, repairs.endangered_bytes),
            ("leaving", repairs.leaving_files, repairs.leaving_bytes),
        ] {
            into.set(&families::POOL_REPAIR_FILES, &[state], files);
            into.set(&families::POOL_REPAIR_BYTES, &[state], bytes);
        }
        report.nodes.iter().for_each(|node| measure_node_of_pool(node, into));
        for tenant in report.tenants.iter() {
            let name: &str = &tenant.tenant;
            into.set(&families::TENANT_HELD, &[name], tenant.held_bytes);
            into.set(&families::TENANT_PROMISED, &[name], tenant.promised_bytes);
            if tenant.quota_bytes > 0 {
                into.set(&families::TENANT_QUOTA, &[name], tenant.quota_bytes);
            }
        }
    }

    fn readiness(&self) -> Readiness {
        match self.0.term() {
            Some(term) => Readiness::Ready(format!("leads in term {term}")),
            // A broker that stands by does its work, which is to wait.
            None => Readiness::Ready("stands by".into()),
        }
    }

    fn resources(&self) -> &'static [&'static str] {
        &["status", "nodes", "tenants", "files", "sessions"]
    }

    fn resource(&self, name: &str, query: &BTreeMap<String, String>) -> Resource {
        if let Some(wrong) = wrong_parameter(query, if name == "files" { &["prefix", "after"] } else { &[] })
        {
            return wrong;
        }
        let leading = self.0.leading();
        if name == "status" {
            return Resource::Found(status_of(leading.map(|leading| leading.status()).as_ref()));
        }
        let Some(leading) = leading else {
            return Resource::Unavailable("this broker stands by; ask the one that leads".into());
        };
        let report = leading.status();
        Resource::Found(match name {
            "nodes" => json!({ "nodes": report.nodes.iter().map(node_json).collect::<Vec<_>>() }),
            "tenants" => json!({ "tenants": report.tenants.iter().map(tenant_json).collect::<Vec<_>>() }),
            "sessions" => {
                let listed = leading.sessions(SESSIONS_MAX);
                let more = listed.len() < report.sessions as usize;
                let session = |session: &farpool_broker::SessionStatus| {
                    json!({
                        "session": session.session.to_string(), "tenant": &*session.tenant,
                        "heard_ms_ago": session.heard_ms_ago,
                    })
                };
                json!({ "sessions": listed.iter().map(session).collect::<Vec<_>>(), "more": more })
            }
            _ => return files_of(&leading, query),
        })
    }
}

/// Returns the error of a parameter that is not one of those permitted.
fn wrong_parameter(query: &BTreeMap<String, String>, permitted: &[&str]) -> Option<Resource> {
    let wrong = query.keys().find(|name| !permitted.contains(&name.as_str()))?;
    let permitted =
        if permitted.is_empty() { "there are none here".into() } else { permitted.join(" and ") + " are" };
    Some(Resource::WrongQuery(format!("there is no parameter {wrong:?}; {permitted}")))
}

fn status_of(report: Option<&StatusReport>) -> serde_json::Value {
    json!({
        "program": "broker",
        "version": VERSION,
        "leads": report.is_some(),
        "term": report.map(|report| report.term.0),
        "sessions": report.map(|report| report.sessions),
        "tickets_open": report.map(|report| report.tickets_open),
        "file_count": report.map(|report| report.files),
        "file_bytes": report.map(|report| report.file_bytes),
    })
}

/// Returns a page of the published files.
fn files_of(leading: &BrokerService, query: &BTreeMap<String, String>) -> Resource {
    let text = |name: &str| {
        let text = query.get(name).cloned().unwrap_or_default();
        Text::new(text).map_err(|error| Resource::WrongQuery(format!("the parameter {name}: {error}")))
    };
    let (prefix, after) = match (text("prefix"), text("after")) {
        (Ok(prefix), Ok(after)) => (prefix, after),
        (Err(wrong), _) | (_, Err(wrong)) => return wrong,
    };
    let page = leading.names(&ListNames { prefix, after });
    let file = |file: &NameInfo| file_json(&file.name, file.bytes, file.class, file.lost);
    Resource::Found(json!({ "files": page.names.iter().map(file).collect::<Vec<_>>(), "more": page.more }))
}

/// Adds the numbers of files. They are counted page by page, so that requests come between.
fn measure_files(leading: &BrokerService, into: &mut Scrape) {
    let mut totals = [(0, 0); 2];
    let mut after = Text::default();
    loop {
        let page = leading.names(&ListNames { prefix: Text::default(), after });
        for file in page.names.iter() {
            let (count, bytes) = &mut totals[usize::from(file.lost)];
            (*count, *bytes) = (*count + 1, *bytes + file.bytes);
        }
        let next = page.names.last().and_then(|file| Text::new(file.name.to_string()).ok());
        match next.filter(|_| page.more && page.names.len() == NAMES_PAGE_MAX) {
            Some(last) => after = last,
            None => break,
        }
    }
    for (state, (count, bytes)) in ["whole", "lost"].into_iter().zip(totals) {
        into.set(&families::POOL_FILES, &[state], count);
        into.set(&families::POOL_FILE_BYTES, &[state], bytes);
    }
}

/// Returns the bytes of a node's regions by state.
fn memory_of(counts: &RegionCounts, region_bytes: u64) -> [(&'static str, u64); 5] {
    let bytes = |regions: u32| u64::from(regions).saturating_mul(region_bytes);
    [
        ("free", bytes(counts.free)),
        ("leased", bytes(counts.leased)),
        ("named", bytes(counts.named)),
        ("cleaning", bytes(counts.cleaning)),
        ("away", bytes(counts.away)),
    ]
}

fn measure_node_of_pool(node: &NodeStatus, into: &mut Scrape) {
    let name: &str = &node.info.name;
    into.set(&families::POOL_NODE_UP, &[name, &node.info.host_label], node.alive.into());
    into.set(&families::POOL_NODE_DRAINING, &[name], node.draining.into());
    into.set_real(&families::POOL_NODE_SILENT, &[name], node.heard_ms_ago as f64 / 1e3);
    // The memory of a lost node is nobody's to use.
    if node.alive {
        for (state, bytes) in memory_of(&node.counts, node.info.region_bytes) {
            into.set(&families::POOL_NODE_MEMORY, &[name, state], bytes);
        }
    }
}

/// Adds the histograms of the operations that a service has answered.
fn measure_times(times: &[OperationTime], into: &mut Scrape) {
    for OperationTime { opcode, kind, buckets, sum_ns } in times {
        let labels = [&*snake_case(&format!("{opcode:?}")), &*kind.to_string()];
        into.set_times(&families::OPERATIONS, &labels, &BOUNDS_NS, buckets, *sum_ns);
    }
}

/// Turns `ReadBatch` into `read_batch`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

impl Monitored for MonitoredNode {
    fn program(&self) -> &'static str {
        "node"
    }

    fn measure(&self, into: &mut Scrape) {
        let NodeState { joined, draining, region_bytes, counts, surplus_regions, traffic, pressure, times } =
            self.0.state();
        let name: &str = &self.0.info().name;
        measure_times(&times, into);
        into.set(&families::NODE_JOINED, &[name], joined.into());
        into.set(&families::NODE_DRAINING, &[name], draining.into());
        for (state, bytes) in memory_of(&counts, region_bytes) {
            into.set(&families::NODE_MEMORY, &[name, state], bytes);
        }
        into.set(&families::NODE_LOCKED, &[name], u64::from(counts.locked) * region_bytes);
        into.set(&families::NODE_SESSIONS, &[name], counts.sessions.into());
        for (operation, count) in
            [("read", traffic.read_ops), ("write", traffic.write_ops), ("refused", traffic.refused_ops)]
        {
            into.set(&families::NODE_OPERATIONS, &[name, operation], count);
        }
        for (operation, bytes) in [("read", traffic.read_bytes), ("write", traffic.write_bytes)] {
            into.set(&families::NODE_BYTES, &[name, operation], bytes);
        }
        into.set(&families::NODE_MAPPED, &[name], traffic.mapped_regions);
        into.set(&families::NODE_WANTED, &[name], u64::from(surplus_regions) * region_bytes);
        for (severity, count) in [("gradual", pressure.gradual), ("emergency", pressure.emergencies)] {
            into.set(&families::NODE_PRESSURE, &[name, severity], count);
        }
        into.set(&families::NODE_GIVEN_BACK, &[name], pressure.asked_back_bytes);
        if let Some(tightest) = pressure.tightest {
            into.set(&families::HOST_MEMORY, &[], tightest.total_bytes);
            into.set(&families::HOST_AVAILABLE, &[], tightest.available_bytes);
            into.set(&families::HOST_RESERVE, &[], tightest.reserve_bytes);
        }
    }

    fn readiness(&self) -> Readiness {
        let state = self.0.state();
        match (state.joined, state.draining) {
            (false, _) => Readiness::NotReady("no broker has registered this node yet".into()),
            (true, true) => Readiness::NotReady("this node is being emptied".into()),
            (true, false) => Readiness::Ready("registered at a broker".into()),
        }
    }

    fn resources(&self) -> &'static [&'static str] {
        &["status"]
    }

    fn resource(&self, _name: &str, query: &BTreeMap<String, String>) -> Resource {
        if let Some(wrong) = wrong_parameter(query, &[]) {
            return wrong;
        }
        let (state, info) = (self.0.state(), self.0.info());
        let host = state.pressure.tightest.map(|tightest| {
            json!({
                "total_bytes": tightest.total_bytes, "available_bytes": tightest.available_bytes,
                "reserve_bytes": tightest.reserve_bytes,
            })
        });
        Resource::Found(json!({
            "program": "node",
            "version": VERSION,
            "name": &*info.name,
            "address": &*info.address,
            "host_label": &*info.host_label,
            "incarnation": format!("{:016x}", info.incarnation.0),
            "joined": state.joined,
            "draining": state.draining,
            "region_bytes": state.region_bytes,
            "regions": regions_json(&state.counts),
            "sessions": state.counts.sessions,
            "traffic": traffic_json(&state.traffic),
            "wanted_bytes": u64::from(state.surplus_regions) * state.region_bytes,
            "asked_back_bytes": state.pressure.asked_back_bytes,
            "host": host,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_operations_are_words_with_underscores() {
        assert_eq!(snake_case("ReadBatch"), "read_batch");
        assert_eq!(snake_case("Read"), "read");
    }
}
