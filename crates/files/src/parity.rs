//! Parity of files that are published in stripes: it is added when the file is sealed, and bytes that no node has are
//! computed from it.
//!
//! Parity lies in the map of the file behind its end, where no read of a user reaches.

use crate::error::{Error, ErrorKind};
use crate::file::{FileInner, ReadRange};
use crate::leases::Patience;
use crate::node_batches::{Missed, NodeBatches, failure, may_arrive_late, span};
use crate::node_links::LeasedRegion;
use crate::options::Protection;
use crate::plan::{EXTENT_BYTES_MAX, ReadPlan, Segment, Stripe, Stripes, grouped};
use crate::session_core::{Effort, TransferPatience};
use farpool_erasure::{CodeError, StripeCode};
use farpool_transport::WriteOp;
use farpool_wire::{Name, mutant};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of each shard that are encoded at once, and of a shard that are computed at once.
const PIECE_BYTES: u64 = EXTENT_BYTES_MAX;
/// Number of times that parity is added to a file, at most.
const PARITY_TRIES: u32 = 4;
/// Time in ms before parity is added again.
const PARITY_PAUSE_MS: u64 = 250;
/// Bytes that are computed from one answer of the nodes. As many bytes of each shard that is read are in memory.
const BATCH_BYTES: u64 = 4 * PIECE_BYTES;

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

/// Piece of a shard that no node has.
struct LostPiece<'s, 'b> {
    stripe: &'s Stripe,
    /// Number of the shard.
    wanted: usize,
    /// First byte within the shard.
    begin: u64,
    into: &'b mut [u8],
}

impl LostPiece<'_, '_> {
    /// Returns the bytes of the piece within its shard.
    fn range(&self) -> Range<u64> {
        self.begin..self.begin + self.into.len() as u64
    }

    /// Returns the error for a piece of which only so many other shards can be read.
    fn too_few(&self, chosen: usize, failed: &[Missed]) -> Error {
        let (shard, piece) = (&self.stripe.shards[self.wanted], self.range());
        let message = format!(
            "bytes {} to {} have no copy left, and only {chosen} of the {} other parts of their stripe that are needed \
             to compute them can be read",
            shard.start + piece.start,
            shard.start + piece.end,
            self.stripe.data
        );
        Error::new(failed.first().map_or(ErrorKind::Lost, |(_, error)| error.kind()), message)
    }
}

impl FileInner {
    /// Adds parity to a file whose protection asks for it. The caller keeps all other operations out. Does nothing if
    /// it was added before.
    pub(crate) fn add_parity(&self) -> Result<(), Error> {
        let Protection::Rs { data, parity } = self.protection() else {
            self.drop_stripes_ahead();
            return Ok(());
        };
        if self.state().stripes.is_some() {
            return Ok(());
        }
        let before = self.state().map.allocated();
        let ahead = self.take_stripes_ahead();
        let protected = Stripes::new(ahead.clone());
        let runs = self.runs_with_hosts(|extent| protected.at(extent.start).is_some())?;
        let lengths: Vec<(u64, Name)> =
            runs.iter().map(|(run, label)| (run.end - run.start, label.clone())).collect();
        let allocated = self.state().map.allocated();
        let add = |group: Vec<usize>| {
            let group: Vec<(Range<u64>, Name)> = group.into_iter().map(|index| runs[index].clone()).collect();
            self.add_stripe(&group, parity.into())
        };
        let mut left = PARITY_TRIES;
        loop {
            let added: Result<Vec<Stripe>, Error> =
                grouped(&lengths, data.into()).into_iter().map(add).collect();
            let error = match added {
                Ok(added) => {
                    let stripes = ahead.into_iter().chain(added).collect();
                    self.state().stripes = Some(Arc::new(Stripes::new(stripes)));
                    return Ok(());
                }
                Err(error) => error,
            };
            left -= 1;
            // A node that was to have the parity is lost or silent. Another one may be there.
            let is_of_a_node = error.refusal().is_none()
                && matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable | ErrorKind::Exhausted);
            let goes_on = left > 0 && is_of_a_node;
            let freed = self.state().map.cut_off(if goes_on { allocated } else { before });
            self.session.leases.give_back(freed);
            if !goes_on {
                return Err(error.during("adding parity"));
            }
            self.session.base.pause(PARITY_PAUSE_MS)?;
        }
    }

    /// Gives the file a mirror if no stripe of it would have as many parts as the code of its protection: it is too
    /// short, or lies on too few hosts. Parity would then take as much memory as a mirror or more.
    pub(crate) fn mirror_if_too_short(&self) -> Result<(), Error> {
        let Protection::Rs { data, .. } = self.protection() else { return Ok(()) };
        let runs = self.runs_with_hosts(|_| false)?;
        let runs = runs.into_iter().map(|(run, label)| (run.end - run.start, label));
        let longest = grouped(&runs.collect::<Vec<_>>(), data.into()).iter().map(Vec::len).max();
        if longest < Some(data.into()) {
            self.is_mirrored_instead.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the runs of the file that lie together in a region, with the labels of their hosts. Leaves out extents
    /// for which `is_left_out` is true.
    fn runs_with_hosts(
        &self,
        is_left_out: impl Fn(&Range<u64>) -> bool,
    ) -> Result<Vec<(Range<u64>, Name)>, Error> {
        let state = self.state();
        let length = state.map.length();
        let mut runs: Vec<(Range<u64>, u64, Arc<LeasedRegion>)> = Vec::new();
        let is_one = |extent: &Range<u64>| extent.start < length && !is_left_out(extent);
        for (extent, copies) in state.map.extents().filter(|(extent, _)| is_one(extent)) {
            let extent = extent.start..extent.end.min(length);
            let copy = copies.first().ok_or_else(|| {
                Error::new(ErrorKind::Lost, format!("bytes from {} on have no copy left", extent.start))
            })?;
            let (region, offset) = (&copy.allocation.region, copy.allocation.offset);
            match runs.last_mut() {
                Some((run, begin, of))
                    if Arc::ptr_eq(of, region)
                        && run.end == extent.start
                        && *begin + (extent.start - run.start) == offset =>
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
        let mut pieces = vec![vec![0; bytes.min(PIECE_BYTES) as usize]; data.len()];
        let mut encoded = vec![vec![0; bytes.min(PIECE_BYTES) as usize]; parity.len()];
        for begin in (0..bytes).step_by(PIECE_BYTES as usize) {
            let count = PIECE_BYTES.min(bytes - begin);
            pieces.iter_mut().chain(&mut encoded).for_each(|piece| piece.truncate(count as usize));
            let mut ranges = Vec::with_capacity(data.len());
            for (shard, piece) in data.iter().zip(&mut pieces) {
                let part = part_of(shard, begin, count);
                let (into, behind) = piece.split_at_mut((part.end - part.start) as usize);
                behind.fill(0);
                if !into.is_empty() {
                    ranges.push(ReadRange { offset: part.start, into });
                }
            }
            self.fetch(&mut ranges.iter_mut().collect::<Vec<_>>(), Effort::Usual)?;
            code.encode(&pieces, &mut encoded).map_err(wrong)?;
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
        let outcomes = by_node.write(&self.session, &|_, _| true);
        for (segment, _) in &segments {
            if failure(&outcomes, &segment.region)
                .is_some_and(|error| may_arrive_late(error, &segment.region))
            {
                self.session.leases.note_late(&segment.region, segment.offset);
            }
        }
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
        patience: TransferPatience,
    ) -> Result<(), Error> {
        let mut pieces = Vec::new();
        for (mut offset, mut into) in ranges {
            while !into.is_empty() {
                let (stripe, wanted) = stripes.at(offset).ok_or_else(|| {
                    Error::new(ErrorKind::Lost, format!("bytes from {offset} on have no copy left"))
                })?;
                let shard = &stripe.shards[wanted];
                let count = (into.len() as u64).min(shard.end - offset).min(PIECE_BYTES);
                let (now, later) = into.split_at_mut(count as usize);
                pieces.push(LostPiece { stripe, wanted, begin: offset - shard.start, into: now });
                (offset, into) = (offset + count, later);
            }
        }
        let mut left = &mut pieces[..];
        // Kept from one batch to the next: fresh memory costs as much as the computing.
        let mut scratch = Vec::new();
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |piece: &&LostPiece<'_, '_>| {
                bytes += piece.into.len() as u64;
                bytes <= BATCH_BYTES
            };
            let count = left.iter().take_while(fits).count();
            let (batch, later) = left.split_at_mut(count);
            self.compute_pieces(batch, &mut scratch, failed, patience)?;
            left = later;
        }
        // Nodes may have made again what this file lacks.
        self.session.repair.request();
        Ok(())
    }

    /// Computes pieces of shards. All nodes are asked at once. `scratch` gets what they answer.
    fn compute_pieces(
        &self,
        pieces: &mut [LostPiece<'_, '_>],
        scratch: &mut Vec<u8>,
        failed: &mut Vec<Missed>,
        patience: TransferPatience,
    ) -> Result<(), Error> {
        loop {
            let chosen: Result<Vec<Vec<Chosen>>, Error> =
                pieces.iter().map(|piece| self.choose_shards(piece, failed)).collect();
            let chosen = chosen?;
            let bytes_of =
                |(piece, shards): (&LostPiece<'_, '_>, &Vec<Chosen>)| piece.into.len() * shards.len();
            let bytes: usize = pieces.iter().zip(&chosen).map(bytes_of).sum();
            if scratch.len() < bytes {
                scratch.resize(bytes, 0);
            }
            let mut rest = &mut scratch[..bytes];
            let mut asked = Vec::new();
            for (piece, shards) in pieces.iter().zip(&chosen) {
                for shard in shards {
                    let (mut of_shard, behind) = rest.split_at_mut(piece.into.len());
                    rest = behind;
                    let mut at = shard.begin;
                    for segment in &shard.segments {
                        let (gap, behind) = of_shard.split_at_mut((segment.file.start - at) as usize);
                        gap.fill(0);
                        let (into, behind) =
                            behind.split_at_mut((segment.file.end - segment.file.start) as usize);
                        (of_shard, at) = (behind, segment.file.end);
                        asked.push((segment, into));
                    }
                    of_shard.fill(0);
                }
            }
            let missed = self.fetch_plain(asked, patience);
            if !missed.is_empty() {
                failed.extend(missed);
                continue;
            }
            let mut rest = &mut scratch[..bytes];
            for (piece, shards) in pieces.iter_mut().zip(chosen) {
                let Stripe { shards: all, data } = piece.stripe;
                let code = StripeCode::new(*data, all.len() - data).map_err(wrong)?;
                let (of_piece, behind) = rest.split_at_mut(piece.into.len() * shards.len());
                rest = behind;
                let have = shards.iter().map(|shard| shard.number).zip(of_piece.chunks_mut(piece.into.len()));
                code.compute(have, piece.wanted, piece.into).map_err(wrong)?;
            }
            return Ok(());
        }
    }

    /// Chooses as many shards other than that of the piece as there are data. Nodes that did not answer lately come
    /// last.
    ///
    /// Errors: so many cannot be read.
    fn choose_shards(&self, piece: &LostPiece<'_, '_>, failed: &[Missed]) -> Result<Vec<Chosen>, Error> {
        let rank = |region: &Arc<LeasedRegion>| {
            let has_failed = failed.iter().any(|(other, _)| Arc::ptr_eq(&other.node, &region.node));
            (!has_failed && region.check_usable().is_ok()).then_some(u32::from(region.node.is_suspect()))
        };
        let state = self.state();
        let mut chosen: Vec<(bool, Chosen)> = Vec::new();
        let others = piece.stripe.shards.iter().enumerate().filter(|(number, _)| *number != piece.wanted);
        for (number, shard) in others {
            let part = part_of(shard, piece.begin, piece.into.len() as u64);
            let ReadPlan::Fetch { segments, bare } = state.map.plan_read(part.clone(), rank) else {
                continue;
            };
            if bare.is_empty() || mutant!(LostShardIsZero) {
                let is_suspect = segments.iter().any(|segment| segment.region.node.is_suspect());
                chosen.push((is_suspect, Chosen { number, segments, begin: part.start }));
            }
        }
        if chosen.len() < piece.stripe.data {
            return Err(piece.too_few(chosen.len(), failed));
        }
        chosen.sort_by_key(|(is_suspect, _)| *is_suspect);
        Ok(chosen.into_iter().map(|(_, shard)| shard).take(piece.stripe.data).collect())
    }
}

/// Returns the part of a shard that a piece covers: empty if the shard ends before it.
fn part_of(shard: &Range<u64>, begin: u64, bytes: u64) -> Range<u64> {
    let start = (shard.start + begin).min(shard.end);
    start..(start + bytes).min(shard.end)
}
