//! Resident functions: Rust code that is built into a node, called by name over windows like shipped functions.
//!
//! The idea: a resident function runs in the node, on the thread of the connection that calls it, so a call costs no
//! more than any other request. Whoever builds the node trusts its functions, whoever calls them. A function sees
//! the window through [`ResidentCall`], which checks every access and asks the caller for bytes that lie elsewhere.

use crate::abi::Part;
use farpool_host::clock;
use farpool_transport::{HandedOver, Lane, Successor};
use farpool_wire::control::*;
use farpool_wire::frame::Header;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, MonoNs, Payload, Refusal, Reply, Request, TraceId};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Time in ms after which a caller that does not take its reply is disconnected.
const SEND_PATIENCE_MS: u64 = 30_000;

/// A function that is built into a node.
pub trait Resident: Send + Sync {
    /// Returns the name by which the function is called.
    fn name(&self) -> &str;
    /// Runs the function for one call, which gives access to arguments and window. The output is what it puts there.
    fn call(&self, call: &ResidentCall<'_>, output: &mut Output) -> Result<(), ResidentFailure>;
}

/// Reason why a resident function ended without an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidentFailure {
    /// The function gave up, with a code of its own of at least 1.
    GaveUp(u32),
    /// The call ended with this outcome and its detail, a number whose meaning depends on the outcome.
    By(Outcome, u64),
    /// The caller has closed its connection, so nobody is answered.
    Left,
}

/// Output of a resident function.
#[derive(Debug)]
pub struct Output {
    bytes: Vec<u8>,
    /// Largest permitted number of bytes.
    capacity: usize,
    /// Offset in the window of the byte at whose node the call continues; `None` if it ends here.
    hop: Option<u64>,
}

impl Output {
    /// Appends bytes. Stops the call with `OutputFull` if they do not fit.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), ResidentFailure> {
        if self.bytes.len() + bytes.len() > self.capacity {
            return Err(ResidentFailure::By(Outcome::OutputFull, self.capacity as u64));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Makes the call hop once the function returns: it continues at the node where this byte of the window lies, and
    /// finds there the bytes that were put here as its state.
    pub fn hop(&mut self, byte: u64) {
        self.hop = Some(byte);
    }
}

/// Bytes in memory of the node. The value keeps the memory alive.
pub type NodeBytes = Box<dyn AsRef<[u8]>>;
/// Function that returns the bytes of one part of a window; `None` if the memory was revoked.
pub type ReadPart = Box<dyn Fn() -> Option<NodeBytes> + Send>;

/// Window of a call lane: the range of bytes that the functions called on one connection see as their memory.
pub struct ResidentWindow {
    /// Size of the window in bytes.
    pub bytes: u64,
    /// Largest size of an output, in bytes.
    pub output_bytes: u32,
    /// Parts of the window that lie at this node, in order, each with the function that returns its bytes.
    pub parts: Vec<(Part, ReadPart)>,
    /// Function that reports whether no memory of the window was revoked.
    pub is_current: Box<dyn Fn() -> bool + Send>,
}

/// Arguments and window of a call of a resident function.
pub struct ResidentCall<'c> {
    window: &'c ResidentWindow,
    /// Bytes of each part of the window once this call has accessed it; `None` if it was revoked. They are kept alive
    /// no longer than the call runs.
    held: Vec<OnceCell<Option<NodeBytes>>>,
    /// Arguments of the call.
    pub args: &'c [u8],
    /// Encoded table that says where columns lie in the window; empty if there is none.
    pub columns: &'c [u8],
    /// State that the call had when it hopped here from another node; `None` if it has not hopped.
    pub state: Option<&'c [u8]>,
    /// Time at which the call must have ended.
    until: MonoNs,
    /// Time in ms that the caller has given the call.
    deadline_ms: u32,
    elsewhere: RefCell<Elsewhere<'c>>,
}

/// Connection to the caller, and the blocks of the window that it has supplied because they do not lie at this node.
struct Elsewhere<'c> {
    lane: &'c mut Lane,
    /// Header of the request that the next reply answers.
    asked: Header,
    /// Supplied blocks, by the offset in the window of their first byte.
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl ResidentCall<'_> {
    /// Returns the size of the window in bytes.
    pub fn window_bytes(&self) -> u64 {
        self.window.bytes
    }

    /// Returns the part of the window that contains a byte, and the part's index; `None` if the byte does not lie at
    /// this node.
    fn part(&self, at: u64) -> Option<(usize, Part)> {
        let after = self.window.parts.partition_point(|(part, _)| part.first <= at);
        let index = after.checked_sub(1)?;
        let (part, _) = self.window.parts.get(index)?;
        (at - part.first < part.bytes).then_some((index, *part))
    }

    /// Reports whether a byte of the window lies at this node.
    pub fn is_here(&self, at: u64) -> bool {
        self.part(at).is_some()
    }

    /// Returns the contiguous bytes of the window from `at` on that lie at this node, at most `most`. `None` if `at`
    /// lies at another node, or the memory was revoked.
    pub fn slice(&self, at: u64, most: usize) -> Option<&[u8]> {
        let (index, part) = self.part(at)?;
        let from = (at - part.first) as usize;
        let reach = || (self.window.parts[index].1)();
        let bytes: &[u8] = (**self.held.get(index)?.get_or_init(reach).as_ref()?).as_ref();
        bytes.get(from..bytes.len().min(from.saturating_add(most)))
    }

    /// Copies bytes of the window, wherever they lie. Stops the call with `OutOfBounds`, `NotSupplied` or `Left`.
    pub fn read(&self, mut at: u64, mut into: &mut [u8]) -> Result<(), ResidentFailure> {
        while !into.is_empty() {
            if at >= self.window.bytes {
                return Err(ResidentFailure::By(Outcome::OutOfBounds, at));
            }
            let count = match self.slice(at, into.len()) {
                Some(bytes) if !bytes.is_empty() => {
                    into[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                }
                _ => self.read_elsewhere(at, into)?,
            };
            at += count as u64;
            into = &mut into[count..];
        }
        Ok(())
    }

    /// Returns the integer at an offset of the window. Stops the call like [`Self::read`].
    pub fn u64_at(&self, at: u64) -> Result<u64, ResidentFailure> {
        if let Some(word) = self.slice(at, 8).and_then(|bytes| bytes.first_chunk()) {
            return Ok(u64::from_le_bytes(*word));
        }
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Checks whether the call may continue. Functions that may run long call it now and then. Stops the call with
    /// `Deadline` or `Revoked`.
    pub fn go_on(&self) -> Result<(), ResidentFailure> {
        if clock::now() > self.until {
            return Err(ResidentFailure::By(Outcome::Deadline, self.deadline_ms.into()));
        }
        if (self.window.is_current)() { Ok(()) } else { Err(ResidentFailure::By(Outcome::Revoked, 0)) }
    }

    /// Copies bytes of one block that does not lie at this node. Returns the number of bytes that were copied.
    fn read_elsewhere(&self, at: u64, into: &mut [u8]) -> Result<usize, ResidentFailure> {
        let first = at - at % FUNCTION_PIECE_BYTES as u64;
        let mut elsewhere = self.elsewhere.borrow_mut();
        if !elsewhere.pieces.contains_key(&first) {
            let bytes = elsewhere.ask(first)?;
            elsewhere.pieces.insert(first, bytes);
        }
        let piece = elsewhere.pieces.get(&first).map_or(&[][..], |piece| &piece[..]);
        let from = piece.get((at - first) as usize..).unwrap_or_default();
        if from.is_empty() {
            return Err(ResidentFailure::By(Outcome::NotSupplied, first));
        }
        // A block may contain bytes that also lie at this node. Both copies are equal.
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }
}

impl Elsewhere<'_> {
    /// Asks the caller for a block of the window.
    fn ask(&mut self, first: u64) -> Result<Vec<u8>, ResidentFailure> {
        let away = Called { outcome: Outcome::Away, detail: first, ..called() };
        answer(self.lane, &self.asked, away, clock::now()).map_err(|_| ResidentFailure::Left)?;
        match self.lane.take_request() {
            Ok(Some((header, Request::Supply(supply)))) if supply.at == first => {
                self.asked = header;
                Ok(supply.bytes.into_vec())
            }
            _ => Err(ResidentFailure::Left),
        }
    }
}

fn called() -> Called {
    Called {
        outcome: Outcome::Done,
        detail: 0,
        ran_ns: 0,
        output_bytes: 0,
        frames: List::default(),
        output: Payload::default(),
    }
}

/// Answers a call, or the request that supplied bytes to it.
fn answer(lane: &mut Lane, to: &Header, called: Called, now: MonoNs) -> io::Result<()> {
    let reply = match to.opcode {
        farpool_wire::Opcode::Supply => Reply::Supply(called),
        _ => Reply::CallFunction(called),
    };
    lane.reply(to, Ok(reply), now.plus_ms(SEND_PATIENCE_MS))
}

/// The call that runs on a lane of resident functions, for status reports.
#[derive(Debug, Default)]
pub struct ResidentNow {
    /// Time when the call began in ns; 0 if no call runs.
    begun_ns: AtomicU64,
    /// Index of the function that runs, among those of the node.
    function: AtomicUsize,
}

impl ResidentNow {
    /// Returns the index of the function that runs, and when the call began; `None` if no call runs.
    pub fn call(&self) -> Option<(usize, MonoNs)> {
        match self.begun_ns.load(Ordering::Acquire) {
            0 => None,
            begun_ns => Some((self.function.load(Ordering::Relaxed), MonoNs(begun_ns))),
        }
    }

    fn begin(&self, function: usize, begun: MonoNs) {
        self.function.store(function, Ordering::Relaxed);
        self.begun_ns.store(begun.0.max(1), Ordering::Release);
    }

    fn end(&self) {
        self.begun_ns.store(0, Ordering::Release);
    }
}

/// Receiver of calls of resident functions that have ended: the name of the function, the trace id, and the answer.
pub type EndedResident = Box<dyn Fn(&str, TraceId, &Called) + Send>;

/// A call lane (a connection on which functions are called over one window) of resident functions. It serves the
/// connection on the thread that calls `take`, until the connection ends.
pub struct ResidentLane {
    /// All resident functions of the node.
    pub functions: Arc<[Arc<dyn Resident>]>,
    /// Window of the lane.
    pub window: ResidentWindow,
    /// The call that runs, for status reports.
    pub now: Arc<ResidentNow>,
    /// Receiver of the calls that have ended: the name of the function, the trace id, and the answer.
    pub ended: EndedResident,
}

impl Successor for ResidentLane {
    fn take(self: Box<Self>, connection: HandedOver) -> io::Result<()> {
        let mut lane = Lane::over(connection.resume()?);
        let mut used: Vec<usize> = Vec::new();
        let mut columns = Vec::new();
        let mut output = Vec::new();
        while let Some((header, request)) = lane.take_request()? {
            let reply = match request {
                Request::UseFunction(wanted) => self.find(&wanted).map(|function| {
                    used.push(function);
                    Reply::UseFunction(FunctionUsed { number: used.len() as u32 - 1 })
                }),
                Request::PutFunction(put) => Err(Refusal::new(Code::NoFunctions, put.form as u64)),
                Request::PutColumns(put) => {
                    columns = put.columns.into_vec();
                    Ok(Reply::PutColumns(Done {}))
                }
                Request::NextOutput(next) => {
                    Ok(Reply::NextOutput(OutputPiece { output: piece(&output, next.from) }))
                }
                Request::CallFunction(call) => match used.get(call.number as usize) {
                    Some(index) => {
                        let begun = clock::now();
                        self.now.begin(*index, begun);
                        let called =
                            self.call(&mut lane, header, &*self.functions[*index], call, &columns, begun);
                        self.now.end();
                        match called {
                            Some((to, called, bytes)) => {
                                output = bytes;
                                let ended = MonoNs(begun.0.saturating_add(called.ran_ns));
                                (self.ended)(self.functions[*index].name(), header.trace, &called);
                                answer(&mut lane, &to, called, ended)?;
                            }
                            None => return Ok(()),
                        }
                        continue;
                    }
                    None => Err(Refusal::new(Code::NoSuchFunction, 0)),
                },
                other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
            };
            lane.reply(&header, reply, clock::now().plus_ms(SEND_PATIENCE_MS))?;
        }
        Ok(())
    }
}

/// Returns the bytes of an output from `from` on that fit one message.
pub fn piece(output: &[u8], from: u64) -> Payload<FUNCTION_OUTPUT_PIECE_BYTES> {
    let rest = usize::try_from(from).ok().and_then(|from| output.get(from..)).unwrap_or_default();
    let piece = rest[..rest.len().min(FUNCTION_OUTPUT_PIECE_BYTES)].to_vec();
    Payload::new(piece).unwrap_or_default()
}

impl ResidentLane {
    fn find(&self, wanted: &UseFunction) -> Result<usize, Refusal> {
        if wanted.form != FunctionForm::Resident {
            return Err(Refusal::new(Code::NoFunctions, wanted.form as u64));
        }
        let found = self.functions.iter().position(|function| *function.name() == *wanted.entry);
        found.ok_or(Refusal::new(Code::NoSuchFunction, 0))
    }

    /// Runs a function. Returns the header to answer, the answer and the output; `None` if the caller has left.
    fn call(
        &self,
        lane: &mut Lane,
        asked: Header,
        function: &dyn Resident,
        call: CallFunction,
        columns: &[u8],
        begun: MonoNs,
    ) -> Option<(Header, Called, Vec<u8>)> {
        let mut output = Output { bytes: Vec::new(), capacity: self.window.output_bytes as usize, hop: None };
        let call = ResidentCall {
            window: &self.window,
            held: (0..self.window.parts.len()).map(|_| OnceCell::new()).collect(),
            args: &call.args,
            columns,
            state: call.goes_on.then_some(&call.state[..]),
            until: begun.plus_ms(call.deadline_ms.into()),
            deadline_ms: call.deadline_ms,
            elsewhere: RefCell::new(Elsewhere { lane, asked, pieces: BTreeMap::new() }),
        };
        let result = catch_unwind(AssertUnwindSafe(|| function.call(&call, &mut output)));
        let to = call.elsewhere.into_inner().asked;
        let is_current = (self.window.is_current)();
        let (outcome, detail) = match result {
            _ if !is_current => (Outcome::Revoked, 0),
            Ok(Ok(())) => match output.hop {
                None => (Outcome::Done, 0),
                Some(byte) if byte < self.window.bytes && output.bytes.len() <= FUNCTION_STATE_BYTES_MAX => {
                    (Outcome::Hop, byte)
                }
                Some(byte) => (Outcome::Contract, byte),
            },
            Ok(Err(ResidentFailure::GaveUp(code))) => (Outcome::GaveUp, code.max(1).into()),
            Ok(Err(ResidentFailure::By(outcome, detail))) => (outcome, detail),
            Ok(Err(ResidentFailure::Left)) => return None,
            Err(_) => (Outcome::Unreachable, 0),
        };
        let bytes = if matches!(outcome, Outcome::Done | Outcome::Hop) { output.bytes } else { Vec::new() };
        let ran_ns = clock::now().0.saturating_sub(begun.0);
        let output = piece(&bytes, 0);
        let output_bytes = bytes.len() as u64;
        Some((to, Called { outcome, detail, ran_ns, output_bytes, output, ..called() }, bytes))
    }
}

/// Decodes arguments that consist of 64-bit integers only; `None` if they are not exactly `N`.
pub fn words<const N: usize>(args: &[u8]) -> Option<[u64; N]> {
    let (chunks, rest) = args.as_chunks::<8>();
    let words: [[u8; 8]; N] = chunks.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_le_bytes))
}
