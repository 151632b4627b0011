//! The types of a Workflow after its spec was read, checked and completed with defaults.
//!
//! Every field has its value here: this form is recorded in the Log and hashed. The types of specs as users write
//! them are in `spec_types`; `check` checks JSON against those, and `read` completes it.

pub mod check;
mod diagnostic;
mod graph;
mod json;
mod output;
pub mod publish;
mod read;
pub mod spec_types;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tools::permission::canonical_digest;

pub use crate::agent::subagent::WorkspaceMode;
pub use diagnostic::{SpecDiagnostic, SpecError, quoted};
pub use json::parse;
pub use publish::{workflow_reference, workflow_schema};
pub use read::{SpecContext, argument_flaw, deserialize_fields, read_parameters, sort_flaws};

use spec_types::{DEFAULT_CHECK_MS, ID_PATTERN, LONGEST_STEP, MAX_COMMAND_BYTES, MAX_TEXT_BYTES};

/// A graph of steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// The author's id for the Workflow; every run has its own id.
    pub id: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub limits: RunLimits,
    #[serde(default, skip_serializing_if = "WorkflowBudget::is_none")]
    pub budget: WorkflowBudget,
    /// In the order of the file, which is the order in which they are started.
    pub steps: Vec<Step>,
}

impl Workflow {
    /// The SHA-256 of the Workflow as JSON with sorted keys: equal Workflows have equal hashes.
    pub fn hash(&self) -> String {
        canonical_digest(self)
    }
}

/// Concurrency and time limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimits {
    /// How many steps may run at once.
    pub max_concurrency: usize,
    /// How long the whole run may take.
    pub timeout_ms: u64,
}

/// The spending limits of all steps together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "budget", title = "the budget", deny_unknown_fields)]
pub struct WorkflowBudget {
    /// How many tokens all steps may use. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub tokens: Option<u64>,
    /// How many dollars all steps may cost; every model needs a price in the config. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1_000_000))]
    pub cost_usd: Option<f64>,
}

impl WorkflowBudget {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.tokens.is_none() && self.cost_usd.is_none()
    }
}

/// One step: either a `task` for a Subagent, or an `apply`, the merge of another step's changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The step whose changes are merged into the Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<String>,
    /// The name of a role; meaningless for a step that applies.
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// All dependencies: the steps that it names, and those of `needs`, `gate` and `apply`; in the order of the file.
    pub depends_on: Vec<String>,
    pub posture: StepPosture,
    pub workspace: WorkspaceMode,
    /// Globs, relative to the Workspace.
    pub read_set: Vec<String>,
    /// Empty for a step that only reads; for one that applies, that of its source.
    pub write_set: Vec<String>,
    /// Its time limit; `None` for the default of Subagents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How many more attempts are made after it failed.
    pub retries: u32,
    /// Whether the run is complete without it.
    pub optional: bool,
    pub on_failure: OnFailure,
    /// Values of earlier steps for its Subagent, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub needs: BTreeMap<String, Need>,
    /// The JSON schema of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Commands that must pass when its Subagent is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verify: Vec<CheckCommand>,
    /// The review that must approve before this step starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Whether any answer makes it ready unless the answer says otherwise, because the delegating program judges it.
    /// Only `delegate` sets it; there is no key for it in a spec.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answer_is_enough: bool,
}

impl Step {
    /// Whether the step changes files in the shared Workspace.
    pub fn writes_shared(&self) -> bool {
        self.apply.is_some()
            || (self.posture == StepPosture::Write && self.workspace == WorkspaceMode::Shared)
    }
}

/// Whether a step may change files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StepPosture {
    ReadOnly,
    Write,
}

/// The effect on the rest of the run when a step does not get ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OnFailure {
    // Dependents do not start.
    #[default]
    Hold,
    // Dependents start, and their tasks name the failure.
    Continue,
    // The run ends.
    Abort,
}

/// A value from the output of an earlier step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "need", title = "a need", deny_unknown_fields)]
pub struct Need {
    /// The step that delivers the value; it must have an `output`.
    #[schemars(regex(pattern = ID_PATTERN))]
    pub step: String,
    /// A JSON pointer into the output of that step, such as `/findings/0`. Default: all of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = MAX_TEXT_BYTES), extend("format" = "line"))]
    pub pointer: String,
}

/// A command that must pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "check", title = "a check", deny_unknown_fields)]
pub struct CheckCommand {
    /// A shell command; it passes when it exits with 0.
    #[schemars(length(min = 1, max = MAX_COMMAND_BYTES), extend("format" = "text"))]
    pub command: String,
    /// The time limit of the command. Default: 600000, ten minutes.
    #[serde(default = "usual_check")]
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    pub timeout_ms: u64,
}

fn usual_check() -> u64 {
    DEFAULT_CHECK_MS
}
