//! JSON-RPC over two streams of lines: one reader, one ordered writer, and questions both ways.
//!
//! Nothing here knows what is talked about. Whatever comes in becomes a [`Message`], also what is
//! broken; whatever goes out is one line, in the order in which it was handed over.

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
