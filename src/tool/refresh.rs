//! Refreshing: after each command its supervisor, which may not mount any more, asks the process
//! outside the namespace to let the next one see what changed outside the Workspace. Nobody looks at
//! anything in between, so that this need not be waited for at once.
#![expect(clippy::disallowed_methods, reason = "inherited pipes, not state")]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;

use super::order::{LENGTH, decode_fields, encode_frame, frame_length};
use crate::sandbox::Views;

/// A question, and its answer.
const WORD: [u8; 1] = [b'r'];
/// Asks whether this world still shows what there is; the answer is the same when it does.
const CHECK: [u8; 1] = [b'c'];
/// The answer when it does not.
const STALE: [u8; 1] = [b's'];
/// The first field for the other process when that may come to be.
const MAY_GO_STALE: &str = "stale";

/// How long what a command saw outside may be shown to the next ones, so that commands in quick
/// succession need not wait.
const FRESH: Duration = Duration::from_millis(100);

/// The end of the supervisor that asks.
pub struct Asker {
    questions: File,
    answers: File,
    /// Whether an answer is on its way.
    is_waiting: bool,
    /// When it was asked last.
    asked: Option<Instant>,
    /// Whether a command has looked around since.
    is_owed: bool,
    /// Whether this world may come to show what is not there any more.
    may_go_stale: bool,
}

/// The end that answers.
pub struct Answerer {
    questions: io::PipeReader,
    answers: io::PipeWriter,
    /// Ends of the other process, open until it has them.
    handed_over: (io::PipeWriter, io::PipeReader),
}

impl Answerer {
    /// Makes both ends; the other one is inherited by the next process that is started.
    pub fn new() -> io::Result<Self> {
        let (questions, ask) = io::pipe()?;
        let (hear, answers) = io::pipe()?;
        for end in [ask.as_fd(), hear.as_fd()] {
            rustix::io::fcntl_setfd(end, FdFlags::empty())?;
        }
        Ok(Self { questions, answers, handed_over: (ask, hear) })
    }

    /// How the other process finds its end: an argument for it.
    pub fn argument(&self) -> OsString {
        let (ask, hear) = &self.handed_over;
        format!("{},{}", ask.as_raw_fd(), hear.as_raw_fd()).into()
    }

    /// Tells the other process, which has been started, the rest of the Spec when everything is mounted.
    /// Answers it then until it is gone.
    pub fn serve(self, mut spec: Vec<OsString>, views: Option<&Views>) -> io::Result<()> {
        let Self { mut questions, mut answers, handed_over } = self;
        drop(handed_over);
        let staleness = if views.is_some_and(Views::may_go_stale) { MAY_GO_STALE } else { "" };
        spec.insert(0, staleness.into());
        answers.write_all(&encode_frame(spec)?)?;
        let mut word = WORD;
        while questions.read_exact(&mut word).is_ok() {
            match views {
                Some(views) if word == CHECK => {
                    word = if views.are_stale() { STALE } else { CHECK }
                }
                Some(views) => views.refresh(),
                None => {}
            }
            if answers.write_all(&word).is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl Asker {
    /// Takes what was inherited; a command does not inherit it in turn. Waits until everything is mounted, and
    /// returns the Spec as it is then; `None` when nothing could be mounted.
    pub fn inherited(argument: &OsStr) -> io::Result<Option<(Self, Vec<OsString>)>> {
        let odd = || io::Error::from(io::ErrorKind::InvalidInput);
        let text = argument.to_str().ok_or_else(odd)?;
        let (ask, hear) = text.split_once(',').ok_or_else(odd)?;
        let place = |number: &str| format!("/proc/self/fd/{number}");
        let questions = File::options().write(true).open(place(ask))?;
        let mut answers = File::open(place(hear))?;
        for number in [ask, hear] {
            let number: i32 = number.parse().map_err(|_| odd())?;
            nix::unistd::close(number)?;
        }
        let mut length = [0; LENGTH];
        if answers.read_exact(&mut length).is_err() {
            return Ok(None);
        }
        let mut body = vec![0; frame_length(length)?];
        answers.read_exact(&mut body)?;
        let mut spec = decode_fields(&body).ok_or_else(odd)?;
        let may_go_stale = !spec.is_empty() && spec.remove(0) == MAY_GO_STALE;
        // What was mounted just now shows what there is.
        let asked = Some(Instant::now());
        let (is_waiting, is_owed) = (false, false);
        let inherited = Self { questions, answers, is_waiting, asked, is_owed, may_go_stale };
        Ok(Some((inherited, spec)))
    }

    /// A command has looked around.
    pub fn owe(&mut self) {
        self.is_owed = true;
    }

    /// Asks that the next command see what there is then, unless it comes so soon that it may see what
    /// the last one saw. Returns when there is something to read on standard input, or nothing to do.
    pub fn settle(&mut self) -> io::Result<()> {
        if !self.is_owed {
            return Ok(());
        }
        let left = self.asked.map_or(Duration::ZERO, |asked| FRESH.saturating_sub(asked.elapsed()));
        if !left.is_zero() {
            let mut polled = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
            let left = Timespec::try_from(left).ok();
            if rustix::event::poll(&mut polled, left.as_ref()).is_ok_and(|ready| ready > 0) {
                return Ok(());
            }
        }
        self.is_owed = false;
        self.is_waiting = true;
        self.asked = Some(Instant::now());
        self.questions.write_all(&WORD)
    }

    /// Waits for the answer, if there was a question.
    pub fn wait(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_waiting) {
            return Ok(());
        }
        let mut word = WORD;
        self.answers.read_exact(&mut word)
    }

    /// Whether another world is needed to see what there is; when nothing else is asked.
    pub fn is_stale(&mut self) -> io::Result<bool> {
        if !self.may_go_stale {
            return Ok(false);
        }
        self.questions.write_all(&CHECK)?;
        let mut word = CHECK;
        self.answers.read_exact(&mut word)?;
        Ok(word == STALE)
    }
}
