//! Tests of the replay rules, one by one and for any sequence of Events.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::base::id::{CallId, EventId, SessionId};
use crate::record::event::{
    AssistantMessage, BranchSummary, CanonicalParts, Event, Extra, HistoryRewound, LogRepaired,
    PermissionDecision, Phase, Plan, PostureChanged, ProviderUsage, SkillActivation, SubagentEvent,
    SubagentEventKind, TerminalStatus, Timestamp, TurnFailed, WorkflowEvent,
};

const MODEL: &str = "gpt-5.5";

fn history(facts: impl IntoIterator<Item = (Seq, Canonical)>) -> History {
    let session_id = SessionId::parse("s").unwrap();
    let events = facts.into_iter().map(|(seq, fact)| {
        Arc::new(Event::new_canonical(CanonicalParts {
            id: EventId::mint(),
            session_id: session_id.clone(),
            seq: Some(seq),
            ts: Timestamp::from_text("t"),
            fact,
            extra: Extra::new(),
        }))
    });
    History::from_events(events.collect())
}

fn numbered(facts: impl IntoIterator<Item = Canonical>) -> History {
    history((0..).zip(facts))
}

fn bytes(history: &History) -> Vec<u8> {
    let mut out = Vec::new();
    write_input(&mut out, history, &InputOptions::for_model(MODEL), None);
    out
}

/// The items of the input, one word each.
fn outline(history: &History) -> String {
    let items: Vec<Value> = serde_json::from_slice(&bytes(history)).unwrap();
    let words: Vec<String> = items.iter().map(word).collect();
    words.join(" ")
}

fn word(item: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    match text(&item["type"]).as_str() {
        "function_call" => format!("call:{}", text(&item["call_id"])),
        "function_call_output" => {
            let output = text(&item["output"]);
            let output =
                if output.contains("orphan_tool_call") { "orphan".to_owned() } else { output };
            format!("out:{}={output}", text(&item["call_id"]))
        }
        "reasoning" => format!("why:{}", text(&item["encrypted_content"])),
        _ => format!(
            "{}:{}",
            text(&item["role"]),
            text(&item["content"][0]["text"]).replace([' ', '\n'], "_")
        ),
    }
}

#[track_caller]
fn check(facts: Vec<Canonical>, expected: &str) {
    assert_eq!(outline(&numbered(facts)), expected);
}

fn user(text: &str) -> Canonical {
    UserMessage { text: text.to_owned(), ..UserMessage::default() }.into()
}

fn assistant(text: &str) -> Canonical {
    AssistantMessage {
        text: text.to_owned(),
        phase: Some(Phase::Final),
        ..AssistantMessage::default()
    }
    .into()
}

fn partial(text: &str) -> Canonical {
    let metadata = json!({"partial": true}).as_object().cloned();
    AssistantMessage { text: text.to_owned(), metadata, ..AssistantMessage::default() }.into()
}

fn call(id: &str) -> Canonical {
    let args = json!({"b": 1, "a": "é\n"});
    ToolCall {
        call_id: CallId::new(id),
        name: "read".to_owned(),
        args,
        raw_args: None,
        extra: Extra::new(),
    }
    .into()
}

fn result(id: &str, output: Option<&str>) -> Canonical {
    let output = output.map(str::to_owned);
    let call_id = CallId::new(id);
    ToolResult { call_id, ok: true, output, error: None, details: Value::Null, extra: Extra::new() }
        .into()
}

fn why(id: &str) -> Canonical {
    why_of(
        json!({"type": "reasoning", "id": format!("rs_{id}"), "summary": [], "encrypted_content": id}),
        MODEL,
    )
}

fn why_of(item: Value, model: &str) -> Canonical {
    Reasoning { item, model: model.to_owned(), extra: Extra::new() }.into()
}

fn child(event: &str) -> Canonical {
    SubagentEvent {
        event: SubagentEventKind::from_text(event),
        summary: Some("done".to_owned()),
        ..SubagentEvent::default()
    }
    .into()
}

fn failed() -> Canonical {
    TurnFailed {
        terminal_status: TerminalStatus::Interrupted,
        error_kind: String::new(),
        error_message: String::new(),
        details: Value::Null,
        extra: Extra::new(),
    }
    .into()
}

#[test]
fn a_conversation_reads_as_it_happened() {
    check(
        vec![
            user("hi"),
            why("r"),
            assistant("let me look"),
            call("c"),
            result("c", Some("x")),
            assistant("done"),
        ],
        "user:hi why:r assistant:let_me_look call:c out:c=x assistant:done",
    );
}

#[test]
fn the_bytes_are_the_wire_form() {
    let context =
        UserMessage { text: "hi".into(), context: Some("late".into()), ..UserMessage::default() };
    let history =
        numbered([context.into(), why("r"), call("c"), result("c", Some("x")), assistant("ok")]);
    let mut out = Vec::new();
    write_input(&mut out, &history, &InputOptions::for_model(MODEL), Some("project"));
    insta::assert_snapshot!(String::from_utf8(out).unwrap().replace("},{\"type\"", "},\n{\"type\""), @r#"
    [{"type":"message","role":"developer","content":[{"type":"input_text","text":"project"}]},
    {"type":"message","role":"developer","content":[{"type":"input_text","text":"late"}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},
    {"type":"reasoning","summary":[],"encrypted_content":"r"},
    {"type":"function_call","call_id":"c","name":"read","arguments":"{\"b\":1,\"a\":\"é\\n\"}"},
    {"type":"function_call_output","call_id":"c","output":"x"},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]}]
    "#);
}

#[test]
fn results_stand_behind_their_batch_in_the_order_of_calls() {
    let (a, b) = (result("a", Some("1")), result("b", Some("2")));
    check(vec![call("a"), call("b"), b.clone(), a.clone()], "call:a call:b out:a=1 out:b=2");
    check(vec![call("a"), a.clone(), call("b"), b.clone()], "call:a out:a=1 call:b out:b=2");
    // Text between two calls of one response follows the output of the first call.
    check(
        vec![call("a"), assistant("so"), call("b"), a, b],
        "call:a out:a=1 assistant:so call:b out:b=2",
    );
}

#[test]
fn orphans_are_closed_and_strays_are_dropped() {
    check(vec![call("a")], "call:a out:a=orphan");
    check(
        vec![call("a"), user("next"), result("a", Some("late"))],
        "call:a out:a=orphan user:next",
    );
    check(vec![result("a", Some("stray")), user("hi")], "user:hi");
    check(vec![call("a"), result("a", Some("1")), result("a", Some("2"))], "call:a out:a=1");
    check(
        vec![call("a"), result("a", Some("1")), call("a"), result("a", Some("2"))],
        "call:a out:a=1 call:a out:a=2",
    );
}

#[test]
fn an_output_is_never_empty() {
    check(vec![call("a"), result("a", Some(""))], "call:a out:a=(no output)");
    check(vec![call("a"), result("a", None)], "call:a out:a={\"ok\":true}");
    let error = Some(crate::base::error::Report::new(crate::base::error::Kind::Timeout, "slow"));
    let silent = ToolResult {
        call_id: CallId::new("a"),
        ok: false,
        output: Some(String::new()),
        error,
        details: Value::Null,
        extra: Extra::new(),
    };
    check(vec![call("a"), silent.into()], "call:a out:a=timeout: slow");
}

#[test]
fn raw_arguments_go_back_as_they_came() {
    let raw = ToolCall {
        call_id: CallId::new("a"),
        name: "x".to_owned(),
        args: Value::Null,
        raw_args: Some("{not json".to_owned()),
        extra: Extra::new(),
    };
    let items: Value = serde_json::from_slice(&bytes(&numbered([raw.into()]))).unwrap();
    assert_eq!(items[0]["arguments"], "{not json");
}

#[test]
fn reasoning_needs_its_model_its_seal_and_its_item() {
    check(vec![why("r"), user("next")], "user:next");
    check(vec![why("r")], "");
    check(vec![why("r"), why("s"), assistant("x")], "why:r why:s assistant:x");
    check(
        vec![call("c"), why("r"), result("c", Some("1")), assistant("x")],
        "call:c out:c=1 assistant:x",
    );
    check(
        vec![
            why_of(json!({"type": "reasoning", "encrypted_content": "e"}), "other"),
            assistant("x"),
        ],
        "assistant:x",
    );
    check(
        vec![why_of(json!({"type": "reasoning", "id": "rs"}), MODEL), assistant("x")],
        "assistant:x",
    );
    check(vec![why_of(Value::Null, MODEL), assistant("x")], "assistant:x");
    let text = String::from_utf8(bytes(&numbered([why("r"), assistant("x")]))).unwrap();
    assert!(!text.contains("rs_r"), "{text}");
}

#[test]
fn asides_wait_for_pending_outputs() {
    let skill =
        SkillActivation { name: "s".into(), content: "body".into(), ..SkillActivation::default() };
    check(
        vec![call("a"), skill.into(), child("finished"), result("a", Some("1"))],
        "call:a out:a=1 user:<skill_name=\"s\"_path=\"\"_sha256=\"\">_body_</skill> \
         user:[Subagent_unnamed_(no_role)_finished]_done",
    );
    check(vec![child("spawned"), child("failed")], "user:[Subagent_unnamed_(no_role)_failed]_done");
    let branch = BranchSummary {
        parent_session_id: "p".into(),
        summary: "left".into(),
        ..BranchSummary::default()
    };
    check(vec![branch.into()], "user:[Summary_of_the_branch_of_Session_p_that_was_left]_left");
}

fn compaction(to_seq: Seq, summary: &str) -> Canonical {
    let strategy = "plain".to_owned();
    HistoryCompaction { to_seq, strategy, summary: summary.into(), ..HistoryCompaction::default() }
        .into()
}

#[test]
fn a_checkpoint_stands_for_what_it_replaces() {
    let first =
        "user:[Checkpoint:_events_0_to_1_of_this_Session_are_replaced_by_this_summary_(plain)]_sum";
    check(
        vec![user("a"), assistant("b"), user("c"), compaction(1, "sum"), assistant("d")],
        &format!("{first} user:c assistant:d"),
    );
    // The later checkpoint knows of the earlier one.
    check(
        vec![user("a"), compaction(0, "old"), assistant("b"), user("c"), compaction(2, "sum")],
        &format!("{} user:c", first.replace("0_to_1", "0_to_2")),
    );
    // A call before the cut takes its result with it.
    check(vec![user("a"), call("x"), compaction(1, "sum"), result("x", Some("1"))], first);
}

#[test]
fn a_rewind_forgets_what_came_after_its_mark() {
    let back = |to_seq| Canonical::from(HistoryRewound { to_seq, ..HistoryRewound::default() });
    check(
        vec![user("a"), assistant("b"), user("c"), assistant("d"), back(2), user("e")],
        "user:a assistant:b user:e",
    );
    check(vec![user("a"), assistant("b"), back(1), user("c"), back(0), user("d")], "user:d");
    // A checkpoint that was rewound no longer counts.
    check(vec![user("a"), compaction(0, "sum"), user("b"), back(1), user("c")], "user:a user:c");
    // A rewind that was rewound has no effect.
    check(
        vec![user("a"), user("b"), back(0), user("c"), back(2), user("d")],
        "user:a user:b user:d",
    );
}

#[test]
fn twenty_thousand_events_stay_linear() {
    let facts = (0..5000).flat_map(|n: u32| {
        let id = format!("c{n}");
        [user("hi"), call(&id), result(&id, Some("x")), assistant("done")]
    });
    let history = numbered(facts);
    let started = std::time::Instant::now();
    assert!(bytes(&history).len() > 20_000 * 50);
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
}

fn audit() -> impl Strategy<Value = Canonical> {
    prop_oneof![
        Just(failed()),
        Just(partial("half")),
        Just(Canonical::from(ProviderUsage::default())),
        Just(Canonical::from(WorkflowEvent::default())),
        Just(Canonical::from(PostureChanged::default())),
        Just(Canonical::from(LogRepaired::default())),
        Just(Canonical::from(Plan::default())),
        Just(child("spawned")),
        Just(Canonical::decode("from_the_future", &serde_json::value::to_raw_value(&1).unwrap())),
        Just(Canonical::from(PermissionDecision {
            call_id: CallId::new("a"),
            decision: "allow".to_owned(),
            mode: None,
            rule: None,
            answered_by: None,
            answer: None,
            words: None,
            digest: None,
            notice: None,
            extra: Extra::new(),
        })),
    ]
}

fn spoken() -> impl Strategy<Value = Canonical> {
    let id = prop_oneof![Just("a"), Just("b"), Just("c")];
    let output = prop_oneof![Just(Some("x")), Just(Some("")), Just(None)];
    prop_oneof![
        2 => Just(user("hi")),
        2 => Just(assistant("ok")),
        2 => Just(why("r")),
        4 => id.clone().prop_map(call),
        4 => (id, output).prop_map(|(id, output)| result(id, output)),
        1 => Just(child("finished")),
        1 => Just(Canonical::from(SkillActivation::default())),
        1 => Just(assistant("")),
    ]
}

fn any_fact() -> impl Strategy<Value = Canonical> {
    prop_oneof![
        20 => spoken(),
        1 => (0u64..60).prop_map(|to_seq| compaction(to_seq, "s")),
        1 => (0u64..60).prop_map(|to_seq| HistoryRewound { to_seq, ..HistoryRewound::default() }.into()),
    ]
}

/// A violation of the API's rule, and ours: only calls stand between a call and its output.
fn breach(items: &[Value]) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    for (place, item) in items.iter().enumerate() {
        match item["type"].as_str() {
            Some("function_call") => open.push(item["call_id"].as_str()?),
            Some("function_call_output") => {
                if item["output"].as_str().is_none_or(str::is_empty) {
                    return Some(format!("empty output at {place}"));
                }
                let Some(mine) = open.iter().position(|id| Some(*id) == item["call_id"].as_str())
                else {
                    return Some(format!("output without call at {place}"));
                };
                open.remove(mine);
            }
            _ if !open.is_empty() => {
                return Some(format!("something between call and output at {place}"));
            }
            Some("reasoning") => {
                let behind = items[place + 1..].iter().find(|next| next["type"] != "reasoning");
                let next = behind.unwrap_or(&Value::Null);
                if next["type"] != "function_call" && next["role"] != "assistant" {
                    return Some(format!("reasoning without its item at {place}"));
                }
            }
            _ => {}
        }
    }
    (!open.is_empty()).then(|| "call without output".to_owned())
}

proptest! {
    #[test]
    fn any_history_is_acceptable_to_the_wire(facts in proptest::collection::vec(any_fact(), 0..60)) {
        let items: Vec<Value> = serde_json::from_slice(&bytes(&numbered(facts))).unwrap();
        prop_assert_eq!(breach(&items), None, "{:#?}", items);
    }

    #[test]
    fn audit_events_never_change_the_bytes(
        facts in proptest::collection::vec(any_fact(), 0..40),
        audits in proptest::collection::vec((0usize..40, audit()), 0..20),
    ) {
        // Even numbers for visible Events, odd ones for audit Events.
        let doubled = |fact: Canonical| match fact {
            Canonical::HistoryCompaction(mut compaction) => {
                compaction.to_seq *= 2;
                compaction.into()
            }
            Canonical::HistoryRewound(mut rewound) => {
                rewound.to_seq *= 2;
                rewound.into()
            }
            other => other,
        };
        let plain: Vec<(Seq, Canonical)> =
            (0..).step_by(2).zip(facts.into_iter().map(doubled)).collect();
        let mut noted = plain.clone();
        noted.extend(audits.into_iter().map(|(place, audit)| (place as Seq * 2 + 1, audit)));
        noted.sort_by_key(|(seq, _)| *seq);
        prop_assert_eq!(bytes(&history(plain)), bytes(&history(noted)));
    }

    #[test]
    fn what_was_sent_stays_a_prefix(facts in proptest::collection::vec(spoken(), 0..40), cut in 0usize..40) {
        let cut = cut.min(facts.len());
        let early = numbered(facts[..cut].to_vec());
        // No request is sent while a call is open.
        prop_assume!(early.orphan_calls().is_empty());
        let (early, whole) = (bytes(&early), bytes(&numbered(facts)));
        prop_assert!(whole.starts_with(&early[..early.len() - 1]));
    }
}

#[test]
fn reasoning_goes_back_only_to_the_account_that_made_it() {
    let thought = |account: Option<&str>| -> Canonical {
        let item = json!({"type": "reasoning", "encrypted_content": "sealed", "summary": []});
        let extra = account.map(|mark| ("account".to_owned(), json!(mark))).into_iter().collect();
        Reasoning { item, model: MODEL.to_owned(), extra }.into()
    };
    let is_replayed = |made_by: Option<&str>, read_by: Option<&str>, unreadable_to: Option<Seq>| {
        let answer = AssistantMessage { text: "so".into(), ..AssistantMessage::default() };
        let history = numbered([thought(made_by), answer.into()]);
        let mut out = Vec::new();
        let reader =
            InputOptions { account: read_by, unreadable_to, ..InputOptions::for_model(MODEL) };
        write_input(&mut out, &history, &reader, None);
        String::from_utf8(out).unwrap().contains("sealed")
    };
    for (made_by, read_by, expected) in [
        (Some("a"), Some("a"), true),
        (Some("a"), Some("b"), false),
        (None, Some("b"), true),
        (Some("a"), None, true),
    ] {
        assert_eq!(is_replayed(made_by, read_by, None), expected, "{made_by:?} {read_by:?}");
    }
    assert!(!is_replayed(None, None, Some(0)));
}
