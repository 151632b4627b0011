//! `pixir repair`: a cleaned copy of a damaged Log; the original stays as it is.

use clap::Args;

use super::resume::refuse_read_only;
use crate::base::error::{Report, counted};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_arg::SessionArg;
use crate::record::log;

/// How many lines are named.
const SHOWN_LINES: usize = 10;

/// Write a cleaned copy of a damaged Log, with a report
#[derive(Debug, Args)]
#[command(
    after_long_help = "The original is never touched; the copy is a separate Session. A line \
    that can be read and was changed is kept, and named.\n\n\
    Example:\n  pixir repair 20260721T101112-abcdef"
)]
pub struct RepairArgs {
    #[command(flatten)]
    session: SessionArg,
}

pub fn repair(args: &RepairArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    refuse_read_only(&id, &root)?;
    let repaired = log::repair_log(&root, &id)?;
    let copy = &repaired.session_id;
    let envelope = context.success_envelope("repair", &repaired)?;
    let envelope = envelope.with_session(copy, context.resume_command_of(copy, &root));
    if context.flags.json {
        return Ok(context.print_envelope(&envelope, ""));
    }
    let words = format!(
        "{} was copied to {}: {} kept, {} dropped, {} added\n{}copy:   {}\nreport: {}\n{}\n",
        repaired.original,
        copy,
        counted(repaired.events_kept, "Event"),
        repaired.events_dropped,
        repaired.events_added,
        unproven_lines_text(&repaired.unproven_lines_kept),
        repaired.path.display(),
        repaired.report_path.display(),
        context.next_command(copy, &root),
    );
    Ok(context.print_envelope(&envelope, &words))
}

/// Says which lines were kept although they may have been changed.
fn unproven_lines_text(lines: &[u64]) -> String {
    let named: Vec<String> = lines.iter().take(SHOWN_LINES).map(u64::to_string).collect();
    let more = match lines.len().saturating_sub(SHOWN_LINES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = format!("{}{more}", named.join(", "));
    match lines.len() {
        0 => String::new(),
        1 => format!(
            "kept:   line {named}, although its proof does not hold: it may have been changed\n"
        ),
        _ => format!(
            "kept:   lines {named}, although their proof does not hold: they may have been changed\n"
        ),
    }
}
