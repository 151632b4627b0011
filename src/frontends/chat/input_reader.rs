//! The reader of the terminal: one thread waits for keys, pastes and sizes, and sends them over a bounded channel.
//!
//! Nothing is lost while the channel is full: the thread waits, and the rest stays in the terminal. A known defect: keys
//! that arrive together with a new size may stay unread until the next key.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossterm::event::{Event as TerminalEvent, poll, read};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// How many Events wait at most.
const CAPACITY: usize = 1024;

/// How often the thread looks whether it must end.
const CHECK: Duration = Duration::from_millis(50);

/// How long the end of the thread is waited for.
const END: Duration = Duration::from_millis(200);

/// How long the thread waits while the channel is full.
const FULL: Duration = Duration::from_millis(2);

/// Reads the terminal until it is dropped.
pub struct InputReader {
    events: mpsc::Receiver<TerminalEvent>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl InputReader {
    /// Starts to read.
    pub fn start() -> io::Result<Self> {
        let (sender, events) = mpsc::channel(CAPACITY);
        let is_over = Arc::new(AtomicBool::new(false));
        let must_end = Arc::clone(&is_over);
        let thread = std::thread::Builder::new()
            .name("pixir-keys".to_owned())
            .spawn(move || read_terminal(&sender, &must_end))?;
        Ok(Self { events, is_over, thread })
    }

    /// The next Event; `None` when the terminal is gone.
    pub async fn next(&mut self) -> Option<TerminalEvent> {
        self.events.recv().await
    }

    /// The next Event, if it is there already.
    pub fn try_next(&mut self) -> Option<TerminalEvent> {
        self.events.try_recv().ok()
    }
}

impl Drop for InputReader {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Not joined: a read from a terminal that is gone may never return.
        let deadline = Instant::now() + END;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn read_terminal(sender: &mpsc::Sender<TerminalEvent>, must_end: &AtomicBool) {
    while !must_end.load(Ordering::Relaxed) {
        let event = match poll(CHECK) {
            Ok(false) => continue,
            Ok(true) => read(),
            Err(error) => Err(error),
        };
        let Ok(event) = event else { return };
        if !send(event, sender, must_end) {
            return;
        }
    }
}

/// Sends an Event as soon as there is room; false when nobody wants it any more.
fn send(
    mut event: TerminalEvent,
    sender: &mpsc::Sender<TerminalEvent>,
    must_end: &AtomicBool,
) -> bool {
    while !must_end.load(Ordering::Relaxed) {
        match sender.try_send(event) {
            Ok(()) => return true,
            Err(TrySendError::Closed(_)) => return false,
            Err(TrySendError::Full(unsent)) => event = unsent,
        }
        std::thread::sleep(FULL);
    }
    false
}
