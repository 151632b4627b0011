//! Output buffer of a background command: its last output, how much of it was shown, and its exit.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::base::tool_error::ToolError;
use crate::host::process::exit_report::ExitReport;

/// The size of the output that is kept in memory, in bytes.
const CAPACITY: usize = 1 << 20;
/// Bytes above [`CAPACITY`] that may accumulate before the oldest are dropped, so that not every chunk moves the rest.
const SLACK: usize = CAPACITY / 4;

/// The last output of a command, which can be read while the command runs.
#[derive(Debug, Default)]
pub struct OutputBuffer {
    state: watch::Sender<BufferState>,
}

/// The exit report of a background command, or the reason why it did not run.
pub type ExitResult = Result<ExitReport, ToolError>;

#[derive(Debug, Default)]
struct BufferState {
    kept: Vec<u8>,
    /// The offset of the kept part in the whole output.
    kept_from: u64,
    /// The offset up to which the output has been shown.
    shown_to: u64,
    /// The file with the whole output, if it did not fit.
    spill: Option<PathBuf>,
    exit: Option<ExitResult>,
}

/// The part of the output to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputPart {
    /// Output that has not been shown.
    New,
    /// All output that is kept.
    All,
}

/// The output and state of a command at one moment.
#[derive(Debug, Clone, Default)]
pub struct OutputSnapshot {
    pub text: String,
    /// The number of bytes of the wanted part that are no longer kept.
    pub dropped: u64,
    pub total: u64,
    pub spill: Option<PathBuf>,
    /// The exit of the command; `None` while it runs.
    pub exit: Option<ExitResult>,
}

impl OutputBuffer {
    /// Appends whole characters of text from which escape sequences and Secrets were removed.
    pub fn push(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.state.send_modify(|state| state.push(bytes));
        }
    }

    /// Sets the path of the whole output; does not wake readers.
    pub fn set_spill_path(&self, path: PathBuf) {
        self.state.send_if_modified(|state| {
            state.spill = Some(path);
            false
        });
    }

    /// Sets the exit of the command; only the first call counts.
    pub fn set_exit(&self, over: ExitResult) {
        self.state.send_modify(|state| {
            state.exit.get_or_insert(over);
        });
    }

    /// Whether the command has ended.
    pub fn has_ended(&self) -> bool {
        self.state.borrow().exit.is_some()
    }

    /// Reads a part, and marks all output as shown.
    pub fn read_part(&self, part: OutputPart) -> OutputSnapshot {
        let mut snapshot = OutputSnapshot::default();
        self.state.send_if_modified(|state| {
            snapshot = state.read_part(part);
            false
        });
        snapshot
    }

    /// Waits until new output has arrived and then none for `quiet`, until the command has ended, or for
    /// `patience` at most.
    pub async fn wait_for_pause(&self, patience: Duration, quiet: Duration) {
        let end = Instant::now() + patience;
        let mut news = self.state.subscribe();
        loop {
            let has_news = {
                let state = news.borrow_and_update();
                if state.exit.is_some() {
                    return;
                }
                state.total() > state.shown_to
            };
            let until = if has_news { end.min(Instant::now() + quiet) } else { end };
            if timeout_at(until, news.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until the command has ended.
    pub async fn wait_ended(&self) {
        self.state.subscribe().wait_for(|state| state.exit.is_some()).await.ok();
    }
}

impl BufferState {
    fn total(&self) -> u64 {
        self.kept_from + self.kept.len() as u64
    }

    fn read_part(&mut self, part: OutputPart) -> OutputSnapshot {
        let wanted = if part == OutputPart::New { self.shown_to } else { 0 };
        let from = usize::try_from(wanted.saturating_sub(self.kept_from)).unwrap_or(usize::MAX);
        let text = self.kept.get(from..).unwrap_or_default();
        self.shown_to = self.total();
        OutputSnapshot {
            text: String::from_utf8_lossy(text).into_owned(),
            dropped: self.kept_from.saturating_sub(wanted),
            total: self.total(),
            spill: self.spill.clone(),
            exit: self.exit.clone(),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() <= CAPACITY + SLACK {
            return;
        }
        let mut cut = self.kept.len() - CAPACITY;
        while self.kept.get(cut).is_some_and(|byte| byte & 0xc0 == 0x80) {
            cut += 1;
        }
        self.kept.drain(..cut);
        self.kept_from += cut as u64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_read_continues_after_the_previous_one() {
        let buffer = OutputBuffer::default();
        assert_eq!(buffer.read_part(OutputPart::New).text, "");
        buffer.push(b"one\n");
        assert_eq!(buffer.read_part(OutputPart::New).text, "one\n");
        buffer.push("zwölf\n".as_bytes());
        assert_eq!(buffer.read_part(OutputPart::New).text, "zwölf\n");
        assert_eq!(buffer.read_part(OutputPart::New).text, "");
        let snapshot = buffer.read_part(OutputPart::All);
        assert_eq!(
            (snapshot.text.as_str(), snapshot.dropped, snapshot.total),
            ("one\nzwölf\n", 0, 11)
        );
        assert!(snapshot.exit.is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Invariants for any output and any reads: shown and dropped bytes add up to the whole output,
        /// memory is bounded, and no character is split.
        #[test]
        fn nothing_is_shown_twice_and_what_is_dropped_is_counted(
            chunks in proptest::collection::vec((0..400_000usize, any::<bool>()), 1..12)
        ) {
            let buffer = OutputBuffer::default();
            let (mut reported, mut printed) = (0, 0);
            for (size, is_read) in chunks {
                let chunk = "aé€".repeat(size / 6);
                buffer.push(chunk.as_bytes());
                printed += chunk.len() as u64;
                prop_assert!(buffer.state.borrow().kept.len() <= CAPACITY + SLACK);
                if is_read {
                    let snapshot = buffer.read_part(OutputPart::New);
                    prop_assert!(!snapshot.text.contains(char::REPLACEMENT_CHARACTER));
                    reported += snapshot.dropped + snapshot.text.len() as u64;
                    prop_assert_eq!(reported, printed);
                }
            }
            let all = buffer.read_part(OutputPart::All);
            prop_assert_eq!(all.dropped + all.text.len() as u64, printed);
        }
    }
}
