//! Budgets of many Subagents at once: reserved before a request leaves, shared by the whole family.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use super::{envelope, priced, usage};
use crate::subagents::cast::{self, Crowd, GO, agree, cast, says, spawns, waits};
use crate::support::house::DEADLINE;
use crate::support::stage::wait_for;
use crate::workflows::troupe::{troupe, workflow};

/// An answer of a child costs eleven cents, one of its parent next to nothing.
const ANSWER: f64 = 0.11;

fn dear(reply: Reply) -> Reply {
    reply.usage(10_000, 0, 1_000)
}

fn line(line: cast::Line) -> cast::Line {
    Box::new(move |request| line(request).usage(10, 0, 1))
}

/// A parent that starts forty children and waits for them.
fn crowd() -> Script {
    let names: Vec<String> = (0..40).map(|n| format!("task {n}")).collect();
    let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
    let lines = [spawns(&tasks, "explorer"), waits(), says("All done.")].map(line);
    cast(lines, |task, _| dear(Reply::says(&format!("did {task}"))))
}

#[track_caller]
fn overshoots_by_one_answer(spent: &Value, limit: f64) {
    let cost = spent["estimated_cost_usd"].as_f64().unwrap();
    assert!(cost <= limit + ANSWER + 1e-9, "${cost} of ${limit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_children_at_once_overshoot_a_cost_limit_by_one_answer() {
    for at_once in [8, 40] {
        let more = json!({"subagents": {"max_running": at_once, "max_in_process": 64}});
        let stage = priced(crowd(), &more).await;
        let ended = stage.run(&["--json", "--max-cost", "0.2", GO]);
        ended.expect_code(6);
        let said = envelope(&ended.stdout);
        assert_eq!((&said["ok"], &said["status"]), (&json!(false), &json!("incomplete")));
        assert_eq!(said["error"]["kind"], "budget_exceeded", "{said}");
        overshoots_by_one_answer(&usage(&stage), 0.2);
        assert_eq!(agree(&stage.workspace()), 40);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grandchildren_at_once_overshoot_a_cost_limit_by_one_answer() {
    let tasks = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let lines = [spawns(&tasks, "worker"), waits(), says("All done.")].map(line);
    let script = cast(lines, |task, step| match (task, step) {
        ("deep", _) => dear(Reply::says("done")),
        (_, 0) => {
            let spawn = |reply: Reply, _| reply.call("spawn_agent", json!({"task": "deep"}));
            (0..3).fold(Reply::new(), spawn).usage(10, 0, 1)
        }
        (_, 1) => Reply::calls("wait_agent", json!({})).usage(10, 0, 1),
        _ => Reply::says("ok").usage(10, 0, 1),
    });
    let more = json!({"subagents": {"max_running": 8, "max_in_process": 64}});
    let stage = priced(script, &more).await;
    let ended = stage.run(&["--json", "--max-cost", "1", GO]);
    ended.expect_code(6);
    assert_eq!(envelope(&ended.stdout)["error"]["kind"], "budget_exceeded");
    overshoots_by_one_answer(&usage(&stage), 1.0);
    agree(&stage.workspace());
}

/// Room for one request at a time: each is expected to have at least 2,000 tokens of output.
const ROOM_FOR_ONE: &str = "9000";

fn until(file: &str) -> Value {
    json!({"command": format!("until [ -e {file} ]; do sleep 0.05; done")})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_the_budget_says_so() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let spawn = Reply::calls("spawn_agent", json!({"task": "a", "role": "explorer"}));
    let lines = [spawn.call("bash", until("asked")), Reply::says("All done.")];
    // The child is answered when its parent is seen to wait.
    let (release, released) = mpsc::sync_channel(8);
    let released = Mutex::new(released);
    let script = cast(lines.map(|reply| line(cast::line(reply))), move |_, _| {
        std::fs::write(workspace.get().unwrap().join("asked"), "").unwrap();
        let wait = || released.lock().unwrap().recv_timeout(DEADLINE);
        tokio::task::block_in_place(wait).unwrap();
        Reply::says("done").usage(10, 0, 1)
    });
    let stage = priced(script, &json!({})).await;
    place.set(stage.workspace()).unwrap();
    let args = ["--events", "--max-tokens-total", ROOM_FOR_ONE, GO];
    let mut waited = 0;
    let ended = tokio::task::block_in_place(|| {
        stage.run_watched(&args, |line| {
            if line.contains(r#""status":"waiting_for_budget""#) {
                waited += 1;
                release.try_send(()).ok();
            }
        })
    });
    ended.expect_code(0);
    assert!(waited > 0, "{}", ended.stdout);
}

/// The second child has five seconds of its own and waits for seven.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_subagent_stands_still_while_it_waits_for_the_budget() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let spawn = Reply::calls("spawn_agent", json!({"task": "long", "timeout_ms": 60_000}))
        .call("spawn_agent", json!({"task": "short", "timeout_ms": 5_000}));
    let lines = [spawn, Reply::calls("wait_agent", json!({})), Reply::says("All done.")];
    let script = cast(lines.map(|reply| line(cast::line(reply))), move |task, step| {
        let is_asked = workspace.get().unwrap().join("asked");
        match (task, step) {
            ("long", _) => {
                std::fs::write(is_asked, "").unwrap();
                Reply::new().pause(Duration::from_secs(7)).text("done")
            }
            // It came first; its next request waits.
            (_, 0) if !is_asked.exists() => Reply::calls("bash", until("asked")),
            _ => Reply::says("done"),
        }
        .usage(10, 0, 1)
    });
    let stage = priced(script, &json!({})).await;
    place.set(stage.workspace()).unwrap();
    let ended = stage.run(&["--json", "--max-tokens-total", ROOM_FOR_ONE, GO]);
    ended.expect_code(0);
    let id = envelope(&ended.stdout)["session_id"].as_str().unwrap().to_owned();
    let log = stage.workspace().join(format!(".pixir/sessions/{id}.ndjson"));
    assert_eq!((cast::count(&log, "timed_out"), cast::count(&log, "finished")), (0, 2));
    let requests = stage.server.requests();
    let last = requests.iter().filter_map(cast::task).next_back();
    assert_eq!(last.as_deref(), Some("short"), "it waited for the other");
    agree(&stage.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_to_be_sent_again_lets_others_go() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let spawn = |task: &str| Reply::calls("spawn_agent", json!({"task": task, "role": "explorer"}));
    let first = spawn("a").call("bash", until("failed"));
    let lines = [first, spawn("b"), Reply::calls("wait_agent", json!({})), Reply::says("ok")];
    let script = cast(lines.map(|reply| line(cast::line(reply))), move |task, _| {
        let file = |name: &str| workspace.get().unwrap().join(name);
        if task == "a" && !file("b-asked").exists() {
            std::fs::write(file("failed"), "").unwrap();
            return Reply::status(503, r#"{"error": {"code": "server_is_overloaded"}}"#)
                .header("retry-after", "1");
        }
        std::fs::write(file(&format!("{task}-asked")), "").unwrap();
        Reply::says("done").usage(10, 0, 1)
    });
    let stage = priced(script, &json!({"retry": {"max_attempts": 60}})).await;
    place.set(stage.workspace()).unwrap();
    stage.run(&["--max-tokens-total", ROOM_FOR_ONE, GO]).expect_code(0);
    let requests = stage.server.requests();
    let mut order: Vec<String> = requests.iter().filter_map(cast::task).collect();
    // On a busy machine it is sent again more than once before the other gets to it.
    order.dedup();
    assert_eq!(order, ["a", "b", "a"], "nobody waits for one that only waits itself");
    agree(&stage.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generous_limit_leaves_children_side_by_side() {
    let seen = Crowd::default();
    let watched = seen.clone();
    let names: Vec<String> = (0..12).map(|n| format!("task {n}")).collect();
    let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
    let lines = [spawns(&tasks, "explorer"), waits(), says("All done.")].map(line);
    let script = cast(lines, move |_, step| {
        if step == 0 {
            watched.enter();
            let most = || wait_for(DEADLINE, || watched.most(), |most| *most >= 2);
            tokio::task::block_in_place(most);
            return dear(Reply::calls("list", json!({})));
        }
        watched.leave();
        dear(Reply::says("listed"))
    });
    let stage = priced(script, &json!({})).await;
    let ended = stage.run(&["--json", "--max-cost", "100", GO]);
    ended.expect_code(0);
    assert!(seen.most() >= 2, "they work at the same time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_ends_at_its_budget_and_is_not_completed() {
    let tasks: Vec<String> = (0..8).map(|n| format!("task {n}")).collect();
    let stage = priced(troupe(|_| dear(Reply::says("done"))), &json!({})).await;
    let spec = json!({"tasks": tasks, "budget": {"cost_usd": 0.2}});
    std::fs::write(stage.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = stage.run(&["delegate", "--spec", "spec.json", "--json"]);
    ended.expect_code(6);
    let said = envelope(&ended.stdout);
    assert_eq!(
        (&said["ok"], &said["output"]["reason"]),
        (&json!(false), &json!("budget_exhausted"))
    );
    assert_eq!(
        (&said["output"]["status"], &said["status"]),
        (&json!("partial"), &json!("incomplete"))
    );
    assert_eq!(said["error"]["kind"], "budget_exceeded");
    overshoots_by_one_answer(&usage(&stage), 0.2);
    agree(&stage.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_budget_bounds_steps_that_run_side_by_side() {
    let script = troupe(|_| Reply::says("checkpoint_status: checkpoint_ready").usage(100, 0, 10));
    let stage = priced(script, &json!({})).await;
    let steps: Vec<Value> = (0..8)
        .map(|n| json!({"id": format!("s{n}"), "task": "look", "role": "explorer", "retries": 2}))
        .collect();
    let mut graph = workflow(json!(steps));
    graph["budget"] = json!({"tokens": 150});
    std::fs::write(stage.workspace().join("flow.json"), graph.to_string()).unwrap();
    let ended = stage.run(&["workflow", "run", "flow.json", "--json"]);
    ended.expect_code(6);
    let said = envelope(&ended.stdout);
    assert_eq!(said["output"]["reason"], "budget_exhausted", "{said}");
    assert_eq!(said["error"]["kind"], "budget_exceeded");
    assert_eq!(usage(&stage)["total_tokens"], 220, "the second answer went over it");
    agree(&stage.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lacks_optional_steps_because_of_its_budget_is_not_completed() {
    let script = troupe(|_| Reply::says("checkpoint_status: checkpoint_ready").usage(100, 0, 10));
    let stage = priced(script, &json!({})).await;
    let mut graph = workflow(json!([
        {"id": "one", "task": "one", "role": "explorer"},
        {"id": "two", "task": "two", "role": "explorer", "depends_on": "one", "optional": true},
    ]));
    graph["budget"] = json!({"tokens": 100});
    std::fs::write(stage.workspace().join("flow.json"), graph.to_string()).unwrap();
    let ended = stage.run(&["workflow", "run", "flow.json", "--json"]);
    ended.expect_code(6);
    assert_eq!(envelope(&ended.stdout)["output"]["status"], "partial");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_session_ends_a_delegation_as_well() {
    let tasks: Vec<String> = (0..8).map(|n| format!("task {n}")).collect();
    let stage = priced(troupe(|_| dear(Reply::says("done"))), &json!({})).await;
    std::fs::write(stage.workspace().join("spec.json"), json!({"tasks": tasks}).to_string())
        .unwrap();
    let ended = stage.run(&["delegate", "--spec", "spec.json", "--json", "--max-cost", "0.2"]);
    ended.expect_code(6);
    assert_eq!(envelope(&ended.stdout)["output"]["reason"], "budget_exhausted");
    overshoots_by_one_answer(&usage(&stage), 0.2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_limit_of_a_delegation_needs_a_price() {
    let stage = priced(troupe(|_| Reply::says("done")), &json!({"prices": {}})).await;
    let spec = json!({"tasks": ["look"], "budget": {"cost_usd": 0.2}});
    std::fs::write(stage.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = stage.run(&["delegate", "--spec", "spec.json"]);
    ended.expect_code(2);
    assert!(ended.stderr.contains("the price of gpt-5.5 is not in `prices`"), "{}", ended.stderr);
    assert!(ended.stderr.contains("`budget.cost_usd`"), "{}", ended.stderr);
    assert!(stage.server.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_run_out_of_budget_after_the_answer_are_no_success() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let answer: cast::Line = Box::new(move |_| {
        // The children spend the rest once the parent has answered.
        std::fs::write(workspace.get().unwrap().join("go"), "").unwrap();
        Reply::says("They are at it.")
    });
    let lines = [spawns(&["a", "b"], "worker"), answer].map(line);
    let script = cast(lines, |_, step| match step {
        0 => Reply::calls("bash", json!({"command": "until [ -e go ]; do sleep 0.05; done"}))
            .usage(10, 0, 1),
        1 => dear(Reply::calls("list", json!({}))),
        _ => dear(Reply::says("done")),
    });
    let stage = priced(script, &json!({})).await;
    place.set(stage.workspace()).unwrap();
    let ended = stage.run(&["--json", "--max-cost", "0.2", GO]);
    ended.expect_code(6);
    let said = envelope(&ended.stdout);
    assert_eq!((&said["ok"], &said["status"]), (&json!(false), &json!("incomplete")));
    assert_eq!(said["output"], "They are at it.");
    assert_eq!(said["error"]["kind"], "budget_exceeded");
    overshoots_by_one_answer(&usage(&stage), 0.2);
    agree(&stage.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_starts_only_so_many_children() {
    let lines = [spawns(&["a", "b", "c", "d", "e"], "explorer"), waits(), says("ok")];
    let stage = priced(
        cast(lines, |task, _| Reply::says(&format!("did {task}"))),
        &json!({"subagents": {"max_per_run": 3}}),
    )
    .await;
    stage.run(&[GO]).expect_code(0);
    let parent = stage
        .server
        .requests()
        .into_iter()
        .find(|request| cast::task(request).is_none() && !request.outputs().is_empty());
    let told = parent.unwrap().outputs().join("\n");
    assert_eq!(told.matches("subagents.max_per_run").count(), 2, "{told}");
    assert_eq!(agree(&stage.workspace()), 3);
    // A spec that can never be run is refused before anything starts.
    let spec = json!({"tasks": ["a", "b", "c", "d"]});
    std::fs::write(stage.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = stage.run(&["delegate", "--spec", "spec.json", "--dry-run"]);
    ended.expect_code(2);
    assert!(ended.stderr.contains("subagents.max_per_run"), "{}", ended.stderr);
}
