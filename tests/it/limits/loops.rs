//! Models that repeat themselves: cycles of calls with unchanged results are refused, and then ended.

use pixir::SessionStatus;
use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::envelope;
use crate::support::{BinaryEnv, TestEnv};

fn echo(word: &str) -> Value {
    json!({"command": format!("echo {word}")})
}

/// A model that never stops: its n-th response makes the calls that the function gives.
fn endless_calls(
    calls: impl Fn(usize) -> Vec<(&'static str, Value)> + Send + Sync + 'static,
) -> ModelScript {
    let next = std::sync::atomic::AtomicUsize::new(0);
    ModelScript::answering(move |_| {
        let number = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let calls = calls(number);
        calls.into_iter().fold(Reply::new(), |reply, (name, args)| reply.call(name, args))
    })
}

#[tokio::test]
async fn calls_in_rotation_are_refused_in_their_fourth_round_and_then_ended() {
    for length in [1, 2, 3, 8] {
        let env = TestEnv::with_script(endless_calls(move |number| {
            vec![("bash", echo(&format!("{}", number % length)))]
        }))
        .await;
        let (conversation, status) = env.run_turn("go").await;
        let SessionStatus::Error { terminal_status, error } = status else { panic!("{status:?}") };
        assert_eq!(terminal_status, "doom_loop", "a cycle of {length}");
        assert!(error.next_actions().concat().contains("pixir resume"), "{error:?}");
        assert_eq!(env.requests().len(), 3 * length + 3, "a cycle of {length}");
        let transcript = env.transcript(&conversation);
        assert_eq!(transcript.matches("error doom_loop").count(), 3, "{transcript}");
    }
}

#[tokio::test]
async fn the_order_of_parallel_calls_does_not_hide_a_cycle() {
    let env = TestEnv::with_script(endless_calls(|number| {
        let mut calls = vec![
            ("read", json!({"path": "a"})),
            ("read", json!({"path": "b"})),
            ("read", json!({"path": "c"})),
        ];
        calls.rotate_left(number % 3);
        if number % 2 == 1 {
            calls.reverse();
        }
        calls
    }))
    .await;
    for name in ["a", "b", "c"] {
        env.write(name, name);
    }
    let (conversation, status) = env.run_turn("go").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "doom_loop");
    assert_eq!(env.requests().len(), 6, "three rounds, two refusals, the end");
    let transcript = env.transcript(&conversation);
    assert_eq!(transcript.matches("tool_result ok=true").count(), 9, "{transcript}");
}

#[tokio::test]
async fn the_file_of_a_long_output_does_not_hide_a_cycle() {
    let env =
        TestEnv::with_script(endless_calls(|_| vec![("bash", json!({"command": "seq 30000"}))]))
            .await;
    let (_, status) = env.run_turn("go").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    let requests = env.requests();
    assert_eq!(terminal_status, "doom_loop");
    let output = requests[1].outputs()[0].to_owned();
    assert!(output.contains("[full output"), "{output}");
    assert_eq!(requests.len(), 6, "three rounds, two refusals, the end");
}

#[tokio::test]
async fn a_rotation_whose_results_change_is_work() {
    let env =
        TestEnv::with_script(ModelScript::answering(|request| match request.outputs().len() {
            20 => Reply::says("ok"),
            count if count % 2 == 0 => {
                Reply::calls("bash", json!({"command": "echo x >> f; wc -c < f"}))
            }
            _ => Reply::calls("bash", echo("same")),
        }))
        .await;
    let (_, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
}

#[tokio::test]
async fn to_look_at_what_still_runs_is_no_cycle() {
    let env =
        TestEnv::with_script(ModelScript::answering(|request| match request.outputs().len() {
            0 => Reply::calls("bash", json!({"command": "sleep 600", "background": true})),
            15 => Reply::says("ok"),
            count if count % 2 == 0 => Reply::calls("bash", echo("tick")),
            _ => Reply::calls("bash_output", json!({"id": "b1"})),
        }))
        .await;
    let (conversation, status) = env.run_turn("go").await;
    let transcript = env.transcript(&conversation);
    assert_eq!(status, SessionStatus::Done, "{transcript}");
    assert_eq!(transcript.matches("[b1 runs]").count(), 8, "{transcript}");
}

#[tokio::test]
async fn to_write_the_same_to_what_still_runs_is_a_cycle() {
    let env =
        TestEnv::with_script(ModelScript::answering(|request| match request.outputs().len() {
            0 => Reply::calls("bash", json!({"command": "sleep 600", "background": true})),
            10 => Reply::says("ok"),
            _ => Reply::calls("bash_input", json!({"id": "b1", "text": "y\n"})),
        }))
        .await;
    let (conversation, status) = env.run_turn("go").await;
    let transcript = env.transcript(&conversation);
    let SessionStatus::Error { terminal_status, .. } = status else {
        panic!("{status:?}: {transcript}")
    };
    assert_eq!(terminal_status, "doom_loop");
    assert_eq!(env.requests().len(), 7, "the start, three rounds, two refusals, the end");
}

#[tokio::test]
async fn to_look_again_and_again_at_what_is_over_or_never_was_is_a_cycle() {
    let looks = [
        ("bash_output", json!({"id": "b7"})),
        ("list_agents", json!({})),
        ("wait_agent", json!({})),
    ];
    for (tool, args) in looks {
        let env = TestEnv::with_script(endless_calls(move |_| vec![(tool, args.clone())])).await;
        let (_, status) = env.run_turn("go").await;
        let SessionStatus::Error { terminal_status, .. } = status else {
            panic!("{tool}: {status:?}")
        };
        assert_eq!(terminal_status, "doom_loop", "{tool}");
        assert_eq!(env.requests().len(), 6, "{tool}: three rounds, two refusals, the end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_has_five_hundred_calls_of_the_model_by_default() {
    let script =
        endless_calls(|number| vec![("bash_output", json!({"id": format!("none-{number}")}))]);
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let run = binary_env.run(&["config", "get", "max_iterations"]);
    assert!(run.expect_code(0).stdout.contains("500"), "{run:?}");
    let run = binary_env.run(&["config", "get", "max_iterations", "--max-iterations", "0"]);
    assert_eq!(run.expect_code(0).stdout.split_whitespace().next_back(), Some("0"), "{run:?}");
    let ended = binary_env.run(&["--json", "--max-iterations", "3", "go on"]);
    ended.expect_code(6);
    let printed = envelope(&ended.stdout);
    assert_eq!(printed["error"]["kind"], "iteration_cap");
    assert!(ended.stderr.contains("--max-iterations"), "{}", ended.stderr);
    assert_eq!(binary_env.server.requests().len(), 3);
    // A Workspace may lower the limit but not raise it.
    std::fs::create_dir_all(binary_env.workspace().join(".pixir")).unwrap();
    let config = binary_env.workspace().join(".pixir/config.json");
    std::fs::write(&config, json!({"max_iterations": 0}).to_string()).unwrap();
    let run = binary_env.run(&["config", "get", "max_iterations"]);
    assert!(run.expect_code(0).stdout.contains("500"), "{run:?}");
    assert!(run.stderr.contains("would raise the limit"), "{run:?}");
    std::fs::write(&config, json!({"max_iterations": 7}).to_string()).unwrap();
    let run = binary_env.run(&["config", "get", "max_iterations"]);
    assert!(run.expect_code(0).stdout.contains('7'), "{run:?}");
}
