//! The record of Sessions: Events, the Log that holds them, and everything that is computed from them.

pub mod compaction;
pub mod event;
pub mod history;
pub mod log;
pub mod resource;
pub mod state_dir;
