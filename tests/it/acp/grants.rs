//! Grants of an editor, its working directories, and the detection of its exit.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::{facts, new_binary_env, new_client};
use crate::support::BinaryEnv;
use crate::support::acp_client::AcpClient;
use crate::support::binary_env::wait_for;
use crate::support::leaks;
use crate::support::test_env::{DEADLINE, log_files};

fn touch(name: &str) -> Reply {
    Reply::calls("bash", json!({ "command": format!("touch {name}") }))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_is_offered_one_always_and_it_is_the_narrowest() {
    let env = new_binary_env([touch("a"), touch("b"), Reply::says("done")]).await;
    let (mut client, id) = new_client(&env, &[], json!({}));
    let prompt = client.send_prompt(&id, "go");
    let asked = client.wait_for_request("session/request_permission");
    let options = asked["params"]["options"].as_array().unwrap();
    let kinds: Vec<&str> = options.iter().map(|option| option["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    let always = &options[1];
    assert_eq!(always["optionId"], "session");
    let name = always["name"].as_str().unwrap();
    assert!(name.contains("exactly this call") && name.contains("session"), "{name}");
    let words = asked["params"]["toolCall"]["content"].to_string();
    assert!(words.contains("pixir permissions allow touch"), "the wider grant is named: {words}");
    // Option ids of earlier versions are not offered, so they grant nothing.
    client.choose(&asked, "prefix");
    let asked = client.wait_for_request("session/request_permission");
    assert_eq!(asked["params"]["toolCall"]["rawInput"]["command"], "touch b");
    client.choose(&asked, "project");
    client.wait_for_answer(prompt).unwrap();
    assert!(!env.workspace().join("a").exists() && !env.workspace().join("b").exists());
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wider_grant_is_given_on_the_command_line() {
    let env = new_binary_env([touch("a"), Reply::says("done")]).await;
    env.run(&["permissions", "allow", "touch"]).expect_code(0);
    let listed = env.run(&["permissions", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["output"][0]["prefix"], json!(["touch"]), "{listed}");
    let (mut client, id) = new_client(&env, &[], json!({}));
    assert_eq!(client.run_prompt(&id, "go").unwrap()["stopReason"], "end_turn");
    assert!(env.workspace().join("a").exists());
    let (_, all) = client.close_and_wait();
    assert!(!all.iter().any(|line| line["method"] == "session/request_permission"));
    for refused in [
        &["bash"][..],
        &["python3", "x.py"],
        &["git"],
        &["git", "log", "--output=x"],
        &["cargo", "test", "--all"],
        &["touch; rm"],
        &[""],
    ] {
        let mut args = vec!["permissions", "allow", "--"];
        args.extend(refused);
        let ended = env.run(&args);
        assert_eq!(ended.status.code(), Some(2), "{refused:?}: {ended:?}");
    }
}

/// Starts `pixir acp --auto` with this stdout.
fn start_agent(env: &BinaryEnv, stdout: Stdio) -> Child {
    let mut command: Command = env.command(&["acp", "--auto"]);
    leaks::start_process_scan();
    command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::null()).spawn().unwrap()
}

fn say(child: &mut Child, id: u64, method: &str, params: &Value) {
    let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    child.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Reads until a line contains a text, and gives that line.
fn read_until(lines: &mut impl BufRead, text: &str) -> Value {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the output ended before {text}");
        if line.contains(text) {
            return serde_json::from_str(&line).unwrap();
        }
    }
}

/// Reads until a command runs, then closes the read end while stdin stays open.
fn assert_ends_when_read_end_closes(
    env: &BinaryEnv,
    stdout: Stdio,
    read_end: impl FnOnce(&mut Child) -> Box<dyn Read>,
) {
    let mut child = start_agent(env, stdout);
    let mut lines = BufReader::new(read_end(&mut child));
    say(&mut child, 1, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    say(&mut child, 2, "session/new", &json!({"cwd": env.workspace(), "mcpServers": []}));
    let made = read_until(&mut lines, "sessionId");
    let prompt = json!([{"type": "text", "text": "go"}]);
    let params = json!({"sessionId": made["result"]["sessionId"], "prompt": prompt});
    say(&mut child, 3, "session/prompt", &params);
    read_until(&mut lines, "in_progress");
    wait_for(DEADLINE, || env.workspace().join("begun").exists(), |begun| *begun);
    drop(lines);
    let status = wait_for(DEADLINE, || child.try_wait().unwrap(), Option::is_some);
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(status.expect("it ends with its reader").success());
    drop(child.stdin.take());
    let last = env.events().pop().unwrap();
    assert_eq!(
        (&last["type"], &last["data"]["terminal_status"]),
        (&json!("turn_failed"), &json!("interrupted"))
    );
    env.assert_nothing_survives();
}

async fn env_with_silent_command() -> BinaryEnv {
    let mark = BinaryEnv::new_mark();
    let command = format!("touch begun; sleep 600; echo {mark}");
    let script = ModelScript::new([Reply::calls("bash", json!({ "command": command }))]);
    BinaryEnv::new(mark, script).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_read_end_is_gone_while_nothing_is_written() {
    let env = env_with_silent_command().await;
    assert_ends_when_read_end_closes(&env, Stdio::piped(), |child| {
        Box::new(child.stdout.take().unwrap())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_socket_is_gone_while_nothing_is_written() {
    let env = env_with_silent_command().await;
    let (ours, theirs) = UnixStream::pair().unwrap();
    assert_ends_when_read_end_closes(&env, Stdio::from(OwnedFd::from(theirs)), |_| Box::new(ours));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_read_end_stops_a_turn_that_writes_files() {
    let mark = BinaryEnv::new_mark();
    let script = ModelScript::answering(|request| {
        let number = request.outputs().len();
        let path = if number == 0 { "begun".to_owned() } else { format!("n{number}") };
        Reply::calls("write", json!({"path": path, "content": "x"}))
    });
    let env = BinaryEnv::new(mark, script).await;
    assert_ends_when_read_end_closes(&env, Stdio::piped(), |child| {
        Box::new(child.stdout.take().unwrap())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_the_home_and_its_parents_are_no_workspace_for_an_editor() {
    let env = new_binary_env([]).await;
    let home = env.workspace().parent().unwrap().join("home");
    std::fs::create_dir(home.join("project")).unwrap();
    std::os::unix::fs::symlink(&home, env.workspace().join("link")).unwrap();
    let mut client = AcpClient::start(&env, &[]);
    client.initialize(json!({}));
    let refused = [
        Path::new("/").to_owned(),
        home.clone(),
        home.parent().unwrap().to_owned(),
        home.join("."),
        home.join("project/.."),
        env.workspace().join("link"),
        env.workspace().join("../../../../../../../.."),
    ];
    for cwd in &refused {
        for method in ["session/new", "session/load", "session/resume", "session/fork"] {
            let params =
                json!({"cwd": cwd, "mcpServers": [], "sessionId": "20260101T000000-abcdef"});
            let error = client.call(method, params).unwrap_err();
            assert_eq!(error["code"], -32_602, "{method} {cwd:?}: {error}");
            assert!(error["message"].as_str().unwrap().contains("--cwd"), "{error}");
        }
    }
    // No Session began there. The real root is not checked, because other programs may write to it.
    for cwd in &refused[1..3] {
        assert!(log_files(cwd).is_empty(), "{cwd:?}");
    }
    let project = client.new_session(&home.join("project"));
    assert!(!project.is_empty(), "a folder of the home is fine");
    assert!(client.close_and_wait().0.success());

    // The user named the folder in the command that starts Pixir.
    let mut client = AcpClient::start(&env, &["--cwd", home.to_str().unwrap()]);
    client.initialize(json!({}));
    client.new_session(&env.workspace().join("link"));
    let error = client.call("session/new", json!({"cwd": "/", "mcpServers": []})).unwrap_err();
    assert_eq!(error["code"], -32_602, "only the named folder is allowed: {error}");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_home_is_no_further_directory_either() {
    // The prompt names the file.
    let script = ModelScript::answering(|request| match request.outputs().as_slice() {
        [] => Reply::calls("write", json!({"path": request.user_texts()[0], "content": "x"})),
        _ => Reply::says("done"),
    });
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let home = env.workspace().parent().unwrap().join("home");
    let mut client = AcpClient::start(&env, &["--auto"]);
    client.initialize(json!({}));
    let params = json!({
        "cwd": env.workspace(), "mcpServers": [], "additionalDirectories": ["/", home],
    });
    let made = client.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let stray = home.join("stray");
    client.run_prompt(&id, stray.to_str().unwrap()).unwrap();
    assert_eq!(facts(&env, "tool_result")[0]["ok"], false);
    assert!(!stray.exists());
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_a_switch_to_read_only_is_judged_by_the_new_mode() {
    let write = Reply::calls("write", json!({"path": "b", "content": "x"}));
    let env = new_binary_env([touch("a"), Reply::says("one"), write, Reply::says("two")]).await;
    let (mut client, id) = new_client(&env, &[], json!({}));
    for _ in 0..2 {
        let prompt = client.send_prompt(&id, "go");
        let asked = client.wait_for_request("session/request_permission");
        let set = json!({"sessionId": id, "modeId": "read_only"});
        client.call("session/set_mode", set).unwrap();
        client.choose(&asked, "once");
        assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
        client.call("session/set_mode", json!({"sessionId": id, "modeId": "ask"})).unwrap();
    }
    for name in ["a", "b"] {
        assert!(!env.workspace().join(name).exists(), "{name}");
    }
    let decisions = facts(&env, "permission_decision");
    assert_eq!(decisions.len(), 2, "{decisions:?}");
    for (decision, expected) in decisions.iter().zip(["allow", "deny"]) {
        assert_eq!(
            (&decision["decision"], &decision["mode"]),
            (&json!(expected), &json!("read_only")),
            "{decision}"
        );
    }
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_a_switch_to_plan_is_judged_by_its_mode() {
    let write = Reply::calls("write", json!({"path": "b", "content": "x"}));
    let env = new_binary_env([write, Reply::says("done")]).await;
    let (mut client, id) = new_client(&env, &[], json!({}));
    let prompt = client.send_prompt(&id, "go");
    let asked = client.wait_for_request("session/request_permission");
    client.call("session/set_mode", json!({"sessionId": id, "modeId": "plan"})).unwrap();
    client.choose(&asked, "session");
    assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    assert!(!env.workspace().join("b").exists());
    assert_eq!(facts(&env, "permission_decision")[0]["decision"], "deny");
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_always_of_an_edit_is_about_edits_and_its_label_says_so() {
    let write = |path: &str| Reply::calls("write", json!({"path": path, "content": "new"}));
    let env = new_binary_env([write("a"), write("b"), touch("c"), Reply::says("done")]).await;
    let (mut client, id) = new_client(&env, &[], json!({}));
    let prompt = client.send_prompt(&id, "go");
    let asked = client.wait_for_request("session/request_permission");
    let options = asked["params"]["options"].as_array().unwrap();
    let always: Vec<&Value> =
        options.iter().filter(|option| option["kind"] == "allow_always").collect();
    assert_eq!(always.len(), 1, "{options:?}");
    assert_eq!(always[0]["optionId"], "session_edits");
    let name = "Always allow write, edit and apply_patch to change, create, move and delete files in this session";
    assert_eq!(always[0]["name"], name);
    client.choose(&asked, "session_edits");
    let asked = client.wait_for_request("session/request_permission");
    assert_eq!(asked["params"]["toolCall"]["rawInput"]["command"], "touch c", "no edit");
    // The option was not offered for a command, so it grants nothing.
    client.choose(&asked, "session_edits");
    client.wait_for_answer(prompt).unwrap();
    let exists = |name: &str| env.workspace().join(name).exists();
    assert!(exists("a") && exists("b") && !exists("c"));
    assert!(client.close_and_wait().0.success());
}
