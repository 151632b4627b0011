//! Inputs of children: Resources, time limits, and the budget of their tree.

use std::time::Duration;

use pixir::scripted::{ReceivedRequest, Reply};
use pixir::{SessionStatus, UserInput};
use serde_json::{Value, json};

use super::scripted_family::{
    self, GO, check_family_logs, count_subagent_events, last_task, read_events, scripted_family,
    spawn_reply, subagent_events, text_reply, wait_reply,
};
use crate::support::test_env::wait_for_turn_end;
use crate::support::{BinaryEnv, TestEnv};

/// The id of the first Resource in a request of the parent.
fn resource(request: &ReceivedRequest) -> String {
    let text = serde_json::to_string(request.input()).unwrap();
    let place = text.find("res_").unwrap_or_else(|| panic!("no Resource: {text}"));
    text[place..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

#[tokio::test]
async fn a_child_is_given_the_files_that_its_parent_hands_on() {
    let script = scripted_family(
        [
            Box::new(|request: &ReceivedRequest| {
                let args = json!({"task": "read it", "role": "explorer", "resources": [resource(request)]});
                Reply::calls("spawn_agent", args)
            }) as scripted_family::ParentReply,
            scripted_family::always(Reply::calls(
                "spawn_agent",
                json!({"task": "x", "resources": ["res_nobody"]}),
            )),
            wait_reply(),
            text_reply("ok"),
        ],
        |_, _| Reply::says("It says hello."),
    );
    let env = TestEnv::with_script(script).await;
    let conversation = env.start().await;
    let note = pixir::Attachment::from_bytes("note.md", b"the word is PLATYPUS".to_vec()).unwrap();
    conversation
        .send_with_attachments(UserInput { text: GO.to_owned() }, vec![note])
        .await
        .unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    let requests = env.requests();
    let child = requests.iter().find(|request| last_task(request).is_some()).unwrap();
    assert!(child.body["input"].to_string().contains("PLATYPUS"), "it reads the file itself");
    let life = subagent_events(conversation.log_path()).pop().unwrap();
    let id = life["child_session_id"].as_str().unwrap();
    let folder = env.workspace().join(".pixir/sessions");
    let events = read_events(&folder.join(format!("{id}.ndjson")));
    let message = events.iter().find(|event| event["type"] == "user_message").unwrap();
    assert_eq!(message["data"]["resources"][0]["name"], "note.md");
    let stored = folder.join(id).join("resources");
    assert_eq!(std::fs::read_dir(stored).unwrap().count(), 1, "it is kept beside its Log");
    let refused = read_events(conversation.log_path());
    let refused = refused.iter().find(|event| event["data"]["error"]["kind"] == "invalid_args");
    assert!(refused.unwrap().to_string().contains("res_nobody"));
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_each_child_as_long_as_that_may_take_and_no_longer() {
    let script = scripted_family(
        [
            scripted_family::always(
                Reply::new()
                    .call("spawn_agent", json!({"task": "stuck", "timeout_ms": 1500}))
                    .call("spawn_agent", json!({"task": "slow", "timeout_ms": 60_000})),
            ),
            text_reply("Started."),
        ],
        |task, _| match task {
            "stuck" => Reply::new().stalls(),
            _ => Reply::new().pause(Duration::from_millis(700)).text("slow is done"),
        },
    );
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let ended = tokio::task::block_in_place(|| binary_env.run(&["--json", GO]));
    ended.expect_code(0);
    let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(envelope["output"], "Started.", "the answer is the Turn's, whatever became of them");
    let id = envelope["session_id"].as_str().unwrap();
    let log = binary_env.workspace().join(format!(".pixir/sessions/{id}.ndjson"));
    assert_eq!(
        (count_subagent_events(&log, "timed_out"), count_subagent_events(&log, "finished")),
        (1, 1)
    );
    for words in ["(worker) timed_out", "(worker) completed"] {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
    assert_eq!(check_family_logs(&binary_env.workspace()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_has_spent_everything_ends_everywhere_and_says_so() {
    // Each child asks once and starts a grandchild; together they are over the limit.
    let script = scripted_family(
        [spawn_reply(&["a", "b", "c"], "explorer"), wait_reply(), text_reply("never")],
        |task, step| {
            let reply = match (task, step) {
                ("deep", _) => Reply::calls("list", json!({})),
                (_, 0) => Reply::calls("spawn_agent", json!({"task": "deep", "role": "explorer"})),
                _ => Reply::calls("wait_agent", json!({})),
            };
            reply.usage(900, 0, 100)
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.budget.max_tokens_total = Some(6_000);
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    let status = crate::support::test_env::send_and_finish(&conversation, GO).await;
    let SessionStatus::Error { terminal_status, error } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "budget_exceeded", "{error:?}");
    harness.wait_for_children(&conversation).await;
    let path = conversation.log_path().to_owned();
    let ends: Vec<Value> =
        subagent_events(&path).into_iter().filter(|life| !life["usage"].is_null()).collect();
    assert_eq!(ends.len(), 3, "{ends:?}");
    for end in &ends {
        assert_eq!((&end["event"], &end["reason"]), (&json!("failed"), &json!("budget_exceeded")));
    }
    // The recorded usage of children is that of their requests.
    let recorded: u64 = ends.iter().filter_map(|end| end["usage"]["total_tokens"].as_u64()).sum();
    let asked = env.requests().iter().filter(|request| last_task(request).is_some()).count() as u64;
    assert_eq!(recorded, asked * 1_000);
    assert!(recorded < 7_000, "{recorded}: requests were sent after the limit");
    conversation.close().await;
    // The number of grandchildren depends on timing.
    assert!(check_family_logs(&env.workspace()) >= 3);
}
