//! Functions that `farpool bench functions` sends to a memory node. WebAssembly modules are generated for a run, or
//! read from a directory. Native functions are read from a directory and signed for the run.

use crate::exit::Failure;
use crate::input;
use farpool::Placement;
use farpool::function::{CallOptions, Function};
use farpool_calls::SigningKey;
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use std::io::Write;
use std::time::Duration;

/// Start of a module in WebAssembly text, without the last parenthesis. Its function `walk` follows the linked list:
/// the arguments are the offset of the first list node and the number of steps, the output is the offset of the last
/// node and the sum of the values. `examples/functions/walk.wat` also hops to other memory nodes; this one does not.
pub(super) const WALK: &str = r#"(module (memory (export "memory") 1)
  (func (export "walk") (param $call i32) (result i64)
    (local $window i64) (local $at i64) (local $left i64) (local $sum i64) (local $from i32) (local $node i32)
    (local.set $window (i64.load offset=8 (local.get $call)))
    (local.set $from (i32.wrap_i64 (i64.load offset=24 (local.get $call))))
    (local.set $at (i64.load (local.get $from)))
    (local.set $left (i64.load offset=8 (local.get $from)))
    (block $done (loop $step
      (br_if $done (i64.eqz (local.get $left)))
      (local.set $node (i32.wrap_i64 (i64.add (local.get $window) (local.get $at))))
      (local.set $sum (i64.add (local.get $sum) (i64.load offset=8 (local.get $node))))
      (local.set $at (i64.load (local.get $node)))
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (br $step)))
    (i64.store (i32.wrap_i64 (i64.load offset=40 (local.get $call))) (local.get $at))
    (i64.store offset=8 (i32.wrap_i64 (i64.load offset=40 (local.get $call))) (local.get $sum))
    (i64.const 16))"#;
/// Number of native functions whose first call is measured. Each is loaded for that call and stays loaded in the
/// process that runs it.
pub(super) const NATIVES: u64 = 50;
/// Names of the functions that scan the values of the list in the order of their offsets.
pub(super) const SCANS: [&str; 2] = ["filter_sum", "sum"];

/// Builds a module with `functions` functions, the first of which is `walk`. Each `number` gives other bytes, so that a
/// node does not take the module for one that it has compiled before.
pub(super) fn module(functions: usize, number: u64) -> Result<Vec<u8>, Failure> {
    let mut more = String::new();
    for index in 1..functions {
        more += &format!(
            "(func (export \"sum{index}\") (param $at i32) (param $end i32) (result i64) (local $sum i64)
               (block $done (loop $next
                 (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
                 (local.set $sum (i64.add (local.get $sum) (i64.load offset={} (local.get $at))))
                 (local.set $at (i32.add (local.get $at) (i32.const {})))
                 (br $next)))
               (local.get $sum))\n",
            8 * index,
            8 * (index + 1)
        );
    }
    // The number is stored as a global, which adds nothing to the compile time.
    more += &format!("(global i64 (i64.const {number})))");
    wat::parse_str(WALK.to_owned() + "\n" + &more)
        .map_err(|error| Failure::Failed(format!("the module: {error}")))
}

/// Functions of the directory `--examples`. Native ones are signed with a key of this run. `keys` is a file with its
/// public key, which the nodes get.
pub(super) struct Examples {
    pub(super) walk: Function,
    /// Copies of the native `walk`, whose first calls are measured. A number at the end of the object file makes each
    /// one unique.
    pub(super) walks: Vec<Function>,
    /// Functions for each scan, by its name: the same function as a module, as a module with vectors, and as native
    /// code.
    pub(super) scans: Vec<(&'static str, [(&'static str, Function); 3])>,
    pub(super) keys: tempfile::NamedTempFile,
}

/// Loads functions from a directory, and signs the shared objects with a key of this run.
pub(super) fn examples(folder: &std::path::Path) -> Result<Examples, Failure> {
    let read = |name: String| {
        let file = folder.join(name);
        input::file(&file, FUNCTION_BYTES_MAX)
            .map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))
    };
    let walk = read("walk.so".to_owned())?;
    // The loader of shared objects ignores bytes after the last section, so a number can be appended.
    let walks = (0..=NATIVES).map(|number: u64| ([&walk[..], &number.to_le_bytes()].concat(), "walk"));
    let mut objects: Vec<_> = walks.collect();
    for name in SCANS {
        objects.push((read(format!("{name}.so"))?, name));
    }
    let (key, _) = SigningKey::generate()?;
    let signed = objects.into_iter().map(|(object, entry)| key.sign(object, entry));
    let mut signed = signed.collect::<Result<Vec<_>, _>>()?;
    let scans = SCANS.iter().zip(signed.split_off(NATIVES as usize + 1)).map(|(name, native)| {
        let module = |file: String| Ok::<_, Failure>(Function::wasm(read(file)?, name)?);
        let (plain, vectors) = (module(format!("{name}.wasm"))?, module(format!("{name}.simd.wasm"))?);
        Ok((*name, [("wasm", plain), ("wasm with vectors", vectors), ("native", native)]))
    });
    let scans = scans.collect::<Result<_, Failure>>()?;
    let walk = signed.pop().ok_or_else(|| Failure::failed("no object was signed"))?;
    let mut keys = tempfile::NamedTempFile::new()?;
    writeln!(keys, "{}", key.public_hex())?;
    Ok(Examples { walk, walks: signed, scans, keys })
}

/// Returns the options of calls that run at the node. A call may use an instance of the function that has run before.
pub(super) fn shipped() -> CallOptions {
    CallOptions { placement: Placement::Ship, deadline: Duration::from_secs(600), ..CallOptions::default() }
}
