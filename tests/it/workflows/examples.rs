//! The shipped Workflows, run by the real binary on their own files: with the embedded scripted
//! model, and with models that fail, to check that the failure is reported.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pixir::scripted::{EXAMPLE_WORKFLOWS, ExampleWorkflow, ModelScript, Reply, demo_answer};
use serde_json::{Value, json};

use super::scripted_steps::{
    StepRequest, last_checkpoint, root_log, workflow_fact_kinds, workflow_facts,
};
use crate::subagents::scripted_family::check_family_logs;
use crate::support::TestEnv;
use crate::support::leaks;
use crate::support::sign_in_env::run_command;
use crate::support::test_env::PIXIR;

fn example(name: &str) -> &'static ExampleWorkflow {
    EXAMPLE_WORKFLOWS.iter().find(|own| own.name == name).unwrap()
}

/// Writes the files of an example into the Workspace, as they are in the repository.
fn lay_out(env: &TestEnv, example: &ExampleWorkflow) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let folder = if example.name == "migrate" { "workflows/names" } else { "demo" };
    for (path, content) in example.files {
        let place = env.workspace().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(root.join(folder).join(path), &place).unwrap();
        assert_eq!(
            fs::read_to_string(place).unwrap(),
            *content,
            "the embedded files are the shipped ones"
        );
    }
    let spec = format!("{}.json", example.name);
    fs::copy(root.join("workflows").join(&spec), env.workspace().join(spec)).unwrap();
}

/// Runs the file of an example; gives the output of its envelope.
fn run(env: &TestEnv, example: &ExampleWorkflow, more: &[&str], code: i32) -> Value {
    let file = format!("{}.json", example.name);
    let given: Vec<String> =
        example.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut words = vec!["workflow", "run", &file, "--json"];
    words.extend(given.iter().flat_map(|own| ["--arg", own.as_str()]));
    words.extend(more);
    env.run_pixir(&words).assert_exit_code(code).envelope()["output"].clone()
}

/// All files of the Workspace except for state.
fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && name != ".pixir" {
                folders.push(path);
            } else if path.is_file() {
                found.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

/// The status of each step in the envelope, checked against the Log.
fn outcomes(env: &TestEnv, output: &Value) -> BTreeMap<String, String> {
    let log = root_log(&env.workspace());
    let steps = output["steps"].as_array().unwrap();
    steps
        .iter()
        .map(|step| {
            let id = step["step_id"].as_str().unwrap();
            let status = step["checkpoint_status"].as_str().unwrap().to_owned();
            if status != "held" {
                assert_eq!(last_checkpoint(&log, id)["checkpoint_status"], *status, "{id}");
            }
            (id.to_owned(), status)
        })
        .collect()
}

fn all_ready(outcomes: &BTreeMap<String, String>) -> bool {
    outcomes.values().all(|status| status == "checkpoint_ready")
}

/// Checks that all of these steps were started before one of them was decided.
#[track_caller]
fn overlap(log: &Path, steps: &[&str]) {
    let kinds = workflow_fact_kinds(log);
    let at = |kind: &str, step: &&str| {
        let wanted = format!("{kind} {step}");
        kinds.iter().position(|own| *own == wanted).unwrap()
    };
    let last_start = steps.iter().map(|step| at("step_scheduled", step)).max().unwrap();
    let first_end = steps.iter().map(|step| at("checkpoint_decided", step)).min().unwrap();
    assert!(last_start < first_end, "{kinds:?}");
}

/// The checks of a step in the Log: command, exit code and output.
fn checks(log: &Path, step: &str) -> Vec<(String, Value, String)> {
    let text = |fact: &Value, name: &str| fact[name].as_str().unwrap_or_default().to_owned();
    workflow_facts(log)
        .iter()
        .filter(|fact| fact["kind"] == "verification" && fact["step_id"] == step)
        .map(|fact| (text(fact, "command"), fact["exit_code"].clone(), text(fact, "output")))
        .collect()
}

/// A test environment whose model is not called: the embedded one is.
async fn alone() -> TestEnv {
    TestEnv::with_replies([]).await
}

const ON_BOARD: &[&str] = &["--model", "pixir-demo"];

#[tokio::test(flavor = "multi_thread")]
async fn three_sides_are_reviewed_at_once_and_one_report_comes_of_it() {
    let env = alone().await;
    let example = example("parallel-review");
    lay_out(&env, example);
    let before = tree(&env.workspace());
    let output = run(&env, example, ON_BOARD, 0);
    assert_eq!(output["status"], "completed");
    let outcomes = outcomes(&env, &output);
    assert!(outcomes.len() == 4 && all_ready(&outcomes), "{outcomes:?}");
    assert_eq!(tree(&env.workspace()), before, "a review changes nothing");
    let log = root_log(&env.workspace());
    overlap(&log, &["correctness", "safety", "tests"]);
    let report = last_checkpoint(&log, "report")["typed_payloads"][0]["payload"].clone();
    let findings: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["what"].as_str().unwrap())
        .collect();
    // Findings of each review, errors first, with correct places.
    assert_eq!(findings.len(), 4, "{report}");
    assert!(findings[0].contains("replaces") && findings[1].contains("not checked"), "{report}");
    assert!(findings[2].contains("negative numbers"), "{report}");
    let bug = before["total.sh"].lines().position(|line| line.contains("total=$number")).unwrap();
    assert_eq!(report["findings"][0]["line"], bug + 1);
    assert_eq!(check_family_logs(&env.workspace()), 4);
    assert_eq!(env.requests().len(), 0, "only the embedded model was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_made_tested_reviewed_and_landed() {
    let env = alone().await;
    let example = example("implement-and-land");
    lay_out(&env, example);
    let before = tree(&env.workspace());
    let output = run(&env, example, ON_BOARD, 0);
    assert_eq!(output["status"], "completed");
    let outcomes = outcomes(&env, &output);
    assert!(outcomes.len() == 3 && all_ready(&outcomes), "{outcomes:?}");
    let mut wanted = before.clone();
    let mended = before["total.sh"].replace("total=$number", "total=$((total + number))");
    wanted.insert("total.sh".to_owned(), mended);
    assert_eq!(tree(&env.workspace()), wanted, "one line of one file");
    let log = root_log(&env.workspace());
    assert_eq!(
        workflow_fact_kinds(&log),
        [
            "started",
            "step_scheduled implement",
            "verification implement",
            "checkpoint_decided implement",
            "step_scheduled review",
            "checkpoint_decided review",
            "step_scheduled land",
            "merged land",
            "verification land",
            "checkpoint_decided land",
            "finished"
        ]
    );
    // The test ran in the child Workspace, and again after the change was applied.
    for step in ["implement", "land"] {
        let [(command, code, check_output)] = &checks(&log, step)[..] else { panic!("{step}") };
        assert_eq!((command.as_str(), code), ("sh test.sh", &json!(0)));
        assert!(check_output.contains("all 4 checks passed"), "{check_output}");
    }
    let merged = workflow_facts(&log).into_iter().find(|fact| fact["kind"] == "merged").unwrap();
    assert_eq!(merged["files"], json!(["total.sh"]));
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_changed_in_all_folders_at_once() {
    let env = alone().await;
    let example = example("migrate");
    lay_out(&env, example);
    let before = tree(&env.workspace());
    let output = run(&env, example, ON_BOARD, 0);
    assert_eq!(output["status"], "completed");
    let outcomes = outcomes(&env, &output);
    assert!(outcomes.len() == 6 && all_ready(&outcomes), "{outcomes:?}");
    let renamed = |(path, text): (&String, &String)| {
        let text = if path == "migrate.json" {
            text.clone()
        } else {
            text.replace("old_name", "greeting")
        };
        (path.clone(), text)
    };
    let wanted: BTreeMap<String, String> = before.iter().map(renamed).collect();
    assert_ne!(wanted, before);
    assert_eq!(tree(&env.workspace()), wanted);
    let log = root_log(&env.workspace());
    overlap(&log, &["code", "tests", "docs"]);
    for (step, folder) in [("code", "src"), ("tests", "tests"), ("docs", "docs")] {
        let [(command, code, _)] = &checks(&log, step)[..] else { panic!("{step}") };
        assert_eq!((command, code), (&format!("! grep -rnwF -e 'old_name' {folder}"), &json!(0)));
        let written = last_checkpoint(&log, step)["written"].clone();
        let all = written.as_array().unwrap();
        assert!(
            !all.is_empty() && all.iter().all(|path| path.as_str().unwrap().starts_with(folder)),
            "{written}"
        );
    }
    let [(_, code, check_output)] = &checks(&log, "prove")[..] else { panic!() };
    assert_eq!((code, check_output.as_str()), (&json!(0), "all tests passed\n"));
    assert_eq!(check_family_logs(&env.workspace()), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_claims_a_rename_and_does_nothing_is_found_out() {
    let script = ModelScript::answering(|request| match StepRequest::from_request(request) {
        Some(step_request) if step_request.step() == "code" => {
            Reply::says("All renamed.\ncheckpoint_status: checkpoint_ready")
        }
        _ => demo_answer(request),
    });
    let env = TestEnv::with_script(script).await;
    let example = example("migrate");
    lay_out(&env, example);
    let output = run(&env, example, &[], 6);
    assert_eq!(output["status"], "partial");
    let outcomes = outcomes(&env, &output);
    let of = |step: &str| outcomes[step].as_str();
    assert_eq!((of("code"), of("docs"), of("prove")), ("failed", "checkpoint_ready", "held"));
    let log = root_log(&env.workspace());
    let [(_, code, check_output)] = &checks(&log, "code")[..] else { panic!() };
    assert_eq!(code, &json!(1));
    assert!(check_output.contains("src/greet.sh:2:old_name() {"), "{check_output}");
    // The other steps had started already.
    overlap(&log, &["code", "tests", "docs"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reviewer_does_not_see_in_the_diff_does_not_land() {
    let script = ModelScript::answering(|request| match StepRequest::from_request(request) {
        Some(step_request) if step_request.step() == "implement" && step_request.turn == 0 => {
            // The change passes the test without implementing addition.
            let cheat = "#!/bin/sh\ncase $# in 0) echo 0 ;; 1) echo 7 ;; 2) echo 42 ;; *) echo 10 ;; esac\n";
            Reply::calls("write", json!({"path": "total.sh", "content": cheat}))
        }
        Some(step_request) if step_request.step() == "implement" => {
            Reply::says("It adds up now.\ncheckpoint_status: checkpoint_ready")
        }
        _ => demo_answer(request),
    });
    let env = TestEnv::with_script(script).await;
    let example = example("implement-and-land");
    lay_out(&env, example);
    let before = tree(&env.workspace());
    let output = run(&env, example, &[], 6);
    let outcomes = outcomes(&env, &output);
    let of = |step: &str| outcomes[step].as_str();
    assert_eq!((of("implement"), of("land")), ("checkpoint_ready", "held"));
    assert_eq!(tree(&env.workspace()), before, "nothing was applied");
    let requests = env.requests();
    let steps: Vec<StepRequest> = requests.iter().filter_map(StepRequest::from_request).collect();
    let review = steps.iter().find(|step| step.step() == "review").unwrap();
    assert!(review.task.contains("+case $# in 0) echo 0"), "{}", review.task);
    assert!(review.task.contains("-    total=$number"), "{}", review.task);
}

#[test]
fn the_examples_run_without_any_setup() {
    for (name, words) in [
        ("parallel-review", "4 of 4 steps ready"),
        ("implement-and-land", "3 of 3 steps ready"),
        ("migrate", "6 of 6 steps ready"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let place = folder.path().join(name);
            fs::create_dir(&place).unwrap();
            place
        };
        let run = run_command(
            std::process::Command::new(PIXIR)
                .args(["demo", name])
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap())
                .env("HOME", place("home"))
                .env("TMPDIR", place("tmp"))
                .current_dir(folder.path())
                .stdin(std::process::Stdio::null())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped()),
        )
        .assert_exit_code(0);
        leaks::check_folder(folder.path(), &leaks::planted_secrets(), &[]);
        assert!(run.out.contains(words), "{name}: {}", run.out);
        assert!(run.err.contains(&format!("pixir workflow run {name}.json --arg ")), "{}", run.err);
    }
}
