//! What a person and a script are told when a Provider does not answer.

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use crate::support::Stage;

struct Told {
    exit: i32,
    envelope: Value,
    stderr: String,
    requests: usize,
}

async fn told(reply: Reply) -> Told {
    let script = Script::answering(move |_| reply.clone());
    let stage = Stage::new(Stage::mark(), script).await;
    stage.configure(
        &json!({"durability": "none", "retry": {"max_attempts": 2, "base_ms": 1, "cap_ms": 2}}),
    );
    let ended = stage.run(&["--json", "hi"]);
    let (id, _) = stage.session().unwrap();
    assert!(pixir::verify(&stage.workspace(), &id).unwrap().ok);
    Told {
        exit: ended.status.code().unwrap(),
        envelope: serde_json::from_str(&ended.stdout).unwrap(),
        stderr: ended.stderr,
        requests: stage.server.requests().len(),
    }
}

fn refusal(status: u16, error: &Value) -> Reply {
    Reply::status(status, json!({ "error": error }).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_refusal_has_its_exit_its_words_and_its_way_on() {
    let words = "no \u{1b}[31mway\u{1b}[0m";
    let rows = [
        (
            refusal(400, &json!({"code": "context_length_exceeded", "message": words})),
            1,
            "context_overflow",
            "new Session",
            1,
        ),
        (
            refusal(429, &json!({"code": "insufficient_quota", "message": words})),
            1,
            "quota_exceeded",
            "billing",
            1,
        ),
        (refusal(429, &json!({"message": words})), 1, "rate_limited", "wait", 2),
        (
            refusal(400, &json!({"code": "model_not_found", "message": words})),
            1,
            "model_not_supported",
            "pixir models",
            1,
        ),
        (
            refusal(400, &json!({"code": "cyber_policy", "message": words})),
            6,
            "provider_refusal",
            "rephrase",
            1,
        ),
        (refusal(401, &json!({"message": words})), 4, "auth_refused", "OPENAI_API_KEY", 1),
        (refusal(500, &json!({"message": words})), 1, "provider_error", "resume", 2),
        (
            Reply::new().text("Half").fails("server_is_overloaded", words),
            1,
            "provider_overloaded",
            "wait",
            2,
        ),
    ];
    for (reply, exit, kind, action, requests) in rows {
        let told = told(reply).await;
        assert_eq!((told.exit, told.envelope["error"]["kind"].as_str()), (exit, Some(kind)));
        assert_eq!(told.requests, requests, "{kind}");
        let actions = told.envelope["error"]["details"]["next_actions"].to_string();
        assert!(actions.contains(action), "{kind}: {actions}");
        assert!(told.stderr.contains("no way"), "{kind}: {}", told.stderr);
        assert!(!told.stderr.contains('\u{1b}'), "{kind}: {}", told.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_plan_says_when_it_begins_anew_in_every_time_zone() {
    let error = json!({"type": "usage_limit_reached", "message": "The usage limit has been reached",
        "plan_type": "plus", "resets_at": 4_000_000_000_u64, "resets_in_seconds": 9_000});
    let told = told(refusal(429, &error)).await;
    assert_eq!((told.exit, told.requests), (1, 1));
    assert!(told.stderr.contains("The usage limit has been reached"), "{}", told.stderr);
    assert!(
        told.stderr.contains("wait 2 h 30 min (until 2096-10-02 07:06 UTC)"),
        "{}",
        told.stderr
    );
    assert_eq!(told.envelope["error"]["details"]["plan"], "plus");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_answer_is_kept_and_labelled_and_an_empty_one_is_none() {
    let kept = told(Reply::new().text("The first half").incomplete("max_output_tokens")).await;
    assert_eq!((kept.exit, &kept.envelope["status"]), (0, &json!("incomplete")));
    assert_eq!(kept.envelope["output"], "The first half");
    assert!(kept.stderr.contains("the answer was cut: max_output_tokens"), "{}", kept.stderr);
    let empty = told(Reply::new().incomplete("max_output_tokens")).await;
    assert_eq!((empty.exit, &empty.envelope["error"]["kind"]), (6, &json!("incomplete")));
    let withheld = told(Reply::new().incomplete("content_filter")).await;
    assert_eq!(
        (withheld.exit, &withheld.envelope["error"]["kind"]),
        (6, &json!("provider_refusal"))
    );
}
