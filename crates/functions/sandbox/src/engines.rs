//! Compilation of modules, and caches of compiled code.
//!
//! The idea: there are two Wasmtime engines. One compiles checks into the code, by which a running function is
//! interrupted; the other does not, and its functions are stopped by ending the process. Compiled code is cached by the
//! module's hash, in this process and, if the node gave a folder, in files. Only processes of this tenant write these
//! files, because the code in them is run as native code.
#![allow(unsafe_code)]

use crate::module::{self, Interruption};
use crate::space::{AddressSpace, Layout, Spaces};
use farpool_functions::abi::{CALL_AT, Part, WINDOW_AT, digest, hex};
use farpool_functions::setup::{LaneWindow, WindowRange};
use farpool_lock::Mutex;
use farpool_wire::control::FunctionFault;
use rustix::fs::{Mode, OFlags, ftruncate, memfd_create, openat, renameat, unlinkat};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wasmtime::{Config, Engine, InstancePre, Linker, Module, OptLevel, Store, Trap, ValType};

/// Data of this program in a Wasmtime store (the state of a module's instance): none.
pub type Data = ();

/// Largest number of compiled modules that are kept in memory. One more displaces the one with the smallest hash.
const MODULES_MAX: usize = 256;
/// Largest size of compiled code that is read from a file, in bytes.
const ARTEFACT_BYTES_MAX: u64 = 64 << 20;
/// Delay before compiled code is written, so that writing does not slow the first call. Code that is compiled
/// meanwhile is written together with it.
const KEEP_AFTER: Duration = Duration::from_millis(50);
/// Size of a function's stack, in bytes.
const STACK_BYTES: usize = 512 << 10;

/// A compiled module that can be called.
#[derive(Clone)]
pub struct Compiled {
    /// The module, which can be instantiated any number of times.
    pub instances: InstancePre<Data>,
    /// Method by which running functions of the module are interrupted.
    pub interruption: Interruption,
}

/// Compiled code that is to be written to a file.
struct ToKeep {
    cache: OwnedFd,
    name: String,
    module: Module,
}

/// Starts the thread that writes compiled code to files, after callers have had time to run it.
fn keeper() -> Sender<ToKeep> {
    let (sender, receiver) = channel::<ToKeep>();
    // If the thread cannot be started, nothing is cached in files.
    let _ = std::thread::Builder::new().name("farpool-keep".into()).spawn(move || {
        while let Ok(first) = receiver.recv() {
            std::thread::sleep(KEEP_AFTER);
            for ToKeep { cache, name, module } in std::iter::once(first).chain(receiver.try_iter()) {
                let _ = module.serialize().map(|artefact| write_artefact(&cache, &name, &artefact));
            }
        }
    });
    sender
}

/// The Wasmtime engines of the process, one for each [`Interruption`], and the caches of compiled code.
pub struct Engines {
    /// Engine that compiles checks into the code ([`Interruption::Inside`]).
    inside: Engine,
    /// Engine that compiles no checks into the code ([`Interruption::Outside`]).
    outside: Engine,
    /// Compiled modules in memory, by the SHA-256 hash of the module.
    kept: Mutex<BTreeMap<[u8; 32], Compiled>>,
    /// Channel to the thread that writes compiled code to files. The first module starts that thread.
    to_keep: OnceLock<Sender<ToKeep>>,
    /// Hash of all settings that compiled code depends on, for each [`Interruption`].
    settings: [u64; 2],
}

/// Number of threads that compile a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    /// The calling thread only.
    One,
    /// One thread for each CPU. The first module that needs them starts them, and they stay.
    Many,
}

fn engine(interruption: Interruption, threads: Threads) -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .parallel_compilation(threads == Threads::Many)
        .wasm_features(wasmtime::WasmFeatures::all(), false)
        .wasm_features(module::features(), true)
        .epoch_interruption(interruption == Interruption::Inside)
        .cranelift_opt_level(OptLevel::Speed)
        .max_wasm_stack(STACK_BYTES)
        .memory_reservation(4 << 30)
        .memory_guard_size(4 << 30)
        .memory_init_cow(false)
        .with_host_memory(Arc::new(Spaces));
    Engine::new(&config)
}

impl Engines {
    /// Makes the engines, and tests that windows work as [`crate::space`] needs them.
    pub fn new() -> wasmtime::Result<Engines> {
        let inside = engine(Interruption::Inside, Threads::Many)?;
        let outside = engine(Interruption::Outside, Threads::Many)?;
        let settings = [(&inside, Interruption::Inside), (&outside, Interruption::Outside)];
        let settings = settings.map(|(engine, interruption)| {
            let mut hasher = DefaultHasher::new();
            engine.precompile_compatibility_hash().hash(&mut hasher);
            interruption.hash(&mut hasher);
            hasher.finish()
        });
        let engines = Engines { inside, outside, kept: Mutex::default(), to_keep: OnceLock::new(), settings };
        Self::test_window()?;
        Ok(engines)
    }

    /// Interrupts the running modules of the engine `inside`, so that each checks whether it may continue. Modules of
    /// the engine `outside` have no such checks, and are stopped by ending the process.
    pub fn tick(&self) {
        self.inside.increment_epoch();
    }

    fn of(&self, interruption: Interruption) -> &Engine {
        match interruption {
            Interruption::Inside => &self.inside,
            Interruption::Outside => &self.outside,
        }
    }

    /// Returns a compiled module by its hash, from memory or from a file of the folder `cache`; `None` if neither has
    /// it.
    pub fn known(&self, hash: &[u8; 32], cache: Option<&OwnedFd>) -> Option<Compiled> {
        if let Some(kept) = self.kept.lock().get(hash) {
            return Some(kept.clone());
        }
        let cache = cache?;
        [Interruption::Inside, Interruption::Outside].into_iter().find_map(|interruption| {
            let artefact = read_artefact(cache, &self.artefact_name(hash, interruption)).ok()?;
            // SAFETY: by its name, the file was written by `compile` for this engine's settings; by its hash, its
            // bytes are those that were written. Only processes of this tenant can write to the folder, and each of
            // them may run any code in here anyway.
            let module = unsafe { Module::deserialize(self.of(interruption), artefact) }.ok()?;
            self.keep(hash, module, interruption).ok()
        })
    }

    /// Checks and compiles a module, or takes it from a cache.
    pub fn module(
        &self,
        bytes: &[u8],
        heap_bytes: u64,
        cache: Option<&OwnedFd>,
    ) -> Result<Compiled, FunctionFault> {
        let hash = digest(bytes);
        if let Some(known) = self.known(&hash, cache) {
            return Ok(known);
        }
        let interruption = module::check(bytes, heap_bytes)?;
        let module = Module::from_binary(self.of(interruption), bytes).map_err(|_| FunctionFault::Invalid)?;
        if let Some(cache) = cache.and_then(|cache| cache.try_clone().ok()) {
            let name = self.artefact_name(&hash, interruption);
            // If the file cannot be written, the module is compiled again next time.
            let _ = self.to_keep.get_or_init(keeper).send(ToKeep { cache, name, module: module.clone() });
        }
        self.keep(&hash, module, interruption).map_err(|_| FunctionFault::NotLoaded)
    }

    fn keep(
        &self,
        hash: &[u8; 32],
        module: Module,
        interruption: Interruption,
    ) -> wasmtime::Result<Compiled> {
        let instances = Linker::new(self.of(interruption)).instantiate_pre(&module)?;
        let compiled = Compiled { instances, interruption };
        let mut kept = self.kept.lock();
        if kept.len() >= MODULES_MAX {
            kept.pop_first();
        }
        kept.insert(*hash, compiled.clone());
        Ok(compiled)
    }

    /// Returns the file name of compiled code, made of the module's hash and of all settings.
    fn artefact_name(&self, hash: &[u8; 32], interruption: Interruption) -> String {
        format!("{}-{:016x}", hex(hash), self.settings[interruption as usize])
    }

    /// Tests that compiled code can load from a window (a file that is mapped above the module's heap) and traps beside
    /// it, on which [`crate::space`] relies. It also makes the compiler's first use happen before a caller waits.
    fn test_window() -> wasmtime::Result<()> {
        let window = test_window_file()?;
        let (add, load): (&[u8], u64) = (b"farpool!", u64::from_le_bytes(*b"farpool!"));
        for interruption in [Interruption::Inside, Interruption::Outside] {
            // A thread that is started before the lockdown would not be locked down.
            let engine = engine(interruption, Threads::One)?;
            let module = Module::from_binary(&engine, &peek_module())?;
            let files = vec![window.try_clone()?];
            let part = Part { first: 0, bytes: add.len() as u64 };
            let window = LaneWindow {
                window_bytes: 1 << 16,
                output_bytes: 0,
                ranges: vec![WindowRange { file: 0, offset: 0, part }],
                fences: Vec::new(),
                words: None,
                files,
            };
            let supplied = memfd_create("farpool-none", rustix::fs::MemfdFlags::CLOEXEC)?;
            let bases = Mutex::new(Some(Vec::new()));
            Arc::new(AddressSpace::new(Arc::new(Layout { window, supplied, heap_bytes: 1 << 20, bases }))?)
                .offer();
            let mut store = Store::new(&engine, ());
            store.set_epoch_deadline(u64::MAX / 2);
            let instance = wasmtime::Instance::new(&mut store, &module, &[])?;
            let peek = instance.get_typed_func::<i32, i64>(&mut store, "peek")?;
            let here = peek.call(&mut store, WINDOW_AT as i32)? as u64;
            let traps = |result: wasmtime::Result<i64>| {
                result.err().and_then(|error| error.downcast_ref::<Trap>().copied())
                    == Some(Trap::MemoryOutOfBounds)
            };
            let behind = traps(peek.call(&mut store, (WINDOW_AT + 4096) as i32));
            let between = traps(peek.call(&mut store, (CALL_AT - 4096) as i32));
            let last = traps(peek.call(&mut store, -1));
            if here != load || !behind || !between || !last {
                return Err(wasmtime::Error::msg(
                    "this version of Wasmtime does not support windows: see crates/functions/sandbox/src/space.rs",
                ));
            }
        }
        Ok(())
    }
}

fn test_window_file() -> io::Result<OwnedFd> {
    let file = memfd_create("farpool-test", rustix::fs::MemfdFlags::CLOEXEC)?;
    ftruncate(&file, 4096)?;
    rustix::io::pwrite(&file, b"farpool!", 0)?;
    Ok(file)
}

/// Returns the bytes of this module, which loads an i64 from an address:
///
/// `(module (memory (export "memory") 1) (func (export "peek") (param i32) (result i64) local.get 0 i64.load))`
fn peek_module() -> Vec<u8> {
    let sections: [&[u8]; 5] = [
        &[1, 6, 1, 0x60, 1, 0x7f, 1, 0x7e],
        &[3, 2, 1, 0],
        &[5, 3, 1, 0, 1],
        &[7, 17, 2, 6, b'm', b'e', b'm', b'o', b'r', b'y', 2, 0, 4, b'p', b'e', b'e', b'k', 0, 0],
        &[10, 9, 1, 7, 0, 0x20, 0, 0x29, 0, 0, 0x0b],
    ];
    [&b"\0asm\x01\0\0\0"[..]].into_iter().chain(sections).flatten().copied().collect()
}

/// Checks that the module exports a function of this name, with the type of entries: it takes an i32 and returns an
/// i64.
pub fn check_entry(compiled: &Compiled, entry: &str) -> Result<(), FunctionFault> {
    let export = compiled.instances.module().get_export(entry).ok_or(FunctionFault::NoEntry)?;
    let function = export.func().ok_or(FunctionFault::NoEntry)?;
    let is_entry = function.params().len() == 1
        && function.results().len() == 1
        && matches!(function.param(0), Some(ValType::I32))
        && matches!(function.result(0), Some(ValType::I64));
    if is_entry { Ok(()) } else { Err(FunctionFault::EntryType) }
}

/// Reads compiled code from a file. It is an error if the code does not have the SHA-256 hash at the file's beginning.
fn read_artefact(cache: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    let file = openat(cache, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(ARTEFACT_BYTES_MAX).read_to_end(&mut bytes)?;
    match bytes.split_first_chunk::<32>() {
        Some((hash, artefact)) if digest(artefact) == *hash => Ok(artefact.to_vec()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn write_artefact(cache: &OwnedFd, name: &str, artefact: &[u8]) -> io::Result<()> {
    // Uses a random suffix, because in namespaces of their own all processes have the same id.
    let unfinished = format!("{name}.{:016x}", RandomState::new().build_hasher().finish());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // Other processes of this tenant, which have other users, must be able to read it.
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = openat(cache, &*unfinished, flags, mode)?;
    let mut file = std::fs::File::from(file);
    let written = file.write_all(&digest(artefact)).and_then(|()| file.write_all(artefact));
    let renamed = written.and_then(|()| Ok(renameat(cache, &*unfinished, cache, name)?));
    if renamed.is_err() {
        let _ = unlinkat(cache, &*unfinished, rustix::fs::AtFlags::empty());
    }
    renamed
}
