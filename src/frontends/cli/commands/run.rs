//! `pixir [FLAGS] words…`: a new Session and its first Turn.

use clap::Args;

use crate::agent::harness::Which;
use crate::base::error::Report;
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{Errand, drive, refuse_command_word};
use crate::frontends::cli::terminal::stdin;
use crate::frontends::cli::terminal::stdin::Prompt;

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

pub fn run(args: &RunArgs, context: &Context) -> Result<Exit, Report> {
    let gathered = stdin::gather(&args.words, &args.literal)?;
    if gathered.prompt == Prompt::Lines {
        context.refuse_lines()?;
    }
    let workspace = context.workspace()?;
    if args.literal.is_empty() {
        refuse_command_word(&args.words, &context.skills(&workspace)?, "pixir --")?;
    }
    let attachments = context.attachments(&workspace)?;
    let opened = context.open(&workspace, None)?;
    drive(Errand { workspace, session: Which::New, gathered, opened, attachments }, context)
}
