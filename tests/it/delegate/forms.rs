//! Forms of a spec (tasks, workflow, template) and of an answer (JSON, text, lines of progress).

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{fits, hand_over, new_test_env, statuses};
use crate::support::TestEnv;
use crate::support::sign_in_env::{RunOutput, run_command};
use crate::support::test_env::log_files;
use crate::workflows::scripted_steps::{root_log, workflow_facts};

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_runs_as_it_is_and_its_steps_are_children() {
    let env = new_test_env(|request| match request.step() {
        "scan" => Reply::says(r#"{"files": ["a"]}"#),
        "quiet" => Reply::says("Nothing to state."),
        _ => Reply::says("Done.\ncheckpoint_status: checkpoint_ready"),
    })
    .await;
    let spec = json!({
        "workflow": {"id": "w", "name": "scan and use", "parameters": {"what": {"type": "string"}}, "steps": [
            {"id": "scan", "task": "scan {{ what }}", "role": "explorer", "output":
                {"type": "object", "properties": {"files": {"type": "array"}}}},
            {"id": "use", "task": "use it", "role": "explorer", "needs": {"files": "scan/files"}},
            {"id": "quiet", "task": "look", "role": "explorer"},
            {"id": "after", "task": "go on", "role": "explorer", "depends_on": ["quiet"]},
        ]},
        "arguments": {"what": "src"},
    });
    let output = hand_over(&env, &spec, &[], 6)["output"].clone();
    assert_eq!(statuses(&output), ["completed", "completed", "partial", "held"]);
    assert_eq!(output["children"][0]["output"]["files"], json!(["a"]));
    assert_eq!(output["children"][0]["task"], "scan src");
    assert_eq!(output["children"][3]["reason"], "dependency_not_ready");
    assert!(output["children"][0]["resume_command"].is_string());
    assert_eq!((&output["source"], &output["status"]), (&json!("workflow"), &json!("partial")));
}

/// Writes a Skill with a template below a folder.
fn skill(root: &Path) {
    let folder = root.join(".agents/skills/look");
    std::fs::create_dir_all(folder.join("workflows")).unwrap();
    let main = "---\nname: look\ndescription: Looks at things.\n---\nLook.\n";
    std::fs::write(folder.join("SKILL.md"), main).unwrap();
    let template = json!({
        "id": "around", "version": 1, "name": "Look around", "description": "One look, one word",
        "parameters": {"area": {"type": "string", "required": true}, "readers": {"type": "integer", "default": 2}},
        "workflow": {"limits": {"max_concurrency": "{{ readers }}"}, "steps": [
            {"id": "see", "role": "explorer", "task": "look at {{ area }}"},
            {"id": "say", "role": "explorer", "task": "say it", "depends_on": "see"},
        ]},
    });
    std::fs::write(folder.join("workflows/around.json"), template.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_filled_with_the_arguments_and_runs() {
    let env = new_test_env(|_| Reply::says("Done.\ncheckpoint_status: checkpoint_ready")).await;
    skill(&env.home());
    let spec = json!({"template": "look/around", "arguments": {"area": "src", "readers": 1}, "name": "mine"});
    let output = hand_over(&env, &spec, &[], 0)["output"].clone();
    assert_eq!(statuses(&output), ["completed", "completed"]);
    assert_eq!(output["children"][0]["task"], "look at src");
    assert_eq!((&output["source"], &output["name"]), (&json!("template"), &json!("mine")));
    assert_eq!(output["limits"]["max_concurrency"], 1);
    assert_eq!(output["waves"], json!([[0], [1]]));
    let log = root_log(&env.workspace());
    assert_eq!(workflow_facts(&log)[0]["template"], "look/around");
    let before = log_files(&env.workspace()).len();
    for (wrong, place, says) in [
        (json!({"template": "look/arround"}), "/template", "no workflow"),
        (json!({"template": "look/around"}), "/arguments/area", "needs a value"),
        (
            json!({"template": "look/around", "arguments": {"area": 3}}),
            "/arguments/area",
            "of type string",
        ),
        (
            json!({"template": "look/around", "arguments": {"area": "x", "aria": "y"}}),
            "/arguments",
            "aria",
        ),
        (
            json!({"template": "look/around", "arguments": {"area": "x", "readers": 99}}),
            "/template",
            "in the template at /workflow/limits/max_concurrency",
        ),
    ] {
        let envelope = hand_over(&env, &wrong, &[], 2);
        let flaw = &envelope["error"]["details"]["flaws"][0];
        assert_eq!(flaw["json_pointer"], place, "{flaw}");
        assert!(flaw["message"].as_str().unwrap().contains(says), "{flaw}");
    }
    assert_eq!(log_files(&env.workspace()).len(), before, "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_template_can_be_shown_and_not_run() {
    let env = new_test_env(|_| Reply::says("never asked")).await;
    skill(&env.workspace());
    let spec = json!({"template": "look/around", "arguments": {"area": "src"}});
    let planned = hand_over(&env, &spec, &["--dry-run"], 0);
    assert_eq!(planned["output"]["waves"], json!([[0], [1]]));
    let refused = hand_over(&env, &spec, &[], 3);
    assert_eq!(refused["error"]["kind"], "permission_denied");
    assert!(env.requests().is_empty() && log_files(&env.workspace()).is_empty());
}

fn with_stdin(env: &TestEnv, args: &[&str], text: &str) -> RunOutput {
    let mut command = env.command(args);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    RunOutput::from_output(child.wait_with_output().unwrap())
}

/// The lines of progress; checks the schema of each, their order, and that none is missing.
fn progress(run: &RunOutput) -> Vec<Value> {
    let lines: Vec<Value> =
        run.err.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for (place, line) in lines.iter().enumerate() {
        fits("progress", line);
        assert_eq!(line["sequence"], place);
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_lines_of_json_on_stderr_and_nothing_else() {
    let env = new_test_env(|request| match request.step() {
        "task_2" => Reply::says("No.\ncheckpoint_status: failed"),
        _ => Reply::says("Yes."),
    })
    .await;
    let args = ["delegate", "--spec", "-", "--json", "--progress"];
    let run = with_stdin(&env, &args, r#"{"tasks": ["one", "two", "three"]}"#).assert_exit_code(6);
    let envelope = run.envelope();
    fits("envelope", &envelope);
    let lines = progress(&run);
    let kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("delegate_started", "delegate_finished"));
    assert_eq!(
        lines[0]["counts"],
        json!({
            "total": 3, "waiting": 3, "running": 0, "completed": 0, "partial": 0, "failed": 0, "held": 0
        })
    );
    let last = lines.last().unwrap();
    assert_eq!(last["counts"]["completed"], 2);
    assert_eq!((&last["status"], &last["exit_code"]), (&json!("partial"), &json!(6)));
    assert_eq!(last["session_id"], envelope["session_id"]);
    for kind in ["child_started", "child_ended"] {
        let mut own: Vec<u64> = lines
            .iter()
            .filter(|line| line["type"] == kind)
            .map(|line| line["child"]["index"].as_u64().unwrap())
            .collect();
        own.sort_unstable();
        assert_eq!(own, [0, 1, 2], "{kind}");
    }
    // A refusal has the same form.
    let refused = with_stdin(&env, &args, r#"{"taskz": []}"#).assert_exit_code(2);
    let lines = progress(&refused);
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (&lines[0]["type"], &lines[0]["exit_code"]),
        (&json!("delegate_refused"), &json!(2))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn people_get_text_and_stdout_holds_nothing_else() {
    let env = new_test_env(|request| match request.step() {
        "task_2" => Reply::says("\u{1b}[31mHalf.\ncheckpoint_status: partial"),
        _ => Reply::says("All of it."),
    })
    .await;
    env.write("spec.json", r#"{"tasks": ["one", "two"]}"#);
    let run = env.run_pixir(&["delegate", "--spec", "spec.json"]).assert_exit_code(6);
    assert!(
        run.out.starts_with("partial: 1 of 2 completed.\n\n[0] task_1: completed"),
        "{}",
        run.out
    );
    assert!(run.out.contains("All of it.\n") && !run.out.contains('\u{1b}'), "{}", run.out);
    assert!(
        run.out.contains("pixir workflow resume wf_") || run.out.contains(" workflow resume wf_")
    );
    let quiet = env
        .run_pixir(&["delegate", "--spec", "spec.json", "--quiet", "--json"])
        .assert_exit_code(6);
    assert_eq!(quiet.err, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_needs_no_credential_no_network_and_leaves_nothing() {
    let env = new_test_env(|_| Reply::status(500, "nobody asks")).await;
    let spec = json!({"tasks": ["a", {"task": "b", "posture": "write", "workspace": "shared"}, "c"],
        "limits": {"max_concurrency": 2}});
    env.write("spec.json", spec.to_string());
    let mut command = env.command(&["delegate", "--spec", "spec.json", "--dry-run", "--json"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    let envelope = run_command(&mut command).assert_exit_code(0).envelope();
    fits("envelope", &envelope);
    let output = &envelope["output"];
    assert_eq!((&output["status"], &output["dry_run"]), (&json!("planned"), &json!(true)));
    assert_eq!(statuses(output), ["planned"; 3]);
    assert_eq!(output["waves"], json!([[0, 2], [1]]));
    assert!(envelope.get("session_id").is_none());
    assert!(env.requests().is_empty());
    assert!(!env.workspace().join(".pixir").exists());
    let text = env.run_pixir(&["delegate", "--spec", "spec.json", "--dry-run"]).assert_exit_code(0);
    assert!(text.out.starts_with("3 children would run; nothing was started.\n"), "{}", text.out);
}
