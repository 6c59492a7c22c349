//! Parity of files that are published in stripes: it is added when the file is sealed, and bytes that no node has are
//! computed from it.
//!
//! Parity lies in the map of the file behind its end, where no read of a user reaches.

use crate::error::{Error, ErrorKind};
use crate::file::{FileInner, ReadRange};
use crate::leases::Patience;
use crate::node_batches::{Missed, NodeBatches, failure, span};
use crate::node_links::LeasedRegion;
use crate::options::Protection;
use crate::plan::{EXTENT_BYTES_MAX, ReadPlan, Segment, Stripe, Stripes, grouped};
use crate::session_core::ReadPatience;
use farpool_erasure::{CodeError, StripeCode};
use farpool_transport::WriteOp;
use farpool_wire::{Name, mutant};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of each shard that are encoded or computed at once.
const PIECE_BYTES: u64 = EXTENT_BYTES_MAX;

fn wrong(error: CodeError) -> Error {
    Error::new(ErrorKind::Invalid, format!("parity: {error}"))
}

/// Shard that is read: its number, the part that is read, and where that lies. The part may be shorter than what is
/// computed, and zeros follow then.
struct Chosen {
    number: usize,
    segments: Vec<Segment<Arc<LeasedRegion>>>,
    begin: u64,
}

impl FileInner {
    /// Adds parity to a file whose protection asks for it. The caller keeps all other operations out. Does nothing if
    /// it was added before.
    pub(crate) fn add_parity(&self) -> Result<(), Error> {
        let Protection::Rs { data, parity } = self.protection() else { return Ok(()) };
        if self.state().stripes.is_some() {
            return Ok(());
        }
        let runs = self.runs_with_hosts()?;
        let lengths: Vec<(u64, Name)> =
            runs.iter().map(|(run, label)| (run.end - run.start, label.clone())).collect();
        let allocated = self.state().map.allocated();
        let add = |group: Vec<usize>| {
            let group: Vec<(Range<u64>, Name)> = group.into_iter().map(|index| runs[index].clone()).collect();
            self.add_stripe(&group, parity.into())
        };
        let added: Result<Vec<Stripe>, Error> = grouped(&lengths, data.into()).into_iter().map(add).collect();
        match added {
            Ok(stripes) => {
                self.state().stripes = Some(Arc::new(Stripes::new(stripes)));
                Ok(())
            }
            Err(error) => {
                let freed = self.state().map.cut_off(allocated);
                self.session.leases.give_back(freed);
                Err(error.during("adding parity"))
            }
        }
    }

    /// Gives the file a mirror if no stripe of it would have as many parts as the code of its protection: it is too
    /// short, or lies on too few hosts. Parity would then take as much memory as a mirror or more.
    pub(crate) fn mirror_if_too_short(&self) -> Result<(), Error> {
        let Protection::Rs { data, .. } = self.protection() else { return Ok(()) };
        let runs = self.runs_with_hosts()?.into_iter().map(|(run, label)| (run.end - run.start, label));
        let longest = grouped(&runs.collect::<Vec<_>>(), data.into()).iter().map(Vec::len).max();
        if longest < Some(data.into()) {
            self.is_mirrored_instead.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the runs of the file that lie together in a region, with the labels of their hosts.
    fn runs_with_hosts(&self) -> Result<Vec<(Range<u64>, Name)>, Error> {
        let state = self.state();
        let length = state.map.length();
        let mut runs: Vec<(Range<u64>, u64, Arc<LeasedRegion>)> = Vec::new();
        for (extent, copies) in state.map.extents().filter(|(extent, _)| extent.start < length) {
            let extent = extent.start..extent.end.min(length);
            let copy = copies.first().ok_or_else(|| {
                Error::new(ErrorKind::Lost, format!("bytes from {} on have no copy left", extent.start))
            })?;
            let (region, offset) = (&copy.allocation.region, copy.allocation.offset);
            match runs.last_mut() {
                Some((run, begin, of))
                    if Arc::ptr_eq(of, region) && *begin + (extent.start - run.start) == offset =>
                {
                    run.end = extent.end;
                }
                _ => runs.push((extent, offset, Arc::clone(region))),
            }
        }
        Ok(runs.into_iter().map(|(run, _, region)| (run, region.node.info.host_label.clone())).collect())
    }

    /// Allocates and writes the parity of some runs, each on another host.
    fn add_stripe(&self, runs: &[(Range<u64>, Name)], parity: usize) -> Result<Stripe, Error> {
        let code = StripeCode::new(runs.len(), parity).map_err(wrong)?;
        let bytes = runs.iter().map(|(run, _)| run.end - run.start).max().unwrap_or(0);
        let mut labels: Vec<Name> = runs.iter().map(|(_, label)| label.clone()).collect();
        let mut shards: Vec<Range<u64>> = runs.iter().map(|(run, _)| run.clone()).collect();
        for _ in 0..parity {
            let run = self.session.leases.allocate_run(self.group, bytes, &labels, Patience::Full)?;
            labels.extend(run.first().map(|first| first.region.node.info.host_label.clone()));
            let mut state = self.state();
            let start = state.map.allocated();
            run.into_iter().for_each(|extent| state.map.push(extent.bytes, vec![extent]));
            shards.push(start..start + bytes);
        }
        let (data, parity) = shards.split_at(runs.len());
        for begin in (0..bytes).step_by(PIECE_BYTES as usize) {
            let piece = PIECE_BYTES.min(bytes - begin);
            let mut pieces = vec![vec![0; piece as usize]; data.len()];
            let mut ranges: Vec<ReadRange<'_>> = data
                .iter()
                .zip(&mut pieces)
                .map(|(shard, piece)| {
                    let part = part_of(shard, begin, piece.len() as u64);
                    ReadRange { offset: part.start, into: &mut piece[..(part.end - part.start) as usize] }
                })
                .filter(|range| !range.into.is_empty())
                .collect();
            self.fetch(&mut ranges.iter_mut().collect::<Vec<_>>())?;
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let encoded = code.parity(&pieces).map_err(wrong)?;
            self.write_parity(parity, begin, &encoded)?;
        }
        let mut state = self.state();
        parity.iter().for_each(|shard| state.map.wrote_behind(shard.clone()));
        drop(state);
        Ok(Stripe { data: runs.len(), shards })
    }

    /// Writes a piece of each parity shard.
    fn write_parity(&self, shards: &[Range<u64>], begin: u64, pieces: &[Vec<u8>]) -> Result<(), Error> {
        let segments: Vec<(Segment<Arc<LeasedRegion>>, &[u8])> = {
            let state = self.state();
            let of = |(shard, piece): (&Range<u64>, &'_ Vec<u8>)| {
                let part = part_of(shard, begin, piece.len() as u64);
                state.map.copies_of(part.clone()).into_iter().map(move |segment| {
                    let within = (segment.file.start - part.start) as usize;
                    let bytes = (segment.file.end - segment.file.start) as usize;
                    (segment, within..within + bytes)
                })
            };
            let parts = shards.iter().zip(pieces).flat_map(|(shard, piece)| {
                of((shard, piece)).map(move |(segment, within)| (segment, &piece[within]))
            });
            parts.collect()
        };
        let mut by_node = NodeBatches::default();
        for (segment, from) in &segments {
            by_node.add(&segment.region, WriteOp { span: span(segment), from });
        }
        let outcomes = by_node.write(&self.session);
        let failed = segments.iter().find_map(|(segment, _)| failure(&outcomes, &segment.region));
        failed.map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Computes ranges that no node has from others of their stripes. Nodes that fail are added to `failed`.
    ///
    /// Errors: too few others can be read.
    pub(crate) fn compute(
        &self,
        stripes: &Stripes,
        ranges: Vec<(u64, &mut [u8])>,
        failed: &mut Vec<Missed>,
        patience: ReadPatience,
    ) -> Result<(), Error> {
        for (mut offset, mut into) in ranges {
            while !into.is_empty() {
                let (stripe, wanted) = stripes.at(offset).ok_or_else(|| {
                    Error::new(ErrorKind::Lost, format!("bytes from {offset} on have no copy left"))
                })?;
                let shard = &stripe.shards[wanted];
                let begin = offset - shard.start;
                let count = (into.len() as u64).min(shard.end - offset).min(PIECE_BYTES);
                let computed = self.compute_piece(stripe, wanted, begin..begin + count, failed, patience)?;
                let (now, later) = into.split_at_mut(count as usize);
                now.copy_from_slice(&computed);
                (offset, into) = (offset + count, later);
            }
        }
        Ok(())
    }

    /// Computes a piece of a shard, given by its bytes within the shard.
    fn compute_piece(
        &self,
        stripe: &Stripe,
        wanted: usize,
        piece: Range<u64>,
        failed: &mut Vec<Missed>,
        patience: ReadPatience,
    ) -> Result<Vec<u8>, Error> {
        let code = StripeCode::new(stripe.data, stripe.shards.len() - stripe.data).map_err(wrong)?;
        let bytes = (piece.end - piece.start) as usize;
        loop {
            let chosen = self.choose_shards(stripe, wanted, &piece, failed);
            if chosen.len() < stripe.data {
                let shard = &stripe.shards[wanted];
                let message = format!(
                    "bytes {} to {} have no copy left, and only {} of the {} other parts of their stripe that are \
                     needed to compute them can be read",
                    shard.start + piece.start,
                    (shard.start + piece.end).min(shard.end),
                    chosen.len(),
                    stripe.data
                );
                let why = failed
                    .first()
                    .map_or_else(|| Error::new(ErrorKind::Lost, ""), |(_, error)| error.clone());
                return Err(Error::new(why.kind(), message));
            }
            let mut pieces = vec![vec![0; bytes]; chosen.len()];
            let mut asked = Vec::new();
            for (shard, piece) in chosen.iter().zip(&mut pieces) {
                let mut rest = &mut piece[..];
                let mut at = shard.begin;
                for segment in &shard.segments {
                    let (_, behind) = rest.split_at_mut((segment.file.start - at) as usize);
                    let (into, behind) =
                        behind.split_at_mut((segment.file.end - segment.file.start) as usize);
                    (rest, at) = (behind, segment.file.end);
                    asked.push((segment, into));
                }
            }
            let missed = self.fetch_plain(asked, patience);
            if missed.is_empty() {
                let have =
                    chosen.into_iter().zip(pieces).map(|(shard, piece)| (shard.number, piece)).collect();
                return code.compute(have, wanted).map_err(wrong);
            }
            failed.extend(missed);
        }
    }

    /// Chooses as many shards other than `wanted` as there are data, if so many can be read. Nodes that did not answer
    /// lately come last.
    fn choose_shards(
        &self,
        stripe: &Stripe,
        wanted: usize,
        piece: &Range<u64>,
        failed: &[Missed],
    ) -> Vec<Chosen> {
        let rank = |region: &Arc<LeasedRegion>| {
            let has_failed = failed.iter().any(|(other, _)| Arc::ptr_eq(&other.node, &region.node));
            (!has_failed && region.check_usable().is_ok()).then_some(u32::from(region.node.is_suspect()))
        };
        let state = self.state();
        let mut chosen: Vec<(bool, Chosen)> = Vec::new();
        for (number, shard) in stripe.shards.iter().enumerate().filter(|(number, _)| *number != wanted) {
            let part = part_of(shard, piece.start, piece.end - piece.start);
            let ReadPlan::Fetch { segments, bare } = state.map.plan_read(part.clone(), rank) else {
                continue;
            };
            if bare.is_empty() || mutant!(LostShardIsZero) {
                let is_suspect = segments.iter().any(|segment| segment.region.node.is_suspect());
                chosen.push((is_suspect, Chosen { number, segments, begin: part.start }));
            }
        }
        chosen.sort_by_key(|(is_suspect, _)| *is_suspect);
        chosen.into_iter().map(|(_, shard)| shard).take(stripe.data).collect()
    }
}

/// Returns the part of a shard that a piece covers: empty if the shard ends before it.
fn part_of(shard: &Range<u64>, begin: u64, bytes: u64) -> Range<u64> {
    let start = (shard.start + begin).min(shard.end);
    start..(start + bytes).min(shard.end)
}
