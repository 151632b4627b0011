//! Stopping of a walk: by request, or when it takes too long.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The reason why a walk ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    Asked,
    Late(Duration),
}

/// Stop request and deadline, shared by all threads of a walk.
#[derive(Debug)]
pub struct Stop {
    is_asked: AtomicBool,
    is_late: AtomicBool,
    limit: Duration,
    deadline: Instant,
}

impl Stop {
    /// Without a request, and with this time limit.
    pub fn after(limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self { is_asked: AtomicBool::new(false), is_late: AtomicBool::new(false), limit, deadline }
    }

    /// Requests that the walk ends.
    pub fn ask(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Whether the walk is to end; cheap, because it does not read the clock.
    pub fn is_set(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed) || self.is_late.load(Ordering::Relaxed)
    }

    /// Whether the walk is to end; reads the clock.
    pub fn is_due(&self) -> bool {
        if !self.is_set() && Instant::now() > self.deadline {
            self.is_late.store(true, Ordering::Relaxed);
        }
        self.is_set()
    }

    /// The reason for an early end, if any. A request counts also when it came after the deadline.
    pub fn reason(&self) -> Option<Stopped> {
        if self.is_asked.load(Ordering::Relaxed) {
            return Some(Stopped::Asked);
        }
        self.is_late.load(Ordering::Relaxed).then_some(Stopped::Late(self.limit))
    }

    /// A reader that fails when the walk is to end.
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
