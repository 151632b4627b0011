//! `list_agents`: lists the children and their status.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::agent::subagent::Children;
use crate::agent::subagent::show;
use crate::base::tool_error::ToolError;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The `list_agents` tool.
pub struct ListAgents(pub Arc<Children>);

/// The arguments of `list_agents`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {}

impl Tool for ListAgents {
    type Args = Args;
    const NAME: &'static str = "list_agents";
    const DESCRIPTION: &'static str = "All Subagents of this Session and what they do.";

    fn plan(&self, _: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        Ok(CallPlan::new(CallEffect::Read, "list Subagents".to_owned()))
    }

    async fn run(&self, _: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let views = self.0.views(None).await?;
        let text = show::list_text(&views, context.output_limit);
        let mut details = show::result_details(&views);
        // A list shows only the beginnings of summaries, so it reports no end.
        details["told"] = serde_json::json!([]);
        let is_unfinished = views.iter().any(|view| !view.record.status.is_over());
        Ok(ToolOutput { is_unfinished, ..ToolOutput::new(true, text, details) })
    }
}
