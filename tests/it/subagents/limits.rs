//! Limits on children: concurrency, depth, time and budget.

use std::time::Duration;

use pixir::SessionStatus;
use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use super::scripted_family::{
    self, ConcurrencyGauge, GO, check_family_logs, count_subagent_events, first_id,
    scripted_family, spawn_reply, subagent_events, text_reply, wait_reply,
};
use crate::support::acp_client::AcpClient;
use crate::support::test_env::log_files;
use crate::support::{BinaryEnv, TestEnv};

#[tokio::test(flavor = "multi_thread")]
async fn fifty_children_take_turns_and_all_of_them_answer() {
    let names: Vec<String> = (0..50).map(|n| format!("task {n}")).collect();
    let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
    let gauge = ConcurrencyGauge::default();
    let seen = gauge.clone();
    let script = scripted_family(
        [spawn_reply(&tasks, "worker"), wait_reply(), text_reply("ok")],
        move |task, step| {
            let file = task.replace(' ', "_");
            if step == 0 {
                seen.enter();
                let args = json!({"path": format!("{file}.txt"), "content": task});
                return Reply::new().pause(Duration::from_millis(20)).call("write", args);
            }
            seen.leave();
            Reply::says(&format!("wrote {file}.txt"))
        },
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(count_subagent_events(conversation.log_path(), "finished"), 50);
    assert!(gauge.most() <= 8, "{} at once", gauge.most());
    assert!(gauge.most() >= 2, "the children work at the same time");
    for name in &names {
        assert_eq!(env.read(&format!("{}.txt", name.replace(' ', "_"))), *name);
    }
    let requests = env.requests();
    let last =
        requests.iter().rfind(|request| scripted_family::last_task(request).is_none()).unwrap();
    let output = last.outputs().last().copied().unwrap();
    assert!(names.iter().all(|name| output.contains(&format!("wrote {}", name.replace(' ', "_")))));
    assert_eq!(check_family_logs(&env.workspace()), 50);
}

#[tokio::test]
async fn ends_that_do_not_fit_into_an_answer_are_reported_by_the_next_wait() {
    let tasks: Vec<String> = (0..12).map(|place| format!("job {place}.")).collect();
    let names: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut lines = vec![spawn_reply(&names, "explorer")];
    lines.extend((0..6).map(|_| wait_reply()));
    lines.push(text_reply("ok"));
    let script = scripted_family(lines, |task, _| {
        Reply::says(&format!("found {task} {}", "x".repeat(3000)))
    });
    let mut env = TestEnv::with_script(script).await;
    env.config.output_limit = 2048;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let results: Vec<String> = scripted_family::read_events(conversation.log_path())
        .iter()
        .filter(|event| {
            event["type"] == "tool_result" && !event["data"]["details"]["told"].is_null()
        })
        .map(|event| event["data"]["output"].as_str().unwrap().to_owned())
        .collect();
    assert!(results[0].contains("more are not shown here"), "{}", results[0]);
    let all = results.concat();
    for task in tasks {
        assert_eq!(all.matches(&format!("found {task}")).count(), 1, "{task}: {all}");
    }
    assert!(results.iter().all(|text| text.len() <= 2048));
    assert!(results.last().unwrap().contains("no Subagent to wait for"), "{results:?}");
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn children_may_have_children_until_it_is_deep_enough() {
    let script = scripted_family(
        [spawn_reply(&["child"], "worker"), wait_reply(), text_reply("ok")],
        |task, step| match (task, step) {
            ("child", 0) => Reply::calls("spawn_agent", json!({"task": "grandchild"})),
            ("child", 1) => Reply::calls("wait_agent", json!({})),
            (task, _) => Reply::says(&format!("{task} is done")),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    // With one slot in the whole process, a waiting child releases it to its own child.
    env.config.subagents.max_in_process = 1;
    let (_, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let requests = env.requests();
    let deepest = requests
        .iter()
        .find(|request| scripted_family::last_task(request).as_deref() == Some("grandchild"));
    let tools = deepest.unwrap().body["tools"].to_string();
    assert!(!tools.contains("spawn_agent") && !tools.contains("wait_agent"), "{tools}");
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test]
async fn who_has_answered_and_waits_for_its_own_children_holds_no_place() {
    // The child answers at once; with one slot in the process, its own child needs that slot.
    let script = scripted_family(
        [spawn_reply(&["child"], "worker"), wait_reply(), text_reply("ok")],
        |task, step| match (task, step) {
            ("child", 0) => Reply::calls("spawn_agent", json!({"task": "grandchild"})),
            (task, _) => Reply::says(&format!("{task} is done")),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.subagents.max_in_process = 1;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(count_subagent_events(conversation.log_path(), "finished"), 1);
    let asked = env.requests();
    let asked = asked
        .iter()
        .filter_map(scripted_family::last_task)
        .filter(|task| task == "grandchild")
        .count();
    assert_eq!(asked, 1, "the child was started");
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test]
async fn each_child_has_its_own_time() {
    let script = scripted_family(
        [
            scripted_family::always(
                Reply::new()
                    .call("spawn_agent", json!({"task": "slow", "timeout_ms": 300}))
                    .call("spawn_agent", json!({"task": "quick"})),
            ),
            wait_reply(),
            text_reply("ok"),
        ],
        |task, _| match task {
            "slow" => Reply::new().stalls(),
            _ => Reply::says("quick is done"),
        },
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let path = conversation.log_path();
    assert_eq!(
        (count_subagent_events(path, "timed_out"), count_subagent_events(path, "finished")),
        (1, 1)
    );
    let late = subagent_events(path).into_iter().find(|life| life["event"] == "timed_out").unwrap();
    assert_eq!((&late["status"], &late["reason"]), (&json!("timed_out"), &json!("timeout")));
    let requests = env.requests();
    let last =
        requests.iter().rfind(|request| scripted_family::last_task(request).is_none()).unwrap();
    assert!(last.outputs().last().unwrap().contains("but not all completed"));
    check_family_logs(&env.workspace());
}

/// Two children with three seconds of work each and a limit of five; one after the other they take six.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_the_commands_of_others_does_not_work() {
    let spawn = |task: &str| json!({"task": task, "timeout_ms": 5_000});
    let script = scripted_family(
        [
            scripted_family::always(
                Reply::new().call("spawn_agent", spawn("a")).call("spawn_agent", spawn("b")),
            ),
            wait_reply(),
            text_reply("ok"),
        ],
        |_, step| match step {
            0 => Reply::calls("bash", json!({"command": "sleep 3"})),
            _ => Reply::says("slept"),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.bash.max_commands = 1;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let path = conversation.log_path();
    assert_eq!(
        (count_subagent_events(path, "timed_out"), count_subagent_events(path, "finished")),
        (0, 2)
    );
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn the_spending_of_children_counts_against_the_same_budget() {
    let script = scripted_family(
        [spawn_reply(&["a"], "explorer"), wait_reply(), text_reply("never")],
        |_, step| match step {
            0 => Reply::calls("list", json!({})).usage(900, 0, 100),
            _ => Reply::says("done").usage(900, 0, 100),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.budget.max_tokens_total = Some(1200);
    let (conversation, status) = env.run_turn(GO).await;
    let SessionStatus::Error { terminal_status, error } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "budget_exceeded");
    assert!(error.message.contains("of 1200"), "{}", error.message);
    let life = subagent_events(conversation.log_path()).pop().unwrap();
    assert_eq!((&life["event"], &life["reason"]), (&json!("failed"), &json!("budget_exceeded")));
    assert_eq!(life["usage"]["total_tokens"], 1000);
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_child_spent_before_a_death_is_still_spent() {
    let script = scripted_family(
        [spawn_reply(&["a"], "worker"), wait_reply(), text_reply("never")],
        |_, _| Reply::calls("bash", json!({"command": "touch here; sleep 60"})).usage(900, 0, 100),
    );
    let mut env = TestEnv::with_script(script).await;
    let workspace = env.workspace();
    let mark = env.workspace().join("here");
    let path = || {
        let all = crate::support::test_env::log_files(&workspace).into_iter();
        all.clone().find(|path| {
            scripted_family::read_events(path)[0]["data"]["parent_session_id"].is_null()
        })
    };
    let looked = std::sync::OnceLock::new();
    env.run_pixir_until_killed(&[GO], || {
        if !mark.exists() {
            return false;
        }
        // Another process shows the status of the running child.
        let id = path().unwrap().file_stem().unwrap().to_string_lossy().into_owned();
        let seen =
            env.run_pixir(&["agents", "status", &id, "--json"]).assert_exit_code(0).envelope();
        let child = seen["output"]["subagents"][0].clone();
        let is_later = child["elapsed_ms"].as_u64() > Some(0);
        is_later && looked.set(child).is_ok()
    });
    let looked = looked.get().unwrap();
    assert_eq!((&looked["status"], &looked["usage"]["calls"]), (&json!("running"), &json!(1)));
    let path = path().unwrap();
    let id = pixir::SessionId::parse(&path.file_stem().unwrap().to_string_lossy()).unwrap();
    env.config.budget.max_tokens_total = Some(1_000);
    let again = env.resume(&id).await;
    let life = subagent_events(&path).pop().unwrap();
    assert_eq!(
        (&life["event"], &life["usage"]["total_tokens"]),
        (&json!("detached"), &json!(1000))
    );
    let status = crate::support::test_env::send_and_finish(&again, "go on").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "budget_exceeded", "a death is no way to a new budget");
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn a_read_only_child_is_started_again_after_a_transient_failure() {
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = tries.clone();
    let script = scripted_family(
        [
            spawn_reply(&["look"], "explorer"),
            spawn_reply(&["do"], "worker"),
            wait_reply(),
            text_reply("ok"),
        ],
        move |task, _| match (task, seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
            ("look", 0) | ("do", _) => Reply::status(503, "try later"),
            _ => Reply::says("found"),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.retry.max_attempts = 1;
    env.config.subagents.max_running = 1;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let lines: Vec<_> = subagent_events(conversation.log_path())
        .iter()
        .map(|life| {
            format!("{} {}", life["agent"].as_str().unwrap(), life["event"].as_str().unwrap())
        })
        .collect();
    let of = |role: &str| {
        lines.iter().filter(|line| line.starts_with(role)).cloned().collect::<Vec<_>>().join(", ")
    };
    assert_eq!(
        of("explorer"),
        "explorer queued, explorer starting, explorer started, explorer retrying, \
         explorer starting, explorer started, explorer finished"
    );
    assert_eq!(of("worker"), "worker queued, worker starting, worker started, worker failed");
    assert_eq!(
        crate::support::test_env::log_files(&env.workspace()).len(),
        4,
        "each attempt has its Log"
    );
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn a_child_with_a_log_is_not_started_again_because_it_would_know_nothing() {
    let script = scripted_family(
        [
            spawn_reply(&["first"], "explorer"),
            wait_reply(),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "second"}))
            }),
            wait_reply(),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "third"}))
            }),
            wait_reply(),
            text_reply("ok"),
        ],
        |task, _| match task {
            "second" => Reply::status(503, "try later"),
            task => Reply::says(&format!("saw {task}")),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.retry.max_attempts = 1;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let path = conversation.log_path();
    assert_eq!(
        (count_subagent_events(path, "retrying"), count_subagent_events(path, "failed")),
        (0, 1)
    );
    assert_eq!(count_subagent_events(path, "finished"), 2);
    assert_eq!(crate::support::test_env::log_files(&env.workspace()).len(), 2, "it is one child");
    let requests = env.requests();
    let last =
        requests.iter().rfind(|request| scripted_family::last_task(request).is_some()).unwrap();
    assert_eq!(last.user_texts().first(), Some(&"first"), "it still knows what it did");
    check_family_logs(&env.workspace());
}

/// Two Workspaces in one process, as in an editor with two folders, share one limit.
#[tokio::test(flavor = "multi_thread")]
async fn children_of_two_workspaces_share_the_places_of_the_process() {
    let gauge = ConcurrencyGauge::default();
    let seen = gauge.clone();
    let script = ModelScript::answering(move |request| {
        match (scripted_family::last_task(request).is_some(), request.outputs().len()) {
            (false, 0) => spawn_reply(&["a", "b"], "explorer")(request),
            (false, 2) => wait_reply()(request),
            (false, _) => Reply::says("ok"),
            (true, 0) => {
                seen.enter();
                Reply::new().pause(Duration::from_millis(100)).call("list", json!({}))
            }
            (true, _) => {
                seen.leave();
                Reply::says("looked")
            }
        }
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    binary_env.configure(&json!({"durability": "none", "subagents": {"max_in_process": 1}}));
    tokio::task::block_in_place(|| {
        let other = binary_env.workspace().join("other");
        std::fs::create_dir(&other).unwrap();
        let mut client = AcpClient::start(&binary_env, &["--auto"]);
        client.initialize(json!({}));
        let prompts = [binary_env.workspace(), other].map(|folder| {
            let id = client.new_session(&folder);
            client.send_prompt(&id, GO)
        });
        for prompt in prompts {
            assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
        }
    });
    assert_eq!(gauge.most(), 1);
    let finished = |folder: &std::path::Path| {
        log_files(folder).iter().map(|path| count_subagent_events(path, "finished")).sum::<usize>()
    };
    assert_eq!(finished(&binary_env.workspace()), 2);
    assert_eq!(finished(&binary_env.workspace().join("other")), 2);
}
