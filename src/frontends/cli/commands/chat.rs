//! `pixir chat`: prompts from an editor on a terminal, in a new Session or in the last one.

use clap::Args;

use super::resume::refuse_missing_workspace;
use crate::agent::harness::SessionTarget;
use crate::agent::inspect;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{RunRequest, run_chat_session};
use crate::frontends::cli::terminal::stdin::{GatheredPrompt, PromptSource};

/// Open a chat with an editor (preview)
#[derive(Debug, Args)]
#[command(
    long_about = "Open a chat with an editor. This is a preview: docs/chat.md says what is missing.\n\n\
        It needs a terminal on stdin, stdout and stderr that shows UTF-8. A new Session begins with the first prompt; \
        /help shows commands and keys, and Ctrl-D leaves.",
    after_long_help = "Examples:\n  pixir chat\n  pixir chat --last"
)]
pub struct ChatArgs {
    /// Continue the last used Session of this Workspace
    #[arg(long)]
    last: bool,
}

pub fn chat(args: &ChatArgs, context: &CliContext) -> Result<Exit, Report> {
    if context.flags.json {
        return Err(refusal(Kind::InvalidArgs, "a chat has no JSON envelope"));
    }
    if !context.has_chat_terminal() {
        let message = "a chat needs a terminal on stdin, stdout and stderr that shows UTF-8";
        return Err(refusal(Kind::NoPrompt, message));
    }
    let (workspace, session, model) = if args.last {
        let (id, root) = context.last_session()?;
        refuse_missing_workspace(&id, &root)?;
        let model = inspect::posture_model(&root, &id);
        (root.workspace().to_owned(), SessionTarget::Resume(id), model)
    } else {
        (context.admitted_workspace()?, SessionTarget::New, None)
    };
    let attachments = context.read_attachments(&workspace)?;
    let opened = context.prepare_turn(&workspace, model.as_deref())?;
    let gathered =
        GatheredPrompt { prompt: PromptSource::Lines, is_piped: false, notices: Vec::new() };
    run_chat_session(RunRequest { workspace, session, gathered, opened, attachments }, context)
}

fn refusal(kind: Kind, message: &str) -> Report {
    Report::new(kind, message).with_next_actions(vec![
        "send one prompt: pixir \"explain this project\"".to_owned(),
        "or run `pixir`, which reads prompts line by line".to_owned(),
    ])
}
