//! JSON-RPC reader: a thread that reads lines and parses them into messages.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{RpcError, RpcId, RpcMessage, hang_up};

/// The longest line in bytes; images and whole files arrive on one line.
const LONGEST_LINE: u64 = 128 << 20;

/// The number of messages that may wait to be handled.
const QUEUE_LENGTH: usize = 32;

/// A line of the input, without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum RpcLine {
    Whole(Vec<u8>),
    TooLong,
}

impl RpcLine {
    /// The message on the line; `None` for a blank one.
    fn message(&self) -> Option<RpcMessage> {
        match self {
            RpcLine::Whole(line) => RpcMessage::parse_line(line),
            RpcLine::TooLong => {
                let fault = RpcError::invalid_request("the line is too long");
                Some(RpcMessage::Invalid { id: RpcId::null(), fault })
            }
        }
    }
}

/// The messages of the other side, until it disconnects.
pub struct RpcMessages {
    messages: mpsc::Receiver<RpcMessage>,
    gone: CancellationToken,
    /// Cancels `gone` when the other side hangs up before everything is read.
    _watch: AbortOnDropHandle<()>,
}

impl RpcMessages {
    /// The next message; `None` when the other side has disconnected.
    pub async fn next(&mut self) -> Option<RpcMessage> {
        self.messages.recv().await
    }

    /// A token that is cancelled when the other side disconnects, even while its messages still wait.
    pub fn disconnected(&self) -> CancellationToken {
        self.gone.clone()
    }
}

/// Starts a thread that reads and parses lines; parsing is done there because some lines are very
/// long. The thread ends with its stream or with the receiver, and is not joined.
pub fn spawn_reader(input: impl Read + AsFd + Send + 'static) -> io::Result<RpcMessages> {
    let (sender, messages) = mpsc::channel(QUEUE_LENGTH);
    let gone = CancellationToken::new();
    let watched = input.as_fd().try_clone_to_owned()?;
    let ended = gone.clone();
    std::thread::Builder::new().name("pixir-in".to_owned()).spawn(move || {
        // Cancels the token on every exit from this thread.
        let _end = ended.drop_guard();
        let mut input = BufReader::with_capacity(64 * 1024, input);
        while let Some(line) = read_line(&mut input, LONGEST_LINE) {
            let Some(message) = line.message() else { continue };
            drop(line);
            if sender.blocking_send(message).is_err() {
                return;
            }
        }
    })?;
    let watch = hang_up::watch_hang_up(watched, Interest::READABLE, gone.clone());
    Ok(RpcMessages { messages, gone, _watch: watch })
}

/// Reads one line without its end. A line that is too long is skipped.
pub fn read_line(input: &mut impl BufRead, longest: u64) -> Option<RpcLine> {
    let mut line = Vec::new();
    // A read error counts as the end of the stream.
    input.by_ref().take(longest + 1).read_until(b'\n', &mut line).ok();
    if line.pop_if(|last| *last == b'\n').is_some() {
        return Some(RpcLine::Whole(line));
    }
    if line.len() as u64 > longest {
        drop(line);
        input.skip_until(b'\n').ok();
        return Some(RpcLine::TooLong);
    }
    // The last line may lack its end.
    (!line.is_empty()).then_some(RpcLine::Whole(line))
}
