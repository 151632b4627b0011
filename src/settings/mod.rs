//! What the user chose: settings, roles, write bounds and trust.

pub mod bounds;
pub mod config;
pub mod role;
pub mod trust;
