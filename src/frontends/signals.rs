//! Signals: the first asks the Turn to end, the second ends the run.
//!
//! A signal that was ignored when Pixir started stays ignored: `nohup` and background jobs rely on that.

use std::fs::File;
use std::io::Read as _;
use std::sync::atomic::Ordering;

use nix::sys::signal::SigSet;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::frontends::render::SignalCount;

/// Capacity of the queue; further signals would add nothing.
const QUEUE: usize = 8;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    /// Ctrl-C: stop the current work.
    Stop,
    /// SIGTERM or SIGHUP: stop, and end Pixir.
    Leave,
}

/// Blocks SIGXFSZ, so that a write beyond the limit on file sizes fails with `EFBIG` like one to a full disk
/// instead of killing Pixir. Called before any thread starts; a supervisor unblocks it for commands.
pub fn block_file_size_signal() {
    let mut signals = SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGXFSZ);
    signals.thread_block().ok();
}

/// Listens for signals of this process until it is dropped.
pub struct SignalListener {
    count: SignalCount,
    asked: mpsc::Receiver<StopRequest>,
    tasks: Vec<JoinHandle<()>>,
}

impl SignalListener {
    /// Starts to listen; must be called inside a runtime.
    pub fn listen() -> Self {
        let (inbox, asked) = mpsc::channel(QUEUE);
        let count = SignalCount::default();
        let ignored = ignored_signals();
        let wanted = [
            (SignalKind::interrupt(), StopRequest::Stop),
            (SignalKind::terminate(), StopRequest::Leave),
            (SignalKind::hangup(), StopRequest::Leave),
        ];
        let tasks = wanted
            .into_iter()
            .filter(|(kind, _)| ignored & (1 << (kind.as_raw_value() - 1)) == 0)
            .filter_map(|(kind, asked)| Some((signal(kind).ok()?, asked)))
            .map(|(source, asked)| {
                tokio::spawn(forward(source, asked, inbox.clone(), count.clone()))
            })
            .collect();
        Self { count, asked, tasks }
    }

    /// A shared count of the signals so far, for blocking code.
    pub fn count(&self) -> SignalCount {
        self.count.clone()
    }

    /// The next signal; waits for ever when none can come.
    pub async fn next(&mut self) -> StopRequest {
        match self.asked.recv().await {
            Some(asked) => asked,
            None => std::future::pending().await,
        }
    }
}

impl Drop for SignalListener {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn forward(
    mut source: Signal,
    asked: StopRequest,
    inbox: mpsc::Sender<StopRequest>,
    count: SignalCount,
) {
    while source.recv().await.is_some() {
        count.fetch_add(1, Ordering::Relaxed);
        // A full queue holds enough signals already.
        inbox.try_send(asked).ok();
    }
}

/// The mask of signals that were ignored at the start; zero where the kernel does not report it.
fn ignored_signals() -> u64 {
    // Preallocated: a file without a known size would be read in many small pieces.
    let mut status = String::with_capacity(4096);
    if let Ok(mut file) = File::open("/proc/self/status") {
        file.read_to_string(&mut status).ok();
    }
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
