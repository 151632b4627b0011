//! Workflows: graphs of steps that run as Subagents, and the Checkpoint Bundle that each step ends with.
//!
//! A Workflow is read from a `spec`, from a `template` that is filled to one, or from what another program hands to
//! `delegate`. `conflicts` decides which steps may run at the same time; `plan` lists the resulting waves. A `run`
//! drives the `scheduler`; everything that it does is a `workflow_event` in the Log of its Session, and `replay`
//! rebuilds runs from those events.

mod board;
mod checkpoint;
mod delegate;
mod digest;
mod find;
mod fold;
mod glob;
mod odd;
mod outcome;
mod plan;
mod run;
mod sets;
mod show;
mod sources;
mod spec;
mod template;
mod tool;
mod watch;

pub use checkpoint::Bundle;
pub use delegate::{
    Commands as DelegateCommands, Delegation, Progress, Source as DelegateSource,
    plan as delegate_plan, reference as delegate_reference, schema as delegate_schema,
    shown as delegate_shown,
};
pub use find::{Found, all, cut_off_before, find, session_named};
pub use fold::{Past, cut_off};
pub use odd::odd;
pub use outcome::{Halt, Outcome};
pub use plan::{Plan, Wait, waves};
pub use run::{Finished, Order, Stage, run};
pub use show::line_of;
pub use sources::Sources;
pub use spec::{
    Flaw, Ground, OnFailure, Posture, SpecError, Step, Workflow, Workspace as WorkspaceMode,
    reference, schema,
};
pub use template::{LostTemplate, Written};
pub use tool::{RunWorkflow, tool_spec};
pub use watch::{StepState, Watch, WatchedStep};

/// Makes a random id for a run.
pub fn run_id() -> String {
    format!("wf_{:010x}", fastrand::u64(..) & 0xff_ffff_ffff)
}
