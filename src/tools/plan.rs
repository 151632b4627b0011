//! `update_plan` tool: records and shows the model's list of steps, without any other effect.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::base::names::names;
use crate::base::text::{on_one_line, truncate_chars};
use crate::base::tool_error::ToolError;
use crate::record::event;
use crate::record::event::{Extra, PlanEntry};
use crate::tools::tool::arg_aliases;
use crate::tools::tool::arg_aliases::ArgMap;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The maximum number of steps.
const MAX_STEPS: usize = 50;
/// The maximum length of a step and of the explanation, in characters.
const MAX_STEP_CHARS: usize = 500;
/// How many characters of a step are shown in a summary.
const MAX_SUMMARY_CHARS: usize = 60;

/// The `update_plan` tool.
#[derive(Debug)]
pub struct UpdatePlanTool;

/// The arguments of `update_plan`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Reason for the change.
    explanation: Option<String>,
    /// All steps, also the finished ones.
    plan: Vec<PlanStep>,
}

/// A step of the plan.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanStep {
    step: String,
    status: PlanStepStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum PlanStepStatus {
    Pending,
    InProgress,
    Completed,
}

names!(PlanStepStatus { Pending = "pending", InProgress = "in_progress", Completed = "completed" });

impl Tool for UpdatePlanTool {
    type Args = Args;
    const NAME: &'static str = "update_plan";
    const DESCRIPTION: &'static str = "Shows the user your plan for a longer task; replaces the \
        previous one. At most one step is in_progress.";

    fn normalize_args(args: &mut ArgMap) {
        arg_aliases::normalize_plan(args);
    }

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        check_args(args)?;
        // A plan changes no file and starts nothing: it is allowed wherever reading is.
        Ok(CallPlan::new(CallEffect::Read, summary(args)))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        check_args(&args)?;
        let text = summary(&args);
        let clean = |text: &str| context.secrets.redact(text).into_owned();
        let entry = |step: &PlanStep| PlanEntry {
            content: clean(&step.step),
            priority: "medium".to_owned(),
            status: step.status.name().to_owned(),
            extra: Extra::new(),
        };
        let plan = event::Plan {
            entries: args.plan.iter().map(entry).collect(),
            explanation: args.explanation.as_deref().map(clean),
            extra: Extra::new(),
        };
        context.events.record(plan.into()).await?;
        let details = json!({"steps": args.plan.len(), "completed": count_completed(&args)});
        Ok(ToolOutput::new(true, text, details))
    }
}

fn check_args(args: &Args) -> Result<(), ToolError> {
    let count = args.plan.len();
    let is_in_progress = |step: &&PlanStep| step.status == PlanStepStatus::InProgress;
    let active = args.plan.iter().filter(is_in_progress).count();
    let is_long = |text: &str| text.chars().nth(MAX_STEP_CHARS).is_some();
    let wrong = if count == 0 {
        "the plan has no steps".to_owned()
    } else if count > MAX_STEPS {
        format!("the plan has {count} steps; the maximum is {MAX_STEPS}")
    } else if active > 1 {
        format!("{active} steps are in_progress; at most one may be")
    } else if args.plan.iter().any(|step| step.step.trim().is_empty()) {
        "a step is empty".to_owned()
    } else if args.plan.iter().any(|step| is_long(&step.step))
        || args.explanation.as_deref().is_some_and(is_long)
    {
        format!("a step or the explanation is longer than {MAX_STEP_CHARS} characters")
    } else {
        return Ok(());
    };
    Err(ToolError::invalid_args(wrong).with_next_action("send the whole plan again"))
}

fn count_completed(args: &Args) -> usize {
    args.plan.iter().filter(|step| step.status == PlanStepStatus::Completed).count()
}

fn summary(args: &Args) -> String {
    let (done, count) = (count_completed(args), args.plan.len());
    let active = args.plan.iter().find(|step| step.status == PlanStepStatus::InProgress);
    let now = active.map(|step| {
        let line = on_one_line(&step.step);
        format!("; now: {}", truncate_chars(&line, MAX_SUMMARY_CHARS))
    });
    format!("plan: {done} of {count} done{}", now.unwrap_or_default())
}
