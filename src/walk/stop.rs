//! When a walk ends early: somebody asked, or it takes too long.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
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
    is_asked: AtomicBool,
    is_late: AtomicBool,
    limit: Duration,
    deadline: Instant,
}

impl Stop {
    /// Nobody asked yet, and there is as much time as this.
    pub fn after(limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self { is_asked: AtomicBool::new(false), is_late: AtomicBool::new(false), limit, deadline }
    }

    /// Asks the search to end.
    pub fn ask(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Whether the end was decided; costs nothing, and does not look at the clock.
    pub fn is_set(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed) || self.is_late.load(Ordering::Relaxed)
    }

    /// Whether to end now.
    pub fn is_due(&self) -> bool {
        if !self.is_set() && Instant::now() > self.deadline {
            self.is_late.store(true, Ordering::Relaxed);
        }
        self.is_set()
    }

    /// Why it ended, if it did before its time. A wish counts also when it came after the deadline.
    pub fn reason(&self) -> Option<Stopped> {
        if self.is_asked.load(Ordering::Relaxed) {
            return Some(Stopped::Asked);
        }
        self.is_late.load(Ordering::Relaxed).then_some(Stopped::Late(self.limit))
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
