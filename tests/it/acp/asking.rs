//! Permission questions to an editor: their content, the effect of each answer, and the withdrawal of questions
//! that are no longer needed.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{facts, new_binary_env, new_client};

fn touch(name: &str) -> Reply {
    Reply::calls("bash", json!({ "command": format!("touch {name}") }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_asked_and_a_no_with_words_reaches_the_model() {
    let env = new_binary_env([touch("a"), Reply::says("understood")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let prompt = editor.send_prompt(&id, "go");
    let asked = editor.wait_for_request("session/request_permission");
    let call = &asked["params"]["toolCall"];
    assert_eq!(asked["params"]["sessionId"], id);
    assert_eq!((&call["title"], &call["kind"]), (&json!("touch a"), &json!("execute")));
    assert_eq!(call["rawInput"]["command"], "touch a");
    let words = call["content"][0]["content"]["text"].as_str().unwrap();
    let place = env.workspace().canonicalize().unwrap();
    assert!(words.contains("touch a") && words.contains(place.to_str().unwrap()), "{words}");
    let outcome = json!({"outcome": "selected", "optionId": "reject", "_meta": {"feedback": "make b instead"}});
    editor.send_reply(&asked, json!({ "outcome": outcome }));
    assert_eq!(editor.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    assert!(!env.workspace().join("a").exists());
    let seen = env.server.requests().last().unwrap().body_text.clone();
    assert!(seen.contains("make b instead"), "the model is told");
    let decision = &facts(&env, "permission_decision")[0];
    assert_eq!(
        (&decision["decision"], &decision["words"]),
        (&json!("deny"), &json!("make b instead"))
    );
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_allowed_for_the_session_is_not_asked_again_in_it() {
    let env = new_binary_env([
        touch("a"),
        touch("a"),
        Reply::says("one"),
        touch("a"),
        Reply::says("two"),
    ])
    .await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let prompt = editor.send_prompt(&id, "twice a");
    let asked = editor.wait_for_request("session/request_permission");
    editor.choose(&asked, "session");
    editor.wait_for_answer(prompt).unwrap();
    // A grant does not extend to another Session of the project.
    let other = editor.new_session(&env.workspace());
    let prompt = editor.send_prompt(&other, "a again");
    let asked = editor.wait_for_request("session/request_permission");
    editor.choose(&asked, "reject");
    editor.wait_for_answer(prompt).unwrap();
    let (_, all) = editor.close_and_wait();
    let questions = all.iter().filter(|line| line["method"] == "session/request_permission");
    assert_eq!(questions.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_turn_takes_its_question_back() {
    let env = new_binary_env([touch("a"), Reply::says("fine")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let prompt = editor.send_prompt(&id, "go");
    let asked = editor.wait_for_request("session/request_permission");
    editor.notify("session/cancel", json!({"sessionId": id}));
    assert_eq!(editor.wait_for_answer(prompt).unwrap()["stopReason"], "cancelled");
    let withdrawn =
        editor.wait_for_message("a withdrawal", |line| line["method"] == "$/cancel_request");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    let place = |wished: &dyn Fn(&Value) -> bool| editor.received.iter().position(wished).unwrap();
    let taken_back = place(&|line| line["method"] == "$/cancel_request");
    let answered = place(&|line| line.get("method").is_none() && line["id"] == prompt);
    assert!(taken_back < answered, "no question outlives its Turn");
    // Clients may still answer a withdrawn question.
    editor.send_reply(&asked, json!({"outcome": {"outcome": "cancelled"}}));
    assert_eq!(editor.run_prompt(&id, "next").unwrap()["stopReason"], "end_turn");
    assert!(!env.workspace().join("a").exists());
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_to_a_cancelled_turn_does_not_touch_the_next() {
    const ROUNDS: usize = 10;
    let rounds = (0..ROUNDS).flat_map(|n| [touch(&format!("a{n}")), Reply::says("fine")]);
    let env = new_binary_env(rounds.collect::<Vec<_>>()).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    for round in 0..ROUNDS {
        let prompt = editor.send_prompt(&id, "go");
        let asked = editor.wait_for_request("session/request_permission");
        // In one burst, as a client sends it when its user stops the Turn with a new prompt.
        editor.notify("session/cancel", json!({"sessionId": id}));
        editor.send_reply(&asked, json!({"outcome": {"outcome": "cancelled"}}));
        let next = editor.send_prompt(&id, "something else");
        assert_eq!(editor.wait_for_answer(prompt).unwrap()["stopReason"], "cancelled", "{round}");
        assert_eq!(editor.wait_for_answer(next).unwrap()["stopReason"], "end_turn", "{round}");
    }
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_the_client_cancels_ends_the_turn() {
    let env = new_binary_env([touch("a"), Reply::says("never said")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let prompt = editor.send_prompt(&id, "go");
    let asked = editor.wait_for_request("session/request_permission");
    editor.send_reply(&asked, json!({"outcome": {"outcome": "cancelled"}}));
    assert_eq!(editor.wait_for_answer(prompt).unwrap()["stopReason"], "cancelled");
    assert!(!env.workspace().join("a").exists());
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_mode_holds_from_the_next_call_on() {
    let env = new_binary_env([touch("a"), touch("b"), Reply::says("done")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let prompt = editor.send_prompt(&id, "go");
    let asked = editor.wait_for_request("session/request_permission");
    let set = json!({"sessionId": id, "modeId": "auto"});
    assert_eq!(editor.call("session/set_mode", set).unwrap(), json!({}));
    assert_eq!(editor.wait_for_update("current_mode_update")["currentModeId"], "auto");
    let options = editor.wait_for_update("config_option_update");
    assert_eq!(options["configOptions"][0]["currentValue"], "auto");
    editor.choose(&asked, "once");
    assert_eq!(editor.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    assert!(env.workspace().join("b").exists(), "b was not asked");
    let decisions = facts(&env, "permission_decision");
    assert_eq!(decisions[0]["mode"], "ask");
    let changed = &facts(&env, "posture_changed")[0];
    assert_eq!(changed["permission_mode"], "auto");
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn invisible_characters_are_spelled_in_the_title_and_the_text_of_a_question() {
    let invisible = "\u{200b}\u{200d}\u{2060}\u{feff}\u{ad}\u{fe0f}\u{3164}\u{180e}\u{34f}\u{202e}";
    let command = format!("touch 'a{invisible}b' && echo {invisible}");
    let write = json!({"path": format!("c{invisible}d"), "content": format!("x{invisible}\n")});
    let calls = [
        Reply::calls("bash", json!({ "command": command })),
        Reply::calls("write", write),
        Reply::says("fine"),
    ];
    let env = new_binary_env(calls).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let prompt = editor.send_prompt(&id, "go");
    for _ in 0..2 {
        let asked = editor.wait_for_request("session/request_permission");
        let call = &asked["params"]["toolCall"];
        assert!(call["title"].as_str().unwrap().contains("<U+200B>"), "{call}");
        assert!(!call["title"].as_str().unwrap().contains(|c| invisible.contains(c)), "{call}");
        let texts: Vec<&str> = call["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|content| content["content"]["text"].as_str())
            .collect();
        assert!(!texts.iter().any(|text| text.contains(|c| invisible.contains(c))), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("contains hidden characters")), "{texts:?}");
        editor.choose(&asked, "reject");
    }
    editor.wait_for_answer(prompt).unwrap();
    let command = editor.received.iter().find_map(|line| {
        line["params"]["toolCall"]["rawInput"]["command"].as_str().map(str::to_owned)
    });
    assert!(command.unwrap().contains('\u{200b}'), "the input itself stays as it is");
    assert!(editor.close_and_wait().0.success());
}
