//! `list_agents`: how the children are.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::subagent::Family;
use crate::subagent::show;
use crate::tool::{Effect, Plan, Tool, ToolContext, ToolError, ToolOutput};

/// The tool.
pub struct ListAgents(pub Arc<Family>);

/// The arguments of `list_agents`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {}

impl Tool for ListAgents {
    type Args = Args;
    const NAME: &'static str = "list_agents";
    const MANUAL: &'static str = "All Subagents of this Session and what they do.";

    fn plan(&self, _: &Args, _: &ToolContext) -> Result<Plan, ToolError> {
        Ok(Plan::new(Effect::Read, "list Subagents".to_owned()))
    }

    async fn run(&self, _: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let views = self.0.look(None).await?;
        let text = show::list(&views, context.output_limit);
        let mut details = show::details(&views);
        // Only the beginnings of their summaries are in here.
        details["told"] = serde_json::json!([]);
        let is_unfinished = views.iter().any(|view| !view.record.status.is_over());
        Ok(ToolOutput { is_unfinished, ..ToolOutput::new(true, text, details) })
    }
}
