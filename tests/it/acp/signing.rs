//! Signing in and out through an editor.

use serde_json::json;

use crate::login::get;
use crate::support::acp_client::AcpClient;
use crate::support::sign_in_env::SignInEnv;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_sign_in_is_refused_and_a_sign_out_takes_effect() {
    let env = SignInEnv::new().await;
    let work = env.auth_file().parent().unwrap().parent().unwrap().join("work");
    let mut client = AcpClient::spawn(&mut env.command(&["acp"]));
    let hello = client.initialize(json!({}));
    assert_eq!(hello["authMethods"][0]["id"], "chatgpt");
    assert_eq!(hello["agentCapabilities"]["auth"]["logout"], json!({}));
    let params = json!({"cwd": work, "mcpServers": []});
    let refused = client.call("session/new", params.clone()).unwrap_err();
    assert_eq!(refused["code"], -32_000, "{refused}");
    let refused = client.call("authenticate", json!({"methodId": "openai-api-key"})).unwrap_err();
    assert_eq!(refused["code"], -32_000, "{refused}");
    // The user signs in on a terminal meanwhile.
    env.sign_in(3600);
    let id = client.new_session(&work);
    assert_eq!(client.run_prompt(&id, "hi").unwrap()["stopReason"], "end_turn");
    assert_eq!(client.call("logout", json!(null)).unwrap(), json!({}));
    assert!(!env.auth_file().exists());
    let out = client.run_prompt(&id, "still there?").unwrap_err();
    assert_eq!(out["code"], -32_000, "{out}");
    assert_eq!(client.call("session/new", params).unwrap_err()["code"], -32_000);
    env.sign_in(3600);
    // After the editor reports the new sign-in, the Session continues.
    assert_eq!(client.run_prompt(&id, "and now?").unwrap()["stopReason"], "end_turn");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_signs_in_through_a_browser_while_everything_else_goes_on() {
    let env = SignInEnv::new().await;
    let work = env.auth_file().parent().unwrap().parent().unwrap().join("work");
    let mut client = AcpClient::spawn(&mut env.command(&["acp"]));
    client.initialize(json!({}));
    let signing = client.send_request("authenticate", json!({"methodId": "chatgpt"}));
    let page = client.wait_for_stderr_line("http");
    // Other requests are answered while the sign-in waits for the browser.
    assert!(client.call("session/list", json!({})).unwrap()["sessions"].is_array());
    let answer = get(&page, None);
    let back = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
    assert!(get(back, None).starts_with("HTTP/1.1 200"));
    assert_eq!(client.wait_for_answer(signing).unwrap(), json!({}));
    assert_eq!(env.stored_tokens()["kind"], "subscription");
    let id = client.new_session(&work);
    assert_eq!(client.run_prompt(&id, "hi").unwrap()["stopReason"], "end_turn");
    // An unfinished sign-in can be cancelled.
    let again = client.send_request("authenticate", json!({"methodId": "chatgpt"}));
    client.notify("$/cancel_request", json!({ "requestId": again }));
    assert_eq!(client.wait_for_answer(again).unwrap_err()["code"], -32_800);
    assert!(client.close_and_wait().0.success());
}
