//! The keyboard: lines of stdin, for whoever waits for one.
//!
//! A thread that reads a line cannot be called back. So there is one reading at a time, and what it
//! brings goes to the next who asks, never to nobody.

use std::io::{self, BufRead};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::termios::{QueueSelector, tcflush};
use tokio::task::JoinHandle;

use crate::rpc::wait_until_ready;

/// The reader of stdin.
#[derive(Default)]
pub struct Keyboard {
    reading: Option<JoinHandle<Option<Line>>>,
}

/// A line, and when it came.
struct Line {
    text: String,
    at: Instant,
}

impl Keyboard {
    /// The next line without its end; `None` when there are no more. Nothing is lost when the
    /// future is dropped.
    pub async fn line(&mut self) -> Option<String> {
        self.next().await.map(|line| line.text)
    }

    /// The next line that came after `moment`: what came before cannot be an answer to what was
    /// asked then, also when a reading that was under way has taken it.
    pub async fn line_after(&mut self, moment: Instant) -> Option<String> {
        loop {
            let line = self.next().await?;
            if line.at > moment {
                return Some(line.text);
            }
        }
    }

    async fn next(&mut self) -> Option<Line> {
        let read = || read_line().map(|text| Line { text, at: Instant::now() });
        let reading = self.reading.get_or_insert_with(|| tokio::task::spawn_blocking(read));
        let line = reading.await.ok().flatten();
        self.reading = None;
        line
    }
}

/// Puts the controlling terminal in the place of stdin. Whatever stdin was must have been read.
pub fn read_from_terminal() -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    let terminal = rustix::fs::open("/dev/tty", flags, Mode::empty())?;
    rustix::stdio::dup2_stdin(&terminal)?;
    Ok(())
}

/// Throws away what was typed before anybody asked: it cannot be meant as an answer.
pub fn forget_typed() {
    // Something that is no terminal has nothing typed.
    tcflush(io::stdin().as_fd(), QueueSelector::IFlush).ok();
}

/// A line of stdin without its end; `None` when there are no more.
pub fn read_line() -> Option<String> {
    let mut bytes = Vec::new();
    let mut stdin = io::stdin().lock();
    let count = loop {
        match stdin.read_until(b'\n', &mut bytes) {
            // What was read so far is kept.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_ready(stdin.as_fd(), PollFlags::IN).ok()?;
            }
            read => break read.ok()?,
        }
    };
    (count > 0 || !bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).trim().to_owned())
}
