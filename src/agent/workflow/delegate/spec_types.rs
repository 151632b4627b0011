//! The types of a delegation as programs write it: they are deserialised, checked and published as a schema.

use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::agent::workflow::spec::spec_types::{
    CheckSpec, GlobSpec, ID_PATTERN, LONGEST_RUN, LONGEST_STEP, MAX_NAME_BYTES, MAX_TASK_BYTES,
    MAX_TEXT_BYTES, MOST_CHECKS, MOST_GLOBS, MOST_STEPS, OneOrMore, SpecId,
};
use crate::agent::workflow::spec::{StepPosture, WorkflowBudget, WorkspaceMode};

/// Tasks, a workflow or a template that another program delegates.
#[expect(dead_code, reason = "tasks are described here, and read one by one")]
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "delegation", title = "a delegation")]
pub struct DelegationSpec {
    /// The JSON schema, for editors; Pixir ignores it.
    #[serde(rename = "$schema")]
    #[schemars(length(min = 1, max = MAX_TEXT_BYTES), extend("format" = "text"))]
    pub schema: Option<String>,
    /// The version of this format. Default: 1.
    #[schemars(range(min = 1, max = 1))]
    pub contract_version: Option<u64>,
    /// A name for people. Default: `delegate`, or the workflow's.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    pub name: Option<String>,
    /// Independent tasks, each a text or an object. Exactly one of `tasks`, `workflow` and `template` is required.
    #[schemars(length(min = 1, max = MOST_STEPS))]
    pub tasks: Option<Vec<TaskSpec>>,
    /// Values for every task that does not set its own.
    pub defaults: Option<TaskDefaults>,
    /// A whole workflow, instead of tasks.
    #[schemars(with = "Option<NestedWorkflowSchema>")]
    pub workflow: Option<Map<String, Value>>,
    /// The template of a skill, as `skill/template`, instead of tasks.
    #[schemars(length(min = 1, max = 200), extend("format" = "line"))]
    pub template: Option<String>,
    /// The values of the parameters of a workflow or template. Default: none.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = { "pattern": ID_PATTERN }))]
    pub arguments: Option<Map<String, Value>>,
    /// Concurrency and time limits.
    pub limits: Option<DelegateLimits>,
    /// The spending limits of all children together. Default: no limit.
    #[schemars(with = "Option<BudgetSchema>")]
    pub budget: Option<WorkflowBudget>,
}

/// A task, in short or in full.
#[expect(dead_code, reason = "its fields are read as those of a step")]
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum TaskSpec {
    Short(#[schemars(length(min = 1, max = MAX_TASK_BYTES), extend("format" = "text"))] String),
    Full(Box<FullTask>),
}

/// A task for a Subagent.
#[expect(dead_code, reason = "its fields are read as those of a step")]
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "task", title = "a task", deny_unknown_fields)]
pub struct FullTask {
    /// The complete task for its Subagent.
    #[schemars(length(min = 1, max = MAX_TASK_BYTES), extend("format" = "text"))]
    task: String,
    /// A name for it; answers are matched by index. Default: `task_1` and so on.
    id: Option<SpecId>,
    #[serde(flatten)]
    rest: TaskDefaults,
}

/// The fields of a task besides its text and its id.
#[expect(dead_code, reason = "its fields are read as those of a step")]
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "defaults", title = "`defaults`")]
pub struct TaskDefaults {
    /// The role of its Subagent, see `pixir agents`.
    /// Default: `explorer`, which only reads; `worker` if the posture is `write`.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    role: Option<String>,
    /// The model of its Subagent. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    model: Option<String>,
    /// The reasoning effort of the model. Default: the role's, or the Session's.
    #[schemars(length(min = 1, max = MAX_NAME_BYTES), extend("format" = "line"))]
    effort: Option<String>,
    /// Whether it may change files. Default: what the role may do.
    posture: Option<StepPosture>,
    /// Where it works: in the shared Workspace, in its own copy, or in its own git worktree.
    /// Default: `shared` to read, `isolated` to write.
    workspace: Option<WorkspaceMode>,
    /// The files that it may write. Default: `**` if it may write.
    write_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// The files that it reads, as globs relative to the Workspace. Default: `**`.
    read_set: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    /// The JSON schema of its answer. It is completed only when its answer fits. Default: none.
    output: Option<Map<String, Value>>,
    /// Commands that must pass when it is done. Pixir runs them, not the model. Default: none.
    verify: Option<OneOrMore<CheckSpec, MOST_CHECKS>>,
    /// Its time limit; at most `subagents.max_timeout_ms` of the config.
    /// Default: `limits.child_timeout_ms`.
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    timeout_ms: Option<u64>,
    /// How many more attempts are made after it failed. Default: 0.
    #[schemars(range(min = 0, max = 5))]
    retries: Option<u32>,
}

/// Concurrency and time limits.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "bounds", title = "the limits")]
pub struct DelegateLimits {
    /// How many children may work at once.
    /// Default: `subagents.max_running` of the config, which is the most.
    #[schemars(range(min = 1, max = 1_000))]
    pub max_concurrency: Option<usize>,
    /// The time limit of the delegation; children that still run then are cancelled, and recorded as timed out.
    /// Default: 3600000, an hour, or the workflow's.
    #[schemars(range(min = 1, max = LONGEST_RUN))]
    pub timeout_ms: Option<u64>,
    /// The time limit of each child without one of its own.
    /// Default: `subagents.timeout_ms` of the config.
    #[schemars(range(min = 1, max = LONGEST_STEP))]
    pub child_timeout_ms: Option<u64>,
}

/// The schema of a budget without placeholders for arguments.
struct BudgetSchema;

impl JsonSchema for BudgetSchema {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "total".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        WorkflowBudget::json_schema(generator)
    }
}

/// The schema of a nested workflow, which is checked against its own schema after its placeholders are filled.
struct NestedWorkflowSchema;

impl JsonSchema for NestedWorkflowSchema {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "workflow".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}
