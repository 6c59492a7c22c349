//! Functions through real nodes and sandbox processes. Names are claims: area, situation, what is expected.

mod calls;
mod crowd;
mod escapes;
mod examples;
mod groups;
mod hostile;
mod native;
mod pool;
mod tables;
