//! `bash_input` tool: writes to the standard input of a background command.

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{BackgroundCommands, BackgroundLookup};
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::process::OutputPart;
use crate::host::sandbox::Profile;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The `bash_input` tool.
#[derive(Debug)]
pub struct BashInputTool(pub BackgroundCommands);

/// The arguments of `bash_input`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
    /// With \n where Enter would be pressed.
    text: Option<String>,
    /// Close stdin afterwards.
    close: Option<bool>,
}

impl Tool for BashInputTool {
    type Args = Args;
    const NAME: &'static str = "bash_input";
    const DESCRIPTION: &'static str =
        "Writes to the stdin of a background command and returns its new output.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        if args.text.is_none() && args.close != Some(true) {
            return Err(ToolError::invalid_args("neither text nor close: true is given"));
        }
        let text = args.text.as_deref().unwrap_or_default();
        let id = crate::base::text::truncate_chars(&args.id, 40);
        let handle = match self.0.find(&args.id) {
            Ok(BackgroundLookup::Retained(handle)) => Some(handle),
            Ok(BackgroundLookup::Discarded(_)) | Err(_) => None,
        };
        let about = handle.as_ref().map(|handle| handle.command.clone());
        let command =
            about.as_deref().map(|command| crate::base::text::truncate_chars(command.trim(), 100));
        let command = command.map(|command| format!(" ({command})")).unwrap_or_default();
        let typed = crate::base::text::truncate_chars(text.trim_end(), 200);
        let summary = format!("type into {id}{command}: {typed}");
        // The input may cause whatever the command may do.
        let needs = handle.map(|handle| handle.needs);
        let is_held = needs.is_none_or(|needs| needs.profile == Profile::ReadOnly);
        let network = needs.is_some_and(|needs| needs.network);
        Ok(CallPlan {
            network,
            is_sandboxed_read_only: is_held,
            target_command: about,
            ..CallPlan::new(CallEffect::Execute, summary)
        })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let handle = match self.0.find(&args.id)? {
            BackgroundLookup::Retained(handle) => handle,
            BackgroundLookup::Discarded(end) => {
                return Err(ToolError::new(Kind::CommandFailed, end));
            }
        };
        let text = args.text.unwrap_or_default();
        let written = context.cancel.run_until_cancelled(handle.write_stdin(text.as_bytes())).await;
        written.unwrap_or_else(|| Err(ToolError::new(Kind::Interrupted, "interrupted")))?;
        if args.close == Some(true) {
            handle.close_stdin().await;
        }
        context.cancel.run_until_cancelled(handle.wait_first_output()).await;
        handle.show_output(OutputPart::New, context.output_limit)
    }
}
