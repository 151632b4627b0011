//! `send_input`: sends another message to a child whose run is over.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::agent::subagent::Family;
use crate::agent::subagent::record::{Record, View};
use crate::agent::subagent::show;
use crate::agent::subagent::terms::Terms;
use crate::base::error::Kind;
use crate::base::text::first_chars;
use crate::base::tool_error::ToolError;
use crate::record::event::PermissionMode;
use crate::settings::role::strictest;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// The `send_input` tool.
pub struct SendInput(pub Arc<Family>);

/// The arguments of `send_input`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
    /// What it is told.
    text: String,
}

impl Tool for SendInput {
    type Args = Args;
    const NAME: &'static str = "send_input";
    const MANUAL: &'static str =
        "Give a Subagent that ended another message; it still knows everything it did.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<Plan, ToolError> {
        // Which mode it has is not known here, so it is judged by what its parent may.
        let mode = self.0.wisher().mode;
        let is_reading = strictest(&mode, &PermissionMode::ReadOnly) == mode;
        let effect = if is_reading { Effect::Read } else { Effect::Write };
        let summary =
            format!("tell {}: {}", first_chars(&args.id, 40), first_chars(&args.text, 80));
        Ok(Plan::new(effect, summary))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let Args { id, text } = args;
        if text.trim().is_empty() {
            return Err(ToolError::invalid("the text is empty"));
        }
        let mut views = self.0.look(Some(vec![id.clone()])).await?;
        let record = views.pop().map(|view| view.record).ok_or_else(|| show::unknown(&id))?;
        check(&record)?;
        self.0.role_of(&record)?;
        let record = self.0.tell(record, text, Terms::default(), context.cancel).await?;
        let text = format!("{} ({}) is queued again.", record.id, record.role);
        let view = View { record, doing: String::new(), place: 0 };
        Ok(ToolOutput::new(true, text, json!({ "subagent": show::value(&view) })))
    }
}

fn check(record: &Record) -> Result<(), ToolError> {
    if !record.status.is_over() {
        return Err(show::busy(record));
    }
    if record.is_closed {
        let message = format!("{} is closed", record.id);
        return Err(ToolError::new(Kind::NotFound, message).next("spawn another one"));
    }
    if record.child.is_none() {
        let message = format!("{} never had a Session", record.id);
        return Err(ToolError::new(Kind::NotFound, message).next("spawn another one"));
    }
    Ok(())
}
