//! Calls of functions over the window of a file, at nodes or on the client.

use crate::Function;
use crate::call::{Call, CallOptions, Called};
use crate::here::{Fetched, LocalSandboxes};
use crate::lanes::{OpenLane, Requests, Side, unexpected};
use crate::lists::GroupSelection;
use crate::observed::Observed;
use crate::places::{Locations, nowhere};
use crate::station::Station;
use crate::stopped::stopped;
use farpool_files::beneath::{Session, session_of};
use farpool_files::{Error, ErrorKind, FarFile, ReadRange};
use farpool_lock::Mutex;
use farpool_planner::Way;
use farpool_transport::LinkError;
use farpool_wire::control::{CallFunction, Called as WireCalled, NextOutput, Outcome, PutColumns, Supply};
use farpool_wire::limits::*;
use farpool_wire::{Bytes, List, NodeId, Reply, Request, TraceId, WireError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Largest number of idle call lanes that are kept for one node and kind of function. A lane is a connection on which
/// functions are called.
const IDLE_LANES_MAX: usize = 8;
/// Number of new call lanes of one call that may break before the call fails.
const BROKEN_LANES_MAX: u32 = 2;
/// Largest number of blocks that one call may load from elsewhere: 64 GiB, some of them more than once.
const SUPPLIED_MAX: u32 = 1 << 20;
/// Bytes after which a fetch is long enough to measure the rate.
const MEASURED_BYTES_MIN: u64 = 1 << 20;
/// Largest number of hops of a call. A function hops when it asks to go on at the node that holds another byte.
const HOPS_MAX: u32 = 1 << 20;

/// Options of a [`Caller`].
#[derive(Clone, Debug)]
pub struct CallerOptions {
    /// Bytes of the file that are the window, at most 3 GiB. Default: the whole file.
    pub range: Option<Range<u64>>,
    /// Largest size of an output in bytes, up to 240 MiB. Default: 16 MiB.
    pub output_bytes: u32,
}

impl Default for CallerOptions {
    fn default() -> CallerOptions {
        CallerOptions { range: None, output_bytes: 16 << 20 }
    }
}

/// Columns of a table that functions find in a window, in which the table's row groups lie.
pub trait Columns: Send + Sync {
    /// Returns the range of the window that each row group takes.
    fn groups(&self) -> Vec<Range<u64>>;

    /// Returns the table of columns (`spec/function.md`), with the row groups for whose index `is_listed` returns
    /// true.
    fn encode(&self, is_listed: &dyn Fn(usize) -> bool) -> Result<Vec<u8>, Error>;
}

/// Caller of functions over a published file. Many threads may use it at once; each call takes a lane of its own.
///
/// A caller is made with [`Caller::over`], and for tables with [`Caller::with_columns`] after it. `window_bytes` and
/// `nodes` describe the window. `explain` and `explain_each` say what a call would do, and send nothing. `call` runs
/// a function once; `call_each` runs it once for each part of a table. Calls may be made in any order. A call locks
/// the list of idle lanes and the locations only to look at them, and holds no lock while it waits for a node. While
/// the window is fetched, the lock of its blocks is held, so that two threads do not fetch the same ones.
pub struct Caller {
    pub(crate) session: Arc<Session>,
    /// Sandbox processes on the client's machine.
    pub(crate) here: Arc<LocalSandboxes>,
    pub(crate) observed: Arc<Observed>,
    pub(crate) file: FarFile,
    /// Range of the file that is the window, in bytes.
    pub(crate) range: Range<u64>,
    output_bytes: u32,
    /// Columns that functions find in the window. `None` if the window is not a table.
    pub(crate) columns: Option<Box<dyn Columns>>,
    /// Ranges of the table's row groups in the window; empty if the window is not a table.
    pub(crate) groups: Vec<Range<u64>>,
    /// Nodes that hold the bytes of the window.
    pub(crate) places: Mutex<Arc<Locations>>,
    /// Open lanes that no call uses.
    pub(crate) idle: Mutex<BTreeMap<LaneKey, Vec<OpenLane>>>,
    /// Bytes of the window that were fetched for calls on the client. Empty until the first such call.
    fetched: OnceLock<Fetched>,
    /// Number of calls so far.
    pub(crate) calls: AtomicU64,
    /// True once a call has hopped. Later ones use lanes on which calls hop by themselves.
    has_hopped: AtomicBool,
    /// Number of calls that were made a second time because they took long.
    pub(crate) hedges: AtomicU64,
    /// Where the bytes of the window are without a node that took long.
    pub(crate) elsewhere: Mutex<BTreeMap<NodeId, Arc<Locations>>>,
    /// Trace id of the calls. With [`TraceId::NONE`] each call draws its own.
    trace: TraceId,
}

/// Number of the locations that a lane was opened for, its node, `None` for the client, the kind of lane, and whether
/// calls go on at other nodes by themselves.
type LaneKey = (u64, Option<NodeId>, Side, bool);

/// How a call ended at one place, its output, the number of hops that it made by itself, and the name of the node at
/// which it ended if that is another one.
type Ended = (WireCalled, Vec<u8>, (u32, Option<String>));

impl Caller {
    /// Makes a caller over a file, which must be published.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the file is not published, if the range does not lie in it, begins at a byte
    /// that is not a multiple of 64 KiB or is too large, or if the output would be too large.
    pub fn over(file: &FarFile, options: CallerOptions) -> Result<Caller, Error> {
        let during = |error: Error| error.during(format_args!("functions over far file {:?}", file.name()));
        let invalid = |message: String| Err(during(Error::new(ErrorKind::Invalid, message)));
        let length = file.length();
        let range = options.range.unwrap_or(0..length);
        if range.start >= range.end || range.end > length {
            return invalid(format!("the window {range:?} does not lie in the file of {length} bytes"));
        }
        if range.end - range.start > WINDOW_BYTES_MAX {
            let bytes = range.end - range.start;
            return invalid(format!(
                "the window has {bytes} bytes; at most {WINDOW_BYTES_MAX} are permitted: call functions over \
                 ranges of the file"
            ));
        }
        if !range.start.is_multiple_of(FUNCTION_PIECE_BYTES as u64) {
            let start = range.start;
            return invalid(format!(
                "the window begins at byte {start}; it must begin at a multiple of 65536"
            ));
        }
        if options.output_bytes > FUNCTION_OUTPUT_BYTES_MAX {
            let bytes = options.output_bytes;
            return invalid(format!(
                "the output has {bytes} bytes; at most {FUNCTION_OUTPUT_BYTES_MAX} are permitted"
            ));
        }
        let places = Locations::of(file, range.clone(), &[]).map_err(during)?;
        let session = Arc::clone(session_of(file));
        Ok(Caller {
            here: session.kept(),
            observed: Observed::of(&session),
            session,
            file: file.clone(),
            range,
            output_bytes: options.output_bytes,
            columns: None,
            groups: Vec::new(),
            places: Mutex::new(Arc::new(places)),
            idle: Mutex::default(),
            fetched: OnceLock::new(),
            calls: AtomicU64::new(0),
            has_hopped: AtomicBool::new(false),
            hedges: AtomicU64::new(0),
            elsewhere: Mutex::default(),
            trace: TraceId::NONE,
        })
    }

    /// Gives all calls this trace id, by which the nodes' logs tell whose they are. By default each draws its own.
    pub fn traced(self, trace: TraceId) -> Caller {
        Caller { trace, ..self }
    }

    pub(crate) fn trace_of_call(&self) -> Result<TraceId, Error> {
        if self.trace == TraceId::NONE { self.session.draw_trace() } else { Ok(self.trace) }
    }

    /// Lets functions find these columns in the window.
    pub fn with_columns(self, columns: Box<dyn Columns>) -> Caller {
        Caller { groups: columns.groups(), columns: Some(columns), ..self }
    }

    /// Returns the size of the window in bytes.
    pub fn window_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the nodes that hold the window with the bytes that each holds, the node with most bytes first.
    pub fn nodes(&self) -> Vec<(String, u64)> {
        let places = Arc::clone(&self.places.lock());
        places.nodes().iter().map(|(node, bytes)| (node.info.name.to_string(), *bytes)).collect()
    }

    /// Calls a function.
    ///
    /// Errors: [`ErrorKind::Stopped`] if the function failed ([`Error::how_it_ended`] says how); [`ErrorKind::Lost`]
    /// if bytes of the window are lost; [`ErrorKind::Refused`] if the node refuses the function or runs no functions;
    /// [`ErrorKind::Invalid`] if the options or arguments are not permitted; [`ErrorKind::Unreachable`] if a node
    /// does not answer.
    pub fn call(&self, function: &Function, args: &[u8], options: CallOptions) -> Result<Called, Error> {
        let deadline_ms = options.deadline_ms()?;
        if args.len() > FUNCTION_ARGS_BYTES_MAX {
            let message = format!(
                "the arguments have {} bytes; at most {FUNCTION_ARGS_BYTES_MAX} are permitted",
                args.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.check_placement(function, options)?;
        self.session.check_open()?;
        let trace = self.trace_of_call()?;
        let call = Call::new(function, args, options.fresh, deadline_ms, trace);
        self.retry_if_moved(|places, is_brief| {
            let way = self.choose(function, options);
            let call = Call { is_brief, ..call.clone() };
            match self.hedges_at(places, way, &call) {
                None => self.try_call(places, way, options, call),
                // A call over the whole window has one result.
                Some(begins) => self.race(begins, places, options, call)?.pop().ok_or_else(nowhere),
            }
        })
    }

    pub(crate) fn try_call(
        &self,
        places: &Locations,
        way: Way,
        options: CallOptions,
        mut call: Call<'_>,
    ) -> Result<Called, Error> {
        let (function, trace) = (call.function, call.trace);
        let mut station = self.first_station(places, way, options.at)?;
        let now = || self.session.host().now();
        let first = self.is_learning(options.placement).then(now);
        let mut hops = 0;
        loop {
            let begun = if hops == 0 { first } else { first.map(|_| now()) };
            let (called, output, (by_itself, ended_at)) = self.call_at(places, &station, &mut call)?;
            call.ran_ns += called.ran_ns;
            // The peer may have sent any number.
            hops = u32::saturating_add(hops, by_itself);
            let is_plain = called.outcome == Outcome::Done && hops == 0 && call.supplied == 0;
            if let Some(begun) = begun.filter(|_| is_plain) {
                let took_ns = now().0.saturating_sub(begun.0);
                // Scales the time to the whole window, so that calls over parts of it can be compared.
                let whole_ns = (called.ran_ns as f64 / self.share_of(&call.lists)) as u64;
                self.note(
                    function,
                    station.links().map(|node| &**node),
                    whole_ns,
                    took_ns - called.ran_ns.min(took_ns),
                    output.len() as u64,
                );
            }
            match called.outcome {
                Outcome::Done => {
                    if let Some(first) = first.filter(|_| way == Way::Ship) {
                        let took_ns = now().0.saturating_sub(first.0);
                        self.note_shipped(&call, took_ns);
                    }
                    let (ran, supplied) = (Duration::from_nanos(call.ran_ns), call.supplied);
                    let node = ended_at.or_else(|| station.name());
                    return Ok(Called { output, ran, hops, supplied, trace, node });
                }
                Outcome::Hop if hops < HOPS_MAX => {
                    let next = places.node_of(called.detail).cloned();
                    let Some(next) = next else {
                        return Err(stopped(function, &called, &station.at()));
                    };
                    // A call on the client stays there, because the whole window is available.
                    if !matches!(station, Station::Here) {
                        station = Station::Node(next);
                    }
                    call.state = Some(output);
                    hops += 1;
                    self.has_hopped.store(true, Ordering::Relaxed);
                }
                _ => return Err(stopped(function, &called, &station.at())),
            }
        }
    }

    /// Reports whether the whole window was fetched.
    pub(crate) fn is_fetched(&self) -> bool {
        self.fetched.get().is_some_and(Fetched::is_whole)
    }

    /// Returns the share of the window that a call over these row groups sees. It is never 0.
    pub(crate) fn share_of(&self, lists: &GroupSelection) -> f64 {
        let GroupSelection::Listed(indices) = lists else { return 1.0 };
        let bytes = |group: &Range<u64>| (group.end - group.start) as f64;
        let listed: f64 = indices.iter().filter_map(|index| self.groups.get(*index)).map(bytes).sum();
        (listed / self.groups.iter().map(bytes).sum::<f64>().max(1.0)).clamp(1e-9, 1.0)
    }

    /// Fetches the bytes of the window that a call on the client sees.
    fn fetch_missing(&self, lists: &GroupSelection, places: &Locations) -> Result<(), Error> {
        let fetched = match self.fetched.get() {
            Some(fetched) => fetched,
            None => {
                let empty = Fetched::empty(self.window_bytes())?;
                self.fetched.get_or_init(|| empty)
            }
        };
        if fetched.is_whole() {
            return Ok(());
        }
        let (begun, mut bytes) = (self.session.host().now(), 0);
        let mut of = |range| {
            bytes += fetched.fetch_missing(&self.session, &self.file, self.range.start, range)?;
            Ok(())
        };
        match lists {
            GroupSelection::All => of(0..self.window_bytes())?,
            GroupSelection::Listed(indices) => {
                indices.iter().filter_map(|index| self.groups.get(*index).cloned()).try_for_each(of)?;
            }
        }
        if bytes >= MEASURED_BYTES_MIN
            && let Some((node, _)) = places.nodes().first()
        {
            let took_ns = self.session.host().now().0.saturating_sub(begun.0);
            self.observed.learned().note_brought(node.info.node.0, took_ns as f64 / bytes as f64);
        }
        Ok(())
    }

    fn first_station(&self, places: &Locations, way: Way, at: Option<u64>) -> Result<Station, Error> {
        match (way, at) {
            (Way::Fetch, _) => Ok(Station::Here),
            (Way::Split, _) => {
                let message = "placement split is for the row groups of a far table: use call_each";
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (Way::Ship, None) => {
                let (most, _) = places.nodes().first().ok_or_else(nowhere)?;
                Ok(Station::Node(Arc::clone(most)))
            }
            (Way::Ship, Some(byte)) => {
                let node = places.node_of(byte).cloned().ok_or_else(|| {
                    let bytes = self.window_bytes();
                    let message = format!("byte {byte} lies outside the window of {bytes} bytes");
                    Error::new(ErrorKind::Invalid, message)
                })?;
                Ok(Station::Node(node))
            }
        }
    }

    /// Runs a call at one place until it ends or hops to another node. No other call uses its lane meanwhile. A lane
    /// whose connection has died is replaced.
    fn call_at(&self, places: &Locations, station: &Station, call: &mut Call<'_>) -> Result<Ended, Error> {
        let hops = !call.hops_through_caller && self.has_hopped.load(Ordering::Relaxed);
        let key = (places.number, station.key(), Side::of(call.function), hops);
        if let Station::Here = station {
            self.fetch_missing(&call.lists, places)?;
        }
        let watched = station.links().filter(|_| call.is_brief);
        let hedged = call.hedged.zip(station.links());
        let requests = Requests { session: &self.session, watched, hedged };
        let mut broken_lanes = 0;
        let mut idle = self.idle.lock().get_mut(&key).and_then(Vec::pop);
        loop {
            let was_idle = idle.is_some();
            let mut lane = match idle.take() {
                Some(lane) => lane,
                None => {
                    let opened = self.open(places, station, key, call.trace, &requests);
                    opened.inspect_err(|error| station.note(error))?
                }
            };
            lane.link.set_trace(call.trace);
            let _running = station.links().map(|node| node.begin_call());
            match self.call_on(&mut lane, call, &requests) {
                Err(error) if call.hedged.is_some_and(|hedged| hedged.is_over()) => {
                    return Err(Error::of_link("the other try of this call has ended it", &error));
                }
                // The process may have been ended for another caller. A retry is safe, because functions have no side
                // effects.
                Err(LinkError::Disconnected(_)) if was_idle || broken_lanes < BROKEN_LANES_MAX => {
                    broken_lanes += u32::from(!was_idle)
                }
                Ok(result) => {
                    let (called, output) = result;
                    let hopped = lane.hopped(&called);
                    call.hops_through_caller |= hops && called.outcome == Outcome::Hop;
                    // A lane of a process that has ended is not kept.
                    if !matches!(called.outcome, Outcome::Died | Outcome::Deadline) {
                        self.keep(key, lane);
                    }
                    return Ok((called, output, hopped));
                }
                Err(error) => {
                    if error.link_survives() {
                        self.keep(key, lane);
                    }
                    return Err(station.error(&error));
                }
            }
        }
    }

    fn keep(&self, key: LaneKey, lane: OpenLane) {
        // A lane over former locations would show a function bytes that are no longer its own.
        let is_current = self.places.lock().number == key.0
            || self.elsewhere.lock().values().any(|places| places.number == key.0);
        let mut idle = self.idle.lock();
        if !is_current {
            return;
        }
        let lanes = idle.entry(key).or_default();
        if lanes.len() < IDLE_LANES_MAX {
            lanes.push(lane);
        }
    }

    fn open(
        &self,
        places: &Locations,
        station: &Station,
        (_, _, side, hops): LaneKey,
        trace: TraceId,
        requests: &Requests<'_>,
    ) -> Result<OpenLane, Error> {
        match station {
            Station::Node(node) => {
                let peers = if hops { places.peers(node) } else { List::default() };
                OpenLane::open(requests, node, places, side, self.output_bytes, trace, peers)
            }
            Station::Here => {
                let nothing = || Error::new(ErrorKind::Lost, "no byte of the window was fetched");
                let fetched = self.fetched.get().ok_or_else(nothing)?;
                let options = self.session.options();
                self.here.lane(options, self.window_bytes(), self.output_bytes, fetched)
            }
        }
    }

    /// Runs a call on this lane until the function ends, hops or fails. Supplies the blocks that it loads from
    /// elsewhere.
    fn call_on(
        &self,
        lane: &mut OpenLane,
        call: &mut Call<'_>,
        requests: &Requests<'_>,
    ) -> Result<(WireCalled, Vec<u8>), LinkError> {
        if let Some(columns) = self.columns.as_ref().filter(|_| lane.lists.as_ref() != Some(&call.lists)) {
            let columns = columns.encode(&|index| call.lists.has(index)).map(Bytes::new);
            let too_long = LinkError::Protocol(WireError::Text { what: "a table of columns" });
            let columns = columns.map_err(|_| too_long)?.map_err(LinkError::Protocol)?;
            let put = Request::PutColumns(PutColumns { columns });
            requests.call(&mut *lane.link, &put, requests.deadline(0))?;
            lane.lists = Some(call.lists.clone());
        }
        let number = lane.number(call.function, requests)?;
        let request = Request::CallFunction(CallFunction {
            number,
            fresh: call.fresh,
            deadline_ms: call.deadline_ms,
            goes_on: call.state.is_some(),
            state: Bytes::new(call.state.clone().unwrap_or_default()).map_err(LinkError::Protocol)?,
            args: Bytes::new(call.args.to_vec()).map_err(LinkError::Protocol)?,
        });
        let until = requests.deadline(call.deadline_ms.into());
        let mut reply = requests.call(&mut *lane.link, &request, until)?;
        loop {
            let called = match reply {
                Reply::CallFunction(called) | Reply::Supply(called) => called,
                other => return Err(unexpected(&other)),
            };
            if called.outcome != Outcome::Away {
                let output = self.take_output(lane, &called, requests)?;
                return Ok((called, output));
            }
            if call.supplied == SUPPLIED_MAX {
                let (found, max) = (call.supplied.into(), SUPPLIED_MAX.into());
                return Err(LinkError::Protocol(WireError::TooMany {
                    what: "blocks from other nodes",
                    found,
                    max,
                }));
            }
            call.supplied += 1;
            let supply = Request::Supply(Supply { at: called.detail, bytes: self.piece(called.detail) });
            let until = requests.deadline(call.deadline_ms.into());
            reply = requests.call(&mut *lane.link, &supply, until)?;
        }
    }

    /// Returns a block of the window; empty if it cannot be read.
    fn piece(&self, at: u64) -> Bytes<FUNCTION_PIECE_BYTES> {
        // The peer may ask for any offset.
        let Some(left) = self.window_bytes().checked_sub(at) else { return Bytes::default() };
        let mut bytes = vec![0; left.min(FUNCTION_PIECE_BYTES as u64) as usize];
        let offset = self.range.start + at;
        match self.file.read_batch(&mut [ReadRange { offset, into: &mut bytes }]) {
            Ok(()) => Bytes::new(bytes).unwrap_or_default(),
            Err(_) => Bytes::default(),
        }
    }

    /// Returns the whole output, whose first bytes came with the answer.
    fn take_output(
        &self,
        lane: &mut OpenLane,
        called: &WireCalled,
        requests: &Requests<'_>,
    ) -> Result<Vec<u8>, LinkError> {
        let wanted = called.output_bytes;
        let mut output = called.output.clone().into_vec();
        if wanted > self.output_bytes.into() || output.len() as u64 > wanted {
            let (found, max) = (wanted, self.output_bytes.into());
            return Err(LinkError::Protocol(WireError::TooMany { what: "bytes of output", found, max }));
        }
        while (output.len() as u64) < wanted {
            let next = Request::NextOutput(NextOutput { from: output.len() as u64 });
            match requests.call(&mut *lane.link, &next, requests.deadline(0))? {
                Reply::NextOutput(piece) if !piece.output.is_empty() => {
                    piece.output.slices().for_each(|bytes| output.extend_from_slice(bytes));
                }
                Reply::NextOutput(_) => {
                    return Err(LinkError::Disconnected(std::io::ErrorKind::UnexpectedEof.into()));
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(output)
    }

    /// Makes a round trip on a lane without calling a function, to measure the fixed cost of a call.
    pub fn round_trip(&self, function: &Function) -> Result<(), Error> {
        let places = Arc::clone(&self.places.lock());
        let station = self.first_station(&places, Way::Ship, None)?;
        let key = (places.number, station.key(), Side::of(function), false);
        let idle = self.idle.lock().get_mut(&key).and_then(Vec::pop);
        let requests = Requests { session: &self.session, watched: None, hedged: None };
        let open = || self.open(&places, &station, key, TraceId::NONE, &requests);
        let mut lane = idle.map_or_else(open, Ok)?;
        lane.link.set_trace(TraceId::NONE);
        let deadline = self.session.request_deadline();
        let next = Request::NextOutput(NextOutput { from: 0 });
        let result = lane.link.call(&next, deadline).map_err(|error| station.error(&error));
        self.keep(key, lane);
        result.map(drop)
    }
}
