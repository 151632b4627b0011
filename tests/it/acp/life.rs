//! From the greeting to the end of the process: what is answered, what is refused, and what stays.

use pixir::scripted::{Reply, Script};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::stage;
use crate::support::Stage;
use crate::support::editor::{Editor, text_of};
use crate::support::house::DEADLINE;
use crate::support::stage::wait_for;

#[tokio::test(flavor = "multi_thread")]
async fn any_version_is_greeted_with_the_one_that_is_spoken() {
    let stage = stage([]).await;
    let mut editor = Editor::start(&stage, &[]);
    for version in [json!(1), json!(2), json!(65_535), json!("odd"), Value::Null] {
        let hello = editor.call("initialize", json!({"protocolVersion": version})).unwrap();
        assert_eq!(hello["protocolVersion"], 1, "{version}");
        assert_eq!(hello["agentInfo"]["name"], "pixir");
        assert_eq!(hello["agentCapabilities"]["loadSession"], true);
        let methods = hello["authMethods"].as_array().unwrap();
        assert!(methods.iter().all(|method| method.get("type").is_none()), "{methods:?}");
    }
    let allowed = editor.initialize(json!({"auth": {"terminal": true}}));
    let terminal = allowed["authMethods"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&terminal["type"], &terminal["args"]), (&json!("terminal"), &json!(["--login"])));
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_is_answered_and_ends_nothing() {
    let stage = stage([]).await;
    let mut editor = Editor::start(&stage, &[]);
    let early = editor.call("session/new", json!({"cwd": stage.workspace()})).unwrap_err();
    assert_eq!(early["code"], -32_600);
    editor.initialize(json!({}));
    editor.raw(b"\n  \r\n{oops\n[]\n{\"jsonrpc\":\"2.0\",\"id\":\"t\",\"method\":\"nope\"}\n");
    let code = |editor: &mut Editor| {
        editor.wait("a refusal", |message| message.get("error").is_some())["error"]["code"].clone()
    };
    assert_eq!(code(&mut editor), -32_700);
    assert_eq!(code(&mut editor), -32_600);
    let unknown = editor.wait("an echo", |message| message["id"] == "t");
    assert_eq!(unknown["error"]["code"], -32_601);
    for (method, params, expected) in [
        ("session/new", json!({"cwd": "relative", "mcpServers": []}), -32_602),
        ("session/new", json!({}), -32_602),
        ("session/new", json!({"cwd": stage.workspace(), "mcpServers": 3}), -32_602),
        ("session/new", json!({"cwd": "/no/such/place", "mcpServers": []}), -32_602),
        (
            "session/prompt",
            json!({"sessionId": "x", "prompt": [{"type": "text", "text": "a"}]}),
            -32_002,
        ),
        ("session/prompt", json!({"sessionId": 7, "prompt": []}), -32_602),
        (
            "session/load",
            json!({"sessionId": "20260101T000000-abcdef", "cwd": stage.workspace()}),
            -32_002,
        ),
        ("session/list", json!({"cursor": "???"}), -32_602),
        ("session/close", json!({"sessionId": "20260101T000000-abcdef"}), -32_002),
        ("authenticate", json!({"methodId": "carrier pigeon"}), -32_602),
        ("_custom/method", json!({}), -32_601),
    ] {
        let refused = editor.call(method, params.clone()).unwrap_err();
        assert_eq!(refused["code"], expected, "{method} {params} {refused}");
        if expected == -32_002 {
            assert_eq!(refused["data"]["sessionId"], params["sessionId"]);
        }
    }
    assert_eq!(editor.call("session/delete", json!({"sessionId": "gone"})).unwrap(), json!({}));
    editor.notify("_custom/notice", json!({}));
    editor.say(&json!({"jsonrpc": "2.0", "id": "", "method": "session/cancel", "params": {"sessionId": "x"}}));
    assert!(editor.call("session/list", Value::Null).unwrap()["sessions"].is_array());
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_on_disk_from_its_birth_and_others_find_it() {
    let stage = stage([Reply::says("hello")]).await;
    let mut editor = Editor::greeted(&stage, json!({}));
    let id = editor.session(&stage.workspace());
    assert!(stage.workspace().join(format!(".pixir/sessions/{id}.ndjson")).is_file());
    editor.update("available_commands_update");
    // While it is open here, nobody else may write to it, and they are told who does.
    let mut other = Editor::greeted(&stage, json!({}));
    let params = json!({"sessionId": id, "cwd": stage.workspace(), "mcpServers": []});
    let busy = other.call("session/resume", params.clone()).unwrap_err();
    assert!(busy["message"].as_str().unwrap().contains(&editor.child.id().to_string()), "{busy}");
    assert_eq!(editor.call("session/close", json!({"sessionId": id})).unwrap(), json!({}));
    other.call("session/resume", params).unwrap();
    assert_eq!(other.turn(&id, "hi").unwrap()["stopReason"], "end_turn");
    let listed = editor.call("session/list", json!({"cwd": stage.workspace()})).unwrap();
    assert_eq!(listed["sessions"][0]["sessionId"], id);
    assert_eq!(listed["sessions"][0]["title"], "hi");
    let nowhere = editor.call("session/list", json!({"cwd": "/no/such/place"})).unwrap();
    assert_eq!(nowhere["sessions"], json!([]));
    assert!(other.end().0.success());
    assert_eq!(editor.call("session/delete", json!({"sessionId": id})).unwrap(), json!({}));
    assert_eq!(editor.call("session/delete", json!({"sessionId": id})).unwrap(), json!({}));
    assert!(stage.session().is_none());
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_input_ends_everything_that_runs() {
    let mark = Stage::mark();
    let command = format!("sleep 600; echo {mark}");
    let script = Script::new([Reply::calls("bash", json!({"command": command}))]);
    let stage = Stage::new(mark, script).await;
    let mut editor = Editor::start(&stage, &["--auto"]);
    editor.initialize(json!({}));
    let id = editor.session(&stage.workspace());
    editor.prompt(&id, "go");
    editor.wait("a running call", |message| message["params"]["update"]["status"] == "in_progress");
    let (status, _) = editor.end();
    assert!(status.success(), "{status}");
    stage.assert_nothing_survives();
    let last = stage.events().pop().unwrap();
    assert_eq!(
        (&last["type"], &last["data"]["terminal_status"]),
        (&json!("turn_failed"), &json!("interrupted"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_too_and_so_does_a_reader_that_left() {
    let stage = stage([]).await;
    let mut editor = Editor::greeted(&stage, json!({}));
    editor.session(&stage.workspace());
    let pid = rustix::process::Pid::from_child(&editor.child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = wait_for(DEADLINE, || editor.child.try_wait().unwrap(), Option::is_some);
    assert!(status.unwrap().success());

    // Nothing was ever written, and stdin stays open.
    let mut unread = stage.command(&["acp"]);
    unread.stdin(std::process::Stdio::piped());
    let mut child = unread.spawn().unwrap();
    drop(child.stdout.take());
    let status = wait_for(DEADLINE, || child.try_wait().unwrap(), Option::is_some);
    assert!(status.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_64_megabytes_is_a_line_like_any_other() {
    let stage = stage([]).await;
    let mut editor = Editor::greeted(&stage, json!({}));
    let long = "x".repeat(64 << 20);
    let answer = editor.call("session/list", json!({"_meta": {"long": long}})).unwrap();
    assert_eq!(answer["sessions"], json!([]));
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_while_it_works_ends_its_call_and_its_prompt() {
    let mark = Stage::mark();
    let command = format!("echo begun; sleep 600; echo {mark}");
    let script = Script::new([Reply::calls("bash", json!({ "command": command }))]);
    let stage = Stage::new(mark, script).await;
    let mut editor = Editor::start(&stage, &["--auto"]);
    editor.initialize(json!({}));
    let id = editor.session(&stage.workspace());
    let running = editor.prompt(&id, "go");
    let waiting = editor.prompt(&id, "and then");
    editor.wait("its output", |message| message.to_string().contains("begun\\n"));
    let close = editor.ask("session/close", json!({ "sessionId": id }));
    assert_eq!(editor.answer(running).unwrap()["stopReason"], "cancelled");
    assert_eq!(editor.answer(waiting).unwrap()["stopReason"], "cancelled");
    assert_eq!(editor.answer(close).unwrap(), json!({}));
    let ended = editor.updates().iter().filter(|update| update["status"] == "failed").count();
    assert_eq!(ended, 1, "no card is left hanging");
    assert_eq!(editor.turn(&id, "anybody?").unwrap_err()["code"], -32_002);
    // A Supervisor may wait for the next command of another Session; what it ran is gone.
    let left = || {
        let mut left = stage.survivors();
        left.retain(|line| !line.contains("__supervise"));
        left
    };
    let left = wait_for(DEADLINE, left, |left| left.len() == 1);
    assert_eq!(left.len(), 1, "nothing but the agent itself: {left:?}");
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_may_use_up_is_counted_for_each_prompt() {
    let stage =
        stage([Reply::says("one"), Reply::says("two"), Reply::calls("list", json!({}))]).await;
    let mut editor = Editor::start(&stage, &["--max-requests", "1"]);
    editor.initialize(json!({}));
    let id = editor.session(&stage.workspace());
    for prompt in ["first", "second"] {
        assert_eq!(editor.turn(&id, prompt).unwrap()["stopReason"], "end_turn");
    }
    let spent = editor.turn(&id, "third, with a call").unwrap_err();
    assert!(spent["message"].as_str().unwrap().contains("request"), "{spent}");
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_should_know_is_a_notice_or_words_before_the_answer() {
    let stage = stage([Reply::says("one"), Reply::says("two")]).await;
    let mut editor = Editor::start(&stage, &["--sandbox", "off"]);
    editor.initialize(json!({"session": {"notices": {}}}));
    let id = editor.session(&stage.workspace());
    let notice = editor.update("notice");
    assert_eq!(notice["severity"], "warning");
    assert!(notice["description"].as_str().unwrap().contains("the sandbox is off"), "{notice}");
    editor.turn(&id, "go").unwrap();
    assert_eq!(text_of(&editor.updates(), "agent_message_chunk"), "one");
    assert!(editor.end().0.success());
    let mut plain = Editor::start(&stage, &["--sandbox", "off"]);
    plain.initialize(json!({}));
    let id = plain.session(&stage.workspace());
    plain.turn(&id, "go").unwrap();
    let updates = plain.updates();
    assert!(updates.iter().all(|update| update["sessionUpdate"] != "notice"));
    let told = text_of(&updates, "agent_message_chunk");
    assert!(told.contains("the sandbox is off") && told.ends_with("two"), "{told}");
    assert!(plain.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_make_no_sense_are_told_where_they_matter() {
    let stage = stage([]).await;
    stage.configure(&json!({"acp": {"mode": "yolo"}}));
    let mut editor = Editor::greeted(&stage, json!({}));
    let refused = editor.call("session/new", json!({"cwd": stage.workspace()})).unwrap_err();
    assert!(refused["message"].as_str().unwrap().contains("acp.mode"), "{refused}");
    assert!(editor.call("session/list", json!({})).unwrap()["sessions"].is_array());
    // Mended meanwhile, it works without a restart.
    stage.configure(&json!({}));
    editor.session(&stage.workspace());
    assert!(editor.end().0.success());
}
