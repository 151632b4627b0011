//! When a walk ends early: somebody asked, or it takes too long.

use std::io::{self, Read};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Why a walk ended before everything was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    Asked,
    Late(Duration),
}

/// The wish to stop, seen by all threads of a walk.
#[derive(Debug)]
pub struct Stop {
    reason: OnceLock<Stopped>,
    limit: Duration,
    deadline: Instant,
}

impl Stop {
    /// Nobody asked yet, and there is as much time as this.
    pub fn after(limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self { reason: OnceLock::new(), limit, deadline }
    }

    /// Asks the search to end.
    pub fn ask(&self) {
        self.reason.set(Stopped::Asked).ok();
    }

    /// Whether the end was decided; costs nothing, and does not look at the clock.
    pub fn is_set(&self) -> bool {
        self.reason.get().is_some()
    }

    /// Whether to end now.
    pub fn is_due(&self) -> bool {
        if !self.is_set() && Instant::now() > self.deadline {
            self.reason.set(Stopped::Late(self.limit)).ok();
        }
        self.is_set()
    }

    /// Why it ended, if it did before its time.
    pub fn reason(&self) -> Option<Stopped> {
        self.reason.get().copied()
    }

    /// A reader that ends with an error when the search does.
    pub fn reader<R: Read>(&self, inner: R) -> impl Read {
        Watched { inner, stop: self }
    }
}

struct Watched<'s, R> {
    inner: R,
    stop: &'s Stop,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_due() {
            return Err(io::Error::other("the search was stopped"));
        }
        self.inner.read(buffer)
    }
}
