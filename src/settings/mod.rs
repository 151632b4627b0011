//! The user's choices: settings, roles, write bounds and trust.

pub mod bounds;
pub mod config;
pub mod role;
pub mod trust;
