//! Placement of a step over far data: what callers ask for ([`Placement`]), and what it is resolved to ([`Way`]).

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// Placement that a caller asks for: where a step over far data runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The planner chooses the way that is expected to take the least time.
    #[default]
    Auto,
    /// The step runs in the client, over bytes that it fetches.
    Fetch,
    /// The step runs at the nodes that hold the bytes.
    Ship,
    /// The step runs at the nodes over some of the bytes and in the client over the others, at the same time.
    Split,
}

impl Placement {
    /// The placements that name a way: all but [`Placement::Auto`].
    pub const FIXED: [Placement; 3] = [Placement::Fetch, Placement::Ship, Placement::Split];

    /// Returns the name that options, flags and reports use.
    pub fn name(self) -> &'static str {
        self.way().map_or("auto", Way::name)
    }

    /// Returns the way that is asked for. `None` means that the planner chooses it.
    pub fn way(self) -> Option<Way> {
        match self {
            Placement::Auto => None,
            Placement::Fetch => Some(Way::Fetch),
            Placement::Ship => Some(Way::Ship),
            Placement::Split => Some(Way::Split),
        }
    }
}

impl From<Way> for Placement {
    fn from(way: Way) -> Placement {
        match way {
            Way::Fetch => Placement::Fetch,
            Way::Ship => Placement::Ship,
            Way::Split => Placement::Split,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Placement, UnknownPlacement> {
        let known = Placement::FIXED.into_iter().chain([Placement::Auto]);
        known
            .into_iter()
            .find(|placement| placement.name() == name)
            .ok_or_else(|| UnknownPlacement(name.to_owned()))
    }
}

/// Error: a name that is not a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPlacement(String);

impl fmt::Display for UnknownPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a placement: auto, fetch, ship and split are permitted", self.0)
    }
}

impl Error for UnknownPlacement {}

/// Way to run a step over far data. A [`Placement`] is resolved to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// The client fetches the data and runs the step.
    Fetch,
    /// The nodes that hold the data run the step, and send its results.
    Ship,
    /// Nodes begin at one end of the data and the client at the other, until they meet.
    Split,
}

impl Way {
    /// Every way, in the order of their indices.
    pub const ALL: [Way; 3] = [Way::Fetch, Way::Ship, Way::Split];

    /// Returns the name, which is also that of the [`Placement`] that asks for this way.
    pub fn name(self) -> &'static str {
        match self {
            Way::Fetch => "fetch",
            Way::Ship => "ship",
            Way::Split => "split",
        }
    }

    /// Returns the way's index in [`Way::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
