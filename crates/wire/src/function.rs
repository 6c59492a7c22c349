//! Control messages of shipped functions; the others are in [`crate::control`], which has these as well. What they mean
//! is in `spec/function.md`.

use crate::codec::{Bytes, Cursor, Field, List, Name, Payload, WireError, wire_struct};
use crate::ids::*;
use crate::limits::*;

wire_struct! {
    /// A range of a sealed region, and where in a window it lies.
    LanePart {
        /// Which region.
        region: RegionIndex,
        /// The epoch the right belongs to.
        epoch: Epoch,
        /// The right to read it.
        handle: Handle,
        /// First byte in the region: a multiple of 4,096.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// First byte in the window: a multiple of 4,096.
        at: u64,
    }
}

wire_struct! {
    /// Turns the connection into a lane: from the reply on, functions are called on it, over this window.
    OpenLane {
        /// Whether resident functions are to be called; otherwise Wasm and native ones.
        resident: bool,
        /// Bytes of the window.
        window_bytes: u64,
        /// The most bytes that the output of a call may have.
        output_bytes: u32,
        /// What of the window lies here, in order, without overlap.
        parts: List<LanePart, LANE_PARTS_MAX>,
    }
}

wire_struct! {
    /// It is one.
    LaneOpened {
        /// The most bytes that a function's heap may have.
        heap_bytes: u64,
    }
}

/// What a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FunctionForm {
    /// One that the node was built with.
    Resident,
    /// A WebAssembly module.
    Wasm,
    /// A signed shared object.
    Native,
}

impl FunctionForm {
    /// All forms, in wire order.
    pub const ALL: [FunctionForm; 3] = [FunctionForm::Resident, FunctionForm::Wasm, FunctionForm::Native];

    /// The word used in interfaces.
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
    /// Asks for a number that stands for a function on this lane.
    UseFunction {
        /// What it is.
        form: FunctionForm,
        /// SHA-256 of its bytes; zeros for a resident one.
        digest: [u8; 32],
        /// What it exports as its entry; the name of a resident one.
        entry: Name,
    }
}

wire_struct! {
    /// Who vouches for a native function.
    FunctionSignature {
        /// An Ed25519 public key.
        key: [u8; 32],
        /// Its signature.
        signature: [u8; 64],
    }
}

wire_struct! {
    /// Brings a function, and asks for its number.
    PutFunction {
        /// What it is.
        form: FunctionForm,
        /// What it exports as its entry.
        entry: Name,
        /// Of a native one.
        signature: List<FunctionSignature, 1>,
        /// The module, or the object.
        bytes: Bytes<FUNCTION_BYTES_MAX>,
    }
}

wire_struct! {
    /// The function's number on this lane.
    FunctionUsed {
        /// Which.
        number: u32,
    }
}

wire_struct! {
    /// Where the columns of the window's table are, for the calls that follow on this lane.
    PutColumns {
        /// As in a call record.
        columns: Bytes<FUNCTION_COLUMNS_BYTES_MAX>,
    }
}

wire_struct! {
    /// Calls a function.
    CallFunction {
        /// Its number on this lane.
        number: u32,
        /// Whether what an earlier call left in its heap is not to be there.
        fresh: bool,
        /// It is stopped after so many milliseconds.
        deadline_ms: u32,
        /// Whether it goes on where another call has hopped from.
        goes_on: bool,
        /// What that one left.
        state: Bytes<FUNCTION_STATE_BYTES_MAX>,
        /// The arguments.
        args: Bytes<FUNCTION_ARGS_BYTES_MAX>,
    }
}

macro_rules! outcomes {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// How a call ended. What `detail` of [`Called`] means stands with each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Outcome { $($(#[$doc])* $name = $value),* }

        impl Outcome {
            /// All of them, in wire order.
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
    /// The output is there.
    Done = 0,
    /// The function returned a code of its own; detail: the code, from 1 on.
    GaveUp = 1,
    /// The output is a state; detail: the byte of the window where the function wants to go on.
    Hop = 2,
    /// The function wants bytes from elsewhere; detail: the first byte of a piece. To be answered by a `Supply`.
    Away = 3,
    /// A load or store outside what is there; detail: the address.
    OutOfBounds = 4,
    /// A store into the window; detail: the byte.
    ReadOnly = 5,
    /// A store behind the output's end; detail: its capacity.
    OutputFull = 6,
    /// An instruction that says so; detail: 0.
    Unreachable = 7,
    /// A division by zero, or a number that does not fit; detail: 0.
    Arithmetic = 8,
    /// An indirect call of nothing, or of another type; detail: 0.
    BadCall = 9,
    /// Too many calls inside one another; detail: 0.
    StackOverflow = 10,
    /// It ran for too long; detail: milliseconds permitted.
    Deadline = 11,
    /// More heap than is permitted; detail: the limit in bytes.
    MemoryFull = 12,
    /// Memory of the window was taken back; detail: 0.
    Revoked = 13,
    /// The caller has left; detail: 0.
    Cancelled = 14,
    /// The sandbox process ended; detail: the signal, or 0.
    Died = 15,
    /// It returned what it must not; detail: that.
    Contract = 16,
    /// What it wanted from elsewhere was not to be had; detail: the first byte of the piece.
    NotSupplied = 17,
}

wire_struct! {
    /// Where in a module a fault was, or a call towards it.
    FunctionFrame {
        /// Number of the function in the module.
        function: u32,
        /// Offset of the instruction in the module's bytes.
        offset: u32,
    }
}

wire_struct! {
    /// How a call ended, or paused.
    Called {
        /// How.
        outcome: Outcome,
        /// Its meaning depends on the outcome.
        detail: u64,
        /// Nanoseconds that the function took.
        ran_ns: u64,
        /// Bytes of the whole output.
        output_bytes: u64,
        /// Of a fault in a module: where, the innermost first.
        frames: List<FunctionFrame, FUNCTION_FRAMES_MAX>,
        /// The first of the output.
        output: Payload<FUNCTION_OUTPUT_PIECE_BYTES>,
    }
}

wire_struct! {
    /// Asks for more of the last call's output.
    NextOutput {
        /// From which byte on.
        from: u64,
    }
}

wire_struct! {
    /// More of it; nothing: that was all.
    OutputPiece {
        /// The bytes.
        output: Payload<FUNCTION_OUTPUT_PIECE_BYTES>,
    }
}

wire_struct! {
    /// What a call wanted from elsewhere.
    Supply {
        /// First byte of the piece.
        at: u64,
        /// Its bytes, up to the end of the window; none if they are not to be had.
        bytes: Bytes<FUNCTION_PIECE_BYTES>,
    }
}

wire_struct! {
    /// A call of a function that has not ended.
    RunningCall {
        /// The name of the function's entry, which may be cut, or that of a resident function.
        function: Name,
        /// The identity that called it, or, without certificates, the client's number.
        caller: Name,
        /// Milliseconds since it began.
        running_ms: u64,
    }
}

wire_struct! {
    /// Calls of functions that have not ended at a node.
    RunningCalls {
        /// Number of them.
        count: u32,
        /// Those that have run longest, the longest first.
        calls: List<RunningCall, RUNNING_CALLS_MAX>,
    }
}

/// Why bytes are no function that can be used: the detail of [`crate::Code::BadFunction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum FunctionFault {
    /// Not valid, or it uses what is not permitted.
    Invalid = 1,
    /// It imports something.
    Imports = 2,
    /// It runs something when it is made.
    Starts = 3,
    /// It has not one memory for 32 bits, exported as `memory`.
    Memory = 4,
    /// Its memory has a maximum, or is shared.
    MemoryMaximum = 5,
    /// Its memory begins with more than is permitted.
    MemoryMinimum = 6,
    /// It does not export the entry.
    NoEntry = 7,
    /// The entry is of another type.
    EntryType = 8,
    /// It cannot be loaded here.
    NotLoaded = 9,
    /// It has more than `FUNCTION_ITEMS_MAX` of something.
    TooMany = 10,
    /// Compiling or loading it took longer than `FUNCTION_READY_MS_MAX`, or more memory than is permitted, or ended the
    /// process.
    NotReady = 11,
}

impl FunctionFault {
    /// All of them.
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

    /// What is wrong, as a sentence goes on behind "the function".
    pub fn reason(self) -> &'static str {
        match self {
            FunctionFault::Invalid => "is not valid, or uses what is not permitted",
            FunctionFault::Imports => "imports something; functions get nothing but their call record",
            FunctionFault::Starts => "has a start function; only its entry is run",
            FunctionFault::Memory => "must have one memory for 32-bit addresses, exported as \"memory\"",
            FunctionFault::MemoryMaximum => "declares a maximum of its memory, or shares it; declare none",
            FunctionFault::MemoryMinimum => "begins with more memory than is permitted",
            FunctionFault::NoEntry => "does not export the entry",
            FunctionFault::EntryType => "has an entry of another type than (i32) -> i64",
            FunctionFault::NotLoaded => "cannot be loaded there",
            FunctionFault::TooMany => {
                "has more than 10000 types, functions, tables, globals, exports or segments; split it"
            }
            FunctionFault::NotReady => {
                "could not be compiled or loaded within 10 s and the memory that is permitted; make it smaller, and its \
                 blocks less deeply nested"
            }
        }
    }
}
