//! Whether it pays to take a row group out of a node's hands, from what has been seen so far.
//!
//! The idea: a node that waits, for its results to be taken or to be asked for more, is not what holds the query up,
//! the link is: fetching whole columns over it would cost more than the results that they take the place of. A node
//! that does not wait is at its limit, and whatever is fetched meanwhile is won, if it is here before the node would
//! have come to it.
//!
//! Pure: times are given, in nanoseconds.

/// Row groups done, and the time that took.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    groups: u32,
    ns: u64,
}

impl Done {
    /// Nanoseconds for each, if enough of them have been seen.
    fn each_ns(self) -> Option<f64> {
        (self.groups >= SEEN_MIN).then(|| self.ns as f64 / f64::from(self.groups))
    }
}

/// What has been seen of a scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Row groups of the scan.
    groups: u32,
    /// Row groups that the node has run the program over.
    done: u32,
    /// Since the scan was opened, up to the last chunk.
    elapsed_ns: u64,
    /// Of these, how long the node waited for us, weighted towards the last chunks.
    waited_ns: f64,
    recent_ns: f64,
    /// Bytes of results that came.
    result_bytes: u64,
    /// While nothing was being fetched, and while something was.
    alone: Done,
    beside: Done,
}

/// What was seen weighs half as much after so long.
const HALF_LIFE_NS: f64 = 4e6;
/// A node that waits for more than this share of its time is not what holds the query up.
const WAITED_MAX: f64 = 0.1;
/// Fetching that adds less than this share to what the node does by itself is not worth its risk: a row group fetched
/// at the end keeps the query waiting.
const GAIN_MIN: f64 = 0.05;
/// A node that takes this many times as long for a row group as fetching it from it is left with none.
const SLOW_MIN: f64 = 4.0;
/// Results of so many times the bytes of their columns are more than these. With all rows kept they are level but for
/// what announces them, and a node that has read the columns already sends them sooner.
const MORE_MIN: f64 = 1.125;
/// Row groups that tell how long one takes.
const SEEN_MIN: u32 = 2;
/// A scan of fewer is over before anything has been learnt.
const MANY: u32 = 16;

/// What to do about the next row group from the back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Take it.
    Now,
    /// Take all that are left.
    All,
    /// Ask again when more has been seen.
    Later,
    /// Leave all that are left to the node.
    Never,
}

/// What is known on this side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetching {
    /// Row groups of the scan that were claimed.
    pub(crate) claimed: u32,
    /// Row groups on their way, of any scan.
    pub(crate) ahead: u32,
    /// How long each of the last took, if any has come.
    pub(crate) each_ns: Option<u64>,
    /// Since the scan was opened.
    pub(crate) elapsed_ns: u64,
    /// Bytes of the columns of a row group, on average.
    pub(crate) group_bytes: u64,
    /// Whether results and columns come over one link.
    pub(crate) is_shared: bool,
}

/// What a chunk tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// Row groups done in all.
    pub(crate) done: u32,
    /// How long the scan has been open.
    pub(crate) elapsed_ns: u64,
    /// How long the node waited for us since the last chunk.
    pub(crate) waited_ns: u64,
    /// Bytes of results in it.
    pub(crate) bytes: u64,
    /// Whether something was being fetched.
    pub(crate) is_fetching: bool,
}

impl Pace {
    pub(crate) fn new(groups: usize) -> Pace {
        Pace { groups: groups as u32, ..Pace::default() }
    }

    /// Notes a chunk.
    pub(crate) fn note(&mut self, heard: Heard) {
        let Heard { done, elapsed_ns, waited_ns, bytes, is_fetching } = heard;
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

    /// Whether to claim a row group.
    pub(crate) fn claim(&self, fetching: Fetching) -> Claim {
        let Fetching { claimed, ahead, each_ns, elapsed_ns, group_bytes, is_shared } = fetching;
        let left = self.groups.saturating_sub(self.done).saturating_sub(claimed);
        if left == 0 {
            return Claim::Never;
        }
        let Some(fetch_ns) = each_ns else {
            // The first shows how long it takes.
            let may_begin = self.done > 0 || self.groups >= MANY;
            return if ahead == 0 && may_begin { Claim::Now } else { Claim::Later };
        };
        let fetch_ns = fetch_ns.max(1) as f64;
        // If it has not done any, it takes at least as long as it has been at it.
        let so_far = elapsed_ns as f64 / f64::from(self.done.max(1));
        let node_ns = self.beside.each_ns().or(self.alone.each_ns()).unwrap_or(so_far);
        // Where the node sends the columns as well, what it does with the program slows that down. Elsewhere it may go
        // on.
        if is_shared && node_ns > SLOW_MIN * fetch_ns && elapsed_ns as f64 > SLOW_MIN * fetch_ns {
            return Claim::All;
        }
        if is_shared && self.waited_ns > self.recent_ns * WAITED_MAX {
            // What comes of a row group may take more than its columns do.
            let column_bytes = group_bytes.saturating_mul(self.done.max(SEEN_MIN).into());
            let is_more = self.result_bytes as f64 > column_bytes as f64 * MORE_MIN;
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
        pace.note(Heard { done, elapsed_ns, waited_ns, bytes: 10, is_fetching });
    }

    /// A node that has done `done` of 100 in so many ms, always waiting for this share of its time.
    fn seen(done: u32, ms: u64, waited: f64) -> Pace {
        let mut pace = Pace::new(100);
        for step in 1..=ms {
            let of_all = u64::from(done) * step / ms;
            note(&mut pace, of_all as u32, step, waited, false);
        }
        pace
    }

    /// Whether to claim after one came that took so long.
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
        // A quarter more by fetching: worth it at the same pace, not if the node falls to half of it.
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
