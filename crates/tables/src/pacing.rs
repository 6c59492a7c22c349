//! Pacing of a split: whether the client should fetch the next row group of a scan itself or leave it to the node.
//!
//! The idea: two people clear a long table, one from each end. It helps if the second one takes plates that the first
//! one would reach late. It hurts if both need the same narrow door to carry them out.
//!
//! The door is the link. A node that spends its time waiting for the client is limited by the link: results do not
//! leave fast enough. Fetching whole columns over the same link would make the query slower, so the client fetches
//! nothing. A node that never waits is limited by its CPU. Whatever the client fetches then is gained, if it arrives
//! before the node would have reached that row group. At the end of the scan the client stops, because one late row
//! group delays the whole query. A node that is many times slower than fetching loses all its remaining row groups to
//! the client.
//!
//! A fixed division by estimated speeds would be simpler. It would be wrong whenever a node is busy with other
//! clients, so the decision is made anew for each row group from what was seen of this scan.
//!
//! Pure: callers pass all times, in nanoseconds.

/// Row groups that were done, and the time for all of them in ns.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    groups: u32,
    ns: u64,
}

impl Done {
    /// Returns the time for one row group in ns; `None` until [`SEEN_MIN`] row groups were seen.
    fn each_ns(self) -> Option<f64> {
        (self.groups >= SEEN_MIN).then(|| self.ns as f64 / f64::from(self.groups))
    }
}

/// Progress of one scan, as seen by the client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Row groups of the scan.
    groups: u32,
    /// Row groups that the node has run the program over.
    done: u32,
    /// Time from the opening of the scan to its last chunk (reply with results) so far, in ns.
    elapsed_ns: u64,
    /// Time that the node waited for the client, in ns. It and `recent_ns`, the time in all, decay by
    /// [`HALF_LIFE_NS`].
    waited_ns: f64,
    recent_ns: f64,
    /// Bytes of results that have arrived.
    result_bytes: u64,
    /// Row groups that the node did while the client fetched nothing (`alone`) and while it fetched something
    /// (`beside`).
    alone: Done,
    beside: Done,
}

/// Time in ns after which an observation counts half.
const HALF_LIFE_NS: f64 = 4e6;
/// Share of a node's time that it may wait for the client, 0 to 1. A node that waits longer is limited by the link,
/// not by its CPU.
const WAITED_MAX: f64 = 0.1;
/// Smallest gain, as a share of the node's speed, that is worth fetching. A row group that is fetched at the end can
/// delay the query, so a smaller gain is not worth the risk.
const GAIN_MIN: f64 = 0.05;
/// Ratio of times per row group. If the node takes this many times as long as fetching, the client claims all that is
/// left.
const SLOW_MIN: f64 = 4.0;
/// Ratio of bytes of results to bytes of the columns that they came from. Results above this ratio count as larger
/// than the columns, and then fetching the columns moves fewer bytes. The ratio is above 1 because results are as large
/// as the columns plus headers if every row passes, which is no reason to fetch: as many bytes would cross the link.
const LARGER_RATIO: f64 = 1.125;
/// Number of row groups after which the time for one row group is known.
const SEEN_MIN: u32 = 2;
/// Least row groups of a scan in which the client fetches its first row group at once. In a shorter scan it waits
/// until the node has done one.
const MANY: u32 = 16;

/// Decision about the next row group from the back of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Claim it.
    Now,
    /// Claim all that are left.
    All,
    /// Decide later, when more is known.
    Later,
    /// Leave all that are left to the node.
    Never,
}

/// State of the client's own fetching.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetching {
    /// Row groups of the scan that the client has claimed.
    pub(crate) claimed: u32,
    /// Row groups that the client is fetching, of any scan.
    pub(crate) ahead: u32,
    /// Time to fetch one row group in ns, by the last fetch; `None` before the first has arrived.
    pub(crate) each_ns: Option<u64>,
    /// Time since the scan was opened, in ns.
    pub(crate) elapsed_ns: u64,
    /// Average bytes of the columns of a row group.
    pub(crate) group_bytes: u64,
    /// True if results and fetched columns cross the same link.
    pub(crate) is_shared: bool,
}

/// Observation that comes with a chunk of a scan, which is one reply with results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkSeen {
    /// Row groups that the node has done since the scan was opened.
    pub(crate) done: u32,
    /// Time since the scan was opened, in ns.
    pub(crate) elapsed_ns: u64,
    /// Time that the node waited for the client since the last chunk, in ns.
    pub(crate) waited_ns: u64,
    /// Bytes of results in the chunk.
    pub(crate) bytes: u64,
    /// True if the client was fetching row groups meanwhile.
    pub(crate) is_fetching: bool,
}

impl Pace {
    pub(crate) fn new(groups: usize) -> Pace {
        Pace { groups: groups as u32, ..Pace::default() }
    }

    /// Adds the observation that a chunk brings.
    pub(crate) fn note(&mut self, heard: ChunkSeen) {
        let ChunkSeen { done, elapsed_ns, waited_ns, bytes, is_fetching } = heard;
        self.result_bytes += bytes;
        let passed_ns = elapsed_ns.saturating_sub(self.elapsed_ns);
        let passed = passed_ns as f64;
        let kept = (-passed / HALF_LIFE_NS * std::f64::consts::LN_2).exp();
        self.recent_ns = self.recent_ns * kept + passed;
        self.waited_ns = self.waited_ns * kept + (waited_ns as f64).min(passed);
        let of = if is_fetching { &mut self.beside } else { &mut self.alone };
        of.groups += done.saturating_sub(self.done);
        of.ns += passed_ns;
        self.elapsed_ns = elapsed_ns;
        self.done = done;
    }

    /// Decides whether to claim a row group.
    pub(crate) fn claim(&self, fetching: Fetching) -> Claim {
        let Fetching { claimed, ahead, each_ns, elapsed_ns, group_bytes, is_shared } = fetching;
        let left = self.groups.saturating_sub(self.done).saturating_sub(claimed);
        if left == 0 {
            return Claim::Never;
        }
        let Some(fetch_ns) = each_ns else {
            // The first fetch measures how long one takes.
            let may_begin = self.done > 0 || self.groups >= MANY;
            return if ahead == 0 && may_begin { Claim::Now } else { Claim::Later };
        };
        let fetch_ns = fetch_ns.max(1) as f64;
        // A node that has done no row group needs at least the time since the scan was opened.
        let so_far = elapsed_ns as f64 / f64::from(self.done.max(1));
        let node_ns = self.beside.each_ns().or(self.alone.each_ns()).unwrap_or(so_far);
        // Claims everything only where the node sends results over the link that the columns take: there the slow
        // program also delays the columns. On another link the node may go on.
        if is_shared && node_ns > SLOW_MIN * fetch_ns && elapsed_ns as f64 > SLOW_MIN * fetch_ns {
            return Claim::All;
        }
        if is_shared && self.waited_ns > self.recent_ns * WAITED_MAX {
            // The results of a row group may be larger than its columns; then fetching saves bytes.
            let column_bytes = group_bytes.saturating_mul(self.done.max(SEEN_MIN).into());
            let is_more = self.result_bytes as f64 > column_bytes as f64 * LARGER_RATIO;
            return if is_more { Claim::All } else { Claim::Later };
        }
        let Some(alone_ns) = self.alone.each_ns() else { return Claim::Later };
        if let Some(beside_ns) = self.beside.each_ns()
            && 1.0 / beside_ns + 1.0 / fetch_ns < (1.0 + GAIN_MIN) / alone_ns
        {
            return Claim::Never;
        }
        if node_ns / fetch_ns < GAIN_MIN || f64::from(ahead + 1) * fetch_ns > f64::from(left) * node_ns {
            return Claim::Never;
        }
        Claim::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn note(pace: &mut Pace, done: u32, at_ms: u64, waited: f64, is_fetching: bool) {
        let (elapsed_ns, waited_ns) = (at_ms * MS, (waited * MS as f64) as u64);
        pace.note(ChunkSeen { done, elapsed_ns, waited_ns, bytes: 10, is_fetching });
    }

    /// Returns the pace of a node that has done `done` of 100 row groups in `ms` ms and always waited for this share
    /// of its time.
    fn seen(done: u32, ms: u64, waited: f64) -> Pace {
        let mut pace = Pace::new(100);
        for step in 1..=ms {
            let of_all = u64::from(done) * step / ms;
            note(&mut pace, of_all as u32, step, waited, false);
        }
        pace
    }

    /// Returns the decision after one fetch that took `fetch_ms`.
    fn claim(pace: &Pace, ahead: u32, fetch_ms: u64, is_shared: bool) -> Claim {
        let (elapsed_ns, each_ns) = (pace.elapsed_ns, Some(fetch_ms * MS));
        pace.claim(Fetching { claimed: 1, ahead, each_ns, elapsed_ns, group_bytes: 100, is_shared })
    }

    #[test]
    fn node_at_its_limit_is_helped_and_one_that_waits_for_the_link_is_not() {
        assert_eq!(claim(&seen(10, 10, 0.0), 0, 1, true), Claim::Now);
        assert_eq!(claim(&seen(10, 10, 0.5), 0, 1, true), Claim::Later);
        assert_eq!(claim(&seen(10, 10, 0.5), 0, 1, false), Claim::Now, "nothing is shared");
    }

    #[test]
    fn row_groups_whose_results_take_more_than_their_columns_are_fetched_where_the_link_is_full() {
        let mut pace = seen(10, 10, 0.5);
        pace.result_bytes = 1_126;
        assert_eq!(claim(&pace, 0, 1, true), Claim::All);
        pace.result_bytes = 1_002;
        assert_eq!(claim(&pace, 0, 1, true), Claim::Later, "they are level");
    }

    #[test]
    fn node_that_stops_waiting_is_helped_from_then_on() {
        let mut pace = seen(10, 10, 0.9);
        (11..40).for_each(|step| note(&mut pace, step as u32, step, 0.0, false));
        assert_eq!(claim(&pace, 0, 1, true), Claim::Now);
    }

    #[test]
    fn row_group_that_the_node_would_have_done_sooner_is_left_to_it() {
        let late = seen(94, 94, 0.0);
        assert_eq!(claim(&late, 0, 4, true), Claim::Now);
        assert_eq!(claim(&late, 1, 4, true), Claim::Never);
        assert_eq!(claim(&seen(99, 99, 0.0), 0, 1, true), Claim::Never, "there are none");
    }

    #[test]
    fn fetching_that_would_add_little_is_not_gone_on_with() {
        assert_eq!(claim(&seen(10, 10, 0.0), 0, 30, true), Claim::Never);
        assert_eq!(claim(&seen(10, 10, 0.0), 0, 15, true), Claim::Now);
    }

    #[test]
    fn fetching_that_takes_from_the_node_what_it_gives_is_not_gone_on_with() {
        let beside = |ms: u64| {
            let mut pace = seen(10, 10, 0.0);
            (1..=4).for_each(|step| note(&mut pace, 10 + step as u32, 10 + ms * step, 0.0, true));
            claim(&pace, 0, 4, true)
        };
        // Fetching adds a quarter of the node's speed. That pays at the same pace, but not if the node falls to half
        // of it.
        assert_eq!((beside(1), beside(2)), (Claim::Now, Claim::Never));
    }

    #[test]
    fn node_far_slower_than_fetching_is_left_with_nothing_if_it_sends_the_columns_too() {
        assert_eq!(claim(&seen(2, 20, 0.0), 0, 2, true), Claim::All);
        assert_eq!(claim(&seen(2, 20, 0.0), 0, 2, false), Claim::Now);
        let mut pace = Pace::new(100);
        let of = |pace: &Pace, elapsed_ms: u64| {
            let (elapsed_ns, each_ns) = (elapsed_ms * MS, Some(2 * MS));
            let group_bytes = 100;
            pace.claim(Fetching { claimed: 1, ahead: 0, each_ns, elapsed_ns, group_bytes, is_shared: true })
        };
        assert_eq!((of(&pace, 8), of(&pace, 9)), (Claim::Later, Claim::All), "it has done none yet");
        note(&mut pace, 0, 9, 0.0, false);
        assert_eq!(of(&pace, 9), Claim::All, "nor does an empty chunk help");
    }

    #[test]
    fn first_row_group_is_fetched_to_see_how_long_it_takes() {
        let first = |pace: &Pace, ahead| {
            let (claimed, each_ns, elapsed_ns) = (ahead, None, pace.elapsed_ns);
            pace.claim(Fetching { claimed, ahead, each_ns, elapsed_ns, group_bytes: 100, is_shared: true })
        };
        assert_eq!((first(&Pace::new(100), 0), first(&Pace::new(100), 1)), (Claim::Now, Claim::Later));
        let mut few = Pace::new(4);
        assert_eq!(first(&few, 0), Claim::Later);
        note(&mut few, 1, 1, 0.0, false);
        assert_eq!(first(&few, 0), Claim::Now);
    }
}
