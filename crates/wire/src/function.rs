//! Control messages of shipped functions. [`crate::control`] re-exports them; `spec/function.md` says what they mean.

use crate::codec::{Bytes, Cursor, Field, List, Name, Payload, Text, WireError, wire_struct};
use crate::ids::*;
use crate::limits::*;

wire_struct! {
    /// Range of a sealed region or segment, and its position in a window (the range of a file that functions see).
    LanePart {
        /// Region of the node.
        region: RegionIndex,
        /// Epoch that the right belongs to.
        epoch: Epoch,
        /// Right to read the region.
        handle: Handle,
        /// First byte in the region: a multiple of 4,096, unless resident functions (built into the node) are called.
        offset: u64,
        /// Bytes of the range.
        bytes: u64,
        /// First byte in the window: a multiple of 4,096, unless resident functions are called.
        at: u64,
    }
}

wire_struct! {
    /// Request to make the connection a lane: after the reply, functions are called on it over this window.
    OpenLane {
        /// True to call resident functions; false to call Wasm and native ones.
        resident: bool,
        /// Bytes of the window.
        window_bytes: u64,
        /// Most bytes that the output of a call may have.
        output_bytes: u32,
        /// Ranges of the window that lie on this node, in order, without overlap.
        parts: List<LanePart, LANE_PARTS_MAX>,
    }
}

wire_struct! {
    /// Node at which calls of a lane may go on, and what of the window lies there.
    LanePeer {
        /// The node.
        node: NodeId,
        /// Address at which the node is reached.
        address: Text,
        /// Ranges of the window that lie on that node, in order, without overlap.
        parts: List<LanePart, LANE_PARTS_MAX>,
    }
}

wire_struct! {
    /// Caller for whom a node opens a lane at another node.
    LaneCaller {
        /// Name of the caller, which operators see.
        caller: Text,
        /// Tenant of the caller.
        tenant: Text,
    }
}

wire_struct! {
    /// Request like `OpenLane`. If a function hops to a byte that lies on one of the peers, the node goes on with the
    /// call there, in place of the caller.
    OpenHoppingLane {
        /// Window, and what of it lies on this node.
        lane: OpenLane,
        /// Nodes to which calls may hop.
        peers: List<LanePeer, LANE_PEERS_MAX>,
        /// Caller in whose place a node asks; none if the caller itself asks.
        caller: List<LaneCaller, 1>,
    }
}

wire_struct! {
    /// Answer to `OpenLane`: the connection is a lane.
    LaneOpened {
        /// Most bytes that a function's heap may have; 0 for resident functions.
        heap_bytes: u64,
    }
}

/// Form of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FunctionForm {
    /// Function that the node was built with.
    Resident,
    /// WebAssembly module.
    Wasm,
    /// Signed shared object.
    Native,
}

impl FunctionForm {
    /// All forms, in wire order.
    pub const ALL: [FunctionForm; 3] = [FunctionForm::Resident, FunctionForm::Wasm, FunctionForm::Native];

    /// Returns the word used in interfaces.
    pub fn word(self) -> &'static str {
        match self {
            FunctionForm::Resident => "resident",
            FunctionForm::Wasm => "wasm",
            FunctionForm::Native => "native",
        }
    }
}

impl Field for FunctionForm {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        let found = u8::take(from)?;
        let form = FunctionForm::ALL.get(usize::from(found)).copied();
        form.ok_or(WireError::Value { what: "the form of a function", found: found.into() })
    }
}

wire_struct! {
    /// Request for a number that stands for a function on this lane (connection for calls).
    UseFunction {
        /// Form of the function.
        form: FunctionForm,
        /// SHA-256 of the function's bytes; zeros for a resident one.
        digest: [u8; 32],
        /// Exported name of the function's entry; the name of a resident one.
        entry: Name,
    }
}

wire_struct! {
    /// Signature of a native function.
    FunctionSignature {
        /// Ed25519 public key that signed.
        key: [u8; 32],
        /// Ed25519 signature.
        signature: [u8; 64],
    }
}

wire_struct! {
    /// Request that brings a function and asks for its number.
    PutFunction {
        /// Form of the function.
        form: FunctionForm,
        /// Exported name of the function's entry.
        entry: Name,
        /// Signature of a native function; empty for others.
        signature: List<FunctionSignature, 1>,
        /// Module, or shared object.
        bytes: Bytes<FUNCTION_BYTES_MAX>,
    }
}

wire_struct! {
    /// Answer to `UseFunction` and `PutFunction`: the function may be called by a number on this lane.
    FunctionUsed {
        /// Number of the function.
        number: u32,
    }
}

wire_struct! {
    /// Request that tells where the columns of the window's table are, for the calls that follow on this lane.
    PutColumns {
        /// Positions of the columns, in the form of the record that a function is called with (`spec/function.md`).
        columns: Bytes<FUNCTION_COLUMNS_BYTES_MAX>,
    }
}

wire_struct! {
    /// Request to call a function.
    CallFunction {
        /// Number of the function on this lane.
        number: u32,
        /// True if the heap must be new; else it may have what an earlier call left in it.
        fresh: bool,
        /// Time after which the call is stopped, in ms.
        deadline_ms: u32,
        /// True if the call continues one that hopped, that is, ended at another node and left a state.
        goes_on: bool,
        /// State that the earlier call left.
        state: Bytes<FUNCTION_STATE_BYTES_MAX>,
        /// Arguments of the call.
        args: Bytes<FUNCTION_ARGS_BYTES_MAX>,
    }
}

macro_rules! outcomes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// Way in which a call ended. The comment of each variant says what [`Called::detail`] means.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Outcome { $($(#[$doc])* $name = $value),* }

        impl Outcome {
            /// All outcomes, in wire order.
            pub const ALL: &'static [Outcome] = &[$(Outcome::$name),*];
        }

        impl Field for Outcome {
            const BYTES_MIN: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
                match u8::take(from)? {
                    $($value => Ok(Outcome::$name),)*
                    found => Err(WireError::Value { what: "the outcome of a call", found: found.into() }),
                }
            }
        }
    };
}

outcomes! {
    /// Success: the output is complete.
    Done = 0,
    /// Failure by the function's own choice; detail: the code that it returned, from 1 on.
    GaveUp = 1,
    /// Wish to continue at another node; the output is the state. Detail: the byte of the window where it wants to
    /// continue.
    Hop = 2,
    /// Wish for bytes that lie on another node, to be answered by a `Supply`; detail: the first byte of their block.
    Away = 3,
    /// Load or store outside of all memory; detail: the address.
    OutOfBounds = 4,
    /// Store into the window, which is read-only; detail: the byte of the window.
    ReadOnly = 5,
    /// Store behind the output's end; detail: the output's capacity.
    OutputFull = 6,
    /// Instruction `unreachable`; detail: 0.
    Unreachable = 7,
    /// Division by zero, or a number that does not fit; detail: 0.
    Arithmetic = 8,
    /// Indirect call of nothing, or of another type; detail: 0.
    BadCall = 9,
    /// Too many nested calls; detail: 0.
    StackOverflow = 10,
    /// Running time over the deadline; detail: the milliseconds permitted.
    Deadline = 11,
    /// Heap larger than permitted; detail: the limit in bytes.
    MemoryFull = 12,
    /// Memory of the window that the node has taken back; detail: 0.
    Revoked = 13,
    /// Caller gone; detail: 0.
    Cancelled = 14,
    /// End of the sandbox process; detail: the signal, or 0.
    Died = 15,
    /// Return value that is not permitted; detail: that value.
    Contract = 16,
    /// Bytes of another node that nobody could supply; detail: the first byte of their block.
    NotSupplied = 17,
}

wire_struct! {
    /// Position in a module of a fault, or of a call that led to it.
    FunctionFrame {
        /// Number of the function in the module.
        function: u32,
        /// Offset of the instruction in the module's bytes.
        offset: u32,
    }
}

wire_struct! {
    /// Answer to `CallFunction` and `Supply`: the end of a call, or its pause.
    Called {
        /// Way in which the call ended or paused.
        outcome: Outcome,
        /// Number whose meaning depends on the outcome.
        detail: u64,
        /// Time that the function ran, in ns.
        ran_ns: u64,
        /// Bytes of the whole output.
        output_bytes: u64,
        /// Stack frames of a fault in a module, the innermost first.
        frames: List<FunctionFrame, FUNCTION_FRAMES_MAX>,
        /// First bytes of the output.
        output: Payload<FUNCTION_OUTPUT_PIECE_BYTES>,
    }
}

wire_struct! {
    /// Request for more of the last call's output.
    NextOutput {
        /// First byte wanted.
        from: u64,
    }
}

wire_struct! {
    /// Answer to `NextOutput`: more of the output; empty if that was all.
    OutputPiece {
        /// Next bytes of the output.
        output: Payload<FUNCTION_OUTPUT_PIECE_BYTES>,
    }
}

wire_struct! {
    /// Request that brings bytes of another node which a call needs.
    Supply {
        /// First byte of the block.
        at: u64,
        /// Bytes of the block, up to the end of the window; none if nobody could supply them.
        bytes: Bytes<FUNCTION_PIECE_BYTES>,
    }
}

wire_struct! {
    /// Call of a function that has not ended.
    RunningCall {
        /// Name of the function's entry, perhaps truncated, or that of a resident function.
        function: Name,
        /// Identity that called it, or the client's number if there are no certificates.
        caller: Name,
        /// Milliseconds since the call began.
        running_ms: u64,
    }
}

wire_struct! {
    /// Answer to `RunningCalls`: the calls of functions that have not ended at a node.
    RunningCalls {
        /// Number of all such calls.
        count: u32,
        /// Calls that have run longest, the longest first.
        calls: List<RunningCall, RUNNING_CALLS_MAX>,
    }
}

/// Reason why bytes are no function that can be used: the detail of [`crate::Code::BadFunction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum FunctionFault {
    /// Module that is not valid, or uses a feature that is not permitted.
    Invalid = 1,
    /// Module that imports something.
    Imports = 2,
    /// Module with a start function.
    Starts = 3,
    /// Module that does not have exactly one 32-bit memory, exported as `memory`.
    Memory = 4,
    /// Memory with a maximum, or shared.
    MemoryMaximum = 5,
    /// Memory that begins larger than permitted.
    MemoryMinimum = 6,
    /// Entry that is not exported.
    NoEntry = 7,
    /// Entry of another type.
    EntryType = 8,
    /// Object that cannot be loaded here.
    NotLoaded = 9,
    /// Module with more than `FUNCTION_ITEMS_MAX` items of one kind.
    TooMany = 10,
    /// Compilation or loading that took more CPU time than `FUNCTION_READY_CPU_MS_MAX`, longer than
    /// `FUNCTION_READY_MS_MAX`, needed more memory than permitted, or ended the process.
    NotReady = 11,
}

impl FunctionFault {
    /// All faults.
    pub const ALL: [FunctionFault; 11] = [
        FunctionFault::Invalid,
        FunctionFault::Imports,
        FunctionFault::Starts,
        FunctionFault::Memory,
        FunctionFault::MemoryMaximum,
        FunctionFault::MemoryMinimum,
        FunctionFault::NoEntry,
        FunctionFault::EntryType,
        FunctionFault::NotLoaded,
        FunctionFault::TooMany,
        FunctionFault::NotReady,
    ];

    /// Returns the reason, as the end of a sentence that begins with "the function".
    pub fn reason(self) -> &'static str {
        match self {
            FunctionFault::Invalid => "is not valid, or uses features that are not permitted",
            FunctionFault::Imports => "imports something; a function gets only its call record",
            FunctionFault::Starts => "has a start function; only its entry is run",
            FunctionFault::Memory => "must have one memory for 32-bit addresses, exported as \"memory\"",
            FunctionFault::MemoryMaximum => "declares a maximum for its memory, or shares it; do neither",
            FunctionFault::MemoryMinimum => "begins with more memory than is permitted",
            FunctionFault::NoEntry => "does not export the entry",
            FunctionFault::EntryType => "has an entry of another type than (i32) -> i64",
            FunctionFault::NotLoaded => "cannot be loaded on the node",
            FunctionFault::TooMany => {
                "has more than 10000 types, functions, tables, globals, exports or segments; split it"
            }
            FunctionFault::NotReady => {
                "could not be compiled or loaded within 60 s of a CPU and the permitted memory; make it smaller, \
                 and its blocks less deeply nested"
            }
        }
    }
}
