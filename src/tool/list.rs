//! `list`: shows what is in a folder.

use std::path::PathBuf;

use ignore::overrides::Override;
use schemars::JsonSchema;
use serde::Deserialize;

use super::search::{
    self, First, Firsts, Sort, Stop, Telling, Walk, Window, visible, walk, while_wanted,
};
use super::{Effect, Plan, Tool, ToolContext, ToolError, ToolOutput};

/// Results per page when the call does not say.
const DEFAULT_RESULTS: u64 = 200;

/// The tool.
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
        Ok(Plan { paths: vec![path], ..Plan::new(Effect::Read, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let wanted = context.clone();
        while_wanted(&wanted, move |stop| list(&args, &context, stop)).await
    }
}

fn list(args: &Args, context: &ToolContext, stop: &Stop) -> Result<ToolOutput, ToolError> {
    let place = search::start_folder(&context.workspace, args.path.as_deref())?;
    let window = Window::new(args.offset, args.limit, DEFAULT_RESULTS)?;
    let plan = Walk {
        workspace: &context.workspace,
        stop,
        start: &place.path,
        all: args.all,
        hidden: false,
        globs: &Override::empty(),
        depth: usize::try_from(args.depth.unwrap_or(1).max(1)).unwrap_or(usize::MAX),
        shares_files: false,
    };
    let (found, tally) = walk(
        &plan,
        || Firsts::new(window.end()),
        |found, _, entry| {
            found.push(entry.path, 1, entry.sort);
            true
        },
    );
    let path = &place.path;
    Telling { context, path, window, what: "entries", none: "(empty)", shows_everything: true }
        .tell(found, &tally, line)
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
