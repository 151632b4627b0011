//! `session/load`: all messages and tool calls again, as they were first sent.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{new_binary_env, new_client};
use crate::support::acp_client::{AcpClient, joined_text};

fn kinds(updates: &[Value]) -> Vec<&str> {
    updates.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_the_terminal_is_loaded_whole_and_goes_on() {
    let plan = json!({"plan": [{"step": "look", "status": "completed"}, {"step": "change", "status": "in_progress"}]});
    let edit = json!({"path": "a.txt", "edits": [{"old_string": "x", "new_string": "y"}]});
    let env = new_binary_env([
        Reply::new()
            .reasoning("Hm")
            .commentary("I look first.")
            .call("read", json!({"path": "a.txt"})),
        Reply::new()
            .call("update_plan", plan)
            .call("edit", edit)
            .call("bash", json!({"command": "echo hi"})),
        Reply::says("All done."),
        Reply::says("Here again."),
    ])
    .await;
    std::fs::write(env.workspace().join("a.txt"), "x\n").unwrap();
    env.run(&["--json", "please do"]).expect_code(0);
    let (id, _) = env.session().unwrap();
    let mut client = AcpClient::initialized(&env, json!({}));
    let params = json!({"sessionId": id.to_string(), "cwd": env.workspace(), "mcpServers": []});
    let asked = client.send_request("session/load", params);
    let answer = client.wait_for_answer(asked).unwrap();
    // All updates before the answer are the replay.
    let place = client.received.iter().position(|line| line["id"] == asked).unwrap();
    let updates: Vec<Value> = client.received[..place]
        .iter()
        .filter(|line| line["method"] == "session/update")
        .map(|line| line["params"]["update"].clone())
        .collect();
    assert_eq!(
        kinds(&updates),
        [
            "user_message_chunk",
            "agent_thought_chunk",
            "agent_message_chunk",
            "tool_call",
            "tool_call",
            "tool_call",
            "agent_message_chunk",
            "plan",
            "session_info_update",
            "usage_update",
            "available_commands_update",
        ]
    );
    assert_eq!(joined_text(&updates, "user_message_chunk"), "please do");
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "I look first.All done.");
    assert_ne!(updates[2]["messageId"], updates[6]["messageId"]);
    let titles: Vec<&str> =
        updates[3..6].iter().map(|call| call["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["Read a.txt", "Edit a.txt", "echo hi"]);
    assert!(updates[3..6].iter().all(|call| call["status"] == "completed"), "{updates:#?}");
    assert_eq!(updates[4]["content"][0]["oldText"], "x\n");
    assert_eq!(updates[7]["entries"].as_array().unwrap().len(), 2);
    assert_eq!(answer["modes"]["currentModeId"], "ask", "an editor's user is asked");
    client.drain();
    assert_eq!(client.run_prompt(&id.to_string(), "and now").unwrap()["stopReason"], "end_turn");
    assert!(client.close_and_wait().0.success());
    // In the other direction: a Session of the editor on the command line.
    let listed = env.run(&["sessions", "--json"]);
    assert!(listed.stdout.contains("please do"), "{}", listed.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replayed_is_what_was_shown() {
    let env = new_binary_env([
        Reply::new().reasoning("Thinking").text("First I look.").call("list", json!({})),
        Reply::says("That is all."),
    ])
    .await;
    let (mut client, id) = new_client(&env, &["--auto"], json!({}));
    client.run_prompt(&id, "look").unwrap();
    let live = client.updates();
    let params = json!({"sessionId": id, "cwd": env.workspace(), "mcpServers": []});
    client.call("session/load", params).unwrap();
    let replay = client.updates();
    for kind in ["agent_message_chunk", "agent_thought_chunk"] {
        assert_eq!(joined_text(&live, kind).trim(), joined_text(&replay, kind).trim(), "{kind}");
    }
    let call = |updates: &[Value]| {
        let of_call = updates.iter().filter(|update| update.get("toolCallId").is_some());
        of_call.fold(json!({}), |mut whole, update| {
            for (key, value) in update.as_object().unwrap() {
                whole[key] = value.clone();
            }
            whole["sessionUpdate"] = json!("tool_call");
            whole
        })
    };
    assert_eq!(call(&live), call(&replay));
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_session_says_nothing_of_the_past() {
    let env = new_binary_env([Reply::says("one"), Reply::says("two")]).await;
    env.run(&["--json", "first"]).expect_code(0);
    let (id, _) = env.session().unwrap();
    let mut client = AcpClient::initialized(&env, json!({}));
    // Without servers, and with a prompt sent before the answer.
    let resume = client.send_request(
        "session/resume",
        json!({"sessionId": id.to_string(), "cwd": env.workspace()}),
    );
    let prompt = client.send_prompt(&id.to_string(), "second");
    assert!(client.wait_for_answer(resume).unwrap()["configOptions"].is_array());
    assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    let updates = client.updates();
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "two");
    assert_eq!(joined_text(&updates, "user_message_chunk"), "");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn undone_turns_are_not_replayed() {
    let env = new_binary_env([Reply::says("one"), Reply::says("two"), Reply::says("three")]).await;
    env.run(&["--json", "first"]).expect_code(0);
    let (id, _) = env.session().unwrap();
    let id = id.to_string();
    env.run(&["resume", &id, "--json", "second"]).expect_code(0);
    env.run(&["undo", "--yes", &id]).expect_code(0);
    let mut client = AcpClient::initialized(&env, json!({}));
    client.call("session/load", json!({"sessionId": id, "cwd": env.workspace()})).unwrap();
    let updates = client.updates();
    assert_eq!(joined_text(&updates, "user_message_chunk"), "first");
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "one");
    assert!(client.close_and_wait().0.success());
}
