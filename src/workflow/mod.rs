//! Workflows: graphs of steps that run as Subagents, and what is known of each step at its end.
//!
//! What is asked for is a `spec`, or a `template` that becomes one; who may run beside whom is decided by
//! `sets`, and `plan` says what that comes to. Everything that a
//! run does is a `workflow_event` in the Log of the Session that it belongs to.

mod glob;
mod odd;
mod plan;
mod sets;
mod spec;
mod template;

pub use odd::odd;
pub use plan::{Plan, Wait, waves};
pub use sets::{Conflicts, conflict};
pub use spec::{
    Budget, Check, Flaw, Ground, Limits, Need, OnFailure, Posture, SpecError, Step, Workflow,
    Workspace as WorkspaceMode, reference, schema,
};
pub use template::{LostTemplate, Written};
