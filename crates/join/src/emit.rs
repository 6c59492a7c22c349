//! Output of a join: which rows match, and where they go.

use crate::Tuple;
use crate::table::Hit;

/// Kind of join: which rows are output. Kinds that keep rows of the build side are these with the sides exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All pairs that match.
    Inner,
    /// All pairs that match, and rows of the probe side without a match.
    Left,
    /// Rows of the probe side with a match, each once.
    Semi,
    /// Rows of the probe side without a match.
    Anti,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Inner, Kind::Left, Kind::Semi, Kind::Anti];
}

/// Receiver of output rows, one for each thread. Order and thread of a row are not defined.
pub trait Sink: Send {
    /// Takes the payloads of one pair.
    fn pair(&mut self, build: i64, probe: i64);

    /// Takes the payloads of several pairs; both slices have the same length.
    fn pairs(&mut self, builds: &[i64], probes: &[i64]) {
        builds.iter().zip(probes).for_each(|(build, probe)| self.pair(*build, *probe));
    }

    /// Takes the payload of a row of the probe side that is output without a partner.
    fn lone(&mut self, probe: i64);
}

/// Test of whether two rows with equal keys match.
pub trait Equal: Sync {
    /// Reports whether the rows with these payloads match.
    fn equal(&self, build: i64, probe: i64) -> bool;

    /// True if rows with equal keys always match.
    const IS_EXACT: bool = false;
}

/// Test that matches all rows with equal keys: for keys that are values and not hashes.
#[derive(Clone, Copy, Debug)]
pub struct Exact;

impl Equal for Exact {
    #[inline(always)]
    fn equal(&self, _build: i64, _probe: i64) -> bool {
        true
    }

    const IS_EXACT: bool = true;
}

/// Kind of join, and test of rows with equal keys.
#[derive(Debug)]
pub struct JoinSpec<'e, E> {
    /// Kind of join.
    pub kind: Kind,
    /// Test of rows with equal keys.
    pub equal: &'e E,
}

impl<E> Clone for JoinSpec<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for JoinSpec<'_, E> {}

/// The two sides of a join.
#[derive(Clone, Copy, Debug)]
pub struct Sides<T> {
    /// Side from which tables are made.
    pub build: T,
    /// Side whose rows are looked up.
    pub probe: T,
}

/// Packs the position of a key's first row in the list of payloads (upper 32 bits) and the number of its rows (lower 32
/// bits) into the word that is stored with the key.
#[inline(always)]
pub(crate) fn listed(start: u32, count: u32) -> i64 {
    ((u64::from(start) << 32) | u64::from(count)) as i64
}

#[inline(always)]
fn rows_of(word: i64, rows: &[i64]) -> &[i64] {
    let (start, count) = ((word as u64 >> 32) as usize, word as u32 as usize);
    &rows[start..start + count]
}

/// Outputs the matches of a batch of tuples of the probe side. `hits` are those whose keys were found, in order, each
/// with the word of its key in the table. If `rows` is `None`, this word is the payload of the build side's row.
/// Otherwise it says where in `rows` the payloads of all rows with the key are.
#[inline(always)]
pub(crate) fn emit<S: Sink, E: Equal>(
    how: JoinSpec<'_, E>,
    tuples: &[Tuple],
    hits: &[Hit],
    rows: Option<&[i64]>,
    sink: &mut S,
) {
    let JoinSpec { kind, equal } = how;
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
