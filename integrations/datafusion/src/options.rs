//! What a session may set: `SET farpool.placement = 'ship'`.

use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::common::{DataFusionError, Result, config_err};
use farpool::table::Mode;
use std::any::Any;

const PLACEMENT: &str = "placement";

/// Options of a session, under the prefix `farpool`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where programs over far tables run.
    pub placement: Mode,
}

impl Default for Options {
    fn default() -> Options {
        Options { placement: Mode::Auto }
    }
}

impl ConfigExtension for Options {
    const PREFIX: &'static str = "farpool";
}

impl ExtensionOptions for Options {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if key != PLACEMENT {
            return config_err!("farpool.{key} is not known: there is farpool.{PLACEMENT}");
        }
        self.placement = value.to_ascii_lowercase().parse().map_err(|_| {
            let message =
                format!("farpool.{PLACEMENT} is {value:?}: one of auto, fetch, ship, split is permitted");
            DataFusionError::Configuration(message)
        })?;
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![ConfigEntry {
            key: format!("{}.{PLACEMENT}", Options::PREFIX),
            value: Some(self.placement.name().to_owned()),
            description: "Where programs over far tables run: here (fetch), beside the data (ship), both (split), or the best (auto).",
        }]
    }
}
