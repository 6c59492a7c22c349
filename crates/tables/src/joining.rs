//! How a query's semi-joins are done: what nodes look up in, and what is looked up here.
//!
//! The idea: every way leaves the same rows. Keys travel as they are while they are few. Of many, a Bloom filter of
//! them travels, if rows leave the nodes with their keys: then those that it keeps are looked up exactly where rows are
//! merged. What can be done neither way is done here, over columns that are fetched.

use farpool_files::{Error, ErrorKind};
use farpool_host::Host;
use farpool_operators::run::{LookupTable, Lookups, Stopped};
use farpool_operators::{KeySet, Lookup, Operator, Plan, Program};
use farpool_planner::Placement;
use farpool_wire::control::LookupKind;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Bytes of keys that travel as they are even if a filter would do: less than a filter saves.
const KEYS_BYTES_MAX: usize = 4 << 20;

/// Where the rows of a semi-join are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JoinBy {
    /// By the keys, at the nodes.
    Keys,
    /// By a Bloom filter at the nodes, and by the keys here.
    Filter,
    /// By the keys, here: nothing is shipped.
    Here,
}

/// How a semi-join, or an anti-join, over a table's rows is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemiJoin {
    /// How.
    pub by: JoinBy,
    /// Keys of the other table, each once.
    pub keys: usize,
    /// Bytes that are sent to each node for it.
    pub bytes: usize,
}

/// In words, behind "semi-join".
impl fmt::Display for SemiJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SemiJoin { by, keys, bytes } = self;
        match by {
            JoinBy::Keys => write!(f, "{keys} keys, {bytes} bytes to each node"),
            JoinBy::Filter => {
                write!(f, "{keys} keys by a Bloom filter of {bytes} bytes to each node, exactly here")
            }
            JoinBy::Here => write!(f, "{keys} keys here, over columns that are fetched"),
        }
    }
}

/// A query as it is shipped, and how each of its semi-joins over the table's rows is done, by number.
pub(crate) struct Joining {
    /// Its program beside the data may keep too many rows; its finish then drops them.
    pub(crate) plan: Plan,
    pub(crate) joins: Vec<SemiJoin>,
}

impl Joining {
    pub(crate) fn of(plan: &Plan, placement: Placement) -> Joining {
        let mut shipped = plan.clone();
        let mut joins = Vec::new();
        // Those of the program beside the data are numbered first, and in its order.
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
        // One that is done here takes the others with it.
        let joins = joins.into_iter().map(|join| SemiJoin { by: JoinBy::Here, bytes: 0, ..join }).collect();
        Joining { plan: plan.clone(), joins }
    }

    /// Whether nodes can do their part.
    pub(crate) fn is_shipped(&self) -> bool {
        self.joins.iter().all(|join| join.by != JoinBy::Here)
    }

    /// What nodes are sent, by number.
    pub(crate) fn uploads(&self) -> Result<Vec<Upload>, Stopped> {
        let upload = |(join, set): (&SemiJoin, &Arc<KeySet>)| match join.by {
            JoinBy::Filter => Ok(Upload { kind: LookupKind::Bloom, bytes: set.filter()?.to_bytes() }),
            JoinBy::Keys | JoinBy::Here => Ok(Upload { kind: LookupKind::Keys, bytes: set.packed() }),
        };
        self.joins.iter().zip(&self.plan.key_sets).map(upload).collect()
    }
}

/// What semi-joins look up in, as it travels.
pub(crate) struct Upload {
    pub(crate) kind: LookupKind,
    pub(crate) bytes: Vec<u8>,
}

/// The keys that a program looks up in here, by number.
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

/// No keys, of any type.
pub(crate) fn none() -> Result<Arc<LookupTable>, Stopped> {
    let none = LookupTable::from_bytes(Lookup::Keys, Vec::<u8>::new().into(), 0);
    none.map(Arc::new).map_err(|error| Stopped::Columns(error.to_string()))
}
