//! `pixir [OPTIONS] words…`: a new Session and its first Turn.

use clap::Args;

use crate::agent::harness::SessionTarget;
use crate::base::error::Report;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{RunRequest, refuse_command_word, run_session};
use crate::frontends::cli::terminal::stdin;
use crate::frontends::cli::terminal::stdin::PromptSource;

/// Send a prompt to the model in a new Session
#[derive(Debug, Args)]
pub struct RunArgs {
    /// What to do; `-` reads stdin to its end
    #[arg(value_name = "PROMPT")]
    pub words: Vec<String>,
    /// Words of the prompt, even if they look like flags
    #[arg(last = true, value_name = "PROMPT")]
    pub literal: Vec<String>,
}

pub fn run(args: &RunArgs, context: &CliContext) -> Result<Exit, Report> {
    let gathered = stdin::gather_prompt(&args.words, &args.literal)?;
    if gathered.prompt == PromptSource::Lines {
        context.refuse_json_in_line_mode()?;
    }
    let workspace = context.admitted_workspace()?;
    if args.literal.is_empty() {
        refuse_command_word(&args.words, &context.skills(&workspace)?, "pixir --")?;
    }
    let attachments = context.read_attachments(&workspace)?;
    let opened = context.prepare_turn(&workspace, None)?;
    run_session(
        RunRequest { workspace, session: SessionTarget::New, gathered, opened, attachments },
        context,
    )
}
