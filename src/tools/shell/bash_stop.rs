//! `bash_stop` tool: ends a background command and everything it started.

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{BackgroundCommands, BackgroundLookup, show_discarded};
use crate::base::tool_error::ToolError;
use crate::host::process::OutputPart;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The `bash_stop` tool.
#[derive(Debug)]
pub struct BashStopTool(pub BackgroundCommands);

/// The arguments of `bash_stop`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
}

impl Tool for BashStopTool {
    type Args = Args;
    const NAME: &'static str = "bash_stop";
    const DESCRIPTION: &'static str =
        "Ends a background command and all its processes; returns its last output.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        // Stopping the Session's own command needs no permission, but must keep its order among calls.
        let summary = format!("stop {}", crate::base::text::truncate_chars(&args.id, 40));
        Ok(CallPlan { is_exclusive: true, ..CallPlan::new(CallEffect::Read, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let handle = match self.0.find(&args.id)? {
            BackgroundLookup::Retained(handle) => handle,
            BackgroundLookup::Discarded(end) => return Ok(show_discarded(&args.id, &end)),
        };
        handle.stop().await;
        let shown = handle.show_output(OutputPart::New, context.output_limit)?;
        Ok(ToolOutput { ok: true, ..shown })
    }
}
