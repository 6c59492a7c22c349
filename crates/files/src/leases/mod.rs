//! What a session holds at nodes.

mod keeping;
pub(crate) mod leasing;
