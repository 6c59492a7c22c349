//! Far memory for SQLite: a virtual file system in a loadable extension, for the stock library.
//!
//! ```sql
//! .load libfarpool_sqlite
//! .open big.db
//! ```
//!
//! The idea: databases, their journals and their write-ahead logs stay where they are, and SQLite's own file system does all that
//! is done to them, locks and shared memory included; only pages that are read of a database are kept in far memory
//! (`farpool-cache`). Temporary files, to which sorts, indices and temporary tables overflow, lie in far memory alone.
//!
//! Settings are in the environment's `FARPOOL_SQLITE`: flags, such as `--pool farpool://10.0.0.2:7700 --cache 8GiB`.
//!
//! Never in this crate: a lock, or a rule about journals. They are SQLite's.

mod beneath;
mod buffered;
mod settings;
mod vfs;

use beneath::Beneath;
use settings::Settings;
use sqlite_plugin::vfs::{RegisterOpts, SqliteApi, register_dynamic};
use sqlite_plugin::{sqlite3_api_routines, vars};
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};
use vfs::FarVfs;

/// Whether the file system was registered in this process.
static HAS_BEGUN: Mutex<bool> = Mutex::new(false);

/// What SQLite calls when the extension is loaded. The file system is SQLite's default from then on, and stays until the process
/// ends.
///
/// # Safety
///
/// `api` is SQLite's table of functions, and `message` is null or takes a string, as SQLite promises an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    _database: *mut c_void,
    message: *mut *const c_char,
    api: *mut sqlite3_api_routines,
) -> c_int {
    // SAFETY: as the caller promises.
    let begun = catch_unwind(|| unsafe { begin(api) });
    let Err(why) = begun.unwrap_or_else(|_| Err("farpool: a defect; nothing was registered".to_owned()))
    else {
        return vars::SQLITE_OK_LOAD_PERMANENTLY;
    };
    // SAFETY: as the caller promises.
    let api = unsafe { api.as_ref() };
    // SAFETY: it was looked at.
    let api = api.and_then(|api| unsafe { SqliteApi::new_dynamic(api) }.ok());
    if let Some(api) = api
        && !message.is_null()
    {
        // It is taken for a format.
        let why = why.replace('%', "%%");
        // SAFETY: `message` was looked at, and SQLite frees what is put there.
        let _ = unsafe { api.mprintf(&why, message) };
    }
    vars::SQLITE_ERROR
}

/// # Safety
///
/// `api` is SQLite's table of functions.
unsafe fn begin(api: *mut sqlite3_api_routines) -> Result<(), String> {
    // Programs load it for each of their connections.
    let mut has_begun = HAS_BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    if *has_begun {
        return Ok(());
    }
    let settings = Settings::of_environment()?;
    // SAFETY: as the caller promises.
    let beneath = unsafe { Beneath::find(api) }.ok_or("farpool: this SQLite is older than 3.37")?;
    let vfs = FarVfs::new(&settings, beneath)?;
    let log = vfs.log();
    let options = RegisterOpts { make_default: true };
    // SAFETY: as the caller promises.
    let logger = unsafe { register_dynamic(api, c"farpool".to_owned(), vfs, options) }
        .map_err(|code| format!("farpool: SQLite refused the file system: error {code}"))?;
    log.begin(logger);
    *has_begun = true;
    Ok(())
}
