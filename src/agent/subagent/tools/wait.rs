//! `wait_agent`: waits for children, and reports their results.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::agent::subagent::Children;
use crate::agent::subagent::actor::WaitRule;
use crate::agent::subagent::show;
use crate::agent::subagent::show::WaitReport;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The default timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(10);

/// The longest timeout.
const MAX_TIMEOUT: Duration = Duration::from_hours(1);

/// The `wait_agent` tool.
pub struct WaitAgent(pub Arc<Children>);

/// The arguments of `wait_agent`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Default: all that run or whose end was not reported yet.
    ids: Option<Vec<String>>,
    /// any or all (default).
    until: Option<WaitUntil>,
    /// 0 returns at once; default 600000.
    timeout_ms: Option<u64>,
}

// The condition that ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum WaitUntil {
    Any,
    All,
}

impl Tool for WaitAgent {
    type Args = Args;
    const NAME: &'static str = "wait_agent";
    const DESCRIPTION: &'static str =
        "Wait for Subagents; returns the status and summary of each. A timeout does not end them.";

    fn plan(&self, _: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        let plan = CallPlan::new(CallEffect::Read, "wait for Subagents".to_owned());
        Ok(CallPlan { is_exclusive: true, ..plan })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let ids = self.resolve_ids(args.ids).await?;
        if ids.is_empty() {
            let text = "There is no Subagent to wait for.".to_owned();
            return Ok(ToolOutput::new(true, text, show::result_details(&[])));
        }
        let patience =
            args.timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis).min(MAX_TIMEOUT);
        let rule = if args.until == Some(WaitUntil::Any) { WaitRule::Any } else { WaitRule::All };
        let waiting = tokio::time::timeout(patience, self.0.wait_for_ids(ids.clone(), rule));
        match context.cancel.run_until_cancelled(waiting).await {
            None => return Err(ToolError::new(Kind::Interrupted, "the Turn was interrupted")),
            Some(Ok(Err(error))) => return Err(error),
            // After a timeout, too, the current state is reported.
            Some(Err(_) | Ok(Ok(()))) => {}
        }
        let views = self.0.views(Some(ids)).await?;
        let WaitReport { text, ids } = show::wait_report(&views, context.output_limit);
        let mut details = show::result_details(&views);
        // Ends that did not fit are reported by the next wait.
        let over = views.iter().filter(|view| view.record.status.is_over());
        let left: Vec<&str> = over
            .map(|view| view.record.id.as_str())
            .filter(|id| !ids.iter().any(|seen| seen == id))
            .collect();
        if !left.is_empty() {
            details["left"] = json!(left);
        }
        self.0.mark_reported(ids).await;
        let is_unfinished = views.iter().any(|view| !view.record.status.is_over());
        Ok(ToolOutput { is_unfinished, ..ToolOutput::new(true, text, details) })
    }
}

impl WaitAgent {
    async fn resolve_ids(&self, ids: Option<Vec<String>>) -> Result<Vec<String>, ToolError> {
        let ids = ids.filter(|ids| !ids.is_empty());
        if let Some(mut ids) = ids {
            // A child that is named twice must not count as a second one that has ended.
            let mut seen = HashSet::new();
            ids.retain(|id| seen.insert(id.clone()));
            // Unknown ids are reported before waiting starts.
            self.0.views(Some(ids.clone())).await?;
            return Ok(ids);
        }
        let views = self.0.views(None).await?;
        let is_news = |record: &crate::agent::subagent::SubagentRecord| {
            !record.status.is_over() || !record.is_reported
        };
        let records = views.into_iter().map(|view| view.record);
        Ok(records.filter(is_news).map(|record| record.id).collect())
    }
}
