//! What comes out of a join.

use crate::Tuple;
use crate::table::Hit;

/// Which rows come out. What keeps rows of the build side is the same with the sides exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every pair that matches.
    Inner,
    /// The same, and rows of the probe side without a match.
    Left,
    /// Rows of the probe side with a match, each once.
    Semi,
    /// Rows of the probe side without a match.
    Anti,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Inner, Kind::Left, Kind::Semi, Kind::Anti];
}

/// Takes what comes out, on one thread. In which order, and on which thread, is not said.
pub trait Sink: Send {
    /// Payloads of a pair.
    fn pair(&mut self, build: i64, probe: i64);

    /// Payloads of some pairs at once, one of each for each.
    fn pairs(&mut self, builds: &[i64], probes: &[i64]) {
        builds.iter().zip(probes).for_each(|(build, probe)| self.pair(*build, *probe));
    }

    /// The payload of a row of the probe side that comes out alone.
    fn lone(&mut self, probe: i64);
}

/// Whether rows whose keys are equal match.
pub trait Equal: Sync {
    /// Of these payloads.
    fn equal(&self, build: i64, probe: i64) -> bool;

    /// Whether the answer is always yes.
    const IS_EXACT: bool = false;
}

/// They always do: keys are what is joined by, and not hashes of it.
#[derive(Clone, Copy, Debug)]
pub struct Exact;

impl Equal for Exact {
    #[inline(always)]
    fn equal(&self, _build: i64, _probe: i64) -> bool {
        true
    }

    const IS_EXACT: bool = true;
}

/// Which rows come out, and which of those whose keys are equal match.
#[derive(Debug)]
pub struct How<'e, E> {
    /// Which come out.
    pub kind: Kind,
    /// Which match.
    pub equal: &'e E,
}

impl<E> Clone for How<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for How<'_, E> {}

/// Two sides that are joined.
#[derive(Clone, Copy, Debug)]
pub struct Sides<T> {
    /// Of which tables are made.
    pub build: T,
    /// Whose rows are looked up in them.
    pub probe: T,
}

/// What lies beside a key whose rows are listed elsewhere: where they begin and how many there are.
#[inline(always)]
pub(crate) fn listed(start: u32, count: u32) -> i64 {
    ((u64::from(start) << 32) | u64::from(count)) as i64
}

#[inline(always)]
fn rows_of(word: i64, rows: &[i64]) -> &[i64] {
    let (start, count) = ((word as u64 >> 32) as usize, word as u32 as usize);
    &rows[start..start + count]
}

/// Hands on what the tuples of a batch found: words beside their keys, which are payloads, or places in `rows`.
#[inline(always)]
pub(crate) fn emit<S: Sink, E: Equal>(
    how: How<'_, E>,
    tuples: &[Tuple],
    hits: &[Hit],
    rows: Option<&[i64]>,
    sink: &mut S,
) {
    let How { kind, equal } = how;
    match (kind, rows) {
        (Kind::Inner, None) => {
            for hit in hits {
                let probe = tuples[hit.at as usize].payload;
                if equal.equal(hit.word, probe) {
                    sink.pair(hit.word, probe);
                }
            }
        }
        (Kind::Inner, Some(rows)) => {
            for hit in hits {
                let probe = tuples[hit.at as usize].payload;
                for build in rows_of(hit.word, rows) {
                    if equal.equal(*build, probe) {
                        sink.pair(*build, probe);
                    }
                }
            }
        }
        (Kind::Semi, _) if E::IS_EXACT => {
            hits.iter().for_each(|hit| sink.lone(tuples[hit.at as usize].payload));
        }
        _ => {
            let mut hits = hits.iter().peekable();
            for (at, tuple) in tuples.iter().enumerate() {
                let probe = tuple.payload;
                let word = hits.next_if(|hit| hit.at as usize == at).map(|hit| hit.word);
                let single = [word.unwrap_or_default()];
                let found: &[i64] = match (word, rows) {
                    (None, _) => &[],
                    (Some(_), None) => &single,
                    (Some(word), Some(rows)) => rows_of(word, rows),
                };
                let mut matching = found.iter().filter(|build| equal.equal(**build, probe));
                match kind {
                    Kind::Inner | Kind::Left => {
                        let mut is_matched = false;
                        for build in matching {
                            is_matched = true;
                            sink.pair(*build, probe);
                        }
                        if kind == Kind::Left && !is_matched {
                            sink.lone(probe);
                        }
                    }
                    Kind::Semi | Kind::Anti => {
                        if matching.next().is_some() == (kind == Kind::Semi) {
                            sink.lone(probe);
                        }
                    }
                }
            }
        }
    }
}
