//! Reads and writes logical plans as Substrait.
//!
//! The idea: a plan that was read is an ordinary logical plan of the session. The same optimizer and the same rules
//! apply to it as to SQL. Plans are exchanged before they are optimized. Programs that run beside the data are never
//! Substrait.
//!
//! The bytes come from an untrusted producer. They are read on a separate thread, whose stack is large enough for the
//! deepest plan that the limits below permit. Messages that would make DataFusion's reader panic are refused first
//! (`consumer`), and any panic that remains becomes an error. A plan may do whatever a SQL statement may: a client that
//! can send plans can read every table.

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

/// Bytes of a plan, at most. Reading a hostile plan takes up to two hundred times as much memory. A list of a hundred
/// thousand values fits.
pub const PLAN_BYTES_MAX: usize = 4 << 20;
/// Nesting depth of messages, at most, which is the limit of Protocol Buffers' readers. It permits about 45 stacked
/// relations, or function calls nested 30 deep.
pub const PLAN_NESTING_MAX: usize = 100;
/// Relations of a plan, at most. Nested set operations are flattened, so this many may be stacked.
pub const PLAN_RELATIONS_MAX: usize = 1_000;
/// Columns of a relation, at most.
pub const PLAN_COLUMNS_MAX: usize = 16_384;
/// Number of nodes of an expression, at most, after each reference to a column of a lower projection is replaced by
/// that column's expression. Pushing filters down makes such expressions.
pub const PLAN_EXPANSION_MAX: u64 = 1_000_000;

/// Stack of the thread that reads a plan, in bytes: enough for the deepest plan. Untouched pages take no memory.
const STACK_BYTES: usize = 64 << 20;

/// Reads a plan over the tables of a session.
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

/// Writes a plan.
pub(crate) async fn write(state: SessionState, plan: LogicalPlan) -> Result<Vec<u8>> {
    let written = on_deep_stack(move || {
        let bytes = producer::plan(&state, &plan)?.encode_to_vec();
        if bytes.len() > PLAN_BYTES_MAX {
            return plan_err!("{} bytes: up to {PLAN_BYTES_MAX} are permitted", bytes.len());
        }
        // A plan nested too deep could not be read by anybody, so it is refused here.
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
                plan_datafusion_err!(
                    "messages nest more than {PLAN_NESTING_MAX} levels deep, which is the limit"
                )
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

/// Runs `work` on a thread with a large stack. A panic becomes an error.
async fn on_deep_stack<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (send, receive) = tokio::sync::oneshot::channel();
    let run = move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        // The receiver may have been dropped, which is no error.
        let _ = send.send(done.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))));
    };
    let thread = std::thread::Builder::new().name("farpool plan".into()).stack_size(STACK_BYTES);
    thread.spawn(run).map_err(|error| exec_datafusion_err!("starting a thread for a plan: {error}"))?;
    receive.await.map_err(|_| exec_datafusion_err!("the thread that read a plan ended"))?
}

fn panicked(panic: &(dyn Any + Send)) -> DataFusionError {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no details are known");
    plan_datafusion_err!("a required field is missing or out of range: {said}")
}

/// Returns the error as a plan error that begins with `Substrait plan`. Errors of the pool keep their kind.
fn named(error: DataFusionError) -> DataFusionError {
    match error.find_root() {
        DataFusionError::External(_) => error.context("Substrait plan"),
        DataFusionError::Plan(said)
        | DataFusionError::NotImplemented(said)
        | DataFusionError::Substrait(said) => plan_datafusion_err!("Substrait plan: {}", first_line(said)),
        _ => plan_datafusion_err!("Substrait plan: {}", error.strip_backtrace()),
    }
}

/// Returns the message without DataFusion's backtrace, if it has one.
fn first_line(said: &str) -> &str {
    said.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or(said).trim_end()
}
