//! Parts that the benchmarks share: sizes and offsets of accesses, expected contents, clients, pools and processes,
//! timing and statistics.

pub(crate) mod access;
pub(crate) mod bursts;
pub(crate) mod contents;
pub(crate) mod cpu;
pub(crate) mod files;
pub(crate) mod machine;
pub(crate) mod measure;
pub(crate) mod mixing;
pub(crate) mod pools;
pub(crate) mod processes;
pub(crate) mod shape;
pub(crate) mod statistics;
pub(crate) mod titled;
