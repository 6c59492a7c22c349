//! Lanes: connections to nodes on which functions are called, each over the same window.

use crate::Function;
use crate::calling::Lists;
use farpool_files::beneath::{NodeLinks, Session, Stretch, stretches};
use farpool_files::{Error, ErrorKind, FarFile};
use farpool_transport::{Link, LinkError};
use farpool_wire::control::*;
use farpool_wire::limits::*;
use farpool_wire::{Bytes, Code, List, MonoNs, Name, NodeId, Reply, Request};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Where the bytes of a range of a file are.
#[derive(Clone)]
pub(crate) struct Places {
    /// The range.
    pub(crate) range: Range<u64>,
    stretches: Vec<Stretch>,
}

impl Places {
    /// Of a published file, or one that was sealed.
    pub(crate) fn of(file: &FarFile, range: Range<u64>) -> Result<Places, Error> {
        let Some(stretches) = stretches(file, &range)? else {
            let message = "functions run over published files: what may still be written is no window";
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        Ok(Places { range, stretches })
    }

    /// The node that has a byte of the window.
    pub(crate) fn node_of(&self, byte: u64) -> Option<&Arc<NodeLinks>> {
        let at = self.range.start.checked_add(byte)?;
        let after = self.stretches.partition_point(|stretch| stretch.file.start <= at);
        let stretch = self.stretches.get(after.checked_sub(1)?)?;
        stretch.file.contains(&at).then_some(&stretch.region.node)
    }

    /// The nodes, that with most bytes first, and how many each has.
    pub(crate) fn nodes(&self) -> Vec<(Arc<NodeLinks>, u64)> {
        let mut bytes: BTreeMap<NodeId, (Arc<NodeLinks>, u64)> = BTreeMap::new();
        for stretch in &self.stretches {
            let node = &stretch.region.node;
            bytes.entry(node.info.node).or_insert_with(|| (Arc::clone(node), 0)).1 +=
                stretch.file.end - stretch.file.start;
        }
        let mut nodes: Vec<_> = bytes.into_values().collect();
        nodes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        nodes
    }

    /// What of the window a node has.
    fn parts(&self, node: &NodeLinks) -> Result<List<LanePart, LANE_PARTS_MAX>, Error> {
        let mut parts = Vec::new();
        for stretch in self.stretches.iter().filter(|stretch| stretch.region.node.info.node == node.info.node)
        {
            stretch.region.check_usable()?;
            parts.push(LanePart {
                region: stretch.region.region,
                epoch: stretch.region.epoch,
                handle: stretch.region.handle,
                offset: stretch.offset,
                bytes: stretch.file.end - stretch.file.start,
                at: stretch.file.start - self.range.start,
            });
        }
        List::new(parts).map_err(|error| Error::new(ErrorKind::Invalid, format!("the window: {error}")))
    }
}

/// What functions of one kind are called on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The node itself.
    Resident,
    /// A sandbox process.
    Sandbox,
}

impl Side {
    pub(crate) fn of(function: &Function) -> Side {
        if function.form == FunctionForm::Resident { Side::Resident } else { Side::Sandbox }
    }
}

/// A module that is no longer than this comes with its first use on a lane, without asking whether it is known there.
const BROUGHT_BYTES: usize = 8 << 10;

/// An open lane, used by one call at a time.
pub(crate) struct OpenLane {
    pub(crate) link: Box<dyn Link>,
    /// Numbers of functions on this lane.
    numbers: BTreeMap<[u8; 32], Vec<(Name, u32)>>,
    /// Which row groups were told of.
    pub(crate) lists: Option<Lists>,
}

impl OpenLane {
    /// Over a connection that is a lane already.
    pub(crate) fn over(link: Box<dyn Link>) -> OpenLane {
        OpenLane { link, numbers: BTreeMap::new(), lists: None }
    }

    /// Opens one at a node.
    pub(crate) fn open(
        session: &Session,
        node: &Arc<NodeLinks>,
        places: &Places,
        side: Side,
        output_bytes: u32,
    ) -> Result<OpenLane, Error> {
        let open = OpenLaneMessage {
            resident: side == Side::Resident,
            window_bytes: places.range.end - places.range.start,
            output_bytes,
            parts: places.parts(node)?,
        };
        let patience_ms = session.options().request_timeout_ms;
        let mut link = node.dial_own(session.deadline(patience_ms))?;
        // It may have to wait its turn there.
        let deadline = session.deadline(patience_ms.saturating_add(LANE_QUEUE_MS));
        let reply = link.call(&Request::OpenLane(open), deadline);
        match reply.map_err(|error| node.link_error(&error))? {
            Reply::OpenLane(_) => Ok(OpenLane::over(link)),
            other => {
                Err(Error::new(ErrorKind::Refused, format!("the answer to OpenLane is {:?}", other.opcode())))
            }
        }
    }

    /// The function's number here; brings it if it is not known.
    pub(crate) fn number(
        &mut self,
        function: &Function,
        deadline: impl Fn() -> MonoNs,
    ) -> Result<u32, LinkError> {
        let Function { entry, digest, .. } = function;
        let known = self.numbers.get(digest).into_iter().flatten().find(|(known, _)| known == entry);
        if let Some((_, number)) = known {
            return Ok(*number);
        }
        let number = self.ask_number(function, deadline())?;
        self.numbers.entry(*digest).or_default().push((entry.clone(), number));
        Ok(number)
    }

    fn ask_number(&mut self, function: &Function, deadline: MonoNs) -> Result<u32, LinkError> {
        let Function { form, entry, digest, bytes, .. } = function.clone();
        // What is so short is brought along at once: the question would take as long.
        if form == FunctionForm::Wasm && bytes.len() <= BROUGHT_BYTES {
            return self.put(function, deadline);
        }
        let wanted = UseFunction { form, digest, entry };
        match self.link.call(&Request::UseFunction(wanted), deadline) {
            Ok(Reply::UseFunction(used)) => Ok(used.number),
            Err(LinkError::Refused { refusal, .. })
                if refusal.code == Code::NoSuchFunction && form != FunctionForm::Resident =>
            {
                self.put(function, deadline)
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(error),
        }
    }

    fn put(&mut self, function: &Function, deadline: MonoNs) -> Result<u32, LinkError> {
        let put = PutFunction {
            form: function.form,
            entry: function.entry.clone(),
            signature: List::new(function.signature.iter().cloned().collect())
                .map_err(LinkError::Protocol)?,
            bytes: Bytes::new(function.bytes.to_vec()).map_err(LinkError::Protocol)?,
        };
        // Making it ready may take as long, besides answering.
        let deadline = deadline.plus_ms(FUNCTION_READY_MS_MAX.into());
        match self.link.call(&Request::PutFunction(put), deadline)? {
            Reply::PutFunction(used) => Ok(used.number),
            other => Err(unexpected(&other)),
        }
    }
}

/// The message of that name.
type OpenLaneMessage = farpool_wire::control::OpenLane;

/// A reply of another kind than its request.
pub(crate) fn unexpected(reply: &Reply) -> LinkError {
    LinkError::Protocol(farpool_wire::WireError::Opcode { found: reply.opcode() as u16 })
}
