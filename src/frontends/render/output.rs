//! The writer of stdout and stderr, and its behaviour when nothing reads them.
//!
//! A closed pipe is reported to the caller once, as `StdoutClosed`. A reader that stalls must not block
//! signals, so a write waits for room in small steps and gives up when a signal asked the run to end.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ascii::with_symbols;
use super::write_queue::{Channel, WriteQueue};

/// How many bytes a pipe accepts without blocking once it reports room.
const MAX_WRITE: usize = 4096;

/// How many bytes for stdout are collected before they are written.
const BUFFER_SIZE: usize = 64 * 1024;

/// The number of signals that asked this run to end.
pub type SignalCount = Arc<AtomicUsize>;

/// The error that stdout is closed or failed; reported once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StdoutClosed;

/// stdout and stderr of this process.
pub struct StdioOutput {
    answer: Option<File>,
    activity: Option<File>,
    buffer: Vec<u8>,
    signal_count: SignalCount,
    /// Whether stdout failed for another reason than a closed pipe.
    has_failed: bool,
}

impl StdioOutput {
    /// The standard streams of the process; writes to a closed one are dropped.
    pub fn stdio(signal_count: SignalCount) -> Self {
        let own = |stream: BorrowedFd<'_>| stream.try_clone_to_owned().ok().map(File::from);
        Self {
            answer: own(io::stdout().as_fd()),
            activity: own(io::stderr().as_fd()),
            buffer: Vec::new(),
            signal_count,
            has_failed: false,
        }
    }

    /// Writes a queue: stdout is collected until `flush`, stderr is written at once and in order.
    pub fn write_queue(&mut self, queue: &WriteQueue) -> Result<(), StdoutClosed> {
        for (channel, text) in queue.writes() {
            match channel {
                Channel::Answer => self.write_answer(text.as_bytes())?,
                Channel::Activity => {
                    self.flush()?;
                    self.write_activity(text.as_bytes());
                }
            }
        }
        Ok(())
    }

    /// Collects bytes for stdout.
    pub fn write_answer(&mut self, bytes: &[u8]) -> Result<(), StdoutClosed> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < BUFFER_SIZE { Ok(()) } else { self.flush() }
    }

    /// Writes what was collected for stdout.
    pub fn flush(&mut self) -> Result<(), StdoutClosed> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let written = match &mut self.answer {
            Some(file) => write_all(file, &self.buffer, &self.signal_count),
            None => Ok(()),
        };
        self.buffer.clear();
        let Err(error) = written else { return Ok(()) };
        // Reported once; later writes are dropped.
        self.answer = None;
        if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::TimedOut) {
            self.has_failed = true;
            self.write_activity(format!("error: stdout cannot be written: {error}\n").as_bytes());
        }
        Err(StdoutClosed)
    }

    /// Whether an answer was lost for another reason than a closed pipe, such as a full disk.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether the reader of stdout is gone; a pipe reports that before a write.
    pub fn is_reader_gone(&self) -> bool {
        let Some(file) = &self.answer else { return false };
        let mut look = [PollFd::new(file, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let looked = poll(&mut look, Some(&now)).is_ok();
        looked && look.iter().any(|found| found.revents().contains(PollFlags::ERR))
    }

    /// Writes to stderr; failures are ignored.
    pub fn write_activity(&mut self, bytes: &[u8]) {
        let Some(file) = &mut self.activity else { return };
        let text = String::from_utf8_lossy(bytes);
        if write_all(file, with_symbols(&text).as_bytes(), &self.signal_count).is_err() {
            self.activity = None;
        }
    }
}

fn write_all(file: &mut File, mut bytes: &[u8], signal_count: &SignalCount) -> io::Result<()> {
    while !bytes.is_empty() {
        wait_for_room(file, signal_count)?;
        let step = bytes.get(..MAX_WRITE).unwrap_or(bytes);
        match file.write(step) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn wait_for_room(file: &File, signal_count: &SignalCount) -> io::Result<()> {
    let patience = Timespec::try_from(Duration::from_millis(100)).ok();
    loop {
        let mut wait = [PollFd::new(file, PollFlags::OUT)];
        match poll(&mut wait, patience.as_ref()) {
            Ok(0) if signal_count.load(Ordering::Relaxed) > 0 => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // The write that follows reports any error of the stream.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}
