//! The whole process killed during a delegation: no process survives, no child is lost, and
//! parent and children can continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use super::scripted_family::{
    self, GO, check_family_logs, last_task, read_events, subagent_events,
};
use crate::support::BinaryEnv;
use crate::support::test_env::log_files;
use crate::support::torture::{self, SuiteSize};

/// A parent with three children, one of which has a child; most of them write, and one runs a command.
fn script(mark: &str, requests: Arc<AtomicUsize>) -> ModelScript {
    let mark = mark.to_owned();
    ModelScript::answering(move |request| {
        requests.fetch_add(1, Ordering::SeqCst);
        let task = last_task(request);
        let step = request.outputs().len();
        let spawn = |task: &str| json!({"task": task});
        match (task.as_deref(), step) {
            (None, 0) if request.user_texts().contains(&"go on") => Reply::says("I went on."),
            (None, 0) => Reply::new()
                .call("spawn_agent", spawn("deep"))
                .call("spawn_agent", spawn("flat"))
                .call("spawn_agent", spawn("slow")),
            (Some("deep"), 0) => Reply::calls("spawn_agent", spawn("grandchild")),
            (None, 3) | (Some("deep"), 1) => Reply::calls("wait_agent", json!({})),
            (Some("slow"), 0) => {
                let command = format!("sleep 0.1; echo {mark} > slow.txt");
                Reply::calls("bash", json!({"command": command}))
            }
            (Some(name @ ("flat" | "grandchild")), 0) => {
                let path = format!("{name}.txt");
                let content = format!("{name} was here\n");
                Reply::calls("write", json!({"path": path, "content": content}))
            }
            (Some(name), _) => Reply::says(&format!("{name} is done")),
            (None, _) => Reply::says("All done."),
        }
    })
}

/// The Log of the root Session.
fn root(env: &BinaryEnv) -> Option<std::path::PathBuf> {
    log_files(&env.workspace()).into_iter().find(|path| {
        let first = read_events(path).into_iter().next();
        first.is_some_and(|first| first["data"]["parent_session_id"].is_null())
    })
}

/// Kills one process; gives whether the kill came in time, and how many detached children were resumed.
async fn kill_and_resume(seed: u64) -> (bool, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mark = BinaryEnv::new_mark();
    let requests = Arc::new(AtomicUsize::new(0));
    let env = BinaryEnv::new(mark.clone(), script(&mark, requests.clone())).await;
    let until = random.usize(0..13);
    let later = Duration::from_micros(random.u64(0..60_000));
    tokio::task::block_in_place(|| {
        let mut running = env.start(&[GO]);
        let is_there = || requests.load(Ordering::SeqCst) >= until;
        let over = |running: &mut crate::support::binary_env::RunningProcess| {
            running.child.try_wait().unwrap().is_some()
        };
        while !is_there() && !over(&mut running) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(later);
        let was_killed = !over(&mut running);
        if was_killed {
            running.signal(rustix::process::Signal::KILL);
        }
        running.end();
        env.assert_nothing_survives();
        let Some(path) = root(&env) else { return (was_killed, 0) };
        let id = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let status = env.run(&["agents", "status", &id, "--json"]);
        assert_eq!(status.status.code(), Some(0), "seed {seed}: {status:?}");
        let resumed = env.run(&["resume", &id, "go on"]);
        assert_eq!(resumed.status.code(), Some(0), "seed {seed}: {resumed:?}");
        let mut continued = 0;
        // A detached child is continued by its own command, and then its own children are.
        for _ in 0..2 {
            for log in log_files(&env.workspace()) {
                for life in subagent_events(&log).iter().filter(|life| life["event"] == "detached")
                {
                    if let Some(child) = life["child_session_id"].as_str() {
                        let next_actions = life["next_actions"].to_string();
                        assert!(
                            next_actions.contains(&format!("pixir resume {child}")),
                            "{next_actions}"
                        );
                        let again = env.run(&["resume", child, "more"]);
                        assert_eq!(again.status.code(), Some(0), "seed {seed}: {again:?}");
                        continued += 1;
                    }
                }
            }
        }
        check_family_logs(&env.workspace());
        for name in ["flat", "grandchild"] {
            let text = std::fs::read_to_string(env.workspace().join(format!("{name}.txt")));
            assert!(text.is_err() || text.unwrap() == format!("{name} was here\n"), "seed {seed}");
        }
        let queued = scripted_family::subagent_events(&path)
            .iter()
            .filter(|life| life["event"] == "queued")
            .count();
        assert!(queued <= 3, "seed {seed}: {queued}");
        env.assert_nothing_survives();
        (was_killed, continued)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_that_is_killed_with_its_children_loses_none_of_them() {
    let count = SuiteSize::from_environment().choose(10, 100);
    let seed = torture::seed();
    let mut killed = 0;
    let mut continued = 0;
    for pair in (seed..seed + count as u64).collect::<Vec<_>>().chunks(2) {
        let dying = pair.iter().map(|seed| tokio::spawn(kill_and_resume(*seed)));
        for (ended, seed) in futures_util::future::join_all(dying).await.into_iter().zip(pair) {
            let (was_killed, resumed) =
                ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            killed += usize::from(was_killed);
            continued += resumed;
        }
    }
    assert!(killed * 2 > count, "{killed} of {count} were killed in time");
    assert!(continued > 0, "no detached child was resumed");
    torture::print_summary(&format!(
        "{count} deaths with children from seed {seed}, {killed} in time"
    ));
}
