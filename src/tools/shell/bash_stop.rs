//! `bash_stop` tool: ends a background command and everything it started.

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{Background, Found, show_past};
use crate::base::tool_error::ToolError;
use crate::host::process::Part;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// The `bash_stop` tool.
#[derive(Debug)]
pub struct BashStop(pub Background);

/// The arguments of `bash_stop`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
}

impl Tool for BashStop {
    type Args = Args;
    const NAME: &'static str = "bash_stop";
    const MANUAL: &'static str =
        "Ends a background command with all it started; returns its last output.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<Plan, ToolError> {
        // Stopping the Session's own command needs no permission, but must keep its order among calls.
        let summary = format!("stop {}", crate::base::text::first_chars(&args.id, 40));
        Ok(Plan { is_alone: true, ..Plan::new(Effect::Read, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let handle = match self.0.find(&args.id)? {
            Found::Here(handle) => handle,
            Found::Past(end) => return Ok(show_past(&args.id, &end)),
        };
        handle.stop().await;
        let shown = handle.show(Part::New, context.output_limit)?;
        Ok(ToolOutput { ok: true, ..shown })
    }
}
