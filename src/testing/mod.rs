//! The scripted model, and access to internals for tests and benchmarks.

pub mod bench;
pub mod scripted;
pub mod workbench;
