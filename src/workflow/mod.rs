//! Workflows: graphs of steps that run as Subagents, and what is known of each step at its end.
//!
//! What is asked for is a `spec`; who may run beside whom is decided by `sets`. Everything that a
//! run does is a `workflow_event` in the Log of the Session that it belongs to.

mod glob;
mod plan;
mod sets;
mod spec;

pub use plan::{Plan, Wait, waves};
pub use sets::{Conflicts, conflict};
pub use spec::{
    Budget, Check, Flaw, Ground, Limits, Need, OnFailure, Posture, SpecError, Step, Workflow,
    Workspace as WorkspaceMode,
};
