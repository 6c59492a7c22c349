//! Runs of published files that no node has any more: this node computes them from others of their stripe.

use crate::copying::Source;
use crate::memory::Memory;
use crate::service::NodeService;
use farpool_erasure::StripeCode;
use farpool_host::Event;
use farpool_transport::LinkError;
use farpool_wire::control::{ComputedRun, RepairRun, ShardSource};
use farpool_wire::data::Span;
use farpool_wire::{Refusal, mutant};
use std::collections::BTreeSet;

/// Bytes of a run that are computed at once, with as many of each shard in memory.
const PIECE_BYTES: usize = 256 << 10;

/// Shards that a run is computed from.
struct Shards<'c> {
    code: StripeCode,
    computed: &'c ComputedRun,
    /// Numbers of shards that are not read: they could not be, or may be damaged.
    left_out: BTreeSet<u8>,
}

impl Shards<'_> {
    /// Returns the shards to read: as many as there are data, if so many are left.
    fn chosen(&self) -> impl Iterator<Item = &ShardSource> {
        let left = self.computed.sources.iter().filter(|shard| !self.left_out.contains(&shard.shard));
        left.take(self.computed.data.into())
    }
}

impl<M: Memory> NodeService<M> {
    /// Computes a run, and writes it to the region that `into` names. Returns false if too few shards can be read, or
    /// if what they give is not the run.
    pub(crate) fn compute_run(
        &self,
        source: &mut Source<'_>,
        computed: &ComputedRun,
        run: &RepairRun,
        into: &Span,
    ) -> Result<bool, Refusal> {
        let file = source.order.signed.file;
        let told = |event: fn(&'static str, String) -> Event, kind: &'static str, why: String| {
            let message = format!("run {} of file {file} {why}", run.run);
            self.host.log(&event(kind, message));
        };
        let code = match StripeCode::new(computed.data.into(), computed.parity.into()) {
            Ok(code) => code,
            Err(error) => {
                told(Event::warn, "copy_not_read", format!("cannot be computed: {error}"));
                return Ok(false);
            }
        };
        // If the result is wrong, one of the shards is damaged. It is found by leaving out each of them, while others
        // can take its place.
        let mut tried: BTreeSet<Vec<u8>> = BTreeSet::new();
        let without = computed.sources.iter().map(|shard| Some(shard.shard));
        for without in std::iter::once(None).chain(without) {
            let mut shards = Shards { code, computed, left_out: without.into_iter().collect() };
            if !tried.insert(shards.chosen().map(|shard| shard.shard).collect()) {
                continue;
            }
            match self.compute_from(source, &mut shards, run, into)? {
                Ok(checksum) if run.checksum == 0 || run.checksum == checksum || mutant!(ShardMistaken) => {
                    return Ok(true);
                }
                Ok(checksum) => {
                    let wanted = run.checksum;
                    let why = format!(
                        "was computed from damaged bytes: its checksum is {checksum:08x} and should be {wanted:08x}"
                    );
                    told(Event::error, "copy_damaged", why);
                }
                Err(why) => told(Event::warn, "copy_not_read", format!("cannot be computed: {why}")),
            }
        }
        Ok(false)
    }

    /// Computes a run from as many shards as there are data, and from others in place of those that cannot be read.
    /// Returns its checksum, or why too few can be read.
    fn compute_from(
        &self,
        source: &mut Source<'_>,
        shards: &mut Shards<'_>,
        run: &RepairRun,
        into: &Span,
    ) -> Result<Result<u32, String>, Refusal> {
        let (mut done, mut checksum) = (0, 0);
        while done < run.bytes {
            let bytes = (run.bytes - done).min(PIECE_BYTES as u32) as usize;
            let mut pieces = match read_shards(source, shards, done, bytes) {
                Ok(pieces) => pieces,
                Err(why) => return Ok(Err(why)),
            };
            let shard = usize::from(shards.computed.shard);
            let shard = if mutant!(ShardMistaken) { (shard + 1) % pieces.len() } else { shard };
            let mut piece = vec![0; bytes];
            let have = pieces.iter_mut().map(|(number, piece)| (*number, &mut piece[..]));
            if let Err(error) = shards.code.compute(have, shard, &mut piece) {
                return Ok(Err(error.to_string()));
            }
            checksum = crc32c::crc32c_append(checksum, &piece);
            self.put_piece(source, into, u64::from(run.offset) + u64::from(done), &piece)?;
            done += bytes as u32;
        }
        Ok(Ok(checksum))
    }
}

/// Reads a range of as many shards as there are data. Leaves out those that cannot be read, from now on. Returns the
/// numbers of the shards with their bytes.
///
/// Errors: why the last one could not be read, if too few are left.
fn read_shards(
    source: &mut Source<'_>,
    shards: &mut Shards<'_>,
    begin: u32,
    bytes: usize,
) -> Result<Vec<(usize, Vec<u8>)>, String> {
    let order = source.order;
    let wanted = usize::from(shards.computed.data);
    let mut pieces: Vec<(usize, Vec<u8>)> = Vec::with_capacity(wanted);
    let mut why = "its order names too few shards".to_owned();
    for shard in shards.computed.sources.iter() {
        if pieces.len() == wanted {
            break;
        }
        let Some(region) = order.regions.get(shard.copy.region as usize) else { continue };
        if shards.left_out.contains(&shard.shard) || source.failed.contains(&region.node) {
            continue;
        }
        // A shard that ends before is followed by zeros.
        let mut piece = vec![0; bytes];
        let there = (shard.bytes.saturating_sub(begin) as usize).min(bytes);
        let offset = u64::from(shard.copy.offset) + u64::from(begin);
        match if there > 0 { source.read(region, offset, &mut piece[..there]) } else { Ok(()) } {
            Ok(()) => pieces.push((shard.shard.into(), piece)),
            Err(error) => {
                why = format!("node {}: {error}", region.node);
                shards.left_out.insert(shard.shard);
                if !matches!(error, LinkError::Refused { .. }) {
                    source.failed.insert(region.node);
                }
            }
        }
    }
    if pieces.len() < wanted { Err(why) } else { Ok(pieces) }
}
