//! Callers of functions and their calls, and the answer to a caller whose sandbox process has ended.

use farpool_host::clock;
use farpool_transport::{HandedOver, Lane};
use farpool_wire::control::{Called, FunctionFault, Outcome};
use farpool_wire::frame::Header;
use farpool_wire::{Code, List, MonoNs, Opcode, Payload, Refusal, Reply, TraceId};
use std::io;

/// Longest time in ms for sending a caller the message that its process died.
const NEWS_MS: u64 = 1_000;

/// Owner of a process: the caller whose functions it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The caller. A process runs functions of one caller only.
    pub caller: String,
    /// The caller's tenant. All callers of a tenant share compiled code, because each may run any code as the tenant.
    pub tenant: String,
}

/// A call that runs in a sandbox process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallInProgress {
    /// Name of the function's entry: its first 24 bytes, as the sandbox process shows it.
    pub function: String,
    /// Caller of the function: see [`Owner::caller`].
    pub caller: String,
    /// Time when the call began.
    pub since: MonoNs,
}

/// A call whose process ended before the call did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedCall {
    /// Name of the function's entry, as in [`CallInProgress::function`]; empty while the function was made ready.
    pub function: String,
    /// Caller of the function: see [`Owner::caller`].
    pub caller: String,
    /// Outcome that the caller was told.
    pub outcome: Outcome,
    /// Detail of the outcome, such as the number of the signal that ended the process.
    pub detail: u64,
    /// Trace id of the call.
    pub trace: TraceId,
}

/// Receiver of calls whose processes have ended.
pub type EndedCalls = Box<dyn Fn(&EndedCall) + Send + Sync>;

/// Answers the request with this id and opcode in place of a process that has ended.
pub(crate) fn tell(
    connection: HandedOver,
    id: u64,
    opcode: u16,
    outcome: Outcome,
    detail: u64,
) -> io::Result<()> {
    let called = Called {
        outcome,
        detail,
        ran_ns: 0,
        output_bytes: 0,
        frames: List::default(),
        output: Payload::default(),
    };
    let Ok(opcode) = Opcode::from_wire(opcode) else { return Ok(()) };
    let answer = match opcode {
        Opcode::CallFunction => Ok(Reply::CallFunction(called)),
        Opcode::Supply => Ok(Reply::Supply(called)),
        Opcode::PutFunction => Err(Refusal::new(Code::BadFunction, FunctionFault::NotReady as u64)),
        _ => return Ok(()),
    };
    let header = Header { body_crc: None, ..Header::request(opcode, id, &[]) };
    Lane::over(connection.resume()?).reply(&header, answer, clock::now().plus_ms(NEWS_MS))
}
