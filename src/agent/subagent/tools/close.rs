//! `close_agent`: ends a child, and takes no more input for it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::agent::subagent::Family;
use crate::agent::subagent::LEAVING;
use crate::agent::subagent::actor::Rule;
use crate::agent::subagent::show;
use crate::base::text::first_chars;
use crate::base::tool_error::ToolError;
use crate::record::event::SubagentEventKind;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// The `close_agent` tool.
pub struct CloseAgent(pub Arc<Family>);

/// The arguments of `close_agent`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
}

impl Tool for CloseAgent {
    type Args = Args;
    const NAME: &'static str = "close_agent";
    const MANUAL: &'static str = "End a Subagent, also one that works, and what it started.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<Plan, ToolError> {
        let summary = format!("close {}", first_chars(&args.id, 40));
        Ok(Plan { is_alone: true, ..Plan::new(Effect::Read, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let before = self.0.close(&args.id).await?;
        if !before.record.status.is_over() {
            let ended = self.0.wait(vec![args.id.clone()], Rule::All);
            tokio::time::timeout(LEAVING, ended).await.ok();
        }
        let views = self.0.look(Some(vec![args.id])).await?;
        if !before.record.is_closed {
            // A run keeps its end; this Event says that there is no further run, also after a
            // restart.
            for view in &views {
                context.signals.record(view.record.event(SubagentEventKind::Closed).into()).await?;
            }
        }
        self.0.told(views.iter().map(|view| view.record.id.clone()).collect()).await;
        let mut text = views.iter().map(show::line).collect::<Vec<_>>().join("\n");
        for child in views.iter().filter_map(|view| view.record.child.as_ref()) {
            text.extend(self.0.clear(child).await.map(|note| format!("\n{note}")));
        }
        Ok(ToolOutput::new(true, format!("closed: {text}"), show::details(&views)))
    }
}
