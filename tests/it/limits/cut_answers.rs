//! Answers that the server cut: kept, shown and never a success.

use pixir::Status;
use pixir::scripted::{Reply, Script};
use serde_json::json;

use super::envelope;
use crate::subagents::cast::{GO, agree, cast, lives, says, spawns, waits};
use crate::support::editor::{Editor, text_of};
use crate::support::{House, Stage};
use crate::workflows::troupe::{troupe, workflow};

const HALF: &str = "The first half";

fn cut() -> Reply {
    Reply::says(HALF).incomplete("max_output_tokens")
}

/// A server that calls a cut answer completed, and says the truth in its status without a reason.
fn cut_without_reason() -> Reply {
    let usage = json!({"input_tokens": 100, "output_tokens": 20, "total_tokens": 120});
    let response = json!({"id": "resp_x", "status": "incomplete", "usage": usage});
    let last = json!({"type": "response.completed", "response": response});
    Reply::says(HALF).ends_silently().event("response.completed", &last)
}

/// A server that calls a cut answer completed, also in its status, and says the truth in the details.
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
        let stage = Stage::new(
            Stage::mark(),
            Script::new([reply.clone(), reply.clone(), Reply::says("The second half.")]),
        )
        .await;
        let ended = stage.run(&["hi"]);
        ended.expect_code(6);
        assert_eq!(ended.stdout, format!("{HALF}\n"));
        assert!(ended.stderr.contains("the answer was cut"), "{}", ended.stderr);
        assert!(ended.stderr.contains("pixir resume"), "{}", ended.stderr);
        assert_eq!(stage.server.requests().len(), 1, "it is not tried again");
        let events = stage.events();
        let ends: Vec<&str> =
            events.iter().rev().take(2).map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(ends, ["turn_failed", "assistant_message"]);
        let failed = &events.last().unwrap()["data"];
        assert_eq!(failed["terminal_status"], "incomplete");
        assert_eq!(failed["details"]["reason"], reason);

        let ended = stage.run(&["--json", "resume", "--last", "again"]);
        ended.expect_code(6);
        let said = envelope(&ended.stdout);
        assert_eq!((&said["ok"], &said["status"]), (&json!(false), &json!("incomplete")));
        assert_eq!(said["output"], HALF);
        assert_eq!(said["error"]["kind"], "incomplete");
        stage.run(&["resume", "--last", "go on"]).expect_code(0);
        let last = stage.server.requests().pop().unwrap();
        let seen = serde_json::to_string(last.input()).unwrap();
        assert_eq!(seen.matches(HALF).count(), 2, "the model reads what it wrote: {seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_is_told_that_the_answer_was_cut() {
    let stage = Stage::new(Stage::mark(), Script::new([cut(), cut_without_reason()])).await;
    tokio::task::block_in_place(|| {
        let mut editor = Editor::greeted(&stage, json!({}));
        let id = editor.session(&stage.workspace());
        for _ in 0..2 {
            let answer = editor.turn(&id, "hi").unwrap();
            assert_eq!(answer["stopReason"], "max_tokens");
            let text = text_of(&editor.updates(), "agent_message_chunk");
            assert!(text.contains(HALF) && text.contains("the answer was cut"), "{text}");
        }
    });
}

#[tokio::test]
async fn a_child_whose_answer_was_cut_has_not_completed() {
    let script = cast([spawns(&["look"], "explorer"), waits(), says("ok")], |_, _| cut());
    let house = House::scripted(script).await;
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let life = lives(conversation.log_path()).pop().unwrap();
    assert_eq!((&life["event"], &life["reason"]), (&json!("failed"), &json!("incomplete")));
    assert!(life["summary"].as_str().unwrap().contains(HALF), "{life}");
    agree(&house.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_answer_was_cut_is_not_ready() {
    let script = troupe(|_| {
        Reply::says("checkpoint_status: checkpoint_ready").incomplete("max_output_tokens")
    });
    let house = House::scripted(script).await;
    let graph = workflow(json!([{"id": "one", "task": "one", "role": "explorer", "retries": 2}]));
    house.write("flow.json", graph.to_string());
    let said = house.pixir(&["workflow", "run", "flow.json", "--json"]).exits(6).envelope();
    assert_eq!(said["output"]["failed_steps"], json!(["one"]));
    assert_eq!(said["output"]["steps"][0]["reason"], "incomplete");
    assert_eq!(house.requests().len(), 1, "the same request would be cut again");
}
