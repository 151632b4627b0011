//! `pixir delegate`: run the tasks of a spec as Subagents of one Session and print one result.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::Args;
use serde_json::{Map, json};

use super::workflow::{LARGEST_SPEC, exit_for_workflow, run_attended_workflow};
use crate::agent::harness::{RunWorkflowOptions, SessionTarget};
use crate::agent::workflow::{
    DelegateCommands, DelegateProgress, DelegateSource, Delegation, FinishedRun, HaltReason,
    RunOutcome, SpecContext, SpecDiagnostic, SpecError, TemplateLookupError, WorkflowSource,
    delegate_plan, delegate_shown,
};
use crate::base::error::{Kind, Report};
use crate::base::files::open_regular;
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{SessionRunner, in_runtime};
use crate::frontends::cli::{CliContext, bad_argument, print_stdout};
use crate::frontends::render::{
    JsonEnvelope, SignalCount, StdioOutput, StdoutClosed, clean, error_text, escape_hidden,
};
use crate::host::rpc::BlockingStream;
use crate::record::event::{Canonical, EventKind, ListenerItem, PermissionMode, WorkflowEvent};

/// Prefix of the error when the budget is used up.
pub const BUDGET_USED_UP: &str = "the budget is used up: ";

/// Run many tasks at once and get one result
#[derive(Debug, Args)]
#[command(
    long_about = "Run many tasks at once and get one result; for other agents and for CI.\n\n\
        The spec is one JSON object: `tasks`, a `workflow` or a `template`, with limits and a budget; docs/delegate.md has \
        every key. The tasks run as Subagents of one new Session, in this process, read-only unless the spec says otherwise. \
        With --json, stdout gets exactly one envelope with every child at its index, its Log and the command that resumes \
        it. With --dry-run the spec is checked and planned, without a credential and without a network. At the time limit \
        (`limits.timeout_ms`, or --timeout), and on Ctrl-C, children that still run are cancelled, and that is recorded.\n\n\
        Exit codes: 0 all completed, or planned; 1 another error; 2 an invalid spec; 3 denied; 4 not signed in, or the \
        Provider refused the credential; 6 partial or failed; 7 the Log cannot be written; 124 the time limit was reached; \
        130 cancelled, or stdout was closed.",
    after_long_help = "Examples:\n  pixir delegate --spec tasks.json --json\n  \
        echo '{\"tasks\": [\"what does src do?\", \"what is tested?\"]}' | pixir delegate --spec - --json --progress\n  \
        pixir delegate --spec tasks.json --dry-run"
)]
pub struct DelegateArgs {
    /// File with the spec; `-` for standard input
    #[arg(long, value_name = "FILE")]
    spec: String,
    /// Print progress as JSON lines on stderr, and nothing else there
    #[arg(long)]
    progress: bool,
}

pub fn delegate(args: &DelegateArgs, context: &CliContext) -> Result<Exit, Report> {
    let mut progress_output = ProgressOutput {
        output: StdioOutput::stdio(SignalCount::default()),
        progress: args.progress.then(|| DelegateProgress::new(context.started, String::new())),
    };
    // stderr carries JSON lines only.
    let mut quiet = context.clone();
    quiet.flags.quiet |= args.progress;
    let done = run_delegation(args, &quiet, &mut progress_output);
    match done {
        Err(report) if args.progress => {
            let exit = exit::exit_for_report(&report);
            if context.flags.json {
                let took = context.started.elapsed();
                print_stdout(&JsonEnvelope::failure("delegate", report.clone(), took).to_line());
            }
            progress_output.print_refusal(&report, exit);
            Ok(exit)
        }
        done => done,
    }
}

fn run_delegation(
    args: &DelegateArgs,
    context: &CliContext,
    progress_output: &mut ProgressOutput,
) -> Result<Exit, Report> {
    let workspace = context.admitted_workspace()?;
    let mut delegation = read_spec(args, &workspace, context)?;
    let config = context.load_settings(Some(&workspace))?.config;
    if let Some(most) = config.budget.timeout {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        let own = &mut delegation.workflow.limits.timeout_ms;
        *own = (*own).min(most);
    }
    let wanted = &config.permission_mode;
    let mode = config.role.map_or_else(|| wanted.clone(), |role| role.limit_mode(wanted));
    refuse_writers(&delegation, &mode)?;
    if context.flags.dry_run {
        let plan = delegate_plan(&delegation, &workspace);
        let exit = context.print_result("delegate", &plan.text, plan.output)?;
        progress_output.print_end("planned", exit);
        return Ok(exit);
    }
    check_trust(&delegation, &workspace, context)?;
    let mut opened = context.prepare_turn(&workspace, None)?;
    // Already the time limit of the whole delegation, so it must not also limit each child.
    opened.loaded.config.budget.timeout = None;
    in_runtime(async {
        let mut runner =
            SessionRunner::start(workspace.clone(), SessionTarget::New, opened, context).await?;
        if let Some(progress) = &mut progress_output.progress {
            *progress =
                DelegateProgress::new(context.started, runner.conversation.id().to_string());
        }
        let options = workflow_order(&delegation);
        let finished =
            run_attended_workflow(options, &mut runner, |item| progress_output.on_event(item))
                .await?;
        let exit = exit_for_delegation(&finished);
        if print_outcome(&delegation, &finished, exit, &mut runner, context).is_ok() {
            progress_output.print_end(finished.outcome.name(), exit);
            return Ok(exit);
        }
        // stdout may hold half an envelope, so the error goes to stderr.
        let status = format!("workflow status {}", finished.run_id);
        let status = context.command_in_workspace(&status, runner.conversation.workspace());
        let (report, exit) = unread_answer_report(runner.view.has_failed(), &status);
        progress_output.print_refusal(&report, exit);
        Ok(exit)
    })
}

fn workflow_order(delegation: &Delegation) -> RunWorkflowOptions {
    let template = match &delegation.source {
        DelegateSource::Template(name) => Some(name.clone()),
        DelegateSource::Tasks | DelegateSource::Workflow => None,
    };
    RunWorkflowOptions {
        workflow: delegation.workflow.clone(),
        template,
        recorded_run: None,
        time_limit: None,
    }
}

/// Reads and checks the spec; reports all its errors at once.
fn read_spec(
    args: &DelegateArgs,
    workspace: &Path,
    context: &CliContext,
) -> Result<Delegation, Report> {
    let text = read_spec_bytes(&args.spec, context)?;
    let limits = context.load_settings(Some(workspace))?.config.subagents;
    let roles = context.roles(workspace)?;
    let role = |name: &str| roles.find(name).ok();
    let spec_context =
        |arguments| SpecContext { find_role: &role, role_names: roles.names(), limits, arguments };
    let skills = context.skills(workspace)?;
    let templates = |name: &str, arguments| {
        let written = WorkflowSource::find_template(&skills, name)
            .map_err(|error| lost_template_error(name, &error))?;
        written.read(&spec_context(arguments))
    };
    Delegation::read(&text, &spec_context(Map::new()), &templates).map_err(Report::from)
}

/// The spec error for a template that cannot be loaded.
fn lost_template_error(name: &str, error: &TemplateLookupError) -> SpecError {
    let flaw = SpecDiagnostic::new("", error.to_string());
    let known = error.known();
    SpecError::single(if known.is_empty() { flaw } else { flaw.with_accepted(name, known) })
}

/// Refuses to run an untrusted template; planning it is allowed.
fn check_trust(
    delegation: &Delegation,
    workspace: &Path,
    context: &CliContext,
) -> Result<(), Report> {
    let DelegateSource::Template(name) = &delegation.source else { return Ok(()) };
    let written = WorkflowSource::find_template(&context.skills(workspace)?, name);
    written.and_then(|written| written.check_trust()).map_err(Report::from)
}

fn read_spec_bytes(spec: &str, context: &CliContext) -> Result<Vec<u8>, Report> {
    let unreadable = |error: std::io::Error| {
        bad_argument(format!("the spec {spec} cannot be read: {error}")).with_next_actions(vec![
            "name a file, or `-` for standard input; docs/delegate.md describes it".into(),
        ])
    };
    let mut bytes = Vec::new();
    let from: Box<dyn Read> = match (spec, &context.flags.cwd) {
        ("-", _) => Box::new(BlockingStream(std::io::stdin())),
        (path, Some(cwd)) => Box::new(open_spec(&cwd.join(path)).map_err(unreadable)?),
        (path, None) => Box::new(open_spec(Path::new(path)).map_err(unreadable)?),
    };
    from.take(LARGEST_SPEC).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Opens a spec. The pipe that a shell makes for `<(…)` has a writer; a named pipe may have none, and would block.
fn open_spec(path: &Path) -> std::io::Result<File> {
    let is_of_shell = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
    if is_of_shell { File::open(path) } else { open_regular(path) }
}

/// Refuses a spec with children that would write in a read-only run, before anything starts.
fn refuse_writers(delegation: &Delegation, mode: &PermissionMode) -> Result<(), Report> {
    let writers = delegation.writers();
    if *mode != PermissionMode::ReadOnly || writers.is_empty() {
        return Ok(());
    }
    let message =
        format!("{} of the children would write, and this run is read-only", writers.len());
    Err(Report::new(Kind::PermissionDenied, message)
        .with_details(json!({ "children": writers }))
        .with_next_actions(vec![
            "leave out --read-only and read-only roles, or give the children the posture read_only"
                .into(),
        ]))
}

fn print_outcome(
    delegation: &Delegation,
    finished: &FinishedRun,
    exit: Exit,
    runner: &mut SessionRunner<'_>,
    context: &CliContext,
) -> Result<(), StdoutClosed> {
    let workspace = runner.conversation.workspace().to_owned();
    let root = runner.conversation.state_root().clone();
    let session =
        |word: &str, id: &str| context.command_in_workspace(&format!("{word} {id}"), &workspace);
    let run = |id: &str| context.command_in_workspace(&format!("workflow resume {id}"), &workspace);
    let commands = DelegateCommands { session: &session, run: &run };
    let shown = delegate_shown(delegation, finished, &root, exit as u8, &commands);
    let text = if context.flags.json {
        let command = match finished.outcome {
            RunOutcome::Completed => runner.resume_command(),
            _ => run(&finished.run_id),
        };
        let took = context.started.elapsed();
        let mut envelope =
            JsonEnvelope::for_outcome("delegate", exit::exit_status_word(exit), shown.output, took);
        envelope.error = incomplete_report(finished, exit, &command);
        let envelope = envelope.with_child_usage(&finished.usage());
        envelope.with_session(&finished.session_id, command).to_line()
    } else {
        clean(&shown.text)
    };
    runner.view.write_answer(&text)
}

/// The report and exit code when the answer could not be written to stdout; only the Logs have it.
pub fn unread_answer_report(is_lost: bool, status: &str) -> (Report, Exit) {
    let (kind, message, exit) = if is_lost {
        (Kind::WriteFailed, "the answer could not be written", Exit::Error)
    } else {
        (Kind::Interrupted, "stdout was closed", Exit::Interrupted)
    };
    let actions = vec![format!("see the result: {status}")];
    (Report::new(kind, message).with_next_actions(actions), exit)
}

/// The error of an incomplete delegation, with the command that resumes it.
fn incomplete_report(finished: &FinishedRun, exit: Exit, command: &str) -> Option<Report> {
    let count = finished.bundles.len();
    let ready = finished.bundles.iter().filter(|bundle| bundle.dependent_safe).count();
    let (kind, why) = match exit {
        Exit::Answered => return None,
        Exit::TimedOut => (Kind::Timeout, "the time limit was reached: "),
        Exit::Interrupted => (Kind::Interrupted, "the delegation was cancelled: "),
        Exit::NotSignedIn => (Kind::AuthRefused, "the Provider refused the credential: "),
        _ if finished.halt == Some(HaltReason::Budget) => (Kind::BudgetExceeded, BUDGET_USED_UP),
        _ => (Kind::Incomplete, ""),
    };
    let mut actions = vec![format!("run the missing children again: {command}")];
    if exit == Exit::NotSignedIn {
        actions.insert(0, "see which credential is used with `pixir login status`".to_owned());
    }
    let message = format!("{why}{ready} of {count} children are completed");
    Some(Report::new(kind, message).with_next_actions(actions))
}

/// The exit code of a delegation.
fn exit_for_delegation(finished: &FinishedRun) -> Exit {
    let is_refused = |summary: &str| {
        [Kind::AuthRefused, Kind::NotAuthenticated]
            .iter()
            .any(|kind| summary.starts_with(&format!("{}: ", kind.name())))
    };
    match exit_for_workflow(finished) {
        // All children failed because of the credential.
        Exit::NoAnswer if finished.bundles.iter().all(|bundle| is_refused(&bundle.summary)) => {
            Exit::NotSignedIn
        }
        exit => exit,
    }
}

/// Prints progress on stderr with `--progress`, and errors.
struct ProgressOutput {
    output: StdioOutput,
    progress: Option<DelegateProgress>,
}

impl ProgressOutput {
    fn on_event(&mut self, item: &ListenerItem) {
        let Some(event) = workflow_event(item) else { return };
        let line = self.progress.as_mut().and_then(|progress| progress.apply_event(event));
        self.print_line(line);
    }

    fn print_end(&mut self, status: &str, exit: Exit) {
        let line =
            self.progress.as_mut().map(|progress| progress.finished_line(status, exit as u8));
        self.print_line(line);
    }

    fn print_refusal(&mut self, report: &Report, exit: Exit) {
        let error = json!(report);
        let line = match &mut self.progress {
            Some(progress) => progress.refused_line(&error, exit as u8),
            None => clean(&error_text(report)),
        };
        self.print_line(Some(line));
    }

    fn print_line(&mut self, line: Option<String>) {
        let Some(line) = line else { return };
        let is_json = self.progress.is_some();
        let line = if is_json { escape_hidden(&line) } else { line.into() };
        self.output.write_activity(line.as_bytes());
    }
}

fn workflow_event(item: &ListenerItem) -> Option<&WorkflowEvent> {
    let ListenerItem::Event(event) = item else { return None };
    match event.kind() {
        EventKind::Canonical(Canonical::WorkflowEvent(event)) => Some(event),
        EventKind::Canonical(_) | EventKind::Ephemeral(_) => None,
    }
}
