//! `pixir undo` and `pixir redo`: Turns taken back and brought back, with their files.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::changes::annexes;
use super::resume::{refuse_gone, refuse_read_only};
use crate::agent::child_workspace::Annex;
use crate::agent::inspect;
use crate::agent::rewind::{Rewind, Site};
use crate::agent::session::{Manners, Session};
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::base::paths;
use crate::frontends::cli::Context;
use crate::frontends::cli::arguments::whole;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::terminal::confirm::{Agreed, Confirmation, Question};
use crate::frontends::render::one_line;
use crate::host::snapshot::{Change, Conflict, Direction, Limits, Plan, Reason};
use crate::host::workspace::Workspace;
use crate::record::event::Seq;
use crate::record::history::History;
use crate::record::log::Log;
use crate::settings::config::Config;

/// Shown files.
const SHOWN: usize = 50;

/// Take back the last Turn of a Session, conversation and files
#[derive(Debug, Args)]
#[command(
    long_about = "Take back the last Turn of a Session, conversation and files together.\n\n\
        Files become what they were before the Turn: what Tools wrote, and what commands changed, made or \
        removed, with modes and links. git's own state, ignored files that only commands touched, and files over \
        10 MB are left alone, with a note. What changed between commands, or by another Session, stays. What changed while a \
        command ran may be the work of another program, and a file may have been changed outside this session since: both are \
        named and nothing happens, unless --force is given. On a terminal you are asked first; elsewhere --yes is \
        needed. The Log keeps everything, and `pixir redo` brings it back.",
    after_long_help = "Examples:\n  pixir undo --dry-run\n  pixir undo --yes\n  pixir undo --turns 3 --force\n  \
        pixir undo 20260721T101112-abcdef"
)]
pub struct UndoArgs {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Take back this many Turns
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<i64, u32>(1))]
    turns: u32,
    /// Take back also what changed while a command ran, and overwrite what was changed outside this session since
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// Bring back what `undo` took back
#[derive(Debug, Args)]
#[command(
    long_about = "Bring back what the last `pixir undo` of a Session took back, conversation and files, as long as \
        nothing was said since. On a terminal you are asked first; elsewhere --yes is needed.",
    after_long_help = "Examples:\n  pixir redo --dry-run\n  pixir redo --yes"
)]
pub struct RedoArgs {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Overwrite what was changed outside this session since
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

pub fn undo(args: &UndoArgs, context: &Context) -> Result<Exit, Report> {
    let count = args.turns as usize;
    let look = |history: &History, site: &Site| Rewind::back(history, count, site);
    let UndoArgs { force, confirmation, .. } = args;
    let flags = if count == 1 { String::new() } else { format!(" --turns {count}") };
    let order = RewindOrder { force: *force, confirmation, kind: "undo", flags, look: &look };
    rewind(args.id.as_deref(), &order, context)
}

pub fn redo(args: &RedoArgs, context: &Context) -> Result<Exit, Report> {
    let RedoArgs { force, confirmation, .. } = args;
    let (flags, look) = (String::new(), &Rewind::forward);
    let order = RewindOrder { force: *force, confirmation, kind: "redo", flags, look };
    rewind(args.id.as_deref(), &order, context)
}

type Look<'a> = &'a dyn Fn(&History, &Site) -> Result<Rewind, crate::agent::rewind::RewindError>;

/// Parameters of `undo` or `redo`.
struct RewindOrder<'a> {
    force: bool,
    confirmation: &'a Confirmation,
    /// The name of the command, and of its envelope.
    kind: &'static str,
    /// Flags that say what is meant, for commands that messages name.
    flags: String,
    look: Look<'a>,
}

impl RewindOrder<'_> {
    /// The command as the user types it, without the program's name.
    fn command(&self, id: &SessionId, context: &Context) -> String {
        let force = if self.force { " --force" } else { "" };
        let cwd = context
            .flags
            .cwd
            .as_ref()
            .map(|cwd| format!(" --cwd {}", paths::shell_word(&cwd.to_string_lossy())));
        format!("{} {id}{}{force}{}", self.kind, self.flags, cwd.unwrap_or_default())
    }
}

fn rewind(id: Option<&str>, order: &RewindOrder<'_>, context: &Context) -> Result<Exit, Report> {
    let look = order.look;
    let (id, root) = context.session_or_last(id)?;
    let command = order.command(&id, context);
    refuse_gone(&id, &root)?;
    if !context.flags.dry_run {
        refuse_read_only(&id, &root)?;
    }
    let config = context.settings(Some(root.workspace()))?.config;
    let reading = Log::read(&root, &id)?;
    let read = History::from_events(reading.events);
    let annex = annexes(context, &config).place(&root, &id, &read);
    let annex = annex?;
    let files = annex.as_ref().map_or(root.workspace(), Annex::folder);
    let workspace = Workspace::open(files)?;
    let session_folder = root.session_folder(&id);
    let neighbours = inspect::roots_around(&context.home()?, workspace.root(), &root);
    let limits = Limits::of(config.undo);
    let site = Site { workspace, session_folder, limits, neighbours };
    if context.flags.dry_run {
        let rewind = look(&read, &site)?;
        let plan = NumberedRewind::new(&rewind, &read, &id);
        return told(&plan, &Outcome::DryRun, order.kind, context);
    }
    in_runtime(async {
        let (session, _) = Session::open(&root, &id, manners(&config))?;
        let history = session.history().await?;
        let rewind = look(&history, &site)?;
        rewind.check(order.force, &site)?;
        let plan = NumberedRewind::new(&rewind, &history, &id);
        let agreed = order.confirmation.ask(&plan.question(&command), context)?;
        if agreed == Agreed::OnTerminal {
            let now = look(&history, &site)?;
            if now.plan != rewind.plan {
                let message = "files changed while the question was open, so nothing was done";
                return Err(Report::new(Kind::FileChanged, message)
                    .with_next_actions(vec![format!("run `pixir {command}` again")]));
            }
        }
        let restored = rewind.restore(&site)?;
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
        session.record(rewind.fact(&restored)).await?;
        let outcome = Outcome::Done { files: restored.files, agreed };
        told(&plan, &outcome, order.kind, context)
    })
}

/// Options of a Session in which no Turn runs.
pub fn manners(config: &Config) -> Manners {
    Manners {
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
        let text = preview(rewind, &numbers, id);
        Self { rewind, numbers, text }
    }

    fn question<'q>(&'q self, command: &'q str) -> Question<'q> {
        let words = match self.rewind.direction {
            Direction::Back => "Take this back?",
            Direction::Forward => "Bring this back?",
        };
        Question { plan: &self.text, words, command }
    }
}

/// The rewind as text for a person.
fn preview(rewind: &Rewind, numbers: &[usize], id: &SessionId) -> String {
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
fn show_files(text: &mut String, plan: &Plan) {
    let is_of_command = |conflict: &&Conflict| conflict.reason == Reason::WhileCommandRan;
    let (of_commands, others): (Vec<&Conflict>, Vec<&Conflict>) =
        plan.conflicts.iter().partition(is_of_command);
    let line = |change: &Change, mark: &str| {
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
    text.extend(all.iter().take(SHOWN).map(String::as_str));
    if all.len() > SHOWN {
        writeln!(text, "  and {}", counted(all.len() - SHOWN, "more file")).ok();
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
enum Outcome {
    DryRun,
    Done { files: usize, agreed: Agreed },
}

fn told(
    plan: &NumberedRewind<'_>,
    outcome: &Outcome,
    kind: &'static str,
    context: &Context,
) -> Result<Exit, Report> {
    // The question has shown the plan already.
    let shown = match outcome {
        Outcome::Done { agreed: Agreed::OnTerminal, .. } => "",
        Outcome::DryRun | Outcome::Done { .. } => plan.text.as_str(),
    };
    let result = match outcome {
        Outcome::DryRun => "nothing was changed (dry run)".to_owned(),
        Outcome::Done { files, .. } => format!("{} changed", counted(*files, "file")),
    };
    context.told(kind, &format!("{shown}{result}\n"), output(plan, outcome, kind))
}

fn output(plan: &NumberedRewind<'_>, outcome: &Outcome, kind: &'static str) -> Value {
    let change = |change: &Change| json!({ "path": change.path.to_string_lossy(), "from": change.from, "to": change.to });
    let conflict = |conflict: &Conflict| {
        let mut told = change(&conflict.change);
        told["changed"] = conflict.reason.name().into();
        told
    };
    let files = match outcome {
        Outcome::DryRun => None,
        Outcome::Done { files, .. } => Some(*files),
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
