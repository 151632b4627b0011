//! Limits of a process, shared by all its Harnesses.

use crate::agent::subagent::ConcurrencyLimit;
use crate::host::process::ProcessSlots;

/// Counters of a process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct ProcessLimits {
    /// Subagents that work at once.
    pub subagents: ConcurrencyLimit,
    /// Commands that run at once.
    pub commands: ProcessSlots,
}
