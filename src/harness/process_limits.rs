//! Limits that hold for a process, whatever number of Harnesses it has.

use crate::subagent::Capacity;
use crate::tool::ProcessSlots;

/// What is counted once per process; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct ProcessLimits {
    /// Subagents that work at once.
    pub subagents: Capacity,
    /// Commands that run at once.
    pub commands: ProcessSlots,
}
