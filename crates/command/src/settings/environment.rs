//! Sources of settings that this process has: its variables, and the file that they or `--config` name.

use super::declared::{CONFIG, PREFIX};
use super::file::File;
use super::merged::Variables;
use super::origin::Mistake;
use std::path::{Path, PathBuf};

/// Returns the variables of this process that may be settings. An empty one counts as not set, because container
/// definitions often pass variables on that nobody has set.
pub(crate) fn variables() -> Variables {
    let named = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    named.filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty()).collect()
}

/// Reads the settings file: the one of `--config`, else that of `FARPOOL_CONFIG`, else the default one if it exists.
pub(crate) fn file(config: Option<&Path>, variables: &Variables) -> Result<Option<File>, Mistake> {
    let named = config.map(Path::to_owned).or_else(|| variables.get(CONFIG).map(PathBuf::from));
    File::read(named.as_deref())
}
