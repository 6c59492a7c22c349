//! Hit ratios of cache policies over traces of block numbers, compared with the best possible ratio.
//!
//! ```text
//! cargo run --release --package farpool-cache --example policies [-- SEED [OFFSETS ..]]
//! ```
//!
//! All figures of one seed except the nanoseconds are the same in every run. farpool-cache uses `quick_cache`. `moka`
//! is W-TinyLFU. MIN (Belady 1966) knows all later accesses, and no policy has more hits.
//!
//! OFFSETS are files that list the reads of a program, one offset in bytes per line. This records those of SQLite:
//!
//! ```text
//! strace -y -s 0 -e trace=pread64 -o reads sqlite3 tpch.sqlite < queries.sql
//! sed -n 's/^pread64([0-9]*<.*tpch.sqlite>.*, \([0-9]*\)) *= .*/\1/p' reads > offsets
//! ```

use farpool_cache::CacheOptions;
use moka::policy::EvictionPolicy;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::time::Instant;

/// Number of different blocks in a generated trace, and number of its accesses.
const BLOCKS: u64 = 20_000;
const ACCESSES: usize = 400_000;
/// Sizes of the caches, in percent of the trace's different blocks.
const PERCENTS: [u64; 5] = [1, 5, 10, 25, 50];
/// Blocks per range in the trace "RangeScan".
const RANGE: u64 = 6;
/// Reads per block of a scan that reads pages of 4 KiB: a block has 64 KiB.
const PAGES: u64 = 16;
/// Shards of the caches: the default of `quick_cache`, which farpool-cache keeps, is four per core, and the measured
/// machine has two cores.
const SHARDS: usize = 8;
/// Name of the trace that reads all blocks in order, repeatedly. No cache holds all of them.
const LOOP: &str = "a scan, again and again";

/// Random number generator that makes the same traces on every machine (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipf distribution: the n-th most popular block has weight 1 / n^exponent. The order of popularity is shuffled, so
/// popular blocks are not neighbours.
struct Zipf {
    until: Vec<f64>,
    order: Vec<u64>,
}

impl Zipf {
    fn new(random: &mut Random, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let until = (1..=BLOCKS)
            .map(|n| {
                sum += (n as f64).powf(-exponent);
                sum
            })
            .collect();
        let mut order: Vec<u64> = (0..BLOCKS).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        Zipf { until, order }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let wanted = random.unit() * self.until.last().expect("blocks");
        self.order[self.until.partition_point(|until| *until < wanted).min(self.order.len() - 1)]
    }
}

/// Block numbers in the order of their accesses.
struct Trace {
    name: String,
    accesses: Vec<u64>,
    /// Number of different blocks.
    blocks: u64,
}

fn generated(seed: u64) -> Vec<Trace> {
    let mut random = Random(seed);
    let mut traces = Vec::new();
    for (name, exponent) in [("Zipf 0.8", 0.8), ("Zipf 1.0", 1.0)] {
        let zipf = Zipf::new(&mut random, exponent);
        traces.push((name, (0..ACCESSES).map(|_| zipf.draw(&mut random)).collect()));
    }
    traces.push((LOOP, (0..ACCESSES as u64).map(|at| at % BLOCKS).collect()));
    // Every third access belongs to a scan over all blocks, and the others are drawn by Zipf's law.
    let zipf = Zipf::new(&mut random, 1.0);
    let mixed = |at: u64, random: &mut Random| {
        if at.is_multiple_of(3) { at / 3 % BLOCKS } else { zipf.draw(random) }
    };
    traces.push(("Zipf 1.0 beside a scan", (0..ACCESSES as u64).map(|at| mixed(at, &mut random)).collect()));
    // 90 % of the accesses go to a hot set, a twentieth of the blocks. It moves after each eighth of the trace.
    let phase = ACCESSES as u64 / 8;
    let hot = BLOCKS / 20;
    let shifting = |at: u64, random: &mut Random| {
        let first = at / phase * hot;
        if random.below(10) < 9 { first + random.below(hot) } else { random.below(BLOCKS) }
    };
    traces.push(("a hot set that moves", (0..ACCESSES as u64).map(|at| shifting(at, &mut random)).collect()));
    let mut ranges = Vec::with_capacity(ACCESSES);
    while ranges.len() + RANGE as usize <= ACCESSES {
        let first = random.below(BLOCKS - RANGE);
        ranges.extend(first..first + RANGE);
    }
    traces.push(("RangeScan, uniform", ranges));
    // Like `mixed`, but the scan reads pages: it accesses each block several times in a row and then never again.
    let zipf = Zipf::new(&mut random, 1.0);
    let paged = |at: u64, random: &mut Random| {
        if at.is_multiple_of(3) { at / 3 / PAGES % BLOCKS } else { zipf.draw(random) }
    };
    traces.push((
        "Zipf 1.0 beside a scan by pages",
        (0..ACCESSES as u64).map(|at| paged(at, &mut random)).collect(),
    ));
    traces
        .into_iter()
        .map(|(name, accesses)| Trace { name: name.to_owned(), accesses, blocks: BLOCKS })
        .collect()
}

/// Reads a trace from a file of offsets.
fn recorded(path: &str) -> Result<Trace, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let block_bytes = CacheOptions::default().block_bytes as u64;
    let mut accesses = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let offset: u64 = line.parse().map_err(|_| {
            format!("{path}, line {number}: {line:?}; a number of bytes from 0 to {} is permitted", u64::MAX)
        })?;
        accesses.push(offset / block_bytes);
    }
    let blocks = accesses.iter().collect::<HashSet<_>>().len() as u64;
    if blocks < 100 {
        return Err(format!(
            "{path} has reads of {blocks} blocks; at least 100 are needed, for a cache of 1 %"
        ));
    }
    let name = std::path::Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Trace { name, accesses, blocks })
}

/// Cache of a fixed number of blocks that decides which ones stay.
trait Policy {
    /// Accesses a block. Returns true on a hit; on a miss the block is inserted.
    fn access(&mut self, block: u64) -> bool;
}

/// Hash function without a random seed, so that every run gives the same figures.
type Hashes = BuildHasherDefault<DefaultHasher>;
type QuickCache = quick_cache::sync::Cache<u64, (), quick_cache::UnitWeighter, Hashes>;

impl Policy for QuickCache {
    fn access(&mut self, block: u64) -> bool {
        let found = self.get(&block).is_some();
        if !found {
            self.insert(block, ());
        }
        found
    }
}

fn quick_cache(size: usize, shards: usize, hot_share: f64, ghost_share: f64) -> QuickCache {
    let options = quick_cache::OptionsBuilder::new()
        .shards(shards)
        .estimated_items_capacity(size)
        .weight_capacity(size as u64)
        .hot_allocation(hot_share)
        .ghost_allocation(ghost_share)
        .build()
        .expect("options");
    QuickCache::with_options(options, quick_cache::UnitWeighter, Hashes::default(), Default::default())
}

struct Moka {
    cache: moka::sync::Cache<u64, (), Hashes>,
    /// True if moka runs its pending maintenance when it chooses, which depends on the clock: fast, but hits differ
    /// between runs. False: maintenance runs after each access.
    is_left_alone: bool,
}

impl Policy for Moka {
    fn access(&mut self, block: u64) -> bool {
        let found = self.cache.get(&block).is_some();
        if !found {
            self.cache.insert(block, ());
        }
        if !self.is_left_alone {
            self.cache.run_pending_tasks();
        }
        found
    }
}

fn moka(size: usize, is_left_alone: bool) -> Moka {
    let cache = moka::sync::Cache::builder()
        .max_capacity(size as u64)
        .initial_capacity(size)
        .eviction_policy(EvictionPolicy::tiny_lfu())
        .build_with_hasher(Hashes::default());
    Moka { cache, is_left_alone }
}

/// Cache that evicts the block that was inserted first.
#[derive(Default)]
struct Fifo {
    size: usize,
    there: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Policy for Fifo {
    fn access(&mut self, block: u64) -> bool {
        if !self.there.insert(block) {
            return true;
        }
        self.order.push_back(block);
        if self.order.len() > self.size {
            let oldest = self.order.pop_front().expect("it is not empty");
            self.there.remove(&oldest);
        }
        false
    }
}

/// Cache that evicts the block that was used least recently.
#[derive(Default)]
struct Lru {
    size: usize,
    now: u64,
    last: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Policy for Lru {
    fn access(&mut self, block: u64) -> bool {
        self.now += 1;
        let before = self.last.insert(block, self.now);
        before.map(|before| self.order.remove(&before));
        self.order.insert(self.now, block);
        if self.order.len() > self.size {
            let (_, oldest) = self.order.pop_first().expect("it is not empty");
            self.last.remove(&oldest);
        }
        before.is_some()
    }
}

/// S3-FIFO (SOSP 2023, algorithm 1): a tenth of the room, `small`, is for new blocks. A ghost queue remembers the
/// numbers of blocks that left `small` without enough further accesses.
#[derive(Default)]
struct S3Fifo {
    size: usize,
    /// Accesses to each cached block since it was inserted, at most 3.
    wanted: HashMap<u64, u8>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: Fifo,
}

impl S3Fifo {
    fn new(size: usize) -> S3Fifo {
        let ghosts = Fifo { size: size - size / 10, ..Fifo::default() };
        S3Fifo { size, ghosts, ..S3Fifo::default() }
    }

    fn make_room(&mut self) {
        while self.small.len() + self.main.len() >= self.size {
            if self.small.len() >= self.size.div_ceil(10) || self.main.is_empty() {
                let block = self.small.pop_front().expect("newcomers");
                if self.wanted[&block] > 1 {
                    self.wanted.insert(block, 0);
                    self.main.push_back(block);
                } else {
                    self.wanted.remove(&block);
                    self.ghosts.access(block);
                }
                continue;
            }
            let block = self.main.pop_front().expect("it is not empty");
            let wanted = self.wanted.get_mut(&block).expect("it is there");
            if *wanted > 0 {
                *wanted -= 1;
                self.main.push_back(block);
            } else {
                self.wanted.remove(&block);
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, block: u64) -> bool {
        if let Some(wanted) = self.wanted.get_mut(&block) {
            *wanted = (*wanted + 1).min(3);
            return true;
        }
        let was_here = self.ghosts.there.remove(&block);
        if was_here {
            self.ghosts.order.retain(|ghost| *ghost != block);
        }
        self.make_room();
        self.wanted.insert(block, 0);
        if was_here { &mut self.main } else { &mut self.small }.push_back(block);
        false
    }
}

/// Returns the hits of MIN, which evicts the block whose next access is latest.
fn hits_of_min(trace: &[u64], size: usize) -> usize {
    let mut next = vec![usize::MAX; trace.len()];
    let mut seen = HashMap::new();
    for (at, block) in trace.iter().enumerate().rev() {
        next[at] = seen.insert(block, at).unwrap_or(usize::MAX);
    }
    let mut there: HashMap<u64, usize> = HashMap::new();
    let mut order = BTreeSet::new();
    let mut hits = 0;
    for (&block, &next) in trace.iter().zip(&next) {
        if let Some(before) = there.insert(block, next) {
            hits += 1;
            order.remove(&(before, block));
        }
        order.insert((next, block));
        if order.len() > size {
            let (_, last) = order.pop_last().expect("it is not empty");
            there.remove(&last);
        }
    }
    hits
}

/// Returns the compared caches, each with room for `size` blocks.
fn policies(size: usize) -> Vec<(&'static str, Box<dyn Policy>)> {
    vec![
        ("quick_cache, as it is used", Box::new(quick_cache(size, SHARDS, 0.97, 0.5))),
        ("quick_cache, one shard", Box::new(quick_cache(size, 1, 0.97, 0.5))),
        ("quick_cache, half of it hot", Box::new(quick_cache(size, SHARDS, 0.5, 0.5))),
        ("quick_cache, ghosts of all", Box::new(quick_cache(size, SHARDS, 0.97, 1.0))),
        ("moka, W-TinyLFU", Box::new(moka(size, false))),
        ("S3-FIFO", Box::new(S3Fifo::new(size))),
        (LRU, Box::new(Lru { size, ..Lru::default() })),
        ("FIFO", Box::new(Fifo { size, ..Fifo::default() })),
    ]
}

/// Libraries whose time per access is printed. The other policies are simple models, and their times mean nothing.
const TIMED: [&str; 3] = ["quick_cache, as it is used", "moka, W-TinyLFU", LEFT_ALONE];
const LEFT_ALONE: &str = "moka, W-TinyLFU, left alone";
const LRU: &str = "LRU";

fn hits_of(policy: &mut dyn Policy, trace: &Trace) -> usize {
    trace.accesses.iter().filter(|block| policy.access(**block)).count()
}

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let seed = arguments.next().map_or(Ok(7), |text| {
        text.parse().map_err(|_| format!("SEED {text:?}; a number from 0 to {} is permitted", u64::MAX))
    })?;
    let mut traces = generated(seed);
    for path in arguments {
        traces.push(recorded(&path)?);
    }
    let percents = PERCENTS.map(|percent| format!("{percent} %")).join(" | ");
    println!("Hits in percent, seed {seed}. Sizes in percent of the blocks.\n");
    println!("| trace | policy | {percents} |\n| --- | --- |{}", " --- |".repeat(PERCENTS.len()));
    let mut ns: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for trace in &traces {
        let accesses = trace.accesses.len() as f64;
        let sizes = PERCENTS.map(|percent| (trace.blocks * percent / 100) as usize);
        let most = sizes.map(|size| hits_of_min(&trace.accesses, size));
        let mut rows: Vec<(&str, Vec<usize>)> = Vec::new();
        for size in sizes {
            for (at, (name, mut policy)) in policies(size).into_iter().enumerate() {
                let begun = Instant::now();
                let hits = hits_of(&mut *policy, trace);
                ns.entry(name).or_default().push(begun.elapsed().as_secs_f64() / accesses * 1e9);
                if rows.len() <= at {
                    rows.push((name, Vec::new()));
                }
                rows[at].1.push(hits);
            }
            let begun = Instant::now();
            hits_of(&mut moka(size, true), trace);
            ns.entry(LEFT_ALONE).or_default().push(begun.elapsed().as_secs_f64() / accesses * 1e9);
        }
        for (name, hits) in &rows {
            assert!(
                hits.iter().zip(&most).all(|(hits, most)| hits <= most),
                "{name} beats what knows the future, in {}",
                trace.name
            );
            if trace.name == LOOP && *name == LRU {
                assert!(hits.iter().all(|hits| *hits == 0), "LRU keeps what a scan wants last");
            }
        }
        rows.push(("MIN", most.to_vec()));
        for (name, hits) in rows {
            let shares: Vec<String> =
                hits.iter().map(|hits| format!("{:.1}", *hits as f64 / accesses * 100.0)).collect();
            println!("| {} | {name} | {} |", trace.name, shares.join(" | "));
        }
    }
    println!("\n| policy | ns of an access, median of all runs |\n| --- | --- |");
    for name in TIMED {
        let all = ns.get_mut(name).expect("it ran");
        all.sort_by(f64::total_cmp);
        println!("| {name} | {:.0} |", all[all.len() / 2]);
    }
    Ok(())
}
