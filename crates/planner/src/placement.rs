//! Where a step over far data runs: as it is asked for, and as it is done.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// Where a step over far data is asked to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In whichever of the three ways is expected to take the least time.
    #[default]
    Auto,
    /// In the client, over bytes that it fetches.
    Fetch,
    /// At the nodes that hold the bytes.
    Ship,
    /// At the nodes over some of the bytes, and in the client over the others, at the same time.
    Split,
}

impl Placement {
    /// Every placement but [`Placement::Auto`].
    pub const FIXED: [Placement; 3] = [Placement::Fetch, Placement::Ship, Placement::Split];

    /// Returns the name that options, flags and reports use.
    pub fn name(self) -> &'static str {
        self.way().map_or("auto", Way::name)
    }

    /// Returns the way that is asked for; `None` for [`Placement::Auto`].
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

/// A name that is no placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPlacement(String);

impl fmt::Display for UnknownPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a placement: auto, fetch, ship and split are permitted", self.0)
    }
}

impl Error for UnknownPlacement {}

/// How a step over far data is run: what an asked [`Placement`] is resolved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// The data moves.
    Fetch,
    /// The program moves.
    Ship,
    /// Part of each: nodes begin at one end of the data and the client at the other, until they meet.
    Split,
}

impl Way {
    /// Every way, in the order of [`Way::index`].
    pub const ALL: [Way; 3] = [Way::Fetch, Way::Ship, Way::Split];

    /// Returns the name, which is also that of the placement.
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
