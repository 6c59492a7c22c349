//! Tests that need more than one crate. Their names are claims: area, situation, expected result.

mod bad_input;
mod bench_command;
mod bulk_links;
mod certificates;
mod certs_command;
mod conformance;
mod damaged_catalog;
mod donations;
mod drain;
mod encrypted_batches;
mod encrypted_tables;
mod etcd;
mod fencing;
mod file_model;
mod held_back;
mod limited_nodes;
mod monitoring;
mod mount;
mod nodes_in_errors;
mod on_time;
mod paused_client;
mod pressure;
mod processes;
mod protected_files;
mod published_copies;
mod published_files;
mod published_parity;
mod queue;
mod raw_client;
mod roles;
mod settings;
mod shaped_and_simulated;
mod shm_folder;
mod shown_names;
mod standing_brokers;
mod supervisor;
mod table_queries;
mod tables;
mod tenant;
mod tickets;
mod tls;
mod traces;
mod zombies;

// Lets the test modules name these three as `crate::..`.
use farpool_tests::{canary, programs, random};
