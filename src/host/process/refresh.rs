//! Mount refresh between commands: the supervisor inside the namespace, which may not mount any more,
//! asks the process outside to show the next command what changed outside the Workspace. The answer is
//! awaited only before the next command, because no process reads the mounts in between.
#![expect(clippy::disallowed_methods, reason = "inherited pipes, not state")]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;

use crate::host::process::protocol::{LENGTH, decode_fields, encode_frame, frame_length};
use crate::host::sandbox::Views;

/// Request to refresh the mounts, and its answer.
const WORD: [u8; 1] = [b'r'];
/// Request to check that the mounts still show the current files, and the answer if they do.
const CHECK: [u8; 1] = [b'c'];
/// The answer to [`CHECK`] if they do not.
const STALE: [u8; 1] = [b's'];
/// The first field of the setup frame if the mounts may become stale.
const MAY_GO_STALE: &str = "stale";

/// How long the mounts need no refresh, so that commands in quick succession need not wait.
const FRESH: Duration = Duration::from_millis(100);

/// The end inside the namespace, which sends requests.
pub struct Asker {
    questions: File,
    answers: File,
    /// Whether an answer is on its way.
    is_waiting: bool,
    /// When the last refresh was requested.
    asked: Option<Instant>,
    /// Whether a command has run since.
    is_owed: bool,
    /// Whether the mounts may show outdated files.
    may_go_stale: bool,
}

/// The end outside the namespace, which answers requests.
pub struct Answerer {
    questions: io::PipeReader,
    answers: io::PipeWriter,
    /// The ends of the other process, open until it has inherited them.
    handed_over: (io::PipeWriter, io::PipeReader),
}

impl Answerer {
    /// Creates both ends; the other one is inherited by the next process that is started.
    pub fn new() -> io::Result<Self> {
        let (questions, ask) = io::pipe()?;
        let (hear, answers) = io::pipe()?;
        for end in [ask.as_fd(), hear.as_fd()] {
            rustix::io::fcntl_setfd(end, FdFlags::empty())?;
        }
        Ok(Self { questions, answers, handed_over: (ask, hear) })
    }

    /// The argument with which the other process finds its end.
    pub fn argument(&self) -> OsString {
        let (ask, hear) = &self.handed_over;
        format!("{},{}", ask.as_raw_fd(), hear.as_raw_fd()).into()
    }

    /// Sends the rest of the Spec to the other process when everything is mounted; then answers its
    /// requests until it ends.
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
    /// Opens the inherited end, so that commands do not inherit it in turn. Waits until everything is mounted, and
    /// returns the Spec as of then; `None` if mounting failed.
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
        // New mounts show the current files.
        let asked = Some(Instant::now());
        let (is_waiting, is_owed) = (false, false);
        let inherited = Self { questions, answers, is_waiting, asked, is_owed, may_go_stale };
        Ok(Some((inherited, spec)))
    }

    /// Notes that a command has run.
    pub fn owe(&mut self) {
        self.is_owed = true;
    }

    /// Requests a refresh for the next command, unless that arrives within `FRESH`. Returns when there is
    /// something to read on standard input, or nothing to do.
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

    /// Waits for the answer to the last request, if there was one.
    pub fn wait(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_waiting) {
            return Ok(());
        }
        let mut word = WORD;
        self.answers.read_exact(&mut word)
    }

    /// Whether new mounts are needed to show the current files. No other request may be pending.
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
