//! Budgets of many Subagents at once: reserved before a request is sent, shared by parent and children.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::{envelope, priced, usage};
use crate::subagents::scripted_family::{
    self, ConcurrencyGauge, GO, check_family_logs, scripted_family, spawn_reply, text_reply,
    wait_reply,
};
use crate::support::binary_env::wait_for;
use crate::support::test_env::DEADLINE;
use crate::workflows::scripted_steps::{scripted_steps, workflow_spec};

/// Cost in dollars of a child's answer; an answer of the parent costs next to nothing.
const ANSWER: f64 = 0.11;

fn expensive(reply: Reply) -> Reply {
    reply.usage(10_000, 0, 1_000)
}

fn line(line: scripted_family::ParentReply) -> scripted_family::ParentReply {
    Box::new(move |request| line(request).usage(10, 0, 1))
}

/// A parent that starts forty children and waits for them.
fn many_children_script() -> ModelScript {
    let names: Vec<String> = (0..40).map(|n| format!("task {n}")).collect();
    let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
    let lines = [spawn_reply(&tasks, "explorer"), wait_reply(), text_reply("All done.")].map(line);
    scripted_family(lines, |task, _| expensive(Reply::says(&format!("did {task}"))))
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
        let env = priced(many_children_script(), &more).await;
        let ended = env.run(&["--json", "--max-cost", "0.2", GO]);
        ended.expect_code(6);
        let printed = envelope(&ended.stdout);
        assert_eq!((&printed["ok"], &printed["status"]), (&json!(false), &json!("incomplete")));
        assert_eq!(printed["error"]["kind"], "budget_exceeded", "{printed}");
        overshoots_by_one_answer(&usage(&env), 0.2);
        assert_eq!(check_family_logs(&env.workspace()), 40);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grandchildren_at_once_overshoot_a_cost_limit_by_one_answer() {
    let tasks = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let lines = [spawn_reply(&tasks, "worker"), wait_reply(), text_reply("All done.")].map(line);
    let script = scripted_family(lines, |task, step| match (task, step) {
        ("deep", _) => expensive(Reply::says("done")),
        (_, 0) => {
            let spawn = |reply: Reply, _| reply.call("spawn_agent", json!({"task": "deep"}));
            (0..3).fold(Reply::new(), spawn).usage(10, 0, 1)
        }
        (_, 1) => Reply::calls("wait_agent", json!({})).usage(10, 0, 1),
        _ => Reply::says("ok").usage(10, 0, 1),
    });
    let more = json!({"subagents": {"max_running": 8, "max_in_process": 64}});
    let env = priced(script, &more).await;
    let ended = env.run(&["--json", "--max-cost", "1", GO]);
    ended.expect_code(6);
    assert_eq!(envelope(&ended.stdout)["error"]["kind"], "budget_exceeded");
    overshoots_by_one_answer(&usage(&env), 1.0);
    check_family_logs(&env.workspace());
}

/// A token limit with room for one request at a time, because each reserves 2,000 tokens of output.
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
    // The child is answered once its parent is shown as waiting.
    let (release, released) = mpsc::sync_channel(8);
    let released = Mutex::new(released);
    let script =
        scripted_family(lines.map(|reply| line(scripted_family::always(reply))), move |_, _| {
            std::fs::write(workspace.get().unwrap().join("asked"), "").unwrap();
            let wait = || released.lock().unwrap().recv_timeout(DEADLINE);
            tokio::task::block_in_place(wait).unwrap();
            Reply::says("done").usage(10, 0, 1)
        });
    let env = priced(script, &json!({})).await;
    place.set(env.workspace()).unwrap();
    let args = ["--events", "--max-tokens-total", ROOM_FOR_ONE, GO];
    let mut waited = 0;
    let ended = tokio::task::block_in_place(|| {
        env.run_watched(&args, |line| {
            if line.contains(r#""status":"waiting_for_budget""#) {
                waited += 1;
                release.try_send(()).ok();
            }
        })
    });
    ended.expect_code(0);
    assert!(waited > 0, "{}", ended.stdout);
}

/// The second child has a time limit of five seconds and waits for seven.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_subagent_stands_still_while_it_waits_for_the_budget() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let spawn = Reply::calls("spawn_agent", json!({"task": "long", "timeout_ms": 60_000}))
        .call("spawn_agent", json!({"task": "short", "timeout_ms": 5_000}));
    let lines = [spawn, Reply::calls("wait_agent", json!({})), Reply::says("All done.")];
    let script = scripted_family(
        lines.map(|reply| line(scripted_family::always(reply))),
        move |task, step| {
            let is_asked = workspace.get().unwrap().join("asked");
            match (task, step) {
                ("long", _) => {
                    std::fs::write(is_asked, "").unwrap();
                    Reply::new().pause(Duration::from_secs(7)).text("done")
                }
                // This child comes first, so its next request waits.
                (_, 0) if !is_asked.exists() => Reply::calls("bash", until("asked")),
                _ => Reply::says("done"),
            }
            .usage(10, 0, 1)
        },
    );
    let env = priced(script, &json!({})).await;
    place.set(env.workspace()).unwrap();
    let ended = env.run(&["--json", "--max-tokens-total", ROOM_FOR_ONE, GO]);
    ended.expect_code(0);
    let id = envelope(&ended.stdout)["session_id"].as_str().unwrap().to_owned();
    let log = env.workspace().join(format!(".pixir/sessions/{id}.ndjson"));
    assert_eq!(
        (
            scripted_family::count_subagent_events(&log, "timed_out"),
            scripted_family::count_subagent_events(&log, "finished")
        ),
        (0, 2)
    );
    let requests = env.server.requests();
    let last = requests.iter().filter_map(scripted_family::last_task).next_back();
    assert_eq!(last.as_deref(), Some("short"), "the child waited for the other");
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_to_be_sent_again_lets_others_go() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let spawn = |task: &str| Reply::calls("spawn_agent", json!({"task": task, "role": "explorer"}));
    let first = spawn("a").call("bash", until("failed"));
    let lines = [first, spawn("b"), Reply::calls("wait_agent", json!({})), Reply::says("ok")];
    let script =
        scripted_family(lines.map(|reply| line(scripted_family::always(reply))), move |task, _| {
            let file = |name: &str| workspace.get().unwrap().join(name);
            if task == "a" && !file("b-asked").exists() {
                std::fs::write(file("failed"), "").unwrap();
                return Reply::status(503, r#"{"error": {"code": "server_is_overloaded"}}"#)
                    .header("retry-after", "1");
            }
            std::fs::write(file(&format!("{task}-asked")), "").unwrap();
            Reply::says("done").usage(10, 0, 1)
        });
    let env = priced(script, &json!({"retry": {"max_attempts": 60}})).await;
    place.set(env.workspace()).unwrap();
    env.run(&["--max-tokens-total", ROOM_FOR_ONE, GO]).expect_code(0);
    let requests = env.server.requests();
    let mut order: Vec<String> = requests.iter().filter_map(scripted_family::last_task).collect();
    // On a busy machine the request is sent more than once before the other one.
    order.dedup();
    assert_eq!(order, ["a", "b", "a"], "no child waits for a child that waits itself");
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generous_limit_leaves_children_side_by_side() {
    let seen = ConcurrencyGauge::default();
    let watched = seen.clone();
    let names: Vec<String> = (0..12).map(|n| format!("task {n}")).collect();
    let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
    let lines = [spawn_reply(&tasks, "explorer"), wait_reply(), text_reply("All done.")].map(line);
    let script = scripted_family(lines, move |_, step| {
        if step == 0 {
            watched.enter();
            let most = || wait_for(DEADLINE, || watched.most(), |most| *most >= 2);
            tokio::task::block_in_place(most);
            return expensive(Reply::calls("list", json!({})));
        }
        watched.leave();
        expensive(Reply::says("listed"))
    });
    let env = priced(script, &json!({})).await;
    let ended = env.run(&["--json", "--max-cost", "100", GO]);
    ended.expect_code(0);
    assert!(seen.most() >= 2, "the children work at the same time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_ends_at_its_budget_and_is_not_completed() {
    let tasks: Vec<String> = (0..8).map(|n| format!("task {n}")).collect();
    let env = priced(scripted_steps(|_| expensive(Reply::says("done"))), &json!({})).await;
    let spec = json!({"tasks": tasks, "budget": {"cost_usd": 0.2}});
    std::fs::write(env.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = env.run(&["delegate", "--spec", "spec.json", "--json"]);
    ended.expect_code(6);
    let printed = envelope(&ended.stdout);
    assert_eq!(
        (&printed["ok"], &printed["output"]["reason"]),
        (&json!(false), &json!("budget_exhausted"))
    );
    assert_eq!(
        (&printed["output"]["status"], &printed["status"]),
        (&json!("partial"), &json!("incomplete"))
    );
    assert_eq!(printed["error"]["kind"], "budget_exceeded");
    overshoots_by_one_answer(&usage(&env), 0.2);
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_budget_bounds_steps_that_run_side_by_side() {
    let script =
        scripted_steps(|_| Reply::says("checkpoint_status: checkpoint_ready").usage(100, 0, 10));
    let env = priced(script, &json!({})).await;
    let steps: Vec<Value> = (0..8)
        .map(|n| json!({"id": format!("s{n}"), "task": "look", "role": "explorer", "retries": 2}))
        .collect();
    let mut graph = workflow_spec(json!(steps));
    graph["budget"] = json!({"tokens": 150});
    std::fs::write(env.workspace().join("flow.json"), graph.to_string()).unwrap();
    let ended = env.run(&["workflow", "run", "flow.json", "--json"]);
    ended.expect_code(6);
    let printed = envelope(&ended.stdout);
    assert_eq!(printed["output"]["reason"], "budget_exhausted", "{printed}");
    assert_eq!(printed["error"]["kind"], "budget_exceeded");
    assert_eq!(usage(&env)["total_tokens"], 220, "the second answer exceeded the limit");
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lacks_optional_steps_because_of_its_budget_is_not_completed() {
    let script =
        scripted_steps(|_| Reply::says("checkpoint_status: checkpoint_ready").usage(100, 0, 10));
    let env = priced(script, &json!({})).await;
    let mut graph = workflow_spec(json!([
        {"id": "one", "task": "one", "role": "explorer"},
        {"id": "two", "task": "two", "role": "explorer", "depends_on": "one", "optional": true},
    ]));
    graph["budget"] = json!({"tokens": 100});
    std::fs::write(env.workspace().join("flow.json"), graph.to_string()).unwrap();
    let ended = env.run(&["workflow", "run", "flow.json", "--json"]);
    ended.expect_code(6);
    assert_eq!(envelope(&ended.stdout)["output"]["status"], "partial");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_session_ends_a_delegation_as_well() {
    let tasks: Vec<String> = (0..8).map(|n| format!("task {n}")).collect();
    let env = priced(scripted_steps(|_| expensive(Reply::says("done"))), &json!({})).await;
    std::fs::write(env.workspace().join("spec.json"), json!({"tasks": tasks}).to_string()).unwrap();
    let ended = env.run(&["delegate", "--spec", "spec.json", "--json", "--max-cost", "0.2"]);
    ended.expect_code(6);
    assert_eq!(envelope(&ended.stdout)["output"]["reason"], "budget_exhausted");
    overshoots_by_one_answer(&usage(&env), 0.2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_limit_of_a_delegation_needs_a_price() {
    let env = priced(scripted_steps(|_| Reply::says("done")), &json!({"prices": {}})).await;
    let spec = json!({"tasks": ["look"], "budget": {"cost_usd": 0.2}});
    std::fs::write(env.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = env.run(&["delegate", "--spec", "spec.json"]);
    ended.expect_code(2);
    assert!(ended.stderr.contains("the price of gpt-5.5 is not in `prices`"), "{}", ended.stderr);
    assert!(ended.stderr.contains("`budget.cost_usd`"), "{}", ended.stderr);
    assert!(env.server.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_run_out_of_budget_after_the_answer_are_no_success() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let answer: scripted_family::ParentReply = Box::new(move |_| {
        // The children use up the rest after the parent's answer.
        std::fs::write(workspace.get().unwrap().join("go"), "").unwrap();
        Reply::says("They are at it.")
    });
    let lines = [spawn_reply(&["a", "b"], "worker"), answer].map(line);
    let script = scripted_family(lines, |_, step| match step {
        0 => Reply::calls("bash", json!({"command": "until [ -e go ]; do sleep 0.05; done"}))
            .usage(10, 0, 1),
        1 => expensive(Reply::calls("list", json!({}))),
        _ => expensive(Reply::says("done")),
    });
    let env = priced(script, &json!({})).await;
    place.set(env.workspace()).unwrap();
    let ended = env.run(&["--json", "--max-cost", "0.2", GO]);
    ended.expect_code(6);
    let printed = envelope(&ended.stdout);
    assert_eq!((&printed["ok"], &printed["status"]), (&json!(false), &json!("incomplete")));
    assert_eq!(printed["output"], "They are at it.");
    assert_eq!(printed["error"]["kind"], "budget_exceeded");
    overshoots_by_one_answer(&usage(&env), 0.2);
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_starts_only_so_many_children() {
    let lines =
        [spawn_reply(&["a", "b", "c", "d", "e"], "explorer"), wait_reply(), text_reply("ok")];
    let env = priced(
        scripted_family(lines, |task, _| Reply::says(&format!("did {task}"))),
        &json!({"subagents": {"max_per_run": 3}}),
    )
    .await;
    env.run(&[GO]).expect_code(0);
    let parent = env.server.requests().into_iter().find(|request| {
        scripted_family::last_task(request).is_none() && !request.outputs().is_empty()
    });
    let text = parent.unwrap().outputs().join("\n");
    assert_eq!(text.matches("subagents.max_per_run").count(), 2, "{text}");
    assert_eq!(check_family_logs(&env.workspace()), 3);
    // A spec that exceeds the budget is refused before anything starts.
    let spec = json!({"tasks": ["a", "b", "c", "d"]});
    std::fs::write(env.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = env.run(&["delegate", "--spec", "spec.json", "--dry-run"]);
    ended.expect_code(2);
    assert!(ended.stderr.contains("subagents.max_per_run"), "{}", ended.stderr);
}
