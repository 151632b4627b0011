//! `pixir undo` and `pixir redo`: undo and redo of Turns, with their files.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::changes::child_workspaces;
use super::resume::{refuse_missing_workspace, refuse_read_only};
use crate::agent::child_workspace::ChildWorkspace;
use crate::agent::inspect;
use crate::agent::rewind::{Rewind, RewindContext};
use crate::agent::session::{Session, SessionOptions};
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::base::paths;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::arguments::whole_number_parser;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::terminal::confirm::{Confirmation, ConfirmationPrompt, ConfirmedBy};
use crate::frontends::render::one_line;
use crate::host::snapshot::{
    Direction, FileChange, RestoreConflict, RestoreConflictReason, RestorePlan, SurveyLimits,
};
use crate::host::workspace::Workspace;
use crate::record::event::Seq;
use crate::record::history::History;
use crate::record::log::Log;
use crate::settings::config::Config;

/// Shown files.
const SHOWN_ROWS: usize = 50;

/// Undo the last Turn of a Session, conversation and files
#[derive(Debug, Args)]
#[command(
    long_about = "Undo the last Turn of a Session, conversation and files together.\n\n\
        Files become what they were before the Turn: what Tools wrote, and what commands changed, made or \
        removed, with modes and links. git's own state, ignored files that only commands touched, and files over \
        10 MB are left alone, with a note. What changed between commands, or by another Session, stays. What changed while a \
        command ran may be the work of another program, and a file may have been changed outside this Session since: both are \
        named and nothing happens, unless --force is given. On a terminal you are asked first; elsewhere --yes is \
        needed. The Log keeps everything, and `pixir redo` brings it back.",
    after_long_help = "Examples:\n  pixir undo --dry-run\n  pixir undo --yes\n  pixir undo --turns 3 --force\n  \
        pixir undo 20260721T101112-abcdef"
)]
pub struct UndoArgs {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Undo this many Turns
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number_parser::<i64, u32>(1))]
    turns: u32,
    /// Also undo what changed while a command ran, and overwrite what was changed outside this Session since
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// Redo the Turns that `pixir undo` took back
#[derive(Debug, Args)]
#[command(
    long_about = "Redo the Turns that the last `pixir undo` of a Session took back, conversation and files, as long as \
        no prompt followed. On a terminal you are asked first; elsewhere --yes is needed.",
    after_long_help = "Examples:\n  pixir redo --dry-run\n  pixir redo --yes"
)]
pub struct RedoArgs {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Overwrite what was changed outside this Session since
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

pub fn undo(args: &UndoArgs, context: &CliContext) -> Result<Exit, Report> {
    let count = args.turns as usize;
    let plan_rewind = |history: &History, rewind_context: &RewindContext| {
        Rewind::plan_undo(history, count, rewind_context)
    };
    let UndoArgs { force, confirmation, .. } = args;
    let flags = if count == 1 { String::new() } else { format!(" --turns {count}") };
    let request = RewindRequest {
        force: *force,
        confirmation,
        kind: "undo",
        flags,
        plan_rewind: &plan_rewind,
    };
    run_rewind(args.id.as_deref(), &request, context)
}

pub fn redo(args: &RedoArgs, context: &CliContext) -> Result<Exit, Report> {
    let RedoArgs { force, confirmation, .. } = args;
    let (flags, plan_rewind) = (String::new(), &Rewind::plan_redo);
    let request = RewindRequest { force: *force, confirmation, kind: "redo", flags, plan_rewind };
    run_rewind(args.id.as_deref(), &request, context)
}

type PlanRewind<'a> =
    &'a dyn Fn(&History, &RewindContext) -> Result<Rewind, crate::agent::rewind::RewindError>;

/// Parameters of `undo` or `redo`.
struct RewindRequest<'a> {
    force: bool,
    confirmation: &'a Confirmation,
    /// The name of the command, and of its envelope.
    kind: &'static str,
    /// Flags of the command, for messages that repeat it.
    flags: String,
    plan_rewind: PlanRewind<'a>,
}

impl RewindRequest<'_> {
    /// The command as the user types it, without the program's name.
    fn command(&self, id: &SessionId, context: &CliContext) -> String {
        let force = if self.force { " --force" } else { "" };
        let cwd = context
            .flags
            .cwd
            .as_ref()
            .map(|cwd| format!(" --cwd {}", paths::quote_shell_word(&cwd.to_string_lossy())));
        format!("{} {id}{}{force}{}", self.kind, self.flags, cwd.unwrap_or_default())
    }
}

fn run_rewind(
    id: Option<&str>,
    request: &RewindRequest<'_>,
    context: &CliContext,
) -> Result<Exit, Report> {
    let plan_rewind = request.plan_rewind;
    let (id, root) = context.find_session_or_last(id)?;
    let command = request.command(&id, context);
    refuse_missing_workspace(&id, &root)?;
    if !context.flags.dry_run {
        refuse_read_only(&id, &root)?;
    }
    let config = context.load_settings(Some(root.workspace()))?.config;
    let reading = Log::read(&root, &id)?;
    let read = History::from_events(reading.events);
    let child_workspace = child_workspaces(context, &config).find_for_session(&root, &id, &read);
    let child_workspace = child_workspace?;
    let files = child_workspace.as_ref().map_or(root.workspace(), ChildWorkspace::folder);
    let workspace = Workspace::open(files)?;
    let session_folder = root.session_folder(&id);
    let other_roots = inspect::roots_around(&context.home()?, workspace.root(), &root);
    let limits = SurveyLimits::from_undo_settings(config.undo);
    let rewind_context = RewindContext { workspace, session_folder, limits, other_roots };
    if context.flags.dry_run {
        let rewind = plan_rewind(&read, &rewind_context)?;
        let plan = NumberedRewind::new(&rewind, &read, &id);
        return print_rewind(&plan, &RewindOutcome::DryRun, request.kind, context);
    }
    in_runtime(async {
        let (session, _) = Session::open(&root, &id, session_options(&config))?;
        let history = session.history().await?;
        let rewind = plan_rewind(&history, &rewind_context)?;
        rewind.check_conflicts(request.force, &rewind_context)?;
        let plan = NumberedRewind::new(&rewind, &history, &id);
        let agreed = request.confirmation.ask_user(&plan.question(&command), context)?;
        if agreed == ConfirmedBy::Terminal {
            let now = plan_rewind(&history, &rewind_context)?;
            if now.plan != rewind.plan {
                let message = "files changed while the question was open, so nothing was done";
                return Err(Report::new(Kind::FileChanged, message)
                    .with_next_actions(vec![format!("run `pixir {command}` again")]));
            }
        }
        let restored = rewind.restore(&rewind_context)?;
        if let Some((path, reason)) = restored.failed.first() {
            let count = restored.failed.len();
            let message = format!(
                "{count} of {} could not be changed, such as {}: {reason}; the conversation was left as it is",
                counted(rewind.plan.changes.len() + rewind.plan.conflicts.len(), "file"),
                path.display()
            );
            let action = format!("fix that, then run `pixir {command}` again");
            return Err(Report::new(Kind::WriteFailed, message).with_next_actions(vec![action]));
        }
        session.record(rewind.rewound_event(&restored)).await?;
        let outcome = RewindOutcome::Done { files: restored.files, agreed };
        print_rewind(&plan, &outcome, request.kind, context)
    })
}

/// Options of a Session in which no Turn runs.
pub fn session_options(config: &Config) -> SessionOptions {
    SessionOptions {
        secrets: std::sync::Arc::default(),
        durability: config.durability,
        grace: config.grace.turn,
    }
}

/// A rewind, with the numbers of its Turns and its text for a person.
struct NumberedRewind<'a> {
    rewind: &'a Rewind,
    /// The numbers of its Turns.
    numbers: Vec<usize>,
    /// What happens, in lines.
    text: String,
}

impl<'a> NumberedRewind<'a> {
    fn new(rewind: &'a Rewind, history: &History, id: &SessionId) -> Self {
        let numbers =
            rewind.turns.iter().map(|(seq, _)| history.turn_number(*seq)).collect::<Vec<_>>();
        let text = rewind_text(rewind, &numbers, id);
        Self { rewind, numbers, text }
    }

    fn question<'q>(&'q self, command: &'q str) -> ConfirmationPrompt<'q> {
        let words = match self.rewind.direction {
            Direction::Back => "Take this back?",
            Direction::Forward => "Bring this back?",
        };
        ConfirmationPrompt { plan: &self.text, question: words, command }
    }
}

/// The rewind as text for a person.
fn rewind_text(rewind: &Rewind, numbers: &[usize], id: &SessionId) -> String {
    let what = match rewind.direction {
        Direction::Back => "takes back",
        Direction::Forward => "brings back",
    };
    let mut text = format!("{what} {} of {id}\n", counted(rewind.turns.len(), "Turn"));
    for (number, (_, words)) in numbers.iter().zip(&rewind.turns) {
        writeln!(text, "  Turn {number}: {}", one_line(words, 70)).ok();
    }
    show_files(&mut text, &rewind.plan);
    for note in &rewind.plan.notes {
        writeln!(text, "  note: {note}").ok();
    }
    text
}

/// The files and folders that change, what needs --force first.
fn show_files(text: &mut String, plan: &RestorePlan) {
    let is_of_command =
        |conflict: &&RestoreConflict| conflict.reason == RestoreConflictReason::WhileCommandRan;
    let (of_commands, others): (Vec<&RestoreConflict>, Vec<&RestoreConflict>) =
        plan.conflicts.iter().partition(is_of_command);
    let line = |change: &FileChange, mark: &str| {
        let verb = match (&change.from, &change.to) {
            (_, None) => "remove ",
            (None, Some(_)) => "make   ",
            (Some(_), Some(_)) => "restore",
        };
        format!(" {mark}{verb} {}\n", change.path.display())
    };
    let of_others = others.iter().map(|conflict| line(&conflict.change, "!"));
    let files = of_commands.iter().map(|conflict| line(&conflict.change, "*"));
    let folders = plan.command_folders.iter().map(|path| format!(" *folder  {}\n", path.display()));
    let certain = plan.changes.iter().map(|change| line(change, " "));
    let all: Vec<String> = of_others.chain(files).chain(folders).chain(certain).collect();
    text.extend(all.iter().take(SHOWN_ROWS).map(String::as_str));
    if all.len() > SHOWN_ROWS {
        writeln!(text, "  and {}", counted(all.len() - SHOWN_ROWS, "more file")).ok();
    }
    if all.is_empty() {
        text.push_str("  no file changes\n");
    }
    if !others.is_empty() {
        text.push_str(
            "  ! was, or may have been, changed outside this session; --force overwrites it\n",
        );
    }
    if !of_commands.is_empty() || !plan.command_folders.is_empty() {
        text.push_str(
            "  * changed while a command ran, by it or by another program; --force takes it back\n",
        );
    }
}

/// The result of a rewind.
enum RewindOutcome {
    DryRun,
    Done { files: usize, agreed: ConfirmedBy },
}

fn print_rewind(
    plan: &NumberedRewind<'_>,
    outcome: &RewindOutcome,
    kind: &'static str,
    context: &CliContext,
) -> Result<Exit, Report> {
    // The question has shown the plan already.
    let shown = match outcome {
        RewindOutcome::Done { agreed: ConfirmedBy::Terminal, .. } => "",
        RewindOutcome::DryRun | RewindOutcome::Done { .. } => plan.text.as_str(),
    };
    let result = match outcome {
        RewindOutcome::DryRun => "nothing was changed (dry run)".to_owned(),
        RewindOutcome::Done { files, .. } => format!("{} changed", counted(*files, "file")),
    };
    context.print_result(kind, &format!("{shown}{result}\n"), rewind_json(plan, outcome, kind))
}

fn rewind_json(plan: &NumberedRewind<'_>, outcome: &RewindOutcome, kind: &'static str) -> Value {
    let change = |change: &FileChange| json!({ "path": change.path.to_string_lossy(), "from": change.from, "to": change.to });
    let conflict = |conflict: &RestoreConflict| {
        let mut json = change(&conflict.change);
        json["changed"] = conflict.reason.name().into();
        json
    };
    let files = match outcome {
        RewindOutcome::DryRun => None,
        RewindOutcome::Done { files, .. } => Some(*files),
    };
    let NumberedRewind { rewind, numbers, .. } = plan;
    let turns = numbers.iter().zip(&rewind.turns);
    let turn = |(number, (seq, text)): (&usize, &(Seq, String))| json!({ "number": number, "seq": seq, "text": text });
    json!({
        "direction": kind,
        "dry_run": files.is_none(),
        "turns": turns.map(turn).collect::<Vec<Value>>(),
        "changes": rewind.plan.changes.iter().map(change).collect::<Vec<Value>>(),
        "conflicts": rewind.plan.conflicts.iter().map(conflict).collect::<Vec<Value>>(),
        "command_folders": paths::as_texts(&rewind.plan.command_folders),
        "foreign": paths::as_texts(&rewind.plan.foreign),
        "claimed": rewind.plan.claimed.iter().map(|(path, session)| json!({ "path": path.to_string_lossy(), "session_id": session })).collect::<Vec<Value>>(),
        "notes": rewind.plan.notes,
        "files": files,
    })
}
