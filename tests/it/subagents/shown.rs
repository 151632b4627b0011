//! Children as shown to people and editors.

use std::time::Duration;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::scripted_family::{
    self, GO, check_family_logs, first_id, read_events, scripted_family, spawn_reply,
    subagent_events, text_reply, wait_reply,
};
use crate::support::acp_client::AcpClient;
use crate::support::binary_env::wait_for;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::{DEADLINE, log_files};
use crate::support::{BinaryEnv, TestEnv};

fn quick(_: &str, step: usize) -> Reply {
    match step {
        0 => Reply::new().pause(Duration::from_millis(300)).call("list", json!({})),
        _ => Reply::says("Found it in a.rs:7."),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_its_children_and_says_how_they_ended() {
    let script =
        scripted_family([spawn_reply(&["look"], "explorer"), text_reply("Started.")], quick);
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let ended = tokio::task::block_in_place(|| binary_env.run(&["--json", GO]));
    ended.expect_code(0);
    let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(envelope["output"], "Started.");
    assert_eq!(envelope["usage"]["calls"], 4, "two of the parent, two of the child: {envelope}");
    assert!(ended.stderr.contains("(explorer) completed"), "{}", ended.stderr);
    assert!(ended.stderr.contains("Found it in a.rs:7."), "{}", ended.stderr);
    let id = envelope["session_id"].as_str().unwrap();
    let status =
        tokio::task::block_in_place(|| binary_env.run(&["agents", "status", id, "--json"]));
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    let child = &status["output"]["subagents"][0];
    assert_eq!(
        (&child["status"], &child["summary"]),
        (&json!("completed"), &json!("Found it in a.rs:7."))
    );
    assert_eq!(child["usage"]["calls"], 2);
    let drawn = tokio::task::block_in_place(|| binary_env.run(&["tree", id]));
    assert!(drawn.stdout.contains(child["child_session_id"].as_str().unwrap()), "{}", drawn.stdout);
    assert_eq!(check_family_logs(&binary_env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_children_that_a_run_waits_for() {
    let script =
        scripted_family([spawn_reply(&["look"], "explorer"), text_reply("Started.")], |_, _| {
            Reply::new().stalls()
        });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    tokio::task::block_in_place(|| {
        let running = binary_env.start(&[GO]);
        let asked = || binary_env.server.requests().len();
        crate::support::binary_env::wait_for(Duration::from_secs(30), asked, |count| *count >= 3);
        std::thread::sleep(Duration::from_millis(100));
        running.signal(rustix::process::Signal::INT);
        running.end().expect_code(130);
        binary_env.assert_nothing_survives();
    });
    let cancelled = log_files(&binary_env.workspace())
        .iter()
        .flat_map(|path| subagent_events(path))
        .filter(|life| life["event"] == "cancelled")
        .count();
    assert_eq!(cancelled, 1);
    check_family_logs(&binary_env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_sees_each_child_as_a_call_of_its_own_and_is_asked_by_name() {
    let script = scripted_family(
        [spawn_reply(&["write it"], "worker"), wait_reply(), text_reply("ok")],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("I wrote x."),
        },
    );
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    tokio::task::block_in_place(|| {
        let mut client = AcpClient::start(&binary_env, &[]);
        client.initialize(json!({}));
        let id = client.new_session(&binary_env.workspace());
        let prompt = client.send_prompt(&id, GO);
        let mut titles = Vec::new();
        for _ in 0..2 {
            let request = client.wait_for_request("session/request_permission");
            titles.push(request["params"]["toolCall"]["title"].as_str().unwrap().to_owned());
            client.choose(&request, "once");
        }
        client.wait_for_answer(prompt).unwrap();
        assert!(titles[1].starts_with("sub_") && titles[1].contains("(worker): "), "{titles:?}");
        let updates = client.updates();
        let child: Vec<&Value> = updates
            .iter()
            .filter(|update| {
                update["toolCallId"]
                    .as_str()
                    .is_some_and(|id| id.len() == 14 && id.starts_with("sub_"))
            })
            .collect();
        assert_eq!(child[0]["sessionUpdate"], "tool_call");
        assert_eq!(child[0]["title"], "worker: write it");
        let last = child.last().unwrap();
        assert_eq!(last["status"], "completed");
        assert!(last.to_string().contains("I wrote x."), "{last}");
    });
    assert_eq!(std::fs::read_to_string(binary_env.workspace().join("x")).unwrap(), "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_taken_back_after_those_of_its_children() {
    let script = scripted_family(
        [spawn_reply(&["write"], "worker"), wait_reply(), text_reply("ok")],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("I wrote x."),
        },
    );
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    tokio::task::block_in_place(|| {
        let ended = binary_env.run(&["--json", GO]);
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        let parent = envelope["session_id"].as_str().unwrap();
        let path = binary_env.workspace().join(format!(".pixir/sessions/{parent}.ndjson"));
        let child =
            subagent_events(&path).pop().unwrap()["child_session_id"].as_str().unwrap().to_owned();
        let refused = binary_env.run(&["undo", "--yes", parent]);
        assert_ne!(refused.status.code(), Some(0), "{refused:?}");
        assert!(refused.stderr.contains(&format!("pixir undo {child}")), "{}", refused.stderr);
        binary_env.run(&["undo", "--yes", &child]).expect_code(0);
        assert!(!binary_env.workspace().join("x").exists());
        binary_env.run(&["undo", "--yes", parent]).expect_code(0);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_child_did_for_an_earlier_turn_is_not_in_the_way_of_a_later_one() {
    let send = |request: &pixir::scripted::ReceivedRequest| {
        Reply::calls("send_input", json!({"id": first_id(request), "text": "second"}))
    };
    let lines = [
        spawn_reply(&["first"], "worker"),
        wait_reply(),
        text_reply("ok"),
        Box::new(send),
        wait_reply(),
        text_reply("ok"),
    ];
    let script = scripted_family(lines, |task, step| match step {
        0 => Reply::calls("write", json!({"path": task, "content": "x"})),
        _ => Reply::says("I wrote."),
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    tokio::task::block_in_place(|| {
        let ended = binary_env.run(&["--json", GO]);
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        let parent = envelope["session_id"].as_str().unwrap();
        binary_env.run(&["resume", parent, "and more"]).expect_code(0);
        let path = binary_env.workspace().join(format!(".pixir/sessions/{parent}.ndjson"));
        let child =
            subagent_events(&path).pop().unwrap()["child_session_id"].as_str().unwrap().to_owned();
        let is_there = |name: &str| binary_env.workspace().join(name).exists();
        assert!(is_there("first") && is_there("second"));
        assert_ne!(binary_env.run(&["undo", "--yes", parent]).status.code(), Some(0));
        binary_env.run(&["undo", "--yes", &child]).expect_code(0);
        binary_env.run(&["undo", "--yes", parent]).expect_code(0);
        assert!(is_there("first") && !is_there("second"));
        // The Turn that started the child cannot be undone before the child's.
        assert_ne!(binary_env.run(&["undo", "--yes", parent]).status.code(), Some(0));
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_not_taken_back_without_what_grandchildren_wrote_when_it_was_over() {
    let script = scripted_family(
        [spawn_reply(&["child"], "worker"), text_reply("ok")],
        |task, step| match (task, step) {
            ("child", 0) => Reply::calls("spawn_agent", json!({"task": "grandchild"})),
            ("grandchild", 0) => {
                // The write happens after the Turns of all ancestors have ended.
                Reply::calls("bash", json!({"command": "while [ ! -e go ]; do sleep 0.02; done"}))
            }
            ("grandchild", 1) => Reply::calls("write", json!({"path": "x", "content": "x"})),
            (task, _) => Reply::says(&format!("{task} is done")),
        },
    );
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    tokio::task::block_in_place(|| {
        let running = binary_env.start(&["--json", GO]);
        let answers = || {
            let events =
                log_files(&binary_env.workspace()).into_iter().flat_map(|path| read_events(&path));
            events.filter(|event| event["data"]["phase"] == "final").count()
        };
        assert_eq!(wait_for(DEADLINE, answers, |count| *count >= 2), 2);
        std::fs::write(binary_env.workspace().join("go"), "").unwrap();
        let ended = running.end();
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        let parent = envelope["session_id"].as_str().unwrap();
        let deepest = log_files(&binary_env.workspace()).into_iter().find_map(|path| {
            let first = read_events(&path).into_iter().next()?;
            (first["data"]["depth"] == 2).then(|| first["session_id"].as_str().unwrap().to_owned())
        });
        let deepest = deepest.unwrap();
        let refused = binary_env.run(&["undo", "--yes", parent]);
        assert_ne!(refused.status.code(), Some(0), "{refused:?}");
        assert!(refused.stderr.contains(&format!("pixir undo {deepest}")), "{}", refused.stderr);
        // `--force`, because the file for which the command waited was made outside the Session.
        binary_env.run(&["undo", "--yes", &deepest, "--force"]).expect_code(0);
        binary_env.run(&["undo", "--yes", parent]).expect_code(0);
        assert!(!binary_env.workspace().join("x").exists());
    });
}

/// A child's question on a terminal that already shows the prompt again.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_asks_at_the_prompt_and_its_end_is_shown_there() {
    let script = scripted_family(
        [spawn_reply(&["write it"], "worker"), text_reply("Started.")],
        |_, step| match step {
            0 => Reply::new()
                .pause(Duration::from_millis(700))
                .call("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("I wrote x:1."),
        },
    );
    let env = TestEnv::with_script(script).await;
    tokio::task::block_in_place(|| {
        let mut terminal = TestTerminal::run(&env, &["--ask"], &[]);
        terminal.wait_for_text("\u{203a} ");
        terminal.type_keys(&format!("{GO}\n"));
        terminal.wait_for_text("start worker: write it");
        terminal.wait_for_text("[y]");
        terminal.type_keys("y\n");
        terminal.wait_for_text("Started.");
        // The question of the child appears without any input.
        terminal.wait_for_text("(worker)");
        terminal.wait_for_text_times("[y]", 2);
        terminal.type_keys("y\n");
        terminal.wait_for_text("I wrote x:1.");
        assert_eq!(env.read("x"), "x");
        terminal.type_keys("\u{4}");
        assert_eq!(terminal.wait_for_exit(), Some(0));
    });
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

/// A child's question stays after the end of the parent's Turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_a_child_outlives_the_turn() {
    // The parent answers once the question of its child was shown.
    let (release, released) = std::sync::mpsc::sync_channel(1);
    let released = std::sync::Mutex::new(released);
    let answer: scripted_family::ParentReply = Box::new(move |_| {
        let wait = || released.lock().unwrap().recv_timeout(DEADLINE);
        tokio::task::block_in_place(wait).unwrap();
        Reply::says("Started.")
    });
    let script =
        scripted_family([spawn_reply(&["write it"], "worker"), answer], |_, step| match step {
            0 => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("I wrote x:1."),
        });
    let env = TestEnv::with_script(script).await;
    tokio::task::block_in_place(|| {
        let mut terminal = TestTerminal::run(&env, &["--ask", GO], &[]);
        terminal.wait_for_text("[y]");
        terminal.type_keys("y\n");
        terminal.wait_for_text_times("[y]", 2);
        release.send(()).unwrap();
        terminal.wait_for_text("Started.");
        // The question is shown again below the answer.
        terminal.wait_for_text_times("[y]", 3);
        terminal.type_keys("y\n");
        assert_eq!(terminal.wait_for_exit(), Some(0));
    });
    assert_eq!(env.read("x"), "x");
    assert_eq!(check_family_logs(&env.workspace()), 1);
}
