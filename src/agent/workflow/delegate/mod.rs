//! Delegations: tasks, a Workflow or a template that another program passes at once, turned into one Workflow.
//!
//! Tasks become independent steps, identified by their index. Each is ready when it is answered, because the calling
//! program judges the answer itself; Pixir's own checks still count. `read` builds the Workflow, `answer` the final
//! answer, `progress` the lines of progress.

mod answer;
mod progress;
mod read;
mod schema;
mod spec_types;
#[cfg(test)]
mod tests;

pub use answer::{DelegateCommands, finished_answer, plan_answer};
pub use progress::DelegateProgress;
pub use read::{DelegateSource, Delegation};
pub use schema::{delegate_reference, delegate_schema};

/// The version of the spec and of the answer.
pub const CONTRACT_VERSION: u64 = 1;
