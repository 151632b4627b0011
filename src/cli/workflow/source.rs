//! What is to be run: a file, standard input, or a template of a skill.

use std::path::Path;

use clap::Args;

use crate::cli::{Context, bad_argument};
use crate::error::Report;
use crate::workflow::{Ground, Workflow};

#[derive(Debug, Args)]
pub struct SourceArgs {
    /// A file
    #[arg(value_name = "FILE")]
    pub source: String,
}

pub struct Source {
    pub workflow: Workflow,
    pub template: Option<String>,
}

pub fn read(
    args: &SourceArgs,
    workspace: &Path,
    context: &Context,
    _: bool,
) -> Result<Source, Report> {
    let text = std::fs::read(workspace.join(&args.source))
        .map_err(|error| bad_argument(error.to_string()))?;
    let limits = context.settings(Some(workspace))?.config.subagents;
    let ground = Ground::of_this_build(limits);
    let workflow = Workflow::read(text, &ground).map_err(|error| Report::from(&error))?;
    Ok(Source { workflow, template: None })
}
