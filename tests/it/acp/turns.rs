//! Prompts: the updates and the end of a Turn, as an editor receives them.

use std::time::{Duration, Instant};

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::{new_binary_env, new_client};
use crate::support::BinaryEnv;
use crate::support::acp_client::joined_text;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_sent_in_pieces_and_then_the_prompt_is_answered() {
    let env = new_binary_env([Reply::new().reasoning("Let me think").text("one two three")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let answer = editor.run_prompt(&id, "count\nto three").unwrap();
    assert_eq!(answer, json!({"stopReason": "end_turn"}));
    let updates = editor.updates();
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "one two three");
    assert_eq!(joined_text(&updates, "agent_thought_chunk").trim(), "Let me think");
    let kinds: Vec<&str> =
        updates.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect();
    assert_eq!(kinds[0], "available_commands_update", "{kinds:?}");
    let title = updates.iter().find(|update| update["sessionUpdate"] == "session_info_update");
    assert_eq!(title.unwrap()["title"], "count to three");
    let usage = updates.iter().find(|update| update["sessionUpdate"] == "usage_update").unwrap();
    assert_eq!((&usage["used"], &usage["size"]), (&json!(120), &json!(272_000)));
    let ids: Vec<&Value> = updates
        .iter()
        .filter(|update| update["sessionUpdate"] == "agent_message_chunk")
        .map(|update| &update["messageId"])
        .collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]) && ids[0].is_string(), "{ids:?}");
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_turn_says_so_twice() {
    let refused = json!({"error": {"code": "invalid_api_key", "message": "no such key"}});
    let broken = json!({"error": {"code": "bad_request", "message": "that makes no sense"}});
    let env = new_binary_env([
        Reply::status(401, refused.to_string()),
        Reply::status(400, broken.to_string()),
    ])
    .await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let error = editor.run_prompt(&id, "go").unwrap_err();
    assert_eq!(error["code"], -32_000, "{error}");
    let text = joined_text(&editor.updates(), "agent_message_chunk");
    assert!(text.starts_with('\u{26a0}'), "{text}");
    let error = editor.run_prompt(&id, "again").unwrap_err();
    assert_eq!(error["code"], -32_603, "{error}");
    assert!(error["data"]["details"].as_str().unwrap().contains("makes no sense"), "{error}");
    let text = joined_text(&editor.updates(), "agent_message_chunk");
    assert!(text.contains("makes no sense"), "{text}");
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_has_its_own_reason() {
    let mut cut = Reply::says("half an");
    cut = cut.incomplete("max_output_tokens");
    let env = new_binary_env([
        cut,
        Reply::new().incomplete("max_output_tokens"),
        Reply::new().refusal("I will not"),
        Reply::calls("list", json!({})),
    ])
    .await;
    let (mut editor, id) = new_client(&env, &["--max-iterations", "1"], json!({}));
    for (prompt, reason) in
        [("a", "max_tokens"), ("b", "max_tokens"), ("c", "refusal"), ("d", "max_turn_requests")]
    {
        let answer = editor.run_prompt(&id, prompt).unwrap();
        assert_eq!(answer["stopReason"], reason, "{prompt}");
    }
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_prompt_is_answered_at_once_and_the_next_one_works() {
    let mark = BinaryEnv::new_mark();
    let command = format!("echo begun; sleep 600; echo {mark}");
    let script = ModelScript::new([
        Reply::calls("bash", json!({"command": command})),
        Reply::says("here again"),
    ]);
    let env = BinaryEnv::new(mark, script).await;
    let (mut editor, id) = new_client(&env, &["--auto"], json!({}));
    let running = editor.send_prompt(&id, "go");
    editor.wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
    // Two more prompts: one that the cancel covers, and one that comes after it.
    let covered = editor.send_prompt(&id, "never mind");
    editor.notify("session/cancel", json!({"sessionId": id}));
    let began = Instant::now();
    let next = editor.send_prompt(&id, "and now");
    assert_eq!(editor.wait_for_answer(running).unwrap()["stopReason"], "cancelled");
    // The documented limit is a second; a loaded machine gets more.
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(editor.wait_for_answer(covered).unwrap()["stopReason"], "cancelled");
    assert_eq!(editor.wait_for_answer(next).unwrap()["stopReason"], "end_turn");
    let updates = editor.updates();
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "here again");
    let failed = updates.iter().filter(|update| update["status"] == "failed").count();
    assert_eq!(failed, 1, "the call was ended: {updates:#?}");
    assert!(editor.close_and_wait().0.success());
    env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_can_be_taken_back_by_its_request() {
    let pause = Reply::new().text("wait").pause(Duration::from_mins(10));
    let env = new_binary_env([pause, Reply::says("fine")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let running = editor.send_prompt(&id, "go");
    editor.wait_for_update("agent_message_chunk");
    editor.notify("$/cancel_request", json!({"requestId": running}));
    assert_eq!(editor.wait_for_answer(running).unwrap()["stopReason"], "cancelled");
    assert_eq!(editor.run_prompt(&id, "next").unwrap()["stopReason"], "end_turn");
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_asked_and_reported_with_its_diff() {
    let edit = json!({"path": "a.txt", "edits": [{"old_string": "two", "new_string": "2"}]});
    let env = new_binary_env([Reply::calls("edit", edit), Reply::says("done")]).await;
    std::fs::write(env.workspace().join("a.txt"), "one\ntwo\nthree\n").unwrap();
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let prompt = editor.send_prompt(&id, "change it");
    let asked = editor.wait_for_request("session/request_permission");
    let call = &asked["params"]["toolCall"];
    let path = env.workspace().canonicalize().unwrap().join("a.txt");
    let diff = json!({"type": "diff", "path": path, "oldText": "one\ntwo\nthree\n", "newText": "one\n2\nthree\n"});
    assert_eq!(call["content"], json!([diff]));
    assert_eq!((&call["title"], &call["kind"]), (&json!("Edit a.txt"), &json!("edit")));
    assert_eq!(call["locations"][0]["path"], json!(path));
    let kinds: Vec<&str> = asked["params"]["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|option| option["optionId"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["once", "session_edits", "reject"]);
    editor.choose(&asked, "once");
    assert_eq!(editor.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    let updates = editor.updates();
    let done = updates.iter().find(|update| update["status"] == "completed").unwrap();
    assert_eq!(done["content"], json!([diff]), "the text does not replace the change");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "one\n2\nthree\n");
    assert!(editor.close_and_wait().0.success());
}
