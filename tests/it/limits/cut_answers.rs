//! Answers that the server cut off: kept, shown and never a success.

use pixir::SessionStatus;
use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use super::envelope;
use crate::subagents::scripted_family::{
    GO, check_family_logs, scripted_family, spawn_reply, subagent_events, text_reply, wait_reply,
};
use crate::support::acp_client::{AcpClient, joined_text};
use crate::support::{BinaryEnv, TestEnv};
use crate::workflows::scripted_steps::{scripted_steps, workflow_spec};

const HALF: &str = "The first half";

fn cut() -> Reply {
    Reply::says(HALF).incomplete("max_output_tokens")
}

/// A cut answer in a `completed` event; its status is `incomplete`, without a reason.
fn cut_without_reason() -> Reply {
    let usage = json!({"input_tokens": 100, "output_tokens": 20, "total_tokens": 120});
    let response = json!({"id": "resp_x", "status": "incomplete", "usage": usage});
    let last = json!({"type": "response.completed", "response": response});
    Reply::says(HALF).ends_silently().event("response.completed", &last)
}

/// A cut answer in a `completed` event and status; only the details say that it is incomplete.
fn cut_in_details() -> Reply {
    let usage = json!({"input_tokens": 100, "output_tokens": 20, "total_tokens": 120});
    let response = json!({"id": "resp_x", "status": "completed", "usage": usage,
        "incomplete_details": {"reason": "max_output_tokens"}});
    let last = json!({"type": "response.completed", "response": response});
    Reply::says(HALF).ends_silently().event("response.completed", &last)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_answer_is_printed_and_ends_without_success() {
    for (reply, reason) in [
        (cut(), "max_output_tokens"),
        (cut_without_reason(), "unknown"),
        (cut_in_details(), "max_output_tokens"),
    ] {
        let binary_env = BinaryEnv::new(
            BinaryEnv::new_mark(),
            ModelScript::new([reply.clone(), reply.clone(), Reply::says("The second half.")]),
        )
        .await;
        let ended = binary_env.run(&["hi"]);
        ended.expect_code(6);
        assert_eq!(ended.stdout, format!("{HALF}\n"));
        assert!(ended.stderr.contains("the answer was cut"), "{}", ended.stderr);
        assert!(ended.stderr.contains("pixir resume"), "{}", ended.stderr);
        assert_eq!(binary_env.server.requests().len(), 1, "the request is not repeated");
        let events = binary_env.events();
        let ends: Vec<&str> =
            events.iter().rev().take(2).map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(ends, ["turn_failed", "assistant_message"]);
        let failed = &events.last().unwrap()["data"];
        assert_eq!(failed["terminal_status"], "incomplete");
        assert_eq!(failed["details"]["reason"], reason);

        let ended = binary_env.run(&["--json", "resume", "--last", "again"]);
        ended.expect_code(6);
        let printed = envelope(&ended.stdout);
        assert_eq!((&printed["ok"], &printed["status"]), (&json!(false), &json!("incomplete")));
        assert_eq!(printed["output"], HALF);
        assert_eq!(printed["error"]["kind"], "incomplete");
        binary_env.run(&["resume", "--last", "go on"]).expect_code(0);
        let last = binary_env.server.requests().pop().unwrap();
        let seen = serde_json::to_string(last.input()).unwrap();
        assert_eq!(seen.matches(HALF).count(), 2, "the model receives its cut answer: {seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_gets_the_reason_why_an_answer_was_cut() {
    let binary_env =
        BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([cut(), cut_without_reason()]))
            .await;
    tokio::task::block_in_place(|| {
        let mut client = AcpClient::initialized(&binary_env, json!({}));
        let id = client.new_session(&binary_env.workspace());
        for _ in 0..2 {
            let answer = client.run_prompt(&id, "hi").unwrap();
            assert_eq!(answer["stopReason"], "max_tokens");
            let text = joined_text(&client.updates(), "agent_message_chunk");
            assert!(text.contains(HALF) && text.contains("the answer was cut"), "{text}");
        }
    });
}

#[tokio::test]
async fn a_child_whose_answer_was_cut_has_not_completed() {
    let script = scripted_family(
        [spawn_reply(&["look"], "explorer"), wait_reply(), text_reply("ok")],
        |_, _| cut(),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let life = subagent_events(conversation.log_path()).pop().unwrap();
    assert_eq!((&life["event"], &life["reason"]), (&json!("failed"), &json!("incomplete")));
    assert!(life["summary"].as_str().unwrap().contains(HALF), "{life}");
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_answer_was_cut_is_not_ready() {
    let script = scripted_steps(|_| {
        Reply::says("checkpoint_status: checkpoint_ready").incomplete("max_output_tokens")
    });
    let env = TestEnv::with_script(script).await;
    let graph =
        workflow_spec(json!([{"id": "one", "task": "one", "role": "explorer", "retries": 2}]));
    env.write("flow.json", graph.to_string());
    let printed =
        env.run_pixir(&["workflow", "run", "flow.json", "--json"]).assert_exit_code(6).envelope();
    assert_eq!(printed["output"]["failed_steps"], json!(["one"]));
    assert_eq!(printed["output"]["steps"][0]["reason"], "incomplete");
    assert_eq!(env.requests().len(), 1, "the same request would be cut again");
}
