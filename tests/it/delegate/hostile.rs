//! Invalid specs: each is refused with its place, and nothing starts.

use std::io::Write;
use std::process::Stdio;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{fits, new_test_env};
use crate::support::sign_in_env::RunOutput;
use crate::support::test_env::log_files;

/// Invalid specs, each with the place of its first error and a part of the message.
fn specs() -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let of = |spec: Value, place: &'static str, says: &'static str| {
        (spec.to_string().into_bytes(), place, says)
    };
    let task = |fields: Value| json!({"tasks": [fields]});
    let deep = format!("{{\"tasks\": {}1{}}}", "[".repeat(200), "]".repeat(200));
    vec![
        (Vec::new(), "", "ends too early"),
        (b"  \n\n ".to_vec(), "", "ends too early"),
        (b"{\"tasks\": [\"x\"".to_vec(), "/tasks/1", "ends too early"),
        (b"{\"tasks\": [\"\xff\xfe\"]}".to_vec(), "", "not UTF-8 from byte 12 on"),
        (b"not json".to_vec(), "", "not JSON"),
        (b"[]".to_vec(), "", "must be a JSON object"),
        (b"{\"tasks\": [\"x\"], \"tasks\": []}".to_vec(), "/tasks", "occurs twice"),
        (b"{\"tasks\": [\"x\"]} {}".to_vec(), "", "not JSON"),
        (b"\xef\xbb\xbf{}".to_vec(), "", "byte order mark"),
        (deep.into_bytes(), "", "levels deep"),
        (format!("{{\"name\": \"{}\"}}", "x".repeat(1_000_000)).into_bytes(), "", "bytes"),
        of(json!({}), "", "needs `tasks`, `workflow` or `template`"),
        of(json!({"task": "x"}), "/task", "has no key"),
        of(json!({"tasks": []}), "/tasks", "1 to 2000"),
        of(json!({"tasks": "x"}), "/tasks", "must be"),
        of(json!({"tasks": [null]}), "/tasks/0", "text, or an object"),
        of(json!({"tasks": ["  "]}), "/tasks/0", "not blank"),
        of(json!({"tasks": ["a\u{0}b"]}), "/tasks/0", "NUL"),
        of(json!({"tasks": ["x".repeat(40_000)]}), "/tasks/0", "bytes"),
        of(task(json!({})), "/tasks/0", "needs `task`"),
        of(task(json!({"task": "x", "prompt": "y"})), "/tasks/0/prompt", "has no key"),
        of(task(json!({"task": "x", "depends_on": ["y"]})), "/tasks/0/depends_on", "has no key"),
        of(task(json!({"task": "x", "id": "../x"})), "/tasks/0/id", "an id"),
        of(task(json!({"task": "x", "role": "root"})), "/tasks/0/role", "no role"),
        of(task(json!({"task": "x", "posture": "admin"})), "/tasks/0/posture", "none of"),
        of(task(json!({"task": "x", "workspace": "/etc"})), "/tasks/0/workspace", "none of"),
        of(
            task(json!({"task": "x", "posture": "write", "write_set": "/etc/**"})),
            "/tasks/0/write_set",
            "/etc/**",
        ),
        of(
            task(json!({"task": "x", "posture": "write", "write_set": ["../../**"]})),
            "/tasks/0/write_set/0",
            "..",
        ),
        of(task(json!({"task": "x", "write_set": "src/**"})), "/tasks/0/write_set", "only reads"),
        of(
            task(json!({"task": "x", "output": {"type": "zebra"}})),
            "/tasks/0/output/type",
            "must be of an object",
        ),
        of(task(json!({"task": "x", "timeout_ms": 0})), "/tasks/0/timeout_ms", "whole number"),
        of(task(json!({"task": "x", "timeout_ms": -1})), "/tasks/0/timeout_ms", "whole number"),
        of(task(json!({"task": "x", "retries": 1e9})), "/tasks/0/retries", "whole number"),
        of(task(json!({"task": "x", "verify": 7})), "/tasks/0/verify", "must be"),
        of(
            json!({"tasks": ["x"], "contract_version": 2}),
            "/contract_version",
            "whole number from 1 to 1",
        ),
        of(
            json!({"tasks": ["x"], "limits": {"max_thread": 3}}),
            "/limits/max_thread",
            "has no key",
        ),
        of(
            json!({"tasks": ["x"], "limits": {"max_concurrency": 900}}),
            "/limits/max_concurrency",
            "max_running",
        ),
        of(
            json!({"tasks": ["x"], "limits": {"timeout_ms": "1h"}}),
            "/limits/timeout_ms",
            "whole number",
        ),
        of(json!({"tasks": ["x"], "budget": {"cost_usd": -3}}), "/budget/cost_usd", "above 0"),
        of(json!({"tasks": ["x"], "defaults": {"task": "y"}}), "/defaults/task", "has no key"),
        of(json!({"tasks": ["x"], "workflow": {}}), "/workflow", "given already"),
        of(
            json!({"workflow": {"id": "w", "steps": [{"id": "a", "task": "x", "depends_on": "a"}]}}),
            "/workflow/steps/0/depends_on",
            "itself",
        ),
        of(json!({"template": "no-skill/none"}), "/template", "no workflow"),
        of(json!({"tasks": ["x"], "env": {"LD_PRELOAD": "/tmp/x.so"}}), "/env", "has no key"),
        of(json!({"tasks": ["x"], "permission_mode": "auto"}), "/permission_mode", "has no key"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_is_wrong_is_refused_with_its_place_and_nothing_starts() {
    let env = new_test_env(|_| Reply::says("never asked")).await;
    let all = specs();
    assert!(all.len() >= 25);
    for (spec, place, says) in all {
        env.write("spec.json", &spec);
        let run: RunOutput = env.run_pixir(&["delegate", "--spec", "spec.json", "--json"]);
        let short: String = String::from_utf8_lossy(&spec).chars().take(120).collect();
        assert_eq!(run.code, Some(2), "{short}: {}{}", run.out, run.err);
        let envelope = run.envelope();
        fits("envelope", &envelope);
        let first = &envelope["error"]["details"]["flaws"][0];
        let pointer = first["json_pointer"].as_str().unwrap();
        let is_deep = says == "levels deep";
        assert!(
            pointer == place || (is_deep && pointer.starts_with("/tasks/0/0")),
            "{short}: {first}"
        );
        assert!(first["message"].as_str().unwrap().contains(says), "{short}: {first}");
    }
    assert!(env.requests().is_empty() && log_files(&env.workspace()).is_empty());
    let missing =
        env.run_pixir(&["delegate", "--spec", "nowhere.json", "--json"]).assert_exit_code(2);
    assert!(missing.envelope()["error"]["message"].as_str().unwrap().contains("nowhere.json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typo_is_reported_with_the_word_that_was_meant() {
    let env = new_test_env(|_| Reply::says("never asked")).await;
    for (spec, meant) in [
        (json!({"taks": ["x"]}), "tasks"),
        (json!({"tasks": [{"task": "x", "roles": "explorer"}]}), "role"),
        (json!({"tasks": [{"task": "x", "prompt": "y"}]}), "task"),
        (json!({"tasks": [{"task": "x", "reasoning_effort": "low"}]}), "effort"),
        (json!({"tasks": ["x"], "limits": {"concurrency": 3}}), "max_concurrency"),
        (json!({"tasks": ["x"], "defaults": {"timeout": 3}}), "timeout_ms"),
        (json!({"tasks": [{"task": "x", "role": "explorerr"}]}), "explorer"),
    ] {
        env.write("spec.json", spec.to_string());
        let run = env
            .run_pixir(&["delegate", "--spec", "spec.json", "--dry-run", "--json"])
            .assert_exit_code(2);
        let envelope = run.envelope();
        let flaws = envelope["error"]["details"]["flaws"].as_array().unwrap();
        let found = flaws.iter().find(|flaw| flaw["did_you_mean"] == meant);
        assert!(found.is_some_and(|flaw| flaw["accepted_keys"].is_array()), "{spec}: {flaws:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_through_stdin_is_held_to_the_same() {
    let env = new_test_env(|_| Reply::says("never asked")).await;
    for (spec, says) in [
        (b"".as_slice(), "ends too early"),
        (b"{\"tasks\": [", "ends too early"),
        (b"{\"tasks\": [\"\xc3\x28\"]}", "not UTF-8"),
        (b"x".repeat(3_000_000).as_slice(), "1000000 are allowed"),
    ] {
        let mut command = env.command(&["delegate", "--spec", "-", "--json"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // The program may stop reading a spec that is too large.
        child.stdin.take().unwrap().write_all(spec).ok();
        let run = RunOutput::from_output(child.wait_with_output().unwrap()).assert_exit_code(2);
        let envelope = run.envelope();
        fits("envelope", &envelope);
        assert_eq!(envelope["error"]["kind"], "invalid_args");
        assert!(envelope["error"]["message"].as_str().unwrap().contains(says), "{envelope}");
    }
    // A folder is refused as a spec, and so is empty input.
    env.run_pixir(&["delegate", "--spec", ".", "--json"]).assert_exit_code(2);
    env.run_pixir(&["delegate", "--spec", "", "--json"]).assert_exit_code(2);
    env.run_pixir(&["delegate", "--json"]).assert_exit_code(2);
    // Flags without an effect here are refused.
    env.write("spec.json", r#"{"tasks": ["x"]}"#);
    env.write("flow.json", r#"{"id": "w", "steps": [{"id": "a", "task": "x"}]}"#);
    for args in [["delegate", "--spec", "spec.json"], ["workflow", "run", "flow.json"]] {
        let args = [&args[..], &["--json", "--output-schema", "spec.json"]].concat();
        let envelope = env.run_pixir(&args).assert_exit_code(2).envelope();
        let actions = envelope["error"]["details"]["next_actions"].to_string();
        assert!(actions.contains("state the `output` of each"), "{envelope}");
    }
    assert!(env.requests().is_empty() && log_files(&env.workspace()).is_empty());
}
