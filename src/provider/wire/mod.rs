//! Wires: how requests leave and how frames come back, whatever the dialect.

pub mod clock;
pub mod frames;
pub mod network;
pub mod sse;
pub mod websocket;
