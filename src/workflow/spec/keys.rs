//! The table of all keys that a spec can have.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::shape::{Group, Key, Shape};

/// The longest task, in bytes.
pub const TASK: usize = 32 * 1024;
/// The longest name of a model or an effort, and of a Workflow.
pub const WORD: usize = 100;
/// The longest description.
const WORDS: usize = 4_000;
/// The longest command of a check.
pub const COMMAND: usize = 16 * 1024;
/// How many steps there may be.
pub const MOST_STEPS: usize = 2_000;
/// How many globs a set may have.
pub const MOST_GLOBS: usize = 64;
/// The longest that a whole run may take: a week.
pub const LONGEST_RUN: u64 = 7 * 24 * 3_600_000;
/// The longest that a step or a check may take, whatever the config allows: a day.
pub const LONGEST_STEP: u64 = 24 * 3_600_000;
/// The usual time of a run.
pub const USUAL_RUN: u64 = 3_600_000;
/// The usual time of a check.
pub const USUAL_CHECK: u64 = 600_000;

pub const fn key(
    name: &'static str,
    shape: Shape,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key { name, shape, is_required: false, default, doc }
}

pub const fn required(name: &'static str, shape: Shape, doc: &'static str) -> Key {
    Key { name, shape, is_required: true, default: "", doc }
}

/// The whole spec.
pub static WORKFLOW: Group = Group {
    name: "workflow",
    what: "a workflow",
    keys: &[
        key("$schema", Shape::Text(WORDS), "", "For editors; nothing is read from there."),
        key(
            "id",
            Shape::Id,
            "made of the name, or `workflow`",
            "What its author calls it. A run has an id of its own.",
        ),
        key("name", Shape::Line(WORD), "the id", "A name for people."),
        key("description", Shape::Text(WORDS), "", "What it is good for."),
        key(
            "parameters",
            Shape::Named(&Shape::Object(&PARAMETER), 64),
            "none",
            "Names whose values are given when it is run; `{{ name }}` in any string below stands for one.",
        ),
        key("limits", Shape::Object(&LIMITS), "", "How much at once, and how long."),
        key("budget", Shape::Object(&BUDGET), "no limit", "What all steps together may use up."),
        required(
            "steps",
            Shape::List(&Shape::Object(&STEP), 1, MOST_STEPS),
            "What is done. Those that could start at the same time start in this order.",
        ),
    ],
};

pub static PARAMETER: Group = Group {
    name: "parameter",
    what: "a parameter",
    keys: &[
        key(
            "type",
            Shape::Choice(&["string", "integer", "number", "boolean", "array", "object", "any"]),
            "`string`",
            "What a value must be.",
        ),
        key("required", Shape::Flag, "false", "Whether a run must name a value; a default is one."),
        key("default", Shape::Any, "", "The value of a run that names none."),
        key("description", Shape::Text(WORDS), "", "What it is for."),
    ],
};

pub static LIMITS: Group = Group {
    name: "limits",
    what: "the limits",
    keys: &[
        key(
            "max_concurrency",
            Shape::Count(1, 1_000),
            "`subagents.max_running` of the config, which is the most",
            "How many steps may run at once.",
        ),
        key(
            "timeout_ms",
            Shape::Count(1, LONGEST_RUN),
            "3600000, an hour",
            "How long the whole run may take.",
        ),
    ],
};

pub static BUDGET: Group = Group {
    name: "budget",
    what: "the budget",
    keys: &[
        key(
            "tokens",
            Shape::Count(1, 1_000_000_000_000),
            "no limit",
            "How many tokens, all in all.",
        ),
        key(
            "cost_usd",
            Shape::Amount(1_000_000.0),
            "no limit",
            "How many dollars; the models need prices in the config.",
        ),
    ],
};

pub static STEP: Group = Group {
    name: "step",
    what: "a step",
    keys: &[
        required("id", Shape::Id, "By which others refer to it."),
        key(
            "task",
            Shape::Text(TASK),
            "",
            "What its Subagent has to do, whole. Every step has either `task` or `apply`.",
        ),
        key(
            "apply",
            Shape::Id,
            "",
            "The step whose changes are merged into the Workspace; it worked in one of its own.",
        ),
        key("role", Shape::Line(WORD), "`worker`", "The role of its Subagent, see `pixir agents`."),
        key("model", Shape::Line(WORD), "the role's, or the Session's", "Which model it asks."),
        key(
            "effort",
            Shape::Line(WORD),
            "the role's, or the Session's",
            "How hard that shall think.",
        ),
        key(
            "depends_on",
            Shape::OneOrMore(&Shape::Id, MOST_STEPS),
            "none",
            "Steps that must be ready first; those of `needs`, `gate` and `apply` come by themselves.",
        ),
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
        key(
            "read_set",
            Shape::OneOrMore(&Shape::Glob, MOST_GLOBS),
            "`**`",
            "What it looks at, relative to the Workspace.",
        ),
        key(
            "write_set",
            Shape::OneOrMore(&Shape::Glob, MOST_GLOBS),
            "`**` if it may write, else none",
            "What it may write.",
        ),
        key(
            "timeout_ms",
            Shape::Count(1, LONGEST_STEP),
            "`subagents.timeout_ms` of the config",
            "How long it may work; at most `subagents.max_timeout_ms` of the config.",
        ),
        key("retries", Shape::Count(0, 5), "0", "How often it is begun again after it failed."),
        key("optional", Shape::Flag, "false", "Whether the run is complete without it."),
        key(
            "on_failure",
            Shape::Choice(&["hold", "continue", "abort"]),
            "`hold`",
            "What becomes of the others when it does not get ready: those that depend on it do not start, they start \
             all the same, or the run ends.",
        ),
        key(
            "needs",
            Shape::Named(&Shape::TextOr(WORDS, &NEED), 64),
            "none",
            "Values of earlier steps that it is given, by the name it gets them under. `\"scan/findings\"` is short for \
             a step and a pointer into its output.",
        ),
        key(
            "output",
            Shape::Schema,
            "none",
            "What it must deliver. It is ready only when that is so.",
        ),
        key(
            "verify",
            Shape::OneOrMore(&Shape::TextOr(COMMAND, &CHECK), 32),
            "none",
            "Commands that must pass when it is done. Pixir runs them, not the model.",
        ),
        key(
            "gate",
            Shape::Id,
            "",
            "A review that must approve before this step starts: a step of role `reviewer`, or one whose `output` has a \
             `verdict` that can be `approve`.",
        ),
    ],
};

pub static NEED: Group = Group {
    name: "need",
    what: "a need",
    keys: &[
        required("step", Shape::Id, "Which step delivers it; it must have an `output`."),
        key(
            "pointer",
            Shape::Line(WORDS),
            "all of it",
            "Where in its output, as a JSON pointer such as `/findings/0`.",
        ),
    ],
};

pub static CHECK: Group = Group {
    name: "check",
    what: "a check",
    keys: &[
        required(
            "command",
            Shape::Text(COMMAND),
            "A shell command; it passes when it exits with 0.",
        ),
        key(
            "timeout_ms",
            Shape::Count(1, LONGEST_STEP),
            "600000, ten minutes",
            "How long it may take.",
        ),
    ],
};

/// All tables, in the order of the reference.
pub static ALL: [&Group; 7] = [&WORKFLOW, &PARAMETER, &LIMITS, &BUDGET, &STEP, &NEED, &CHECK];

/// The keys that make no sense for a step that applies.
pub const NOT_WITH_APPLY: &[&str] = &[
    "task",
    "role",
    "model",
    "effort",
    "posture",
    "workspace",
    "read_set",
    "write_set",
    "retries",
    "needs",
    "output",
];

/// The JSON schema of a spec as it is written.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    definitions.insert(
        "place".to_owned(),
        json!({
            "description": "Nothing but a place for an argument, which brings its type.",
            "type": "string",
            "pattern": r"^\{\{\s*[A-Za-z0-9_-]+\s*\}\}$",
        }),
    );
    definitions.insert(
        "text".to_owned(),
        json!({
            "description": "Text with at least one place for an argument.",
            "type": "string",
            "pattern": r"\{\{\s*[A-Za-z0-9_-]+\s*\}\}",
        }),
    );
    for group in ALL.into_iter().skip(1) {
        definitions.insert(group.name.to_owned(), object(group));
    }
    let mut schema = object(&WORKFLOW);
    let mut whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Workflow of Pixir, as it is written",
    });
    if let (Some(whole), Some(fields)) = (whole.as_object_mut(), schema.as_object_mut()) {
        whole.append(fields);
        whole.insert("$defs".to_owned(), Value::Object(definitions));
    }
    whole
}

pub fn object(group: &Group) -> Value {
    let properties: Map<String, Value> = group
        .keys
        .iter()
        .map(|key| {
            let mut schema = key.shape.schema();
            if let Some(fields) = schema.as_object_mut() {
                let default = if key.default.is_empty() {
                    String::new()
                } else {
                    format!(" Default: {}.", key.default)
                };
                fields.insert("description".to_owned(), format!("{}{default}", key.doc).into());
            }
            (key.name.to_owned(), schema)
        })
        .collect();
    let required: Vec<&str> =
        group.keys.iter().filter(|key| key.is_required).map(|key| key.name).collect();
    let mut schema = json!({
        "type": "object", "additionalProperties": false, "properties": properties,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The tables of the reference, as Markdown.
pub fn reference() -> String {
    reference_of(&ALL)
}

/// Some tables, as Markdown.
pub fn reference_of(groups: &[&Group]) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut page = String::new();
    for group in groups {
        // Writing to a String cannot fail.
        writeln!(page, "\n### {}\n", heading(group.name)).ok();
        page.push_str("| key | value | default | |\n|---|---|---|---|\n");
        for key in group.keys {
            let default = if key.is_required { "required" } else { key.default };
            let [words, default, doc] = [&key.shape.words(), default, key.doc].map(cell);
            writeln!(page, "| `{}` | {words} | {default} | {doc} |", key.name).ok();
        }
    }
    page
}

fn heading(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
