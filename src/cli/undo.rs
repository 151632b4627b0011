//! `pixir undo` and `pixir redo`: Turns taken back and brought back, with their files.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::changes::annexes;
use super::drive::in_runtime;
use super::exit::Exit;
use super::keyboard::{forget_typed, read_line};
use super::resume::{last, refuse_gone, refuse_read_only, unknown};
use super::{Context, say};
use crate::annex::Annex;
use crate::config::Config;
use crate::error::{Kind, Report};
use crate::history::History;
use crate::id::SessionId;
use crate::log::Log;
use crate::paths;
use crate::projection;
use crate::render::{Envelope, Paper, Signalled, clean, one_line};
use crate::rewind::{Rewind, Site};
use crate::session::{Manners, Session};
use crate::snapshot::{Change, Conflict, Direction, Limits, Plan, Reason};
use crate::workspace::Workspace;

/// How many files a person is shown.
const SHOWN: usize = 50;

/// Take back the last Turn of a Session, conversation and files
#[derive(Debug, Args)]
#[command(
    long_about = "Take back the last Turn of a Session, conversation and files together.\n\n\
        Files become what they were before the Turn: what Tools wrote, and what commands changed, made or \
        removed, with modes and links. git's own state, ignored files that only commands touched, and files over \
        10 MB are left alone, which is said. What changed between commands, or by another Session, stays. What changed while a \
        command ran may be the work of another program, and a file may have been changed outside this session since: both are \
        named and nothing happens, unless --force is given. The Log keeps everything, and `pixir redo` brings it back.",
    after_long_help = "Examples:\n  pixir undo --dry-run\n  pixir undo --force\n  pixir undo --turns 3\n  \
        pixir undo 20260721T101112-abcdef"
)]
pub struct UndoArgs {
    /// The Session; without it, the one of this Workspace that was used last
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Take back this many Turns
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Take back also what changed while a command ran, and overwrite what was changed outside this session since
    #[arg(long)]
    force: bool,
}

/// Bring back what `undo` took back
#[derive(Debug, Args)]
#[command(
    long_about = "Bring back what the last `pixir undo` of a Session took back, conversation and files, as long as \
        nothing was said since.",
    after_long_help = "Example:\n  pixir redo"
)]
pub struct RedoArgs {
    /// The Session; without it, the one of this Workspace that was used last
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Overwrite what was changed outside this session since
    #[arg(long)]
    force: bool,
}

pub fn undo(args: &UndoArgs, context: &Context) -> Result<Exit, Report> {
    let count = args.turns as usize;
    let look = |history: &History, site: &Site| Rewind::back(history, count, site);
    rewind(args.id.as_deref(), args.force, context, "undo", &look)
}

pub fn redo(args: &RedoArgs, context: &Context) -> Result<Exit, Report> {
    rewind(args.id.as_deref(), args.force, context, "redo", &Rewind::forward)
}

type Look<'a> = &'a dyn Fn(&History, &Site) -> Result<Rewind, crate::rewind::RewindError>;

fn rewind(
    id: Option<&str>,
    force: bool,
    context: &Context,
    kind: &'static str,
    look: Look<'_>,
) -> Result<Exit, Report> {
    let id = match id {
        Some(id) => SessionId::parse(id).map_err(|error| Report::from(&error))?,
        None => last(context)?,
    };
    let root = context.state_of(&id)?;
    if !root.has_log(&id) {
        return Err(unknown(&id));
    }
    refuse_gone(&id, &root)?;
    if !context.flags.dry_run {
        refuse_read_only(&id, &root)?;
    }
    let config = context.settings(Some(root.workspace()))?.config;
    let reading = Log::read(&root, &id).map_err(|error| Report::from(&error))?;
    let read = History::from_events(reading.events);
    let annex = annexes(context, &config).place(&root, &id, &read);
    let annex = annex.map_err(|error| Report::from(&error))?;
    let files = annex.as_ref().map_or(root.workspace(), Annex::folder);
    let workspace = Workspace::open(files).map_err(|error| Report::from(&error))?;
    let session_folder = root.session_folder(&id);
    let neighbours = projection::roots_around(&context.home()?, workspace.root(), &root);
    let limits = Limits::of(config.undo);
    let site = Site { workspace, session_folder, limits, neighbours };
    if context.flags.dry_run {
        let rewind = look(&read, &site).map_err(|error| Report::from(&error))?;
        return Ok(told(&rewind, None, &id, kind, context));
    }
    in_runtime(async {
        let (session, _) =
            Session::open(&root, &id, manners(&config)).map_err(|error| Report::from(&error))?;
        let history = session.history().await.map_err(|error| Report::from(&error))?;
        let rewind = look(&history, &site).map_err(|error| Report::from(&error))?;
        rewind.check(force, &site).map_err(|error| Report::from(&error))?;
        if context.can_ask() && !context.flags.json {
            if !agreed(&rewind, &id) {
                return Err(Report::new(Kind::PermissionDenied, "nothing was changed"));
            }
            let now = look(&history, &site).map_err(|error| Report::from(&error))?;
            if now.plan != rewind.plan {
                let message = "files changed while the question was open, so nothing was done";
                return Err(Report::new(Kind::FileChanged, message)
                    .with_next_actions(vec![format!("run `pixir {kind}` again")]));
            }
        }
        let restored = rewind.restore(&site).map_err(|error| Report::from(&error))?;
        if let Some((path, reason)) = restored.failed.first() {
            let count = restored.failed.len();
            let message = format!(
                "{count} of {} files could not be changed, such as {}: {reason}; the conversation was left as it is",
                rewind.plan.changes.len() + rewind.plan.conflicts.len(),
                path.display()
            );
            return Err(Report::new(Kind::WriteFailed, message)
                .with_next_actions(vec![format!("mend that, then run `pixir {kind}` again")]));
        }
        let recorded = session.record(rewind.fact(&restored)).await;
        recorded.map_err(|error| Report::from(&error))?;
        Ok(told(&rewind, Some(restored.files), &id, kind, context))
    })
}

/// How a Session behaves in which no Turn runs.
pub fn manners(config: &Config) -> Manners {
    Manners {
        secrets: std::sync::Arc::default(),
        durability: config.durability,
        grace: config.grace.turn,
    }
}

/// Shows what would happen, and asks; anything but a yes is a no.
fn agreed(rewind: &Rewind, id: &SessionId) -> bool {
    let verb = match rewind.direction {
        Direction::Back => "Take this back?",
        Direction::Forward => "Bring this back?",
    };
    let text = format!("{}  {verb} [y] yes  [n] no\n  › ", preview(rewind, id));
    forget_typed();
    Paper::standard(Signalled::default()).activity(clean(&text).as_bytes());
    matches!(read_line().unwrap_or_default().to_lowercase().as_str(), "y" | "yes")
}

/// What happens, as a person reads it.
fn preview(rewind: &Rewind, id: &SessionId) -> String {
    let what = match rewind.direction {
        Direction::Back => "takes back",
        Direction::Forward => "brings back",
    };
    let count = rewind.turns.len();
    let mut text = format!("{what} {count} Turn{} of {id}\n", if count == 1 { "" } else { "s" });
    for (seq, words) in &rewind.turns {
        writeln!(text, "  #{seq} {}", one_line(words, 70)).ok();
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
        writeln!(text, "  and {} more files", all.len() - SHOWN).ok();
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

fn told(
    rewind: &Rewind,
    done: Option<usize>,
    id: &SessionId,
    kind: &'static str,
    context: &Context,
) -> Exit {
    if context.flags.json {
        let change = |change: &Change| json!({ "path": change.path.to_string_lossy(), "from": change.from, "to": change.to });
        let conflict = |conflict: &Conflict| {
            let mut told = change(&conflict.change);
            told["changed"] = conflict.reason.name().into();
            told
        };
        let output = json!({
            "direction": kind,
            "dry_run": done.is_none(),
            "turns": rewind.turns.iter().map(|(seq, text)| json!({ "seq": seq, "text": text })).collect::<Vec<Value>>(),
            "changes": rewind.plan.changes.iter().map(change).collect::<Vec<Value>>(),
            "conflicts": rewind.plan.conflicts.iter().map(conflict).collect::<Vec<Value>>(),
            "command_folders": paths::as_texts(&rewind.plan.command_folders),
            "foreign": paths::as_texts(&rewind.plan.foreign),
            "claimed": rewind.plan.claimed.iter().map(|(path, session)| json!({ "path": path.to_string_lossy(), "session_id": session })).collect::<Vec<Value>>(),
            "notes": rewind.plan.notes,
            "files": done,
        });
        let envelope = Envelope::success(kind, output, context.started.elapsed());
        say(&envelope.line());
        return Exit::Answered;
    }
    let mut text = preview(rewind, id);
    match done {
        None => text.push_str("nothing was changed (dry run)\n"),
        Some(1) => text.push_str("1 file changed\n"),
        Some(files) => drop(writeln!(text, "{files} files changed")),
    }
    say(&clean(&text));
    Exit::Answered
}
