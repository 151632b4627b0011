//! `list` tool: lists the entries of a folder.

use std::path::PathBuf;

use ignore::overrides::Override;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::base::tool_error::ToolError;
use crate::tools::search;
use crate::tools::search::{
    NameSearch, PathResult, WalkEntryKind, WalkStop, printable, run_search,
};
use crate::tools::tool::{CallPlan, Tool, ToolContext, ToolOutput};

/// The `list` tool.
#[derive(Debug)]
pub struct ListTool;

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

impl Tool for ListTool {
    type Args = Args;
    const NAME: &'static str = "list";
    const DESCRIPTION: &'static str = "Lists a folder; folders end in /, links in @. Skips hidden and \
        git-ignored names.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let path = search::shown_path(context, args.path.as_deref());
        let summary = format!("list {}", path.display());
        Ok(CallPlan::for_read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        run_search(context, move |context, stop| list_folder(&args, context, stop)).await
    }
}

fn list_folder(
    args: &Args,
    context: &ToolContext,
    stop: &WalkStop,
) -> Result<ToolOutput, ToolError> {
    let search = NameSearch {
        context,
        stop,
        path: args.path.as_deref(),
        all: args.all,
        globs: &Override::empty(),
        depth: usize::try_from(args.depth.unwrap_or(1).max(1)).unwrap_or(usize::MAX),
        offset: args.offset,
        limit: args.limit,
        noun: "entries",
        none_text: "(empty)",
        shows_everything: true,
    };
    search.run(|_| true, entry_line)
}

fn entry_line(entry: &PathResult<WalkEntryKind>) -> String {
    let mark = match entry.value {
        WalkEntryKind::File => "",
        WalkEntryKind::Folder => "/",
        WalkEntryKind::Link => "@",
        WalkEntryKind::Other => " (no file)",
    };
    printable(&entry.path) + mark
}
