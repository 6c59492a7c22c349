//! Lanes whose calls go on at other nodes: if a function hops, the node goes on with the call in place of its caller.
//!
//! The idea: a function that follows pointers hops to the node that has the next item, and takes its state along. If
//! each hop went through the caller, it would take the time of a round trip there, and nodes are often nearer to each
//! other. So the node stays between the caller and its own lane, and opens lanes at the other nodes of the window when
//! it first needs them.
//!
//! The caller stays the judge. If another node is lost or silent, refuses, or ends the call in any way but with an
//! output or a hop, the caller gets the last hop as if the call had got no further. It goes on there by itself, and
//! decides what to do about errors. Nothing is lost with that, because functions have no side effects.

use farpool_host::clock;
use farpool_transport::{Dial, Dialer, HandedOver, Lane, Link, LinkError, Successor, local_lane};
use farpool_wire::control::*;
use farpool_wire::frame::Header;
use farpool_wire::limits::{FUNCTION_READY_MS_MAX, LANE_PEERS_MAX};
use farpool_wire::{Bytes, Code, List, MonoNs, Opcode, Refusal, Reply, Request, TraceId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Time in ms that an answer may take, in addition to that of the work that was asked for.
const ANSWER_MS: u64 = 5_000;
/// Time in ms after which a caller that does not take its reply is disconnected.
const SEND_PATIENCE_MS: u64 = 30_000;
/// Interval in ms at which the caller and the other node are looked at while a call runs.
const LOOK_MS: u64 = 100;
/// Time in ms that another node has to answer a greeting. Otherwise it is silent, and the caller finds out for itself:
/// it has to do so within a second, these times included.
const GREETING_MS: u64 = 150;
/// Number of hops after which the caller gets the hop, and may end a function that hops without end.
const HOPS_MAX: u32 = 1 << 16;

/// A lane of this node that is to hop, before its connection arrives.
pub(crate) struct HoppingLane {
    /// Lane at this node.
    pub(crate) own: Box<dyn Successor>,
    pub(crate) dialer: Arc<dyn Dialer>,
    /// Window of the lane.
    pub(crate) lane: OpenLane,
    /// Other nodes of the window.
    pub(crate) peers: List<LanePeer, LANE_PEERS_MAX>,
    pub(crate) caller: LaneCaller,
}

impl Successor for HoppingLane {
    fn take(self: Box<Self>, connection: HandedOver) -> io::Result<()> {
        let HoppingLane { own, dialer, lane, peers, caller } = *self;
        let socket =
            connection.descriptors().first().ok_or(io::ErrorKind::InvalidData)?.try_clone_to_owned()?;
        let (link, handed) = local_lane()?;
        std::thread::scope(|threads| {
            // Resident functions are served by the thread that takes the connection.
            threads.spawn(move || own.take(handed));
            let others = peers.iter().map(|peer| Other { peer: peer.clone(), lane: None }).collect();
            let mut serving = Serving {
                asking: Asking { dialer, socket, trace: TraceId::NONE },
                lane,
                caller,
                own: link,
                others,
                functions: Vec::new(),
                columns: None,
                ended_at: None,
            };
            serving.serve(&mut Lane::over(connection.resume()?))
        })
    }
}

/// Means of asking other processes: the way to other nodes, and the caller, who may leave meanwhile.
struct Asking {
    dialer: Arc<dyn Dialer>,
    /// Connection to the caller.
    socket: OwnedFd,
    trace: TraceId,
}

/// Another node of the window.
struct Other {
    peer: LanePeer,
    /// Lane there; `None` before the first hop, and after an error.
    lane: Option<OtherLane>,
}

struct OtherLane {
    link: Box<dyn Link>,
    /// Numbers of functions there, by their numbers here.
    numbers: BTreeMap<u32, u32>,
}

/// A lane that is served for its caller.
struct Serving {
    asking: Asking,
    lane: OpenLane,
    caller: LaneCaller,
    /// Lane at this node.
    own: Box<dyn Link>,
    others: Vec<Other>,
    /// Functions that the caller has used, by their numbers: the request that gave each its number.
    functions: Vec<Request>,
    columns: Option<PutColumns>,
    /// Index of the other node at which the last call ended; `None` for this one.
    ended_at: Option<usize>,
}

/// Reason why a call got no further.
enum Stopped {
    /// The caller has left.
    Left(io::Error),
    /// The process that ran the function refuses, or does not answer.
    There(LinkError),
}

fn deadline(ms: u64) -> MonoNs {
    clock::now().plus_ms(ms.saturating_add(ANSWER_MS))
}

fn unexpected(reply: &Reply) -> LinkError {
    LinkError::Protocol(farpool_wire::WireError::Opcode { found: reply.opcode() as u16 })
}

fn answer(lane: &mut Lane, to: &Header, answer: Result<Reply, Refusal>) -> io::Result<()> {
    lane.reply(to, answer, clock::now().plus_ms(SEND_PATIENCE_MS))
}

/// Answers a call, or the request that supplied bytes to it.
fn answer_call(lane: &mut Lane, to: &Header, called: Called) -> io::Result<()> {
    let is_supply = to.opcode == Opcode::Supply;
    answer(lane, to, Ok(if is_supply { Reply::Supply(called) } else { Reply::CallFunction(called) }))
}

/// Returns the answer of a process, which may be a refusal.
///
/// Errors: it does not answer.
fn answered(result: Result<Reply, LinkError>) -> io::Result<Result<Reply, Refusal>> {
    match result {
        Ok(reply) => Ok(Ok(reply)),
        Err(LinkError::Refused { refusal, .. }) => Ok(Err(refusal)),
        Err(error) => Err(io::Error::other(error)),
    }
}

impl Asking {
    /// Sends a request and waits for its reply. Looks now and then whether the caller is still there, and `node`, if
    /// another one is asked.
    fn ask(
        &self,
        link: &mut dyn Link,
        node: Option<&LanePeer>,
        request: &Request,
        until: MonoNs,
    ) -> Result<Reply, LinkError> {
        link.set_trace(self.trace);
        link.post_call(request, until)?;
        loop {
            let look = clock::now().plus_ms(LOOK_MS).min(until);
            if link.begins_by(look)? {
                return link.take_call(request, until);
            }
            if self.has_left() {
                return Err(LinkError::Disconnected(io::ErrorKind::ConnectionAborted.into()));
            }
            if look == until || node.is_some_and(|node| self.dial(node, GREETING_MS).is_err()) {
                return Err(LinkError::TimedOut);
            }
        }
    }

    fn dial(&self, to: &LanePeer, patience_ms: u64) -> Result<Box<dyn Link>, LinkError> {
        let until = clock::now().plus_ms(patience_ms);
        self.dialer.dial(Dial::Node { address: &to.address, node: to.node }, until)
    }

    /// Reports whether the caller has closed its connection.
    fn has_left(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl Serving {
    fn serve(&mut self, lane: &mut Lane) -> io::Result<()> {
        while let Some((header, request)) = lane.take_request()? {
            self.asking.trace = header.trace;
            let reply = match request {
                Request::CallFunction(call) => {
                    self.call(lane, header, call)?;
                    continue;
                }
                Request::NextOutput(_) => {
                    let link = match self.ended_at.and_then(|at| self.others[at].lane.as_mut()) {
                        Some(there) => &mut there.link,
                        None => &mut self.own,
                    };
                    answered(self.asking.ask(&mut **link, None, &request, deadline(0)))?
                }
                Request::UseFunction(_) | Request::PutFunction(_) => {
                    let until = deadline(FUNCTION_READY_MS_MAX.into());
                    let used = answered(self.asking.ask(&mut *self.own, None, &request, until))?;
                    if let Ok(Reply::UseFunction(_) | Reply::PutFunction(_)) = used {
                        // Functions are numbered one after the other.
                        self.functions.push(request);
                    }
                    used
                }
                Request::PutColumns(ref columns) => {
                    self.columns = Some(columns.clone());
                    // They are sent again with the next lane.
                    self.others.iter_mut().for_each(|other| other.lane = None);
                    answered(self.asking.ask(&mut *self.own, None, &request, deadline(0)))?
                }
                other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
            };
            answer(lane, &header, reply)?;
        }
        Ok(())
    }

    /// Calls a function, and goes on wherever it hops.
    fn call(&mut self, lane: &mut Lane, mut header: Header, call: CallFunction) -> io::Result<()> {
        self.ended_at = None;
        let own = run(&self.asking, lane, &mut header, &mut *self.own, None, call.clone());
        let mut called = match own {
            Ok(called) => called,
            Err(Stopped::Left(error)) => return Err(error),
            Err(Stopped::There(error)) => {
                let refused = answered(Err(error))?;
                return answer(lane, &header, refused);
            }
        };
        let mut ran_ns = called.ran_ns;
        let mut hops = 0;
        while called.outcome == Outcome::Hop && hops < HOPS_MAX {
            let byte = called.detail;
            let at = self.others.iter().position(|other| holds(&other.peer.parts, byte));
            // A state that does not fit is longer than states may be.
            let Ok(state) = Bytes::new(called.output.clone().into_vec()) else { break };
            if at.is_none() && !holds(&self.lane.parts, byte) || hops % 64 == 63 && self.asking.has_left() {
                break;
            }
            let on = CallFunction { goes_on: true, state, ..call.clone() };
            let on = match self.go_on(lane, &mut header, at, on) {
                Ok(on) => on,
                Err(Stopped::Left(error)) => return Err(error),
                Err(Stopped::There(_)) => {
                    if let Some(at) = at {
                        self.others[at].lane = None;
                    }
                    break;
                }
            };
            if !matches!(on.outcome, Outcome::Done | Outcome::Hop) {
                break;
            }
            hops += 1;
            ran_ns = ran_ns.saturating_add(on.ran_ns);
            called = on;
            self.ended_at = at;
        }
        if called.outcome == Outcome::Done {
            let at = self.ended_at.map_or(0, |at| at as u64 + 1);
            called.detail = at << 32 | u64::from(hops);
        }
        answer_call(lane, &header, Called { ran_ns, ..called })
    }

    /// Goes on with a call at another node, or at this one if `at` is `None`.
    fn go_on(
        &mut self,
        lane: &mut Lane,
        header: &mut Header,
        at: Option<usize>,
        call: CallFunction,
    ) -> Result<Called, Stopped> {
        let Some(at) = at else {
            return run(&self.asking, lane, header, &mut *self.own, None, call);
        };
        let number = self.number(at, call.number).map_err(Stopped::There)?;
        let Other { peer, lane: there } = &mut self.others[at];
        let Some(there) = there else { return Err(Stopped::There(LinkError::TimedOut)) };
        run(&self.asking, lane, header, &mut *there.link, Some(peer), CallFunction { number, ..call })
    }

    /// Returns the number that a function has at another node. Opens the lane there, and sends the function.
    fn number(&mut self, at: usize, number: u32) -> Result<u32, LinkError> {
        let Other { peer, lane: there } = &mut self.others[at];
        let there = match there {
            Some(there) => there,
            None => {
                let OpenLane { resident, window_bytes, output_bytes, .. } = self.lane;
                let lane = OpenLane { resident, window_bytes, output_bytes, parts: peer.parts.clone() };
                let caller = List::new(vec![self.caller.clone()]).map_err(LinkError::Protocol)?;
                let open = OpenHoppingLane { lane, peers: List::default(), caller };
                let mut link = self.asking.dial(peer, GREETING_MS)?;
                let opened =
                    self.asking.ask(&mut *link, Some(peer), &Request::OpenHoppingLane(open), deadline(0))?;
                let Reply::OpenHoppingLane(_) = opened else { return Err(unexpected(&opened)) };
                if let Some(columns) = &self.columns {
                    let put = Request::PutColumns(columns.clone());
                    self.asking.ask(&mut *link, Some(peer), &put, deadline(0))?;
                }
                there.insert(OtherLane { link, numbers: BTreeMap::new() })
            }
        };
        if let Some(known) = there.numbers.get(&number) {
            return Ok(*known);
        }
        let unknown = LinkError::Refused { index: 0, refusal: Refusal::new(Code::NoSuchFunction, 0) };
        let request = self.functions.get(number as usize).ok_or(unknown)?;
        let until = deadline(FUNCTION_READY_MS_MAX.into());
        match self.asking.ask(&mut *there.link, Some(peer), request, until)? {
            Reply::UseFunction(used) | Reply::PutFunction(used) => {
                there.numbers.insert(number, used.number);
                Ok(used.number)
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// Reports whether a byte of the window lies in one of these ranges, which are in order.
fn holds(parts: &[LanePart], byte: u64) -> bool {
    let after = parts.partition_point(|part| part.at <= byte);
    parts[..after].last().is_some_and(|part| byte - part.at < part.bytes)
}

/// Runs a call until it ends or hops. The caller supplies the blocks that the function loads from elsewhere; `header`
/// becomes that of its last request.
fn run(
    asking: &Asking,
    lane: &mut Lane,
    header: &mut Header,
    link: &mut dyn Link,
    node: Option<&LanePeer>,
    call: CallFunction,
) -> Result<Called, Stopped> {
    let deadline_ms = call.deadline_ms.into();
    let mut request = Request::CallFunction(call);
    loop {
        let until = deadline(deadline_ms);
        let reply = asking.ask(link, node, &request, until).map_err(Stopped::There)?;
        let called = match reply {
            Reply::CallFunction(called) | Reply::Supply(called) => called,
            other => return Err(Stopped::There(unexpected(&other))),
        };
        if called.outcome != Outcome::Away {
            return Ok(called);
        }
        answer_call(lane, header, called).map_err(Stopped::Left)?;
        match lane.take_request().map_err(Stopped::Left)? {
            Some((next, supply @ Request::Supply(_))) => (*header, request) = (next, supply),
            _ => return Err(Stopped::Left(io::ErrorKind::InvalidData.into())),
        }
    }
}
