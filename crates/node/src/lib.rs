//! The memory node: donates memory of its host in regions of equal size, serves them, and keeps their leases.
//!
//! Each region has a gate and a fence. The gate counts the operations that are using the region's memory; closing it
//! waits until they have left. The fence holds the region's epoch and the handles that may read or write.
//!
//! Three kinds of work never wait for one another. For a data operation, a connection's thread enters the region's gate
//! and checks the rights ([`admit`]), without a lock. Control messages change leases under one lock, and carry their
//! effects out to the gates before they reply. Housekeeping (expiry, zeroing, prefaulting), the report to the broker
//! and the copying of published files that the broker orders have a thread each.
//!
//! Never in this crate: raw memory (that is `region`), a rule about leases (that is `lease`), programs or functions
//! (those extend a node from `near-data`).
#![forbid(unsafe_code)]

mod admission_queue;
pub mod admit;
mod background;
mod computing;
mod copy_order;
mod copy_steps;
mod copying;
mod extension;
pub mod fair;
mod host_memory;
mod leasing;
pub mod limits;
mod memory;
mod observation;
mod options;
pub mod pressure;
mod segments;
mod service;
mod socket_folder;
mod start;

pub use admission_queue::{AdmissionQueue, ClientKey, QueuedAdmission};
pub use background::{Prefault, TICK_MS, keep_house, keep_regions, keep_reserve, keep_time, report};
pub use copy_steps::copy_out;
pub use copying::keep_copies;
pub use extension::{Extend, Extension};
pub use farpool_lease::node::Withdrawal;
pub use farpool_lease::ticket::node_id;
pub use farpool_region::donation::{DaxDevice, Donation, HugePagePool};
pub use host_memory::{HostMemory, MemorySource};
pub use memory::{Inside, Memory, Range};
pub use observation::{NodeState, PressureSeen, Tightest};
pub use options::{Limits, NodeOptions, PressureOptions};
pub use service::{Life, NodeService, fresh_handle};
pub use socket_folder::SocketFolder;
pub use start::{Node, NodeView, StartError};
