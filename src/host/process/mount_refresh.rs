//! Mount refresh between commands: the supervisor inside the namespace, which may not mount any more,
//! asks the process outside to update the mounts to what changed outside the Workspace. The answer is
//! awaited only before the next command, because no process reads the mounts in between.
#![expect(clippy::disallowed_methods, reason = "inherited pipes, not state")]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;

use crate::host::process::protocol::{LENGTH_PREFIX, decode_fields, encode_frame, frame_length};
use crate::host::sandbox::FolderViews;

/// Request to refresh the mounts, and its answer.
const REFRESH: [u8; 1] = [b'r'];
/// Request to check that the mounts still show the current files, and the answer if they do.
const CHECK: [u8; 1] = [b'c'];
/// The answer to [`CHECK`] if the mounts are stale.
const STALE: [u8; 1] = [b's'];
/// The first field of the setup frame if the mounts may become stale.
const MAY_GO_STALE: &str = "stale";

/// The time after a refresh in which no other is requested, so that commands in quick succession need not wait.
const FRESH_TIME: Duration = Duration::from_millis(100);

/// The client inside the namespace, which sends requests.
pub struct RefreshClient {
    requests: File,
    answers: File,
    /// Whether a request has not been answered yet.
    is_answer_pending: bool,
    /// The time of the last request for a refresh.
    last_request: Option<Instant>,
    /// Whether a command has run since the last request.
    is_dirty: bool,
    /// Whether the mounts may show outdated files.
    may_go_stale: bool,
}

/// The server outside the namespace, which answers requests.
pub struct RefreshServer {
    requests: io::PipeReader,
    answers: io::PipeWriter,
    /// The pipe ends of the client, open until its process has inherited them.
    client_ends: (io::PipeWriter, io::PipeReader),
}

impl RefreshServer {
    /// Creates the pipes; the client's ends are inherited by the next process that is started.
    pub fn new() -> io::Result<Self> {
        let (requests, request_writer) = io::pipe()?;
        let (response_reader, answers) = io::pipe()?;
        for end in [request_writer.as_fd(), response_reader.as_fd()] {
            rustix::io::fcntl_setfd(end, FdFlags::empty())?;
        }
        Ok(Self { requests, answers, client_ends: (request_writer, response_reader) })
    }

    /// The argument by which the client's process finds its pipe ends.
    pub fn argument(&self) -> OsString {
        let (request_writer, response_reader) = &self.client_ends;
        format!("{},{}", request_writer.as_raw_fd(), response_reader.as_raw_fd()).into()
    }

    /// Sends the rest of the `SandboxSpec` to the client once everything is mounted; then answers its
    /// requests until it ends.
    pub fn serve(self, mut spec: Vec<OsString>, views: Option<&FolderViews>) -> io::Result<()> {
        let Self { mut requests, mut answers, client_ends: handed_over } = self;
        drop(handed_over);
        let staleness =
            if views.is_some_and(FolderViews::may_go_stale) { MAY_GO_STALE } else { "" };
        spec.insert(0, staleness.into());
        answers.write_all(&encode_frame(spec)?)?;
        let mut word = REFRESH;
        while requests.read_exact(&mut word).is_ok() {
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

impl RefreshClient {
    /// Reopens the inherited pipe ends, so that commands do not inherit them. Waits until everything is mounted, and
    /// returns the rest of the `SandboxSpec` as of then; `None` if mounting failed.
    pub fn from_inherited(argument: &OsStr) -> io::Result<Option<(Self, Vec<OsString>)>> {
        let odd = || io::Error::from(io::ErrorKind::InvalidInput);
        let text = argument.to_str().ok_or_else(odd)?;
        let (request_writer, response_reader) = text.split_once(',').ok_or_else(odd)?;
        let place = |number: &str| format!("/proc/self/fd/{number}");
        let requests = File::options().write(true).open(place(request_writer))?;
        let mut answers = File::open(place(response_reader))?;
        for number in [request_writer, response_reader] {
            let number: i32 = number.parse().map_err(|_| odd())?;
            nix::unistd::close(number)?;
        }
        let mut length = [0; LENGTH_PREFIX];
        if answers.read_exact(&mut length).is_err() {
            return Ok(None);
        }
        let mut body = vec![0; frame_length(length)?];
        answers.read_exact(&mut body)?;
        let mut spec = decode_fields(&body).ok_or_else(odd)?;
        let may_go_stale = !spec.is_empty() && spec.remove(0) == MAY_GO_STALE;
        // New mounts show the current files.
        let last_request = Some(Instant::now());
        let (is_answer_pending, is_dirty) = (false, false);
        let inherited =
            Self { requests, answers, is_answer_pending, last_request, is_dirty, may_go_stale };
        Ok(Some((inherited, spec)))
    }

    /// Records that a command has run.
    pub fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Requests a refresh for the next command, unless the command arrives within [`FRESH_TIME`]. Returns when
    /// there is something to read on standard input, or nothing to do.
    pub fn request_refresh(&mut self) -> io::Result<()> {
        if !self.is_dirty {
            return Ok(());
        }
        let left = self
            .last_request
            .map_or(Duration::ZERO, |asked| FRESH_TIME.saturating_sub(asked.elapsed()));
        if !left.is_zero() {
            let mut polled = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
            let left = Timespec::try_from(left).ok();
            if rustix::event::poll(&mut polled, left.as_ref()).is_ok_and(|ready| ready > 0) {
                return Ok(());
            }
        }
        self.is_dirty = false;
        self.is_answer_pending = true;
        self.last_request = Some(Instant::now());
        self.requests.write_all(&REFRESH)
    }

    /// Waits for the answer to the last request, if there was one.
    pub fn wait_answer(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_answer_pending) {
            return Ok(());
        }
        let mut word = REFRESH;
        self.answers.read_exact(&mut word)
    }

    /// Whether new mounts are needed to show the current files. No other request may be pending.
    pub fn is_stale(&mut self) -> io::Result<bool> {
        if !self.may_go_stale {
            return Ok(false);
        }
        self.requests.write_all(&CHECK)?;
        let mut word = CHECK;
        self.answers.read_exact(&mut word)?;
        Ok(word == STALE)
    }
}
