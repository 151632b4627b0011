//! Wires: how requests leave and how frames come back, whatever the dialect.

pub mod frames;
pub mod sse;
