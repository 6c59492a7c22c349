//! Monitoring: an HTTP server that shows metrics, health and state of one process of a pool.
//!
//! The idea: the numbers exist already, as counters that the process keeps and as the state that it answers from. A
//! process implements [`Monitored`], which copies them when somebody asks. Nothing is collected while nobody asks.
//!
//! An [`Endpoint`] is bound before anything else of the process starts, so that a wrong address or a port in use is an
//! error of the start. [`Endpoint::serve`] then answers on threads of its own, one for each connection and few at a
//! time. They share no lock with the data path.
//!
//! - [`families`] lists every time series: name, type, labels and help.
//! - [`Scrape`] collects samples and writes them in the text format of Prometheus or of OpenMetrics.
//! - `http` reads requests and writes responses; `access` decides who may ask; `server` answers.
//!
//! Never in this crate: a counter of the data path, knowledge of what the numbers mean to a pool, or a request that
//! changes anything.
#![forbid(unsafe_code)]

mod accept;
mod access;
pub mod families;
mod http;
mod process;
mod scrape;
mod server;

pub use access::{Access, AccessError, TOKEN_BYTES};
pub use families::{Family, FamilyKind};
pub use process::measure_process;
pub use scrape::{Format, Scrape};
pub use server::{Endpoint, HttpError, Monitored, Readiness, Resource, Server};
