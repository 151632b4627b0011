//! Specs with errors between steps.

use serde_json::{Value, json};

use super::{BrokenSpec, steps, two};

/// All cases of this file.
pub fn cases() -> Vec<BrokenSpec> {
    let plain = |id: &str, after: &str| json!({"id": id, "task": "x", "depends_on": after});
    let cycle: Vec<Value> =
        (0..50).map(|n| plain(&format!("s{n}"), &format!("s{}", (n + 1) % 50))).collect();
    let task = |key: &str, value: Value| two(&json!({ "task": "x", key: value }));
    let review = |output: Value| {
        steps(&json!([
            {"id": "review", "task": "x", "role": "reviewer", "output": output},
            {"id": "b", "task": "x", "gate": "review"},
        ]))
    };
    vec![
        (
            "one id twice",
            two(&json!({"id": "scan", "task": "x"})),
            "/steps/1/id",
            "taken by /steps/0",
        ),
        (
            "two in a circle",
            steps(&json!([plain("a", "b"), plain("b", "a")])),
            "/steps/0/depends_on",
            "`a` -> `b` -> `a`",
        ),
        (
            "fifty in a circle",
            steps(&json!(cycle)),
            "/steps/0/depends_on",
            "`s19` -> 30 more -> `s0`",
        ),
        (
            "a circle through needs",
            steps(&json!([
                {"id": "a", "task": "x", "needs": {"v": "b"}, "output": {"type": "object"}},
                {"id": "b", "task": "x", "depends_on": ["a"], "output": {"type": "object"}},
            ])),
            "/steps/0/needs/v",
            "`a` -> `b` -> `a`",
        ),
        (
            "a circle through apply",
            steps(&json!([{"id": "a", "task": "x", "depends_on": "b"}, {"id": "b", "apply": "a"}])),
            "/steps/0/depends_on",
            "`a` -> `b` -> `a`",
        ),
        ("a slip", task("depends_on", json!(["scna"])), "/steps/1/depends_on/0", "no step `scna`"),
        ("no such gate", task("gate", json!("review")), "/steps/1/gate", "no step `review`"),
        (
            "a gate that cannot approve",
            task("gate", json!("scan")),
            "/steps/1/gate",
            "cannot approve",
        ),
        (
            "a review without a verdict",
            review(json!({"type": "object"})),
            "/steps/1/gate",
            "needs a `verdict`",
        ),
        (
            "a review that never approves",
            review(json!({"type": "object", "properties": {"verdict": {"enum": ["no"]}}})),
            "/steps/1/gate",
            "needs a `verdict`",
        ),
        ("no such source", two(&json!({"apply": "make"})), "/steps/1/apply", "no step `make`"),
        ("to apply oneself", two(&json!({"apply": "b"})), "/steps/1/apply", "waits for itself"),
        ("to apply a reader", two(&json!({"apply": "scan"})), "/steps/1/apply", "only reads"),
        (
            "to apply what is shared",
            steps(
                &json!([{"id": "a", "task": "x", "workspace": "shared"}, {"id": "b", "apply": "a"}]),
            ),
            "/steps/1/apply",
            "shared Workspace",
        ),
        (
            "to apply what applies",
            steps(
                &json!([{"id": "a", "task": "x"}, {"id": "b", "apply": "a"}, {"id": "c", "apply": "b"}]),
            ),
            "/steps/2/apply",
            "applies changes itself",
        ),
        (
            "apply and task",
            steps(&json!([{"id": "a", "task": "x"}, {"id": "b", "apply": "a", "task": "x"}])),
            "/steps/1/task",
            "cannot have `task`",
        ),
        (
            "apply and role",
            steps(&json!([{"id": "a", "task": "x"}, {"id": "b", "apply": "a", "role": "worker"}])),
            "/steps/1/role",
            "cannot have `role`",
        ),
        (
            "apply and set",
            steps(&json!([{"id": "a", "task": "x"}, {"id": "b", "apply": "a", "write_set": "x"}])),
            "/steps/1/write_set",
            "cannot have `write_set`",
        ),
        (
            "apply and output",
            steps(
                &json!([{"id": "a", "task": "x"}, {"id": "b", "apply": "a", "output": {"type": "object"}}]),
            ),
            "/steps/1/output",
            "cannot have `output`",
        ),
        (
            "apply and posture",
            steps(
                &json!([{"id": "a", "task": "x"}, {"id": "b", "apply": "a", "posture": "write"}]),
            ),
            "/steps/1/posture",
            "cannot have `posture`",
        ),
        (
            "apply is a list",
            steps(&json!([{"id": "a", "task": "x"}, {"id": "b", "apply": ["a"]}])),
            "/steps/1/apply",
            "not a list",
        ),
        (
            "a need of nobody",
            task("needs", json!({"v": "nobody"})),
            "/steps/1/needs/v",
            "no step `nobody`",
        ),
        (
            "a need of nobody, in full",
            task("needs", json!({"v": {"step": "nobody"}})),
            "/steps/1/needs/v/step",
            "no step `nobody`",
        ),
        (
            "a need of silence",
            steps(
                &json!([{"id": "a", "task": "x"}, {"id": "b", "task": "x", "needs": {"v": "a"}}]),
            ),
            "/steps/1/needs/v",
            "states no `output`",
        ),
        (
            "a need of oneself",
            task("needs", json!({"v": "b"})),
            "/steps/1/needs/v",
            "waits for itself",
        ),
        (
            "a pointer nowhere",
            task("needs", json!({"v": "scan/findigns"})),
            "/steps/1/needs/v",
            "has no `findigns`",
        ),
        (
            "a pointer too deep",
            task("needs", json!({"v": "scan/findings/0/what"})),
            "/steps/1/needs/v",
            "has no `what`",
        ),
        (
            "a pointer that counts badly",
            task("needs", json!({"v": "scan/findings/-1"})),
            "/steps/1/needs/v",
            "has no `-1`",
        ),
        (
            "a pointer without a slash",
            task("needs", json!({"v": {"step": "scan", "pointer": "findings"}})),
            "/steps/1/needs/v/pointer",
            "not a JSON pointer",
        ),
        (
            "a pointer with a bad escape",
            task("needs", json!({"v": "scan/a~2"})),
            "/steps/1/needs/v",
            "not a JSON pointer",
        ),
        (
            "a need with a bad name",
            task("needs", json!({"a b": "scan"})),
            "/steps/1/needs/a b",
            "cannot be a name",
        ),
        (
            "a need without a step",
            task("needs", json!({"v": {"pointer": "/findings"}})),
            "/steps/1/needs/v",
            "needs `step`",
        ),
        (
            "a need with another key",
            task("needs", json!({"v": {"step": "scan", "from": "x"}})),
            "/steps/1/needs/v/from",
            "has no key",
        ),
        (
            "a need is a number",
            task("needs", json!({"v": 1})),
            "/steps/1/needs/v",
            "text, or an object",
        ),
    ]
}
