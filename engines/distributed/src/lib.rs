//! Distributed queries: far tables in `datafusion-distributed`, with tasks placed near the row groups that they read.
//!
//! The idea: every machine of the pool can read every far table, so any of them can do part of a query. Scans are
//! divided by row groups. Each part goes to a worker near the memory node that holds its row groups, ideally on the
//! same host. `datafusion-distributed` divides the operators above the scans, as it does for any table.
//!
//! ```no_run
//! use farpool_distributed::Workers;
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = farpool::Pool::connect("farpool://127.0.0.1:7700")?;
//! let known = vec!["http://127.0.0.1:7801".parse()?, "http://127.0.0.1:7802=one,two".parse()?];
//! let workers = Workers::new(known, Default::default())?;
//! let session = farpool_distributed::session(&pool, Default::default(), &workers)?;
//! for left_out in workers.refresh().await {
//!     eprintln!("{left_out}");
//! }
//! session.context().sql("SELECT l_shipmode, count(*) FROM lineitem GROUP BY l_shipmode").await?.show().await?;
//! # Ok(())
//! # }
//! ```
//!
//! `dividing` assigns row groups to workers, and `placing` passes the result to the planner. `message` is an encoded
//! scan, which `codec` makes and decodes. `workers` knows the workers that are available, and `channels` connects to
//! them, with TLS by `encrypted`, and asks another worker if one is lost. Workers keep what their tasks put out
//! (`stage_output`, in `kept_rows`), so that a task which runs again can read its inputs again. `session` plans
//! queries, and `serving` is the worker's side.
//!
//! Invariant: the loss of a worker has no effect on the rows, or gives an error that names the worker. It never gives
//! fewer rows, and no row twice.
//!
//! Never in this crate: an operator over rows, or a rule about what may be shipped beside the data.
#![forbid(unsafe_code)]

mod channels;
mod codec;
mod dividing;
mod encrypted;
mod explain;
mod io_threads;
mod kept_rows;
mod message;
mod placing;
mod serving;
mod session;
mod stage_output;
mod tables;
mod workers;

pub use codec::ScanCodec;
pub use explain::explain;
pub use serving::{check_listener, serve};
pub use session::session;
pub use workers::{Assigned, LeftOut, WorkerAddress, Workers};
