//! Lines in: a thread that waits for the other side, so that nobody else has to.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;

use super::{Fault, Id, Message};

/// The longest line; images and whole files come on one.
const LONGEST: usize = 128 << 20;

/// How many messages may wait to be handled.
const WAITING: usize = 32;

/// How often it is tried to hand on a message when nobody takes any.
const PAUSE: Duration = Duration::from_millis(2);

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
    let leaving = gone.clone();
    std::thread::Builder::new().name("pixir-in".to_owned()).spawn(move || {
        // However this ends, it is the end.
        let _end = leaving.clone().drop_guard();
        let mut input = BufReader::with_capacity(64 * 1024, input);
        while let Some(line) = next_line(&mut input, LONGEST) {
            let Some(message) = line.message() else { continue };
            drop(line);
            let look = || {
                let is_gone = hangs_up(input.get_ref().as_fd());
                if is_gone {
                    leaving.cancel();
                }
                is_gone
            };
            if !hand_on(&sender, message, look) {
                return;
            }
        }
    })?;
    Ok(Lines { messages, gone })
}

/// Hands a message on. While nobody takes it, the stream is not read either, and its end has to be
/// looked for.
fn hand_on(
    messages: &mpsc::Sender<Message>,
    mut message: Message,
    is_gone: impl Fn() -> bool,
) -> bool {
    loop {
        match messages.try_send(message) {
            Ok(()) => return true,
            Err(TrySendError::Closed(_)) => return false,
            Err(TrySendError::Full(back)) => message = back,
        }
        if is_gone() {
            return messages.blocking_send(message).is_ok();
        }
    }
}

/// Waits a little for the other side to hang up; what it said before may still be unread.
fn hangs_up(input: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(input, PollFlags::RDHUP)];
    let pause = Timespec::try_from(PAUSE).ok();
    if poll(&mut watched, pause.as_ref()).is_err() {
        std::thread::sleep(PAUSE);
        return false;
    }
    let [watched] = watched;
    watched.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

/// Reads one line without its end. Of one that is too long nothing is kept.
pub fn next_line(input: &mut impl BufRead, longest: usize) -> Option<Line> {
    let mut line = Vec::new();
    let mut is_too_long = false;
    loop {
        let piece = match input.fill_buf() {
            Ok(piece) => piece,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A stream that cannot be read any more is one that has ended.
            Err(_) => &[],
        };
        if piece.is_empty() {
            // What the other side did not finish, it did not say; but a last line may lack its end.
            return match (is_too_long, line.is_empty()) {
                (true, _) => Some(Line::TooLong),
                (false, true) => None,
                (false, false) => Some(Line::Whole(line)),
            };
        }
        let end = memchr::memchr(b'\n', piece);
        let taken = end.map_or(piece.len(), |end| end + 1);
        let words = piece.get(..end.unwrap_or(taken)).unwrap_or_default();
        if line.len() + words.len() > longest {
            is_too_long = true;
            line = Vec::new();
        }
        if !is_too_long {
            line.extend_from_slice(words);
        }
        input.consume(taken);
        if end.is_some() {
            return Some(if is_too_long { Line::TooLong } else { Line::Whole(line) });
        }
    }
}
