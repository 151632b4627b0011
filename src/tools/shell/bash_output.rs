//! `bash_output` tool: shows what a background command printed, and whether it still runs.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{Background, Found, show_past};
use crate::base::tool_error::ToolError;
use crate::host::process::Part;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// The `bash_output` tool.
#[derive(Debug)]
pub struct BashOutput {
    pub background: Background,
    /// The longest time that a call may wait.
    pub patience: Duration,
}

/// The arguments of `bash_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
    /// Wait so long for a pause in its output or its end.
    wait_ms: Option<u64>,
    /// All that is kept, not only what is new.
    all: Option<bool>,
}

impl Tool for BashOutput {
    type Args = Args;
    const NAME: &'static str = "bash_output";
    const MANUAL: &'static str = "New output of a background command, and whether it runs.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<Plan, ToolError> {
        Ok(Plan::new(
            Effect::Read,
            format!("look at {}", crate::base::text::first_chars(&args.id, 40)),
        ))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let handle = match self.background.find(&args.id)? {
            Found::Here(handle) => handle,
            Found::Past(end) => return Ok(show_past(&args.id, &end)),
        };
        let patience = Duration::from_millis(args.wait_ms.unwrap_or(0)).min(self.patience);
        context.cancel.run_until_cancelled(handle.wait(patience)).await;
        let part = if args.all == Some(true) { Part::Kept } else { Part::New };
        let shown = handle.show(part, context.output_limit)?;
        Ok(ToolOutput { is_unfinished: !handle.ring.is_over(), ..shown })
    }
}
