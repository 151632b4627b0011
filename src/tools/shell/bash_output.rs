//! `bash_output` tool: shows what a background command printed, and whether it still runs.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{BackgroundCommands, BackgroundLookup, show_discarded};
use crate::base::tool_error::ToolError;
use crate::host::process::OutputPart;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The `bash_output` tool.
#[derive(Debug)]
pub struct BashOutputTool {
    pub background: BackgroundCommands,
    /// The longest time that a call may wait.
    pub max_wait: Duration,
}

/// The arguments of `bash_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
    /// Maximum wait in milliseconds for a pause in the output or the end.
    wait_ms: Option<u64>,
    /// All retained output, not only new output.
    all: Option<bool>,
}

impl Tool for BashOutputTool {
    type Args = Args;
    const NAME: &'static str = "bash_output";
    const DESCRIPTION: &'static str = "New output of a background command, and whether it runs.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        Ok(CallPlan::new(
            CallEffect::Read,
            format!("show output of {}", crate::base::text::truncate_chars(&args.id, 40)),
        ))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let handle = match self.background.find(&args.id)? {
            BackgroundLookup::Retained(handle) => handle,
            BackgroundLookup::Discarded(end) => return Ok(show_discarded(&args.id, &end)),
        };
        let patience = Duration::from_millis(args.wait_ms.unwrap_or(0)).min(self.max_wait);
        context.cancel.run_until_cancelled(handle.wait_output(patience)).await;
        let part = if args.all == Some(true) { OutputPart::All } else { OutputPart::New };
        let shown = handle.show_output(part, context.output_limit)?;
        Ok(ToolOutput { is_unfinished: !handle.output.has_ended(), ..shown })
    }
}
