//! Content of a prompt: links, embedded files, images, and unusable blocks.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{facts, new_binary_env, new_client};

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test(flavor = "multi_thread")]
async fn all_blocks_reach_the_model_in_order() {
    let env = new_binary_env([Reply::says("seen"), Reply::says("again")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    let file =
        format!("file://{}", env.workspace().canonicalize().unwrap().join("src/a.rs").display());
    let prompt = json!([
        {"type": "text", "text": "Compare "},
        {"type": "resource_link", "name": "a.rs", "uri": file},
        {"type": "text", "text": " with "},
        {"type": "resource", "resource": {"uri": "file:///x/b.rs", "mimeType": "text/rust", "text": "fn b() {}"}},
        {"type": "image", "mimeType": "image/png", "data": PNG},
        {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
    ]);
    let params = json!({"sessionId": id, "prompt": prompt, "_meta": {"presenter_context": "Cursor in a.rs, line 3"}});
    let answer = editor.call("session/prompt", params).unwrap();
    assert_eq!(answer["stopReason"], "end_turn");
    let message = &facts(&env, "user_message")[0];
    let text = message["text"].as_str().unwrap();
    assert!(
        text.starts_with(
            "Compare `src/a.rs` [not attached: there is no such file] with [attached: b.rs from file:///x/b.rs]"
        ),
        "{text}"
    );
    assert!(text.contains("[attached: image.png] [an audio recording was left out"), "{text}");
    assert_eq!(message["resources"].as_array().unwrap().len(), 2);
    assert!(
        message["context"]
            .as_str()
            .unwrap()
            .ends_with("Context from the user's editor:\nCursor in a.rs, line 3")
    );
    let body = env.server.requests()[0].body_text.clone();
    for part in ["fn b() {}", "data:image/png;base64,", "Cursor in a.rs, line 3"] {
        assert!(body.contains(part), "{part}");
    }
    // The editor's context is sent again only when it changed.
    editor.run_prompt(&id, "and?").unwrap();
    let second = &facts(&env, "user_message")[1];
    assert!(!second["context"].as_str().unwrap_or_default().contains("Cursor"), "{second}");
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_show_their_output_as_the_client_likes_it() {
    let command = "echo one; echo two >&2; exit 3";
    let call = || Reply::calls("bash", json!({ "command": command }));
    let env = new_binary_env([call(), Reply::says("a"), call(), Reply::says("b")]).await;
    let (mut editor, id) = new_client(&env, &["--auto"], json!({}));
    editor.run_prompt(&id, "go").unwrap();
    let updates = editor.updates();
    let of_call: Vec<&Value> =
        updates.iter().filter(|update| update.get("toolCallId").is_some()).collect();
    assert_eq!(of_call[0]["title"], command, "a missing status means `pending`");
    // A recording of files for undo that takes long is shown before it, as `pending`.
    assert!(of_call.iter().any(|update| update["status"] == "in_progress"), "{of_call:#?}");
    let last = of_call.last().unwrap();
    assert_eq!(last["status"], "failed");
    let text = last["content"][0]["content"]["text"].as_str().unwrap();
    assert!(text.starts_with("```\none\n") && text.contains("exit code 3"), "{text}");
    assert_eq!(last["rawOutput"]["details"]["exit_code"], 3);
    assert!(editor.close_and_wait().0.success());

    let (mut editor, id) =
        super::new_client(&env, &["--auto"], json!({"_meta": {"terminal_output": true}}));
    editor.run_prompt(&id, "go").unwrap();
    let updates = editor.updates();
    let of_call: Vec<&Value> =
        updates.iter().filter(|update| update.get("toolCallId").is_some()).collect();
    let terminal = of_call[0]["content"][0]["terminalId"].clone();
    assert_eq!(of_call[0]["_meta"]["terminal_info"]["terminal_id"], terminal);
    let printed: String = of_call
        .iter()
        .filter_map(|update| update["_meta"]["terminal_output"]["data"].as_str())
        .collect();
    assert!(printed.contains("one\r\n"), "{printed}");
    assert_eq!(of_call.last().unwrap()["_meta"]["terminal_exit"]["exit_code"], 3);
    assert!(editor.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_messages_of_one_response_stay_two() {
    let env = new_binary_env([Reply::new().text("First.").text("Second.")]).await;
    let (mut editor, id) = new_client(&env, &[], json!({}));
    editor.run_prompt(&id, "go").unwrap();
    let updates = editor.updates();
    let chunks: Vec<(&Value, &str)> = updates
        .iter()
        .filter(|update| update["sessionUpdate"] == "agent_message_chunk")
        .map(|update| (&update["messageId"], update["content"]["text"].as_str().unwrap()))
        .collect();
    assert_eq!(chunks.iter().map(|(_, text)| *text).collect::<Vec<_>>(), ["First.", "Second."]);
    assert_ne!(chunks[0].0, chunks[1].0);
    assert!(editor.close_and_wait().0.success());
}
