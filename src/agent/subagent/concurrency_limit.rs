//! Limit of Subagents that run at the same time in the whole process.
//!
//! An editor has a Harness for each Workspace, each with its own actor. They share this limit.

use std::sync::Arc;

use tokio::sync::watch;

/// The number of occupied places; clones share it.
#[derive(Debug, Clone)]
pub struct ConcurrencyLimit(Arc<watch::Sender<usize>>);

impl Default for ConcurrencyLimit {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl ConcurrencyLimit {
    /// Occupies one more place, unless `most` are occupied.
    pub fn try_acquire(&self, most: usize) -> bool {
        let mut is_free = false;
        self.0.send_if_modified(|taken| {
            is_free = *taken < most;
            *taken += usize::from(is_free);
            // No receiver waits for places to be occupied.
            false
        });
        is_free
    }

    /// Changes the places of one holder from `before` to `now`, also beyond the limit: a child that
    /// waited for its own children goes on when they end.
    pub fn adjust(&self, before: usize, now: usize) {
        self.0.send_if_modified(|taken| {
            *taken = (*taken + now).saturating_sub(before);
            now < before
        });
    }

    /// A receiver that changes whenever a place is freed.
    pub fn subscribe_freed(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_one_gives_back_another_one_takes() {
        let (one, other) = (ConcurrencyLimit::default(), ConcurrencyLimit::default());
        let (same, mut freed) = (one.clone(), one.subscribe_freed());
        assert!(one.try_acquire(2) && same.try_acquire(2) && !one.try_acquire(2));
        assert!(other.try_acquire(1), "others are others");
        assert!(freed.changed().now_or_never().is_none());
        one.adjust(1, 3);
        assert!(freed.changed().now_or_never().is_none());
        assert!(!same.try_acquire(4));
        one.adjust(3, 0);
        assert!(freed.changed().now_or_never().is_some());
        assert!(same.try_acquire(2) && !same.try_acquire(2));
    }
}
