//! `spawn_agent`: starts a child with a task.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent::subagent::Family;
use crate::agent::subagent::nursery::inherited;
use crate::agent::subagent::record::{Record, View, millis};
use crate::agent::subagent::run::Job;
use crate::agent::subagent::show;
use crate::agent::subagent::spec::{Spec, Wish};
use crate::agent::subagent::terms::Terms;
use crate::base::text::first_chars;
use crate::base::tool_error::ToolError;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// The `spawn_agent` tool.
pub struct SpawnAgent(pub Arc<Family>);

impl SpawnAgent {
    fn spec(&self, wish: &Wish) -> Result<Spec, ToolError> {
        let limits = &self.0.subagents.nursery.config.subagents;
        Spec::of(wish, &self.0.wisher(), limits)
    }
}

impl Tool for SpawnAgent {
    type Args = Wish;
    const NAME: &'static str = "spawn_agent";
    const MANUAL: &'static str = "Hand a task to a Subagent and go on at once; get its answer with \
        wait_agent. Spawn several for independent parts, and give those that change files different files.";

    fn plan(&self, wish: &Wish, _: &ToolContext) -> Result<Plan, ToolError> {
        let spec = self.spec(wish)?;
        let is_harmless = spec.is_reading() || wish.validate_only == Some(true);
        // The calls of the child are judged when it makes them; that it may change something is
        // judged now.
        let effect = if is_harmless { Effect::Read } else { Effect::Write };
        let task = first_chars(spec.task.lines().next().unwrap_or_default(), 100);
        Ok(Plan::new(effect, format!("start {}: {task}", spec.role.name)))
    }

    async fn run(&self, wish: Wish, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let spec = self.spec(&wish)?;
        let base = self.0.base();
        inherited(&base, &spec.resources).map_err(|report| ToolError::invalid(report.message))?;
        let record = Record::new(&spec, &base.model, base.effort.as_deref());
        if wish.validate_only == Some(true) {
            let plan = plan(&record);
            let text = format!("Nothing was started. This would be: {plan}");
            return Ok(ToolOutput::new(true, text, json!({ "plan": plan })));
        }
        let link = self.0.link(context.cancel);
        let Spec { task, resources, .. } = spec;
        let terms = Terms::default();
        let record = self.0.start(Job { record, text: task, resources, terms, link }).await?;
        let text = format!("{} ({}) is queued.", record.id, record.role);
        let view = View { record, doing: String::new(), place: 0 };
        Ok(ToolOutput::new(true, text, json!({ "subagent": show::value(&view) })))
    }
}

fn plan(record: &Record) -> Value {
    json!({
        "role": record.role,
        "model": record.model,
        "effort": record.effort,
        "permission_mode": record.mode.as_str(),
        "workspace_mode": record.workspace.name(),
        "depth": record.depth,
        "timeout_ms": millis(record.timeout),
    })
}
