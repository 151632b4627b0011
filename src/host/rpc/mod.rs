//! JSON-RPC over two streams of lines: one reader, one ordered writer, and requests both ways.
//!
//! This module knows no methods. Every line of the input becomes a [`RpcMessage`], even an invalid one; the
//! output has one line per message, in the order in which they were sent.

mod blocking_stream;
mod error;
mod hang_up;
mod message;
mod peer;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use blocking_stream::{BlockingStream, wait_until_ready};
pub use error::RpcError;
pub use message::{RpcId, RpcMessage};
pub use peer::{CANCEL_REQUEST, Peer};
pub use reader::spawn_reader;
pub use writer::{RpcWriter, spawn_writer};
