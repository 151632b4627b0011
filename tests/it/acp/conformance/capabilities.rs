//! Advertised capabilities: each one in the answer to `initialize` is exercised.
//!
//! The answer itself is walked, so a capability without an exercise fails the test.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceTopic, ValidatingClient, run_prompt};
use crate::mcp::web::{HttpMcpServer, KEY};
use crate::support::acp_client::{AcpClient, joined_text};
use crate::support::sign_in_env::SignInEnv;
use crate::support::test_env::DEADLINE;

/// A PNG image of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

/// The check that a capability works.
type Exercise = fn(&mut CaseEnv);

const EXERCISES: &[(&str, Exercise)] = &[
    ("loadSession", |env| {
        let session = env.session();
        env.run_prompt(&session, "words » say answer");
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let received_before = env.client.received.len();
        let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
        env.client.call("session/load", params).unwrap();
        let updates: Vec<Value> = env.client.received[received_before..]
            .iter()
            .map(|message| message["params"]["update"].clone())
            .collect();
        assert_eq!(joined_text(&updates, "agent_message_chunk"), "answer");
    }),
    ("promptCapabilities.image", |env| {
        let image = json!({"type": "image", "mimeType": "image/png", "data": PNG});
        assert_eq!(prompted(env, &image, "see"), "1 images");
    }),
    ("promptCapabilities.embeddedContext", |env| {
        let resource = json!({"uri": "file:///w/embedded.txt", "text": "embedded words"});
        prompted(env, &json!({"type": "resource", "resource": resource}), "say ok");
        let requests = env.binary_env.server.requests();
        assert!(requests.iter().any(|request| request.body_text.contains("embedded words")));
    }),
    ("mcpCapabilities.http", |env| {
        let web = HttpMcpServer::start();
        let key = json!({"name": "Authorization", "value": format!("Bearer {KEY}")});
        let server = json!({"type": "http", "name": "web", "url": web.url, "headers": [key]});
        let params = json!({"cwd": env.workspace(), "mcpServers": [server]});
        let made = env.client.call("session/new", params).unwrap();
        env.run_prompt(made["sessionId"].as_str().unwrap(), "look » say seen");
        let requests = env.binary_env.server.requests();
        let tools = &requests.last().unwrap().body["tools"];
        assert!(tools.to_string().contains("mcp__web__"), "{tools}");
    }),
    ("sessionCapabilities.list", |env| {
        let session = env.session();
        let params = json!({"cwd": env.workspace()});
        let listed = env.client.call("session/list", params).unwrap();
        let listed = listed["sessions"].as_array().unwrap();
        assert!(listed.iter().any(|one| one["sessionId"] == session.as_str()));
    }),
    ("sessionCapabilities.resume", |env| {
        let session = env.session();
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let params = json!({"sessionId": session, "cwd": env.workspace()});
        env.client.call("session/resume", params).unwrap();
        assert_eq!(env.run_prompt(&session, "on we go").stop(), "end_turn");
    }),
    ("sessionCapabilities.fork", |env| {
        let session = env.session();
        env.run_prompt(&session, "the flower is an aster » say noted");
        let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
        // Not part of the stable schema, so it is not validated against it.
        let made = env.client.send_invalid("session/fork", &params).unwrap();
        let child = made["sessionId"].as_str().unwrap().to_owned();
        assert!(child != session && made["modes"].is_object(), "{made}");
        assert!(env.run_prompt(&child, "and? » repeat").text().contains("aster"));
        let log = env.log(&child);
        assert_eq!(
            (&log[0]["type"], &log[0]["data"]["parent_session_id"]),
            (&json!("session_fork"), &json!(session))
        );
        let unknown = json!({"sessionId": "20260101T000000-abcdef", "cwd": env.workspace()});
        assert_eq!(env.client.send_invalid("session/fork", &unknown).unwrap_err()["code"], -32_002);
    }),
    ("sessionCapabilities.close", |env| {
        let session = env.session();
        assert!(
            env.client.call("session/close", json!({"sessionId": session})).unwrap().is_object()
        );
    }),
    ("sessionCapabilities.delete", |env| {
        let session = env.session();
        env.client.call("session/delete", json!({"sessionId": session})).unwrap();
        assert!(!env.workspace().join(format!(".pixir/sessions/{session}.ndjson")).exists());
    }),
    ("sessionCapabilities.additionalDirectories", |env| {
        let further = env.workspace().parent().unwrap().join("a-further-one");
        std::fs::create_dir_all(&further).unwrap();
        std::fs::write(further.join("far.txt"), "words from afar\n").unwrap();
        let params =
            json!({"cwd": env.workspace(), "mcpServers": [], "additionalDirectories": [further]});
        let made = env.client.call("session/new", params).unwrap();
        let session = made["sessionId"].as_str().unwrap().to_owned();
        let read = format!("read » call read {}\necho", json!({"path": further.join("far.txt")}));
        let turn = run_prompt(&mut env.client, &session, &read);
        assert!(turn.text().contains("words from afar"), "{turn:?}");
    }),
    ("auth.logout", |env| {
        assert!(env.client.call("logout", json!({})).unwrap().is_object());
    }),
];

/// The check that a sign-in method works.
type SigningIn = fn(&SignInEnv);

/// The checks of sign-in methods, by method id.
const WAYS: &[(&str, SigningIn)] = &[
    ("chatgpt", |env| {
        let mut command = env.command(&["acp"]);
        command.stderr(std::process::Stdio::null());
        let mut client = ValidatingClient::new(AcpClient::spawn(&mut command));
        client.initialize(json!({}));
        // No browser opens here, so the request is cancelled; the cancellation is answered.
        let id = client.send_request("authenticate", json!({"methodId": "chatgpt"}));
        client.notify("$/cancel_request", json!({"requestId": id}));
        let error = client.wait_for_answer(id).unwrap_err();
        assert_eq!(error["code"], -32_800, "{error}");
    }),
    ("openai-api-key", |env| {
        let mut command = env.command(&["acp"]);
        command.env("OPENAI_API_KEY", "sk-planted-key");
        let mut client = ValidatingClient::new(AcpClient::spawn(&mut command));
        client.initialize(json!({}));
        client.call("authenticate", json!({"methodId": "openai-api-key"})).unwrap();
    }),
    ("chatgpt-terminal", |env| {
        // The client runs the same command with the arguments of the method, in a terminal.
        let mut command = env.command(&["acp", "--login"]);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let page = page_of(&mut child.stderr.take().unwrap());
        let redirect = header(&get(&page), "location");
        get(&redirect);
        assert!(child.wait().unwrap().success());
        assert!(env.auth_file().exists());
    }),
];

/// The model's answer to a content block.
#[track_caller]
fn prompted(env: &mut CaseEnv, block: &Value, script: &str) -> String {
    let session = env.session();
    let text = json!({"type": "text", "text": format!("look » {script}")});
    env.client.drain();
    let params = json!({"sessionId": session, "prompt": [block, text]});
    env.client.call("session/prompt", params).unwrap();
    let updates: Vec<Value> = env.client.updates();
    joined_text(&updates, "agent_message_chunk")
}

/// The URL that a sign-in prints.
fn page_of(stderr: &mut impl Read) -> String {
    let mut read = Vec::new();
    loop {
        let mut byte = [0];
        assert_eq!(
            stderr.read(&mut byte).unwrap(),
            1,
            "no page: {}",
            String::from_utf8_lossy(&read)
        );
        read.push(byte[0]);
        let text = String::from_utf8_lossy(&read);
        if let Some(page) = text.lines().map(str::trim).find(|line| line.starts_with("http"))
            && text.ends_with('\n')
        {
            return page.to_owned();
        }
    }
}

/// The response head of a page on loopback.
fn get(url: &str) -> String {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host.replace("localhost", "127.0.0.1")).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        let count = stream.read(&mut chunk).unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&chunk[..count]);
    }
    String::from_utf8(answer).unwrap()
}

fn header(answer: &str, name: &str) -> String {
    let found = answer.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    found.unwrap_or_else(|| panic!("no {name}: {answer}")).to_owned()
}

/// The paths of all advertised capabilities: values that are true, and empty objects.
fn promised(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Bool(true) => {
            found.insert(path.to_owned());
        }
        Value::Object(fields) => {
            if fields.keys().all(|key| key == "_meta") && !path.is_empty() {
                found.insert(path.to_owned());
            }
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                promised(value, &path, found);
            }
        }
        _ => {}
    }
}

/// The agent's capabilities for a client that supports everything.
fn everything() -> Value {
    json!({
        "fs": {"readTextFile": true, "writeTextFile": true},
        "terminal": true,
        "auth": {"terminal": true},
        "session": {"notices": {}, "compaction": {}, "configOptions": {"boolean": {}}},
        "elicitation": {"form": {}, "url": {}},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_capability_that_is_advertised_is_kept() {
    let topic = ConformanceTopic::new("capabilities", &[]);
    let mut env = CaseEnv::new(&topic).await;
    let hello = env.start_other(&[], everything()).initialize(everything());
    let mut found = BTreeSet::new();
    promised(&hello["agentCapabilities"], "", &mut found);
    let known: BTreeSet<String> = EXERCISES.iter().map(|(path, _)| (*path).to_owned()).collect();
    let unproved: Vec<_> = found.difference(&known).collect();
    assert!(unproved.is_empty(), "advertised without an exercise here: {unproved:?}");
    assert!(found.len() >= 7, "{found:?}");
    for (_, exercise) in EXERCISES.iter().filter(|(path, _)| found.contains(*path)) {
        exercise(&mut env);
    }
    let ways = hello["authMethods"].as_array().unwrap();
    let ways: BTreeSet<&str> = ways.iter().map(|way| way["id"].as_str().unwrap()).collect();
    let known: BTreeSet<&str> = WAYS.iter().map(|(id, _)| *id).collect();
    assert_eq!(ways, known, "every sign-in method has an exercise");
    for (_, exercise) in WAYS {
        exercise(&SignInEnv::new().await);
    }
}

/// The walk reports a capability that has no exercise.
#[test]
fn a_capability_without_an_exercise_is_found() {
    let mut found = BTreeSet::new();
    let hello = json!({"a": true, "b": false, "c": {"d": {}, "e": {"_meta": {"f": true}}}, "g": null, "h": {"i": true}});
    promised(&hello, "", &mut found);
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, ["a", "c.d", "c.e", "c.e._meta.f", "h.i"]);
}
