//! `update_plan` tool: records and shows the model's list of steps, without any other effect.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::base::text::first_chars;
use crate::base::tool_error::ToolError;
use crate::record::event;
use crate::record::event::{Extra, PlanEntry};
use crate::tools::tool::spelling;
use crate::tools::tool::spelling::Arguments;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// The maximum number of steps.
const MOST_STEPS: usize = 50;
/// The maximum length of a step and of the explanation, in characters.
const LONGEST: usize = 500;
/// How many characters of a step are shown in a summary.
const SHOWN: usize = 60;

/// The `update_plan` tool.
#[derive(Debug)]
pub struct UpdatePlan;

/// The arguments of `update_plan`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Why it changed.
    explanation: Option<String>,
    /// All steps, also the finished ones.
    plan: Vec<Step>,
}

/// A step of the plan.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Step {
    step: String,
    status: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum State {
    Pending,
    InProgress,
    Completed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
        }
    }
}

impl Tool for UpdatePlan {
    type Args = Args;
    const NAME: &'static str = "update_plan";
    const MANUAL: &'static str = "Shows the user your plan for a longer task; replaces the one \
        before. At most one step is in_progress.";

    fn respell(args: &mut Arguments) {
        spelling::plan(args);
    }

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<Plan, ToolError> {
        check(args)?;
        // A plan changes no file and starts nothing: it is allowed wherever reading is.
        Ok(Plan::new(Effect::Read, summary(args)))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        check(&args)?;
        let text = summary(&args);
        let clean = |text: &str| context.secrets.clean(text).into_owned();
        let entry = |step: &Step| PlanEntry {
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
        context.signals.record(plan.into()).await?;
        let details = json!({"steps": args.plan.len(), "completed": completed(&args)});
        Ok(ToolOutput::new(true, text, details))
    }
}

fn check(args: &Args) -> Result<(), ToolError> {
    let count = args.plan.len();
    let is_in_progress = |step: &&Step| step.status == State::InProgress;
    let active = args.plan.iter().filter(is_in_progress).count();
    let is_long = |text: &str| text.chars().nth(LONGEST).is_some();
    let wrong = if count == 0 {
        "the plan has no steps".to_owned()
    } else if count > MOST_STEPS {
        format!("the plan has {count} steps, and {MOST_STEPS} are the most")
    } else if active > 1 {
        format!("{active} steps are in_progress, and at most one may be")
    } else if args.plan.iter().any(|step| step.step.trim().is_empty()) {
        "a step is empty".to_owned()
    } else if args.plan.iter().any(|step| is_long(&step.step))
        || args.explanation.as_deref().is_some_and(is_long)
    {
        format!("a step or the explanation is longer than {LONGEST} characters")
    } else {
        return Ok(());
    };
    Err(ToolError::invalid(wrong).next("send the whole plan again"))
}

fn completed(args: &Args) -> usize {
    args.plan.iter().filter(|step| step.status == State::Completed).count()
}

fn summary(args: &Args) -> String {
    let (done, count) = (completed(args), args.plan.len());
    let active = args.plan.iter().find(|step| step.status == State::InProgress);
    let now = active.map(|step| {
        let line = step.step.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("; now: {}", first_chars(&line, SHOWN))
    });
    format!("plan: {done} of {count} done{}", now.unwrap_or_default())
}
