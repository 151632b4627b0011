//! Random trees of spawn, wait, send, close, failure and crash: whatever happens, the Logs agree.

use std::sync::Arc;
use std::time::Duration;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{SessionStatus, UserInput};
use serde_json::json;

use super::scripted_family::check_family_logs;
use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, log_files, send_and_finish, wait_for_turn_end};
use crate::support::torture::{self, SuiteSize};

/// One action of a Session.
#[derive(Debug, Clone, Copy)]
enum RandomAct {
    Spawn { program: usize, role: &'static str, timeout_ms: u64 },
    Wait(&'static str),
    Send { program: usize },
    Close,
    List,
    Fail,
    Stall,
}

/// The actions of each Session, by the number in its task.
type Programs = Vec<Vec<RandomAct>>;

/// The end of a random run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoryEnd {
    Settle,
    Close,
    Interrupt(Duration),
    /// All tasks are dropped, without recorded ends.
    Crash(Duration),
}

fn choose_programs(random: &mut fastrand::Rng) -> Programs {
    let mut programs: Programs = vec![Vec::new()];
    let mut depths = vec![0];
    let mut place = 0;
    while place < programs.len() {
        let mut acts = Vec::new();
        for _ in 0..random.usize(1..6) {
            let has_room = depths[place] < 2 && programs.len() < 14;
            let act = match random.u8(0..12) {
                0..5 if has_room => {
                    programs.push(Vec::new());
                    depths.push(depths[place] + 1);
                    let role = if random.bool() { "worker" } else { "explorer" };
                    let timeout_ms = if random.u8(0..4) == 0 { 150 } else { 30_000 };
                    RandomAct::Spawn { program: programs.len() - 1, role, timeout_ms }
                }
                5 | 6 if depths[place] < 2 => RandomAct::Wait("all"),
                7 if depths[place] < 2 => RandomAct::Wait("any"),
                8 if has_room => {
                    programs.push(Vec::new());
                    depths.push(2);
                    RandomAct::Send { program: programs.len() - 1 }
                }
                9 if depths[place] < 2 => RandomAct::Close,
                10 if place > 0 => RandomAct::Fail,
                11 if place > 0 => RandomAct::Stall,
                _ => RandomAct::List,
            };
            let is_end = matches!(act, RandomAct::Fail | RandomAct::Stall);
            acts.push(act);
            if is_end {
                break;
            }
        }
        programs[place] = acts;
        place += 1;
    }
    programs
}

fn next_reply(programs: &Programs, request: &ReceivedRequest) -> Reply {
    let is_aside = |text: &str| text.starts_with("[Subagent");
    let texts = request.user_texts();
    let task = texts.into_iter().rfind(|text| !is_aside(text)).unwrap_or_default();
    let step = request
        .input()
        .iter()
        .rev()
        .take_while(|item| {
            let text = item["content"][0]["text"].as_str().unwrap_or_default();
            item["role"] != "user" || is_aside(text)
        })
        .filter(|item| item["type"] == "function_call_output")
        .count();
    let program = task.strip_prefix('n').and_then(|number| number.parse::<usize>().ok());
    let act = program.and_then(|number| programs.get(number)?.get(step));
    let known = serde_json::to_string(request.input()).unwrap();
    let own = known.rsplit("sub_").find_map(|rest| {
        let id = rest.get(..10)?;
        id.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| format!("sub_{id}"))
    });
    match (act, own) {
        (None, _) => Reply::says(&format!("{task} is done")),
        (Some(RandomAct::Spawn { program, role, timeout_ms }), _) => Reply::calls(
            "spawn_agent",
            json!({"task": format!("n{program}"), "role": role, "timeout_ms": timeout_ms}),
        ),
        (Some(RandomAct::Wait(until)), _) => {
            Reply::calls("wait_agent", json!({"until": until, "timeout_ms": 20_000}))
        }
        (Some(RandomAct::Send { program }), Some(id)) => {
            Reply::calls("send_input", json!({"id": id, "text": format!("n{program}")}))
        }
        (Some(RandomAct::Close), Some(id)) => Reply::calls("close_agent", json!({"id": id})),
        (Some(RandomAct::Send { .. } | RandomAct::Close | RandomAct::List), _) => {
            Reply::calls("list", json!({}))
        }
        (Some(RandomAct::Fail), _) => Reply::status(400, r#"{"error": {"message": "no"}}"#),
        (Some(RandomAct::Stall), _) => Reply::new().stalls(),
    }
}

/// Plays one random tree; gives the number of its children.
async fn run_tree(seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let programs = Arc::new(choose_programs(&mut random));
    let later = Duration::from_millis(random.u64(0..120));
    let end = match random.u8(0..4) {
        0 => StoryEnd::Settle,
        1 => StoryEnd::Close,
        2 => StoryEnd::Interrupt(later),
        _ => StoryEnd::Crash(later),
    };
    let played = programs.clone();
    let mut env =
        TestEnv::with_script(ModelScript::answering(move |request| next_reply(&played, request)))
            .await;
    env.config.subagents.max_running = random.usize(1..5);
    env.config.subagents.max_in_process = random.usize(1..8);
    // A stalled child ends at its time limit.
    env.config.subagents.timeout = Duration::from_secs(3);
    env.config.stream.idle = Duration::from_secs(2);
    env.config.retry.max_attempts = 1;
    if let StoryEnd::Crash(after) = end {
        let children = drop_tree_and_resume(env, after).await;
        torture::print_summary(&format!("seed {seed}: {end:?}, {children} children"));
        return children;
    }
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    conversation.send(UserInput { text: "n0".to_owned() }).await.unwrap();
    if let StoryEnd::Interrupt(after) = end {
        tokio::time::sleep(after).await;
        conversation.interrupt().await.ok();
    }
    let status = wait_for_turn_end(&conversation).await;
    if end == StoryEnd::Settle {
        let settled = harness.wait_for_children(&conversation);
        tokio::time::timeout(DEADLINE, settled).await.expect("every child ends");
    }
    if end != StoryEnd::Close {
        // The replayed input is valid for the service.
        assert_eq!(
            send_and_finish(&conversation, "n9999").await,
            SessionStatus::Done,
            "seed {seed}: {programs:?}"
        );
    }
    conversation.close().await;
    let children = check_family_logs(&env.workspace());
    let summary = format!("seed {seed}: {end:?}, {status:?}, {children} children");
    assert!(matches!(status, SessionStatus::Done | SessionStatus::Interrupted), "{summary}");
    children
}

/// Drops all tasks of a tree at some moment, as if its process had been killed, and resumes every Session.
/// Gives the number of children.
async fn drop_tree_and_resume(env: TestEnv, after: Duration) -> usize {
    let env = Arc::new(env);
    let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let dying = dying.unwrap();
    let inside = Arc::clone(&env);
    dying.spawn(async move {
        let harness = inside.harness();
        let conversation = inside.start_with(&harness).await;
        conversation.send(UserInput { text: "n0".to_owned() }).await.unwrap();
        std::future::pending::<()>().await;
    });
    tokio::time::sleep(after).await;
    dying.shutdown_background();
    for path in log_files(&env.workspace()) {
        let id = pixir::SessionId::parse(&path.file_stem().unwrap().to_string_lossy()).unwrap();
        let again = env.resume(&id).await;
        // The replayed input is valid for the service.
        assert_eq!(send_and_finish(&again, "n9999").await, SessionStatus::Done, "{id}");
        again.close().await;
    }
    check_family_logs(&env.workspace())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_a_tree_does_its_logs_agree() {
    let count = SuiteSize::from_environment().choose(24, 240);
    let seed = torture::seed();
    let mut children = 0;
    for first in (seed..seed + count as u64).collect::<Vec<_>>().chunks(6) {
        let trees = first.iter().map(|seed| tokio::spawn(run_tree(*seed)));
        for (ended, seed) in futures_util::future::join_all(trees).await.into_iter().zip(first) {
            children += ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
    assert!(children > 0, "no tree had a child");
    torture::print_summary(&format!(
        "{count} random trees from seed {seed}, {children} children: all Logs agree"
    ));
}
