//! `glob` tool: finds files by name.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::base::tool_error::ToolError;
use crate::tools::search;
use crate::tools::search::{NameSearch, WalkEntryKind, WalkStop, printable, run_search};
use crate::tools::tool::{CallPlan, Tool, ToolContext, ToolOutput};

/// The `glob` tool.
#[derive(Debug)]
pub struct GlobTool;

/// The arguments of `glob`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Like `*.rs` (any depth), `src/**/*.ts`.
    pattern: String,
    path: Option<PathBuf>,
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

impl Tool for GlobTool {
    type Args = Args;
    const NAME: &'static str = "glob";
    const DESCRIPTION: &'static str = "Finds files by name. Skips hidden and git-ignored files.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let path = search::shown_path(context, args.path.as_deref());
        let pattern = crate::base::text::truncate_chars(&args.pattern.replace('\n', " "), 100);
        let summary = format!("glob {pattern} in {}", path.display());
        Ok(CallPlan::for_read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        run_search(context, move |context, stop| find_files(&args, context, stop)).await
    }
}

fn find_files(
    args: &Args,
    context: &ToolContext,
    stop: &WalkStop,
) -> Result<ToolOutput, ToolError> {
    if args.pattern.trim_start_matches(['!', '/']).is_empty() {
        return Err(ToolError::invalid_args("the pattern is empty")
            .with_next_action("use list to see everything"));
    }
    let globs = search::compile_globs([args.pattern.as_str()])?;
    let search = NameSearch {
        context,
        stop,
        path: args.path.as_deref(),
        all: args.all,
        globs: &globs,
        depth: usize::MAX,
        offset: args.offset,
        limit: args.limit,
        noun: "files",
        none_text: "no files",
        shows_everything: false,
    };
    search.run(|sort| sort != WalkEntryKind::Folder, |first| printable(&first.path))
}
