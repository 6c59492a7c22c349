//! A Protocol Buffers compiler for the build script of the crate `substrait`, which needs no program to be installed.
//!
//! The idea: that build script asks a crate `protobuf-src` for the path of a `protoc`. The crate of that name on
//! crates.io builds Google's compiler, which needs cmake and takes minutes. This crate replaces it
//! (`[patch.crates-io]`). Its own build script is the `protoc`: when Cargo runs it without arguments, it records its
//! own path; with arguments it compiles, by the Rust crate `protox`.
//!
//! Never in this crate: anything that runs when a query does.
#![forbid(unsafe_code)]

use std::path::PathBuf;

/// Returns the path of a program that takes those arguments of `protoc` that prost passes.
pub fn protoc() -> PathBuf {
    PathBuf::from(env!("FARPOOL_PROTOC"))
}
