//! What all benches stand on: who does the work, on which bytes, where, how it is timed, and what comes of it.

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
