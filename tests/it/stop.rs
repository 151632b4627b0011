//! Stops: signals, a second process, a full disk. The run ends as documented, and the Session can continue.

use std::fs;
use std::time::{Duration, Instant};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::verify_log;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::BinaryEnv;
use crate::support::binary_env::{AtSizeLimit, wait_for};
use crate::support::test_env::DEADLINE;
use crate::support::torture::{self, SuiteSize};

const GO_ON: &str = "go on";
const WENT_ON: &str = "I went on.\n";

/// A test environment whose model answers `go on` itself, and other prompts by `reply`.
async fn new_binary_env(
    reply: impl Fn(&ReceivedRequest, &str) -> Reply + Send + Sync + 'static,
) -> BinaryEnv {
    let mark = BinaryEnv::new_mark();
    let own = mark.clone();
    let script = ModelScript::answering(move |request| match request.user_texts().last() {
        Some(&GO_ON) => Reply::says(WENT_ON.trim_end()),
        _ => reply(request, &own),
    });
    BinaryEnv::new(mark, script).await
}

/// Waits until a request has arrived.
fn wait_for_request(env: &BinaryEnv) {
    assert!(wait_for(DEADLINE, || !env.server.requests().is_empty(), |is| *is), "no request");
}

/// Waits until a command that carries the mark runs.
fn wait_for_command(env: &BinaryEnv) {
    let runs = |line: &String| line.contains(" 300");
    let is_seen = || env.survivors().iter().any(runs);
    assert!(wait_for(DEADLINE, is_seen, |is| *is), "no command");
}

/// Checks that the next run continues the Session, and that the Log verifies.
#[track_caller]
fn assert_goes_on(env: &BinaryEnv) {
    let (id, _) = env.session().unwrap();
    let ended = env.run(&["resume", id.as_str(), GO_ON]);
    ended.expect_code(0);
    assert_eq!(ended.stdout, WENT_ON);
    let verified = verify_log(&env.workspace(), &id).unwrap();
    assert!(verified.ok && verified.open_turn.is_none(), "{:?}", verified.breaks);
    env.assert_nothing_survives();
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_during_the_stream_ends_the_turn_durably() {
    for signal in SIGNALS {
        for text in ["", "Half an ans"] {
            let env = new_binary_env(move |_, _| {
                let reply = Reply::new();
                if text.is_empty() { reply.stalls() } else { reply.text(text).stalls() }
            })
            .await;
            tokio::task::block_in_place(|| {
                let running = env.start(&["begin now"]);
                wait_for_request(&env);
                running.signal(signal);
                running.end().expect_code(130);
                let events = env.events();
                let last = events.last().unwrap();
                assert_eq!(last["type"], "turn_failed", "{signal:?}: {:?}", types(&events));
                assert_eq!(last["data"]["terminal_status"], "interrupted", "{signal:?}");
                assert_goes_on(&env);
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_during_a_command_kills_all_of_it_and_answers_the_call() {
    for signal in SIGNALS {
        let env = new_binary_env(|_, mark| {
            let command = "setsid bash -c 'exec -a MARK sleep 300' & exec -a MARK sleep 300";
            Reply::calls("bash", json!({"command": command.replace("MARK", mark)}))
        })
        .await;
        tokio::task::block_in_place(|| {
            let running = env.start(&["begin now"]);
            wait_for_command(&env);
            running.signal(signal);
            running.end().expect_code(130);
            env.assert_nothing_survives();
            let events = env.events();
            assert_eq!(types(&events)[3..], ["tool_call", "tool_result", "turn_failed"]);
            assert_eq!(events[5]["data"]["terminal_status"], "interrupted");
            assert_goes_on(&env);
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_exits_at_once_and_leaves_nothing() {
    let env = new_binary_env(|_, mark| {
        // The command ignores the first signals of an interrupt; the grace period is longer than the test.
        let command = "trap '' TERM INT HUP; touch deaf; \
                       while :; do bash -c 'exec -a MARK sleep 300'; done";
        Reply::calls("bash", json!({"command": command.replace("MARK", mark)}))
    })
    .await;
    let minute = json!({"turn_ms": 60_000, "process_ms": 60_000});
    env.configure(&json!({"durability": "none", "grace": minute}));
    tokio::task::block_in_place(|| {
        let mut running = env.start(&["begin now"]);
        // The file shows that the signals are ignored; the command line would appear earlier.
        let deaf = env.workspace().join("deaf");
        assert!(wait_for(DEADLINE, || deaf.exists(), |is| *is), "no command");
        wait_for_command(&env);
        running.signal(Signal::INT);
        let is_deaf = wait_for(
            Duration::from_millis(300),
            || running.child.try_wait().unwrap().is_some(),
            |ended| *ended,
        );
        assert!(!is_deaf, "the first signal waits for the command");
        let began = Instant::now();
        running.signal(Signal::INT);
        running.end().expect_code(130);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        env.assert_nothing_survives();
        let (id, _) = env.session().unwrap();
        let verified = verify_log(&env.workspace(), &id).unwrap();
        let open = verified.open_turn.expect("the Turn is still open");
        assert_eq!((verified.ok, open.number, open.pending_calls.len()), (true, 1, 1));
        assert_goes_on(&env);
        let events = env.events();
        assert_eq!(types(&events)[4..6], ["tool_result", "turn_failed"], "{:?}", types(&events));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_is_refused_with_the_holder_of_the_session() {
    let env = new_binary_env(|_, _| Reply::new().text("Thinking").stalls()).await;
    tokio::task::block_in_place(|| {
        let running = env.start(&["begin now"]);
        wait_for_request(&env);
        let (id, path) = env.session().unwrap();
        let before = fs::read(&path).unwrap();
        let pid = running.child.id();
        let ended = env.run(&["resume", id.as_str(), GO_ON, "--json"]);
        ended.expect_code(5);
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(envelope["error"]["kind"], "session_busy");
        assert_eq!(envelope["error"]["details"]["pid"], pid, "{envelope}");
        assert!(ended.stderr.contains(&pid.to_string()), "{}", ended.stderr);
        assert_eq!(fs::read(&path).unwrap(), before, "the second one wrote nothing");
        assert_eq!(env.run(&["verify", id.as_str()]).status.code(), Some(0), "reading works");
        running.signal(Signal::KILL);
        drop(running);
        assert_goes_on(&env);
    });
}

/// Replies of a Turn whose every step leaves a file.
fn leave_files(request: &ReceivedRequest, _: &str) -> Reply {
    let touch = |name: &str| json!({"command": format!("touch {name}; echo {name} exists now")});
    match request.outputs().len() {
        0 => Reply::new().reasoning("One at a time.").text("First.").call("bash", touch("one")),
        1 => Reply::calls("write", json!({"path": "two", "content": "2\n"})),
        2 => Reply::new().call("bash", touch("three")).call("bash", touch("four")),
        _ => Reply::says("All four are there."),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_the_turn_before_it_acts() {
    let size = SuiteSize::from_environment();
    let seed = torture::seed();
    let began = Instant::now();
    let mut random = fastrand::Rng::with_seed(seed);
    let rehearsal = new_binary_env(leave_files).await;
    let length = tokio::task::block_in_place(|| {
        rehearsal.run(&["begin now"]).expect_code(0);
        fs::metadata(rehearsal.session().unwrap().1).unwrap().len()
    });
    let count = size.choose(12, 100);
    let mut without_session = 0;
    for round in 0..count {
        // The last bytes may not be needed, because times have more or fewer digits.
        let limit = if round == 0 { 0 } else { random.u64(0..length - 40) };
        let env = new_binary_env(leave_files).await;
        without_session += tokio::task::block_in_place(|| check_full_disk(&env, limit));
    }
    let is_mixed = (1..count).contains(&without_session);
    assert!(is_mixed, "{without_session} of {count} runs had no room for a Session");
    torture::print_summary(&format!(
        "full disk: limits={count} of {length} bytes, without a Session={without_session}, \
         seed={seed}, {:.1} s",
        began.elapsed().as_secs_f64(),
    ));
}

/// Runs with this limit on file sizes; gives 1 when there was no room for a Session, else 0.
fn check_full_disk(env: &BinaryEnv, limit: u64) -> usize {
    let ended = env.start_limited(&["begin now"], limit, AtSizeLimit::Refuse).end();
    assert_eq!(ended.status.code(), Some(7), "{limit}: {ended:?}");
    assert!(ended.stderr.contains("cannot be written"), "{limit}: {}", ended.stderr);
    env.assert_nothing_survives();
    let Some((id, path)) = env.session() else { return 1 };
    let log = fs::read(&path).unwrap();
    assert!(log.len() as u64 <= limit, "{limit}");
    let verified = verify_log(&env.workspace(), &id).unwrap();
    assert!(verified.ok, "{limit}: what was written stays readable: {:?}", verified.breaks);
    let events = env.events();
    let called = events.iter().filter(|event| event["type"] == "tool_call").count();
    for (name, number) in ["one", "two", "three", "four"].iter().zip(1..) {
        let exists = env.workspace().join(name).exists();
        assert!(!exists || called >= number, "{limit}: {name} was made and not recorded");
    }
    let answered = events.iter().filter(|event| event["type"] == "provider_usage").count();
    let asked = env.server.requests().len();
    let messages = events.iter().filter(|event| event["type"] == "user_message").count();
    assert!(asked <= messages * (answered + 1), "{limit}: {asked} requests, {:?}", types(&events));
    assert_goes_on(env);
    usize::from(log.is_empty())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_that_pixir_blocks_are_not_blocked_in_commands() {
    let env = new_binary_env(|request, _| match request.outputs().len() {
        0 => Reply::calls("bash", json!({"command": "grep -E 'Sig(Blk|Ign)' /proc/self/status"})),
        _ => Reply::says("Seen."),
    })
    .await;
    tokio::task::block_in_place(|| {
        env.run(&["begin now"]).expect_code(0);
        let requests = env.server.requests();
        let seen = requests.last().unwrap().outputs()[0].to_owned();
        assert!(seen.contains("SigBlk:\t0000000000000000"), "{seen}");
        let ignored = seen.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect(&seen);
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        let file_size = 1 << (nix::libc::SIGXFSZ - 1);
        assert_eq!(ignored & file_size, 0, "{seen}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_cannot_be_written_costs_no_request() {
    let env = new_binary_env(|_, _| Reply::says("never")).await;
    tokio::task::block_in_place(|| {
        // Not even root can make a folder here.
        let ended = env.run(&["--cwd", "/proc", "begin now"]);
        ended.expect_code(7);
        assert!(ended.stderr.contains("cannot be written"), "{}", ended.stderr);
        assert!(env.server.requests().is_empty());
    });
}
