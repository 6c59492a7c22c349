//! Empty library; the crate consists of tests.
