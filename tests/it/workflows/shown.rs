//! What a person and an editor see of a run.

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use super::troupe::{Told, kinds, root_log, troupe, workflow};
use crate::support::House;
use crate::support::Stage;
use crate::support::editor::Editor;
use crate::support::terminal::Terminal;

const READY: &str = "Done.\ncheckpoint_status: checkpoint_ready";

fn graph() -> Value {
    workflow(json!([
        {"id": "build", "task": "build it", "posture": "write"},
        {"id": "review", "task": "review it", "role": "reviewer", "depends_on": ["build"]},
        {"id": "land", "apply": "build", "gate": "review"},
        {"id": "never", "task": "never", "role": "explorer", "depends_on": ["quiet"]},
        {"id": "quiet", "task": "quiet", "role": "explorer"},
    ]))
}

fn answer(told: &Told) -> Reply {
    match (told.step(), told.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        ("review", _) => Reply::says(r#"{"verdict": "approve", "findings": []}"#),
        ("quiet", _) => Reply::says("Hm."),
        _ => Reply::says(READY),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_sees_steps_as_its_plan_and_as_calls() {
    let script = Script::answering(|request| match Told::of(request) {
        Some(told) => answer(&told),
        None if request.outputs().is_empty() => {
            Reply::calls("run_workflow", json!({"workflow": graph()}))
        }
        None => Reply::says("Landed."),
    });
    let stage = Stage::new(Stage::mark(), script).await;
    tokio::task::block_in_place(|| {
        let mut editor = Editor::greeted(&stage, json!({}));
        let id = editor.session(&stage.workspace());
        editor.call("session/set_mode", json!({"sessionId": id, "modeId": "auto"})).unwrap();
        assert_eq!(editor.turn(&id, "land it").unwrap()["stopReason"], "end_turn");
        let updates = editor.updates();
        let plans: Vec<&Value> =
            updates.iter().filter(|update| update["sessionUpdate"] == "plan").collect();
        let entries = |plan: &Value| {
            let all = plan["entries"].as_array().unwrap().iter();
            let word = |entry: &Value| {
                format!(
                    "{} {}",
                    entry["content"].as_str().unwrap(),
                    entry["status"].as_str().unwrap()
                )
            };
            all.map(word).collect::<Vec<_>>()
        };
        assert!(entries(plans[0]).iter().all(|entry| entry.ends_with(" pending")), "{plans:?}");
        assert_eq!(
            entries(plans.last().unwrap()),
            [
                "Build it completed",
                "Review it completed",
                "Apply what build changed completed",
                "Never (held) pending",
                "Quiet (partial) completed"
            ]
        );
        let calls: Vec<&str> = updates
            .iter()
            .filter(|update| update["sessionUpdate"] == "tool_call")
            .filter_map(|update| update["title"].as_str())
            .collect();
        for title in ["worker: build it", "reviewer: review it", "Apply what build changed"] {
            assert!(calls.iter().any(|own| own.starts_with(title)), "{title}: {calls:?}");
        }
        assert_eq!(std::fs::read_to_string(stage.workspace().join("a.txt")).unwrap(), "new\n");
        assert!(editor.end().0.success());
    });
    assert!(kinds(&root_log(&stage.workspace())).contains(&"merged land".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envelope_has_the_words_of_every_envelope_and_what_to_do_next() {
    let house = House::scripted(troupe(|told| answer(told).usage(20, 0, 5))).await;
    house.write("flow.json", graph().to_string());
    let envelope = house.pixir(&["workflow", "run", "flow.json", "--json"]).exits(6).envelope();
    assert_eq!(
        (&envelope["status"], &envelope["error"]["kind"], &envelope["output"]["status"]),
        (&json!("incomplete"), &json!("incomplete"), &json!("partial"))
    );
    let action = envelope["error"]["details"]["next_actions"][0].as_str().unwrap();
    assert!(action.ends_with(envelope["resume_command"].as_str().unwrap()), "{action}");
    assert!(action.contains("workflow resume wf_"), "{action}");
    assert_eq!(envelope["usage"]["total_tokens"], envelope["output"]["usage"]["total_tokens"]);
    assert!(envelope["usage"]["total_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_draws_where_the_graph_stands() {
    let house = House::scripted(troupe(|told| match (told.step(), told.turn) {
        ("slow", 0) => {
            Reply::calls("bash", json!({"command": "while ! test -e go; do sleep 0.05; done"}))
        }
        _ => answer(told),
    }))
    .await;
    let steps = json!([
        {"id": "look", "task": "look", "role": "explorer"},
        {"id": "slow", "task": "slow", "posture": "write", "workspace": "shared", "depends_on": ["look"],
         "verify": ["true"]},
        {"id": "after", "task": "after", "role": "explorer", "depends_on": ["slow"]},
    ]);
    house.write("flow.json", workflow(steps).to_string());
    tokio::task::block_in_place(|| {
        let mut terminal = Terminal::run(&house, &["workflow", "run", "flow.json"], &[]);
        terminal.shows("✓ look ready");
        terminal.shows("▸ slow");
        terminal.shows("· 1 waiting");
        house.write("go", "");
        terminal.shows("`true` passed");
        terminal.ends();
    });
    let told = kinds(&root_log(&house.workspace()));
    assert!(told.contains(&"step_scheduled slow".to_owned()), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_cut_off_is_offered_to_whoever_comes_back() {
    let house = House::scripted(troupe(|told| match told.step() {
        "slow" if !told.workspace.join("go").exists() => {
            Reply::calls("bash", json!({"command": "sleep 600"}))
        }
        _ => Reply::says(READY),
    }))
    .await;
    let steps = json!([
        {"id": "look", "task": "look", "role": "explorer"},
        {"id": "slow", "task": "slow", "posture": "write", "workspace": "shared", "write_set": ["out/**"], "depends_on": ["look"]},
    ]);
    house.write("flow.json", workflow(steps).to_string());
    let is_slow = || {
        let logs = crate::support::house::logs(&house.workspace());
        logs.iter().any(|log| std::fs::read_to_string(log).unwrap().contains("sleep 600"))
    };
    tokio::task::block_in_place(|| {
        house.pixir_killed_when(&["workflow", "run", "flow.json"], is_slow);
        house.write("go", "");
        let log = root_log(&house.workspace());
        let session = log.file_stem().unwrap().to_str().unwrap().to_owned();
        let told = house.pixir(&["diagnose", &session]).out;
        assert!(
            told.contains("was cut off") && told.contains("pixir workflow resume wf_"),
            "{told}"
        );
        let run = told.split("pixir workflow resume ").nth(1).unwrap()[..13].to_owned();
        let listed = house.pixir(&["workflow", "status"]).exits(0).out;
        assert!(listed.contains(&run) && listed.contains("interrupted"), "{listed}");
        let offered = house.pixir(&["workflow", "run", "flow.json"]).exits(0).err;
        assert!(offered.contains(&format!("pixir workflow resume {run}")), "{offered}");
        let sessions = house.pixir(&["sessions"]).exits(0).out;
        assert!(sessions.contains("Run the Workflow `a test`"), "{sessions}");
        house.pixir(&["workflow", "resume", &run]).exits(0);
        let status = house.pixir(&["workflow", "status", &session]).exits(0).out;
        assert!(status.contains("completed: 2 of 2"), "{status}");
    });
}
