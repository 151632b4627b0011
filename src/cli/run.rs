//! `pixir [FLAGS] words…`: a new Session and its first Turn.

use clap::Args;

use super::Context;
use super::drive::{Errand, drive, refuse_command_word};
use super::exit::Exit;
use super::stdin::{self, Prompt};
use crate::error::Report;
use crate::harness::Which;

/// Send a prompt to the model in a new Session
#[derive(Debug, Args)]
pub struct RunArgs {
    /// What to do; `-` reads stdin to its end
    #[arg(value_name = "PROMPT")]
    pub words: Vec<String>,
    /// Words that are prompt whatever they look like
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
