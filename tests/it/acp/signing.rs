//! Signing in and out through an editor.

use serde_json::json;

use crate::login::get;
use crate::support::desk::Desk;
use crate::support::editor::Editor;

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_signed_in_is_told_so_and_who_signs_out_is_out() {
    let desk = Desk::new().await;
    let work = desk.auth().parent().unwrap().parent().unwrap().join("work");
    let mut editor = Editor::spawn(&mut desk.pixir(&["acp"]));
    let hello = editor.initialize(json!({}));
    assert_eq!(hello["authMethods"][0]["id"], "chatgpt");
    assert_eq!(hello["agentCapabilities"]["auth"]["logout"], json!({}));
    let params = json!({"cwd": work, "mcpServers": []});
    let refused = editor.call("session/new", params.clone()).unwrap_err();
    assert_eq!(refused["code"], -32_000, "{refused}");
    let refused = editor.call("authenticate", json!({"methodId": "openai-api-key"})).unwrap_err();
    assert_eq!(refused["code"], -32_000, "{refused}");
    // Signed in on a terminal, meanwhile.
    desk.sign_in(3600);
    let id = editor.session(&work);
    assert_eq!(editor.turn(&id, "hi").unwrap()["stopReason"], "end_turn");
    assert_eq!(editor.call("logout", json!(null)).unwrap(), json!({}));
    assert!(!desk.auth().exists());
    let out = editor.turn(&id, "still there?").unwrap_err();
    assert_eq!(out["code"], -32_000, "{out}");
    assert_eq!(editor.call("session/new", params).unwrap_err()["code"], -32_000);
    desk.sign_in(3600);
    // The editor says that somebody signed in again: the Session goes on.
    assert_eq!(editor.turn(&id, "and now?").unwrap()["stopReason"], "end_turn");
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_signs_in_through_a_browser_while_everything_else_goes_on() {
    let desk = Desk::new().await;
    let work = desk.auth().parent().unwrap().parent().unwrap().join("work");
    let mut editor = Editor::spawn(&mut desk.pixir(&["acp"]));
    editor.initialize(json!({}));
    let signing = editor.ask("authenticate", json!({"methodId": "chatgpt"}));
    let page = editor.heard_aside("http");
    // Nobody waits for the browser but who asked.
    assert!(editor.call("session/list", json!({})).unwrap()["sessions"].is_array());
    let answer = get(&page, None);
    let back = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
    assert!(get(back, None).starts_with("HTTP/1.1 200"));
    assert_eq!(editor.answer(signing).unwrap(), json!({}));
    assert_eq!(desk.stored()["kind"], "subscription");
    let id = editor.session(&work);
    assert_eq!(editor.turn(&id, "hi").unwrap()["stopReason"], "end_turn");
    // One that nobody finishes can be taken back.
    let again = editor.ask("authenticate", json!({"methodId": "chatgpt"}));
    editor.notify("$/cancel_request", json!({ "requestId": again }));
    assert_eq!(editor.answer(again).unwrap_err()["code"], -32_800);
    assert!(editor.end().0.success());
}
