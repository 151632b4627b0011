//! How far a survey is, seen from outside, and the way to end it early.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Store;
use crate::walk::Stop;

/// The progress of one survey.
#[derive(Debug)]
pub struct SurveyProgress {
    stop: Stop,
    total: AtomicUsize,
    done: AtomicUsize,
    first_batch: OnceLock<BatchSummary>,
}

/// What a batch kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSummary {
    pub copied_files: usize,
    pub copied_bytes: u64,
    /// Contents that git holds.
    pub in_git: usize,
}

impl BatchSummary {
    /// What the user is told of the first batch.
    pub fn notice(&self, store: &Store) -> String {
        let Self { copied_files, copied_bytes, in_git } = self;
        let megabytes = copied_bytes.div_ceil(1 << 20);
        format!(
            "recorded {copied_files} files ({megabytes} MB) in {} for undo; git holds {in_git} others. The setting \
             undo.enabled turns it off",
            store.path().display()
        )
    }
}

impl SurveyProgress {
    /// The progress of a survey that begins now and may take as long as this.
    pub fn new(limit: Duration) -> Self {
        Self {
            stop: Stop::after(limit),
            total: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            first_batch: OnceLock::new(),
        }
    }

    /// The way to end the survey early.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// So many files will be read.
    pub fn expect(&self, files: usize) {
        self.total.store(files, Ordering::Relaxed);
    }

    /// So many more files were read.
    pub fn advance(&self, files: usize) {
        self.done.fetch_add(files, Ordering::Relaxed);
    }

    /// The first batch of a store was kept.
    pub fn note_first_batch(&self, summary: BatchSummary) {
        self.first_batch.set(summary).ok();
    }

    /// What the first batch of a store kept, if this survey made it.
    pub fn first_batch(&self) -> Option<BatchSummary> {
        self.first_batch.get().copied()
    }

    /// How many files were read, and of how many; `None` until that is known.
    pub fn files(&self) -> Option<(usize, usize)> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.done.load(Ordering::Relaxed), total))
    }
}
