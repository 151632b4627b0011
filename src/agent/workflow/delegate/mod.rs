//! Delegations: tasks, a Workflow or a template that another program hands over at once, made one Workflow.
//!
//! Tasks become independent steps, identified by their index. Each is ready when it is answered, because the calling
//! program judges the answer itself; Pixir's own checks still count. `read` builds the Workflow, `answer` the final
//! answer, `progress` the lines of progress.

mod progress;
mod read;
mod schema;
mod show;
#[cfg(test)]
mod tests;
mod written;

pub use progress::Progress;
pub use read::{Delegation, Source};
pub use schema::{reference, schema};
pub use show::{Commands, plan, shown};

/// The version of the spec and of the answer.
pub const CONTRACT: u64 = 1;
