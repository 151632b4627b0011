//! `pixir workflow run` and `resume`: one run of a workflow in a Session, shown while it works.

use std::path::PathBuf;

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::source::{self, LoadedWorkflow, SourcePurpose};
use crate::agent::harness::{RunWorkflowOptions, SessionTarget};
use crate::agent::workflow::{
    FinishedRun, HaltReason, RunOutcome, WorkflowSource, find_interrupted_run, find_run,
};
use crate::base::error::{Kind, Report, counted};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::commands::delegate::{BUDGET_USED_UP, unread_answer_report};
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{AttendOutcome, SessionRunner, in_runtime};
use crate::frontends::cli::setup::TurnSetup;
use crate::frontends::render::{JsonEnvelope, clean};
use crate::record::event::ListenerItem;

/// Largest report that is printed, in bytes.
const LARGEST_REPORT: usize = 256 * 1024;

/// Run a workflow
#[derive(Debug, Args)]
#[command(
    long_about = "Run a workflow.\n\n\
        Its steps run as Subagents of a new Session, in parallel where possible. stdout gets the result of each \
        step; everything is in the Session's Log. Ctrl-C cancels all steps and records that.\n\n\
        Exit codes: 0 completed, 6 partial or failed, 124 out of time, 130 cancelled, 2 an invalid workflow.",
    after_long_help = "Examples:\n  pixir workflow run examples/workflows/parallel-review.json\n  \
        pixir workflow run review.json --arg area=src --arg depth=2\n  \
        pixir workflow run release-notes/draft --arg since=v1.2 --json"
)]
pub struct WorkflowRunArgs {
    #[command(flatten)]
    source: source::SourceArgs,
}

/// Resume a run that was interrupted or is incomplete
#[derive(Debug, Args)]
#[command(
    long_about = "Resume a run that was interrupted or is incomplete.\n\n\
        Steps that are ready are kept, as long as their inputs are unchanged. What a step had \
        begun in the shared Workspace is rolled back before it is run again.",
    after_long_help = "Examples:\n  pixir workflow resume wf_0123456789\n  \
        pixir workflow resume 20260721T101112-abcdef"
)]
pub struct WorkflowResumeArgs {
    /// Id of the run or of its Session, or the beginning or end of one; default: the last incomplete run
    #[arg(value_name = "RUN")]
    id: Option<String>,
}

pub fn run(args: &WorkflowRunArgs, context: &CliContext) -> Result<Exit, Report> {
    let workspace = context.admitted_workspace()?;
    let LoadedWorkflow { workflow, template, .. } =
        source::read_workflow(&args.source, &workspace, context, SourcePurpose::Run)?;
    if let Some(past) = find_interrupted_run(&context.current_state()?.root, &workflow) {
        context.print_notice(&past.resume_hint());
    }
    let opened = context.prepare_turn(&workspace, None)?;
    let options = RunWorkflowOptions { workflow, template, recorded_run: None, time_limit: None };
    run_in_session(options, RunTarget { workspace, session: SessionTarget::New, opened }, context)
}

pub fn resume(args: &WorkflowResumeArgs, context: &CliContext) -> Result<Exit, Report> {
    let (root, found) = match &args.id {
        Some(id) => super::find_run(id, context)?,
        None => super::find_last_incomplete_run(context)?,
    };
    if found.run.outcome == Some(RunOutcome::Completed) {
        let message = format!("{} is complete: there is nothing to resume", found.run.id);
        return Err(Report::new(Kind::InvalidArgs, message)
            .with_next_actions(vec![format!("see it: pixir workflow status {}", found.run.id)]));
    }
    let model = crate::agent::inspect::posture_model(&root, &found.session);
    let workspace = root.workspace().to_owned();
    let opened = context.prepare_turn(&workspace, model.as_deref())?;
    let session = SessionTarget::Resume(found.session.clone());
    let workflow = found.run.workflow.clone();
    let options = RunWorkflowOptions {
        workflow,
        template: None,
        recorded_run: Some(found.run),
        time_limit: None,
    };
    run_in_session(options, RunTarget { workspace, session, opened }, context)
}

/// Runs a shipped workflow in a folder that was made for it.
pub fn run_example(
    spec: &str,
    arguments: &[String],
    workspace: PathBuf,
    opened: TurnSetup,
    context: &CliContext,
) -> Result<Exit, Report> {
    let written = WorkflowSource::parse_spec(spec)?;
    let read = source::apply_arguments(&written, arguments, &workspace, context)?;
    let workflow = read?;
    let options =
        RunWorkflowOptions { workflow, template: None, recorded_run: None, time_limit: None };
    run_in_session(options, RunTarget { workspace, session: SessionTarget::New, opened }, context)
}

/// The Workspace, Session and settings of a run.
struct RunTarget {
    workspace: PathBuf,
    session: SessionTarget,
    opened: TurnSetup,
}

fn run_in_session(
    mut options: RunWorkflowOptions,
    place: RunTarget,
    context: &CliContext,
) -> Result<Exit, Report> {
    in_runtime(async {
        let RunTarget { workspace, session, mut opened } = place;
        // The time limit of the whole run, which records that its steps were ended; not of each step.
        options.time_limit = opened.loaded.config.budget.timeout.take();
        let mut runner = SessionRunner::start(workspace, session, opened, context).await?;
        if let Some(past) = &options.recorded_run {
            // Opening the Session may have recorded what became of its children.
            let found = find_run(runner.conversation.state_root(), &past.id);
            let found = found?;
            options.recorded_run = found.map(|found| found.run).or(options.recorded_run);
        }
        let finished = run_attended_workflow(options, &mut runner, |_| ()).await?;
        let exit = exit_for_workflow(&finished);
        print_outcome(&finished, exit, &mut runner, context)?;
        Ok(exit)
    })
}

/// Runs a workflow while its Events are shown, and then ends the runner.
pub async fn run_attended_workflow(
    options: RunWorkflowOptions,
    runner: &mut SessionRunner<'_>,
    on_event: impl FnMut(&ListenerItem),
) -> Result<FinishedRun, Report> {
    let cancel = CancellationToken::new();
    let work = runner.harness.run_workflow(&runner.conversation, options, cancel.clone());
    let attended =
        Box::pin(runner.attend_work(work, async move { cancel.cancel() }, on_event)).await;
    runner.end().await;
    match attended {
        AttendOutcome::Done { value, .. } => value,
        AttendOutcome::Aborted => Err(Report::new(Kind::Interrupted, "stopped by a second signal")),
    }
}

fn print_outcome(
    finished: &FinishedRun,
    exit: Exit,
    runner: &mut SessionRunner<'_>,
    context: &CliContext,
) -> Result<(), Report> {
    let text = if context.flags.events {
        // The Events have been printed already.
        String::new()
    } else if context.flags.json {
        let command = resume_command(finished, runner);
        let took = context.started.elapsed();
        let word = exit::exit_status_word(exit);
        let mut envelope = JsonEnvelope::for_outcome("workflow", word, finished.to_json(), took);
        envelope.error = incomplete_report(finished, exit, &command);
        let envelope = envelope.with_child_usage(&finished.usage());
        envelope.with_session(&finished.session_id, command).to_line()
    } else {
        let mut text = clean(&finished.report(LARGEST_REPORT));
        text.push('\n');
        text
    };
    if runner.view.write_answer(&text).is_err() {
        let status = format!("workflow status {}", finished.run_id);
        let status = context.command_in_workspace(&status, runner.conversation.workspace());
        return Err(unread_answer_report(runner.view.has_failed(), &status).0);
    }
    if finished.outcome != RunOutcome::Completed {
        runner.view.print_notice(&format!("resume: {}", resume_command(finished, runner)));
    }
    Ok(())
}

/// The error of an incomplete run, with the command that resumes it.
fn incomplete_report(finished: &FinishedRun, exit: Exit, command: &str) -> Option<Report> {
    let (kind, why) = match exit {
        Exit::Answered => return None,
        Exit::TimedOut => (Kind::Timeout, "the run timed out: "),
        Exit::Interrupted => (Kind::Interrupted, "the run was cancelled: "),
        _ if finished.halt == Some(HaltReason::Budget) => (Kind::BudgetExceeded, BUDGET_USED_UP),
        _ => (Kind::Incomplete, ""),
    };
    let count = finished.bundles.len();
    let ready = finished.bundles.iter().filter(|bundle| bundle.dependent_safe).count();
    let actions = vec![format!("run the missing children again: {command}")];
    let message = format!("{why}{ready} of {} ready", counted(count, "step"));
    Some(Report::new(kind, message).with_next_actions(actions))
}

fn resume_command(finished: &FinishedRun, runner: &SessionRunner<'_>) -> String {
    match finished.outcome {
        RunOutcome::Completed => runner.resume_command(),
        _ => format!("pixir workflow resume {}", finished.run_id),
    }
}

/// The exit code of a run.
pub fn exit_for_workflow(finished: &FinishedRun) -> Exit {
    match (finished.outcome, &finished.halt) {
        (RunOutcome::Completed, _) => Exit::Answered,
        (RunOutcome::Cancelled, _) => Exit::Interrupted,
        (RunOutcome::Partial | RunOutcome::Failed, Some(HaltReason::Deadline)) => Exit::TimedOut,
        (RunOutcome::Partial | RunOutcome::Failed, _) => Exit::NoAnswer,
    }
}
