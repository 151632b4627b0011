//! Lines out: one thread, one order, and no word to a reader that has gone.

use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::hang_up;

/// How many lines may wait for a slow reader.
const WAITING: usize = 1024;

/// What is handed to the writer.
pub enum Outgoing {
    /// A whole line, with its end.
    Line(Vec<u8>),
    /// Everything was said.
    End,
}

/// The writer of a connection, to be waited for at the end.
pub struct Writer {
    lines: mpsc::Sender<Outgoing>,
    /// Nobody waits for the reader any more.
    given_up: CancellationToken,
    done: oneshot::Receiver<()>,
    /// Cancelled when the other side closed its end.
    reader_gone: CancellationToken,
    /// Cancels `reader_gone` while nothing is written.
    watch: Option<AbortOnDropHandle<()>>,
}

/// Starts to write. After a failure lines are taken and thrown away, and the reader counts as gone.
pub fn write_lines(output: impl Write + Send + 'static) -> io::Result<Writer> {
    let (lines, mut waiting) = mpsc::channel(WAITING);
    let (finished, done) = oneshot::channel();
    let reader_gone = CancellationToken::new();
    let gone = reader_gone.clone();
    std::thread::Builder::new().name("pixir-out".to_owned()).spawn(move || {
        let mut output = BufWriter::with_capacity(64 * 1024, output);
        let mut is_read = true;
        while let Some(Outgoing::Line(line)) = waiting.blocking_recv() {
            is_read = is_read && output.write_all(&line).is_ok();
            // More may be on its way; it is pushed out when nothing is.
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
            // What is left in the buffer would be tried again when it is dropped.
            drop(output.into_parts());
        }
        finished.send(()).ok();
    })?;
    Ok(Writer { lines, given_up: CancellationToken::new(), done, reader_gone, watch: None })
}

impl Writer {
    /// Notices that the other side closed its end of `output` also while nothing is written.
    #[must_use]
    pub fn watching(mut self, output: OwnedFd) -> Self {
        self.watch = Some(hang_up::watch(output, Interest::WRITABLE, self.reader_gone()));
        self
    }

    /// Is cancelled when the other side closed its end.
    pub fn reader_gone(&self) -> CancellationToken {
        self.reader_gone.clone()
    }

    /// Where lines are handed in.
    pub fn lines(&self) -> mpsc::Sender<Outgoing> {
        self.lines.clone()
    }

    /// When nobody waits any more that there is room for another line.
    pub fn given_up(&self) -> CancellationToken {
        self.given_up.clone()
    }

    /// From now on, what does not fit is not said: nobody seems to read it.
    pub fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Waits until everything is out, but not for a reader that does not read.
    pub async fn finish(self, patience: Duration) {
        let ending = async {
            self.lines.send(Outgoing::End).await.ok();
            self.done.await.ok();
        };
        tokio::time::timeout(patience, ending).await.ok();
    }
}
