//! What another program hands over at once: tasks, a Workflow or a template, made one Workflow.
//!
//! Tasks are independent steps, joined by their place. Each is ready when it is answered, because the
//! program that asked judges the answer itself; whatever Pixir can check still counts. `read` makes the
//! Workflow, `show` the one answer, `progress` what is told meanwhile.

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
