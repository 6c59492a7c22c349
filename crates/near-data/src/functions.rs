//! Call lanes: connections on which clients call functions over windows of immutable regions.
//!
//! A window is the range of a file that the called functions see as memory. The node checks the rights to every part of
//! a window once. Then it gives the process that runs the functions descriptors to read with, and the fence words to
//! check: one number per region that shows its epoch. After that the node takes no part in a call. If a region is
//! revoked, its fence word changes before its memory goes.

use crate::NearData;
use crate::hops::HoppingLane;
use farpool_functions::abi::Part;
use farpool_functions::resident::{NodeBytes, ReadPart, ResidentLane, ResidentNow, ResidentWindow};
use farpool_functions::setup::{FenceAt, LaneWindow, WindowRange};
use farpool_functions::{CallInProgress, EndedCall, Owner, Resident, SandboxOptions, Sandboxes};
use farpool_host::{Event, Host, Level, clock};
use farpool_lock::{Mutex, MutexGuard};
use farpool_node::admit::admit;
use farpool_node::{Inside, Memory};
use farpool_region::{RegionError, SharedAccess};
use farpool_transport::{Identity, Intent, Mappable, Peer, Successor};
use farpool_wire::control::{
    Called, FunctionForm, LaneCaller, LaneOpened, LanePart, OpenHoppingLane, OpenLane, Outcome, RunningCall,
    RunningCalls,
};
use farpool_wire::data::Span;
use farpool_wire::limits::{FUNCTION_OUTPUT_BYTES_MAX, NAME_BYTES_MAX, RUNNING_CALLS_MAX, WINDOW_BYTES_MAX};
use farpool_wire::{
    Code, Epoch, Handle, List, Name, Refusal, RegionIndex, TENANT_LOCAL, Text, TraceId, shown,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

/// Functions that a node runs for its clients.
#[derive(Clone)]
pub struct FunctionOptions {
    /// Functions built into the node.
    pub resident: Arc<[Arc<dyn Resident>]>,
    /// Options of the sandbox processes that run clients' own functions. `None`, the default, if the node runs none.
    pub sandboxes: Option<SandboxOptions>,
}

impl Default for FunctionOptions {
    fn default() -> FunctionOptions {
        FunctionOptions { resident: farpool_functions::standard(), sandboxes: None }
    }
}

/// State of the functions that a node runs: its sandbox processes, and the calls of resident functions.
pub(crate) struct Functions {
    resident: Arc<[Arc<dyn Resident>]>,
    /// Call lanes (connections on which functions are called) of resident functions, each with its caller.
    lanes: Mutex<Vec<(String, Weak<ResidentNow>)>>,
    sandboxes: Option<Sandboxes>,
}

impl Functions {
    /// Starts the sandbox processes, if the options have any. If this machine cannot confine them fully, that is
    /// logged once it is known, from a thread of its own: nobody has to wait until a sandbox process has started.
    pub(crate) fn start(options: FunctionOptions, host: &Arc<dyn Host>) -> io::Result<Functions> {
        let start = |options| {
            let host = Arc::clone(host);
            Sandboxes::start_telling(options, Box::new(move |ended| host.log(&event_of(ended))))
        };
        let sandboxes = options.sandboxes.clone().map(start).transpose().map_err(|error| {
            let why = format!("cannot start the sandbox program that runs functions: {error}");
            io::Error::new(error.kind(), why)
        })?;
        if let Some(options) = options.sandboxes {
            let say = move || match options.confinement() {
                Ok(confinement) if confinement.is_whole() => {}
                Ok(confinement) => eprintln!("farpool: {confinement}"),
                // Not fatal for the node: a client that calls a function gets the error.
                Err(error) => eprintln!("farpool node: clients' own functions cannot be run: {error}"),
            };
            std::thread::Builder::new().name("farpool-confine".into()).spawn(say)?;
        }
        Ok(Functions { resident: options.resident, lanes: Mutex::default(), sandboxes })
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<(String, Weak<ResidentNow>)>> {
        let mut lanes = self.lanes.lock();
        lanes.retain(|(_, lane)| lane.strong_count() > 0);
        lanes
    }

    /// Records a call lane of resident functions (those built into the node). The result shows the lane's current
    /// call.
    fn lane_of(&self, caller: String) -> Arc<ResidentNow> {
        let now = Arc::new(ResidentNow::default());
        self.lanes().push((caller, Arc::downgrade(&now)));
        now
    }

    /// Returns the calls that have not ended.
    fn running(&self) -> Vec<CallInProgress> {
        let mut running = self.sandboxes.as_ref().map_or(Vec::new(), Sandboxes::running);
        let resident = |(caller, lane): &(String, Weak<ResidentNow>)| {
            let (index, since) = lane.upgrade()?.call()?;
            let function = self.resident.get(index)?.name().to_owned();
            Some(CallInProgress { function, caller: caller.clone(), since })
        };
        running.extend(self.lanes().iter().filter_map(resident));
        running
    }
}

/// Right to read a region of a window. Whoever shows the handle may read the region at this epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Right {
    epoch: Epoch,
    handle: Handle,
}

fn bad(part: usize) -> Refusal {
    Refusal::new(Code::BadWindow, part as u64)
}

/// Refusal of a window as a whole. [`bad`] refuses one part of it.
const BAD_WINDOW: Refusal = Refusal { code: Code::BadWindow, detail: u64::MAX };

impl<M: Memory> NearData<M> {
    /// Opens a call lane on a connection. Returns the reply, and the successor that takes the connection over.
    pub(crate) fn lane(
        &self,
        peer: &Peer,
        hopping: OpenHoppingLane,
    ) -> Result<(LaneOpened, Box<dyn Successor>), Refusal> {
        let OpenHoppingLane { lane: open, peers, caller } = hopping;
        let owner = owner(peer, caller.first());
        if open.window_bytes > WINDOW_BYTES_MAX || open.output_bytes > FUNCTION_OUTPUT_BYTES_MAX {
            return Err(BAD_WINDOW);
        }
        let rights = self.rights(&open.parts)?;
        let (heap_bytes, successor) = if open.resident {
            (0, self.resident_lane(&owner, &open, rights)?)
        } else {
            let Some(sandboxes) = &self.functions.sandboxes else {
                return Err(Refusal::new(Code::NoFunctions, FunctionForm::Wasm as u64));
            };
            let window = self.handed_out(&open, &rights)?;
            (sandboxes.heap_bytes(), sandboxes.lane(&owner, window)?)
        };
        if self.host.logs(Level::Debug) {
            let (caller, bytes) = (&owner.caller, open.window_bytes);
            let message = format!("opened a lane of {caller} for calls over {bytes} bytes");
            self.host.log(&Event::debug("lane_opened", message).trace(peer.trace));
        }
        // Checked again: if the epochs are still the same, memory and descriptors are those that were requested.
        self.rights(&open.parts)?;
        let opened = LaneOpened { heap_bytes };
        if peers.is_empty() {
            return Ok((opened, successor));
        }
        let text = |text: String| Text::new(text).map_err(|_| Refusal::new(Code::Malformed, 0));
        let caller = LaneCaller { caller: text(owner.caller)?, tenant: text(owner.tenant)? };
        let dialer = Arc::clone(&self.dialer);
        let hopping = HoppingLane { own: successor, dialer, lane: open, peers, caller };
        Ok((opened, Box::new(hopping)))
    }

    /// Checks that each region of a window may be read and that clients cannot change it, and returns the rights. It is
    /// sealed, or a segment: only these are shown by a handle for reading alone.
    fn rights(&self, parts: &[LanePart]) -> Result<BTreeMap<RegionIndex, Right>, Refusal> {
        let mut rights = BTreeMap::new();
        for (index, part) in parts.iter().enumerate() {
            let right = Right { epoch: part.epoch, handle: part.handle };
            let fence = self.memory.enter(part.region)?.fence();
            let of_part =
                Span { region: part.region, bytes: 0, offset: 0, epoch: part.epoch, handle: part.handle };
            admit(&of_part, Intent::Read, &fence)?;
            let is_inside = part.offset.checked_add(part.bytes).is_some_and(|end| end <= fence.region_bytes);
            if !is_inside
                || fence.read_handle != Some(part.handle)
                || *rights.entry(part.region).or_insert(right) != right
            {
                return Err(bad(index));
            }
        }
        Ok(rights)
    }

    /// Returns the window with descriptors, for a sandbox process.
    fn handed_out(
        &self,
        open: &OpenLane,
        rights: &BTreeMap<RegionIndex, Right>,
    ) -> Result<LaneWindow, Refusal> {
        let (mut files, mut fences, mut words) = (Vec::new(), Vec::new(), None);
        let mut places = BTreeMap::new();
        for (region, right) in rights {
            let shared = self.memory.hand_out(*region, SharedAccess::Read).map_err(|error| match error {
                RegionError::System { .. } => Refusal::new(Code::OutOfMemory, 0),
                _ => Refusal::new(Code::NotShared, 0),
            })?;
            let Mappable::Files { region: file, words: fence_words } = shared.memory else {
                return Err(Refusal::new(Code::NotShared, 0));
            };
            places.insert(*region, files.len() as u32);
            files.push(file);
            // The fence word of a region that is in use is its epoch times 2; any other word means that it may not be
            // read now.
            fences.push(FenceAt { offset: shared.attached.word_offset, word: right.epoch.0 << 1 });
            words.get_or_insert((fence_words, shared.attached.words_bytes));
        }
        let range = |part: &LanePart| WindowRange {
            file: places.get(&part.region).copied().unwrap_or(u32::MAX),
            offset: part.offset,
            part: Part { first: part.at, bytes: part.bytes },
        };
        let ranges = open.parts.iter().map(range).collect();
        let OpenLane { window_bytes, output_bytes, .. } = *open;
        let window = LaneWindow { window_bytes, output_bytes, ranges, fences, words, files };
        window.check().map_err(|part| part.map_or(BAD_WINDOW, bad))?;
        Ok(window)
    }

    fn resident_lane(
        &self,
        owner: &Owner,
        open: &OpenLane,
        rights: BTreeMap<RegionIndex, Right>,
    ) -> Result<Box<dyn Successor>, Refusal> {
        let mut parts: Vec<(Part, ReadPart)> = Vec::with_capacity(open.parts.len());
        let mut end = 0;
        for (index, part) in open.parts.iter().enumerate() {
            let after = part.at.checked_add(part.bytes).filter(|after| *after <= open.window_bytes);
            if part.at < end || part.bytes == 0 {
                return Err(bad(index));
            }
            end = after.ok_or(bad(index))?;
            let (memory, region, offset, bytes) =
                (Arc::clone(&self.memory), part.region, part.offset, part.bytes as usize);
            let epoch = part.epoch;
            let reach: ReadPart = Box::new(move || {
                let slice = memory.sealed(region, offset, bytes)?;
                // Checked after the memory is held: it then belongs to that epoch and to no later one (invariant I4).
                let fence = memory.enter(region).ok()?.fence();
                (fence.epoch == epoch).then(|| Box::new(slice) as NodeBytes)
            });
            parts.push((Part { first: part.at, bytes: part.bytes }, reach));
        }
        let memory = Arc::clone(&self.memory);
        let is_current = move || {
            rights.iter().all(|(region, right)| {
                let fence = memory.enter(*region).map(|entered| entered.fence());
                fence.is_ok_and(|fence| fence.epoch == right.epoch && !fence.suspended)
            })
        };
        let OpenLane { window_bytes: bytes, output_bytes, .. } = *open;
        let window = ResidentWindow { bytes, output_bytes, parts, is_current: Box::new(is_current) };
        let now = self.functions.lane_of(owner.caller.clone());
        let host = Arc::clone(&self.host);
        let ended = Box::new(move |function: &str, trace: TraceId, called: &Called| {
            if host.logs(Level::Debug) {
                let (outcome, us) = (called.outcome, called.ran_ns / 1_000);
                let message = format!("a call of {function} ended as {outcome:?} after {us} us");
                host.log(&Event::debug("call_finished", message).trace(trace));
            }
        });
        Ok(Box::new(ResidentLane { functions: Arc::clone(&self.functions.resident), window, now, ended }))
    }

    /// Returns the calls that have not ended. The administrator sees all of them, and so does a peer without an
    /// identity, because there is no TLS then. Others see their own.
    pub(crate) fn running_calls(&self, peer: &Peer) -> RunningCalls {
        let asker = owner(peer, None).caller;
        let sees_all = matches!(peer.identity, None | Some(Identity::Admin));
        let mut running = self.functions.running();
        running.retain(|call| sees_all || call.caller == asker);
        running.sort_by_key(|call| call.since);
        let now = clock::now();
        let shown = |call: &CallInProgress| {
            let (function, caller) = (name_of(&call.function)?, name_of(&call.caller)?);
            let running_ms = now.0.saturating_sub(call.since.0) / 1_000_000;
            Some(RunningCall { function, caller, running_ms })
        };
        let calls = running.iter().take(RUNNING_CALLS_MAX).filter_map(shown).collect();
        RunningCalls { count: running.len() as u32, calls: List::new(calls).unwrap_or_default() }
    }
}

/// Returns the event of a call whose process has ended. A process that died is news; the others ended as their callers
/// asked.
fn event_of(ended: &EndedCall) -> Event {
    let EndedCall { function, caller, outcome, detail, trace } = ended;
    // A sandbox process may have written anything.
    let function =
        shown(if function.is_empty() { "a function that was made ready" } else { function.as_str() });
    let message = format!(
        "a call of {} ended with its process: {function}, {outcome:?} ({detail})",
        shown(caller.as_str())
    );
    match outcome {
        Outcome::Died => Event::warn("call_ended", message),
        _ => Event::debug("call_ended", message),
    }
    .trace(*trace)
}

/// Makes a name from any text, because a sandbox process may send anything.
fn name_of(text: &str) -> Option<Name> {
    let shown: String = text.chars().filter(|letter| !letter.is_control()).take(NAME_BYTES_MAX / 4).collect();
    Name::new(if shown.is_empty() { "unnamed".to_owned() } else { shown }).ok()
}

/// Returns the owner of a peer's functions: its identity, or without TLS its client number, or the number of its
/// connection. All peers without an identity are one tenant. A node that asks in place of a caller names it.
fn owner(peer: &Peer, caller: Option<&LaneCaller>) -> Owner {
    if let Some(LaneCaller { caller, tenant }) = caller {
        return Owner { caller: caller.to_string(), tenant: tenant.to_string() };
    }
    let caller = match &peer.identity {
        Some(identity) => identity.to_string(),
        None if peer.client.0 != 0 => format!("client {:016x}", peer.client.0),
        None => format!("connection {}", peer.connection),
    };
    let tenant = peer.identity.as_ref().map_or(TENANT_LOCAL.to_owned(), ToString::to_string);
    Owner { caller, tenant }
}
