//! A Workflow as it is written: the types that are read, checked and published.
//!
//! Their doc comments are the descriptions in the schema and in the reference; what stands behind
//! `Default:` is a column of its own there. Every field may be missing, because what is flawed is left
//! out before a step is read: the schema says what is required.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::flaw::inside;
use super::{Budget, Check, Need, OnFailure, Posture, Workspace};
use crate::skill::Type;

/// What an id looks like.
pub const ID: &str = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$";
/// The longest task, in bytes.
pub const TASK: usize = 32 * 1024;
/// The longest name of a model or an effort, and of a Workflow.
pub const WORD: usize = 100;
/// The longest description.
pub const WORDS: usize = 4_000;
/// The longest command of a check.
pub const COMMAND: usize = 16 * 1024;
/// The longest glob, in bytes.
const LONGEST_GLOB: usize = 256;
/// How many steps there may be.
pub const MOST_STEPS: usize = 2_000;
/// How many globs a set may have.
pub const MOST_GLOBS: usize = 64;
/// How many checks a step may have.
pub const MOST_CHECKS: usize = 32;
/// The longest that a whole run may take: a week.
pub const LONGEST_RUN: u64 = 7 * 24 * 3_600_000;
/// The usual time of a check.
pub const USUAL_CHECK: u64 = 600_000;
/// The longest that a step or a check may take, whatever the config allows: a day.
pub const LONGEST_STEP: u64 = 24 * 3_600_000;

/// A graph of steps.
#[expect(dead_code, reason = "parameters and steps are described here, and read one by one")]
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "workflow", title = "a workflow")]
pub struct WorkflowSpec {
    /// For editors; nothing is read from there.
    #[serde(rename = "$schema")]
    #[schemars(length(min = 1, max = WORDS), extend("format" = "text"))]
    pub schema: Option<String>,
    /// What its author calls it. A run has an id of its own. Default: made of the name, or `workflow`.
    pub id: Option<Id>,
    /// A name for people. Default: the id.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    pub name: Option<String>,
    /// What it is good for.
    #[schemars(length(min = 1, max = WORDS), extend("format" = "text"))]
    pub description: Option<String>,
    /// Names whose values are given when it is run; `{{ name }}` in any string below stands for one.
    /// Default: none.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = { "pattern": ID }))]
    pub parameters: Option<BTreeMap<String, ParameterSpec>>,
    /// How much at once, and how long.
    pub limits: Option<LimitsSpec>,
    /// What all steps together may use up. Default: no limit.
    pub budget: Option<Budget>,
    /// What is done. Those that could start at the same time start in this order.
    #[schemars(required, length(min = 1, max = MOST_STEPS))]
    pub steps: Option<Vec<StepSpec>>,
}

/// A name whose value is given when a Workflow is run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "parameter", title = "a parameter")]
pub struct ParameterSpec {
    /// What a value must be. Default: `string`.
    #[serde(rename = "type")]
    pub kind: Option<Type>,
    /// Whether a run must name a value; a default is one. Default: false.
    pub required: Option<bool>,
    /// The value of a run that names none.
    #[expect(dead_code, reason = "it may be null, and is read as it stands there")]
    pub default: Option<Value>,
    /// What it is for.
    #[schemars(length(min = 1, max = WORDS), extend("format" = "text"))]
    pub description: Option<String>,
}

/// How much at once, and how long.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "limits", title = "the limits")]
pub struct LimitsSpec {
    /// How many steps may run at once. Default: `subagents.max_running` of the config, which is the most.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_concurrency: Option<usize>,
    /// How long the whole run may take. Default: 3600000, an hour.
    #[schemars(range(min = 1, max = LONGEST_RUN))]
    pub timeout_ms: Option<u64>,
}

/// A task for a Subagent, or the merge of what another step changed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "step", title = "a step")]
pub struct StepSpec {
    /// By which others refer to it.
    #[expect(dead_code, reason = "who has a bad one is still known by it")]
    #[schemars(required)]
    pub id: Option<Id>,
    /// What its Subagent has to do, whole. Every step has either `task` or `apply`.
    #[schemars(length(min = 1, max = TASK), extend("format" = "text"))]
    pub task: Option<String>,
    /// The step whose changes are merged into the Workspace; it worked in one of its own.
    pub apply: Option<Id>,
    /// The role of its Subagent, see `pixir agents`. Default: `worker`.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    pub role: Option<String>,
    /// Which model it asks. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    pub model: Option<String>,
    /// How hard that shall think. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    pub effort: Option<String>,
    /// Steps that must be ready first; those of `needs`, `gate` and `apply` come by themselves. Default: none.
    pub depends_on: Option<OneOrMore<Id, MOST_STEPS>>,
    /// Whether it may change files. Default: what the role may do.
    pub posture: Option<Posture>,
    /// Where it works: among all others, in a copy of its own, or in a git worktree of its own.
    /// Default: `shared` to read, `isolated` to write.
    pub workspace: Option<Workspace>,
    /// What it looks at, relative to the Workspace. Default: `**`.
    pub read_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// What it may write. Default: `**` if it may write, else none.
    pub write_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// How long it may work; at most `subagents.max_timeout_ms` of the config.
    /// Default: `subagents.timeout_ms` of the config.
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    pub timeout_ms: Option<u64>,
    /// How often it is begun again after it failed. Default: 0.
    #[schemars(range(min = 0, max = 5))]
    pub retries: Option<u32>,
    /// Whether the run is complete without it. Default: false.
    pub optional: Option<bool>,
    /// What becomes of the others when it does not get ready: those that depend on it do not start, they start
    /// all the same, or the run ends. Default: `hold`.
    pub on_failure: Option<OnFailure>,
    /// Values of earlier steps that it is given, by the name it gets them under. `"scan/findings"` is short for
    /// a step and a pointer into its output. Default: none.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = { "pattern": ID }))]
    pub needs: Option<BTreeMap<String, NeedSpec>>,
    /// What it must deliver. It is ready only when that is so. Default: none.
    pub output: Option<Map<String, Value>>,
    /// Commands that must pass when it is done. Pixir runs them, not the model. Default: none.
    pub verify: Option<OneOrMore<CheckSpec, MOST_CHECKS>>,
    /// A review that must approve before this step starts: a step of role `reviewer`, or one whose `output` has a
    /// `verdict` that can be `approve`.
    pub gate: Option<Id>,
}

/// A value of an earlier step, in short or in full.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum NeedSpec {
    Short(#[schemars(length(min = 1, max = WORDS), extend("format" = "text"))] String),
    Full(Need),
}

/// A command that must pass, in short or in full.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum CheckSpec {
    Short(#[schemars(length(min = 1, max = COMMAND), extend("format" = "text"))] String),
    Full(Check),
}

/// A name by which others refer to it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Id(#[schemars(regex(pattern = ID))] pub String);

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
    /// Every value with its pointer, below that of the key.
    pub fn placed(self, pointer: &str) -> Vec<(String, T)> {
        match self {
            Self::One(value) => vec![(pointer.to_owned(), value)],
            Self::More(values) => {
                let places = values.into_iter().enumerate();
                places.map(|(place, value)| (inside(pointer, &place.to_string()), value)).collect()
            }
        }
    }
}
