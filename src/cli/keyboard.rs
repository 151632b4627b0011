//! The keyboard: lines of stdin, for whoever waits for one.
//!
//! A thread that reads a line cannot be called back. So there is one reading at a time, and what it
//! brings goes to the next who asks, never to nobody.

use std::io;
use std::os::fd::AsFd;

use rustix::termios::{QueueSelector, tcflush};
use tokio::task::JoinHandle;

/// The reader of stdin.
#[derive(Default)]
pub struct Keyboard {
    reading: Option<JoinHandle<Option<String>>>,
}

impl Keyboard {
    /// The next line without its end; `None` when there are no more. Nothing is lost when the
    /// future is dropped.
    pub async fn line(&mut self) -> Option<String> {
        let reading = self.reading.get_or_insert_with(|| tokio::task::spawn_blocking(read_line));
        let line = reading.await.ok().flatten();
        self.reading = None;
        line
    }
}

/// Throws away what was typed before anybody asked: it cannot be meant as an answer.
pub fn forget_typed() {
    // Something that is no terminal has nothing typed.
    tcflush(io::stdin().as_fd(), QueueSelector::IFlush).ok();
}

/// A line of stdin without its end; `None` when there are no more.
pub fn read_line() -> Option<String> {
    let mut bytes = Vec::new();
    match io::BufRead::read_until(&mut io::stdin().lock(), b'\n', &mut bytes) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
    }
}
