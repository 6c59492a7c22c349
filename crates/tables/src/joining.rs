//! Semi-joins of a query: whether their keys are looked up at the nodes, by a filter, or on the client.
//!
//! The idea: a query keeps the rows whose key is in a set, and every method leaves the same rows. While the set is
//! small it is sent to each node, and the nodes look the keys up. If it is large and the rows leave the nodes with
//! their keys, a Bloom filter of the set is sent instead. The filter passes some rows too many, and the client
//! removes them when it merges. If neither can be sent, the client fetches the columns and looks the keys up itself.

use farpool_files::{Error, ErrorKind};
use farpool_host::Host;
use farpool_operators::run::{LookupTable, Lookups, Stopped};
use farpool_operators::{JoinLookup, KeySet, Operator, Plan, Program};
use farpool_planner::Placement;
use farpool_wire::control::LookupKind;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Bytes of keys up to which the keys themselves are sent, even if a filter would be possible (ADR 0019).
const KEYS_BYTES_MAX: usize = 4 << 20;

/// Method of a semi-join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JoinBy {
    /// Nodes look up the keys.
    Keys,
    /// Nodes apply a Bloom filter, and the client looks up the keys of the rows that pass.
    Filter,
    /// The client looks up the keys in columns that it fetches. Nothing is shipped.
    Here,
}

/// How a semi-join, or an anti-join, over the rows of a table is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemiJoin {
    /// The method.
    pub by: JoinBy,
    /// Number of distinct keys of the other table.
    pub keys: usize,
    /// Bytes that are sent to each node for the join.
    pub bytes: usize,
}

/// Formats the words that follow "semi-join with".
impl fmt::Display for SemiJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SemiJoin { by, keys, bytes } = self;
        match by {
            JoinBy::Keys => write!(f, "{keys} keys, {bytes} bytes to each node"),
            JoinBy::Filter => {
                write!(
                    f,
                    "{keys} keys as a Bloom filter of {bytes} bytes to each node, checked exactly on the client"
                )
            }
            JoinBy::Here => write!(f, "{keys} keys on the client, over fetched columns"),
        }
    }
}

/// A query as it is shipped, and how each semi-join over the rows of the table is done, by its number.
pub(crate) struct Joining {
    /// The plan that is shipped. If a filter replaces keys, its program passes rows too many and its finish removes
    /// them.
    pub(crate) plan: Plan,
    /// Method of each semi-join, by its number.
    pub(crate) joins: Vec<SemiJoin>,
}

impl Joining {
    pub(crate) fn of(plan: &Plan, placement: Placement) -> Joining {
        let mut shipped = plan.clone();
        let mut joins = Vec::new();
        // The semi-joins of the program that is shipped have the first numbers, in the order of that program.
        for number in plan.near_key_sets() {
            let Some(set) = plan.key_sets.get(number) else { continue };
            let (keys, travel) = (set.count(), set.travel_bytes());
            let filter =
                || Some((shipped.by_filter(number)?, set.filter_bytes().filter(|bytes| *bytes < travel)?));
            let (by, bytes) = match () {
                () if placement == Placement::Fetch => (JoinBy::Here, 0),
                () if travel <= KEYS_BYTES_MAX && set.may_travel() => (JoinBy::Keys, travel),
                () if let Some((by_filter, bytes)) = filter() => {
                    shipped = by_filter;
                    (JoinBy::Filter, bytes)
                }
                () if set.may_travel() => (JoinBy::Keys, travel),
                () => (JoinBy::Here, 0),
            };
            joins.push(SemiJoin { by, keys, bytes });
        }
        if joins.iter().all(|join| join.by != JoinBy::Here) {
            return Joining { plan: shipped, joins };
        }
        // If one semi-join is done on the client, nothing can be shipped, and all of them are done there.
        let joins = joins.into_iter().map(|join| SemiJoin { by: JoinBy::Here, bytes: 0, ..join }).collect();
        Joining { plan: plan.clone(), joins }
    }

    /// Reports whether nodes can do their part of the query.
    pub(crate) fn is_shipped(&self) -> bool {
        self.joins.iter().all(|join| join.by != JoinBy::Here)
    }

    /// Returns the keys and filters to send to nodes, by number.
    pub(crate) fn uploads(&self) -> Result<Vec<Upload>, Stopped> {
        let upload = |(join, set): (&SemiJoin, &Arc<KeySet>)| match join.by {
            JoinBy::Filter => Ok(Upload { kind: LookupKind::Bloom, bytes: set.filter()?.to_bytes() }),
            JoinBy::Keys | JoinBy::Here => Ok(Upload { kind: LookupKind::Keys, bytes: set.packed() }),
        };
        self.joins.iter().zip(&self.plan.key_sets).map(upload).collect()
    }
}

/// The keys or the filter of one semi-join, encoded for sending.
pub(crate) struct Upload {
    pub(crate) kind: LookupKind,
    pub(crate) bytes: Vec<u8>,
}

/// Builds the hash tables of the keys that a program looks up on the client, by number. A number that the program
/// does not use gets an empty table.
pub(crate) fn exact(program: &Program, key_sets: &[Arc<KeySet>], host: &dyn Host) -> Result<Lookups, Error> {
    let failed = |why: String| Error::new(ErrorKind::Invalid, why);
    let is_used = |number: usize| {
        let is_it = |operator: &Operator| matches!(operator, Operator::SemiJoin { number: of, .. } if usize::from(*of) == number);
        program.operators().iter().any(is_it)
    };
    let table = |(number, set): (usize, &Arc<KeySet>)| -> Result<Arc<LookupTable>, Error> {
        if !is_used(number) {
            return none().map_err(|stopped| failed(stopped.to_string()));
        }
        let mut seed = [0; 8];
        host.random(&mut seed).map_err(|error: io::Error| failed(error.to_string()))?;
        set.table(u64::from_le_bytes(seed)).map_err(|stopped| failed(stopped.to_string()))
    };
    key_sets.iter().enumerate().map(table).collect()
}

/// Returns a table without keys, which fits keys of any type.
pub(crate) fn none() -> Result<Arc<LookupTable>, Stopped> {
    let none = LookupTable::from_bytes(JoinLookup::Keys, Vec::<u8>::new().into(), 0);
    none.map(Arc::new).map_err(|error| Stopped::Columns(error.to_string()))
}
