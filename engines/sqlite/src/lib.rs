//! Far memory for SQLite: a virtual file system in a loadable extension, for the stock library.
//!
//! ```sql
//! .load libfarpool_sqlite
//! .open big.db
//! ```
//!
//! The idea: databases, their journals and their write-ahead logs stay where they are, and SQLite's own file system
//! does all that is done to them, locks and shared memory included; only pages that are read of a database are kept in
//! far memory (`farpool-cache`). Temporary files, to which sorts, indices and temporary tables overflow, lie in far
//! memory alone.
//!
//! Settings are in the environment's `FARPOOL_SQLITE`: flags, such as `--pool farpool://10.0.0.2:7700 --cache 8GiB`.
//!
//! Never in this crate: a lock, or a rule about journals. They are SQLite's.

mod abi;
mod beneath;
mod buffered;
mod settings;
mod shim;
mod vfs;

use beneath::{Api, Beneath};
use farpool_files::Pool;
use farpool_lock::Mutex;
use settings::Settings;
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;
use vfs::FarVfs;

/// Whether the file system was registered in this process.
static HAS_BEGUN: Mutex<bool> = Mutex::new(false);
/// The session of this process.
static POOL: OnceLock<Pool> = OnceLock::new();

/// What SQLite calls when the extension is loaded. The file system is SQLite's default from then on, and stays until
/// the process ends.
///
/// # Safety
///
/// `api` is SQLite's table of functions, and `message` is null or takes a string, as SQLite promises an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    _database: *mut c_void,
    message: *mut *mut c_char,
    api: *const c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let api = unsafe { Api::new(api.cast()) };
    let Some(api) = api else { return abi::ERROR };
    let begun = catch_unwind(|| begin(api));
    let Err(why) = begun.unwrap_or_else(|_| Err("farpool: a defect; nothing was registered".to_owned()))
    else {
        return abi::OK_LOAD_PERMANENTLY;
    };
    // SAFETY: as the caller promises. SQLite frees what is put there.
    if let Some(message) = unsafe { message.as_mut() } {
        *message = api.text(&why);
    }
    abi::ERROR
}

/// Gives far memory back when the process ends by itself: nodes would keep it until the session's leases run out.
extern "C" fn give_back() {
    // Whatever is wrong, the process ends.
    let _ = catch_unwind(|| POOL.get().map(Pool::close));
}

fn begin(api: Api) -> Result<(), String> {
    // Programs load it for each of their connections.
    let mut has_begun = HAS_BEGUN.lock();
    if *has_begun {
        return Ok(());
    }
    api.check_version()?;
    let settings = Settings::of_environment()?;
    let beneath = api.default_vfs().ok_or("farpool: this SQLite has no file system of its own")?;
    // SAFETY: SQLite never takes its default one away.
    let beneath = unsafe { Beneath::new(beneath) };
    let vfs = FarVfs::new(&settings, api, beneath)?;
    let pool = vfs.pool().clone();
    shim::register(api, vfs)
        .map_err(|code| format!("farpool: SQLite refused the file system: error {code}"))?;
    *has_begun = true;
    if POOL.set(pool).is_ok() {
        // SAFETY: `give_back` can be called at any time, and stays where it is: SQLite never unloads this extension.
        unsafe { libc::atexit(give_back) };
    }
    Ok(())
}
