//! Additional directories: a Session that works in several folders.

use pixir::scripted::Reply;
use serde_json::json;

use super::{facts, new_binary_env};
use crate::support::acp_client::AcpClient;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_works_in_every_directory_that_it_was_given_and_in_no_other() {
    let [beside, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let near = beside.path().canonicalize().unwrap();
    let far = other.path().canonicalize().unwrap();
    let write = |folder: &std::path::Path, name: &str| {
        let path = folder.join(name);
        Reply::new().call("write", json!({"path": path, "content": "written\n"})).call(
            "bash",
            json!({"command": format!("echo hello > {}", folder.join("by-bash").display())}),
        )
    };
    let env = new_binary_env([
        write(&near, "by-tool"),
        Reply::says("one"),
        write(&far, "by-tool"),
        Reply::says("two"),
        write(&near, "again"),
        Reply::says("three"),
    ])
    .await;
    let mut client = AcpClient::start(&env, &["--auto"]);
    let hello = client.initialize(json!({}));
    let advertised = &hello["agentCapabilities"]["sessionCapabilities"]["additionalDirectories"];
    assert_eq!(advertised, &json!({}));
    let params =
        json!({"cwd": env.workspace(), "mcpServers": [], "additionalDirectories": [near, "/etc"]});
    let made = client.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let listed = |client: &mut AcpClient| {
        let listed = client.call("session/list", json!({"cwd": env.workspace()})).unwrap();
        listed["sessions"][0]["additionalDirectories"].clone()
    };
    assert_eq!(listed(&mut client), json!([near]), "the directory in use is listed");
    client.run_prompt(&id, "near").unwrap();
    let text = crate::support::acp_client::joined_text(&client.updates(), "agent_message_chunk");
    assert!(text.contains("/etc cannot be writable"), "the ignored directory is reported: {text}");
    assert_eq!(std::fs::read_to_string(near.join("by-tool")).unwrap(), "written\n");
    assert_eq!(std::fs::read_to_string(near.join("by-bash")).unwrap(), "hello\n");
    let context = facts(&env, "user_message")[0]["context"].as_str().unwrap().to_owned();
    assert!(context.contains(near.to_str().unwrap()) && !context.contains("/etc"), "{context}");
    client.run_prompt(&id, "far").unwrap();
    assert!(std::fs::read_dir(&far).unwrap().next().is_none(), "this directory was not passed");
    let failed = client.updates().iter().filter(|update| update["status"] == "failed").count();
    assert_eq!(failed, 2);
    // The directories are passed again with each `session/resume`.
    client.call("session/resume", json!({"sessionId": id, "cwd": env.workspace()})).unwrap();
    assert_eq!(listed(&mut client), json!(null));
    client.run_prompt(&id, "near again").unwrap();
    assert!(!near.join("again").exists());
    // Additional directories are not recorded, so undo leaves them alone and says so.
    let response = client.run_prompt(&id, "/undo 3").unwrap();
    assert_eq!(response["stopReason"], "end_turn");
    let text = crate::support::acp_client::joined_text(&client.updates(), "agent_message_chunk");
    let left = near.join("by-tool");
    assert!(text.contains("3 Turns taken back") && text.contains(left.to_str().unwrap()), "{text}");
    assert!(left.is_file());
    assert!(client.close_and_wait().0.success());
}
