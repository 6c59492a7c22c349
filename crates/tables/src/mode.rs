//! Where a query is to run.

use farpool_files::{Error, ErrorKind};
use std::fmt;
use std::str::FromStr;

/// Where the program of a query runs over a table's row groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Here, over columns that are fetched.
    Fetch,
    /// At the nodes that hold them; what cannot be done there is fetched.
    Ship,
    /// At both: nodes begin from the front of their row groups, and fetching from the back, until they meet.
    Split,
    /// Where it is expected to take least, by what the session has seen of links and of this query.
    Auto,
}

impl Mode {
    /// Those that say where: all but [`Mode::Auto`].
    pub const ALL: [Mode; 3] = [Mode::Fetch, Mode::Ship, Mode::Split];

    /// As it is written in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Fetch => "fetch",
            Mode::Ship => "ship",
            Mode::Split => "split",
            Mode::Auto => "auto",
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Mode, Error> {
        let known = Mode::ALL.into_iter().chain([Mode::Auto]).find(|mode| mode.name() == name);
        known.ok_or_else(|| {
            let message =
                format!("mode is {name:?}: \"auto\", \"fetch\", \"ship\" and \"split\" are permitted");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
