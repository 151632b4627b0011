//! Entries from a terminal: a paste is one entry, and a line that the kernel may have cut is marked.
//!
//! The terminal stays in canonical mode, so the kernel edits the line and hands it over at Enter. Lines that follow
//! each other within [`PASTE_GAP`] are one entry. A paste that does not end with a line end leaves its last line in
//! the kernel; it is taken from there, and Enter completes it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};
use tokio::sync::mpsc;

/// How long after a line the next one may follow and still belong to the same paste. Fast typists and key repeat are
/// slower.
pub const PASTE_GAP: Duration = Duration::from_millis(20);

/// The longest line that the kernel keeps in canonical mode; it drops the rest silently.
pub const LONGEST_LINE: usize = 4095;

/// How often a background process checks whether it may read again.
const BACKGROUND_WAIT: Duration = Duration::from_millis(200);

/// How much is read at once: more than one line of the kernel.
const CHUNK: usize = 8192;

/// Lines that were typed or pasted at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedEntry {
    pub lines: Vec<String>,
    /// When its first line came.
    pub at: Instant,
    /// One of its lines may have been cut by the kernel.
    pub is_cut: bool,
    /// False when bytes that are no text were replaced.
    pub is_utf8: bool,
}

impl TypedEntry {
    /// An entry of one line that arrived now.
    pub fn line(text: String) -> Self {
        Self { lines: vec![text], at: Instant::now(), is_cut: false, is_utf8: true }
    }

    /// All lines as one text, without blank space around it.
    pub fn text(&self) -> String {
        self.lines.join("\n").trim().to_owned()
    }
}

/// Input from the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalInput {
    Entry(TypedEntry),
    /// The end of input, such as Ctrl-D; a terminal may have more input after it.
    End,
}

/// Counts how often the user has discarded typed input, as by Ctrl-C. A reader then drops what it has gathered before.
#[derive(Debug, Clone, Default)]
pub struct DiscardCount(Arc<AtomicU64>);

impl DiscardCount {
    /// Discards the input that was typed so far.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Forwards entries from a terminal until the receiver or the terminal is closed.
pub fn forward_entries(
    terminal: BorrowedFd<'_>,
    entries: &mpsc::Sender<TerminalInput>,
    dropped: DiscardCount,
) {
    let seen = dropped.get();
    let mut reader = EntryReader { terminal, buffer: Vec::new(), has_ended: false, dropped, seen };
    while let Ok(input) = reader.next() {
        let is_dropped = reader.has_dropped() && matches!(input, TerminalInput::Entry(_));
        if !is_dropped && entries.blocking_send(input).is_err() {
            return;
        }
        tracing::trace!("what was typed is queued");
    }
}

/// A line that was read.
struct ReadLine {
    /// `None` at the end of input.
    line: Option<Vec<u8>>,
    /// Whether everything before it was dropped.
    is_after_drop: bool,
}

struct EntryReader<'fd> {
    terminal: BorrowedFd<'fd>,
    /// Bytes that were read behind the last line.
    buffer: Vec<u8>,
    /// The end of input came behind the last entry.
    has_ended: bool,
    dropped: DiscardCount,
    /// The count of drops that is already accounted for.
    seen: u64,
}

impl EntryReader<'_> {
    fn next(&mut self) -> Result<TerminalInput, Errno> {
        if std::mem::take(&mut self.has_ended) {
            return Ok(TerminalInput::End);
        }
        let Some(first) = self.line()?.line else { return Ok(TerminalInput::End) };
        let mut at = Instant::now();
        let mut lines = vec![first];
        while !self.has_ended && self.more_follows() {
            let ReadLine { line, is_after_drop } = self.line()?;
            if is_after_drop {
                lines.clear();
                at = Instant::now();
            }
            self.has_ended = line.is_none();
            lines.extend(line);
        }
        let is_cut = lines.iter().any(|line| line.len() >= LONGEST_LINE);
        let is_utf8 = lines.iter().all(|line| std::str::from_utf8(line).is_ok());
        let lines = lines.iter().map(|line| String::from_utf8_lossy(line).into_owned());
        Ok(TerminalInput::Entry(TypedEntry { lines: lines.collect(), at, is_cut, is_utf8 }))
    }

    /// Whether the user has discarded typed input since the last call.
    fn has_dropped(&mut self) -> bool {
        let count = self.dropped.get();
        std::mem::replace(&mut self.seen, count) != count
    }

    /// The next line without its end.
    fn line(&mut self) -> Result<ReadLine, Errno> {
        let mut is_after_drop = false;
        let read = |line: Option<Vec<u8>>, is_after_drop| Ok(ReadLine { line, is_after_drop });
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer) {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                return read(Some(line), is_after_drop);
            }
            self.wait_for_input()?;
            if self.has_dropped() {
                self.buffer.clear();
                is_after_drop = true;
            }
            let mut chunk = [0; CHUNK];
            match rustix::io::read(self.terminal, &mut chunk) {
                // Ctrl-D behind text ends the line.
                Ok(0) if !self.buffer.is_empty() => {
                    return read(Some(std::mem::take(&mut self.buffer)), is_after_drop);
                }
                Ok(0) => return read(None, is_after_drop),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until something can be read. In the background nothing is read, because the kernel would stop the whole
    /// process for that, and with it a Turn that runs.
    fn wait_for_input(&self) -> Result<(), Errno> {
        loop {
            match self.is_readable(None) {
                Ok(_) if self.is_in_foreground() => return Ok(()),
                Ok(_) => std::thread::sleep(BACKGROUND_WAIT),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn more_follows(&self) -> bool {
        let is_there =
            !self.buffer.is_empty() || self.is_readable(Some(PASTE_GAP)).unwrap_or(false);
        let is_unfinished = !is_there && self.has_unfinished_line().unwrap_or(false);
        if is_unfinished {
            tracing::trace!("a typed line waits for its end");
        }
        is_there || is_unfinished
    }

    fn is_readable(&self, within: Option<Duration>) -> Result<bool, Errno> {
        let within = within.and_then(|within| Timespec::try_from(within).ok());
        let mut wait = [PollFd::from_borrowed_fd(self.terminal, PollFlags::IN)];
        poll(&mut wait, within.as_ref()).map(|ready| ready > 0)
    }

    fn is_in_foreground(&self) -> bool {
        // A terminal that is not the controlling one has no foreground, and stops no process.
        tcgetpgrp(self.terminal).map_or(true, |group| group == rustix::process::getpgrp())
    }

    /// Whether the kernel holds a line without its end. The kernel reports that only outside canonical mode;
    /// when the mode is set again, it returns what it holds.
    fn has_unfinished_line(&self) -> Result<bool, Errno> {
        if !self.is_in_foreground() {
            return Ok(false);
        }
        let canonical = tcgetattr(self.terminal)?;
        if !canonical.local_modes.contains(LocalModes::ICANON) {
            return Ok(false);
        }
        let mut raw = canonical.clone();
        raw.local_modes.remove(LocalModes::ICANON);
        tcsetattr(self.terminal, OptionalActions::Now, &raw)?;
        let held = rustix::io::ioctl_fionread(self.terminal);
        tcsetattr(self.terminal, OptionalActions::Now, &canonical)?;
        Ok(held? > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn next_lines(entries: &mut mpsc::Receiver<TerminalInput>) -> Vec<String> {
        match entries.blocking_recv() {
            Some(TerminalInput::Entry(entry)) => entry.lines,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_within_the_gap_are_one_entry_and_later_ones_another() {
        let (ours, mut typist) = UnixStream::pair().unwrap();
        let (sender, mut entries) = mpsc::channel(8);
        let reader = std::thread::spawn(move || {
            forward_entries(ours.as_fd(), &sender, DiscardCount::default());
        });
        let mut type_line = |text: &[u8]| typist.write_all(text).unwrap();
        // A busy machine may take longer than the gap; then it is tried again.
        let is_met = (0..200).any(|_| {
            let start = Instant::now();
            type_line(b"one\n");
            std::thread::sleep(Duration::from_millis(5));
            type_line(b"two\n");
            let took = start.elapsed();
            let lines = next_lines(&mut entries);
            if lines.len() == 1 {
                assert!(took >= PASTE_GAP, "parted after {took:?}");
                assert_eq!(next_lines(&mut entries), ["two"]);
                return false;
            }
            lines == ["one", "two"] && took < PASTE_GAP
        });
        assert!(is_met, "no two lines came within {PASTE_GAP:?}");
        // The first is handed on before the second is typed.
        let start = Instant::now();
        type_line(b"three\n");
        assert_eq!(next_lines(&mut entries), ["three"]);
        assert!(start.elapsed() >= PASTE_GAP);
        type_line(b"four\n");
        assert_eq!(next_lines(&mut entries), ["four"]);
        drop(entries);
        type_line(b"the end\n");
        reader.join().unwrap();
    }
}
