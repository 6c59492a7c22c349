//! One thread of the zombie: performs operations on its regions, and judges each result.

use crate::Tally;
use crate::messages::{Client, Holding};
use farpool_tests::canary::UNREAD;
use farpool_tests::random::Random;
use farpool_tests::raw_session::{MIB, soon};
use farpool_transport::{Link, LinkError, ReadOp, Transport, WriteOp};
use farpool_wire::control::{Attach, Grant};
use farpool_wire::data::Span;
use farpool_wire::{Code, Epoch, RegionIndex, Reply, Request};
use std::collections::BTreeMap;
use std::time::Instant;

/// Number of threads that perform operations.
pub(crate) const WORKERS: u64 = 4;

/// Range of a region that the zombie leases, or leased before it was stopped.
struct Range<'a> {
    holding: &'a Holding,
    span: Span,
}

/// Operation that was performed, with its result.
struct Done {
    what: &'static str,
    result: Result<(), LinkError>,
    /// True if every byte that came back is the zombie's own. After a failed read, bytes that belong to no session
    /// (zeros, say) are allowed too.
    bytes_are_own: bool,
}

pub(crate) struct Worker<'a> {
    client: &'a Client<'a>,
    number: u64,
    link: Box<dyn Link>,
    random: Random,
    /// True once the zombie was stopped, so that its first leases have ended.
    is_stale: bool,
    /// Newer epochs of regions, which refusals have revealed.
    learned: BTreeMap<RegionIndex, Epoch>,
    /// Number of reads and writes that were refused while the zombie had no lease.
    pub(crate) data_refused: u64,
    pub(crate) tally: Tally,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(client: &'a Client<'a>, number: u64) -> Worker<'a> {
        Worker {
            client,
            number,
            link: client.link(),
            random: Random(client.order.seed ^ (number + 1) << 32),
            is_stale: false,
            learned: BTreeMap::new(),
            data_refused: 0,
            tally: Tally::default(),
        }
    }

    /// Writes and reads the contents of the leased regions again and again, until the note shows that the process was
    /// stopped.
    pub(crate) fn work_until_stopped(&mut self, leased_until: Instant) {
        while !self.client.order.note.is_left() {
            if self.number == 0 {
                println!("op");
            }
            let done = match self.random.below(8) {
                0..3 => self.read(),
                3..6 => self.write(),
                6 => self.read_batch(),
                _ => self.write_batch(),
            };
            let is_in_flight = self.client.order.note.is_left();
            self.judge_live(done, is_in_flight, Instant::now() >= leased_until);
        }
    }

    fn judge_live(&mut self, done: Done, is_in_flight: bool, is_late: bool) {
        if !done.bytes_are_own {
            self.tally.add(format!("wrong: bytes of a {}", done.what));
        }
        match done.result {
            Ok(()) if is_in_flight => self.tally.add("in flight, done"),
            Ok(()) => self.tally.add("live, done"),
            Err(LinkError::Refused { refusal, .. })
                if matches!(refusal.code, Code::StaleEpoch | Code::LeaseExpired)
                    && (is_in_flight || is_late) =>
            {
                let when = if is_in_flight { "in flight" } else { "live, but late" };
                self.tally.add(format!("{when}, {:?}", refusal.code));
            }
            Err(LinkError::Disconnected(_) | LinkError::TimedOut) if is_in_flight => self.note_disconnect(),
            Err(error) => self.tally.add(format!("wrong: a live {} came to: {error}", done.what)),
        }
    }

    fn note_disconnect(&mut self) {
        self.tally.add("cut");
        self.link = self.client.link();
    }

    /// Tries this worker's share of everything that the first leases permitted. Half of all tries are made with no
    /// lease at all (`second` is `None`), the other half with a second lease of one region.
    pub(crate) fn try_old_rights(&mut self, second: Option<&Holding>) {
        self.is_stale = true;
        for number in 0..self.client.order.tries / (2 * WORKERS) {
            if let Some(second) = second
                && number % 64 == 0
            {
                self.use_second(second);
            }
            self.try_one(second);
        }
    }

    /// Reads and writes the region of the second lease, which must work.
    fn use_second(&mut self, second: &Holding) {
        let range = || Range { holding: second, span: whole(&second.grant) };
        let read = read_ranges(&mut *self.link, "read", &[range()]);
        let write = write_ranges(&mut *self.link, "write", &[range()]);
        for done in [read, write] {
            match done {
                Done { result: Ok(()), bytes_are_own: true, .. } => self.tally.add("second lease, done"),
                Done { result: Err(LinkError::Refused { refusal, .. }), bytes_are_own: true, .. }
                    if refusal.code == Code::LeaseExpired =>
                {
                    self.tally.add("second lease, late");
                }
                Done { what, result, .. } => {
                    self.tally.add(format!("wrong: a {what} under the second lease came to {result:?}"));
                }
            }
        }
    }

    fn try_one(&mut self, second: Option<&Holding>) {
        let stale = &[Code::StaleEpoch];
        match self.random.below(100) {
            0..30 => self.try_data(stale, Self::read),
            30..55 => self.try_data(stale, Self::write),
            55..65 => self.try_data(stale, Self::read_batch),
            65..75 => self.try_data(stale, Self::write_batch),
            75..85 => self.try_learned(second),
            // Regions can be attached (mapped) only over shared memory; over other transports, tries a write instead.
            85..90 if self.client.order.transport != Transport::Shm => self.try_data(stale, Self::write),
            85..90 => self.try_attach(),
            _ => match second {
                Some(second) => self.try_control_with_lease(second),
                None => self.try_control(),
            },
        }
    }

    /// Sends control requests with old rights when the node has forgotten the session.
    fn try_control(&mut self) {
        let (old, session) = (self.some_grants(), &self.client.session);
        let (what, result) = match self.random.below(4) {
            0 => ("seal", session.seal(&mut *self.link, &old).map(drop)),
            1 => ("release", session.release(&mut *self.link, &old).map(drop)),
            2 => ("release of all", session.release_all(&mut *self.link).map(drop)),
            _ => ("renewal", session.renew(&mut *self.link).map(drop)),
        };
        self.judge(what, &[Code::UnknownSession], result);
    }

    /// Sends control requests with old rights while the node knows the session by its second lease. So it is the
    /// region's epoch for which they are refused.
    fn try_control_with_lease(&mut self, second: &Holding) {
        let (old, session) = (self.some_grants(), &self.client.session);
        match self.random.below(4) {
            0 => {
                let result = session.seal(&mut *self.link, &old).map(drop);
                self.judge("seal", &[Code::StaleEpoch], result);
            }
            1 => match session.release(&mut *self.link, &old) {
                // None of these epochs is the session's, so nothing is released.
                Ok(Reply::Release(released)) if released.regions == 0 => self.tally.add("stale, passed over"),
                other => self.tally.add(format!("wrong: a stale release came to {other:?}")),
            },
            _ => self.try_mixed(second),
        }
    }

    fn try_data(&mut self, refused: &[Code], operation: impl FnOnce(&mut Self) -> Done) {
        let done = operation(self);
        if !done.bytes_are_own {
            self.tally.add(format!("wrong: bytes of a stale {}", done.what));
        }
        if let Err(LinkError::Refused { .. }) = done.result {
            self.data_refused += 1;
        }
        self.judge(done.what, refused, done.result);
    }

    /// Tries the newer epoch of a region, learned from a refusal. Epochs are not secret, but the old handle does not
    /// match.
    fn try_learned(&mut self, second: Option<&Holding>) {
        let range = self.range();
        let region = range.span.region;
        let learned = self.learned.get(&region).copied();
        // A region that the zombie leases again is left out: over shared memory a mapping needs no handle, so it would
        // work.
        let is_own = |epoch| second.is_some_and(|own| own.grant.region == region && own.grant.epoch == epoch);
        let Some(epoch) = learned.filter(|epoch| !is_own(*epoch)) else {
            return self.try_data(&[Code::StaleEpoch], Self::read);
        };
        let range = Range { span: Span { epoch, ..range.span }, ..range };
        let reads = self.random.below(2) == 0;
        self.try_data(&[Code::WrongHandle, Code::StaleEpoch], |worker| {
            if reads {
                read_ranges(&mut *worker.link, "read at the new epoch", &[range])
            } else {
                write_ranges(&mut *worker.link, "write at the new epoch", &[range])
            }
        });
    }

    fn try_attach(&mut self) {
        let Grant { region, epoch, handle } = self.some_holding().grant;
        let attach = Request::Attach(Attach { region, epoch, handle });
        // A refused request is answered without descriptors, so an ordinary call suffices.
        let result = self.link.call(&attach, soon()).map(drop);
        self.judge("attach", &[Code::StaleEpoch], result);
    }

    /// Tries a batch that begins in the region of the second lease and goes on in an old one. Only the first part may
    /// succeed.
    fn try_mixed(&mut self, second: &Holding) {
        let own = Range { holding: second, span: Span { bytes: 512, ..whole(&second.grant) } };
        let old = self.range();
        let reads = self.random.below(2) == 0;
        // If this process could not renew the second lease in time, that part is refused as well.
        self.try_data(&[Code::StaleEpoch, Code::LeaseExpired], |worker| {
            let done = if reads {
                read_ranges(&mut *worker.link, "read batch with one old range", &[own, old])
            } else {
                write_ranges(&mut *worker.link, "write batch with one old range", &[own, old])
            };
            if let Err(LinkError::Refused { index, refusal }) = done.result
                && (index == 1) != (refusal.code == Code::StaleEpoch)
            {
                worker.tally.add(format!("wrong: of a {} range {index} was refused", done.what));
            }
            done
        });
    }

    fn judge(&mut self, what: &str, refused: &[Code], result: Result<(), LinkError>) {
        match result {
            Err(LinkError::Refused { refusal, .. }) if refused.contains(&refusal.code) => {
                self.tally.add(format!("stale, {:?}", refusal.code));
            }
            Err(LinkError::Disconnected(_) | LinkError::TimedOut) => self.note_disconnect(),
            Ok(()) => self.tally.add(format!("wrong: a stale {what} was accepted")),
            Err(error) => self.tally.add(format!("wrong: a stale {what} came to: {error}")),
        }
    }

    fn some_holding(&mut self) -> &'a Holding {
        let held = &self.client.held;
        &held[self.random.below(held.len() as u64) as usize]
    }

    fn some_grants(&mut self) -> Vec<Grant> {
        let first = self.random.below(self.client.held.len() as u64) as usize;
        let count = 1 + self.random.below(3) as usize;
        self.client.held.iter().skip(first).take(count).map(|holding| holding.grant.clone()).collect()
    }

    /// Draws a range of any region. After the stop most are small. Before it many are large, so that the stop comes in
    /// the middle of a transfer.
    fn range(&mut self) -> Range<'a> {
        let longest = match self.random.below(if self.is_stale { 32 } else { 4 }) {
            0 => MIB,
            1..8 => 64 << 10,
            _ => 4 << 10,
        };
        self.range_up_to(longest)
    }

    fn range_up_to(&mut self, longest: u64) -> Range<'a> {
        let holding = self.some_holding();
        // A range has 8 bytes or more, so that another session's bytes cannot equal the zombie's by chance.
        let bytes = 8 + self.random.below(longest - 7);
        let offset = self.random.below(MIB - bytes + 1);
        Range { holding, span: Span { bytes: bytes as u32, offset, ..whole(&holding.grant) } }
    }

    fn batch(&mut self) -> Vec<Range<'a>> {
        (0..2 + self.random.below(15)).map(|_| self.range_up_to(2 << 10)).collect()
    }

    fn read(&mut self) -> Done {
        let range = self.range();
        let done = read_ranges(&mut *self.link, "read", std::slice::from_ref(&range));
        self.learn(&[range], done)
    }

    fn write(&mut self) -> Done {
        let range = self.range();
        let done = write_ranges(&mut *self.link, "write", std::slice::from_ref(&range));
        self.learn(&[range], done)
    }

    fn read_batch(&mut self) -> Done {
        let ranges = self.batch();
        let done = read_ranges(&mut *self.link, "read batch", &ranges);
        self.learn(&ranges, done)
    }

    fn write_batch(&mut self) -> Done {
        let ranges = self.batch();
        let done = write_ranges(&mut *self.link, "write batch", &ranges);
        self.learn(&ranges, done)
    }

    fn learn(&mut self, ranges: &[Range<'_>], done: Done) -> Done {
        if let Err(LinkError::Refused { index, refusal }) = &done.result
            && refusal.code == Code::StaleEpoch
        {
            self.learned.insert(ranges[*index].span.region, Epoch(refusal.detail));
        }
        done
    }
}

fn whole(grant: &Grant) -> Span {
    farpool_tests::raw_session::span(grant, 0, MIB as usize)
}

fn read_ranges(link: &mut dyn Link, what: &'static str, ranges: &[Range<'_>]) -> Done {
    let mut buffers: Vec<Vec<u8>> =
        ranges.iter().map(|range| vec![UNREAD; range.span.bytes as usize]).collect();
    let mut ops: Vec<ReadOp<'_>> =
        ranges.iter().zip(&mut buffers).map(|(range, into)| ReadOp { span: range.span, into }).collect();
    let result = link.read(&mut ops, soon());
    let bytes_are_own = match &result {
        Ok(()) => ranges
            .iter()
            .zip(&buffers)
            .all(|(range, found)| range.holding.canary.is_at(range.span.offset, found)),
        Err(_) => {
            // The first buffer holds the number of the refused range if a batch was refused.
            if ranges.len() > 1 {
                buffers[0][..4].fill(UNREAD);
            }
            ranges
                .iter()
                .zip(&buffers)
                .all(|(range, left)| range.holding.canary.is_harmless(range.span.offset, left))
        }
    };
    Done { what, result, bytes_are_own }
}

/// Writes the contents that the ranges hold already, so that any number of threads may write at once.
fn write_ranges(link: &mut dyn Link, what: &'static str, ranges: &[Range<'_>]) -> Done {
    let from = |range: &Range<'_>| range.span.bytes as usize;
    let ops: Vec<WriteOp<'_>> = ranges
        .iter()
        .map(|range| WriteOp {
            span: range.span,
            from: range.holding.canary.at(range.span.offset, from(range)),
        })
        .collect();
    Done { what, result: link.write(&ops, soon()), bytes_are_own: true }
}
