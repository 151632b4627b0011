//! Loading: everything that was said and done, as it was told when it happened.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{editor, stage};
use crate::support::editor::{Editor, text_of};

fn kinds(updates: &[Value]) -> Vec<&str> {
    updates.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_the_terminal_is_loaded_whole_and_goes_on() {
    let plan = json!({"plan": [{"step": "look", "status": "completed"}, {"step": "change", "status": "in_progress"}]});
    let edit = json!({"path": "a.txt", "edits": [{"old_string": "x", "new_string": "y"}]});
    let stage = stage([
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
    std::fs::write(stage.workspace().join("a.txt"), "x\n").unwrap();
    stage.run(&["--json", "please do"]).expect_code(0);
    let (id, _) = stage.session().unwrap();
    let mut editor = Editor::greeted(&stage, json!({}));
    let params = json!({"sessionId": id.to_string(), "cwd": stage.workspace(), "mcpServers": []});
    let asked = editor.ask("session/load", params);
    let answer = editor.answer(asked).unwrap();
    // Everything that is heard before the answer is the replay.
    let place = editor.received.iter().position(|line| line["id"] == asked).unwrap();
    let told: Vec<Value> = editor.received[..place]
        .iter()
        .filter(|line| line["method"] == "session/update")
        .map(|line| line["params"]["update"].clone())
        .collect();
    assert_eq!(
        kinds(&told),
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
    assert_eq!(text_of(&told, "user_message_chunk"), "please do");
    assert_eq!(text_of(&told, "agent_message_chunk"), "I look first.All done.");
    assert_ne!(told[2]["messageId"], told[6]["messageId"]);
    let titles: Vec<&str> = told[3..6].iter().map(|call| call["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["Read a.txt", "Edit a.txt", "echo hi"]);
    assert!(told[3..6].iter().all(|call| call["status"] == "completed"), "{told:#?}");
    assert_eq!(told[4]["content"][0]["oldText"], "x\n");
    assert_eq!(told[7]["entries"].as_array().unwrap().len(), 2);
    assert_eq!(answer["modes"]["currentModeId"], "ask", "an editor's user is asked");
    editor.drain();
    assert_eq!(editor.turn(&id.to_string(), "and now").unwrap()["stopReason"], "end_turn");
    assert!(editor.end().0.success());
    // And the other way round.
    let listed = stage.run(&["sessions", "--json"]);
    assert!(listed.stdout.contains("please do"), "{}", listed.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replayed_is_what_was_shown() {
    let stage = stage([
        Reply::new().reasoning("Thinking").text("First I look.").call("list", json!({})),
        Reply::says("That is all."),
    ])
    .await;
    let (mut editor, id) = editor(&stage, &["--auto"], json!({}));
    editor.turn(&id, "look").unwrap();
    let live = editor.updates();
    let params = json!({"sessionId": id, "cwd": stage.workspace(), "mcpServers": []});
    editor.call("session/load", params).unwrap();
    let replay = editor.updates();
    for kind in ["agent_message_chunk", "agent_thought_chunk"] {
        assert_eq!(text_of(&live, kind).trim(), text_of(&replay, kind).trim(), "{kind}");
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
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_session_says_nothing_of_the_past() {
    let stage = stage([Reply::says("one"), Reply::says("two")]).await;
    stage.run(&["--json", "first"]).expect_code(0);
    let (id, _) = stage.session().unwrap();
    let mut editor = Editor::greeted(&stage, json!({}));
    // Without servers, and with the prompt on its heels.
    let resume = editor
        .ask("session/resume", json!({"sessionId": id.to_string(), "cwd": stage.workspace()}));
    let prompt = editor.prompt(&id.to_string(), "second");
    assert!(editor.answer(resume).unwrap()["configOptions"].is_array());
    assert_eq!(editor.answer(prompt).unwrap()["stopReason"], "end_turn");
    let updates = editor.updates();
    assert_eq!(text_of(&updates, "agent_message_chunk"), "two");
    assert_eq!(text_of(&updates, "user_message_chunk"), "");
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_back_is_not_told_again() {
    let stage = stage([Reply::says("one"), Reply::says("two"), Reply::says("three")]).await;
    stage.run(&["--json", "first"]).expect_code(0);
    let (id, _) = stage.session().unwrap();
    let id = id.to_string();
    stage.run(&["resume", &id, "--json", "second"]).expect_code(0);
    stage.run(&["undo", "--yes", &id]).expect_code(0);
    let mut editor = Editor::greeted(&stage, json!({}));
    editor.call("session/load", json!({"sessionId": id, "cwd": stage.workspace()})).unwrap();
    let told = editor.updates();
    assert_eq!(text_of(&told, "user_message_chunk"), "first");
    assert_eq!(text_of(&told, "agent_message_chunk"), "one");
    assert!(editor.end().0.success());
}
