//! Lines in: a thread that waits for the other side, so that nobody else has to.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Fault, Id, Message, hang_up};

/// The longest line; images and whole files come on one.
const LONGEST: u64 = 128 << 20;

/// How many messages may wait to be handled.
const WAITING: usize = 32;

/// A line that came, or how much of one that was too long.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Vec<u8>),
    TooLong,
}

impl Line {
    /// What it says; `None` when there is nothing on it.
    fn message(&self) -> Option<Message> {
        match self {
            Line::Whole(line) => Message::read(line),
            Line::TooLong => {
                let fault = Fault::invalid_request("the line is too long");
                Some(Message::Refused { id: Id::null(), fault })
            }
        }
    }
}

/// What the other side says, until it is gone.
pub struct Lines {
    messages: mpsc::Receiver<Message>,
    gone: CancellationToken,
    /// Cancels `gone` when the other side hangs up before everything is read.
    _watch: AbortOnDropHandle<()>,
}

impl Lines {
    /// The next message; `None` when the other side is gone.
    pub async fn next(&mut self) -> Option<Message> {
        self.messages.recv().await
    }

    /// Is cancelled when the other side is gone, also while messages of it still wait.
    pub fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }
}

/// Starts to read. Lines are understood here as well, because some are very long, and whoever
/// handles messages has better things to do. The thread ends with its stream, or with whoever
/// listens; nobody waits for it.
pub fn read_lines(input: impl Read + AsFd + Send + 'static) -> io::Result<Lines> {
    let (sender, messages) = mpsc::channel(WAITING);
    let gone = CancellationToken::new();
    let watched = input.as_fd().try_clone_to_owned()?;
    let ended = gone.clone();
    std::thread::Builder::new().name("pixir-in".to_owned()).spawn(move || {
        // However this ends, it is the end.
        let _end = ended.drop_guard();
        let mut input = BufReader::with_capacity(64 * 1024, input);
        while let Some(line) = next_line(&mut input, LONGEST) {
            let Some(message) = line.message() else { continue };
            drop(line);
            if sender.blocking_send(message).is_err() {
                return;
            }
        }
    })?;
    let watch = hang_up::watch(watched, Interest::READABLE, gone.clone());
    Ok(Lines { messages, gone, _watch: watch })
}

/// Reads one line without its end. Of one that is too long nothing is kept.
pub fn next_line(input: &mut impl BufRead, longest: u64) -> Option<Line> {
    let mut line = Vec::new();
    // A stream that cannot be read any more is one that has ended.
    input.by_ref().take(longest + 1).read_until(b'\n', &mut line).ok();
    if line.pop_if(|last| *last == b'\n').is_some() {
        return Some(Line::Whole(line));
    }
    if line.len() as u64 > longest {
        drop(line);
        input.skip_until(b'\n').ok();
        return Some(Line::TooLong);
    }
    // What the other side did not finish, it did not say; but a last line may lack its end.
    (!line.is_empty()).then_some(Line::Whole(line))
}
