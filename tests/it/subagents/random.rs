//! Random trees of spawn, wait, send, close, failure and crash: whatever happens, the Logs agree.

use std::sync::Arc;
use std::time::Duration;

use pixir::scripted::{Received, Reply, Script};
use pixir::{Input, Status};
use serde_json::json;

use super::cast::agree;
use crate::support::House;
use crate::support::house::{DEADLINE, finish, logs, say};
use crate::support::torture::{self, Size};

/// What a Session does next.
#[derive(Debug, Clone, Copy)]
enum Act {
    Spawn { program: usize, role: &'static str, timeout_ms: u64 },
    Wait(&'static str),
    Send { program: usize },
    Close,
    List,
    Fail,
    Stall,
}

/// What each Session does, by the number in its task.
type Programs = Vec<Vec<Act>>;

/// How a story ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finale {
    Settle,
    Close,
    Interrupt(Duration),
    /// Everything stops where it is, and nobody says how it ended.
    Crash(Duration),
}

fn choose(random: &mut fastrand::Rng) -> Programs {
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
                    Act::Spawn { program: programs.len() - 1, role, timeout_ms }
                }
                5 | 6 if depths[place] < 2 => Act::Wait("all"),
                7 if depths[place] < 2 => Act::Wait("any"),
                8 if has_room => {
                    programs.push(Vec::new());
                    depths.push(2);
                    Act::Send { program: programs.len() - 1 }
                }
                9 if depths[place] < 2 => Act::Close,
                10 if place > 0 => Act::Fail,
                11 if place > 0 => Act::Stall,
                _ => Act::List,
            };
            let is_end = matches!(act, Act::Fail | Act::Stall);
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

fn play(programs: &Programs, request: &Received) -> Reply {
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
        (Some(Act::Spawn { program, role, timeout_ms }), _) => Reply::calls(
            "spawn_agent",
            json!({"task": format!("n{program}"), "role": role, "timeout_ms": timeout_ms}),
        ),
        (Some(Act::Wait(until)), _) => {
            Reply::calls("wait_agent", json!({"until": until, "timeout_ms": 20_000}))
        }
        (Some(Act::Send { program }), Some(id)) => {
            Reply::calls("send_input", json!({"id": id, "text": format!("n{program}")}))
        }
        (Some(Act::Close), Some(id)) => Reply::calls("close_agent", json!({"id": id})),
        (Some(Act::Send { .. } | Act::Close | Act::List), _) => Reply::calls("list", json!({})),
        (Some(Act::Fail), _) => Reply::status(400, r#"{"error": {"message": "no"}}"#),
        (Some(Act::Stall), _) => Reply::new().stalls(),
    }
}

async fn story(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let programs = Arc::new(choose(&mut random));
    let later = Duration::from_millis(random.u64(0..120));
    let finale = match random.u8(0..4) {
        0 => Finale::Settle,
        1 => Finale::Close,
        2 => Finale::Interrupt(later),
        _ => Finale::Crash(later),
    };
    let played = programs.clone();
    let mut house = House::scripted(Script::answering(move |request| play(&played, request))).await;
    house.config.subagents.max_running = random.usize(1..5);
    house.config.subagents.max_in_process = random.usize(1..8);
    // What stalls ends in time, whoever waits for it.
    house.config.subagents.timeout = Duration::from_secs(3);
    house.config.stream.idle = Duration::from_secs(2);
    house.config.retry.max_attempts = 1;
    if let Finale::Crash(after) = finale {
        let children = crash(house, after).await;
        return torture::say(&format!("seed {seed}: {finale:?}, {children} children"));
    }
    let harness = house.harness();
    let conversation = house.start_with(&harness).await;
    conversation.send(Input { text: "n0".to_owned() }).await.unwrap();
    if let Finale::Interrupt(after) = finale {
        tokio::time::sleep(after).await;
        conversation.interrupt().await.ok();
    }
    let status = finish(&conversation).await;
    if finale == Finale::Settle {
        let settled = harness.children_settled(&conversation);
        tokio::time::timeout(DEADLINE, settled).await.expect("every child ends");
    }
    if finale != Finale::Close {
        // What is replayed is what the service takes.
        assert_eq!(say(&conversation, "n9999").await, Status::Done, "seed {seed}: {programs:?}");
    }
    conversation.close().await;
    let children = agree(&house.workspace());
    let told = format!("seed {seed}: {finale:?}, {status:?}, {children} children");
    assert!(matches!(status, Status::Done | Status::Interrupted), "{told}");
}

/// A tree whose tasks are all dropped at some moment, as if its process had died. Whoever opens a Session
/// afterwards says what became of its children.
async fn crash(house: House, after: Duration) -> usize {
    let house = Arc::new(house);
    let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let (dying, inside) = (dying.unwrap(), Arc::clone(&house));
    dying.spawn(async move {
        let harness = inside.harness();
        let conversation = inside.start_with(&harness).await;
        conversation.send(Input { text: "n0".to_owned() }).await.unwrap();
        std::future::pending::<()>().await;
    });
    tokio::time::sleep(after).await;
    dying.shutdown_background();
    for path in logs(&house.workspace()) {
        let id = pixir::SessionId::parse(&path.file_stem().unwrap().to_string_lossy()).unwrap();
        let again = house.resume(&id).await;
        // What is replayed is what the service takes.
        assert_eq!(say(&again, "n9999").await, Status::Done, "{id}");
        again.close().await;
    }
    agree(&house.workspace())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_a_tree_does_its_logs_agree() {
    let (count, seed) = (Size::asked().of(24, 240), torture::seed());
    for first in (seed..seed + count as u64).collect::<Vec<_>>().chunks(6) {
        let stories = first.iter().map(|seed| tokio::spawn(story(*seed)));
        for (ended, seed) in futures_util::future::join_all(stories).await.iter().zip(first) {
            assert!(ended.is_ok(), "seed {seed}");
        }
    }
    torture::say(&format!("{count} random trees from seed {seed}: all Logs agree"));
}
