//! `pixir fork`: a new Session that branches off another one at some point.

use clap::Args;

use super::changes::child_workspaces;
use crate::agent::fork::{self, ForkPoint, refuse_child_workspace};
use crate::base::error::{Report, counted};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::arguments::whole_number_parser;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_arg::SessionArg;

/// Branch off a new Session from another one
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir fork [OPTIONS] [ID] [--at TURN | --to-seq N] [--summarize]",
    long_about = "Branch off a new Session from another one, at its end or at an earlier point.\n\n\
        The new Session has the conversation up to that point, and is independent from then on. The other one is \
        not changed, and may be open meanwhile. Files stay as they are: to have those of an earlier Turn as well, \
        take it back with `pixir undo`.",
    after_long_help = "Examples:\n  pixir fork 20260721T101112-abcdef\n  \
        pixir fork 20260721T101112-abcdef --at 3 --summarize\n  pixir fork 20260721T101112-abcdef --dry-run --json"
)]
pub struct ForkArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Copy this many Turns
    #[arg(long, value_name = "TURN", conflicts_with = "to_seq")]
    #[arg(value_parser = whole_number_parser::<usize, usize>(0))]
    at: Option<usize>,
    /// Copy everything up to this seq of the Log
    #[arg(long, value_name = "N", value_parser = whole_number_parser::<u64, u64>(0))]
    to_seq: Option<u64>,
    /// Add a summary of what happened after that point
    #[arg(long)]
    summarize: bool,
}

pub fn fork_session(args: &ForkArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    let cut = match (args.at, args.to_seq) {
        (Some(turn), _) => ForkPoint::AfterTurn(turn),
        (None, Some(seq)) => ForkPoint::AtSeq(seq),
        (None, None) => ForkPoint::End,
    };
    let child_workspaces = child_workspaces(context, &context.load_user_settings()?);
    refuse_child_workspace(&child_workspaces, &root, &id)?;
    let to = root.for_fork(&context.home()?);
    let forked = fork::fork_session(&root, &to, &id, cut, args.summarize, context.flags.dry_run)?;
    let mut envelope = context.success_envelope("fork", &forked)?;
    if let Some(id) = &forked.session_id {
        envelope = envelope.with_session(id, context.resume_command_of(id, &root));
    }
    if context.flags.json {
        return Ok(context.print_envelope(&envelope, ""));
    }
    let end = args.to_seq.map(|seq| format!(", up to Event {seq}")).unwrap_or_default();
    let what = format!("{} of {id}{end}", counted(forked.turns, "Turn"));
    let text = match &forked.session_id {
        Some(child) => {
            let next = context.next_command(child, &root);
            format!("{child} branches off with {what}\n{next}\n")
        }
        None => format!("a fork would copy {what}\nnothing was made (dry run)\n"),
    };
    let exit = context.print_envelope(&envelope, &text);
    if let Some(problem) = root.problem() {
        let place = to.folder().path();
        let verb = if context.flags.dry_run { "would be" } else { "is" };
        context.print_notice(&format!(
            "{problem}: the fork {verb} kept in {}, and its earlier Turns cannot be taken back",
            place.display()
        ));
    }
    if args.summarize && !forked.is_summarized {
        context.print_notice("nothing happened after that point, so there is nothing to summarize");
    }
    Ok(exit)
}
