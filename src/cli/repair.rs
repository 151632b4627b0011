//! `pixir repair`: a cleaned copy of a damaged Log; the original stays as it is.

use clap::Args;

use super::chosen::Chosen;
use super::exit::Exit;
use super::resume::refuse_read_only;
use super::{Context, say};
use crate::error::{Kind, Report};
use crate::log;
use crate::render::{Envelope, clean};

/// Write a cleaned copy of a damaged Log, with a report
#[derive(Debug, Args)]
#[command(after_long_help = "The original is never touched; the copy is a Session of its own.\n\n\
    Example:\n  pixir repair 20260721T101112-abcdef")]
pub struct RepairArgs {
    #[command(flatten)]
    session: Chosen,
}

pub fn repair(args: &RepairArgs, context: &Context) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    refuse_read_only(&id, &root)?;
    let repaired = log::repair(&root, &id).map_err(|error| Report::from(&error))?;
    if context.flags.json {
        let output = serde_json::to_value(&repaired)
            .map_err(|error| Report::new(Kind::Internal, error.to_string()))?;
        let envelope = Envelope::success("repair", output, context.started.elapsed());
        let resume = context.resume_command_of(&repaired.session_id, &root);
        say(&envelope.of_session(&repaired.session_id, resume).line());
        return Ok(Exit::Answered);
    }
    say(&clean(&format!(
        "{} was copied to {}: {} Events kept, {} dropped, {} added\ncopy:   {}\nreport: {}\n{}\n",
        repaired.original,
        repaired.session_id,
        repaired.events_kept,
        repaired.events_dropped,
        repaired.events_added,
        repaired.path.display(),
        repaired.report_path.display(),
        context.next_command(&repaired.session_id, &root),
    )));
    Ok(Exit::Answered)
}
