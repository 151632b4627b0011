//! Workflows: graphs of steps that run as Subagents, and what is known of each step at its end.
//!
//! What is asked for is a `spec`; who may run beside whom is decided by `sets`. Everything that a
//! run does is a `workflow_event` in the Log of the Session that it belongs to.

mod sets;
mod spec;

pub use spec::{
    Budget, Check, Limits, Need, OnFailure, Posture, Step, Workflow, Workspace as WorkspaceMode,
};
