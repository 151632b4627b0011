//! Files that an editor has open: reads and writes go through the editor.

use std::path::Path;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{new_binary_env, new_client};
use crate::support::acp_client::AcpClient;

fn edit(old: &str, new: &str) -> Reply {
    let edits = json!([{"old_string": old, "new_string": new}]);
    Reply::calls("edit", json!({"path": "a.txt", "edits": edits}))
}

/// Answers file requests until the prompt ends; gives the written files and the updates.
fn serve(client: &mut AcpClient, prompt: u64, held: &str, may_write: bool) -> (Vec<Value>, Value) {
    let mut held = held.to_owned();
    let mut written = Vec::new();
    loop {
        let message = client.wait_for_message("the end or a request", |message| {
            let is_end = message.get("method").is_none() && message["id"] == prompt;
            is_end || message.get("id").is_some() && message.get("method").is_some()
        });
        let params = &message["params"];
        match message["method"].as_str() {
            None => return (written, message["result"].clone()),
            Some("fs/read_text_file") => client.send_reply(&message, json!({ "content": held })),
            Some("fs/write_text_file") if may_write => {
                params["content"].as_str().unwrap().clone_into(&mut held);
                std::fs::write(params["path"].as_str().unwrap(), &held).unwrap();
                written.push(params.clone());
                client.send_reply(&message, json!({}));
            }
            Some("fs/write_text_file") => {
                let error = json!({"code": -32603, "message": "read-only buffer"});
                client
                    .send_message(&json!({"jsonrpc": "2.0", "id": message["id"], "error": error}));
            }
            Some("session/request_permission") => {
                let diff = &params["toolCall"]["content"][0];
                assert_eq!(diff["type"], "diff", "{params}");
                assert!(diff["oldText"].as_str().unwrap().contains("unsaved"), "{diff}");
                client.choose(&message, "once");
            }
            Some(other) => panic!("{other}"),
        }
    }
}

fn content(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

const FILES: fn() -> Value = || json!({"fs": {"readTextFile": true, "writeTextFile": true}});

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_saved_is_read_asked_about_and_changed_in_the_editor() {
    let read = Reply::calls("read", json!({"path": "a.txt"}));
    let env = new_binary_env([read, edit("one, unsaved", "1"), Reply::says("done")]).await;
    let file = env.workspace().join("a.txt");
    std::fs::write(&file, "one\ntwo\n").unwrap();
    let (mut client, id) = new_client(&env, &[], FILES());
    let prompt = client.send_prompt(&id, "change it");
    let (written, end) = serve(&mut client, prompt, "one, unsaved\ntwo\n", true);
    assert_eq!(end["stopReason"], "end_turn");
    assert_eq!(written.len(), 1);
    assert_eq!(written[0]["sessionId"], id);
    assert_eq!(written[0]["path"], json!(file.canonicalize().unwrap()));
    assert_eq!(content(&file), "1\ntwo\n");
    let seen = env.server.requests().last().unwrap().body_text.clone();
    assert!(seen.contains("one, unsaved"), "the model read the unsaved buffer");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_over_words_that_only_the_editor_has() {
    let env = new_binary_env([edit("one", "1"), Reply::says("they must save first")]).await;
    let file = env.workspace().join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    let (mut client, id) = new_client(&env, &["--auto"], FILES());
    let prompt = client.send_prompt(&id, "change it");
    let (written, end) = serve(&mut client, prompt, "one, unsaved\n", false);
    assert_eq!(end["stopReason"], "end_turn");
    assert!(written.is_empty());
    assert_eq!(content(&file), "one\n");
    let seen = env.server.requests().last().unwrap().body_text.clone();
    assert!(seen.contains("unsaved changes in the editor"), "{seen}");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_files_is_never_asked_for_any() {
    let env = new_binary_env([edit("one", "1"), Reply::says("done")]).await;
    let file = env.workspace().join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    let (mut client, id) = new_client(&env, &["--auto"], json!({"fs": {"readTextFile": false}}));
    client.run_prompt(&id, "change it").unwrap();
    assert_eq!(content(&file), "1\n");
    let all = client.close_and_wait().1;
    assert!(
        !all.iter().any(|message| message["method"].as_str().is_some_and(|m| m.starts_with("fs/")))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_that_does_not_answer_is_asked_once_and_reported_once() {
    let read = |name: &str| Reply::calls("read", json!({ "path": name }));
    let env = new_binary_env([
        read("a.txt"),
        read("b.txt"),
        edit("one", "two"),
        Reply::says("done"),
        read("b.txt"),
        Reply::says("and again"),
    ])
    .await;
    for name in ["a.txt", "b.txt"] {
        std::fs::write(env.workspace().join(name), "one\n").unwrap();
    }
    let (mut client, id) = new_client(&env, &["--auto"], FILES());
    assert_eq!(client.run_prompt(&id, "read and change").unwrap()["stopReason"], "end_turn");
    assert_eq!(client.run_prompt(&id, "read").unwrap()["stopReason"], "end_turn");
    assert_eq!(content(&env.workspace().join("a.txt")), "two\n");
    let messages = client.drain();
    let asked = messages.iter().filter(|message| {
        message["method"].as_str().is_some_and(|method| method.starts_with("fs/"))
    });
    assert_eq!(asked.count(), 1, "{messages:#?}");
    let text = json!(messages).to_string();
    assert_eq!(text.matches("the editor did not answer").count(), 1, "{text}");
    assert!(client.close_and_wait().0.success());
}

/// An editor whose user has a token in the environment and in a file.
fn with_a_token(env: &crate::support::BinaryEnv) -> (AcpClient, String) {
    let mut command = env.command(&["acp", "--auto"]);
    let mut client = AcpClient::spawn(command.env("EDITOR_STORY_TOKEN", TOKEN));
    client.initialize(FILES());
    let id = client.new_session(&env.workspace());
    (client, id)
}

const TOKEN: &str = "token-of-the-editor-story";

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_value_is_kept_and_does_not_go_through_the_editor() {
    let marker = "[redacted:EDITOR_STORY_TOKEN]";
    let content_of = |last: &str| format!("a={marker}\n{last}\n");
    let write =
        |last: &str| Reply::calls("write", json!({"path": "a.txt", "content": content_of(last)}));
    let read = Reply::calls("read", json!({"path": "a.txt"}));
    let env = new_binary_env([read, write("b=2"), edit("b=2", "b=3"), Reply::says("done")]).await;
    let file = env.workspace().join("a.txt");
    let saved = format!("a={TOKEN}\nb=1\n");
    std::fs::write(&file, &saved).unwrap();
    let (mut client, id) = with_a_token(&env);
    let prompt = client.send_prompt(&id, "change it");
    // A buffer without unsaved changes has the content of the file on disk.
    let end = loop {
        let message = client.wait_for_message("the end or a request", |message| {
            message["id"] == prompt || message["method"] == "fs/read_text_file"
        });
        if message.get("method").is_none() {
            break message;
        }
        client.send_reply(&message, json!({ "content": content(&file) }));
    };
    assert_eq!(end["result"]["stopReason"], "end_turn", "{end}");
    assert_eq!(content(&file), format!("a={TOKEN}\nb=3\n"));
    let (_, received) = client.close_and_wait();
    for line in received {
        assert_ne!(line["method"], "fs/write_text_file", "{line}");
        assert!(!line.to_string().contains(TOKEN), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsaved_words_beside_a_hidden_value_are_not_overwritten() {
    let env =
        new_binary_env([edit("b=1, unsaved", "b=2"), Reply::says("they must save first")]).await;
    let file = env.workspace().join("a.txt");
    let saved = format!("a={TOKEN}\nb=1\n");
    std::fs::write(&file, &saved).unwrap();
    let (mut client, id) = with_a_token(&env);
    let prompt = client.send_prompt(&id, "change it");
    let (written, _) = serve(&mut client, prompt, &format!("a={TOKEN}\nb=1, unsaved\n"), true);
    assert_eq!((written, content(&file)), (Vec::new(), saved));
    let seen = env.server.requests().last().unwrap().body_text.clone();
    assert!(seen.contains("unsaved changes in the editor"), "{seen}");
    assert!(client.close_and_wait().0.success());
}
