//! `glob` tool: finds files by name.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::base::tool_error::ToolError;
use crate::tools::search;
use crate::tools::search::{NameSearch, Sort, Stop, visible, while_wanted};
use crate::tools::tool::{Plan, Tool, ToolContext, ToolOutput};

/// The `glob` tool.
#[derive(Debug)]
pub struct Glob;

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

impl Tool for Glob {
    type Args = Args;
    const NAME: &'static str = "glob";
    const MANUAL: &'static str = "Finds files by name. Skips hidden and git-ignored files.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let path = search::shown_path(context, args.path.as_deref());
        let pattern = crate::base::text::first_chars(&args.pattern.replace('\n', " "), 100);
        let summary = format!("glob {pattern} in {}", path.display());
        Ok(Plan::read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        while_wanted(context, move |context, stop| find(&args, context, stop)).await
    }
}

fn find(args: &Args, context: &ToolContext, stop: &Stop) -> Result<ToolOutput, ToolError> {
    if args.pattern.trim_start_matches(['!', '/']).is_empty() {
        return Err(ToolError::invalid("the pattern is empty").next("use list to see everything"));
    }
    let globs = search::globs([args.pattern.as_str()])?;
    let search = NameSearch {
        context,
        stop,
        path: args.path.as_deref(),
        all: args.all,
        globs: &globs,
        depth: usize::MAX,
        offset: args.offset,
        limit: args.limit,
        what: "files",
        none: "no files",
        shows_everything: false,
    };
    search.run(|sort| sort != Sort::Folder, |first| visible(&first.path))
}
