//! `pixir verify`: check the proof chain and the consistency of Logs.

use clap::Args;

use crate::agent::inspect;
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::clean;
use crate::record::log;
use crate::record::log::{LogBreak, Verification};
use crate::record::state_dir::StateRoot;

/// Check the proof chain, order, call pairs, blobs and Resources of a Log
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir verify [OPTIONS] [<ID>|--all]",
    long_about = "Check the proof chain, order, call pairs, blobs and Resources of a Log.\n\n\
        A changed, dropped, swapped or inserted line is found and named with its line number and byte \
        offset. Lines missing at the very end cannot be detected. Nothing is changed. The exit code is \
        1 when anything does not hold.",
    after_long_help = "Examples:\n  pixir verify 20260721T101112-abcdef\n  pixir verify --all --json"
)]
pub struct VerifyArgs {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace
    #[arg(value_name = "ID", conflicts_with_all = ["all", "last"])]
    id: Option<String>,
    /// Check every Session of this Workspace
    #[arg(long, conflicts_with = "last")]
    all: bool,
    /// Check the last used Session of this Workspace, which is the default
    #[arg(long)]
    last: bool,
}

pub fn verify(args: &VerifyArgs, context: &CliContext) -> Result<Exit, Report> {
    let found: Vec<(SessionId, StateRoot)> = if args.all {
        let here = context.current_state()?;
        let listed = inspect::list_sessions(&context.state_roots(false)?, usize::MAX);
        context.explain_closed_folders(false, !listed.is_empty())?;
        let placed = |id: SessionId| (id.clone(), here.root_for_session(&id));
        listed.into_iter().map(|summary| placed(summary.session_id)).collect()
    } else {
        vec![context.find_session_or_last(args.id.as_deref())?]
    };
    let checked = found
        .iter()
        .map(|(id, root)| log::verify_log(root, id).map_err(Report::from))
        .collect::<Result<Vec<_>, _>>()?;
    let envelope = match checked.as_slice() {
        [only] if !args.all => context.success_envelope("verify", only)?,
        many => context.success_envelope("verify", many)?,
    };
    let words = checked.iter().map(verification_text).collect::<String>();
    let exit = context.print_envelope(&envelope.with_error(broken_logs_report(&checked)), &words);
    if checked.is_empty() && !context.flags.json {
        context.print_notice("there are no Sessions in this Workspace");
    }
    Ok(exit)
}

/// The error if any Log is broken.
fn broken_logs_report(checked: &[Verification]) -> Option<Report> {
    let broken = checked.iter().filter(|verification| !verification.ok).count();
    let all = counted(checked.len(), "Log");
    let verb = if broken == 1 { "does" } else { "do" };
    let message = format!("{broken} of {all} {verb} not hold");
    (broken > 0).then(|| Report::new(Kind::LogDamaged, message))
}

/// A verification as a person reads it.
pub fn verification_text(verification: &Verification) -> String {
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
    for LogBreak { line, offset, message, kind, .. } in &verification.breaks {
        text.push(format!("  line {line}, offset {offset}: {message} ({kind})"));
    }
    for LogBreak { line, offset, .. } in &verification.repaired {
        text.push(format!(
            "  line {line}, offset {offset}: torn, closed and skipped when the Log was next opened"
        ));
    }
    text.extend(verification.notes.iter().map(|note| format!("  note: {note}")));
    clean(&text.join("\n")) + "\n"
}

/// Verifies a Log; gives the result as text.
pub fn verdict(root: &StateRoot, id: &SessionId) -> Result<String, Report> {
    log::verify_log(root, id).map(|checked| verification_text(&checked)).map_err(Report::from)
}
