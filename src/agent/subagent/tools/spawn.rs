//! `spawn_agent`: starts a child with a task.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent::subagent::Children;
use crate::agent::subagent::child_factory::inherited_attachments;
use crate::agent::subagent::constraints::Constraints;
use crate::agent::subagent::record::{SubagentRecord, SubagentView, whole_millis};
use crate::agent::subagent::run::SubagentJob;
use crate::agent::subagent::show;
use crate::agent::subagent::spec::{SpawnArgs, SubagentSpec};
use crate::base::text::truncate_chars;
use crate::base::tool_error::ToolError;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The `spawn_agent` tool.
pub struct SpawnAgent(pub Arc<Children>);

impl SpawnAgent {
    fn spec(&self, args: &SpawnArgs) -> Result<SubagentSpec, ToolError> {
        let limits = &self.0.subagents.child_factory.config.subagents;
        SubagentSpec::from_args(args, &self.0.requester(), limits)
    }
}

impl Tool for SpawnAgent {
    type Args = SpawnArgs;
    const NAME: &'static str = "spawn_agent";
    const DESCRIPTION: &'static str = "Hand a task to a Subagent and go on at once; get its answer with \
        wait_agent. Spawn several for independent parts, and give those that change files different files.";

    fn plan(&self, args: &SpawnArgs, _: &ToolContext) -> Result<CallPlan, ToolError> {
        let spec = self.spec(args)?;
        let is_harmless = spec.is_read_only() || args.validate_only == Some(true);
        // Each call of the child is judged when it is made; whether the child may change anything
        // is judged now.
        let effect = if is_harmless { CallEffect::Read } else { CallEffect::Write };
        let task = truncate_chars(spec.task.lines().next().unwrap_or_default(), 100);
        Ok(CallPlan::new(effect, format!("start {}: {task}", spec.role.name)))
    }

    async fn run(&self, args: SpawnArgs, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let spec = self.spec(&args)?;
        let base = self.0.base_settings();
        inherited_attachments(&base, &spec.resources)
            .map_err(|report| ToolError::invalid_args(report.message))?;
        let record = SubagentRecord::new(&spec, &base.model, base.effort.as_deref());
        if args.validate_only == Some(true) {
            let plan = plan_json(&record);
            let text = format!("Nothing was started. This would be: {plan}");
            return Ok(ToolOutput::new(true, text, json!({ "plan": plan })));
        }
        let parent_link = self.0.parent_link(context.cancel);
        let SubagentSpec { task, resources, .. } = spec;
        let constraints = Constraints::default();
        let record = self
            .0
            .start_run(SubagentJob { record, text: task, resources, constraints, parent_link })
            .await?;
        let text = format!("{} ({}) is queued.", record.id, record.role);
        let view = SubagentView { record, activity: String::new(), position: 0 };
        Ok(ToolOutput::new(true, text, json!({ "subagent": show::child_json(&view) })))
    }
}

fn plan_json(record: &SubagentRecord) -> Value {
    json!({
        "role": record.role,
        "model": record.model,
        "effort": record.effort,
        "permission_mode": record.mode.as_str(),
        "workspace_mode": record.workspace.name(),
        "depth": record.depth,
        "timeout_ms": whole_millis(record.timeout),
    })
}
