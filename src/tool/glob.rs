//! `glob`: finds files by their names.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::search::{self, Firsts, Sort, Stop, Telling, Walk, Window, visible, walk, while_wanted};
use super::{Effect, Plan, Tool, ToolContext, ToolError, ToolOutput};

/// Results per page when the call does not say.
const DEFAULT_RESULTS: u64 = 200;

/// The tool.
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
        let pattern = super::first_chars(&args.pattern.replace('\n', " "), 100);
        let summary = format!("glob {pattern} in {}", path.display());
        Ok(Plan { paths: vec![path], ..Plan::new(Effect::Read, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let wanted = context.clone();
        while_wanted(&wanted, move |stop| find(&args, &context, stop)).await
    }
}

fn find(args: &Args, context: &ToolContext, stop: &Stop) -> Result<ToolOutput, ToolError> {
    if args.pattern.trim_start_matches(['!', '/']).is_empty() {
        return Err(ToolError::invalid("the pattern is empty").next("use list to see everything"));
    }
    let globs = search::globs([args.pattern.as_str()])?;
    let place = search::start_folder(&context.workspace, args.path.as_deref())?;
    let window = Window::new(args.offset, args.limit, DEFAULT_RESULTS)?;
    let plan = Walk {
        workspace: &context.workspace,
        stop,
        start: &place.path,
        all: args.all,
        hidden: false,
        globs: &globs,
        depth: usize::MAX,
        shares_files: false,
    };
    let (found, tally) = walk(
        &plan,
        || Firsts::new(window.end()),
        |found, _, entry| {
            if entry.sort != Sort::Folder {
                found.push(entry.path, 1, ());
            }
            true
        },
    );
    let path = &place.path;
    Telling { context, path, window, what: "files", none: "no files", shows_everything: false }
        .tell(found, &tally, |first| visible(&first.path))
}
