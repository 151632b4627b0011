//! Texts that are not JSON, and specs with errors at their top level.

use serde_json::{Value, json};

use super::{BrokenSpec, top};

/// Texts that are not JSON.
pub fn texts() -> Vec<BrokenSpec> {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(3_000), close.repeat(3_000));
    let nested = format!(r#"{{"id": "x", "steps": {}"#, "[".repeat(100));
    let own = |text: &str| text.to_owned();
    vec![
        ("nothing", own(""), "", "ends too early"),
        ("blanks", own("  \n "), "", "ends too early"),
        (
            "half",
            own(r#"{"id": "x", "steps": [{"id": "a", "task": "x"}"#),
            "/steps/1",
            "ends too early",
        ),
        ("half a word", own(r#"{"id": "x", "st"#), "", "ends too early"),
        ("yaml", own("id: x\nsteps: []\n"), "", "not JSON: line 1, column 1"),
        ("comment", own("// a\n{}"), "", "not JSON"),
        ("comma", own(r#"{"id": "x",}"#), "", "not JSON"),
        ("single quotes", own("{'id': 'x'}"), "", "not JSON"),
        ("two documents", own("{}{}"), "", "not JSON"),
        ("mark", own("\u{feff}{}"), "", "byte order mark"),
        ("lone surrogate", own(r#"{"id": "\ud800"}"#), "/id", "not JSON"),
        ("raw control", own("{\"id\": \"a\u{1}\"}"), "/id", "not JSON"),
        ("number too large", own(r#"{"id": 1e999}"#), "/id", "not JSON"),
        ("nan", own(r#"{"id": NaN}"#), "/id", "not JSON"),
        ("list", own("[]"), "", "must be a JSON object"),
        ("text", own(r#""x""#), "", "must be a JSON object"),
        ("null", own("null"), "", "must be a JSON object"),
        ("deep lists", deep("[", "]"), "/0/0/0/0/0/0/0/0", "nested more than 64"),
        ("deep objects", deep(r#"{"a":"#, "}"), "/a/a/a/a/a/a/a/a", "nested more than 64"),
        ("deep and torn", nested, "/steps/0/0/0/0", "nested more than 64"),
        (
            "huge",
            format!(r#"{{"id": "{}"}}"#, "a".repeat(1_000_001)),
            "",
            "bytes, 1000000 are allowed",
        ),
        ("twice", own(r#"{"id": "x", "id": "y", "steps": []}"#), "/id", "occurs twice"),
        (
            "twice in a step",
            own(r#"{"id": "x", "steps": [{"id": "a", "task": "x", "task": "y"}]}"#),
            "/steps/0/task",
            "occurs twice",
        ),
        (
            "twice in a schema",
            own(
                r#"{"id": "x", "steps": [{"id": "a", "task": "x", "output": {"type": "object", "a/b": 1, "a/b": 2}}]}"#,
            ),
            "/steps/0/output/a~1b",
            "occurs twice",
        ),
    ]
}

/// Specs with errors at their top level.
pub fn tops() -> Vec<BrokenSpec> {
    let many = |count: usize| -> Value {
        (0..count).map(|n| json!({"id": format!("s{n}"), "task": "x"})).collect()
    };
    let long = "a".repeat(65);
    vec![
        ("no object in a step", top(&json!({"steps": [null]})), "/steps/0", "must be an object"),
        ("no steps", json!({"id": "x"}).to_string(), "", "needs `steps`"),
        ("steps are an object", top(&json!({"steps": {}})), "/steps", "not an object"),
        ("steps are null", top(&json!({"steps": null})), "/steps", "leave it out"),
        ("no step", top(&json!({"steps": []})), "/steps", "0 entries"),
        ("2,001 steps", top(&json!({"steps": many(2_001)})), "/steps", "2001 entries"),
        ("a step is text", top(&json!({"steps": ["a"]})), "/steps/0", "must be an object"),
        ("id is a number", top(&json!({"id": 3})), "/id", "not `3`"),
        ("id is blank", top(&json!({"id": ""})), "/id", "an id"),
        ("id has a path", top(&json!({"id": "../x"})), "/id", "an id"),
        ("id has a dash first", top(&json!({"id": "-x"})), "/id", "an id"),
        ("id is long", top(&json!({"id": long})), "/id", "an id"),
        ("id has a control", top(&json!({"id": "a\u{1b}[2J"})), "/id", "not `a?[2J`"),
        ("id has a line", top(&json!({"id": "a\nb"})), "/id", "an id"),
        ("id is not ASCII", top(&json!({"id": "wörk"})), "/id", "an id"),
        ("name is a list", top(&json!({"name": []})), "/name", "not a list"),
        ("name has lines", top(&json!({"name": "a\nb"})), "/name", "one line"),
        ("description is blank", top(&json!({"description": " "})), "/description", "not blank"),
        ("unknown key", top(&json!({"stepz": 1})), "/stepz", "has no key `stepz`"),
        ("unknown key with a slash", top(&json!({"a/b~c": 1})), "/a~1b~0c", "has no key"),
        (
            "limits at the top",
            top(&json!({"max_concurrency": 2})),
            "/max_concurrency",
            "has no key",
        ),
        ("limits are a number", top(&json!({"limits": 3})), "/limits", "an object"),
        ("unknown limit", top(&json!({"limits": {"max": 3}})), "/limits/max", "has no key"),
        (
            "nobody at once",
            top(&json!({"limits": {"max_concurrency": 0}})),
            "/limits/max_concurrency",
            "from 1",
        ),
        (
            "minus one at once",
            top(&json!({"limits": {"max_concurrency": -1}})),
            "/limits/max_concurrency",
            "not `-1`",
        ),
        (
            "half at once",
            top(&json!({"limits": {"max_concurrency": 1.5}})),
            "/limits/max_concurrency",
            "not `1.5`",
        ),
        (
            "as text",
            top(&json!({"limits": {"max_concurrency": "2"}})),
            "/limits/max_concurrency",
            "not `2`",
        ),
        (
            "too many at once",
            top(&json!({"limits": {"max_concurrency": 9}})),
            "/limits/max_concurrency",
            "from 1 to 8",
        ),
        ("no time", top(&json!({"limits": {"timeout_ms": 0}})), "/limits/timeout_ms", "from 1"),
        (
            "for ever",
            top(&json!({"limits": {"timeout_ms": 1e99}})),
            "/limits/timeout_ms",
            "whole number",
        ),
        (
            "a month",
            top(&json!({"limits": {"timeout_ms": 2_678_400_000_u64}})),
            "/limits/timeout_ms",
            "from 1",
        ),
        ("no tokens", top(&json!({"budget": {"tokens": 0}})), "/budget/tokens", "from 1"),
        ("for nothing", top(&json!({"budget": {"cost_usd": 0}})), "/budget/cost_usd", "above 0"),
        ("for less", top(&json!({"budget": {"cost_usd": -0.5}})), "/budget/cost_usd", "above 0"),
        (
            "for everything",
            top(&json!({"budget": {"cost_usd": 1e99}})),
            "/budget/cost_usd",
            "above 0",
        ),
        ("unknown budget", top(&json!({"budget": {"cost": 1}})), "/budget/cost", "has no key"),
        (
            "a place for nobody",
            top(&json!({"name": "{{ area }}"})),
            "/name",
            "`{{ area }}` is no parameter",
        ),
        ("a place in a key is none", top(&json!({"{{ a }}": 1})), "/{{ a }}", "has no key"),
        (
            "a parameter without a value",
            top(&json!({"parameters": {"area": {"required": true}}})),
            "/parameters/area",
            "needs a value: --arg area=...",
        ),
        ("parameters are a list", top(&json!({"parameters": []})), "/parameters", "an object"),
        (
            "a parameter is text",
            top(&json!({"parameters": {"a": "string"}})),
            "/parameters/a",
            "an object",
        ),
        (
            "a parameter has no name",
            top(&json!({"parameters": {"a b": {}}})),
            "/parameters/a b",
            "cannot be a name",
        ),
        (
            "unknown type",
            top(&json!({"parameters": {"a": {"type": "int"}}})),
            "/parameters/a/type",
            "none of",
        ),
        (
            "mistyped default",
            top(&json!({"parameters": {"a": {"type": "integer", "default": "3"}}})),
            "/parameters/a/default",
            "not of type integer",
        ),
        (
            "unknown key of a parameter",
            top(&json!({"parameters": {"a": {"kind": 1}}})),
            "/parameters/a/kind",
            "has no key",
        ),
        (
            "a default that does not fit",
            top(
                &json!({"parameters": {"n": {"type": "integer", "default": 0}}, "limits": {"max_concurrency": "{{ n }}"}}),
            ),
            "/limits/max_concurrency",
            "not `0`",
        ),
        (
            "a number in the middle of words",
            top(
                &json!({"parameters": {"n": {"type": "integer", "default": 2}}, "limits": {"max_concurrency": "{{ n }} "}}),
            ),
            "/limits/max_concurrency",
            "not `2 `",
        ),
        (
            "a value in a list",
            top(&json!({
                "parameters": {"gone": {}, "bad": {"default": "/etc"}},
                "steps": [{"id": "a", "task": "x", "read_set": ["{{ gone }}", "a", "{{ bad }}"]}],
            })),
            "/steps/0/read_set/2",
            "relative to the Workspace",
        ),
        (
            "a value that is a list",
            top(&json!({
                "parameters": {"all": {"type": "array", "default": ["a", ".."]}},
                "steps": [{"id": "a", "task": "x", "read_set": "{{ all }}"}],
            })),
            "/steps/0/read_set",
            "must not contain `..`",
        ),
    ]
}
