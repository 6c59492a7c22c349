//! Nothing here: the tests are in `it/`.
