//! Blocking work on threads: limits how many pieces run at once, for all Sessions together.
//!
//! Each piece takes a thread. Without a limit, a hundred Subagents that write at the same moment would
//! take a hundred threads, which only wait for the same disk.

use std::panic::resume_unwind;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

/// How many pieces of work run at the same time under one limit.
const MOST_CONCURRENT: usize = 8;

/// The limit for work that waits for the disk only.
static DISK_LIMIT: BlockingLimit = BlockingLimit::new();

/// A limit on the number of threads for one kind of blocking work.
#[derive(Debug)]
pub struct BlockingLimit(Semaphore);

impl BlockingLimit {
    pub const fn new() -> Self {
        Self(Semaphore::const_new(MOST_CONCURRENT))
    }

    /// Starts a piece of work, or queues it. The work runs to its end even if the handle is dropped before it starts.
    pub fn run_blocking<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        if let Ok(permit) = self.0.try_acquire() {
            return spawn_blocking(move || {
                let _permit = permit;
                work()
            });
        }
        tokio::spawn(async move {
            // The semaphore is never closed, so there is always a permit.
            let _permit = self.0.acquire().await.ok();
            match spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                // The runtime shuts down, and this task with it.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// Starts a piece of work that waits for the disk only.
pub fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    DISK_LIMIT.run_blocking(work)
}

/// Runs a piece of work on a new thread, or on this one when none can be started.
pub fn spawn_or_run(work: impl FnOnce() + Send + 'static) {
    fn run<W: FnOnce()>(held: &Mutex<Option<W>>) {
        let work = held.lock().take();
        if let Some(work) = work {
            work();
        }
    }
    // A thread that cannot be started drops its closure.
    let held = Arc::new(Mutex::new(Some(work)));
    let shared = Arc::clone(&held);
    if std::thread::Builder::new().spawn(move || run(&shared)).is_err() {
        run(&held);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn more_work_than_threads_is_queued_and_all_of_it_runs() {
        static CROWDED: BlockingLimit = BlockingLimit::new();
        static NOW: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let pieces: Vec<_> = (0..100)
            .map(|piece| {
                CROWDED.run_blocking(move || {
                    let now = NOW.fetch_add(1, Ordering::SeqCst) + 1;
                    MOST.fetch_max(now, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                    NOW.fetch_sub(1, Ordering::SeqCst);
                    piece
                })
            })
            .collect();
        for (expected, piece) in pieces.into_iter().enumerate() {
            assert_eq!(piece.await.unwrap(), expected);
        }
        assert!(MOST.load(Ordering::SeqCst) <= MOST_CONCURRENT);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_is_passed_on_and_releases_its_permit() {
        static BROKEN: BlockingLimit = BlockingLimit::new();
        let pieces: Vec<_> = (0..3 * MOST_CONCURRENT)
            .map(|_| BROKEN.run_blocking(|| panic!("on purpose")))
            .collect();
        for piece in pieces {
            let result: Result<(), _> = piece.await;
            assert!(result.unwrap_err().is_panic());
        }
        assert_eq!(BROKEN.run_blocking(|| 7).await.unwrap(), 7);
        assert_eq!(BROKEN.0.available_permits(), MOST_CONCURRENT);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn queued_work_runs_after_its_handle_is_dropped() {
        static QUEUED: BlockingLimit = BlockingLimit::new();
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let opened = std::sync::Arc::new(std::sync::Mutex::new(opened));
        let busy: Vec<_> = (0..MOST_CONCURRENT)
            .map(|_| {
                let opened = std::sync::Arc::clone(&opened);
                QUEUED.run_blocking(move || drop(opened.lock().map(|opened| opened.recv())))
            })
            .collect();
        let (done, is_done) = tokio::sync::oneshot::channel();
        drop(QUEUED.run_blocking(move || done.send(()).ok()));
        drop(open);
        tokio::time::timeout(Duration::from_secs(30), is_done).await.unwrap().unwrap();
        for piece in busy {
            piece.await.unwrap();
        }
    }
}
