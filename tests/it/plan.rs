//! The model's plan: recorded, shown, and restored after a resume.

use pixir::scripted::{ModelScript, Reply};
use pixir::{PermissionMode, SessionStatus};
use serde_json::{Value, json};

use crate::support::test_env::send_and_finish;
use crate::support::{BinaryEnv, TestEnv};

fn plan(steps: &[(&str, &str)]) -> Value {
    explained("secret-of-test-env", steps)
}

fn explained(why: &str, steps: &[(&str, &str)]) -> Value {
    let step = |(step, status): &(&str, &str)| json!({"step": step, "status": status});
    json!({"explanation": why, "plan": steps.iter().map(step).collect::<Vec<_>>()})
}

#[tokio::test]
async fn a_plan_is_recorded_between_its_call_and_its_result_also_in_read_only() {
    let mut env = TestEnv::with_replies([
        Reply::calls("update_plan", plan(&[("look", "in_progress"), ("change", "pending")])),
        Reply::calls("update_plan", plan(&[("look", "in_progress"), ("more", "in_progress")])),
        Reply::calls("update_plan", plan(&[("look", "completed"), ("change", "in_progress")])),
        Reply::says("Planned."),
        Reply::says("I know."),
    ])
    .await;
    env.config.permission_mode = PermissionMode::ReadOnly;
    let (conversation, status) = env.run_turn("plan it").await;
    assert_eq!(status, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    let lines: Vec<&str> = transcript.lines().filter(|line| !line.contains("usage")).collect();
    let short: Vec<&str> = lines.iter().map(|line| line.split(" {").next().unwrap()).collect();
    insta::assert_snapshot!(short.join("\n"), @r#"
    0 session_started build read_only
    1 user_message "plan it"
    3 tool_call update_plan
    4 permission_decision allow reading by mode
    5 plan
    6 tool_result ok=true "plan: 0 of 2 done; now: look"
    8 tool_call update_plan
    9 tool_result error invalid_args
    11 tool_call update_plan
    12 permission_decision allow reading by mode
    13 plan
    14 tool_result ok=true "plan: 1 of 2 done; now: change"
    16 assistant_message final "Planned."
    "#);
    let id = conversation.id().clone();
    drop(conversation);
    let resumed = env.resume(&id).await;
    let history = resumed.history().await.unwrap();
    let current = history.current_plan().unwrap();
    let steps: Vec<_> =
        current.entries.iter().map(|one| (one.content.as_str(), one.status.as_str())).collect();
    assert_eq!(steps, [("look", "completed"), ("change", "in_progress")]);
    assert_eq!(current.explanation.as_deref(), Some("[redacted:STORY_TOKEN]"));
    send_and_finish(&resumed, "what was the plan?").await;
    let requests = env.requests();
    let input = requests.last().unwrap().input();
    let of_type = |kind: &str| input.iter().filter(|item| item["type"] == kind).count();
    assert_eq!((of_type("function_call"), of_type("function_call_output")), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_shown_once_and_again_when_a_session_goes_on() {
    let steps = [("look", "completed"), ("change", "in_progress")];
    let script = ModelScript::new([
        Reply::calls("update_plan", explained("first things first", &steps)),
        Reply::says("Planned."),
        Reply::says("Gone on."),
    ]);
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let (first, second, quiet) = tokio::task::block_in_place(|| {
        let first = binary_env.run(&["plan it"]);
        let (id, _) = binary_env.session().unwrap();
        let second = binary_env.run(&["resume", id.as_str(), "go on"]);
        let quiet = binary_env.run(&["resume", id.as_str(), "go on", "--quiet"]);
        (first, second, quiet)
    });
    let shown = "plan 1/2: first things first\n  [x] look\n  [>] change\n";
    assert_eq!(first.expect_code(0).stderr.matches(shown).count(), 1, "{}", first.stderr);
    assert!(!first.stderr.contains("update_plan"), "{}", first.stderr);
    assert_eq!(first.stdout, "Planned.\n");
    let reminded = second.expect_code(0).stderr.matches("  [>] change\n").count();
    assert_eq!((reminded, second.stdout.as_str()), (1, "Gone on.\n"));
    assert!(!quiet.stderr.contains("plan"), "{}", quiet.stderr);
}
