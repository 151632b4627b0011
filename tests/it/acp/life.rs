//! The lifecycle of `pixir acp`, from `initialize` to the end of the process.

use pixir::scripted::{ModelScript, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::new_binary_env;
use crate::support::BinaryEnv;
use crate::support::acp_client::{AcpClient, joined_text};
use crate::support::binary_env::wait_for;
use crate::support::test_env::DEADLINE;

#[tokio::test(flavor = "multi_thread")]
async fn any_version_is_greeted_with_the_one_that_is_spoken() {
    let env = new_binary_env([]).await;
    let mut client = AcpClient::start(&env, &[]);
    for version in [json!(1), json!(2), json!(65_535), json!("odd"), Value::Null] {
        let hello = client.call("initialize", json!({"protocolVersion": version})).unwrap();
        assert_eq!(hello["protocolVersion"], 1, "{version}");
        assert_eq!(hello["agentInfo"]["name"], "pixir");
        assert_eq!(hello["agentCapabilities"]["loadSession"], true);
        let methods = hello["authMethods"].as_array().unwrap();
        let is_untyped = |method: &Value| method.get("type").is_none();
        assert!(!methods.is_empty() && methods.iter().all(is_untyped), "{methods:?}");
    }
    let allowed = client.initialize(json!({"auth": {"terminal": true}}));
    let terminal = allowed["authMethods"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&terminal["type"], &terminal["args"]), (&json!("terminal"), &json!(["--login"])));
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_is_answered_and_ends_nothing() {
    let env = new_binary_env([]).await;
    let mut client = AcpClient::start(&env, &[]);
    let early = client.call("session/new", json!({"cwd": env.workspace()})).unwrap_err();
    assert_eq!(early["code"], -32_600);
    client.initialize(json!({}));
    client
        .write_raw(b"\n  \r\n{oops\n[]\n{\"jsonrpc\":\"2.0\",\"id\":\"t\",\"method\":\"nope\"}\n");
    let code = |client: &mut AcpClient| {
        client.wait_for_message("a refusal", |message| message.get("error").is_some())["error"]["code"].clone()
    };
    assert_eq!(code(&mut client), -32_700);
    assert_eq!(code(&mut client), -32_600);
    let unknown = client.wait_for_message("an echo", |message| message["id"] == "t");
    assert_eq!(unknown["error"]["code"], -32_601);
    for (method, params, expected) in [
        ("session/new", json!({"cwd": "relative", "mcpServers": []}), -32_602),
        ("session/new", json!({}), -32_602),
        ("session/new", json!({"cwd": env.workspace(), "mcpServers": 3}), -32_602),
        ("session/new", json!({"cwd": "/no/such/place", "mcpServers": []}), -32_602),
        (
            "session/prompt",
            json!({"sessionId": "x", "prompt": [{"type": "text", "text": "a"}]}),
            -32_002,
        ),
        ("session/prompt", json!({"sessionId": 7, "prompt": []}), -32_602),
        (
            "session/load",
            json!({"sessionId": "20260101T000000-abcdef", "cwd": env.workspace()}),
            -32_002,
        ),
        ("session/list", json!({"cursor": "???"}), -32_602),
        ("session/close", json!({"sessionId": "20260101T000000-abcdef"}), -32_002),
        ("authenticate", json!({"methodId": "carrier pigeon"}), -32_602),
        ("_custom/method", json!({}), -32_601),
    ] {
        let refused = client.call(method, params.clone()).unwrap_err();
        assert_eq!(refused["code"], expected, "{method} {params} {refused}");
        if expected == -32_002 {
            assert_eq!(refused["data"]["sessionId"], params["sessionId"]);
        }
    }
    assert_eq!(client.call("session/delete", json!({"sessionId": "gone"})).unwrap(), json!({}));
    client.notify("_custom/notice", json!({}));
    client.send_message(&json!({"jsonrpc": "2.0", "id": "", "method": "session/cancel", "params": {"sessionId": "x"}}));
    assert!(client.call("session/list", Value::Null).unwrap()["sessions"].is_array());
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_on_disk_from_its_birth_and_others_find_it() {
    let env = new_binary_env([Reply::says("hello")]).await;
    let mut client = AcpClient::initialized(&env, json!({}));
    let id = client.new_session(&env.workspace());
    assert!(env.workspace().join(format!(".pixir/sessions/{id}.ndjson")).is_file());
    client.wait_for_update("available_commands_update");
    // While the Session is open here, another process is refused and told the holder.
    let mut other = AcpClient::initialized(&env, json!({}));
    let params = json!({"sessionId": id, "cwd": env.workspace(), "mcpServers": []});
    let busy = other.call("session/resume", params.clone()).unwrap_err();
    assert!(busy["message"].as_str().unwrap().contains(&client.child.id().to_string()), "{busy}");
    assert_eq!(client.call("session/close", json!({"sessionId": id})).unwrap(), json!({}));
    other.call("session/resume", params).unwrap();
    assert_eq!(other.run_prompt(&id, "hi").unwrap()["stopReason"], "end_turn");
    let listed = client.call("session/list", json!({"cwd": env.workspace()})).unwrap();
    assert_eq!(listed["sessions"][0]["sessionId"], id);
    assert_eq!(listed["sessions"][0]["title"], "hi");
    let nowhere = client.call("session/list", json!({"cwd": "/no/such/place"})).unwrap();
    assert_eq!(nowhere["sessions"], json!([]));
    assert!(other.close_and_wait().0.success());
    assert_eq!(client.call("session/delete", json!({"sessionId": id})).unwrap(), json!({}));
    assert_eq!(client.call("session/delete", json!({"sessionId": id})).unwrap(), json!({}));
    assert!(env.session().is_none());
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_input_ends_everything_that_runs() {
    let mark = BinaryEnv::new_mark();
    let command = format!("sleep 600; echo {mark}");
    let script = ModelScript::new([Reply::calls("bash", json!({"command": command}))]);
    let env = BinaryEnv::new(mark, script).await;
    let mut client = AcpClient::start(&env, &["--auto"]);
    client.initialize(json!({}));
    let id = client.new_session(&env.workspace());
    client.send_prompt(&id, "go");
    client.wait_for_message("a running call", |message| {
        message["params"]["update"]["status"] == "in_progress"
    });
    let (status, _) = client.close_and_wait();
    assert!(status.success(), "{status}");
    env.assert_nothing_survives();
    let last = env.events().pop().unwrap();
    assert_eq!(
        (&last["type"], &last["data"]["terminal_status"]),
        (&json!("turn_failed"), &json!("interrupted"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_too_and_so_does_a_reader_that_left() {
    let env = new_binary_env([]).await;
    let mut client = AcpClient::initialized(&env, json!({}));
    client.new_session(&env.workspace());
    let pid = rustix::process::Pid::from_child(&client.child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = wait_for(DEADLINE, || client.child.try_wait().unwrap(), Option::is_some);
    assert!(status.unwrap().success());

    // No message was ever written, and stdin stays open.
    let mut unread = env.command(&["acp"]);
    unread.stdin(std::process::Stdio::piped());
    let mut child = unread.spawn().unwrap();
    drop(child.stdout.take());
    let status = wait_for(DEADLINE, || child.try_wait().unwrap(), Option::is_some);
    assert!(status.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_64_megabytes_is_a_line_like_any_other() {
    let env = new_binary_env([]).await;
    let mut client = AcpClient::initialized(&env, json!({}));
    let long = "x".repeat(64 << 20);
    let answer = client.call("session/list", json!({"_meta": {"long": long}})).unwrap();
    assert_eq!(answer["sessions"], json!([]));
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_while_it_works_ends_its_call_and_its_prompt() {
    let mark = BinaryEnv::new_mark();
    let command = format!("echo begun; sleep 600; echo {mark}");
    let script = ModelScript::new([Reply::calls("bash", json!({ "command": command }))]);
    let env = BinaryEnv::new(mark, script).await;
    let mut client = AcpClient::start(&env, &["--auto"]);
    client.initialize(json!({}));
    let id = client.new_session(&env.workspace());
    let running = client.send_prompt(&id, "go");
    let waiting = client.send_prompt(&id, "and then");
    client.wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
    let close = client.send_request("session/close", json!({ "sessionId": id }));
    assert_eq!(client.wait_for_answer(running).unwrap()["stopReason"], "cancelled");
    assert_eq!(client.wait_for_answer(waiting).unwrap()["stopReason"], "cancelled");
    assert_eq!(client.wait_for_answer(close).unwrap(), json!({}));
    let ended = client.updates().iter().filter(|update| update["status"] == "failed").count();
    assert_eq!(ended, 1, "no tool call is left open");
    assert_eq!(client.run_prompt(&id, "anybody?").unwrap_err()["code"], -32_002);
    // A Supervisor may wait for the next command of another Session; its last command is gone.
    let left = || {
        let mut left = env.survivors();
        left.retain(|line| !line.contains("__supervise"));
        left
    };
    let left = wait_for(DEADLINE, left, |left| left.len() == 1);
    assert_eq!(left.len(), 1, "only the agent itself is left: {left:?}");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_may_use_up_is_counted_for_each_prompt() {
    let env =
        new_binary_env([Reply::says("one"), Reply::says("two"), Reply::calls("list", json!({}))])
            .await;
    let mut client = AcpClient::start(&env, &["--max-requests", "1"]);
    client.initialize(json!({}));
    let id = client.new_session(&env.workspace());
    for prompt in ["first", "second"] {
        assert_eq!(client.run_prompt(&id, prompt).unwrap()["stopReason"], "end_turn");
    }
    let spent = client.run_prompt(&id, "third, with a call").unwrap_err();
    assert!(spent["message"].as_str().unwrap().contains("request"), "{spent}");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_should_know_is_a_notice_or_words_before_the_answer() {
    let env = new_binary_env([Reply::says("one"), Reply::says("two")]).await;
    let mut client = AcpClient::start(&env, &["--sandbox", "off"]);
    client.initialize(json!({"session": {"notices": {}}}));
    let id = client.new_session(&env.workspace());
    let notice = client.wait_for_update("notice");
    assert_eq!(notice["severity"], "warning");
    assert!(notice["description"].as_str().unwrap().contains("the sandbox is off"), "{notice}");
    client.run_prompt(&id, "go").unwrap();
    assert_eq!(joined_text(&client.updates(), "agent_message_chunk"), "one");
    assert!(client.close_and_wait().0.success());
    let mut plain = AcpClient::start(&env, &["--sandbox", "off"]);
    plain.initialize(json!({}));
    let id = plain.new_session(&env.workspace());
    plain.run_prompt(&id, "go").unwrap();
    let updates = plain.updates();
    assert!(updates.iter().all(|update| update["sessionUpdate"] != "notice"));
    let text = joined_text(&updates, "agent_message_chunk");
    assert!(text.contains("the sandbox is off") && text.ends_with("two"), "{text}");
    assert!(plain.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_make_no_sense_are_reported_where_they_matter() {
    let env = new_binary_env([]).await;
    env.configure(&json!({"acp": {"mode": "yolo"}}));
    let mut client = AcpClient::initialized(&env, json!({}));
    let refused = client.call("session/new", json!({"cwd": env.workspace()})).unwrap_err();
    assert!(refused["message"].as_str().unwrap().contains("acp.mode"), "{refused}");
    assert!(client.call("session/list", json!({})).unwrap()["sessions"].is_array());
    // Repaired settings take effect without a restart.
    env.configure(&json!({}));
    client.new_session(&env.workspace());
    assert!(client.close_and_wait().0.success());
}
