//! Tests of reading specs: defaults, flaws and their pointers.

use serde_json::{Value, json};

use super::*;
use crate::settings::config::SubagentLimits;

fn context() -> SpecContext<'static> {
    SpecContext::with_built_in_roles(SubagentLimits::default())
}

fn read(value: &Value) -> Workflow {
    Workflow::from_json(value, &context()).unwrap_or_else(|error| panic!("{:#?}", error.flaws))
}

fn flaws(value: &Value) -> Vec<String> {
    let error = Workflow::from_json(value, &context()).unwrap_err();
    error.flaws.iter().map(ToString::to_string).collect()
}

fn spec(steps: &Value) -> Value {
    json!({ "id": "x", "steps": steps })
}

#[test]
fn what_is_not_said_has_a_value() {
    let workflow = read(&spec(&json!([
        { "id": "look", "task": " Look. ", "role": "explorer", "output": {"type": "object"} },
        { "id": "make", "task": "Make.", "needs": {"seen": "look/a"}, "write_set": ["./src/", "src//**", "a.md"] },
        { "id": "check", "task": "Check.", "role": "reviewer", "depends_on": "make" },
        { "id": "land", "apply": "make", "gate": "check", "depends_on": ["check", "check"], "verify": "cargo test" },
    ])));
    assert_eq!((workflow.name.as_str(), workflow.limits.max_concurrency), ("x", 8));
    assert_eq!(workflow.limits.timeout_ms, 3_600_000);
    let named = |name: Value| read(&json!({"name": name, "steps": [{"id": "a", "task": "x"}]})).id;
    assert_eq!(named(json!(" Über die Release-Notes 2")), "ber-die-release-notes-2");
    assert_eq!(named(json!("日本")), "workflow");
    let [look, make, check, land] = workflow.steps.as_slice() else { panic!() };
    assert_eq!(look.task.as_deref(), Some("Look."));
    assert_eq!((look.posture, look.workspace), (StepPosture::ReadOnly, WorkspaceMode::Shared));
    assert_eq!((look.read_set.as_slice(), look.write_set.len()), (["**".to_owned()].as_slice(), 0));
    assert_eq!((make.role.as_str(), make.posture), ("worker", StepPosture::Write));
    assert_eq!(make.workspace, WorkspaceMode::Isolated);
    assert_eq!(
        (make.depends_on.as_slice(), &make.write_set[..]),
        (["look".to_owned()].as_slice(), &["src/**".to_owned(), "a.md".to_owned()][..])
    );
    assert_eq!(make.needs["seen"], Need { step: "look".into(), pointer: "/a".into() });
    assert_eq!(check.posture, StepPosture::ReadOnly);
    assert_eq!(land.depends_on, ["make", "check"]);
    assert_eq!(
        (land.posture, land.workspace, &land.write_set),
        (StepPosture::Write, WorkspaceMode::Shared, &make.write_set)
    );
    assert_eq!(land.verify, [CheckCommand { command: "cargo test".into(), timeout_ms: 600_000 }]);
    // The completed form is read back unchanged, with the same hash.
    let again: Workflow = serde_json::from_value(serde_json::to_value(&workflow).unwrap()).unwrap();
    assert_eq!((&again, again.hash()), (&workflow, workflow.hash()));
}

#[test]
fn arguments_take_their_places_with_their_types() {
    let written = json!({
        "id": "x",
        "parameters": {
            "area": {"required": true},
            "many": {"type": "integer", "default": 2},
            "model": {},
            "globs": {"type": "array", "default": ["a/", "b"]},
        },
        "limits": {"max_concurrency": "{{ many }}"},
        "steps": [{"id": "{{ area }}-1", "task": "Look at {{area}}.", "role": "explorer", "model": "{{ model }}",
                   "read_set": "{{ globs }}"}],
    });
    let mut context = context();
    context.arguments.insert("area".into(), "src {{ model }}".into());
    let error = Workflow::from_json(&written, &context).unwrap_err();
    assert_eq!(error.flaws[0].pointer, "/steps/0/id");
    context.arguments.insert("area".into(), "src".into());
    let workflow = Workflow::from_json(&written, &context).unwrap();
    assert_eq!(workflow.limits.max_concurrency, 2);
    let step = &workflow.steps[0];
    assert_eq!((step.id.as_str(), step.task.as_deref()), ("src-1", Some("Look at src.")));
    assert_eq!(
        (step.model.as_deref(), &step.read_set[..]),
        (None, &["a/**".to_owned(), "b".to_owned()][..])
    );
    context.arguments.insert("area".into(), 3.into());
    context.arguments.insert("aera".into(), 3.into());
    let errors: Vec<String> = Workflow::from_json(&written, &context)
        .unwrap_err()
        .flaws
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        errors,
        [
            "/parameters: there is no parameter `aera`, did you mean `area`?",
            "/parameters/area: the value of `area` must be of type string",
        ]
    );
}

#[test]
fn every_flaw_is_reported_in_the_order_of_the_file() {
    let errors = flaws(&json!({
        "id": "a b",
        "stepps": [],
        "limits": {"max_concurrency": 99},
        "steps": [
            {"id": "a", "task": "x", "agent": "worker", "depends_on": ["b", "nobody"]},
            {"id": "b", "task": " ", "depends_on": "c", "write_set": "../x"},
            {"id": "c", "task": "x", "gate": "b"},
            {"id": "c", "role": "explorer", "posture": "write", "task": "x"},
            {"id": "e", "apply": "a", "task": "x", "needs": {"y": "a/z"}},
        ],
    }));
    assert_eq!(
        errors,
        [
            "/id: it must be an id (letters, digits, `_` and `-`, at most 64), not `a b`",
            "/stepps: a workflow has no key `stepps`, did you mean `steps`?",
            "/limits/max_concurrency: it must be from 1 to 8, which is `subagents.max_running` of the config",
            "/steps/0/agent: a step has no key `agent`, did you mean `role`?",
            "/steps/0/depends_on/1: there is no step `nobody`",
            "/steps/1/task: it must be text that is not blank, not ` `",
            "/steps/1/depends_on: steps wait for each other: `b` -> `c` -> `b`",
            "/steps/1/write_set: the glob \"../x\" must not contain `..`",
            "/steps/3/id: the id `c` is taken by /steps/2",
            "/steps/3/posture: the role `explorer` only reads",
            "/steps/4/task: a step that applies cannot have `task`",
            "/steps/4/needs: a step that applies cannot have `needs`",
            "/steps/4/needs/y: the step `a` states no `output`, so nothing can be needed of it",
        ]
    );
}

#[test]
fn circles_are_named_in_their_order() {
    let step = |id: &str, after: &str| json!({"id": id, "task": "x", "depends_on": after});
    let errors = flaws(&spec(&json!([
        step("after", "c"),
        step("a", "c"),
        step("b", "a"),
        step("c", "b"),
        step("d", "d"),
        step("e", "d"),
    ])));
    assert_eq!(
        errors,
        [
            "/steps/1/depends_on: steps wait for each other: `a` -> `c` -> `b` -> `a`",
            "/steps/4/depends_on: the step `d` waits for itself",
        ]
    );
}

#[test]
fn a_pointer_must_be_possible() {
    let schema = json!({
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "object", "properties": {"what": {"type": "string"}}}},
            "free": {},
            "map": {"type": "object", "additionalProperties": {"type": "number"}},
            "either": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"x": {}}}]},
            "tree": {"$ref": "#/$defs/tree"},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": false},
        },
        "$defs": {"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
    });
    for good in [
        "",
        "/list",
        "/list/0/what",
        "/free/any/thing",
        "/map/k",
        "/either/x",
        "/tree/kids/3/kids/0",
        "/pair/0",
    ] {
        assert_eq!(output::check_pointer(&schema, good), Ok(()), "{good}");
    }
    for (bad, part) in [
        ("/lsit", "lsit"),
        ("/list/what", "what"),
        ("/list/00", "00"),
        ("/list/0/what/deep", "deep"),
        ("/map/k/deep", "deep"),
        ("/either/y", "y"),
        ("/tree/kids/0/kid", "kid"),
        ("/pair/1", "1"),
    ] {
        assert_eq!(output::check_pointer(&schema, bad).unwrap_err().part, part, "{bad}");
    }
    let errors = flaws(&spec(&json!([
        {"id": "a", "task": "x", "output": schema},
        {"id": "b", "task": "x", "needs": {"n": {"step": "a", "pointer": "/lsit"}}},
    ])));
    assert_eq!(errors, ["/steps/1/needs/n: the output of `a` has no `lsit`, did you mean `list`?"]);
}

#[test]
fn a_text_that_is_no_spec_is_refused_with_its_place() {
    for (text, expected) in [
        ("", "it ends too early: line 1, column 0"),
        ("{\"steps\": [{\"id\": trux", "/steps/0/id: it is not JSON: line 1, column 22"),
        ("{} x", "it is not JSON: line 1, column 4"),
        ("[]", "a workflow must be a JSON object"),
        ("{\"id\": \"a\", \"id\": \"b\"}", "/id: the key `id` occurs twice"),
    ] {
        let error = Workflow::read(text, &context()).unwrap_err();
        assert_eq!(error.flaws[0].to_string(), expected, "{text}");
    }
    assert!(Workflow::read(b"\xff", &context()).unwrap_err().to_string().contains("UTF-8"));
    assert!(Workflow::read("\u{feff}{}", &context()).unwrap_err().to_string().contains("mark"));
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let error = Workflow::read(deep, &context()).unwrap_err();
    assert!(error.to_string().contains("nested"), "{error}");
}

#[test]
fn a_schema_may_lead_back_only_by_way_of_a_value() {
    let tree = json!({"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}});
    assert!(output::check_output_schema(&tree, "").is_empty());
    let twice = json!({"type": "object", "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{}, {}]}}});
    assert!(output::check_output_schema(&twice, "").is_empty());
    for round in [
        json!({"type": "object", "$ref": "#"}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"if": {"$ref": "#/$defs/b"}}}}),
    ] {
        assert_eq!(output::check_output_schema(&round, "/x")[0].pointer, "/x");
    }
}
