//! Command slots: the limit on the number of commands that run at once, over all Sessions of the process.

use std::sync::{Arc, OnceLock};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The slots of one process, shared by all clones: with an editor, the process has a Harness for each
/// Workspace, and each starts commands.
#[derive(Debug, Clone, Default)]
pub struct ProcessSlots(Arc<OnceLock<CommandSlots>>);

impl ProcessSlots {
    /// The slots; the first call determines their number.
    pub fn get(&self, count: usize) -> &CommandSlots {
        self.0.get_or_init(|| CommandSlots::new(count))
    }
}

/// A fixed number of slots, acquired first come, first served.
#[derive(Debug)]
pub struct CommandSlots {
    free: Semaphore,
    count: usize,
}

/// The right to run one command; released on drop.
pub type CommandSlot<'a> = SemaphorePermit<'a>;

impl CommandSlots {
    /// A set of `count` slots.
    pub fn new(count: usize) -> Self {
        Self { free: Semaphore::new(count), count }
    }

    /// A slot, if one is free and no other command waits for it.
    pub fn try_acquire(&self) -> Option<CommandSlot<'_>> {
        self.free.try_acquire().ok()
    }

    /// Waits for a slot, behind earlier callers. Dropping the future leaves the queue.
    pub async fn acquire(&self) -> Option<CommandSlot<'_>> {
        // The semaphore is never closed, so this is never `None`.
        self.free.acquire().await.ok()
    }

    /// The status text of a command that waits for a slot.
    pub fn wait_reason(&self) -> String {
        match self.count {
            1 => "for a free slot: 1 command runs".to_owned(),
            count => format!("for a free slot: {count} commands run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn slots_are_granted_in_order_and_dropped_waiters_are_skipped() {
        let slots = CommandSlots::new(1);
        let held = slots.try_acquire().unwrap();
        assert!(slots.try_acquire().is_none());
        let mut first = pin!(slots.acquire());
        let mut leaver = Box::pin(slots.acquire());
        let mut last = pin!(slots.acquire());
        assert!(first.as_mut().now_or_never().is_none());
        assert!(leaver.as_mut().now_or_never().is_none());
        assert!(last.as_mut().now_or_never().is_none());
        drop(held);
        assert!(slots.try_acquire().is_none(), "later callers do not overtake");
        assert!(last.as_mut().now_or_never().is_none());
        let held = first.as_mut().now_or_never().flatten().unwrap();
        drop(leaver);
        drop(held);
        assert!(last.as_mut().now_or_never().flatten().is_some());
    }
}
