//! `close_agent`: ends a child, and takes no more input for it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::agent::subagent::Children;
use crate::agent::subagent::STOP_TIMEOUT;
use crate::agent::subagent::actor::WaitRule;
use crate::agent::subagent::show;
use crate::base::text::truncate_chars;
use crate::base::tool_error::ToolError;
use crate::record::event::SubagentEventKind;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The `close_agent` tool.
pub struct CloseAgent(pub Arc<Children>);

/// The arguments of `close_agent`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
}

impl Tool for CloseAgent {
    type Args = Args;
    const NAME: &'static str = "close_agent";
    const DESCRIPTION: &'static str = "End a Subagent, also a running one, and its own Subagents.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        let summary = format!("close {}", truncate_chars(&args.id, 40));
        Ok(CallPlan { is_exclusive: true, ..CallPlan::new(CallEffect::Read, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let before = self.0.close_child(&args.id).await?;
        if !before.record.status.is_over() {
            let ended = self.0.wait_for_ids(vec![args.id.clone()], WaitRule::All);
            tokio::time::timeout(STOP_TIMEOUT, ended).await.ok();
        }
        let views = self.0.views(Some(vec![args.id])).await?;
        if !before.record.is_closed {
            // A run keeps its end; this Event says that there is no further run, also after a
            // restart.
            for view in &views {
                context
                    .events
                    .record(view.record.new_event(SubagentEventKind::Closed).into())
                    .await?;
            }
        }
        self.0.mark_reported(views.iter().map(|view| view.record.id.clone()).collect()).await;
        let mut text = views.iter().map(show::status_line).collect::<Vec<_>>().join("\n");
        for child in views.iter().filter_map(|view| view.record.child.as_ref()) {
            text.extend(self.0.close_workspace(child).await.map(|note| format!("\n{note}")));
        }
        Ok(ToolOutput::new(true, format!("closed: {text}"), show::result_details(&views)))
    }
}
