//! Lines of stdin, with one reader at a time.
//!
//! A blocking read cannot be cancelled. So there is one at a time, and its line goes to the next caller and is never
//! lost.

use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::termios::{LocalModes, QueueSelector, tcflush, tcgetattr};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::prompt_reader::{DiscardCount, TerminalInput, TypedEntry, forward_entries};
use crate::frontends::render::{SignalCount, StdioOutput};
use crate::host::rpc::wait_until_ready;

/// How many entries may wait for a Turn to end; further ones wait in the kernel.
const QUEUED_ENTRIES: usize = 64;

/// How often the terminal is asked whether Enter was pressed.
const ENTER_POLL: Duration = Duration::from_millis(50);

/// The reader of stdin.
#[derive(Default)]
pub struct Keyboard {
    reading: Option<JoinHandle<Option<TypedEntry>>>,
    /// Entries of line mode, which reads the terminal all the time: the time of an entry cannot be found out later.
    entries: Option<mpsc::Receiver<TerminalInput>>,
    /// Entries from before a question, which do not answer it.
    waiting: VecDeque<TypedEntry>,
    /// The terminal holds bytes that were not typed in answer to the current wait for Enter.
    has_typed_ahead: bool,
    dropped: DiscardCount,
}

impl Keyboard {
    /// A keyboard that is read from now on; must be called inside a runtime.
    pub fn start_reading() -> Self {
        let (sender, entries) = mpsc::channel(QUEUED_ENTRIES);
        let dropped = DiscardCount::default();
        let count = dropped.clone();
        tokio::task::spawn_blocking(move || forward_entries(io::stdin().as_fd(), &sender, count));
        Self { entries: Some(entries), dropped, ..Self::default() }
    }

    /// The next entry; `None` at the end of input. Nothing is lost when the future is dropped.
    pub async fn entry(&mut self) -> Option<TypedEntry> {
        match self.waiting.pop_front() {
            Some(entry) => Some(entry),
            None => self.next_entry().await,
        }
    }

    async fn next_entry(&mut self) -> Option<TypedEntry> {
        if let Some(entries) = &mut self.entries {
            return match entries.recv().await? {
                TerminalInput::Entry(entry) => Some(entry),
                TerminalInput::End => None,
            };
        }
        let read = || read_line().map(TypedEntry::line);
        let reading = self.reading.get_or_insert_with(|| tokio::task::spawn_blocking(read));
        let entry = reading.await.ok().flatten();
        self.reading = None;
        entry
    }

    /// Discards entries that were typed and not consumed yet.
    pub fn discard_entries(&mut self) {
        self.dropped.increment();
        self.waiting.clear();
        while self.entries.as_mut().is_some_and(|entries| entries.try_recv().is_ok()) {}
    }

    /// The next line that came after `moment`, when a question was shown. Earlier input does not answer it, even if
    /// a read that had begun before returns it.
    pub async fn line_after(&mut self, moment: Instant) -> Option<String> {
        loop {
            let entry = self.next_entry().await?;
            if entry.at > moment {
                // The first line is the answer; further pasted lines are dropped.
                return entry.lines.first().map(|line| line.trim().to_owned());
            }
            self.waiting.push_back(entry);
        }
    }

    /// Records whether input is already there when a wait for Enter begins.
    pub fn begin_wait_for_enter(&mut self) {
        self.has_typed_ahead = typed_bytes() > 0;
    }

    /// Waits for Enter alone, after `moment`. Words that are typed meanwhile are kept for the next prompt in line
    /// mode, and stay in the terminal for the shell in a run of one prompt.
    pub async fn enter_after(&mut self, moment: Instant) -> Option<()> {
        if self.entries.is_none() && self.reading.is_none() {
            return self.enter_alone().await;
        }
        loop {
            let entry = self.next_entry().await?;
            if entry.at > moment && entry.lines.iter().all(|line| line.trim().is_empty()) {
                return Some(());
            }
            self.waiting.push_back(entry);
        }
    }

    /// Waits until the terminal holds an empty line and nothing else, and reads that line only: reading further
    /// would take input from the shell. `None` once it holds anything else.
    async fn enter_alone(&mut self) -> Option<()> {
        let mut poll = tokio::time::interval(ENTER_POLL);
        loop {
            poll.tick().await;
            match typed_bytes() {
                0 => {}
                1 if !self.has_typed_ahead && reads_lines() => return read_line().map(drop),
                _ => self.has_typed_ahead = true,
            }
            if self.has_typed_ahead {
                return None;
            }
        }
    }
}

/// How many bytes of complete lines the terminal holds.
fn typed_bytes() -> u64 {
    rustix::io::ioctl_fionread(io::stdin()).unwrap_or(0)
}

/// Whether the terminal hands over whole lines.
fn reads_lines() -> bool {
    has_mode(LocalModes::ICANON)
}

/// Whether the terminal shows what is typed.
pub fn is_echo_on() -> bool {
    has_mode(LocalModes::ECHO)
}

fn has_mode(mode: LocalModes) -> bool {
    let modes = tcgetattr(io::stdin()).map(|termios| termios.local_modes);
    modes.is_ok_and(|modes| modes.contains(mode))
}

/// Replaces stdin by the controlling terminal. The old stdin must have been read to its end.
pub fn read_from_terminal() -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    let terminal = rustix::fs::open("/dev/tty", flags, Mode::empty())?;
    // The kernel stops a background process that reads from a terminal.
    if rustix::termios::tcgetpgrp(&terminal)? != rustix::process::getpgrp() {
        return Err(io::Error::other("this process runs in the background"));
    }
    rustix::stdio::dup2_stdin(&terminal)?;
    Ok(())
}

/// Discards input from before a question: it cannot be meant as an answer.
pub fn discard_typed_input() {
    // Fails where stdin is no terminal; then there is nothing to discard.
    tcflush(io::stdin().as_fd(), QueueSelector::IFlush).ok();
}

/// Shows a question on stderr and waits for its answer; any answer but yes counts as no. Input from before the
/// question is discarded.
pub fn ask_yes_no(question: &str) -> bool {
    discard_typed_input();
    StdioOutput::stdio(SignalCount::default()).write_activity(question.as_bytes());
    let answer = read_line().unwrap_or_default().to_lowercase();
    matches!(answer.as_str(), "y" | "yes")
}

/// A line of stdin without its line ending; `None` when there are no more.
pub fn read_line() -> Option<String> {
    let mut bytes = Vec::new();
    let mut stdin = io::stdin().lock();
    let count = loop {
        match stdin.read_until(b'\n', &mut bytes) {
            // The part that was read so far is kept.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_ready(stdin.as_fd(), PollFlags::IN).ok()?;
            }
            read => break read.ok()?,
        }
    };
    (count > 0 || !bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).trim().to_owned())
}
