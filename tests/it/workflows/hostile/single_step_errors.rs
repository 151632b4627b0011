//! Specs with errors within one step.

use serde_json::{Map, Value, json};

use super::{BrokenSpec, one, steps};

/// All cases of this file.
pub fn cases() -> Vec<BrokenSpec> {
    let globs: Vec<String> = (0..65).map(|n| format!("a{n}")).collect();
    let checks: Vec<String> = (0..33).map(|n| format!("test {n}")).collect();
    let lots: Map<String, Value> = (0..65).map(|n| (format!("n{n}"), json!("a"))).collect();
    let step = |key: &str, value: Value| one(&json!({ key: value }));
    vec![
        ("no id", steps(&json!([{"task": "x"}])), "/steps/0", "needs `id`"),
        ("no task", steps(&json!([{"id": "a"}])), "/steps/0", "needs `task`, or `apply`"),
        ("id with a blank", step("id", json!("a b")), "/steps/0/id", "an id"),
        ("id with a NUL", step("id", json!("a\0")), "/steps/0/id", "an id"),
        ("id that turns round", step("id", json!("a\u{202e}b")), "/steps/0/id", "an id"),
        ("blank task", step("task", json!(" \n\t")), "/steps/0/task", "not blank"),
        ("task is a number", step("task", json!(1)), "/steps/0/task", "text"),
        ("task with a NUL", step("task", json!("a\0b")), "/steps/0/task", "NUL"),
        (
            "long task",
            step("task", json!("x".repeat(32_769))),
            "/steps/0/task",
            "32768 are allowed",
        ),
        ("agent", step("agent", json!("worker")), "/steps/0/agent", "has no key `agent`"),
        (
            "unknown role",
            step("role", json!("wizard")),
            "/steps/0/role",
            "there is no role `wizard`",
        ),
        ("role is a list", step("role", json!(["worker"])), "/steps/0/role", "one line"),
        ("role with a line", step("role", json!("wor\nker")), "/steps/0/role", "one line"),
        ("long model", step("model", json!("m".repeat(101))), "/steps/0/model", "100 are allowed"),
        ("model with a control", step("model", json!("m\u{7}")), "/steps/0/model", "one line"),
        ("effort is a number", step("effort", json!(3)), "/steps/0/effort", "not `3`"),
        (
            "unknown posture",
            step("posture", json!("readonly")),
            "/steps/0/posture",
            "none of: read_only, write",
        ),
        ("posture is true", step("posture", json!(true)), "/steps/0/posture", "not `true`"),
        ("unknown workspace", step("workspace", json!("overlay")), "/steps/0/workspace", "none of"),
        (
            "a reader that writes",
            one(&json!({"role": "explorer", "posture": "write"})),
            "/steps/0/posture",
            "only reads",
        ),
        (
            "a reader with a write set",
            one(&json!({"role": "explorer", "write_set": "a"})),
            "/steps/0/write_set",
            "only reads",
        ),
        (
            "a worker that only reads with a write set",
            one(&json!({"posture": "read_only", "write_set": ["a"]})),
            "/steps/0/write_set",
            "posture `write`",
        ),
        (
            "a writer of nothing",
            step("write_set", json!([])),
            "/steps/0/write_set",
            "write something",
        ),
        ("blank glob", step("write_set", json!(" ")), "/steps/0/write_set", "a glob"),
        (
            "absolute glob",
            step("write_set", json!(["a", "/etc/**"])),
            "/steps/0/write_set/1",
            "relative",
        ),
        ("root", step("write_set", json!("/")), "/steps/0/write_set", "matches nothing"),
        ("home", step("read_set", json!("~/x")), "/steps/0/read_set", "relative"),
        ("parent", step("read_set", json!("a/../../b")), "/steps/0/read_set", "`..`"),
        ("open class", step("read_set", json!("a[b")), "/steps/0/read_set", "cannot be used"),
        ("open choice", step("read_set", json!("a{b,c")), "/steps/0/read_set", "cannot be used"),
        ("backward range", step("read_set", json!("[z-a]")), "/steps/0/read_set", "cannot be used"),
        (
            "escape at the end",
            step("read_set", json!("a\\")),
            "/steps/0/read_set",
            "cannot be used",
        ),
        (
            "no path at all",
            step("read_set", json!("a[/][/]b")),
            "/steps/0/read_set",
            "matches no path",
        ),
        ("glob with a control", step("read_set", json!("a\nb")), "/steps/0/read_set", "a glob"),
        (
            "long glob",
            step("read_set", json!("a".repeat(257))),
            "/steps/0/read_set",
            "256 are allowed",
        ),
        ("65 globs", step("read_set", json!(globs)), "/steps/0/read_set", "65 entries"),
        ("glob is a number", step("read_set", json!([1])), "/steps/0/read_set/0", "a glob"),
        ("set is an object", step("read_set", json!({})), "/steps/0/read_set", "not an object"),
        ("no time", step("timeout_ms", json!(0)), "/steps/0/timeout_ms", "from 1"),
        ("time before", step("timeout_ms", json!(-5)), "/steps/0/timeout_ms", "not `-5`"),
        (
            "more time than allowed",
            step("timeout_ms", json!(3_600_001)),
            "/steps/0/timeout_ms",
            "max_timeout_ms",
        ),
        ("18 digits", step("timeout_ms", json!(u64::MAX)), "/steps/0/timeout_ms", "from 1"),
        ("six retries", step("retries", json!(6)), "/steps/0/retries", "from 0 to 5"),
        ("a half retry", step("retries", json!(0.5)), "/steps/0/retries", "whole number"),
        ("optional is text", step("optional", json!("yes")), "/steps/0/optional", "true or false"),
        (
            "unknown failure",
            step("on_failure", json!("ignore")),
            "/steps/0/on_failure",
            "none of: hold, continue, abort",
        ),
        ("output is text", step("output", json!("object")), "/steps/0/output", "JSON schema"),
        (
            "output is a list",
            step("output", json!({"type": "array"})),
            "/steps/0/output/type",
            "of an object",
        ),
        ("output says nothing", step("output", json!({})), "/steps/0/output/type", "of an object"),
        (
            "output is no schema",
            step("output", json!({"type": "object", "required": 3})),
            "/steps/0/output",
            "not a JSON Schema",
        ),
        (
            "output from the network",
            step(
                "output",
                json!({"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}),
            ),
            "/steps/0/output/properties/a/$ref",
            "must stay in the schema",
        ),
        (
            "output from a file",
            step("output", json!({"type": "object", "allOf": [{"$ref": "file:///etc/passwd"}]})),
            "/steps/0/output/allOf/0/$ref",
            "must stay in the schema",
        ),
        (
            "output that leads to itself",
            step("output", json!({"type": "object", "$ref": "#"})),
            "/steps/0/output",
            "back to itself",
        ),
        (
            "output that leads round",
            step(
                "output",
                json!({"type": "object", "allOf": [{"anyOf": [{"$ref": "#/$defs/a"}]}], "$defs": {"a": {"not": {"$ref": "#"}}}}),
            ),
            "/steps/0/output",
            "back to itself",
        ),
        (
            "output with a name",
            step("output", json!({"type": "object", "$id": "https://example.org/x"})),
            "/steps/0/output/$id",
            "no name of its own",
        ),
        (
            "output that leads nowhere",
            step("output", json!({"type": "object", "$ref": "#/x"})),
            "/steps/0/output",
            "JSON Schema",
        ),
        (
            "check is a number",
            step("verify", json!([1])),
            "/steps/0/verify/0",
            "text, or an object",
        ),
        ("blank check", step("verify", json!([" "])), "/steps/0/verify/0", "not blank"),
        (
            "check without a command",
            step("verify", json!([{"timeout_ms": 1}])),
            "/steps/0/verify/0",
            "needs `command`",
        ),
        (
            "check without time",
            step("verify", json!([{"command": "x", "timeout_ms": 0}])),
            "/steps/0/verify/0/timeout_ms",
            "from 1",
        ),
        (
            "unknown key of a check",
            step("verify", json!({"cmd": "x", "command": "x"})),
            "/steps/0/verify/cmd",
            "has no key",
        ),
        ("33 checks", step("verify", json!(checks)), "/steps/0/verify", "33 entries"),
        ("65 needs", step("needs", json!(lots)), "/steps/0/needs", "65 entries"),
        ("itself", step("depends_on", json!("a")), "/steps/0/depends_on", "waits for itself"),
        ("its own gate", step("gate", json!("a")), "/steps/0/gate", "waits for itself"),
        ("null", step("gate", json!(null)), "/steps/0/gate", "leave it out"),
        (
            "an unknown step",
            step("depends_on", json!(["b"])),
            "/steps/0/depends_on/0",
            "no step `b`",
        ),
        (
            "dependencies are an object",
            step("depends_on", json!({"a": 1})),
            "/steps/0/depends_on",
            "not an object",
        ),
    ]
}
