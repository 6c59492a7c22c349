//! Functions shipped to far memory: user code that runs where the bytes of a published file lie.
//!
//! ```no_run
//! use farpool::function::{CallOptions, Function};
//! # fn main() -> Result<(), farpool::Error> {
//! let pool = farpool::Pool::connect("farpool://127.0.0.1:7700")?;
//! let list = pool.open("list")?.caller(Default::default())?;
//! let walk = Function::wasm(std::fs::read("walk.wasm").unwrap(), "walk")?;
//! let args: Vec<u8> = [0u64, 1000, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
//! let output = list.call(&walk, &args, CallOptions::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! Implementation: [`farpool_calls`]. Contract: `spec/function.md`.

pub use farpool_calls::{
    CallOptions, CallPlan, Called, Caller, CallerOptions, EachPlan, Ended, Function, FunctionForm,
    FunctionInfo, FunctionStored, FunctionVersion, Outcome, SandboxOptions, abi, sandbox_program,
};
