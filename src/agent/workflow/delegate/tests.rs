//! Tests of reading delegations, as tables, and of the published schema.

use serde_json::{Map, Value, json};

use super::*;
use crate::agent::workflow::spec::{
    SpecContext, SpecDiagnostic, SpecError, StepPosture, Workflow, WorkspaceMode,
};
use crate::base::error::Report;
use crate::settings::config::SubagentLimits;

fn no_templates(name: &str, _: Map<String, Value>) -> Result<Workflow, SpecError> {
    Err(SpecError::single(SpecDiagnostic::new("", format!("there is no template `{name}`"))))
}

fn read(spec: &Value) -> Result<Delegation, Report> {
    let context = SpecContext::with_built_in_roles(SubagentLimits::default());
    Delegation::read(spec.to_string().as_bytes(), &context, &no_templates).map_err(Report::from)
}

#[track_caller]
fn good(spec: &Value) -> Delegation {
    read(spec).unwrap_or_else(|report| panic!("{report:?}"))
}

#[test]
fn tasks_only_read_unless_the_posture_is_write() {
    let own = good(&json!({"tasks": [
        "look",
        {"task": "change it", "posture": "write", "id": "task_3"},
        {"task": "judge it", "role": "reviewer"},
        {"task": "work", "role": "worker", "workspace": "shared", "write_set": "src/**"},
    ]}));
    let steps = &own.workflow.steps;
    let facts: Vec<(&str, &str, StepPosture, WorkspaceMode)> = steps
        .iter()
        .map(|step| (step.id.as_str(), step.role.as_str(), step.posture, step.workspace))
        .collect();
    assert_eq!(
        facts,
        [
            ("task_1", "explorer", StepPosture::ReadOnly, WorkspaceMode::Shared),
            ("task_3", "worker", StepPosture::Write, WorkspaceMode::Isolated),
            ("task_3_", "reviewer", StepPosture::ReadOnly, WorkspaceMode::Shared),
            ("task_4", "worker", StepPosture::Write, WorkspaceMode::Shared),
        ]
    );
    assert!(steps.iter().all(|step| step.answer_is_enough && step.depends_on.is_empty()));
    assert_eq!(own.writers(), [1, 3]);
    assert_eq!(own.source, DelegateSource::Tasks);
}

#[test]
fn defaults_and_limits_hold_where_a_task_says_nothing() {
    let own = good(&json!({
        "contract_version": 1,
        "name": "audit",
        "tasks": ["a {{ place }} is text here", {"task": "b", "model": "m2", "timeout_ms": 7}],
        "defaults": {"model": "m1", "effort": "low", "retries": 2},
        "limits": {"max_concurrency": 3, "timeout_ms": 5000, "child_timeout_ms": 900},
        "budget": {"tokens": 10},
    }));
    let [first, second] = own.workflow.steps.as_slice() else { panic!() };
    assert_eq!(first.task.as_deref(), Some("a {{ place }} is text here"));
    assert_eq!((first.model.as_deref(), second.model.as_deref()), (Some("m1"), Some("m2")));
    assert_eq!((first.timeout_ms, second.timeout_ms), (Some(900), Some(7)));
    assert_eq!((first.retries, second.effort.as_deref()), (2, Some("low")));
    let limits = own.workflow.limits;
    assert_eq!((limits.max_concurrency, limits.timeout_ms), (3, 5000));
    assert_eq!((own.workflow.name.as_str(), own.workflow.budget.tokens), ("audit", Some(10)));
}

#[test]
fn a_workflow_is_read_as_such_and_outer_limits_count_more() {
    let own = good(&json!({
        "workflow": {"id": "w", "limits": {"timeout_ms": 1}, "parameters": {"area": {}}, "steps": [
            {"id": "one", "task": "look at {{ area }}", "role": "explorer"},
            {"id": "two", "task": "go on", "role": "explorer", "depends_on": "one", "timeout_ms": 3},
        ]},
        "arguments": {"area": "src"},
        "limits": {"timeout_ms": 2000, "child_timeout_ms": 1000},
    }));
    assert_eq!(own.workflow.steps[0].task.as_deref(), Some("look at src"));
    assert!(!own.workflow.steps[0].answer_is_enough, "a workflow says when a step is ready");
    assert_eq!(own.workflow.limits.timeout_ms, 2000);
    assert_eq!(own.workflow.steps[0].timeout_ms, Some(1000));
    assert_eq!(own.workflow.steps[1].timeout_ms, Some(3));
}

/// The keys of a published object.
fn names(name: &str) -> Vec<String> {
    delegate_schema()["$defs"][name]["properties"].as_object().unwrap().keys().cloned().collect()
}

/// The pointers of all flaws.
fn places(spec: &Value) -> Vec<String> {
    let report = read(spec).expect_err("it is wrong");
    let flaws = report.details["flaws"].as_array().unwrap().clone();
    flaws.iter().map(|flaw| flaw["json_pointer"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_flaw_is_reported_once_at_its_own_place() {
    let spec = json!({
        "taks": [],
        "tasks": [
            "",
            7,
            {"task": "x", "rol": "explorer"},
            {"role": "nobody"},
            {"task": "x", "posture": "write", "role": "explorer"},
            {"task": "x", "id": "same"},
            {"task": "x", "id": "same"},
            {"task": "x", "write_set": "../up", "posture": "write"},
        ],
        "defaults": {"efort": "low", "output": {"type": "no"}},
        "limits": {"max_concurrency": 9, "child_timeout_ms": 3_600_001},
    });
    assert_eq!(
        places(&spec),
        [
            "/taks",
            "/tasks/0",
            "/tasks/1",
            "/tasks/2/rol",
            "/tasks/3",
            "/tasks/3/role",
            "/tasks/4/posture",
            "/tasks/6/id",
            "/tasks/7/write_set",
            "/defaults/efort",
            "/defaults/output/type",
            "/limits/max_concurrency",
            "/limits/child_timeout_ms",
        ]
    );
    let report = read(&spec).unwrap_err();
    let flaws = report.details["flaws"].as_array().unwrap();
    assert_eq!(flaws[0]["did_you_mean"], "tasks");
    assert_eq!(flaws[3]["did_you_mean"], "role");
    assert_eq!(flaws[3]["accepted_keys"], json!(names("task")));
    assert!(report.message.starts_with("the spec cannot be used: /taks"), "{}", report.message);
}

#[test]
fn errors_of_a_spec_are_reported_once_and_name_tasks_not_steps() {
    for text in ["a\u{0}b".to_owned(), "x".repeat(40_000), "  ".to_owned()] {
        assert_eq!(places(&json!({"tasks": ["good", text]})), ["/tasks/1"]);
        assert_eq!(places(&json!({"tasks": [{"task": text}]})), ["/tasks/0/task"]);
    }
    let twice = json!([{"id": "a", "task": "x"}, {"id": "a", "task": "y"}]);
    let error_of = |spec: Value| read(&spec).unwrap_err().message;
    let message = error_of(json!({"tasks": twice}));
    assert!(message.ends_with("/tasks/1/id: the id `a` is taken by /tasks/0"), "{message}");
    let message = error_of(json!({"workflow": {"id": "w", "steps": twice}}));
    assert!(message.ends_with("is taken by /workflow/steps/0"), "{message}");
}

#[test]
fn the_lines_of_a_task_are_kept() {
    let delegation = good(&json!({"tasks": ["one\r\ntwo\rthree\nfour"]}));
    let answer = super::answer::plan_answer(&delegation, std::path::Path::new("/x")).output;
    assert_eq!(answer["children"][0]["task"], "one\ntwo\nthree\nfour");
}

#[test]
fn it_is_one_of_three() {
    assert_eq!(places(&json!({})), [""]);
    assert_eq!(places(&json!([])), [""]);
    let both =
        json!({"tasks": ["x"], "workflow": {"id": "w", "steps": [{"id": "a", "task": "x"}]}});
    assert_eq!(places(&both), ["/workflow"]);
    let stray = json!({"tasks": ["x"], "arguments": {}});
    assert_eq!(places(&stray), ["/arguments"]);
    let stray = json!({"template": "a/b", "defaults": {}});
    assert_eq!(places(&stray), ["/template", "/defaults"]);
    let inner = json!({"workflow": {"id": "w", "steps": [{"id": "a", "task": "x", "afterr": 1}]}});
    assert_eq!(places(&inner), ["/workflow/steps/0/afterr"]);
}

#[test]
fn tasks_and_defaults_have_the_same_keys() {
    let mut own = names("task");
    own.retain(|name| !["task", "id"].contains(&name.as_str()));
    assert_eq!(own, names("defaults"));
}

#[test]
fn each_part_of_the_schema_stands_alone() {
    for name in ["delegation", "envelope", "progress"] {
        let whole = json!({"$ref": format!("#/$defs/{name}"), "$defs": delegate_schema()["$defs"]});
        jsonschema::validator_for(&whole).unwrap();
    }
}
