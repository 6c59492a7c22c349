//! Queries over many machines: far tables in `datafusion-distributed`, tasks where the row groups lie.
//!
//! The idea: a far table can be read from anywhere, so any machine of the pool may do a part of a query. What is
//! divided is the scan, by row groups; each part goes to a worker near the memory node that holds them, over a fast
//! path or none. Whatever DataFusion does above scans, `datafusion-distributed` divides as it does for everybody.
//!
//! ```no_run
//! use farpool_distributed::{Beyond, Workers};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = farpool::Pool::connect("farpool://127.0.0.1:7700")?;
//! let known = vec!["http://127.0.0.1:7801".parse()?, "http://127.0.0.1:7802=one,two".parse()?];
//! let workers = Workers::new(known, Beyond::Refused)?;
//! let session = farpool_distributed::session(&pool, Default::default(), &workers)?;
//! for left_out in workers.refresh().await {
//!     eprintln!("{left_out}");
//! }
//! session.context().sql("SELECT l_shipmode, count(*) FROM lineitem GROUP BY l_shipmode").await?.show().await?;
//! # Ok(())
//! # }
//! ```
//!
//! One file for each thing it does: `dividing` says which row groups go where, `placing` tells the planner, `message`
//! is a scan as bytes and `codec` makes one of it and back, `workers` knows who is there, `channels` connects to them,
//! `session` plans and `serving` is the other side.
//!
//! Invariant: a worker that is lost is an error by its name or no loss at all, never fewer rows.
//!
//! Never in this crate: an operator over rows, or a rule about what may be shipped beside the data.
#![forbid(unsafe_code)]

mod channels;
mod codec;
mod dividing;
mod explain;
mod message;
mod placing;
mod serving;
mod session;
mod tables;
mod workers;

pub use channels::Beyond;
pub use codec::ScanCodec;
pub use explain::explain;
pub use serving::serve;
pub use session::session;
pub use workers::{Assigned, LeftOut, WorkerAddress, Workers};
