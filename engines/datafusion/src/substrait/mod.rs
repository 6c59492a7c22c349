//! Plans of any producer, as Substrait writes them down: bytes in, a logical plan out, and the other way.
//!
//! The idea: a plan that came by this door is an ordinary logical plan of the session. From there on nothing is
//! different: the same optimizer, the same rule that moves steps into scans. Plans cross it before they are optimized
//! here, never behind: what runs beside the data is said in programs of the pool's own, which know no Substrait.
//!
//! Bytes are a stranger's. They are read on a thread of their own, whose stack holds the deepest plan that the limits
//! below permit; what DataFusion's reader would panic about is looked at before (`consumer`), and a panic that is left
//! is an error all the same. A plan may do what a statement of SQL may: whoever can send one can read every table.

mod consumer;
mod producer;

use consumer::Checked;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_datafusion_err, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::consumer::from_substrait_plan_with_consumer;
use datafusion_substrait::substrait::proto::Plan;
use prost::Message;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of a plan, at most. Read, an adversary's take up to two hundred times as much memory; lists of a hundred
/// thousand values fit.
pub const PLAN_BYTES_MAX: usize = 4 << 20;
/// Messages within messages, at most, as all readers of Protocol Buffers have it: about 45 relations on top of each
/// other, or calls of functions 30 deep.
pub const PLAN_NESTING_MAX: usize = 100;
/// Relations of a plan, at most; sets are folded, so that so many may be on top of each other.
pub const PLAN_RELATIONS_MAX: usize = 1_000;
/// Columns that a relation has, at most.
pub const PLAN_COLUMNS_MAX: usize = 16_384;
/// Parts of an expression, at most, once the columns of projections below are written out, as moving filters down does.
pub const PLAN_EXPANSION_MAX: u64 = 1_000_000;

/// For the deepest plan; pages that are not touched are not there.
const STACK_BYTES: usize = 64 << 20;

/// A plan over the tables of a session.
pub(crate) async fn read(state: SessionState, bytes: Vec<u8>) -> Result<LogicalPlan> {
    if bytes.len() > PLAN_BYTES_MAX {
        return plan_err!("{} bytes: up to {PLAN_BYTES_MAX} are permitted", bytes.len()).map_err(named);
    }
    let runtime = tokio::runtime::Handle::current();
    let read = on_deep_stack(move || {
        let plan = decode(&bytes)?;
        runtime.block_on(consume(&state, &plan))
    });
    read.await.map_err(named)
}

/// What a statement's plan is in bytes.
pub(crate) async fn write(state: SessionState, plan: LogicalPlan) -> Result<Vec<u8>> {
    let written = on_deep_stack(move || {
        let bytes = producer::plan(&state, &plan)?.encode_to_vec();
        if bytes.len() > PLAN_BYTES_MAX {
            return plan_err!("{} bytes: up to {PLAN_BYTES_MAX} are permitted", bytes.len());
        }
        // Nobody could read a plan that is too deep.
        decode(&bytes)?;
        Ok(bytes)
    });
    written.await.map_err(named)
}

fn decode(bytes: &[u8]) -> Result<Plan> {
    Plan::decode(bytes).map_err(|error| {
        let said = error.to_string();
        match said.contains("recursion limit") {
            true => {
                plan_datafusion_err!("messages nest deeper than the {PLAN_NESTING_MAX} that are permitted")
            }
            false => plan_datafusion_err!("not a plan in protobuf: {said}"),
        }
    })
}

async fn consume(state: &SessionState, plan: &Plan) -> Result<LogicalPlan> {
    consumer::check_roots(plan)?;
    let extensions = Extensions::try_from(&plan.extensions)?;
    let consumer = Checked::new(&extensions, state);
    let read = from_substrait_plan_with_consumer(&consumer, plan).await?;
    consumer::check_expansion(&read)?;
    Ok(read)
}

/// Runs work that goes as deep as a plan does.
async fn on_deep_stack<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (send, receive) = tokio::sync::oneshot::channel();
    let run = move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        // Whoever asked may be gone.
        let _ = send.send(done.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))));
    };
    let thread = std::thread::Builder::new().name("farpool plan".into()).stack_size(STACK_BYTES);
    thread.spawn(run).map_err(|error| exec_datafusion_err!("starting a thread for a plan: {error}"))?;
    receive.await.map_err(|_| exec_datafusion_err!("the thread that read a plan ended"))?
}

fn panicked(panic: &(dyn Any + Send)) -> DataFusionError {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say");
    plan_datafusion_err!("a part that must be there is missing or out of range: {said}")
}

/// The same error as one of a plan, unless it is the pool's.
fn named(error: DataFusionError) -> DataFusionError {
    match error.find_root() {
        DataFusionError::External(_) => error.context("Substrait plan"),
        DataFusionError::Plan(said)
        | DataFusionError::NotImplemented(said)
        | DataFusionError::Substrait(said) => plan_datafusion_err!("Substrait plan: {}", first_line(said)),
        _ => plan_datafusion_err!("Substrait plan: {}", error.strip_backtrace()),
    }
}

/// Without the backtrace that may follow.
fn first_line(said: &str) -> &str {
    said.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or(said).trim_end()
}
