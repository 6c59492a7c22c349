//! Where values come from, for errors and for `farpool config show`.

use farpool_files::shown;
use std::fmt;
use std::path::PathBuf;

/// Source of a value, in rising precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave the value.
    Default,
    /// A line of the settings file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Line of the key, from 1.
        line: usize,
    },
    /// An environment variable of this name.
    Variable(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Origin::Variable(name) => f.write_str(name),
        }
    }
}

/// A mistake in a settings file or in an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// File and line, or variable.
    pub place: String,
    /// The mistake, and what is permitted.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", shown(&self.place), shown(&self.problem))
    }
}

/// Flags that were given by the settings file or by variables instead of the command line. An error that is about one
/// of them is explained by its origin.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<Given>);

#[derive(Clone, Debug)]
struct Given {
    /// Flag with its dashes.
    flag: String,
    value: String,
    origin: Origin,
}

impl Origins {
    /// Adds a flag (with its dashes).
    pub(crate) fn add(&mut self, flag: String, value: String, origin: Origin) {
        self.0.push(Given { flag, value, origin });
    }

    /// Returns a line for each flag that the text names, or whose value it contains.
    pub fn explain(&self, text: &str) -> Vec<String> {
        let is_in_a_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let names = |flag: &str| {
            text.match_indices(flag).any(|(at, _)| {
                let after = &text[at + flag.len()..];
                !text[..at].ends_with(is_in_a_word) && !after.starts_with(is_in_a_word)
            })
        };
        // Errors about a pool name its brokers, without the scheme. Short values would be found in any text.
        let contains = |value: &str| {
            let value = value.strip_prefix("farpool://").unwrap_or(value);
            value.len() >= 6 && text.contains(value)
        };
        let about = self.0.iter().filter(|given| names(&given.flag) || contains(&given.value));
        about.map(|given| format!("{} {} comes from {}", given.flag, given.value, given.origin)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_explained_by_the_origin_of_the_flags_that_it_names() {
        let mut origins = Origins::default();
        origins.add("--tls".into(), "a".into(), Origin::Variable("FARPOOL_TLS".into()));
        let file = Origin::File { path: "f.toml".into(), line: 3 };
        origins.add("--tls-ca".into(), "b.pem".into(), file);
        origins.add(
            "--pool".into(),
            "farpool://10.0.0.9:7700".into(),
            Origin::Variable("FARPOOL_POOL".into()),
        );
        assert_eq!(
            origins.explain("--tls-ca b.pem: no such file"),
            ["--tls-ca b.pem comes from f.toml, line 3"]
        );
        assert_eq!(
            origins.explain("broker 10.0.0.9:7700: the connection ended"),
            ["--pool farpool://10.0.0.9:7700 comes from FARPOOL_POOL"]
        );
        assert!(origins.explain("the pool is full").is_empty());
    }
}
