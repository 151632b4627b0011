//! What an editor can grant, where it may work, and when it counts as gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use super::{editor, facts, stage};
use crate::support::Stage;
use crate::support::editor::Editor;
use crate::support::house::{DEADLINE, logs};
use crate::support::leaks;
use crate::support::stage::wait_for;

fn touch(name: &str) -> Reply {
    Reply::calls("bash", json!({ "command": format!("touch {name}") }))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_is_offered_one_always_and_it_is_the_narrowest() {
    let stage = stage([touch("a"), touch("b"), Reply::says("done")]).await;
    let (mut editor, id) = editor(&stage, &[], json!({}));
    let prompt = editor.prompt(&id, "go");
    let asked = editor.request("session/request_permission");
    let options = asked["params"]["options"].as_array().unwrap();
    let kinds: Vec<&str> = options.iter().map(|option| option["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    let always = &options[1];
    assert_eq!(always["optionId"], "session");
    let name = always["name"].as_str().unwrap();
    assert!(name.contains("exactly this call") && name.contains("session"), "{name}");
    let words = asked["params"]["toolCall"]["content"].to_string();
    assert!(words.contains("pixir permissions allow touch"), "the wider grant is named: {words}");
    // Option ids of earlier versions were not offered, so they allow nothing.
    editor.choose(&asked, "prefix");
    let asked = editor.request("session/request_permission");
    assert_eq!(asked["params"]["toolCall"]["rawInput"]["command"], "touch b");
    editor.choose(&asked, "project");
    editor.answer(prompt).unwrap();
    assert!(!stage.workspace().join("a").exists() && !stage.workspace().join("b").exists());
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wider_grant_is_given_on_the_command_line() {
    let stage = stage([touch("a"), Reply::says("done")]).await;
    stage.run(&["permissions", "allow", "touch"]).expect_code(0);
    let listed = stage.run(&["permissions", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["output"][0]["prefix"], json!(["touch"]), "{listed}");
    let (mut editor, id) = editor(&stage, &[], json!({}));
    assert_eq!(editor.turn(&id, "go").unwrap()["stopReason"], "end_turn");
    assert!(stage.workspace().join("a").exists());
    let (_, all) = editor.end();
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
        let ended = stage.run(&args);
        assert_eq!(ended.status.code(), Some(2), "{refused:?}: {ended:?}");
    }
}

/// Starts `pixir acp --auto` with this stdout and brings it into a Turn that runs a command.
fn start_turn(stage: &Stage, stdout: Stdio) -> Child {
    let mut command: Command = stage.command(&["acp", "--auto"]);
    leaks::watch();
    command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::null()).spawn().unwrap()
}

fn say(child: &mut Child, id: u64, method: &str, params: &Value) {
    let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    child.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Reads until a line has a text, and gives it.
fn read_until(lines: &mut impl BufRead, text: &str) -> Value {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended before {text}");
        if line.contains(text) {
            return serde_json::from_str(&line).unwrap();
        }
    }
}

/// A client that reads until a command runs and then closes its end, while stdin stays open.
fn close_the_read_end(
    stage: &Stage,
    stdout: Stdio,
    read_end: impl FnOnce(&mut Child) -> Box<dyn Read>,
) {
    let mut child = start_turn(stage, stdout);
    let mut lines = BufReader::new(read_end(&mut child));
    say(&mut child, 1, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    say(&mut child, 2, "session/new", &json!({"cwd": stage.workspace(), "mcpServers": []}));
    let made = read_until(&mut lines, "sessionId");
    let prompt = json!([{"type": "text", "text": "go"}]);
    let params = json!({"sessionId": made["result"]["sessionId"], "prompt": prompt});
    say(&mut child, 3, "session/prompt", &params);
    read_until(&mut lines, "in_progress");
    wait_for(DEADLINE, || stage.workspace().join("begun").exists(), |begun| *begun);
    drop(lines);
    let status = wait_for(DEADLINE, || child.try_wait().unwrap(), Option::is_some);
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(status.expect("it ends with its reader").success());
    drop(child.stdin.take());
    let last = stage.events().pop().unwrap();
    assert_eq!(
        (&last["type"], &last["data"]["terminal_status"]),
        (&json!("turn_failed"), &json!("interrupted"))
    );
    stage.assert_nothing_survives();
}

async fn silent_stage() -> Stage {
    let mark = Stage::mark();
    let command = format!("touch begun; sleep 600; echo {mark}");
    let script = Script::new([Reply::calls("bash", json!({ "command": command }))]);
    Stage::new(mark, script).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_read_end_is_gone_while_nothing_is_written() {
    let stage = silent_stage().await;
    close_the_read_end(&stage, Stdio::piped(), |child| Box::new(child.stdout.take().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_socket_is_gone_while_nothing_is_written() {
    let stage = silent_stage().await;
    let (ours, theirs) = UnixStream::pair().unwrap();
    close_the_read_end(&stage, Stdio::from(OwnedFd::from(theirs)), |_| Box::new(ours));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_read_end_stops_a_turn_that_writes_files() {
    let mark = Stage::mark();
    let script = Script::answering(|request| {
        let number = request.outputs().len();
        let path = if number == 0 { "begun".to_owned() } else { format!("n{number}") };
        Reply::calls("write", json!({"path": path, "content": "x"}))
    });
    let stage = Stage::new(mark, script).await;
    close_the_read_end(&stage, Stdio::piped(), |child| Box::new(child.stdout.take().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_the_home_and_its_parents_are_no_workspace_for_an_editor() {
    let stage = stage([]).await;
    let home = stage.workspace().parent().unwrap().join("home");
    std::fs::create_dir(home.join("project")).unwrap();
    std::os::unix::fs::symlink(&home, stage.workspace().join("link")).unwrap();
    let mut editor = Editor::start(&stage, &[]);
    editor.initialize(json!({}));
    let refused = [
        Path::new("/").to_owned(),
        home.clone(),
        home.parent().unwrap().to_owned(),
        home.join("."),
        home.join("project/.."),
        stage.workspace().join("link"),
        stage.workspace().join("../../../../../../../.."),
    ];
    for cwd in &refused {
        for method in ["session/new", "session/load", "session/resume", "session/fork"] {
            let params =
                json!({"cwd": cwd, "mcpServers": [], "sessionId": "20260101T000000-abcdef"});
            let error = editor.call(method, params).unwrap_err();
            assert_eq!(error["code"], -32_602, "{method} {cwd:?}: {error}");
            assert!(error["message"].as_str().unwrap().contains("--cwd"), "{error}");
        }
    }
    // Nothing was begun there; what the real root holds is not ours to judge.
    for cwd in &refused[1..3] {
        assert!(logs(cwd).is_empty(), "{cwd:?}");
    }
    let project = editor.session(&home.join("project"));
    assert!(!project.is_empty(), "a folder of the home is fine");
    assert!(editor.end().0.success());

    // The user named it where the editor starts Pixir.
    let mut editor = Editor::start(&stage, &["--cwd", home.to_str().unwrap()]);
    editor.initialize(json!({}));
    editor.session(&stage.workspace().join("link"));
    let error = editor.call("session/new", json!({"cwd": "/", "mcpServers": []})).unwrap_err();
    assert_eq!(error["code"], -32_602, "only what was named: {error}");
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_home_is_no_further_directory_either() {
    // The prompt names the file.
    let script = Script::answering(|request| match request.outputs().as_slice() {
        [] => Reply::calls("write", json!({"path": request.user_texts()[0], "content": "x"})),
        _ => Reply::says("done"),
    });
    let stage = Stage::new(Stage::mark(), script).await;
    let home = stage.workspace().parent().unwrap().join("home");
    let mut editor = Editor::start(&stage, &["--auto"]);
    editor.initialize(json!({}));
    let params = json!({
        "cwd": stage.workspace(), "mcpServers": [], "additionalDirectories": ["/", home],
    });
    let made = editor.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let stray = home.join("stray");
    editor.turn(&id, stray.to_str().unwrap()).unwrap();
    assert_eq!(facts(&stage, "tool_result")[0]["ok"], false);
    assert!(!stray.exists());
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_a_switch_to_read_only_is_judged_by_the_new_mode() {
    let write = Reply::calls("write", json!({"path": "b", "content": "x"}));
    let stage = stage([touch("a"), Reply::says("one"), write, Reply::says("two")]).await;
    let (mut editor, id) = editor(&stage, &[], json!({}));
    for _ in 0..2 {
        let prompt = editor.prompt(&id, "go");
        let asked = editor.request("session/request_permission");
        let set = json!({"sessionId": id, "modeId": "read_only"});
        editor.call("session/set_mode", set).unwrap();
        editor.choose(&asked, "once");
        assert_eq!(editor.answer(prompt).unwrap()["stopReason"], "end_turn");
        editor.call("session/set_mode", json!({"sessionId": id, "modeId": "ask"})).unwrap();
    }
    for name in ["a", "b"] {
        assert!(!stage.workspace().join(name).exists(), "{name}");
    }
    let decisions = facts(&stage, "permission_decision");
    assert_eq!(decisions.len(), 2, "{decisions:?}");
    for (decision, expected) in decisions.iter().zip(["allow", "deny"]) {
        assert_eq!(
            (&decision["decision"], &decision["mode"]),
            (&json!(expected), &json!("read_only")),
            "{decision}"
        );
    }
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_a_switch_to_plan_is_judged_by_its_mode() {
    let write = Reply::calls("write", json!({"path": "b", "content": "x"}));
    let stage = stage([write, Reply::says("done")]).await;
    let (mut editor, id) = editor(&stage, &[], json!({}));
    let prompt = editor.prompt(&id, "go");
    let asked = editor.request("session/request_permission");
    editor.call("session/set_mode", json!({"sessionId": id, "modeId": "plan"})).unwrap();
    editor.choose(&asked, "session");
    assert_eq!(editor.answer(prompt).unwrap()["stopReason"], "end_turn");
    assert!(!stage.workspace().join("b").exists());
    assert_eq!(facts(&stage, "permission_decision")[0]["decision"], "deny");
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_always_of_an_edit_is_about_edits_and_its_label_says_so() {
    let write = |path: &str| Reply::calls("write", json!({"path": path, "content": "new"}));
    let stage = stage([write("a"), write("b"), touch("c"), Reply::says("done")]).await;
    let (mut editor, id) = editor(&stage, &[], json!({}));
    let prompt = editor.prompt(&id, "go");
    let asked = editor.request("session/request_permission");
    let options = asked["params"]["options"].as_array().unwrap();
    let always: Vec<&Value> =
        options.iter().filter(|option| option["kind"] == "allow_always").collect();
    assert_eq!(always.len(), 1, "{options:?}");
    assert_eq!(always[0]["optionId"], "session_edits");
    let name = "Always allow write, edit and apply_patch to change, create, move and delete files in this session";
    assert_eq!(always[0]["name"], name);
    editor.choose(&asked, "session_edits");
    let asked = editor.request("session/request_permission");
    assert_eq!(asked["params"]["toolCall"]["rawInput"]["command"], "touch c", "no edit");
    // It was not offered for a command, so it allows nothing.
    editor.choose(&asked, "session_edits");
    editor.answer(prompt).unwrap();
    let exists = |name: &str| stage.workspace().join(name).exists();
    assert!(exists("a") && exists("b") && !exists("c"));
    assert!(editor.end().0.success());
}
