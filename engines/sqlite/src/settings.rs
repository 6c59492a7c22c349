//! Settings from the environment.

use clap::Parser;
use farpool_cache::{BlockCache, CacheOptions};
use farpool_command::exposure::ClientArgs;
use farpool_command::settings::{self, declared::Scope};
use farpool_command::units::bytes;
use farpool_files::{Pool, PoolOptions, Protection, TransportChoice};

const VARIABLE: &str = "FARPOOL_SQLITE";

/// Variables of single flags, such as `FARPOOL_SQLITE_CACHE`, and of the connection, such as `FARPOOL_POOL`. Flags in
/// [`VARIABLE`] come before them.
const SCOPE: Scope = Scope { table: &["sqlite"], without: &[], elsewhere: &[] };

/// Flags in the environment variable FARPOOL_SQLITE.
#[derive(Parser)]
#[command(name = VARIABLE, no_binary_name = true, disable_help_flag = true)]
pub(crate) struct Settings {
    /// Bytes of databases cached in far memory; 0B for none
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "1GiB")]
    cache: u64,
    /// Bytes of databases cached in this process before that, beside SQLite's page cache
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "16MiB")]
    local_cache: u64,
    /// Block size of the cache, which reads and keeps whole blocks: 4KiB to 4MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "16KiB")]
    block: u64,
    /// Protection of temporary files against the loss of a node: none, mirror or local [default: as the pool allows]
    #[arg(long, value_name = "HOW")]
    protection: Option<Protection>,
    /// Transport to the nodes: auto, tcp or shm
    #[arg(long, value_name = "HOW", default_value = "auto")]
    transport: TransportChoice,
    #[command(flatten)]
    exposure: ClientArgs,
}

impl Settings {
    /// Parses the environment variable.
    pub(crate) fn of_environment() -> Result<Settings, String> {
        let flags = std::env::var(VARIABLE).unwrap_or_default();
        settings::parse_words::<Settings>(&SCOPE, &flags)
            .map_err(|error| format!("{VARIABLE} in the environment: {error}"))
    }

    /// Opens a session with the pool, and a cache unless its sizes are 0.
    pub(crate) fn connect(&self) -> Result<(Pool, Option<BlockCache>), String> {
        let told = |error: &dyn std::fmt::Display| {
            format!("farpool: {error} (the pool is set by {VARIABLE} or FARPOOL_POOL)")
        };
        let exposure = self.exposure.exposure().map_err(|failure| told(&failure))?;
        let options = PoolOptions {
            label: Some(format!("SQLite in process {}", std::process::id())),
            transport: self.transport,
            protection: self.protection,
            tls: exposure.tls,
            plaintext: exposure.plaintext,
            ..PoolOptions::default()
        };
        let pool = Pool::connect_with(&self.exposure.pool, options).map_err(|error| told(&error))?;
        let options = CacheOptions {
            block_bytes: usize::try_from(self.block).unwrap_or(usize::MAX),
            near_bytes: self.local_cache,
            far_bytes: self.cache,
            ..CacheOptions::default()
        };
        let is_wanted = self.cache > 0 || self.local_cache > 0;
        let cache = is_wanted.then(|| BlockCache::new(&options, Some(&pool))).transpose();
        Ok((pool, cache.map_err(|error| told(&error))?))
    }
}
