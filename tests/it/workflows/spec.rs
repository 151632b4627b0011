//! Valid specs: their normalised form, the published schema, and their drawing.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use pixir::scripted::{ModelScript, Reply};
use pixir::workbench;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{flaws, of_steps, whole};
use crate::support::TestEnv;

async fn new_test_env() -> TestEnv {
    TestEnv::with_script(ModelScript::answering(|_| Reply::says("nobody asks"))).await
}

/// Writes a file of the Workspace, and makes its folders.
fn plant(env: &TestEnv, path: &str, text: impl AsRef<[u8]>) {
    let path = env.workspace().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn page(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn example(name: &str) -> String {
    fs::read_to_string(page(&format!("examples/workflows/{name}.json"))).unwrap()
}

/// Compares a generated file with its text; a stale file is rewritten, and the test fails once.
fn assert_generated(name: &str, text: &str) {
    let path = page(name);
    if fs::read_to_string(&path).unwrap_or_default() != text {
        fs::write(&path, text).unwrap();
        panic!("{name} was stale and has been rewritten: commit it");
    }
}

#[test]
fn the_published_schema_is_true() {
    let schema = serde_json::to_string_pretty(&pixir::workflow_schema()).unwrap();
    assert_generated("docs/workflow.schema.json", &format!("{schema}\n"));
    assert!(jsonschema::draft202012::meta::is_valid(&pixir::workflow_schema()));
}

#[test]
fn the_reference_of_keys_is_true() {
    let written = fs::read_to_string(page("docs/workflows.md")).unwrap();
    let (before, rest) = written.split_once("<!-- keys -->\n").expect("there is a place for them");
    let (_, behind) = rest.split_once("<!-- /keys -->").expect("which ends");
    let keys = pixir::workflow_reference();
    assert_generated(
        "docs/workflows.md",
        &format!("{before}<!-- keys -->\n{keys}<!-- /keys -->{behind}"),
    );
}

#[test]
fn what_the_page_shows_can_be_copied() {
    let written = fs::read_to_string(page("docs/workflows.md")).unwrap();
    let shown: Vec<&str> =
        written.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!shown.is_empty());
    let schema = validator();
    for text in shown {
        assert_eq!(flaws(text, &json!({})), [], "{text}");
        assert!(schema.is_valid(&serde_json::from_str(text).unwrap()), "{text}");
    }
}

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&pixir::workflow_schema()).unwrap()
}

#[test]
fn the_examples_are_good_and_have_the_waves_they_are_for() {
    let arguments = json!({"from": "old_name", "to": "new_name"});
    let schema = validator();
    for (name, arguments, waves) in [
        ("parallel-review", json!({}), json!([["correctness", "safety", "tests"], ["report"]])),
        ("implement-and-land", json!({"goal": "x"}), json!([["implement"], ["review"], ["land"]])),
        (
            "migrate",
            arguments,
            json!([["inventory"], ["code", "tests", "docs"], ["prove"], ["review"]]),
        ),
    ] {
        let text = example(name);
        let errors: Vec<String> = schema
            .iter_errors(&serde_json::from_str(&text).unwrap())
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
        let arguments = arguments.as_object().cloned().unwrap();
        assert_eq!(workbench::workflow_waves(text.as_bytes(), arguments).unwrap(), waves, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_is_checked_drawn_and_listed() {
    let env = new_test_env().await;
    plant(&env, "good.json", example("implement-and-land"));
    let checked = env
        .run_pixir(&["workflow", "validate", "good.json", "--arg", "goal=a flag"])
        .assert_exit_code(0);
    assert_eq!(checked.out, "implement-and-land: 3 steps in 3 waves, nothing is wrong\n");
    insta::assert_snapshot!(
        env.run_pixir(&["workflow", "plan", "good.json", "--arg", "goal=a flag"])
            .assert_exit_code(0)
            .out
    );
    let planned = env
        .run_pixir(&["workflow", "plan", "good.json", "--arg", "goal=x", "--json"])
        .assert_exit_code(0);
    let planned = planned.envelope();
    assert_eq!(planned["output"]["waves"], json!([["implement"], ["review"], ["land"]]));
    assert_eq!(
        planned["output"]["waits"][0],
        json!({"step": "review", "reason": "depends_on", "other": "implement"})
    );

    plant(
        &env,
        "bad.json",
        r#"{"id": "x", "steps": [{"id": "a", "agent": "worker", "task": "x", "retries": 9}]}"#,
    );
    let refused = env.run_pixir(&["workflow", "validate", "bad.json"]).assert_exit_code(2);
    assert_eq!(
        refused.out,
        "error: /steps/0/agent: a step has no key `agent`, did you mean `role`? (accepted: id, task, apply, role, model, \
         effort, depends_on, posture, workspace, read_set, write_set, timeout_ms, retries, optional, on_failure, needs, \
         output, verify, gate)\n\
         error: /steps/0/retries: it must be a whole number from 0 to 5, not `9`\nbad.json: 2 errors\n"
    );
    let refused = env
        .run_pixir(&["workflow", "validate", "bad.json", "--json"])
        .assert_exit_code(2)
        .envelope();
    assert_eq!(refused["error"]["kind"], "invalid_args");
    assert_eq!(refused["output"]["flaws"][0]["json_pointer"], "/steps/0/agent");
    assert_eq!(refused["output"]["flaws"][0]["did_you_mean"], "role");
    assert_eq!(refused["output"]["flaws"][0]["accepted_keys"][0], "id");
    assert_eq!(env.run_pixir(&["workflow", "plan", "bad.json"]).assert_exit_code(2).out, "");
    env.run_pixir(&["workflow", "validate", "missing.json"]).assert_exit_code(2);
    env.run_pixir(&["workflow", "validate", "nobody/nothing"]).assert_exit_code(2);

    plant(&env, ".pixir/workflows/land.json", example("implement-and-land"));
    plant(&env, ".pixir/workflows/torn.json", "{");
    let listed = env.run_pixir(&["workflow", "list", "--json"]).assert_exit_code(0);
    assert!(
        listed.err.contains("torn.json: the workflow cannot be used: it ends too early"),
        "{}",
        listed.err
    );
    let listed = listed.envelope();
    assert_eq!(listed["output"]["workflows"][0]["name"], "land");
    assert_eq!(listed["output"]["workflows"][0]["parameters"][0]["required"], true);
    assert_eq!(listed["output"]["broken"].as_array().unwrap().len(), 1);
    // The list describes a Workflow in full, also with required arguments.
    let shown = env.run_pixir(&["workflow", "list"]).assert_exit_code(0).out;
    let shown: Vec<&str> = shown.lines().collect();
    assert!(
        shown[0].starts_with("land  A change is made in a copy, its tests must pass"),
        "{shown:?}"
    );
    assert_eq!(
        shown[1..],
        [
            "    --arg goal= (string, required): What to implement",
            "    --arg test= (string, default \"sh test.sh\"): The command that must pass",
            "    --arg files= (array, default [\"**\"]): What may be changed",
        ]
    );
    env.run_pixir(&["workflow", "validate", "land", "--arg", "goal=x"]).assert_exit_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_of_a_skill_is_filled_with_types_and_keeps_its_pointers() {
    let env = new_test_env().await;
    let template =
        fs::read_to_string(page("examples/skills/release-notes/workflows/by-area.json")).unwrap();
    let main = fs::read_to_string(page("examples/skills/release-notes/SKILL.md")).unwrap();
    plant(&env, ".agents/skills/release-notes/SKILL.md", main);
    plant(&env, ".agents/skills/release-notes/workflows/by-area.json", &template);
    let areas = r#"areas=["src/", "docs/"]"#;
    for name in ["release-notes/by-area", "release-notes:by-area", "by-area"] {
        let planned = env
            .run_pixir(&["workflow", "plan", name, "--arg", areas, "--arg", "readers=2", "--json"])
            .assert_exit_code(0);
        let workflow = &planned.envelope()["output"]["workflow"];
        assert_eq!(workflow["id"], "by-area");
        assert_eq!(workflow["limits"]["max_concurrency"], 2);
        assert_eq!(workflow["steps"][0]["read_set"], json!(["src/**", "docs/**"]));
    }
    let first_flaw = |args: &[&str]| {
        let all = [&["workflow", "validate", "by-area", "--json"], args].concat();
        let envelope = env.run_pixir(&all).assert_exit_code(2).envelope();
        let flaw = &envelope["output"]["flaws"][0];
        (
            flaw["json_pointer"].as_str().unwrap().to_owned(),
            flaw["message"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(first_flaw(&[]).0, "/parameters/areas");
    assert!(
        first_flaw(&["--arg", "areas=src"]).1.contains("must be of type array, as JSON, not `src`")
    );
    assert!(first_flaw(&["--arg", "areas"]).1.contains("has no `=`"));
    assert!(first_flaw(&["--arg", areas, "--arg", "reders=1"]).1.contains("no parameter `reders`"));
    assert_eq!(
        first_flaw(&["--arg", areas, "--arg", "readers=99"]).0,
        "/workflow/limits/max_concurrency"
    );
    assert_eq!(first_flaw(&["--arg", r#"areas=["/etc"]"#]).0, "/workflow/steps/0/read_set");
    let listed = env.run_pixir(&["workflow", "list", "--json"]).assert_exit_code(0).envelope();
    let entry = &listed["output"]["workflows"][0];
    assert_eq!(
        (&entry["name"], &entry["trusted"]),
        (&json!("release-notes/by-area"), &json!(false))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_comes_through_stdin_too() {
    let env = new_test_env().await;
    let text = of_steps(&json!([{"id": "a", "task": "x", "role": "explorer"}])).to_string();
    let mut child =
        env.command(&["workflow", "validate", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    crate::support::leaks::check_stream(&String::from_utf8_lossy(&ended.stdout));
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "x: 1 step in 1 wave, nothing is wrong\n");
}

/// Strategy for specs of every valid shape.
fn spec() -> impl Strategy<Value = (Value, Map<String, Value>)> {
    let step = (any::<u16>(), any::<u16>(), any::<bool>());
    (prop::collection::vec(step, 1..8), any::<bool>()).prop_map(|(picks, with_places)| {
        let mut steps: Vec<Value> = Vec::new();
        for (place, (pick, other, flag)) in picks.iter().enumerate() {
            let chosen = |bit: u16| pick & (1 << bit) != 0;
            let mut step = json!({"id": format!("s{place}"), "task": "Do it."});
            let mut put = |key: &str, value: Value| step[key] = value;
            let is_reader = chosen(0);
            if is_reader {
                put("role", json!(if chosen(1) { "explorer" } else { "reviewer" }));
            }
            if chosen(2) {
                put("output", json!({"type": "object", "properties": {"v": {"type": "array"}}}));
            }
            if chosen(3) {
                put("timeout_ms", json!(1_000));
                put("retries", json!(other % 6));
                put("optional", json!(flag));
            }
            if chosen(4) && place > 0 {
                let before = format!("s{}", usize::from(*other) % place);
                put("depends_on", if *flag { json!(before) } else { json!([before]) });
            }
            if chosen(5) {
                put("verify", if *flag { json!("true") } else { json!([{"command": "true", "timeout_ms": 5}]) });
            }
            if chosen(6) && !is_reader {
                put("write_set", if *flag { json!("src/") } else { json!(["a/**", "*.md"]) });
                put("posture", json!("write"));
                put("workspace", json!(["shared", "isolated", "worktree"][usize::from(other % 3)]));
            }
            if chosen(7) {
                put("read_set", json!([]));
                put("on_failure", json!(["hold", "continue", "abort"][usize::from(other % 3)]));
            }
            if with_places && chosen(8) {
                put("task", json!("Do {{ what }}."));
                put("model", json!("{{ model }}"));
                put("retries", json!("{{ many }}"));
            }
            if let Some(source) = steps.iter().find(|own| own["output"].is_object()).filter(|_| chosen(9)) {
                let id = source["id"].as_str().unwrap();
                let short = json!(format!("{id}/v"));
                put("needs", json!({"v": if *flag { short } else { json!({"step": id, "pointer": "/v"}) }}));
            }
            steps.push(step);
        }
        let mut spec = of_steps(&json!(steps));
        if with_places {
            spec["parameters"] = json!({
                "what": {"description": "What to do"}, "model": {}, "many": {"type": "integer", "default": 1},
            });
        }
        (spec, Map::new())
    })
}

/// Pointers of all objects of a spec with fixed keys.
fn objects(spec: &Value) -> Vec<String> {
    let mut found = vec![String::new()];
    for (place, step) in spec["steps"].as_array().unwrap().iter().enumerate() {
        found.push(format!("/steps/{place}"));
        let needs = step["needs"]["v"].is_object().then(|| format!("/steps/{place}/needs/v"));
        let check = step["verify"][0].is_object().then(|| format!("/steps/{place}/verify/0"));
        found.extend(needs.into_iter().chain(check));
    }
    if spec["parameters"].is_object() {
        found.push("/parameters/what".to_owned());
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_fits_the_schema_and_what_has_a_strange_key_fits_neither(
        (spec, arguments) in spec(), place in any::<prop::sample::Index>(),
    ) {
        let schema = validator();
        let normal = whole(&spec, arguments);
        let errors: Vec<String> = schema.iter_errors(&spec).map(|error| error.to_string()).collect();
        prop_assert!(errors.is_empty(), "{}: {:?}", spec, errors);
        // The normalised form is a valid spec, and normalises to itself.
        let mut again = normal.clone();
        for step in again["steps"].as_array_mut().unwrap() {
            prop_assert!(step["read_set"].is_array() && step["depends_on"].is_array());
        }
        prop_assert_eq!(whole(&again, Map::new()), normal);

        let all = objects(&spec);
        let pointer = place.get(&all);
        let mut strange = spec.clone();
        strange.pointer_mut(pointer).unwrap()["strange"] = json!(1);
        prop_assert!(!schema.is_valid(&strange));
        let found = flaws(strange.to_string(), &json!({}));
        prop_assert_eq!(&found[0].0, &format!("{pointer}/strange"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_gets_every_flaw_at_once_and_the_accepted_words() {
    let graph = json!({"id": "x", "steps": [
        {"id": "a", "task": "x", "wait_for": "b"},
        {"id": "b", "task": "x", "depends_on": ["nobody"], "retries": 9},
    ]});
    let script = ModelScript::answering(move |request| match request.outputs().len() {
        0 => Reply::calls("run_workflow", json!({"workflow": graph})),
        _ => Reply::says("I see."),
    });
    let env = TestEnv::with_script(script).await;
    env.run_turn("run it").await;
    let requests = env.requests();
    let output = requests.last().unwrap().outputs().last().copied().unwrap().to_owned();
    for words in [
        "/steps/0/wait_for: a step has no key `wait_for`",
        "accepted: id, task, apply",
        "/steps/1/depends_on/0: there is no step `nobody` (accepted: a, b)",
        "/steps/1/retries: it must be a whole number from 0 to 5, not `9`",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
}
