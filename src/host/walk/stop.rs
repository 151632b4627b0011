//! Walk stop: ends a walk on request, or when it takes too long.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The reason why a walk ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkStopReason {
    Requested,
    TimedOut(Duration),
}

/// Stop request and deadline, shared by all threads of a walk.
#[derive(Debug)]
pub struct WalkStop {
    is_requested: AtomicBool,
    is_timed_out: AtomicBool,
    limit: Duration,
    deadline: Instant,
}

impl WalkStop {
    /// A walk stop with this time limit, and without a request.
    pub fn with_timeout(limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self {
            is_requested: AtomicBool::new(false),
            is_timed_out: AtomicBool::new(false),
            limit,
            deadline,
        }
    }

    /// Requests that the walk ends.
    pub fn request(&self) {
        self.is_requested.store(true, Ordering::Relaxed);
    }

    /// Whether the walk is to end; cheap, because it does not read the clock.
    pub fn is_set(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed) || self.is_timed_out.load(Ordering::Relaxed)
    }

    /// Whether the walk is to end; reads the clock.
    pub fn is_due(&self) -> bool {
        if !self.is_set() && Instant::now() > self.deadline {
            self.is_timed_out.store(true, Ordering::Relaxed);
        }
        self.is_set()
    }

    /// The reason for an early end, if any. A request takes precedence, even after the deadline.
    pub fn reason(&self) -> Option<WalkStopReason> {
        if self.is_requested.load(Ordering::Relaxed) {
            return Some(WalkStopReason::Requested);
        }
        self.is_timed_out.load(Ordering::Relaxed).then_some(WalkStopReason::TimedOut(self.limit))
    }

    /// A reader that fails when the walk is to end.
    pub fn stoppable_reader<R: Read>(&self, inner: R) -> impl Read {
        StoppableReader { inner, stop: self }
    }
}

struct StoppableReader<'s, R> {
    inner: R,
    stop: &'s WalkStop,
}

impl<R: Read> Read for StoppableReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_due() {
            return Err(io::Error::other("the search was stopped"));
        }
        self.inner.read(buffer)
    }
}
