//! `pixir verify`: does a Log prove what it says?

use clap::Args;

use super::exit::Exit;
use super::{Context, bad_argument, say};
use crate::error::{Report, counted};
use crate::id::SessionId;
use crate::log::{self, Break, Verification};
use crate::projection;
use crate::render::Envelope;
use crate::state::StateRoot;

/// Check the proof chain, order, call pairs, blobs and Resources of a Log
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir verify [FLAGS] [<ID>|--all]",
    long_about = "Check the proof chain, order, call pairs, blobs and Resources of a Log.\n\n\
        A changed, dropped, swapped or inserted line is found and named with its line number and byte \
        offset. Lines missing at the very end cannot be detected. Nothing is changed. The exit code is \
        1 when anything does not hold.",
    after_long_help = "Examples:\n  pixir verify 20260721T101112-abcdef\n  pixir verify --all --json"
)]
pub struct VerifyArgs {
    /// The Session to check, by its id or the beginning or end of it; without it, the one of this Workspace that was used last
    #[arg(value_name = "ID", conflicts_with_all = ["all", "last"])]
    id: Option<String>,
    /// Check every Session of this Workspace
    #[arg(long, conflicts_with = "last")]
    all: bool,
    /// Check the Session of this Workspace that was used last, as without an id
    #[arg(long)]
    last: bool,
}

pub fn verify(args: &VerifyArgs, context: &Context) -> Result<Exit, Report> {
    let found: Vec<(SessionId, StateRoot)> = if args.all {
        let here = context.state_here()?;
        let listed = projection::list(&context.state_roots(false)?, usize::MAX);
        context.explain_closed_folders(false, !listed.is_empty())?;
        let placed = |id: SessionId| (id.clone(), here.root_of(&id));
        listed.into_iter().map(|summary| placed(summary.session_id)).collect()
    } else {
        vec![context.session_or_last(args.id.as_deref())?]
    };
    let checked = found
        .iter()
        .map(|(id, root)| log::verify(root, id).map_err(Report::from))
        .collect::<Result<Vec<_>, _>>()?;
    let all_hold = checked.iter().all(|verification| verification.ok);
    if context.flags.json {
        say(&envelope(&checked, args.all, all_hold, context)?.line());
    } else {
        say(&checked.iter().map(text).collect::<String>());
        if checked.is_empty() {
            context.notice("there are no Sessions in this Workspace");
        }
    }
    Ok(if all_hold { Exit::Answered } else { Exit::Error })
}

fn envelope(
    checked: &[Verification],
    all: bool,
    all_hold: bool,
    context: &Context,
) -> Result<Envelope, Report> {
    let value = match checked {
        [only] if !all => serde_json::to_value(only),
        many => serde_json::to_value(many),
    };
    let output = value.map_err(|error| bad_argument(error.to_string()))?;
    let mut envelope = Envelope::success("verify", output, context.started.elapsed());
    if !all_hold {
        let broken = checked.iter().filter(|verification| !verification.ok).count();
        let all = counted(checked.len(), "Log");
        let verb = if broken == 1 { "does" } else { "do" };
        let message = format!("{broken} of {all} {verb} not hold");
        envelope.ok = false;
        envelope.status = "error";
        envelope.error = Some(Report::new(crate::error::Kind::LogDamaged, message));
    }
    Ok(envelope)
}

/// A verification as a person reads it.
pub fn text(verification: &Verification) -> String {
    let Verification { session_id, proven_lines, broken_lines, unproven_lines, .. } = verification;
    let verdict = if verification.ok { "holds" } else { "is broken" };
    let turns = counted(verification.turns, "Turn");
    let lines = counted(verification.lines, "line");
    let broken = match broken_lines {
        0 => String::new(),
        count => format!("{count} not proven, "),
    };
    let mut text =
        vec![format!("{session_id} {verdict}: {lines}, {proven_lines} proven, {broken}{turns}")];
    if *unproven_lines > 0 {
        let lines = counted(*unproven_lines, "line");
        text.push(format!("  {lines} of the first Pixir without a proof"));
    }
    if let Some(open) = &verification.open_turn {
        let calls = counted(open.pending_calls.len(), "call");
        text.push(format!("  Turn {} is open, {calls} without a result", open.number));
    }
    for Break { line, offset, message, kind, .. } in &verification.breaks {
        text.push(format!("  line {line}, offset {offset}: {message} ({kind})"));
    }
    for Break { line, offset, .. } in &verification.repaired {
        text.push(format!(
            "  line {line}, offset {offset}: torn, closed and skipped when the Log was next opened"
        ));
    }
    text.extend(verification.notes.iter().map(|note| format!("  note: {note}")));
    crate::render::clean(&text.join("\n")) + "\n"
}

/// Whether a Log holds, in a few words.
pub fn verdict(root: &StateRoot, id: &SessionId) -> Result<String, Report> {
    log::verify(root, id).map(|checked| text(&checked)).map_err(Report::from)
}
