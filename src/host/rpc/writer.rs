//! JSON-RPC writer: a thread that writes lines in order, until the reader disconnects.

use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::hang_up;

/// The number of lines that may wait for a slow reader.
const QUEUE_LENGTH: usize = 1024;

/// An item of the writer's queue.
pub enum WriterItem {
    /// A whole line, with its end.
    Line(Vec<u8>),
    /// The end of the output.
    End,
}

/// Handle of the writer thread of a connection.
pub struct RpcWriter {
    lines: mpsc::Sender<WriterItem>,
    /// Cancelled when senders no longer wait for a slow reader.
    waiting_stopped: CancellationToken,
    done: oneshot::Receiver<()>,
    /// Cancelled when the other side closed its end.
    reader_gone: CancellationToken,
    /// Cancels `reader_gone` while nothing is written.
    watch: Option<AbortOnDropHandle<()>>,
}

/// Starts the writer thread. After a failed write, lines are dropped and the reader counts as disconnected.
pub fn spawn_writer(output: impl Write + Send + 'static) -> io::Result<RpcWriter> {
    let (lines, mut waiting) = mpsc::channel(QUEUE_LENGTH);
    let (finished, done) = oneshot::channel();
    let reader_gone = CancellationToken::new();
    let gone = reader_gone.clone();
    std::thread::Builder::new().name("pixir-out".to_owned()).spawn(move || {
        let mut output = BufWriter::with_capacity(64 * 1024, output);
        let mut is_read = true;
        while let Some(WriterItem::Line(line)) = waiting.blocking_recv() {
            is_read = is_read && output.write_all(&line).is_ok();
            // Flushed when the queue is empty, not after each line.
            if waiting.is_empty() {
                is_read = is_read && output.flush().is_ok();
            }
            if !is_read {
                gone.cancel();
            }
        }
        if is_read {
            output.flush().ok();
        } else {
            // Dropping the `BufWriter` would try to write its buffer again.
            drop(output.into_parts());
        }
        finished.send(()).ok();
    })?;
    Ok(RpcWriter {
        lines,
        waiting_stopped: CancellationToken::new(),
        done,
        reader_gone,
        watch: None,
    })
}

impl RpcWriter {
    /// Detects that the other side closed its end of `output`, also while nothing is written.
    #[must_use]
    pub fn with_hang_up_watch(mut self, output: OwnedFd) -> Self {
        self.watch = Some(hang_up::watch_hang_up(output, Interest::WRITABLE, self.reader_gone()));
        self
    }

    /// A token that is cancelled when the other side closes its end.
    pub fn reader_gone(&self) -> CancellationToken {
        self.reader_gone.clone()
    }

    /// The sender of the writer's queue.
    pub fn line_sender(&self) -> mpsc::Sender<WriterItem> {
        self.lines.clone()
    }

    /// A token that is cancelled when senders no longer wait for space in the queue.
    pub fn waiting_stopped(&self) -> CancellationToken {
        self.waiting_stopped.clone()
    }

    /// Drops lines that do not fit into the queue from now on, because the reader seems to hang.
    pub fn stop_waiting(&self) {
        self.waiting_stopped.cancel();
    }

    /// Waits until everything is written, at most `patience`.
    pub async fn finish(self, patience: Duration) {
        let ending = async {
            self.lines.send(WriterItem::End).await.ok();
            self.done.await.ok();
        };
        tokio::time::timeout(patience, ending).await.ok();
    }
}
