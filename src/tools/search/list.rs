//! `list` tool: lists the entries of a folder.

use std::path::PathBuf;

use ignore::overrides::Override;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::base::tool_error::ToolError;
use crate::tools::search;
use crate::tools::search::{First, NameSearch, Sort, Stop, visible, while_wanted};
use crate::tools::tool::{Plan, Tool, ToolContext, ToolOutput};

/// The `list` tool.
#[derive(Debug)]
pub struct List;

/// The arguments of `list`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    path: Option<PathBuf>,
    /// Default 1.
    #[schemars(with = "Option<i64>")]
    depth: Option<u64>,
    /// Skip nothing.
    #[serde(default)]
    all: bool,
    /// From 1.
    #[schemars(with = "Option<i64>")]
    offset: Option<u64>,
    /// Default 200.
    #[schemars(with = "Option<i64>")]
    limit: Option<u64>,
}

impl Tool for List {
    type Args = Args;
    const NAME: &'static str = "list";
    const MANUAL: &'static str = "Lists a folder; folders end in /, links in @. Skips hidden and \
        git-ignored names.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let path = search::shown_path(context, args.path.as_deref());
        let summary = format!("list {}", path.display());
        Ok(Plan::read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        while_wanted(context, move |context, stop| list(&args, context, stop)).await
    }
}

fn list(args: &Args, context: &ToolContext, stop: &Stop) -> Result<ToolOutput, ToolError> {
    let search = NameSearch {
        context,
        stop,
        path: args.path.as_deref(),
        all: args.all,
        globs: &Override::empty(),
        depth: usize::try_from(args.depth.unwrap_or(1).max(1)).unwrap_or(usize::MAX),
        offset: args.offset,
        limit: args.limit,
        what: "entries",
        none: "(empty)",
        shows_everything: true,
    };
    search.run(|_| true, line)
}

fn line(entry: &First<Sort>) -> String {
    let mark = match entry.value {
        Sort::File => "",
        Sort::Folder => "/",
        Sort::Link => "@",
        Sort::Other => " (no file)",
    };
    visible(&entry.path) + mark
}
