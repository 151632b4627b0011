//! What a Workflow is, after it was read, checked and made whole.
//!
//! Every field has its value here: this form is what is recorded, and what its hash is made of.
//! Written specs are the types of `written`; `check` holds JSON against them, and `read` makes it whole.

pub mod check;
mod flaw;
mod graph;
mod json;
mod output;
pub mod publish;
mod read;
mod step;
#[cfg(test)]
mod tests;
pub mod written;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use flaw::{Flaw, SpecError, quoted};
pub use json::read as parse;
pub use publish::{reference, schema};
pub use read::{Ground, in_order, misfit, parameters, typed};

use crate::workflow::digest::digest;
use written::{COMMAND, ID, LONGEST_STEP, USUAL_CHECK, WORDS};

/// A graph of steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// What its author calls it; a run has an id of its own.
    pub id: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Budget::is_none")]
    pub budget: Budget,
    /// In the order of the file, which is the order in which they are started.
    pub steps: Vec<Step>,
}

impl Workflow {
    /// SHA-256 over the whole of it, with sorted keys: equal Workflows have equal hashes.
    pub fn hash(&self) -> String {
        digest(self)
    }
}

/// How much at once, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// How many steps may run at once.
    pub max_concurrency: usize,
    /// How long the whole run may take.
    pub timeout_ms: u64,
}

/// What all steps together may use up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "budget", title = "the budget", deny_unknown_fields)]
pub struct Budget {
    /// How many tokens, all in all. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub tokens: Option<u64>,
    /// How many dollars; the models need prices in the config. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1_000_000))]
    pub cost_usd: Option<f64>,
}

impl Budget {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.tokens.is_none() && self.cost_usd.is_none()
    }
}

/// One step. It has either a `task` for a Subagent, or it applies what another one changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The step whose changes are merged into the Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<String>,
    /// The name of a role; of no meaning for a step that applies.
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// All steps that come before this one: those that it names, and those of `needs`, `gate` and
    /// `apply`; in the order of the file.
    pub depends_on: Vec<String>,
    pub posture: Posture,
    pub workspace: Workspace,
    /// Globs, relative to the Workspace.
    pub read_set: Vec<String>,
    /// Empty for a step that only reads; for one that applies, that of its source.
    pub write_set: Vec<String>,
    /// How long it may work; the usual time of a Subagent when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How often it is begun again after it failed.
    pub retries: u32,
    /// The run is complete without it.
    pub optional: bool,
    pub on_failure: OnFailure,
    /// Values of earlier steps that its Subagent is given, by the name it gets them under.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub needs: BTreeMap<String, Need>,
    /// The JSON schema of what it must deliver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Commands that must pass when its Subagent is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verify: Vec<Check>,
    /// The review that must approve before this step starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// It is ready when it is answered, unless the answer says otherwise: whoever asked judges it.
    /// No spec says so; `delegate` does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answer_is_enough: bool,
}

impl Step {
    /// Whether it changes anything in the Workspace that all share.
    pub fn writes_shared(&self) -> bool {
        self.apply.is_some()
            || (self.posture == Posture::Write && self.workspace == Workspace::Shared)
    }
}

/// Whether a step may change files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Posture {
    ReadOnly,
    Write,
}

/// Where a step works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Workspace {
    Shared,
    Isolated,
    Worktree,
}

/// What becomes of the others when a step does not get ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OnFailure {
    // Those that depend on it do not start.
    #[default]
    Hold,
    // They start all the same, and are told.
    Continue,
    // The run ends.
    Abort,
}

/// A value that an earlier step delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "need", title = "a need", deny_unknown_fields)]
pub struct Need {
    /// Which step delivers it; it must have an `output`.
    #[schemars(regex(pattern = ID))]
    pub step: String,
    /// Where in its output, as a JSON pointer such as `/findings/0`. Default: all of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = WORDS), extend("format" = "line"))]
    pub pointer: String,
}

/// A command that must pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "check", title = "a check", deny_unknown_fields)]
pub struct Check {
    /// A shell command; it passes when it exits with 0.
    #[schemars(length(min = 1, max = COMMAND), extend("format" = "text"))]
    pub command: String,
    /// How long it may take. Default: 600000, ten minutes.
    #[serde(default = "usual_check")]
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    pub timeout_ms: u64,
}

fn usual_check() -> u64 {
    USUAL_CHECK
}
