//! Table tests of parsing requests; the tests of updates are in `to_acp`.

#![expect(clippy::needless_pass_by_value, reason = "tables read best with a bare `json!`")]

use std::path::Path;

use serde_json::{Value, json};

use super::capabilities::ClientCapabilities;
use super::commands::{CommandAction, parse_command};
use super::content::PromptContent;
use super::options::{SettingRequest, mode_change};
use super::question::{ClientAnswer, parse_answer, permission_request as question_of};
use super::session_list::SessionListRequest;
use super::session_setup::{ClientMcpServer, SessionSetup};
use super::stop_reason::StopReasonTracker;
use crate::agent::conversation::ResolvedLink;
use crate::base::id::{CallId, SessionId};
use crate::host::rpc::RpcError;
use crate::record::event::{
    PermissionAnswer, PermissionMode, PermissionRequest, PermissionResponse, SessionStatus,
};

#[test]
fn a_client_can_what_it_says_and_nothing_else() {
    let client = |capabilities: Value| {
        ClientCapabilities::read(&json!({"clientCapabilities": capabilities}))
    };
    let no_capabilities = ClientCapabilities::default();
    for odd in [json!({}), json!(null), json!(7), json!({"fs": 3, "auth": null, "_meta": []})] {
        assert_eq!(client(odd.clone()), no_capabilities, "{odd}");
    }
    let all = client(json!({
        "fs": {"readTextFile": true, "writeTextFile": true},
        "auth": {"terminal": true},
        "session": {"notices": {}},
        "_meta": {"terminal_output": true, "terminal-auth": true},
    }));
    assert!(all.shows_terminals && all.runs_logins && all.runs_old_logins && all.takes_notices);
    assert!(all.reads_files && all.writes_files);
    assert_eq!(
        client(json!({"fs": {"readTextFile": "yes"}, "session": {"notices": null}})),
        no_capabilities
    );
}

#[test]
fn servers_are_taken_as_they_come_and_odd_ones_leave_a_note() {
    let setup = SessionSetup::read(&json!({
        "cwd": "/w",
        "additionalDirectories": ["/w", "/x", "/x"],
        "mcpServers": [
            {"name": "plain", "command": "/bin/a"},
            {"type": "stdio", "name": "full", "command": "b", "args": ["1", 2],
             "env": [{"name": "K", "value": "V"}, {"name": "odd"}]},
            {"type": "http", "name": "web", "url": "https://x", "headers": {"H": "1"}},
            {"type": "sse", "name": "old", "url": "https://y"},
            {"type": "http", "name": "lost"},
            {"name": "empty"},
            7,
        ],
    }))
    .unwrap();
    assert_eq!(setup.directories, [Path::new("/x")]);
    let servers = setup.servers.unwrap();
    let names: Vec<&str> = servers
        .iter()
        .map(|server| match server {
            ClientMcpServer::Stdio { name, .. } | ClientMcpServer::Http { name, .. } => {
                name.as_str()
            }
        })
        .collect();
    assert_eq!(names, ["plain", "full", "web"]);
    assert!(matches!(&servers[1], ClientMcpServer::Stdio { args, env, .. }
        if args == &["1"] && env == &[("K".to_owned(), "V".to_owned())]));
    assert!(matches!(&servers[2], ClientMcpServer::Http { headers, .. }
        if headers == &[("H".to_owned(), "1".to_owned())]));
    assert_eq!(setup.notes.len(), 4, "{:?}", setup.notes);
    assert!(setup.notes[0].contains("old") && setup.notes[0].contains("sse"));
    assert_eq!(
        SessionSetup::read(&json!({"cwd": "/w", "mcpServers": null})).unwrap().servers,
        None
    );
    let none = SessionSetup::read(&json!({"cwd": "/w", "mcpServers": []})).unwrap();
    assert_eq!(none.servers, Some(Vec::new()));
    for odd in
        [json!({"cwd": "w"}), json!({}), json!({"cwd": "/w", "additionalDirectories": ["x"]})]
    {
        assert_eq!(SessionSetup::read(&odd).unwrap_err().code, -32_602, "{odd}");
    }
}

#[track_caller]
fn composed(blocks: Value) -> (String, Vec<String>) {
    let prompt = PromptContent::read(&json!({ "prompt": blocks })).unwrap();
    let composed = prompt.compose(Path::new("/w"), |_| ResolvedLink::Folder);
    let names = composed.attachments.iter().map(|file| file.name().to_owned()).collect();
    (composed.text, names)
}

#[test]
fn blocks_become_one_text_in_order_and_nothing_is_lost() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let link = json!({"type": "resource_link", "name": "a.rs", "uri": "file:///w/src/a.rs#L3"});
    let (content, _) = composed(json!([text("look at "), link, text(", please")]));
    assert_eq!(content, "look at `src/a.rs#L3`, please");
    assert_eq!(composed(json!([text("one"), text("two")])).0, "one\ntwo");
    let web = json!({"type": "resource_link", "name": "Docs", "uri": "https://x.org/y"});
    assert_eq!(composed(json!([web])).0, "[Docs](https://x.org/y)");
    let embedded = json!({"type": "resource", "resource":
        {"uri": "file:///w/b.txt", "mimeType": "text/plain", "text": "hello"}});
    let (content, names) = composed(json!([text("see "), embedded]));
    assert_eq!(
        (content.as_str(), names),
        ("see [attached: b.txt from file:///w/b.txt]", vec!["b.txt".to_owned()])
    );
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let image = json!({"type": "image", "mimeType": "image/png", "data": png});
    assert_eq!(
        composed(json!([image])),
        ("[attached: image.png]".into(), vec!["image.png".into()])
    );
    for (block, why) in [
        (
            json!({"type": "audio", "data": "x", "mimeType": "audio/wav"}),
            "[an audio recording was left out",
        ),
        (json!({"type": "video"}), "[a block of type video was left out]"),
        (
            json!({"type": "image", "data": "%%%", "mimeType": "image/png"}),
            "[an image that is not valid base64]",
        ),
        (
            json!({"type": "resource", "resource": {"uri": "file:///w/c"}}),
            "[c came without content]",
        ),
        (
            json!({"type": "resource", "resource": {"uri": "file:///w/c", "text": ""}}),
            "[cannot attach c: it is empty]",
        ),
        (json!({}), "[a block without a type was left out]"),
    ] {
        let (content, names) = composed(json!([block]));
        assert!(content.starts_with(why) && names.is_empty(), "{block}: {content}");
    }
    let many: Vec<Value> = (0..25)
        .map(|n| json!({"type": "resource", "resource": {"uri": format!("x:/{n}"), "text": "t"}}))
        .collect();
    let (content, names) = composed(json!(many));
    assert_eq!(names.len(), 20);
    assert_eq!(content.matches("the limit for attachments is reached").count(), 5);
}

#[test]
fn an_empty_prompt_is_refused_and_its_context_is_read() {
    for odd in [json!([]), json!([{"type": "text", "text": " "}]), json!("text"), json!(null)] {
        assert_eq!(
            PromptContent::read(&json!({ "prompt": odd })).unwrap_err().code,
            -32_602,
            "{odd}"
        );
    }
    let context = |meta: Value| {
        let blocks = json!([{"type": "text", "text": "a"}]);
        PromptContent::read(&json!({"prompt": blocks, "_meta": meta})).unwrap().context
    };
    assert_eq!(context(json!({"presenter_context": "open: a.rs"})).as_deref(), Some("open: a.rs"));
    assert_eq!(
        context(json!({"pixir": {"presenter_context": {"open": 1}}})).as_deref(),
        Some("{\"open\":1}")
    );
    assert_eq!(context(json!({"presenter_context": " "})), None);
    assert_eq!(context(json!({"traceparent": "00-1"})), None);
    let long = context(json!({"presenter_context": "\u{e9}".repeat(20_000)})).unwrap();
    assert_eq!(long.len(), 16 << 10);
}

#[test]
fn a_command_is_one_of_the_table() {
    let plan = |rest: &str| Some(CommandAction::Plan { rest: rest.to_owned() });
    let model = |name: &str| Some(CommandAction::Model { name: name.to_owned() });
    for (text, expected) in [
        ("/plan", plan("")),
        ("  /plan the  work ", plan("the  work")),
        ("/model gpt-6-sol", model("gpt-6-sol")),
        ("/model", model("")),
        ("/undo", Some(CommandAction::Undo { turns: String::new() })),
        ("/undo 3", Some(CommandAction::Undo { turns: "3".to_owned() })),
        ("/undo 3 --force", Some(CommandAction::Undo { turns: "3 --force".to_owned() })),
        ("/redo", Some(CommandAction::Redo { rest: String::new() })),
        ("/fork", Some(CommandAction::Fork)),
        ("/planning", None),
        ("/etc/passwd is odd", None),
        ("please /plan", None),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(parse_command(text), expected, "{text}");
    }
}

#[test]
fn modes_are_a_role_and_a_permission() {
    let plan = mode_change("plan").unwrap();
    assert_eq!((plan.role, plan.mode), (Some("plan"), Some(PermissionMode::ReadOnly)));
    let auto = mode_change("auto").unwrap();
    assert_eq!((auto.role, auto.mode), (Some("build"), Some(PermissionMode::Auto)));
    assert_eq!(mode_change("yolo").unwrap_err().code, -32_602);
    assert_eq!(
        SettingRequest::read_option(&json!({"configId": "mode", "type": "boolean", "value": true}))
            .unwrap_err()
            .code,
        -32_602
    );
}

fn question() -> PermissionRequest {
    PermissionRequest {
        call_id: CallId::new("c"),
        agent: None,
        tool: "bash".into(),
        summary: "run x".into(),
        args: json!({}),
        paths: Vec::new(),
        directory: "/w".into(),
        diff: None,
        diff_is_cut: false,
        is_unsandboxed: false,
        command: None,
        network: false,
        local_sockets: false,
        answers: vec![
            PermissionAnswer::Once,
            PermissionAnswer::Session,
            PermissionAnswer::Project,
            PermissionAnswer::No,
        ],
        prefix: None,
        digest: String::new(),
    }
}

#[test]
fn an_answer_that_is_not_clearly_a_yes_is_a_no() {
    let selected = |id: &str| json!({"outcome": {"outcome": "selected", "optionId": id}});
    let answered = |answer: PermissionAnswer, words: Option<&str>| {
        ClientAnswer::Response(PermissionResponse { answer, message: words.map(str::to_owned) })
    };
    let with_feedback = json!({"outcome": {"outcome": "selected", "optionId": "reject", "_meta": {"feedback": " use rg "}}});
    for (result, expected) in [
        (selected("once"), answered(PermissionAnswer::Once, None)),
        (selected("session"), answered(PermissionAnswer::Session, None)),
        // Not offered, so it allows nothing.
        (selected("project"), answered(PermissionAnswer::No, None)),
        (selected("reject"), answered(PermissionAnswer::No, None)),
        (selected("prefix"), answered(PermissionAnswer::No, None)),
        (selected("whatever"), answered(PermissionAnswer::No, None)),
        (with_feedback, answered(PermissionAnswer::No, Some("use rg"))),
        (json!(null), answered(PermissionAnswer::No, None)),
        (json!({"outcome": "selected"}), answered(PermissionAnswer::No, None)),
        (json!({"outcome": {"outcome": "cancelled"}}), ClientAnswer::Cancelled),
    ] {
        assert_eq!(parse_answer(&Ok(result.clone()), &question()), expected, "{result}");
    }
    let of_server = PermissionRequest {
        tool: "mcp__git__log".into(),
        answers: vec![
            PermissionAnswer::Once,
            PermissionAnswer::Session,
            PermissionAnswer::SessionTool,
            PermissionAnswer::Project,
            PermissionAnswer::No,
        ],
        ..question()
    };
    for (id, answer) in
        [("session_tool", PermissionAnswer::SessionTool), ("session", PermissionAnswer::No)]
    {
        assert_eq!(
            parse_answer(&Ok(selected(id)), &of_server),
            answered(answer, None),
            "one always: {id}"
        );
    }
    let shown = question_of(&SessionId::mint(), &of_server, Path::new("/w"));
    let options = serde_json::to_value(shown).unwrap()["options"].to_string();
    assert!(options.contains("Always allow the tool log of MCP server git in this session"));
    let refused = Err(RpcError::method_not_found("session/request_permission"));
    assert_eq!(parse_answer(&refused, &question()), answered(PermissionAnswer::No, None));
}

#[test]
fn a_malformed_cursor_is_refused() {
    for odd in [json!("x"), json!("MS4y"), json!(7), json!("")] {
        assert_eq!(
            SessionListRequest::read(&json!({ "cursor": odd })).unwrap_err().code,
            -32_602,
            "{odd}"
        );
    }
    assert!(SessionListRequest::read(&Value::Null).is_ok());
    assert!(SessionListRequest::read(&json!({"cwd": null, "cursor": null})).is_ok());
    assert_eq!(SessionListRequest::read(&json!({"cwd": "here"})).unwrap_err().code, -32_602);
}

#[test]
fn a_turn_that_says_nothing_of_its_end_is_an_error() {
    let ending = StopReasonTracker::default();
    assert!(ending.stop_reason(&SessionStatus::Done).is_ok());
    assert_eq!(ending.stop_reason(&SessionStatus::Idle).unwrap_err().code, -32_603);
}
