//! Workflows: graphs of steps that run as Subagents, and the Checkpoint Bundle that each step ends with.
//!
//! A Workflow is read from a `spec`, from a `template` that is filled to one, or from what another program hands to
//! `delegate`. `conflicts` decides which steps may run at the same time; `plan` lists the resulting waves. A `run`
//! drives the `scheduler`; everything that it does is a `workflow_event` in the Log of its Session, and `replay`
//! rebuilds runs from those events.

mod checkpoint;
mod conflicts;
mod delegate;
mod find_runs;
mod glob;
mod lint;
mod loader;
mod outcome;
mod plan;
mod replay;
mod report;
mod run;
mod scheduler;
mod spec;
mod template;
mod tool;
mod watch;

pub use checkpoint::CheckpointBundle;
pub use delegate::{
    DelegateCommands, DelegateProgress, DelegateSource, Delegation, delegate_reference,
    delegate_schema, finished_answer as delegate_shown, plan_answer as delegate_plan,
};
pub use find_runs::{FoundRun, all_runs, find_interrupted_run, find_run, parse_session_id};
pub use lint::lint_workflow;
pub use loader::WorkflowLoader;
pub use outcome::{HaltReason, RunOutcome};
pub use plan::{WaitReason, WorkflowPlan, plan_waves};
pub use replay::{RecordedRun, interrupted_run_notice};
pub use report::step_line;
pub use run::{FinishedRun, RunContext, WorkflowRunInput, run};
pub use spec::{
    OnFailure, SpecContext, SpecDiagnostic, SpecError, Step, StepPosture, Workflow, WorkspaceMode,
    workflow_reference, workflow_schema,
};
pub use template::{TemplateLookupError, WorkflowSource};
pub use tool::{RunWorkflow, tool_spec};
pub use watch::{StepState, WatchedRun, WatchedStep};

/// Makes a random id for a run.
pub fn new_run_id() -> String {
    format!("wf_{:010x}", fastrand::u64(..) & 0xff_ffff_ffff)
}
