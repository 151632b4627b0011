//! `bash_input` tool: writes to the standard input of a background command.

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{Background, Found};
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::process::Part;
use crate::host::sandbox::Profile;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// The `bash_input` tool.
#[derive(Debug)]
pub struct BashInput(pub Background);

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

impl Tool for BashInput {
    type Args = Args;
    const NAME: &'static str = "bash_input";
    const MANUAL: &'static str =
        "Writes to the stdin of a background command and returns its new output.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<Plan, ToolError> {
        if args.text.is_none() && args.close != Some(true) {
            return Err(ToolError::invalid("neither text nor close: true is given"));
        }
        let text = args.text.as_deref().unwrap_or_default();
        let id = crate::base::text::first_chars(&args.id, 40);
        let handle = match self.0.find(&args.id) {
            Ok(Found::Here(handle)) => Some(handle),
            Ok(Found::Past(_)) | Err(_) => None,
        };
        let about = handle.as_ref().map(|handle| handle.command.clone());
        let command =
            about.as_deref().map(|command| crate::base::text::first_chars(command.trim(), 100));
        let command = command.map(|command| format!(" ({command})")).unwrap_or_default();
        let typed = crate::base::text::first_chars(text.trim_end(), 200);
        let summary = format!("type into {id}{command}: {typed}");
        // The input may cause whatever the command may do.
        let needs = handle.map(|handle| handle.needs);
        let is_held = needs.is_none_or(|needs| needs.profile == Profile::ReadOnly);
        let network = needs.is_some_and(|needs| needs.network);
        Ok(Plan { network, is_held, about, ..Plan::new(Effect::Execute, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let handle = match self.0.find(&args.id)? {
            Found::Here(handle) => handle,
            Found::Past(end) => return Err(ToolError::new(Kind::CommandFailed, end)),
        };
        let text = args.text.unwrap_or_default();
        let written = context.cancel.run_until_cancelled(handle.write(text.as_bytes())).await;
        written.unwrap_or_else(|| Err(ToolError::new(Kind::Interrupted, "interrupted")))?;
        if args.close == Some(true) {
            handle.close_stdin().await;
        }
        context.cancel.run_until_cancelled(handle.listen()).await;
        handle.show(Part::New, context.output_limit)
    }
}
