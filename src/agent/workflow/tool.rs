//! `run_workflow`: the model states a graph of steps, and Pixir runs it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::find_runs::live_runs;
use super::run::{RunContext, WorkflowRunInput, run};
use super::spec::{StepPosture, Workflow};
use super::{RunOutcome, WorkflowLoader, new_run_id};
use crate::agent::subagent::Children;
use crate::base::error::{Kind, Report, counted};
use crate::base::tool_error::ToolError;
use crate::model::tool_spec::ToolSpec;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// How much of the report of a run reaches the model, in bytes.
const MAX_REPORT_BYTES: usize = 32 * 1024;

/// The tool `run_workflow`.
pub struct RunWorkflow {
    pub children: Arc<Children>,
    pub loader: WorkflowLoader,
}

/// The arguments of `run_workflow`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// The graph: `{name, limits: {max_concurrency, timeout_ms}, steps: [...]}`.
    workflow: Option<Map<String, Value>>,
    /// Instead: `skill/template`.
    template: Option<String>,
    /// Values for the parameters of a template or of the graph.
    arguments: Option<Map<String, Value>>,
    /// Instead: the id of a run of this Session that did not complete.
    resume: Option<String>,
    /// Only check it and list its waves.
    validate_only: Option<bool>,
}

impl RunWorkflow {
    fn load_workflow(&self, args: &Args) -> Result<Workflow, ToolError> {
        let arguments = args.arguments.clone().unwrap_or_default();
        match (&args.workflow, &args.template, &args.resume) {
            (Some(graph), None, None) => {
                self.loader.load_graph(&Value::Object(graph.clone()), arguments)
            }
            (None, Some(template), None) => self.loader.load_template(template, arguments),
            _ => Err(ToolError::invalid_args("give one of `workflow`, `template` and `resume`")),
        }
    }

    fn effect(workflow: &Workflow) -> CallEffect {
        let steps = &workflow.steps;
        if steps.iter().any(|step| step.posture == StepPosture::Write || step.apply.is_some()) {
            CallEffect::Write
        } else if steps.iter().any(|step| !step.verify.is_empty()) {
            CallEffect::Execute
        } else {
            CallEffect::Read
        }
    }
}

impl Tool for RunWorkflow {
    type Args = Args;
    const NAME: &'static str = "run_workflow";
    const DESCRIPTION: &'static str = "Run a graph of steps as Subagents and get the result of each. Use it for work with known \
        parts that depend on each other; for anything else spawn_agent. A step: {id, task, role, depends_on: [ids], posture: \
        read_only|write, workspace: shared|isolated|worktree, write_set: [globs], needs: {name: {step, pointer}}, output: JSON \
        schema of its answer, verify: [commands that must pass], gate: id of a reviewer step that must approve, retries, \
        optional, on_failure: hold|continue|abort}; or {id, apply: id of an isolated step whose changes are merged}.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        if let Some(run) = &args.resume {
            let summary = format!("resume workflow {run}");
            return Ok(CallPlan {
                is_exclusive: true,
                ..CallPlan::new(CallEffect::Write, summary)
            });
        }
        let workflow = self.load_workflow(args)?;
        let effect = if args.validate_only == Some(true) {
            CallEffect::Read
        } else {
            Self::effect(&workflow)
        };
        let commands: Vec<&str> = workflow
            .steps
            .iter()
            .flat_map(|step| &step.verify)
            .map(|check| check.command.as_str())
            .collect();
        let checks = match commands.as_slice() {
            [] => String::new(),
            [first] => format!(", checks `{first}`"),
            [first, rest @ ..] => format!(", checks `{first}` and {} more", rest.len()),
        };
        let steps = counted(workflow.steps.len(), "step");
        let summary = format!("workflow {}: {steps}{checks}", workflow.name);
        // An approval is valid for exactly this graph.
        let about = Some(workflow.hash());
        Ok(CallPlan { is_exclusive: true, target_command: about, ..CallPlan::new(effect, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        if args.validate_only == Some(true) {
            let workflow = self.load_workflow(&args)?;
            let waves = super::plan_waves(&workflow);
            let id = |place: &usize| workflow.steps[*place].id.as_str();
            let waves: Vec<Vec<&str>> =
                waves.iter().map(|wave| wave.iter().map(id).collect()).collect();
            let generated: Vec<String> = waves.iter().map(|wave| wave.join(", ")).collect();
            let text =
                format!("It is valid; nothing was started. Waves:\n{}", generated.join("\n"));
            let details = json!({ "workflow": workflow, "waves": waves });
            return Ok(ToolOutput::new(true, text, details));
        }
        let (input, id) = match &args.resume {
            None => {
                let workflow = Arc::new(self.load_workflow(&args)?);
                (
                    WorkflowRunInput {
                        workflow,
                        template: args.template.clone(),
                        resumed_from: None,
                        time_limit: None,
                    },
                    new_run_id(),
                )
            }
            Some(id) => {
                let history = self.children.session().history().await?;
                let past = live_runs(&history).into_iter().rfind(|run| run.id == *id);
                let past = past.ok_or_else(|| unknown_run(id))?;
                if past.outcome == Some(RunOutcome::Completed) {
                    return Err(ToolError::invalid_args(format!("{id} is complete")));
                }
                let workflow = Arc::new(past.workflow.clone());
                (
                    WorkflowRunInput {
                        workflow,
                        template: None,
                        resumed_from: Some(past),
                        time_limit: None,
                    },
                    id.clone(),
                )
            }
        };
        let run_context = RunContext::new(Arc::clone(&self.children), id, &input.workflow);
        let run_context = run_context.map_err(|report| into_tool_error(&report))?;
        let finished = run(run_context, input, context.cancel).await;
        let finished = finished.map_err(|report| into_tool_error(&report))?;
        let limit = context.output_limit.min(MAX_REPORT_BYTES);
        let mut details = finished.event_fields();
        details["workflow_id"] = json!(finished.run_id);
        // The results of these children are in the text already.
        details["told"] = json!(finished.children);
        let ok = finished.outcome == RunOutcome::Completed;
        Ok(ToolOutput::new(ok, finished.report(limit), details))
    }
}

/// The spec of the tool, for listings without a Session.
pub fn tool_spec() -> ToolSpec {
    crate::tools::tool::tool_spec::<RunWorkflow>()
}

fn into_tool_error(report: &Report) -> ToolError {
    let kind = Kind::from_name(&report.kind).unwrap_or(Kind::Internal);
    ToolError::new(kind, report.message.clone())
}

fn unknown_run(id: &str) -> ToolError {
    let message =
        format!("this Session has no run `{}`", crate::base::text::truncate_chars(id, 40));
    ToolError::new(Kind::NotFound, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_schema_is_that_of_the_type() {
        let generated =
            (RunWorkflow::NAME.to_owned(), crate::model::tool_spec::generate_schema::<Args>());
        crate::model::tool_spec::store_schemas(vec![generated]);
    }
}
