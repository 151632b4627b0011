//! `pixir delegate`: run the tasks of a spec as Subagents of one Session and print one result.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::Args;
use serde_json::{Map, json};

use super::workflow::{LARGEST, attend_run, exit_of};
use crate::agent::harness::{Which, WorkflowOrder};
use crate::agent::workflow::{
    DelegateCommands, DelegateSource, Delegation, Finished, Flaw, Ground, Halt, LostTemplate,
    Outcome, Progress, SpecError, Written, delegate_plan, delegate_shown,
};
use crate::base::error::{Kind, Report};
use crate::base::files::open_regular;
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{Driver, in_runtime};
use crate::frontends::cli::{Context, bad_argument, say};
use crate::frontends::render::{
    Envelope, Gone, Paper, Signalled, clean, error_text, escape_hidden,
};
use crate::host::rpc::BlockingStream;
use crate::record::event::{Canonical, EventKind, Heard, PermissionMode, WorkflowEvent};

/// Prefix of the error when the budget is used up.
pub const SPENT: &str = "the budget is used up: ";

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

pub fn delegate(args: &DelegateArgs, context: &Context) -> Result<Exit, Report> {
    let mut teller = Teller {
        paper: Paper::standard(Signalled::default()),
        progress: args.progress.then(|| Progress::new(context.started, String::new())),
    };
    // stderr carries JSON lines only.
    let mut quiet = context.clone();
    quiet.flags.quiet |= args.progress;
    let done = hand_over(args, &quiet, &mut teller);
    match done {
        Err(report) if args.progress => {
            let exit = exit::of_report(&report);
            if context.flags.json {
                let took = context.started.elapsed();
                say(&Envelope::failure("delegate", report.clone(), took).line());
            }
            teller.refused(&report, exit);
            Ok(exit)
        }
        done => done,
    }
}

fn hand_over(args: &DelegateArgs, context: &Context, teller: &mut Teller) -> Result<Exit, Report> {
    if context.flags.events {
        return Err(bad_argument("--events goes with a prompt; `delegate` has --progress"));
    }
    if context.flags.output_schema.is_some() {
        let message = "--output-schema goes with a prompt; a task states its own `output`";
        return Err(bad_argument(message));
    }
    let workspace = context.workspace()?;
    let mut delegation = read(args, &workspace, context)?;
    let config = context.settings(Some(&workspace))?.config;
    if let Some(most) = config.budget.timeout {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        let own = &mut delegation.workflow.limits.timeout_ms;
        *own = (*own).min(most);
    }
    let wanted = &config.permission_mode;
    let mode = config.role.map_or_else(|| wanted.clone(), |role| role.limit(wanted));
    refuse_writers(&delegation, &mode)?;
    if context.flags.dry_run {
        let plan = delegate_plan(&delegation, &workspace);
        let exit = context.told("delegate", &plan.text, plan.output)?;
        teller.over("planned", exit);
        return Ok(exit);
    }
    check_trust(&delegation, &workspace, context)?;
    let mut opened = context.open(&workspace, None)?;
    // Already the time limit of the whole delegation, so it must not also limit each child.
    opened.loaded.config.budget.timeout = None;
    in_runtime(async {
        let mut driver = Driver::start(workspace.clone(), Which::New, opened, context).await?;
        if let Some(progress) = &mut teller.progress {
            *progress = Progress::new(context.started, driver.conversation.id().to_string());
        }
        let order = order(&delegation);
        let finished = attend_run(order, &mut driver, |heard| teller.hear(heard)).await?;
        let exit = exit_of_all(&finished);
        if show(&delegation, &finished, exit, &mut driver, context).is_ok() {
            teller.over(finished.outcome.name(), exit);
            return Ok(exit);
        }
        // stdout may hold half an envelope, so the error goes to stderr.
        let status = format!("workflow status {}", finished.run);
        let status = context.command_here(&status, driver.conversation.workspace());
        let (report, exit) = unread(driver.view.has_failed(), &status);
        teller.refused(&report, exit);
        Ok(exit)
    })
}

fn order(delegation: &Delegation) -> WorkflowOrder {
    let template = match &delegation.source {
        DelegateSource::Template(name) => Some(name.clone()),
        DelegateSource::Tasks | DelegateSource::Workflow => None,
    };
    WorkflowOrder { workflow: delegation.workflow.clone(), template, past: None, horizon: None }
}

/// Reads and checks the spec; reports all its errors at once.
fn read(args: &DelegateArgs, workspace: &Path, context: &Context) -> Result<Delegation, Report> {
    let text = bytes(&args.spec, context)?;
    let limits = context.settings(Some(workspace))?.config.subagents;
    let roster = context.roster(workspace)?;
    let role = |name: &str| roster.find(name).ok();
    let ground = |arguments| Ground { role: &role, roles: roster.names(), limits, arguments };
    let skills = context.skills(workspace)?;
    let templates = |name: &str, arguments| {
        let written = Written::template(&skills, name).map_err(|error| lost(name, &error))?;
        written.read(&ground(arguments))
    };
    Delegation::read(&text, &ground(Map::new()), &templates).map_err(Report::from)
}

/// The spec error for a template that cannot be loaded.
fn lost(name: &str, error: &LostTemplate) -> SpecError {
    let flaw = Flaw::new("", error.to_string());
    let known = error.known();
    SpecError::one(if known.is_empty() { flaw } else { flaw.accepting(name, known) })
}

/// Refuses to run an untrusted template; planning it is allowed.
fn check_trust(delegation: &Delegation, workspace: &Path, context: &Context) -> Result<(), Report> {
    let DelegateSource::Template(name) = &delegation.source else { return Ok(()) };
    let written = Written::template(&context.skills(workspace)?, name);
    written.and_then(|written| written.check_trust()).map_err(Report::from)
}

fn bytes(spec: &str, context: &Context) -> Result<Vec<u8>, Report> {
    let unreadable = |error: std::io::Error| {
        bad_argument(format!("the spec {spec} cannot be read: {error}")).with_next_actions(vec![
            "name a file, or `-` for standard input; docs/delegate.md says what stands in it"
                .into(),
        ])
    };
    let mut bytes = Vec::new();
    let from: Box<dyn Read> = match (spec, &context.flags.cwd) {
        ("-", _) => Box::new(BlockingStream(std::io::stdin())),
        (path, Some(cwd)) => Box::new(open_spec(&cwd.join(path)).map_err(unreadable)?),
        (path, None) => Box::new(open_spec(Path::new(path)).map_err(unreadable)?),
    };
    from.take(LARGEST).read_to_end(&mut bytes).map_err(unreadable)?;
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

fn show(
    delegation: &Delegation,
    finished: &Finished,
    exit: Exit,
    driver: &mut Driver<'_>,
    context: &Context,
) -> Result<(), Gone> {
    let workspace = driver.conversation.workspace().to_owned();
    let root = driver.conversation.state_root().clone();
    let session = |word: &str, id: &str| context.command_here(&format!("{word} {id}"), &workspace);
    let run = |id: &str| context.command_here(&format!("workflow resume {id}"), &workspace);
    let commands = DelegateCommands { session: &session, run: &run };
    let shown = delegate_shown(delegation, finished, &root, exit as u8, &commands);
    let text = if context.flags.json {
        let command = match finished.outcome {
            Outcome::Completed => driver.resume_command(),
            _ => run(&finished.run),
        };
        let took = context.started.elapsed();
        let mut envelope = Envelope::outcome("delegate", exit::word_of(exit), shown.output, took);
        envelope.error = error_of(finished, exit, &command);
        let envelope = envelope.having_spent(&finished.usage());
        envelope.of_session(&finished.session_id, command).line()
    } else {
        clean(&shown.text)
    };
    driver.view.answer(&text)
}

/// The report and exit code when the answer could not be written to stdout; only the Logs have it.
pub fn unread(is_lost: bool, status: &str) -> (Report, Exit) {
    let (kind, message, exit) = if is_lost {
        (Kind::WriteFailed, "the answer could not be written", Exit::Error)
    } else {
        (Kind::Interrupted, "stdout was closed", Exit::Interrupted)
    };
    let actions = vec![format!("see the result: {status}")];
    (Report::new(kind, message).with_next_actions(actions), exit)
}

/// The error of an incomplete delegation, with the command that resumes it.
fn error_of(finished: &Finished, exit: Exit, command: &str) -> Option<Report> {
    let count = finished.bundles.len();
    let ready = finished.bundles.iter().filter(|bundle| bundle.dependent_safe).count();
    let (kind, why) = match exit {
        Exit::Answered => return None,
        Exit::TimedOut => (Kind::Timeout, "the time limit was reached: "),
        Exit::Interrupted => (Kind::Interrupted, "the delegation was cancelled: "),
        Exit::NotSignedIn => (Kind::AuthRefused, "the Provider refused the credential: "),
        _ if finished.halt == Some(Halt::Budget) => (Kind::BudgetExceeded, SPENT),
        _ => (Kind::Incomplete, ""),
    };
    let mut actions = vec![format!("go on with what is missing: {command}")];
    if exit == Exit::NotSignedIn {
        actions.insert(0, "see which credential is used with `pixir login status`".to_owned());
    }
    let message = format!("{why}{ready} of {count} children are completed");
    Some(Report::new(kind, message).with_next_actions(actions))
}

/// The exit code of a delegation.
fn exit_of_all(finished: &Finished) -> Exit {
    let is_refused = |summary: &str| {
        [Kind::AuthRefused, Kind::NotAuthenticated]
            .iter()
            .any(|kind| summary.starts_with(&format!("{}: ", kind.name())))
    };
    match exit_of(finished) {
        // All children failed because of the credential.
        Exit::NoAnswer if finished.bundles.iter().all(|bundle| is_refused(&bundle.summary)) => {
            Exit::NotSignedIn
        }
        exit => exit,
    }
}

/// Prints progress on stderr with `--progress`, and errors.
struct Teller {
    paper: Paper,
    progress: Option<Progress>,
}

impl Teller {
    fn hear(&mut self, heard: &Heard) {
        let Some(event) = workflow_event(heard) else { return };
        let line = self.progress.as_mut().and_then(|progress| progress.hear(event));
        self.tell(line);
    }

    fn over(&mut self, status: &str, exit: Exit) {
        let line = self.progress.as_mut().map(|progress| progress.over(status, exit as u8));
        self.tell(line);
    }

    fn refused(&mut self, report: &Report, exit: Exit) {
        let error = json!(report);
        let line = match &mut self.progress {
            Some(progress) => progress.refused(&error, exit as u8),
            None => clean(&error_text(report)),
        };
        self.tell(Some(line));
    }

    fn tell(&mut self, line: Option<String>) {
        let Some(line) = line else { return };
        let is_json = self.progress.is_some();
        let line = if is_json { escape_hidden(&line) } else { line.into() };
        self.paper.activity(line.as_bytes());
    }
}

fn workflow_event(heard: &Heard) -> Option<&WorkflowEvent> {
    let Heard::Event(event) = heard else { return None };
    match event.kind() {
        EventKind::Canonical(Canonical::WorkflowEvent(event)) => Some(event),
        EventKind::Canonical(_) | EventKind::Ephemeral(_) => None,
    }
}
