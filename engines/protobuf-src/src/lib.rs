//! The compiler of Protocol Buffers that the build script of the `substrait` crate runs, without a program to install.
//!
//! The idea: that build script asks a crate `protobuf-src` for a `protoc`. The one of that name on crates.io compiles
//! Google's, which takes cmake and minutes. This one takes its place (`[patch.crates-io]`), and its own build script is
//! the program: run by Cargo it notes where it lies, run with arguments it compiles, by `protox`, in Rust.
//!
//! Never here: anything that runs when a query does.
#![forbid(unsafe_code)]

use std::path::PathBuf;

/// A program that takes those arguments of `protoc` that prost passes.
pub fn protoc() -> PathBuf {
    PathBuf::from(env!("FARPOOL_PROTOC"))
}
