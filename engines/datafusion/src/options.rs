//! Options of a session, which SQL can set: `SET farpool.placement = 'ship'`.

use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::common::{DataFusionError, Result, config_err};
use farpool::{Placement, Protection};
use std::any::Any;

const PLACEMENT: &str = "placement";
const SPILL_JOINS: &str = "spill_joins";
const TABLE_PROTECTION: &str = "table_protection";
const RECIPES: &str = "recipes";
const PARTITION_BY: &str = "partition_by";
const SORT_BY: &str = "sort_by";
/// Value of [`TABLE_PROTECTION`] by which the pool decides.
const AUTO: &str = "auto";

/// Options of a session, under the prefix `farpool`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Placement of programs over far tables.
    pub placement: Placement,
    /// True if hash joins may spill when their build side does not fit into the memory pool.
    pub spill_joins: bool,
    /// Protection of tables that `CREATE TABLE .. AS` makes: none or mirror. Default: a mirror where the pool has two
    /// hosts.
    pub table_protection: Option<Protection>,
    /// True if tables that `CREATE TABLE .. AS` makes get recipes, by which they are made again if all of their copies
    /// are lost.
    pub recipes: bool,
    /// Columns whose values divide tables that `CREATE TABLE` makes into partitions.
    pub partition_by: Vec<String>,
    /// Columns by which the files of tables that `CREATE TABLE` makes are sorted.
    pub sort_by: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            placement: Placement::Auto,
            spill_joins: true,
            table_protection: None,
            recipes: true,
            partition_by: Vec::new(),
            sort_by: Vec::new(),
        }
    }
}

/// Reads the value of a setting that is true or false.
fn truth(key: &str, value: &str) -> Result<bool> {
    value.to_ascii_lowercase().parse().map_err(|_| {
        DataFusionError::Configuration(format!("farpool.{key} is {value:?}: true or false is permitted"))
    })
}

/// Reads names that are separated by commas.
fn names(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
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
        match key {
            PLACEMENT => {
                self.placement = value.to_ascii_lowercase().parse().map_err(|unknown| {
                    DataFusionError::Configuration(format!("farpool.{PLACEMENT}: {unknown}"))
                })?
            }
            SPILL_JOINS => self.spill_joins = truth(SPILL_JOINS, value)?,
            TABLE_PROTECTION => {
                self.table_protection = match value.to_ascii_lowercase().as_str() {
                    AUTO => None,
                    word => Some(word.parse().ok().filter(|known| *known != Protection::Local).ok_or_else(
                        || {
                            DataFusionError::Configuration(format!(
                                "farpool.{TABLE_PROTECTION} is {value:?}: {AUTO}, none, mirror or rs(DATA,PARITY) is \
                                 permitted"
                            ))
                        },
                    )?),
                }
            }
            RECIPES => self.recipes = truth(RECIPES, value)?,
            PARTITION_BY => self.partition_by = names(value),
            SORT_BY => self.sort_by = names(value),
            _ => {
                return config_err!(
                    "unknown setting farpool.{key}; the settings are farpool.{PLACEMENT}, farpool.{SPILL_JOINS}, \
                     farpool.{TABLE_PROTECTION}, farpool.{RECIPES}, farpool.{PARTITION_BY} and farpool.{SORT_BY}"
                );
            }
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |key, value: String, description| ConfigEntry {
            key: format!("{}.{key}", Options::PREFIX),
            value: Some(value),
            description,
        };
        vec![
            entry(
                PLACEMENT,
                self.placement.name().to_owned(),
                "Placement of programs over far tables: fetch (here), ship (at the nodes), split (both), or auto.",
            ),
            entry(
                SPILL_JOINS,
                self.spill_joins.to_string(),
                "Whether hash joins spill to temporary files if their build side does not fit into the memory pool.",
            ),
            entry(
                TABLE_PROTECTION,
                self.table_protection.map_or(AUTO.to_owned(), |protection| protection.to_string()),
                "Protection of tables that CREATE TABLE AS makes: none, mirror (copies on two hosts), rs(DATA,PARITY) \
                 (parity on further hosts), or auto (a mirror where the pool has two hosts).",
            ),
            entry(
                RECIPES,
                self.recipes.to_string(),
                "Whether tables that CREATE TABLE AS makes keep their query, by which they are made again if all of \
                 their copies are lost.",
            ),
            entry(
                PARTITION_BY,
                self.partition_by.join(","),
                "Columns, separated by commas, whose values divide tables that CREATE TABLE makes into partitions: \
                 each file has rows of one partition.",
            ),
            entry(
                SORT_BY,
                self.sort_by.join(","),
                "Columns, separated by commas, by which each file of tables that CREATE TABLE makes is sorted.",
            ),
        ]
    }
}
