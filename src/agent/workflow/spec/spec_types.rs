//! The types of a Workflow spec as users write it: they are deserialised, checked and published as a schema.
//!
//! Their doc comments are the descriptions in the schema and in the reference; the text after `Default:` is a separate
//! column there. Every field is optional, because flawed fields are left out before a step is read; the schema
//! states which are required.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::diagnostic::child_pointer;
use super::{CheckCommand, Need, OnFailure, StepPosture, WorkflowBudget, WorkspaceMode};
use crate::model::skill::ParameterType;

/// The pattern of an id.
pub const ID_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$";
/// The longest task, in bytes.
pub const MAX_TASK_BYTES: usize = 32 * 1024;
/// The longest name of a model, an effort or a Workflow.
pub const MAX_NAME_BYTES: usize = 100;
/// The longest description.
pub const MAX_TEXT_BYTES: usize = 4_000;
/// The longest command of a check.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024;
/// The longest glob, in bytes.
const LONGEST_GLOB: usize = 256;
/// The most steps of a Workflow.
pub const MOST_STEPS: usize = 2_000;
/// The most globs of a set.
pub const MOST_GLOBS: usize = 64;
/// The most checks of a step.
pub const MOST_CHECKS: usize = 32;
/// The longest time limit of a run, in milliseconds: a week.
pub const LONGEST_RUN: u64 = 7 * 24 * 3_600_000;
/// The default time limit of a check, in milliseconds.
pub const DEFAULT_CHECK_MS: u64 = 600_000;
/// The longest time limit of a step or a check, whatever the config allows, in milliseconds: a day.
pub const LONGEST_STEP: u64 = 24 * 3_600_000;

/// A graph of steps.
#[expect(dead_code, reason = "parameters and steps are described here, and read one by one")]
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "workflow", title = "a workflow")]
pub struct WorkflowSpec {
    /// The JSON schema, for editors; Pixir ignores it.
    #[serde(rename = "$schema")]
    #[schemars(length(min = 1, max = MAX_TEXT_BYTES), extend("format" = "text"))]
    pub schema: Option<String>,
    /// An id for the workflow; every run has its own id. Default: derived from the name, or `workflow`.
    pub id: Option<SpecId>,
    /// A name for people. Default: the id.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    pub name: Option<String>,
    /// What the workflow is for.
    #[schemars(length(min = 1, max = MAX_TEXT_BYTES), extend("format" = "text"))]
    pub description: Option<String>,
    /// Parameters whose values are given when it is run; `{{ name }}` in any string below is replaced by the value.
    /// Default: none.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = { "pattern": ID_PATTERN }))]
    pub parameters: Option<BTreeMap<String, ParameterSpec>>,
    /// Concurrency and time limits.
    pub limits: Option<LimitsSpec>,
    /// The spending limits of all steps together. Default: no limit.
    pub budget: Option<WorkflowBudget>,
    /// The steps. Steps that could start at the same time start in this order.
    #[schemars(required, length(min = 1, max = MOST_STEPS))]
    pub steps: Option<Vec<StepSpec>>,
}

/// A parameter whose value is given when a Workflow is run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "parameter", title = "a parameter")]
pub struct ParameterSpec {
    /// The type of the value. Default: `string`.
    #[serde(rename = "type")]
    pub kind: Option<ParameterType>,
    /// Whether a run must give a value; a default counts as one. Default: false.
    pub required: Option<bool>,
    /// The value when a run gives none.
    #[expect(dead_code, reason = "it may be null, and is read from the JSON itself")]
    pub default: Option<Value>,
    /// What the parameter is for.
    #[schemars(length(min = 1, max = MAX_TEXT_BYTES), extend("format" = "text"))]
    pub description: Option<String>,
}

/// Concurrency and time limits.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "limits", title = "the limits")]
pub struct LimitsSpec {
    /// How many steps may run at once. Default: `subagents.max_running` of the config, which is the most.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_concurrency: Option<usize>,
    /// The time limit of the whole run. Default: 3600000, an hour.
    #[schemars(range(min = 1, max = LONGEST_RUN))]
    pub timeout_ms: Option<u64>,
}

/// A task for a Subagent, or the merge of what another step changed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "step", title = "a step")]
pub struct StepSpec {
    /// The id by which other steps refer to it.
    #[expect(
        dead_code,
        reason = "it is read from the JSON, because an invalid one is kept for references"
    )]
    #[schemars(required)]
    pub id: Option<SpecId>,
    /// The complete task for its Subagent. Every step has either `task` or `apply`.
    #[schemars(length(min = 1, max = MAX_TASK_BYTES), extend("format" = "text"))]
    pub task: Option<String>,
    /// The step whose changes are merged into the Workspace; it must have worked in its own.
    pub apply: Option<SpecId>,
    /// The role of its Subagent, see `pixir agents`. Default: `worker`.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    pub role: Option<String>,
    /// The model of its Subagent. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    pub model: Option<String>,
    /// The reasoning effort of the model. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    pub effort: Option<String>,
    /// Steps that must be ready first; those of `needs`, `gate` and `apply` are added automatically. Default: none.
    pub depends_on: Option<OneOrMore<SpecId, MOST_STEPS>>,
    /// Whether it may change files. Default: what the role may do.
    pub posture: Option<StepPosture>,
    /// Where it works: in the shared Workspace, in its own copy, or in its own git worktree.
    /// Default: `shared` to read, `isolated` to write.
    pub workspace: Option<WorkspaceMode>,
    /// The files that it reads, as globs relative to the Workspace. Default: `**`.
    pub read_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// The files that it may write. Default: `**` if it may write, else none.
    pub write_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// Its time limit; at most `subagents.max_timeout_ms` of the config.
    /// Default: `subagents.timeout_ms` of the config.
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    pub timeout_ms: Option<u64>,
    /// How many more attempts are made after it failed. Default: 0.
    #[schemars(range(min = 0, max = 5))]
    pub retries: Option<u32>,
    /// Whether the run is complete without it. Default: false.
    pub optional: Option<bool>,
    /// What happens when it does not get ready: steps that depend on it do not start (`hold`), start anyway
    /// (`continue`), or the run ends (`abort`). Default: `hold`.
    pub on_failure: Option<OnFailure>,
    /// Values of earlier steps that it is given, by name. `"scan/findings"` is short for a step and a pointer into its
    /// output. Default: none.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = { "pattern": ID_PATTERN }))]
    pub needs: Option<BTreeMap<String, NeedSpec>>,
    /// The JSON schema of its answer. It is ready only when its answer fits. Default: none.
    pub output: Option<Map<String, Value>>,
    /// Commands that must pass when it is done. Pixir runs them, not the model. Default: none.
    pub verify: Option<OneOrMore<CheckSpec, MOST_CHECKS>>,
    /// A review that must approve before this step starts: a step of role `reviewer`, or one whose `output` has a
    /// `verdict` that can be `approve`.
    pub gate: Option<SpecId>,
}

/// A value of an earlier step, in short or in full.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum NeedSpec {
    Short(#[schemars(length(min = 1, max = MAX_TEXT_BYTES), extend("format" = "text"))] String),
    Full(Need),
}

/// A command that must pass, in short or in full.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum CheckSpec {
    Short(#[schemars(length(min = 1, max = MAX_COMMAND_BYTES), extend("format" = "text"))] String),
    Full(CheckCommand),
}

/// An id of a step or a Workflow.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct SpecId(#[schemars(regex(pattern = ID_PATTERN))] pub String);

/// A glob, relative to the Workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct GlobSpec(
    #[schemars(length(min = 1, max = LONGEST_GLOB), extend("format" = "glob"))] pub String,
);

/// A value, or a list of them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OneOrMore<T, const MOST: usize> {
    One(T),
    More(#[schemars(length(max = MOST))] Vec<T>),
}

impl<T, const MOST: usize> OneOrMore<T, MOST> {
    /// Every value with its pointer, given the pointer of the key.
    pub fn with_pointers(self, pointer: &str) -> Vec<(String, T)> {
        match self {
            Self::One(value) => vec![(pointer.to_owned(), value)],
            Self::More(values) => {
                let places = values.into_iter().enumerate();
                places
                    .map(|(place, value)| (child_pointer(pointer, &place.to_string()), value))
                    .collect()
            }
        }
    }
}
