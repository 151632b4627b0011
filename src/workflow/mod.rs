//! Workflows: graphs of steps that run as Subagents, and what is known of each step at its end.
//!
//! What is asked for is a `spec`, or a `template` that becomes one; who may run beside whom is decided by
//! `sets`, and `plan` says what that comes to; `delegate` makes one of what another program hands over. A `run` drives the `board`; everything that it does is a `workflow_event` in the Log of the Session that it belongs
//! to, and `fold` reads that back.

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

/// A name for a run.
pub fn run_id() -> String {
    format!("wf_{:010x}", fastrand::u64(..) & 0xff_ffff_ffff)
}
