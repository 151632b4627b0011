//! Links in prompts and images in results, as the model and the client receive them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::{facts, new_binary_env, new_client};
use crate::subagents::scripted_family::{
    GO, count_subagent_events, scripted_family, spawn_reply, subagent_events, text_reply,
};
use crate::support::BinaryEnv;
use crate::support::acp_client::AcpClient;
use crate::support::binary_env::wait_for;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn png() -> Vec<u8> {
    BASE64.decode(PNG).unwrap()
}

fn root(env: &BinaryEnv) -> PathBuf {
    env.workspace().canonicalize().unwrap()
}

fn link(path: &Path) -> Value {
    let name = path.file_name().unwrap().to_string_lossy();
    json!({"type": "resource_link", "name": name, "uri": format!("file://{}", path.display())})
}

/// Sends a prompt of links, and answers file requests until it ends.
fn send(client: &mut AcpClient, id: &str, links: &[Value], held: &[(&Path, &str)]) {
    let text = json!({"type": "text", "text": "Look at"});
    let prompt: Vec<&Value> = [&text].into_iter().chain(links).collect();
    let asked = client.send_request("session/prompt", json!({"sessionId": id, "prompt": prompt}));
    loop {
        let message = client.wait_for_message("the end or a request", |message| {
            let is_end = message.get("method").is_none() && message["id"] == asked;
            is_end || message["method"] == "fs/read_text_file"
        });
        if message.get("method").is_none() {
            assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
            return;
        }
        let path = message["params"]["path"].as_str().unwrap();
        if let Some((_, text)) = held.iter().find(|(own, _)| *own == Path::new(path)) {
            client.send_reply(&message, json!({ "content": text }));
        } else {
            let error = json!({"code": -32002, "message": "not in the project"});
            client.send_message(&json!({"jsonrpc": "2.0", "id": message["id"], "error": error}));
        }
    }
}

/// The recorded user message, and the model request that carried it.
fn sent_request(env: &BinaryEnv) -> (Value, String) {
    let message = facts(env, "user_message").pop().unwrap();
    (message, env.server.requests().last().unwrap().body_text.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_workspace_and_of_the_clients_roots_come_with_the_prompt() {
    let beside = tempfile::tempdir().unwrap();
    let near = beside.path().canonicalize().unwrap();
    std::fs::write(near.join("notes.md"), "what the other root says\n").unwrap();
    let env = new_binary_env([Reply::says("seen"), Reply::says("again")]).await;
    let root = root(&env);
    std::fs::create_dir(root.join("src")).unwrap();
    std::fs::write(root.join("src/a.rs"), "fn linked() {}\n").unwrap();
    std::fs::write(root.join("long.txt"), "a long line of text\n".repeat(20_000)).unwrap();
    std::fs::write(root.join("shot.png"), png()).unwrap();
    let mut client = AcpClient::start(&env, &[]);
    client.initialize(json!({}));
    let params = json!({"cwd": root, "mcpServers": [], "additionalDirectories": [near]});
    let made = client.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let links = [
        root.join("src/a.rs"),
        root.join("long.txt"),
        root.join("shot.png"),
        near.join("notes.md"),
        root.join("src"),
        root.join("gone.rs"),
    ];
    let mut links = links.map(|path| link(&path)).to_vec();
    // The same file again, with a line number.
    let mut place = links[0].clone();
    place["uri"] = json!(format!("{}#L1", place["uri"].as_str().unwrap()));
    links.push(place);
    send(&mut client, &id, &links, &[]);
    let (message, body) = sent_request(&env);
    let text = message["text"].as_str().unwrap();
    let notes = near.join("notes.md");
    let expected = format!(
        "Look at `src/a.rs` `long.txt` `shot.png` `{}` `src` `gone.rs` [not attached: there is no such file] `src/a.rs#L1`",
        notes.display()
    );
    assert_eq!(text, expected);
    let names: Vec<&str> = message["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|own| own["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a.rs", "long.txt", "shot.png", "notes.md"], "each file once");
    for part in
        ["fn linked() {}", "data:image/png;base64,", "what the other root says", "resource_view"]
    {
        assert!(body.contains(part), "{part}: {body}");
    }
    assert!(body.len() < 250_000, "a long text is bounded: {} bytes", body.len());
    // On the next Turn, the files are named without their content.
    client.run_prompt(&id, "and?").unwrap();
    let body = env.server.requests().last().unwrap().body_text.clone();
    assert!(!body.contains("fn linked() {}") && !body.contains("data:image/png"), "{body}");
    assert!(body.contains("shot.png"), "{body}");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_linked_file_is_read_as_the_editor_holds_it() {
    let env = new_binary_env([Reply::says("seen")]).await;
    let root = root(&env);
    std::fs::write(root.join("a.txt"), "saved\n").unwrap();
    let (mut client, id) = new_client(&env, &[], json!({"fs": {"readTextFile": true}}));
    let path = root.join("a.txt");
    send(&mut client, &id, &[link(&path)], &[(&path, "not saved yet\n")]);
    let (message, body) = sent_request(&env);
    assert_eq!(message["resources"][0]["name"], "a.txt");
    assert!(body.contains("not saved yet") && !body.contains(r"saved\n"), "{body}");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_outside_come_through_the_client_or_are_named_as_unreachable() {
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().canonicalize().unwrap();
    for (name, text) in [("a.txt", "from the disk a"), ("b.txt", "from the disk b")] {
        std::fs::write(outside.join(name), text).unwrap();
    }
    for reads in [true, false] {
        let env = new_binary_env([Reply::says("seen")]).await;
        let root = root(&env);
        // A link that a checkout could bring.
        std::os::unix::fs::symlink(outside.join("b.txt"), root.join("inside.txt")).unwrap();
        let (mut client, id) = new_client(&env, &[], json!({"fs": {"readTextFile": reads}}));
        let a = outside.join("a.txt");
        let b = outside.join("b.txt");
        let elsewhere =
            json!({"type": "resource_link", "name": "Issue 7", "uri": "https://host.example/7"});
        let links = [link(&a), link(&b), link(&root.join("inside.txt")), elsewhere];
        send(&mut client, &id, &links, &[(&a, "from the editor a")]);
        let (message, body) = sent_request(&env);
        let text = message["text"].as_str().unwrap();
        assert!(!body.contains("from the disk"), "{body}");
        assert_eq!(body.contains("from the editor a"), reads, "{body}");
        assert_eq!(message["resources"].as_array().map_or(0, Vec::len), usize::from(reads));
        let unreachable = if reads { 2 } else { 3 };
        assert_eq!(text.matches("outside the workspace").count(), unreachable, "{text}");
        assert!(text.ends_with("[Issue 7](https://host.example/7)"), "{text}");
        let asked = client.received.iter().any(|message| message["method"] == "fs/read_text_file");
        assert_eq!(asked, reads);
        assert!(client.close_and_wait().0.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_read_reaches_the_client_as_an_image() {
    let script = ModelScript::new([
        Reply::calls("read", json!({"path": "shot.png"})),
        Reply::says("A dot."),
    ]);
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    std::fs::write(env.workspace().join("shot.png"), png()).unwrap();
    let is_image = |update: &Value| {
        let content = update["content"].as_array().cloned().unwrap_or_default();
        content.iter().any(|part| {
            let block = &part["content"];
            block["type"] == "image" && block["data"] == PNG && block["mimeType"] == "image/png"
        })
    };
    let (mut client, id) = new_client(&env, &[], json!({}));
    client.run_prompt(&id, "look").unwrap();
    let updates = client.updates();
    let end = updates.iter().find(|update| update["status"] == "completed").unwrap();
    assert!(is_image(end), "{end}");
    // The image is sent again when the Session is loaded.
    let params = json!({"sessionId": id, "cwd": env.workspace(), "mcpServers": []});
    client.call("session/load", params).unwrap();
    let call = client.updates().into_iter().find(|update| update["sessionUpdate"] == "tool_call");
    assert!(is_image(&call.unwrap()));
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_whose_files_are_still_asked_for_can_be_cancelled() {
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().canonicalize().unwrap().join("a.txt");
    let env = new_binary_env([Reply::says("the next")]).await;
    let (mut client, id) = new_client(&env, &[], json!({"fs": {"readTextFile": true}}));
    let prompt = json!({"sessionId": id, "prompt": [link(&outside)]});
    for withdrawn in [false, true] {
        let asked = client.send_request("session/prompt", prompt.clone());
        // The client never answers.
        client.wait_for_request("fs/read_text_file");
        if withdrawn {
            client.notify("$/cancel_request", json!({"requestId": asked}));
        } else {
            client.notify("session/cancel", json!({"sessionId": id}));
        }
        assert_eq!(client.wait_for_answer(asked).unwrap()["stopReason"], "cancelled");
        assert_eq!(facts(&env, "user_message").len(), 0, "no Turn began");
    }
    client.run_prompt(&id, "and now?").unwrap();
    assert_eq!(env.server.requests().len(), 1);
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_behind_a_setting_is_handled_while_files_are_asked_for() {
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().canonicalize().unwrap().join("a.txt");
    let env = new_binary_env([Reply::says("the next")]).await;
    let (mut client, id) = new_client(&env, &[], json!({"fs": {"readTextFile": true}}));
    let prompt = json!({"sessionId": id, "prompt": [link(&outside)]});
    let asked = client.send_request("session/prompt", prompt);
    // The client never answers; Pixir waits five seconds.
    client.wait_for_request("fs/read_text_file");
    let set = client.send_request("session/set_mode", json!({"sessionId": id, "modeId": "plan"}));
    let since = Instant::now();
    client.notify("session/cancel", json!({"sessionId": id}));
    assert_eq!(client.wait_for_answer(asked).unwrap()["stopReason"], "cancelled");
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    client.wait_for_answer(set).unwrap();
    assert_eq!(facts(&env, "user_message").len(), 0, "no Turn began");
    assert_eq!(env.server.requests().len(), 0, "and nothing was sent");
    // Closing the Session meanwhile leaves no request without an answer.
    let asked =
        client.send_request("session/prompt", json!({"sessionId": id, "prompt": [link(&outside)]}));
    let set = client.send_request("session/set_mode", json!({"sessionId": id, "modeId": "ask"}));
    client.call("session/close", json!({"sessionId": id})).unwrap();
    assert_eq!(client.wait_for_answer(asked).unwrap()["stopReason"], "cancelled");
    client.wait_for_answer(set).ok();
    assert_eq!(env.server.requests().len(), 0);
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_behind_a_prompt_comes_after_it_while_its_files_are_asked_for() {
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().canonicalize().unwrap().join("a.txt");
    let env = new_binary_env([Reply::says("seen")]).await;
    let (mut client, id) = new_client(&env, &[], json!({"fs": {"readTextFile": true}}));
    let prompt = json!({"sessionId": id, "prompt": [link(&outside)]});
    let asked = client.send_request("session/prompt", prompt);
    let read = client.wait_for_request("fs/read_text_file");
    let set = client.send_request("session/set_mode", json!({"sessionId": id, "modeId": "plan"}));
    let params = json!({"sessionId": id, "cwd": env.workspace(), "mcpServers": []});
    let load = client.send_request("session/load", params);
    client.send_reply(&read, json!({"content": "from the editor"}));
    assert_eq!(client.wait_for_answer(asked).unwrap()["stopReason"], "end_turn");
    client.wait_for_answer(set).unwrap();
    client.wait_for_answer(load).unwrap();
    let place = |wished: &dyn Fn(&Value) -> bool| client.received.iter().position(wished).unwrap();
    let answer = |id: u64| place(&|message| message.get("method").is_none() && message["id"] == id);
    assert!(answer(set) < answer(load), "in the order in which they were sent");
    let events = env.events();
    let seq = |name: &str| events.iter().position(|event| event["type"] == name).unwrap();
    assert!(seq("user_message") < seq("posture_changed"), "{events:?}");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_while_files_are_asked_for_ends_children_that_go_on() {
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().canonicalize().unwrap().join("a.txt");
    let lines = [spawn_reply(&["a"], "explorer"), text_reply("It is at it.")];
    let script = scripted_family(lines, |_, _| Reply::new().stalls());
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let (mut client, id) = new_client(&env, &[], json!({"fs": {"readTextFile": true}}));
    client.run_prompt(&id, GO).unwrap();
    // The child has a Log beside its parent's.
    let log = env.workspace().join(format!(".pixir/sessions/{id}.ndjson"));
    assert_eq!(count_subagent_events(&log, "cancelled"), 0, "the child continues");
    let prompt = json!({"sessionId": id, "prompt": [link(&outside)]});
    let asked = client.send_request("session/prompt", prompt);
    client.wait_for_request("fs/read_text_file");
    client.notify("session/cancel", json!({"sessionId": id}));
    assert_eq!(client.wait_for_answer(asked).unwrap()["stopReason"], "cancelled");
    let ended = wait_for(
        Duration::from_secs(20),
        || count_subagent_events(&log, "cancelled"),
        |ended| *ended == 1,
    );
    assert_eq!(ended, 1, "{:?}", subagent_events(&log));
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_have_no_room_are_not_asked_for() {
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().canonicalize().unwrap();
    let env = new_binary_env([Reply::says("seen")]).await;
    let (mut client, id) = new_client(&env, &[], json!({"fs": {"readTextFile": true}}));
    let paths: Vec<PathBuf> = (0..22).map(|number| outside.join(format!("{number}.txt"))).collect();
    let links: Vec<Value> = paths.iter().map(|path| link(path)).collect();
    let held: Vec<(&Path, &str)> = paths.iter().map(|path| (path.as_path(), "text")).collect();
    send(&mut client, &id, &links, &held);
    let (message, _) = sent_request(&env);
    assert_eq!(message["resources"].as_array().unwrap().len(), 20);
    let text = message["text"].as_str().unwrap();
    assert_eq!(text.matches("the limit for attachments is reached").count(), 2, "{text}");
    let is_question = |message: &&Value| message["method"] == "fs/read_text_file";
    assert_eq!(client.received.iter().filter(is_question).count(), 20);
    assert!(client.close_and_wait().0.success());
}
