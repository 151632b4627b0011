//! `pixir workflow run` and `resume`: a run in a Session of its own, shown while it goes on.

use std::path::PathBuf;

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::source::{self, Purpose, Source};
use crate::agent::harness::{Which, WorkflowOrder};
use crate::agent::workflow::{Finished, Halt, Outcome, Written, cut_off_before, find};
use crate::base::error::{Kind, Report, counted};
use crate::frontends::cli::Context;
use crate::frontends::cli::commands::delegate::{SPENT, unread};
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{Attended, Driver, in_runtime};
use crate::frontends::cli::setup::Opened;
use crate::frontends::render::{Envelope, clean};
use crate::record::event::Heard;

/// Largest report that is printed, in bytes.
const TOLD: usize = 256 * 1024;

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
pub struct RunArgs {
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
pub struct ResumeArgs {
    /// Id of the run or of its Session, or the beginning or end of one; default: the last incomplete run
    #[arg(value_name = "RUN")]
    id: Option<String>,
}

pub fn run(args: &RunArgs, context: &Context) -> Result<Exit, Report> {
    let workspace = context.workspace()?;
    let Source { workflow, template, .. } =
        source::read(&args.source, &workspace, context, Purpose::Run)?;
    if let Some(past) = cut_off_before(&context.state_here()?.root, &workflow) {
        context.notice(&past.offer());
    }
    let opened = context.open(&workspace, None)?;
    let order = WorkflowOrder { workflow, template, past: None, horizon: None };
    drive(order, Place { workspace, session: Which::New, opened }, context)
}

pub fn resume(args: &ResumeArgs, context: &Context) -> Result<Exit, Report> {
    let (root, found) = match &args.id {
        Some(id) => super::found(id, context)?,
        None => super::last_incomplete(context)?,
    };
    if found.past.outcome == Some(Outcome::Completed) {
        let message = format!("{} is complete: there is nothing to resume", found.past.id);
        return Err(Report::new(Kind::InvalidArgs, message).with_next_actions(vec![format!(
            "look at it: pixir workflow status {}",
            found.past.id
        )]));
    }
    let model = crate::agent::inspect::posture_model(&root, &found.session);
    let workspace = root.workspace().to_owned();
    let opened = context.open(&workspace, model.as_deref())?;
    let session = Which::Resume(found.session.clone());
    let workflow = found.past.workflow.clone();
    let order = WorkflowOrder { workflow, template: None, past: Some(found.past), horizon: None };
    drive(order, Place { workspace, session, opened }, context)
}

/// Runs a shipped workflow in a folder that was made for it.
pub fn run_example(
    spec: &str,
    arguments: &[String],
    workspace: PathBuf,
    opened: Opened,
    context: &Context,
) -> Result<Exit, Report> {
    let written = Written::spec(spec)?;
    let read = source::with_arguments(&written, arguments, &workspace, context)?;
    let workflow = read?;
    let order = WorkflowOrder { workflow, template: None, past: None, horizon: None };
    drive(order, Place { workspace, session: Which::New, opened }, context)
}

/// The Workspace, Session and settings of a run.
struct Place {
    workspace: PathBuf,
    session: Which,
    opened: Opened,
}

fn drive(mut order: WorkflowOrder, place: Place, context: &Context) -> Result<Exit, Report> {
    in_runtime(async {
        let Place { workspace, session, mut opened } = place;
        // The time limit of the whole run, which records that its steps were ended; not of each step.
        order.horizon = opened.loaded.config.budget.timeout.take();
        let mut driver = Driver::start(workspace, session, opened, context).await?;
        if let Some(past) = &order.past {
            // Opening the Session may have recorded what became of its children.
            let found = find(driver.conversation.state_root(), &past.id);
            let found = found?;
            order.past = found.map(|found| found.past).or(order.past);
        }
        let finished = attend_run(order, &mut driver, |_| ()).await?;
        let exit = exit_of(&finished);
        show(&finished, exit, &mut driver, context)?;
        Ok(exit)
    })
}

/// Runs a workflow while its Events are shown, and then ends the runner.
pub async fn attend_run(
    order: WorkflowOrder,
    driver: &mut Driver<'_>,
    hear: impl FnMut(&Heard),
) -> Result<Finished, Report> {
    let cancel = CancellationToken::new();
    let work = driver.harness.run_workflow(&driver.conversation, order, cancel.clone());
    let attended = Box::pin(driver.attend(work, async move { cancel.cancel() }, hear)).await;
    driver.end().await;
    match attended {
        Attended::Done { value, .. } => value,
        Attended::Abandoned => Err(Report::new(Kind::Interrupted, "stopped by a second signal")),
    }
}

fn show(
    finished: &Finished,
    exit: Exit,
    driver: &mut Driver<'_>,
    context: &Context,
) -> Result<(), Report> {
    let text = if context.flags.events {
        // The Events have been printed already.
        String::new()
    } else if context.flags.json {
        let command = resume_command(finished, driver);
        let took = context.started.elapsed();
        let word = exit::word_of(exit);
        let mut envelope = Envelope::outcome("workflow", word, finished.value(), took);
        envelope.error = error_of(finished, exit, &command);
        let envelope = envelope.having_spent(&finished.usage());
        envelope.of_session(&finished.session_id, command).line()
    } else {
        let mut text = clean(&finished.report(TOLD));
        text.push('\n');
        text
    };
    if driver.view.answer(&text).is_err() {
        let status = format!("workflow status {}", finished.run);
        let status = context.command_here(&status, driver.conversation.workspace());
        return Err(unread(driver.view.has_failed(), &status).0);
    }
    if finished.outcome != Outcome::Completed {
        driver.view.notice(&format!("resume: {}", resume_command(finished, driver)));
    }
    Ok(())
}

/// The error of an incomplete run, with the command that resumes it.
fn error_of(finished: &Finished, exit: Exit, command: &str) -> Option<Report> {
    let (kind, why) = match exit {
        Exit::Answered => return None,
        Exit::TimedOut => (Kind::Timeout, "the run timed out: "),
        Exit::Interrupted => (Kind::Interrupted, "the run was cancelled: "),
        _ if finished.halt == Some(Halt::Budget) => (Kind::BudgetExceeded, SPENT),
        _ => (Kind::Incomplete, ""),
    };
    let count = finished.bundles.len();
    let ready = finished.bundles.iter().filter(|bundle| bundle.dependent_safe).count();
    let actions = vec![format!("go on with what is missing: {command}")];
    let message = format!("{why}{ready} of {} ready", counted(count, "step"));
    Some(Report::new(kind, message).with_next_actions(actions))
}

fn resume_command(finished: &Finished, driver: &Driver<'_>) -> String {
    match finished.outcome {
        Outcome::Completed => driver.resume_command(),
        _ => format!("pixir workflow resume {}", finished.run),
    }
}

/// The exit code of a run.
pub fn exit_of(finished: &Finished) -> Exit {
    match (finished.outcome, &finished.halt) {
        (Outcome::Completed, _) => Exit::Answered,
        (Outcome::Cancelled, _) => Exit::Interrupted,
        (Outcome::Partial | Outcome::Failed, Some(Halt::Deadline)) => Exit::TimedOut,
        (Outcome::Partial | Outcome::Failed, _) => Exit::NoAnswer,
    }
}
