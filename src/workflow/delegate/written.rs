//! A delegation as it is written: the types that are read, checked and published.

use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::workflow::spec::written::{
    CheckSpec, GlobSpec, ID, Id, LONGEST_RUN, LONGEST_STEP, MOST_CHECKS, MOST_GLOBS, MOST_STEPS,
    OneOrMore, TASK, WORD, WORDS,
};
use crate::workflow::spec::{Budget, Posture, Workspace};

/// What another program hands over.
#[expect(dead_code, reason = "tasks are described here, and read one by one")]
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "delegation", title = "a delegation")]
pub struct DelegationSpec {
    /// For editors; nothing is read from there.
    #[serde(rename = "$schema")]
    #[schemars(length(min = 1, max = WORDS), extend("format" = "text"))]
    pub schema: Option<String>,
    /// The version of this format. Default: 1.
    #[schemars(range(min = 1, max = 1))]
    pub contract_version: Option<u64>,
    /// A name for people. Default: `delegate`, or the workflow's.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    pub name: Option<String>,
    /// Independent tasks, each a text or an object. One of `tasks`, `workflow` and `template` must be there.
    #[schemars(length(min = 1, max = MOST_STEPS))]
    pub tasks: Option<Vec<TaskSpec>>,
    /// What holds for every task that says nothing else.
    pub defaults: Option<Defaults>,
    /// Instead: a whole workflow.
    #[schemars(with = "Option<Whole>")]
    pub workflow: Option<Map<String, Value>>,
    /// Instead: `skill/template`.
    #[schemars(length(min = 1, max = 200), extend("format" = "line"))]
    pub template: Option<String>,
    /// The values of the parameters of a workflow or template. Default: none.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = { "pattern": ID }))]
    pub arguments: Option<Map<String, Value>>,
    /// How much at once, and how long.
    pub limits: Option<Bounds>,
    /// What all children together may use up. Default: no limit.
    #[schemars(with = "Option<Total>")]
    pub budget: Option<Budget>,
}

/// A task, in short or in full.
#[expect(dead_code, reason = "its fields are read as those of a step")]
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum TaskSpec {
    Short(#[schemars(length(min = 1, max = TASK), extend("format" = "text"))] String),
    Full(Box<FullTask>),
}

/// A task for a Subagent.
#[expect(dead_code, reason = "its fields are read as those of a step")]
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "task", title = "a task", deny_unknown_fields)]
pub struct FullTask {
    /// What its Subagent has to do, whole.
    #[schemars(length(min = 1, max = TASK), extend("format" = "text"))]
    task: String,
    /// A name for it; the place in the list counts. Default: `task_1` and so on.
    id: Option<Id>,
    #[serde(flatten)]
    rest: Defaults,
}

/// What a task is, behind its words and its id.
#[expect(dead_code, reason = "its fields are read as those of a step")]
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "defaults", title = "`defaults`")]
pub struct Defaults {
    /// The role of its Subagent, see `pixir agents`.
    /// Default: `explorer`, which only reads; `worker` if the posture is `write`.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    role: Option<String>,
    /// Which model it asks. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    model: Option<String>,
    /// How hard that shall think. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = WORD), extend("format" = "line"))]
    effort: Option<String>,
    /// Whether it may change files. Default: what the role may do.
    posture: Option<Posture>,
    /// Where it works: among all others, in a copy of its own, or in a git worktree of its own.
    /// Default: `shared` to read, `isolated` to write.
    workspace: Option<Workspace>,
    /// What it may write. Default: `**` if it may write.
    write_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// What it looks at. Default: `**`.
    read_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// What it must deliver. It is completed only when that is so. Default: none.
    output: Option<Map<String, Value>>,
    /// Commands that must pass when it is done. Pixir runs them, not the model. Default: none.
    verify: Option<OneOrMore<CheckSpec, MOST_CHECKS>>,
    /// How long it may work; at most `subagents.max_timeout_ms` of the config.
    /// Default: `limits.child_timeout_ms`.
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    timeout_ms: Option<u64>,
    /// How often it is begun again after it failed. Default: 0.
    #[schemars(range(min = 0, max = 5))]
    retries: Option<u32>,
}

/// How much at once, and how long.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "bounds", title = "the limits")]
pub struct Bounds {
    /// How many children may work at once.
    /// Default: `subagents.max_running` of the config, which is the most.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_concurrency: Option<usize>,
    /// The horizon: when it is reached, whatever still works is cancelled, and recorded as such.
    /// Default: 3600000, an hour, or the workflow's.
    #[schemars(range(min = 1, max = LONGEST_RUN))]
    pub timeout_ms: Option<u64>,
    /// How long each child may work that has no time of its own.
    /// Default: `subagents.timeout_ms` of the config.
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    pub child_timeout_ms: Option<u64>,
}

/// The budget of a workflow, which has no places for arguments here.
struct Total;

impl JsonSchema for Total {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "total".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Budget::json_schema(generator)
    }
}

/// A workflow, which is held against its own schema when its places are filled.
struct Whole;

impl JsonSchema for Whole {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "workflow".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}
