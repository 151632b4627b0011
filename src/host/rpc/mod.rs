//! JSON-RPC over two streams of lines: one reader, one ordered writer, and requests both ways.
//!
//! No method is known here. Every line of the input becomes a [`RpcMessage`], also an invalid one; the
//! output has one line per message, in the order in which they were sent.

mod blocking;
mod fault;
mod hang_up;
mod line;
mod message;
mod peer;
#[cfg(test)]
mod tests;
mod writer;

pub use blocking::{BlockingStream, wait_until_ready};
pub use fault::Fault;
pub use line::read_lines;
pub use message::{Id, Message};
pub use peer::{CANCEL_REQUEST, Peer};
pub use writer::{Writer, write_lines};
