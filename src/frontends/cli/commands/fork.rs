//! `pixir fork`: a new Session that branches off another one at some point.

use clap::Args;

use super::changes::annexes;
use crate::agent::fork::{Cut, check_place, fork};
use crate::base::error::{Report, counted};
use crate::frontends::cli::Context;
use crate::frontends::cli::arguments::whole;
use crate::frontends::cli::chosen::Chosen;
use crate::frontends::cli::exit::Exit;

/// Branch off a new Session from another one
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir fork [FLAGS] [ID] [--at TURN | --to-seq N] [--summarize]",
    long_about = "Branch off a new Session from another one, at its end or at an earlier point.\n\n\
        The new Session has the conversation up to that point, and is independent from then on. The other one is \
        not changed, and may be open meanwhile. Files stay as they are: to have those of an earlier Turn as well, \
        take it back with `pixir undo`.",
    after_long_help = "Examples:\n  pixir fork 20260721T101112-abcdef\n  \
        pixir fork 20260721T101112-abcdef --at 3 --summarize\n  pixir fork 20260721T101112-abcdef --dry-run --json"
)]
pub struct ForkArgs {
    #[command(flatten)]
    session: Chosen,
    /// Copy this many Turns
    #[arg(long, value_name = "TURN", conflicts_with = "to_seq")]
    #[arg(value_parser = whole::<usize, usize>(0))]
    at: Option<usize>,
    /// Copy everything up to this seq of the Log
    #[arg(long, value_name = "N", value_parser = whole::<u64, u64>(0))]
    to_seq: Option<u64>,
    /// Add a summary of what happened after that point
    #[arg(long)]
    summarize: bool,
}

pub fn run(args: &ForkArgs, context: &Context) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    let cut = match (args.at, args.to_seq) {
        (Some(turn), _) => Cut::AfterTurn(turn),
        (None, Some(seq)) => Cut::At(seq),
        (None, None) => Cut::End,
    };
    let annexes = annexes(context, &context.user_settings()?);
    check_place(&annexes, &root, &id)?;
    let to = root.for_fork(&context.home()?);
    let forked = fork(&root, &to, &id, cut, args.summarize, context.flags.dry_run)?;
    let mut envelope = context.envelope("fork", &forked)?;
    if let Some(id) = &forked.session_id {
        envelope = envelope.of_session(id, context.resume_command_of(id, &root));
    }
    if context.flags.json {
        return Ok(context.answer(&envelope, ""));
    }
    let end = args.to_seq.map(|seq| format!(", up to Event {seq}")).unwrap_or_default();
    let what = format!("{} of {id}{end}", counted(forked.turns, "Turn"));
    let told = match &forked.session_id {
        Some(child) => {
            let next = context.next_command(child, &root);
            format!("{child} branches off with {what}\n{next}\n")
        }
        None => format!("a fork would copy {what}\nnothing was made (dry run)\n"),
    };
    let exit = context.answer(&envelope, &told);
    if let Some(problem) = root.problem() {
        let place = to.folder().path();
        let verb = if context.flags.dry_run { "would be" } else { "is" };
        context.notice(&format!(
            "{problem}: the fork {verb} kept in {}, and its earlier Turns cannot be taken back",
            place.display()
        ));
    }
    if args.summarize && !forked.is_summarized {
        context.notice("nothing happened after that point, so there is nothing to summarize");
    }
    Ok(exit)
}
