//! Survey progress, readable from another thread, and a way to stop the survey early.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::ContentStore;
use crate::host::walk::WalkStop;

/// The progress of one survey.
#[derive(Debug)]
pub struct SurveyProgress {
    stop: WalkStop,
    total: AtomicUsize,
    done: AtomicUsize,
    /// The number of files that the walk found.
    found: AtomicUsize,
    first_batch: OnceLock<BatchSummary>,
    /// The size of packs that only the store keeps, if it exceeds the limit of the store.
    large_pins: OnceLock<u64>,
}

/// The number and size of the contents that a batch stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSummary {
    pub copied_files: usize,
    pub copied_bytes: u64,
    /// Contents that are in git's objects and were not copied.
    pub in_git: usize,
}

impl BatchSummary {
    /// The notice to the user about the first batch of a store.
    pub fn notice(&self, store: &ContentStore) -> String {
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
    /// Progress of a survey that starts now, with a time limit.
    pub fn new(limit: Duration) -> Self {
        Self {
            stop: WalkStop::with_timeout(limit),
            total: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            found: AtomicUsize::new(0),
            first_batch: OnceLock::new(),
            large_pins: OnceLock::new(),
        }
    }

    /// The handle that stops the survey early.
    pub fn stop(&self) -> &WalkStop {
        &self.stop
    }

    /// Sets the number of files to read; none of them was read yet.
    pub fn set_total(&self, files: usize) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(files, Ordering::Relaxed);
    }

    /// Adds to the number of files that were read.
    pub fn add_done(&self, files: usize) {
        self.done.fetch_add(files, Ordering::Relaxed);
    }

    /// Sets the number of files that the walk found.
    pub fn set_found(&self, files: usize) {
        self.found.store(files, Ordering::Relaxed);
    }

    /// The number of files that the walk found.
    pub fn found(&self) -> usize {
        self.found.load(Ordering::Relaxed)
    }

    /// Records that this survey stored the first batch of its store.
    pub fn set_first_batch(&self, summary: BatchSummary) {
        self.first_batch.set(summary).ok();
    }

    /// The summary of the store's first batch, if this survey stored it.
    pub fn first_batch(&self) -> Option<BatchSummary> {
        self.first_batch.get().copied()
    }

    /// Records the size of packs that only the store keeps, if it exceeds the limit of the store.
    pub fn set_large_pins(&self, bytes: u64, limit: u64) {
        if bytes > limit {
            self.large_pins.set(bytes).ok();
        }
    }

    /// The notice to the user about packs that only the store keeps, if they exceed the limit of the store.
    pub fn large_pins_notice(&self, store: &ContentStore) -> Option<String> {
        let megabytes = self.large_pins.get()?.div_ceil(1 << 20);
        Some(format!(
            "{} keeps {megabytes} MB of packs for undo that git has removed, more than undo.max_bytes; `pixir gc` \
             removes those that no Session needs",
            store.path().display()
        ))
    }

    /// The numbers of files read and of files in all; `None` until known.
    pub fn files(&self) -> Option<(usize, usize)> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.done.load(Ordering::Relaxed), total))
    }
}
