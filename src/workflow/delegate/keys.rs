//! The table of all keys that a delegation can have.

use crate::workflow::spec::keys::{
    BUDGET, CHECK, COMMAND, LONGEST_RUN, LONGEST_STEP, MOST_GLOBS, MOST_STEPS, TASK, WORD,
    WORKFLOW, key, required,
};
use crate::workflow::spec::shape::{Group, Shape};

/// The whole spec.
pub static DELEGATION: Group = Group {
    name: "delegation",
    what: "a delegation",
    keys: &[
        key("$schema", Shape::Text(4_000), "", "For editors; nothing is read from there."),
        key("contract_version", Shape::Count(1, 1), "1", "The version of this format."),
        key("name", Shape::Line(WORD), "`delegate`, or the workflow's", "A name for people."),
        key(
            "tasks",
            Shape::List(&Shape::TextOr(TASK, &ONE_TASK), 1, MOST_STEPS),
            "",
            "Independent tasks, each a text or an object. One of `tasks`, `workflow` and `template` must be there.",
        ),
        key(
            "defaults",
            Shape::Object(&DEFAULTS),
            "",
            "What holds for every task that says nothing else.",
        ),
        key("workflow", Shape::Object(&WORKFLOW), "", "Instead: a whole workflow."),
        key("template", Shape::Line(200), "", "Instead: `skill/template`."),
        key(
            "arguments",
            Shape::Named(&Shape::Any, 64),
            "none",
            "The values of the parameters of a workflow or template.",
        ),
        key("limits", Shape::Object(&LIMITS), "", "How much at once, and how long."),
        key(
            "budget",
            Shape::Object(&ALL_TOGETHER),
            "no limit",
            "What all children together may use up.",
        ),
    ],
};

/// What a task is, behind its words and its id.
macro_rules! task_keys {
    ($($first:expr),*) => {
        &[
            $($first,)*
            key(
                "role",
                Shape::Line(WORD),
                "`explorer`, which only reads; `worker` if the posture is `write`",
                "The role of its Subagent, see `pixir agents`.",
            ),
            key("model", Shape::Line(WORD), "the role's, or the Session's", "Which model it asks."),
            key("effort", Shape::Line(WORD), "the role's, or the Session's", "How hard that shall think."),
            key(
                "posture",
                Shape::Choice(&["read_only", "write"]),
                "what the role may do",
                "Whether it may change files.",
            ),
            key(
                "workspace",
                Shape::Choice(&["shared", "isolated", "worktree"]),
                "`shared` to read, `isolated` to write",
                "Where it works: among all others, in a copy of its own, or in a git worktree of its own.",
            ),
            key("write_set", Shape::OneOrMore(&Shape::Glob, MOST_GLOBS), "`**` if it may write", "What it may write."),
            key("read_set", Shape::OneOrMore(&Shape::Glob, MOST_GLOBS), "`**`", "What it looks at."),
            key(
                "output",
                Shape::Schema,
                "none",
                "What it must deliver. It is completed only when that is so.",
            ),
            key(
                "verify",
                Shape::OneOrMore(&Shape::TextOr(COMMAND, &CHECK), 32),
                "none",
                "Commands that must pass when it is done. Pixir runs them, not the model.",
            ),
            key(
                "timeout_ms",
                Shape::Count(1, LONGEST_STEP),
                "`limits.child_timeout_ms`",
                "How long it may work; at most `subagents.max_timeout_ms` of the config.",
            ),
            key("retries", Shape::Count(0, 5), "0", "How often it is begun again after it failed."),
        ]
    };
}

pub static ONE_TASK: Group = Group {
    name: "task",
    what: "a task",
    keys: task_keys!(
        required("task", Shape::Text(TASK), "What its Subagent has to do, whole."),
        key("id", Shape::Id, "`task_1` and so on", "A name for it; the place in the list counts.")
    ),
};

pub static DEFAULTS: Group = Group { name: "defaults", what: "`defaults`", keys: task_keys!() };

pub static LIMITS: Group = Group {
    name: "bounds",
    what: "the limits",
    keys: &[
        key(
            "max_concurrency",
            Shape::Count(1, 1_000),
            "`subagents.max_running` of the config, which is the most",
            "How many children may work at once.",
        ),
        key(
            "timeout_ms",
            Shape::Count(1, LONGEST_RUN),
            "3600000, an hour, or the workflow's",
            "The horizon: when it is reached, whatever still works is cancelled, and recorded as such.",
        ),
        key(
            "child_timeout_ms",
            Shape::Count(1, LONGEST_STEP),
            "`subagents.timeout_ms` of the config",
            "How long each child may work that has no time of its own.",
        ),
    ],
};

/// The budget of a workflow, without places for arguments.
static ALL_TOGETHER: Group = Group { name: "total", what: "the budget", keys: BUDGET.keys };

/// The tables that a delegation has for itself, in the order of the reference.
pub static OWN: [&Group; 5] = [&DELEGATION, &ONE_TASK, &DEFAULTS, &LIMITS, &ALL_TOGETHER];
