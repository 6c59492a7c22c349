//! A call lane: a connection on which one caller calls functions over one window (a range of far memory that they see
//! as theirs). It receives requests, runs functions and sends replies, on a thread of its own.

use crate::Process;
use crate::engines::{Compiled, check_entry};
use crate::faults::{self, HandlerStack, Noted, ThreadCall};
use crate::fences::Fences;
use crate::module::Interruption;
use crate::native::{Entry, check_signature};
use crate::space::{AddressSpace, GROWTH_REFUSED, Layout};
use crate::watched::{Interrupted, Watched};
use farpool_functions::abi::*;
use farpool_functions::setup::LaneSetup;
use farpool_functions::status::Activity;
use farpool_host::clock;
use farpool_lock::Mutex;
use farpool_transport::Lane;
use farpool_wire::control::*;
use farpool_wire::frame::Header;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, MonoNs, Opcode, Payload, Refusal, Reply, Request};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use wasmtime::{ModuleExport, Store, Trap, TypedFunc, UpdateDeadline, WasmBacktrace};

/// Time in ms after which a caller that does not take its reply is disconnected.
const SEND_PATIENCE_MS: u64 = 30_000;
/// Largest number of modules that a lane keeps instantiated for later calls. Each has its own mapping of the window.
const WARM_MAX: usize = 8;
/// Largest number of functions that a lane keeps numbers for.
const FUNCTIONS_MAX: usize = 4_096;
/// Address in a function's space of the tables behind the call record (parts of the window, columns).
const TABLES_AT: u64 = CALL_AT + 256;

/// A function to which this lane has given a number, by which its caller calls it.
enum Function {
    Module { compiled: Compiled, entry: ModuleExport, warm: Option<Warm> },
    Native(Entry),
}

/// A module that is instantiated and ready to be called.
struct Warm {
    store: Store<()>,
    entry: TypedFunc<i32, i64>,
    space: Arc<AddressSpace>,
    /// Number of the last call that used this instance; 0 if none has.
    used: u64,
}

impl Warm {
    /// Drops the instance and returns its address space.
    fn into_space(self) -> Arc<AddressSpace> {
        // The module is dropped first, because it lives in the space.
        drop(self.store);
        self.space
    }
}

/// End of a call: header of the request that is answered, the answer, and the time of the end.
struct End {
    of: Header,
    called: Called,
    at: MonoNs,
}

impl End {
    /// Makes the end of a call that failed before it began.
    fn before(of: Header, called: Called) -> End {
        End { of, called, at: clock::now() }
    }
}

/// State of a lane, the connection on which one caller calls functions.
struct Serving<'p> {
    process: &'p Process,
    watched: Arc<Watched>,
    functions: Vec<Function>,
    /// Entry names of `functions`, in the same order.
    names: Vec<String>,
    /// Number of calls of modules so far.
    calls: u64,
    /// Instance whose heap the next call must not see, and the index of its function. It is replaced after the answer
    /// was sent.
    left: Option<(usize, Warm)>,
    /// Address spaces without a module.
    spare: Vec<Arc<AddressSpace>>,
    /// Address space for native functions; `None` before the first one is called.
    space: Option<Arc<AddressSpace>>,
    /// Encoded table of the window's parts that lie at this node.
    parts: Vec<u8>,
    /// Encoded table of columns that the caller has sent; empty if it has sent none.
    columns: Vec<u8>,
    /// Blocks of the window that lie at other nodes and that the caller has sent: the offset in the window of the first
    /// byte of each.
    supplied: RefCell<BTreeSet<u64>>,
    /// Address space with the last call's output, and the size of that output in bytes.
    output: Option<(Arc<AddressSpace>, usize)>,
}

/// Serves a lane until its caller leaves.
pub fn serve(process: &Process, setup: LaneSetup) -> io::Result<()> {
    let slot = setup.slot as usize;
    let served = serve_until_left(process, setup);
    process.status.set(slot, Activity::Ended);
    served
}

fn serve_until_left(process: &Process, setup: LaneSetup) -> io::Result<()> {
    let _stack = HandlerStack::new()?;
    let LaneSetup { slot, connection, mut window } = setup;
    let fences = Fences::new(window.words.as_ref(), std::mem::take(&mut window.fences))?;
    let socket = connection.descriptors().first().ok_or(io::ErrorKind::InvalidData)?.try_clone_to_owned()?;
    let supplied = memfd_create("farpool-supplied", MemfdFlags::CLOEXEC)?;
    ftruncate(&supplied, window.window_bytes.next_multiple_of(FUNCTION_PIECE_BYTES as u64))?;
    let parts: Vec<Part> = window.ranges.iter().map(|range| range.part).collect();
    let bases = Mutex::new(Some(Vec::new()));
    let layout = Arc::new(Layout { window, supplied, heap_bytes: process.heap_bytes as usize, bases });
    let watched = Arc::new(Watched::new(slot as usize, layout, fences, socket));
    process.lanes.open(Arc::clone(&watched));
    let mut serving = Serving {
        process,
        watched: Arc::clone(&watched),
        functions: Vec::new(),
        names: Vec::new(),
        calls: 0,
        left: None,
        spare: Vec::new(),
        space: None,
        parts: encode_parts(&parts),
        columns: Vec::new(),
        supplied: RefCell::default(),
        output: None,
    };
    // Maps the window before the first call, so that no call has to wait for it.
    let prepared = serving.new_space();
    let served = prepared.and_then(|space| {
        serving.spare.push(space);
        serving.serve(&mut Lane::over(connection.resume()?))
    });
    process.lanes.close(&watched);
    served
}

fn bad(fault: FunctionFault) -> Refusal {
    Refusal::new(Code::BadFunction, fault as u64)
}

fn called(outcome: Outcome, detail: u64) -> Called {
    Called {
        outcome,
        detail,
        ran_ns: 0,
        output_bytes: 0,
        frames: List::default(),
        output: Payload::default(),
    }
}

fn send(lane: &mut Lane, to: &Header, answer: Result<Reply, Refusal>, now: MonoNs) -> io::Result<()> {
    lane.reply(to, answer, now.plus_ms(SEND_PATIENCE_MS))
}

fn send_called(lane: &mut Lane, to: &Header, called: Called, now: MonoNs) -> io::Result<()> {
    let reply = if to.opcode == Opcode::Supply { Reply::Supply(called) } else { Reply::CallFunction(called) };
    send(lane, to, Ok(reply), now)
}

impl Serving<'_> {
    fn serve(&mut self, lane: &mut Lane) -> io::Result<()> {
        let status = &self.process.status;
        let slot = self.watched.slot;
        status.set(slot, Activity::Waiting);
        while let Some((header, request)) = lane.take_request()? {
            status.set_trace(slot, header.trace);
            status.set(slot, Activity::Busy);
            let answer = match request {
                Request::CallFunction(call) if (call.number as usize) < self.functions.len() => {
                    let Some(End { of, called, at }) = self.call(lane, header, call) else { return Ok(()) };
                    status.set(slot, Activity::Busy);
                    send_called(lane, &of, called, at)?;
                    status.set(slot, Activity::Waiting);
                    self.renew();
                    continue;
                }
                Request::CallFunction(_) => Err(Refusal::new(Code::NoSuchFunction, 0)),
                Request::UseFunction(wanted) => self.use_function(&wanted).map(Reply::UseFunction),
                Request::PutFunction(put) => {
                    // A compiler cannot be interrupted, and neither can an object's constructors. The node ends the
                    // process if they take too long.
                    self.watched.set_interruption(Interruption::Outside);
                    let (request_id, opcode) = (header.request_id, header.opcode as u16);
                    let until_ns = clock::now().plus_ms(FUNCTION_READY_MS_MAX.into()).0;
                    let deadline_ms = FUNCTION_READY_MS_MAX;
                    status.set(slot, Activity::Running { request_id, opcode, until_ns, deadline_ms });
                    let answer = self.put_function(&put).map(Reply::PutFunction);
                    status.set(slot, Activity::Waiting);
                    answer
                }
                Request::PutColumns(put) => {
                    self.columns = put.columns.into_vec();
                    Ok(Reply::PutColumns(Done {}))
                }
                Request::NextOutput(next) => self.next_output(next.from).map(Reply::NextOutput),
                other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
            };
            send(lane, &header, answer, clock::now())?;
            status.set(slot, Activity::Waiting);
        }
        Ok(())
    }

    fn numbered(&mut self, entry: &str, function: Function) -> Result<FunctionUsed, Refusal> {
        if self.functions.len() >= FUNCTIONS_MAX {
            return Err(Refusal::new(Code::LimitReached, FUNCTIONS_MAX as u64));
        }
        self.functions.push(function);
        self.names.push(entry.to_owned());
        Ok(FunctionUsed { number: self.functions.len() as u32 - 1 })
    }

    fn module(&mut self, compiled: Compiled, entry: &str) -> Result<FunctionUsed, Refusal> {
        check_entry(&compiled, entry).map_err(bad)?;
        let export =
            compiled.instances.module().get_export_index(entry).ok_or(bad(FunctionFault::NoEntry))?;
        self.numbered(entry, Function::Module { compiled, entry: export, warm: None })
    }

    fn use_function(&mut self, wanted: &UseFunction) -> Result<FunctionUsed, Refusal> {
        let unknown = Refusal::new(Code::NoSuchFunction, 0);
        match wanted.form {
            FunctionForm::Wasm => {
                // A module of the cache may be from a time when signatures were not asked for.
                let cache = self.process.cache.as_ref().filter(|_| !self.process.signed_alone);
                let known = self.process.engines.known(&wanted.digest, cache);
                self.module(known.ok_or(unknown)?, &wanted.entry)
            }
            FunctionForm::Native => {
                let entry = self.process.objects.entry(&wanted.digest, &wanted.entry).ok_or(unknown)?;
                self.numbered(&wanted.entry, Function::Native(entry.map_err(bad)?))
            }
            FunctionForm::Resident => Err(Refusal::new(Code::NoFunctions, wanted.form as u64)),
        }
    }

    fn put_function(&mut self, put: &PutFunction) -> Result<FunctionUsed, Refusal> {
        let process = self.process;
        match put.form {
            FunctionForm::Wasm => {
                if process.signed_alone {
                    check_signature(&digest(&put.bytes), put.signature.first(), &process.keys)?;
                }
                let cache = process.cache.as_ref();
                let compiled = process.engines.module(&put.bytes, process.heap_bytes, cache).map_err(bad)?;
                self.module(compiled, &put.entry)
            }
            FunctionForm::Native => {
                if process.keys.is_empty() {
                    return Err(Refusal::new(Code::NoFunctions, put.form as u64));
                }
                let hash = digest(&put.bytes);
                check_signature(&hash, put.signature.first(), &process.keys)?;
                process.objects.load(&hash, &put.bytes).map_err(bad)?;
                let entry = process.objects.entry(&hash, &put.entry).ok_or(bad(FunctionFault::NotLoaded))?;
                self.numbered(&put.entry, Function::Native(entry.map_err(bad)?))
            }
            FunctionForm::Resident => Err(Refusal::new(Code::NoFunctions, put.form as u64)),
        }
    }

    fn next_output(&self, from: u64) -> Result<OutputPiece, Refusal> {
        let Some((space, bytes)) = &self.output else {
            return Ok(OutputPiece { output: Payload::default() });
        };
        let output = output_piece(space, usize::try_from(from).unwrap_or(usize::MAX), *bytes);
        match self.watched.is_current() {
            true => Ok(OutputPiece { output }),
            false => Err(Refusal::new(Code::StaleEpoch, 0)),
        }
    }

    fn new_space(&self) -> io::Result<Arc<AddressSpace>> {
        Ok(Arc::new(AddressSpace::new(Arc::clone(&self.watched.layout))?))
    }

    fn spare_space(&mut self) -> io::Result<Arc<AddressSpace>> {
        match self.spare.pop() {
            Some(space) => Ok(space),
            None => self.new_space(),
        }
    }

    /// Instantiates a module, and reuses the address space of its former instance. If there is none and the lane has
    /// [`WARM_MAX`] instances, drops the one that was used least recently and takes its space.
    fn warm_anew(
        &mut self,
        former: Option<Warm>,
        compiled: &Compiled,
        entry: &ModuleExport,
    ) -> wasmtime::Result<Warm> {
        self.spare.extend(former.map(Warm::into_space));
        let warm = |function: &Function| match function {
            Function::Module { warm: Some(warm), .. } => Some(warm.used),
            _ => None,
        };
        if self.spare.is_empty() && self.functions.iter().filter_map(warm).count() >= WARM_MAX {
            let least = self.functions.iter_mut().filter(|function| warm(function).is_some());
            if let Some(Function::Module { warm: ready, .. }) = least.min_by_key(|function| warm(function)) {
                self.spare.extend(ready.take().map(Warm::into_space));
            }
        }
        self.warm(compiled, entry)
    }

    /// Replaces the instance whose heap the next call must not see, while the caller reads the answer.
    fn renew(&mut self) {
        let Some((index, left)) = self.left.take() else { return };
        let Some(Function::Module { compiled, entry, .. }) = self.functions.get(index) else { return };
        let (compiled, entry) = (compiled.clone(), *entry);
        let renewed = self.warm_anew(Some(left), &compiled, &entry).ok();
        if let Some(Function::Module { warm, .. }) = self.functions.get_mut(index) {
            *warm = renewed;
        }
    }

    /// Instantiates a module in a spare or a new address space.
    fn warm(&mut self, compiled: &Compiled, entry: &ModuleExport) -> wasmtime::Result<Warm> {
        let space = self.spare_space()?;
        Arc::clone(&space).offer();
        let mut store = Store::new(compiled.instances.module().engine(), ());
        if compiled.interruption == Interruption::Inside {
            let watched = Arc::clone(&self.watched);
            store.epoch_deadline_callback(move |_| match watched.go_on() {
                Ok(()) => Ok(UpdateDeadline::Continue(1)),
                Err(interrupted) => Err(wasmtime::Error::new(interrupted)),
            });
            store.set_epoch_deadline(1);
        }
        let instance = compiled.instances.instantiate(&mut store)?;
        let function = instance.get_module_export(&mut store, entry).and_then(|export| export.into_func());
        let function = function.ok_or_else(|| wasmtime::Error::msg("the entry function is missing"))?;
        let entry = function.typed(&store)?;
        Ok(Warm { store, entry, space, used: 0 })
    }

    /// Writes the call record (which tells the function where its window, arguments and output lie) and its tables.
    /// `None` if they do not fit the call area.
    fn put_record(&self, space: &AddressSpace, base: u64, call: &CallFunction) -> Option<()> {
        let layout = space.layout();
        let mut at = TABLES_AT;
        let mut place = |bytes: &[u8], count: u64| {
            let begins = at;
            at = (at + bytes.len() as u64).next_multiple_of(16);
            if at > OUTPUT_AT {
                return None;
            }
            space.put(begins, bytes);
            Some(AddressRange { address: if count == 0 { 0 } else { base + begins }, count })
        };
        let parts = place(&self.parts, (self.parts.len() / PART_BYTES) as u64)?;
        let columns = place(&self.columns, self.columns.len() as u64)?;
        let args = place(&call.args, call.args.len() as u64)?;
        let state = place(&call.state, call.state.len() as u64)?;
        let window = AddressRange { address: base + WINDOW_AT, count: layout.window.window_bytes };
        let output = AddressRange { address: base + OUTPUT_AT, count: layout.window.output_bytes.into() };
        let record = CallRecord { goes_on: call.goes_on, window, args, output, columns, parts, state };
        space.put(CALL_AT, &record.encode());
        Some(())
    }

    /// Calls a function that this lane has given a number. `None` if the caller has left, or no instance can be made.
    fn call(&mut self, lane: &mut Lane, of: Header, call: CallFunction) -> Option<End> {
        self.output = None;
        let index = call.number as usize;
        let function = self.functions.get_mut(index)?;
        match function {
            Function::Native(entry) => {
                let entry = *entry;
                let Ok(space) = self.space.take().map_or_else(|| self.new_space(), Ok) else {
                    return Some(End::before(of, called(Outcome::MemoryFull, 0)));
                };
                let base = space.base() as u64;
                self.watched.set_interruption(Interruption::Outside);
                let result = self.run(lane, of, &call, &space, base, false, || Ok(entry.call(&space)));
                self.space = Some(space);
                result
            }
            Function::Module { compiled, entry, warm } => {
                let (compiled, entry) = (compiled.clone(), *entry);
                GROWTH_REFUSED.set(false);
                let mut ready = match warm.take() {
                    Some(ready) if !call.fresh || ready.used == 0 => ready,
                    other => match self.warm_anew(other, &compiled, &entry) {
                        Ok(ready) => ready,
                        Err(_) if GROWTH_REFUSED.get() => {
                            let full = called(Outcome::MemoryFull, self.process.heap_bytes);
                            return Some(End::before(of, full));
                        }
                        // Its data or table do not fit.
                        Err(error) if error.is::<Trap>() => {
                            return Some(End::before(of, called(Outcome::OutOfBounds, 0)));
                        }
                        Err(error) => {
                            // The function is not to blame. Its caller tries again, over another lane.
                            eprintln!("farpool-sandbox: a module cannot be instantiated: {error:#}");
                            return None;
                        }
                    },
                };
                self.watched.set_interruption(compiled.interruption);
                if compiled.interruption == Interruption::Inside {
                    ready.store.set_epoch_deadline(1);
                }
                self.calls += 1;
                let used = self.calls;
                let Warm { mut store, entry, space, .. } = ready;
                let result =
                    self.run(lane, of, &call, &space, 0, true, || entry.call(&mut store, CALL_AT as i32));
                // The heap may contain anything after a fault, so the instance is used no more.
                let is_whole = result.as_ref().is_some_and(|end| {
                    matches!(end.called.outcome, Outcome::Done | Outcome::GaveUp | Outcome::Hop)
                });
                if call.fresh || !is_whole {
                    self.left = Some((index, Warm { store, entry, space, used }));
                } else if let Some(Function::Module { warm, .. }) = self.functions.get_mut(index) {
                    *warm = Some(Warm { store, entry, space, used });
                }
                result
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn run(
        &mut self,
        lane: &mut Lane,
        header: Header,
        call: &CallFunction,
        space: &Arc<AddressSpace>,
        base: u64,
        is_module: bool,
        run: impl FnOnce() -> wasmtime::Result<i64>,
    ) -> Option<End> {
        if self.put_record(space, base, call).is_none() {
            return Some(End::before(header, called(Outcome::Contract, 0)));
        }
        let status = &self.process.status;
        let (slot, watched) = (self.watched.slot, &self.watched);
        let begun = clock::now();
        let name = self.names.get(call.number as usize).map_or("", String::as_str);
        let _under_way = status.under_way(slot, name, begun);
        let until = Cell::new(begun.plus_ms(call.deadline_ms.into()));
        let asked = Cell::new(header);
        let begin = || {
            let (header, until_ns) = (asked.get(), until.get().0);
            watched.set_until(until_ns, call.deadline_ms);
            let (request_id, opcode) = (header.request_id, header.opcode as u16);
            let until_ns = watched.killed_at(until_ns);
            status
                .set(slot, Activity::Running { request_id, opcode, until_ns, deadline_ms: call.deadline_ms });
        };
        let has_left = Cell::new(false);
        let lane = RefCell::new(lane);
        let supply = |first: u64| {
            if self.supplied.borrow().contains(&first) {
                return true;
            }
            let paused = clock::now();
            status.set(slot, Activity::Busy);
            let lane = &mut *lane.borrow_mut();
            let got = send_called(lane, &asked.get(), called(Outcome::Away, first), paused)
                .and_then(|()| lane.take_request());
            let Ok(Some((header, Request::Supply(supply)))) = got else {
                has_left.set(true);
                return false;
            };
            asked.set(header);
            // The time that was spent waiting for the caller's bytes does not count against the deadline.
            until.set(MonoNs(until.get().0 + (clock::now().0 - paused.0)));
            begin();
            supply.at == first && self.keep_supplied(space, first, &supply.bytes)
        };
        let noted = Noted::default();
        GROWTH_REFUSED.set(false);
        begin();
        let result = faults::during(&ThreadCall { space, is_module, supply: &supply, noted: &noted }, run);
        let at = clock::now();
        let ran_ns = at.0.saturating_sub(begun.0);
        status.set(slot, Activity::Busy);
        if has_left.get() {
            return None;
        }
        if noted.not_supplied.get().is_some() {
            space.forget_supplied();
            self.supplied.borrow_mut().clear();
        }
        let mut called = self.outcome(space, result, &noted);
        called.ran_ns = ran_ns;
        if matches!(called.outcome, Outcome::Done | Outcome::Hop) {
            let bytes = called.output_bytes as usize;
            called.output = output_piece(space, 0, bytes);
            self.output = Some((Arc::clone(space), bytes));
        }
        // Checks that the window was not revoked, after the output was copied and before any of it leaves the process.
        if !self.watched.is_current() || noted.is_void.get() {
            self.output = None;
            called = Called { ran_ns, ..self::called(Outcome::Revoked, 0) };
        }
        Some(End { of: asked.get(), called, at })
    }

    /// Stores a block of the window that the caller has sent in the file from which `AddressSpace::map_supplied` maps
    /// it. First drops all earlier blocks if together they would be larger than a heap may be. Returns false if the
    /// block has the wrong size or cannot be stored.
    fn keep_supplied(&self, space: &AddressSpace, first: u64, bytes: &[u8]) -> bool {
        let window_bytes = space.layout().window.window_bytes;
        let wanted = window_bytes.saturating_sub(first).min(FUNCTION_PIECE_BYTES as u64);
        if bytes.is_empty() || bytes.len() as u64 != wanted {
            return false;
        }
        let mut supplied = self.supplied.borrow_mut();
        let file = &space.layout().supplied;
        if (supplied.len() + 1) * FUNCTION_PIECE_BYTES > space.layout().heap_bytes {
            space.forget_supplied();
            supplied.clear();
            let whole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(file, whole, 0, window_bytes).is_err() {
                return false;
            }
        }
        let written = rustix::io::pwrite(file, bytes, first);
        supplied.insert(first);
        written == Ok(bytes.len())
    }

    /// Returns the outcome of a call, from the value that the function returned or the reason why it stopped.
    fn outcome(&self, space: &AddressSpace, result: wasmtime::Result<i64>, noted: &Noted) -> Called {
        let window = &space.layout().window;
        let error = match result {
            Ok(value) => {
                let hop = space.word(CALL_AT + HOP_AT as u64);
                return match (
                    noted.not_supplied.get(),
                    returned(value, hop, window.output_bytes.into(), window.window_bytes),
                ) {
                    (Some(first), _) => called(Outcome::NotSupplied, first),
                    (None, Returned::Output(bytes)) => {
                        Called { output_bytes: bytes, ..called(Outcome::Done, 0) }
                    }
                    (None, Returned::GaveUp(code)) => called(Outcome::GaveUp, code),
                    (None, Returned::Hop(bytes, byte)) => {
                        Called { output_bytes: bytes, ..called(Outcome::Hop, byte) }
                    }
                    (None, Returned::Broken(value)) => called(Outcome::Contract, value as u64),
                };
            }
            Err(error) => error,
        };
        let mut ended = match (error.downcast_ref::<Interrupted>(), error.downcast_ref::<Trap>()) {
            (Some(Interrupted(outcome, detail)), _) => called(*outcome, *detail),
            (None, Some(trap)) => self.fault(space, *trap, noted),
            (None, None) => called(Outcome::Contract, 0),
        };
        if GROWTH_REFUSED.get() && matches!(ended.outcome, Outcome::OutOfBounds | Outcome::Unreachable) {
            ended = called(Outcome::MemoryFull, self.process.heap_bytes);
        }
        if let Some(trace) = error.downcast_ref::<WasmBacktrace>() {
            let frame = |frame: &wasmtime::FrameInfo| FunctionFrame {
                function: frame.func_index(),
                offset: frame.module_offset().unwrap_or(0) as u32,
            };
            ended.frames = List::new(trace.frames().iter().take(FUNCTION_FRAMES_MAX).map(frame).collect())
                .unwrap_or_default();
        }
        ended
    }

    fn fault(&self, space: &AddressSpace, trap: Trap, noted: &Noted) -> Called {
        match trap {
            Trap::MemoryOutOfBounds => {
                let window = &space.layout().window;
                if let Some(first) = noted.not_supplied.get() {
                    return called(Outcome::NotSupplied, first);
                }
                let Some((address, is_store)) = noted.fault.get() else {
                    return called(Outcome::OutOfBounds, 0);
                };
                let at = space.address_of(address).unwrap_or(0);
                let output_end = OUTPUT_AT + u64::from(window.output_bytes);
                match space.window_byte(address) {
                    Some(byte) if is_store => called(Outcome::ReadOnly, byte),
                    None if (output_end..WINDOW_AT).contains(&at) && is_store => {
                        called(Outcome::OutputFull, window.output_bytes.into())
                    }
                    _ => called(Outcome::OutOfBounds, at),
                }
            }
            Trap::StackOverflow => called(Outcome::StackOverflow, 0),
            Trap::UnreachableCodeReached => called(Outcome::Unreachable, 0),
            Trap::IntegerOverflow | Trap::IntegerDivisionByZero | Trap::BadConversionToInteger => {
                called(Outcome::Arithmetic, 0)
            }
            Trap::IndirectCallToNull | Trap::BadSignature | Trap::TableOutOfBounds => {
                called(Outcome::BadCall, 0)
            }
            _ => called(Outcome::OutOfBounds, 0),
        }
    }
}

/// Returns the bytes of an output from `from` on that fit one message.
fn output_piece(space: &AddressSpace, from: usize, bytes: usize) -> Payload<FUNCTION_OUTPUT_PIECE_BYTES> {
    let from = from.min(bytes);
    let end = bytes.min(from.saturating_add(FUNCTION_OUTPUT_PIECE_BYTES));
    Payload::new(space.output(from..end)).unwrap_or_default()
}
