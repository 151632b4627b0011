//! Tests of compaction, rule by rule and for any History.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::base::id::{EventId, SessionId};
use crate::record::event::{
    AssistantMessage, CanonicalParts, Event, HistoryRewound, Phase, Plan as ModelPlan,
    ProviderUsage, Reasoning, SkillActivation, Timestamp, ToolCall, ToolResult, TurnFailed,
    Unknown, UserMessage,
};

fn push(history: &mut History, fact: impl Into<Canonical>) -> Seq {
    let seq = history.last_seq().map_or(0, |last| last + 1);
    history.push(Arc::new(Event::new_canonical(CanonicalParts {
        id: EventId::mint(),
        session_id: SessionId::parse("s").unwrap(),
        seq: Some(seq),
        ts: Timestamp::from_text("t"),
        fact: fact.into(),
        extra: Extra::new(),
    })));
    seq
}

fn decoded<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn user(text: &str) -> UserMessage {
    UserMessage { text: text.to_owned(), ..UserMessage::default() }
}

fn answer(text: &str) -> AssistantMessage {
    let phase = Some(Phase::Final);
    AssistantMessage { text: text.to_owned(), phase, ..AssistantMessage::default() }
}

#[expect(clippy::needless_pass_by_value, reason = "stories read best with a bare `json!`")]
fn call(id: &str, name: &str, args: Value) -> ToolCall {
    decoded(json!({"call_id": id, "name": name, "args": args}))
}

#[expect(clippy::needless_pass_by_value, reason = "stories read best with a bare `json!`")]
fn result(id: &str, output: &str, details: Value) -> ToolResult {
    decoded(json!({"call_id": id, "ok": true, "output": output, "details": details}))
}

/// The input of the request that would be sent.
fn replay(history: &History) -> Vec<Value> {
    let body: Value =
        serde_json::from_slice(&crate::testing::bench::request_body(history.clone())).unwrap();
    body["input"].as_array().unwrap().clone()
}

fn texts(items: &[Value]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Checks the rules of the API: every call has exactly one output after it, and no output stands alone.
fn check_valid(items: &[Value]) -> Result<(), TestCaseError> {
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or_default() {
            "function_call" => *open.entry(id).or_default() += 1,
            "function_call_output" => {
                let count = open.get_mut(id).filter(|count| **count > 0);
                *count
                    .ok_or_else(|| TestCaseError::fail(format!("output {id} stands alone")))? -= 1;
            }
            "reasoning" => {
                let next = items.get(place + 1);
                let is_followed = next.is_some_and(|next| {
                    next["type"] == "function_call"
                        || next["type"] == "reasoning"
                        || next["role"] == "assistant"
                });
                prop_assert!(is_followed, "reasoning without what it produced");
            }
            _ => {}
        }
    }
    prop_assert!(open.values().all(|count| *count == 0), "a call without its output");
    Ok(())
}

const LARGE: WindowBudget = WindowBudget { window: 100_000, fixed: 1_000 };

/// A Session with a number of Turns, each with one read of a number of words.
fn session(turns: usize, words: usize) -> History {
    let mut history = History::default();
    for turn in 0..turns {
        push(&mut history, user(&format!("please do thing number {turn}")));
        let id = format!("c{turn}");
        push(&mut history, call(&id, "read", json!({"path": format!("src/file{turn}.rs")})));
        let output = "some words of a file ".repeat(words / 5);
        push(&mut history, result(&id, &output, json!({"path": format!("src/file{turn}.rs")})));
        push(&mut history, answer(&format!("thing {turn} is done")));
    }
    history
}

#[test]
fn pruning_comes_first_and_is_enough_where_outputs_are_the_weight() {
    let mut history = session(20, 4_000);
    let before = texts(&replay(&history));
    let plan = plan_compaction(&history, LARGE, CompactionTrigger::CriticalPressure).unwrap();
    assert_eq!((plan.fact.hidden_to(), plan.fact.turns_compacted), (None, Some(0)));
    assert!(plan.fact.outputs_pruned > Some(10) && plan.checkpoint.is_none());
    push(&mut history, plan.fact);
    let items = replay(&history);
    let after = texts(&items);
    assert!(after.len() * 3 < before.len(), "{} {}", before.len(), after.len());
    assert!(after.contains("thing number 0") && after.contains("bytes of output were pruned"));
    assert!(items.last().unwrap().to_string().contains("thing 19"));
    assert!(after.contains("some words of a file"), "the last ones are whole");
}

#[test]
fn turns_give_way_when_words_are_the_weight() {
    let mut history = History::default();
    let first = UserMessage { context: Some("it is Monday".into()), ..user("build a tower") };
    push(&mut history, first);
    push(&mut history, answer("begun"));
    for turn in 0..40 {
        push(&mut history, user(&format!("step {turn}: {}", "go on with the tower ".repeat(300))));
        push(&mut history, answer(&"so it is done and here is what I did ".repeat(200)));
    }
    push(&mut history, user("and now the roof"));
    let plan = plan_compaction(&history, LARGE, CompactionTrigger::CriticalPressure).unwrap();
    assert!(plan.after < LARGE.window / 10 * 6, "{}", plan.after);
    assert!(plan.fact.turns_compacted > Some(20), "{:?}", plan.fact.turns_compacted);
    push(&mut history, plan.fact);
    let items = replay(&history);
    assert_eq!(
        (&items[0]["role"], &items[0]["content"][0]["text"]),
        (&json!("developer"), &json!("it is Monday"))
    );
    let checkpoint = items[1]["content"][0]["text"].as_str().unwrap();
    assert!(checkpoint.contains("build a tower"), "what it is about stays: {checkpoint}");
    assert!(items.last().unwrap().to_string().contains("and now the roof"));
}

#[test]
fn a_checkpoint_has_paths_and_never_contents() {
    let mut history = History::default();
    push(&mut history, user("write it"));
    let secret = "CONTENT-OF-THE-FILE/with.dots and/slashes";
    push(&mut history, call("a", "write", json!({"path": "src/a.rs", "content": secret})));
    let changed = json!({"path": "src/a.rs", "diff": secret});
    push(&mut history, result("a", secret, changed));
    push(&mut history, call("b", "apply_patch", json!({"patch": secret})));
    let several =
        json!({"files": [{"path": "b.rs", "diff": secret}, {"path": "c.rs", "deleted": true}]});
    push(&mut history, result("b", secret, several));
    push(&mut history, call("c", "read", json!({"path": "d.rs"})));
    push(&mut history, result("c", secret, json!({"path": "d.rs"})));
    let script = format!("cat > x <<E\n{secret}\nE");
    push(&mut history, call("d", "bash", json!({"command": script})));
    push(&mut history, result("d", secret, json!({"exit_code": 0})));
    let skill =
        json!({"name": "tidy", "path": "skills/tidy", "content_hash": "h", "content": secret});
    push(
        &mut history,
        decoded::<ModelPlan>(json!({"entries": [{"content": "roof", "status": "pending"}]})),
    );
    push(&mut history, answer(&"done ".repeat(2_000)));
    push(&mut history, decoded::<SkillActivation>(skill));
    push(&mut history, user("more"));
    push(&mut history, answer(&"done ".repeat(2_000)));
    push(&mut history, user("last"));
    let plan = plan_compaction(&history, LARGE, CompactionTrigger::Manual { keep: 1 }).unwrap();
    let known = plan.checkpoint.unwrap();
    assert_eq!(known.files_changed, ["src/a.rs", "b.rs", "c.rs"]);
    assert_eq!(known.files_read, ["d.rs"]);
    assert_eq!(known.commands, ["cat > x <<E (exit 0)"]);
    assert_eq!(known.plan, ["[pending] roof"]);
    assert_eq!(known.skills[0].name, "tidy");
    assert_eq!(known.user_instructions, ["write it", "more"]);
    assert!(!json!(plan.fact).to_string().contains("CONTENT"), "{}", plan.fact.summary);
    insta::assert_snapshot!(plan.fact.summary.as_str().unwrap().replace("done ", ""));
}

#[test]
fn it_succeeds_however_full_it_is() {
    for percent in [100, 150, 300, 3_000] {
        for words in [20, 400, 4_000] {
            let window_budget = WindowBudget { window: 40_000, fixed: 4_000 };
            let mut history = History::default();
            let more = session(3, words);
            let times =
                (window_budget.window - window_budget.fixed) * percent / 100 / weight(&more) + 1;
            for _ in 0..times {
                for fact in more.facts() {
                    push(&mut history, fact.clone());
                }
            }
            push(&mut history, user("what now?"));
            let plan =
                plan_compaction(&history, window_budget, CompactionTrigger::CriticalPressure)
                    .unwrap();
            assert!(
                plan.after < window_budget.window * 6 / 10,
                "{percent} % of {words}: {}",
                plan.after
            );
            push(&mut history, plan.fact);
            check_valid(&replay(&history)).unwrap();
            assert!(texts(&replay(&history)).contains("what now?"));
        }
    }
}

fn weight(history: &History) -> u64 {
    CompactionPlanner::new(history, LARGE).map_or(0, |draft| draft.tokens_before())
}

#[test]
fn a_single_turn_that_is_too_much_loses_its_older_outputs() {
    let window_budget = WindowBudget { window: 40_000, fixed: 4_000 };
    let mut history = session(2, 400);
    let asked = push(&mut history, user("one enormous task"));
    for step in 0..60 {
        push(&mut history, decoded::<ProviderUsage>(json!({"model": "m"})));
        let id = format!("s{step}");
        let content = "fn f() {}\n".repeat(200);
        push(
            &mut history,
            decoded::<Reasoning>(
                json!({"model": "gpt-5.5", "item": {"type": "reasoning", "encrypted_content": "x".repeat(900)}}),
            ),
        );
        push(&mut history, call(&id, "write", json!({"path": "a.rs", "content": content})));
        push(
            &mut history,
            result(&id, &format!("output {step} {}", "line\n".repeat(800)), json!({})),
        );
    }
    assert!(weight(&history) > window_budget.window * 2);
    let plan =
        plan_compaction(&history, window_budget, CompactionTrigger::CriticalPressure).unwrap();
    assert!(plan.after < window_budget.window * 6 / 10, "{}", plan.after);
    assert!(plan.fact.to_seq < asked, "the message stays");
    push(&mut history, plan.fact);
    let items = replay(&history);
    check_valid(&items).unwrap();
    let text = texts(&items);
    assert!(
        text.contains("one enormous task") && text.contains("output 59 line"),
        "what is new is whole"
    );
    assert!(!text.contains("output 5 line"));
}

#[test]
fn what_the_first_pixir_compacted_is_read_and_carried_on() {
    let mut history = session(3, 4_000);
    let old = json!({"range": {"from_seq": 0, "to_seq": 7}, "strategy": "deterministic_operational_summary_v1",
        "summary": "Two things were done.", "files_touched": ["x"]});
    push(&mut history, decoded::<HistoryCompaction>(old));
    assert!(texts(&replay(&history)).contains("Two things were done."));
    assert!(!texts(&replay(&history)).contains("thing number 1"));
    push(&mut history, user(&"more ".repeat(3_000)));
    push(&mut history, answer("fine"));
    push(&mut history, user("last"));
    let plan = plan_compaction(&history, LARGE, CompactionTrigger::Manual { keep: 1 }).unwrap();
    assert_eq!(plan.checkpoint.unwrap().earlier.as_deref(), Some("Two things were done."));
}

#[test]
fn nothing_is_done_where_nothing_is_won() {
    assert_eq!(
        plan_compaction(&History::default(), LARGE, CompactionTrigger::CriticalPressure),
        Err(CompactionSkipped::Empty)
    );
    let mut history = History::default();
    push(&mut history, user("hi"));
    push(&mut history, answer("hello"));
    for trigger in [
        CompactionTrigger::Manual { keep: 1 },
        CompactionTrigger::CriticalPressure,
        CompactionTrigger::OverflowRecovery,
    ] {
        assert_eq!(
            plan_compaction(&history, LARGE, trigger),
            Err(CompactionSkipped::Small),
            "{trigger:?}"
        );
    }
}

#[test]
fn what_was_carried_is_not_given_up_for_a_turn_of_few_words() {
    let mut history = History::default();
    for turn in 0..6 {
        push(&mut history, user(&format!("wish number {turn}")));
        push(&mut history, answer(&"it is done ".repeat(100)));
    }
    let first = plan_compaction(&history, LARGE, CompactionTrigger::Manual { keep: 2 }).unwrap();
    push(&mut history, first.fact);
    let mut planned = 0;
    for turn in 6..10 {
        push(&mut history, user(&format!("wish number {turn}: paint the walls of that room")));
        push(&mut history, answer("it is painted, and the brushes are clean"));
        let Ok(more) = plan_compaction(&history, LARGE, CompactionTrigger::Manual { keep: 1 })
        else {
            continue;
        };
        planned += 1;
        let known = more.checkpoint.clone().unwrap_or_default();
        let left_out = known.left_out.get("user_instructions");
        assert_eq!(left_out, None, "{}", more.fact.summary);
        push(&mut history, more.fact);
    }
    assert!(planned > 0);
}

/// A step of an arbitrary Session.
#[derive(Debug, Clone)]
enum RandomFact {
    User(usize),
    Answer(usize),
    Commentary(usize),
    Call { id: u8, size: usize },
    Result { id: u8, size: usize },
    Why,
    Usage,
    Skill,
    Plan,
    Failed,
    Unknown,
    Back(usize),
    Compact(usize),
}

fn random_fact() -> impl Strategy<Value = RandomFact> {
    let size = || prop_oneof![3 => 0..60_usize, 1 => 400..6_000_usize];
    prop_oneof![
        4 => size().prop_map(RandomFact::User),
        4 => size().prop_map(RandomFact::Answer),
        1 => size().prop_map(RandomFact::Commentary),
        5 => (0..6_u8, size()).prop_map(|(id, size)| RandomFact::Call { id, size }),
        6 => (0..6_u8, size()).prop_map(|(id, size)| RandomFact::Result { id, size }),
        2 => Just(RandomFact::Why),
        2 => Just(RandomFact::Usage),
        1 => Just(RandomFact::Skill),
        1 => Just(RandomFact::Plan),
        1 => Just(RandomFact::Failed),
        1 => Just(RandomFact::Unknown),
        1 => (0..60_usize).prop_map(RandomFact::Back),
        1 => (1..4_usize).prop_map(RandomFact::Compact),
    ]
}

fn push_random_fact(history: &mut History, step: &RandomFact, number: usize) {
    let words = |size: usize| format!("w{number} {}", "and so on ".repeat(size / 10));
    match step {
        RandomFact::User(size) => _ = push(history, user(&words(*size))),
        RandomFact::Answer(size) => _ = push(history, answer(&words(*size))),
        RandomFact::Commentary(size) => {
            let phase = Some(Phase::Commentary);
            let message =
                AssistantMessage { text: words(*size), phase, ..AssistantMessage::default() };
            push(history, message);
        }
        RandomFact::Call { id, size } => {
            push(
                history,
                call(&format!("c{id}"), "write", json!({"path": "p", "content": words(*size)})),
            );
        }
        RandomFact::Result { id, size } => {
            push(
                history,
                result(&format!("c{id}"), &words(*size), json!({"path": "p", "diff": "x"})),
            );
        }
        RandomFact::Why => {
            let item =
                json!({"type": "reasoning", "encrypted_content": "x".repeat(300), "summary": []});
            push(history, decoded::<Reasoning>(json!({"model": "gpt-5.5", "item": item})));
        }
        RandomFact::Usage => _ = push(history, decoded::<ProviderUsage>(json!({"model": "m"}))),
        RandomFact::Skill => {
            push(history, decoded::<SkillActivation>(json!({"name": "s", "content": "be tidy"})));
        }
        RandomFact::Plan => {
            let entries = json!([{"content": "roof", "status": "pending"}]);
            push(history, decoded::<ModelPlan>(json!({"entries": entries})));
        }
        RandomFact::Failed => {
            push(history, decoded::<TurnFailed>(json!({"terminal_status": "interrupted"})));
        }
        RandomFact::Unknown => {
            let data = serde_json::value::RawValue::from_string("{\"from\":\"tomorrow\"}".into());
            let (type_name, data) = ("dream".to_owned(), data.unwrap());
            push(history, Canonical::Unknown(Unknown { type_name, data, problem: None }));
        }
        RandomFact::Back(by) => {
            let turns = history.live_turns();
            if let Some(to_seq) = turns.len().checked_sub(1 + by % 3).map(|at| turns[at]) {
                push(history, HistoryRewound { to_seq, ..HistoryRewound::default() });
            }
        }
        RandomFact::Compact(keep) => {
            if let Ok(plan) =
                plan_compaction(history, LARGE, CompactionTrigger::Manual { keep: *keep })
            {
                push(history, plan.fact);
            }
        }
    }
}

fn last_message(history: &History) -> Option<String> {
    history.live_backwards().find_map(|(_, fact)| match fact {
        Canonical::UserMessage(message) => Some(message.text.clone()),
        _ => None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any History and any trigger: pairs and the last message stay, the replay is valid and smaller, unknown
    /// Events survive, and a rewind to before it restores everything.
    #[test]
    fn a_compaction_keeps_what_it_promises(
        steps in proptest::collection::vec(random_fact(), 0..120),
        window in 2_000_u64..60_000,
        trigger_kind in 0..6_usize,
    ) {
        let mut history = History::default();
        for (number, step) in steps.iter().enumerate() {
            push_random_fact(&mut history, step, number);
        }
        let trigger = match trigger_kind {
            0 => CompactionTrigger::CriticalPressure,
            1 => CompactionTrigger::OverflowRecovery,
            keep => CompactionTrigger::Manual { keep: keep - 1 },
        };
        let before = replay(&history);
        check_valid(&before)?;
        let window_budget = WindowBudget { window, fixed: 500 };
        let Ok(plan) = plan_compaction(&history, window_budget, trigger) else { return Ok(()) };
        let count = history.len();
        let last = last_message(&history).unwrap();
        prop_assert!(plan.after < plan.before);
        let cut = plan.fact.hidden_to();
        let is_start = history.iter().any(|event| {
            matches!(event.fact(), Some(Canonical::UserMessage(_) | Canonical::SkillActivation(_)))
                && cut.is_some_and(|cut| event.seq() == Some(cut + 1))
        });
        prop_assert!(cut.is_none() || is_start || plan.checkpoint.is_none(), "a cut is where a Turn begins");
        let seq = push(&mut history, plan.fact.clone());
        let after = replay(&history);
        check_valid(&after)?;
        let (small, large) = (texts(&after), texts(&before));
        prop_assert!(small.len() < large.len(), "{} {}\n{small}", small.len(), large.len());
        let last_user_message = after.iter().rev().find(|item| item["role"] == "user" && item.to_string().contains(&last));
        prop_assert!(last_user_message.is_some(), "the last message stays");
        prop_assert_eq!(history.len(), count + 1, "the Log only grows");
        // A rewind to before the compaction restores everything.
        push(&mut history, HistoryRewound { to_seq: seq, ..HistoryRewound::default() });
        prop_assert_eq!(replay(&history), before);
    }

    /// Repeated compactions: the replay never grows, every message of the user is kept or counted, and no second
    /// compaction is needed when nothing came since.
    #[test]
    fn compacting_again_loses_no_instruction_in_silence(
        rounds in proptest::collection::vec((1..12_usize, 0..4_000_usize), 1..12),
        window in 3_000_u64..30_000,
    ) {
        let mut history = History::default();
        let window_budget = WindowBudget { window, fixed: 500 };
        let mut sent = 0_u64;
        for (turns, size) in rounds {
            for _ in 0..turns {
                push(&mut history, user(&format!("wish-{sent}-end {}", "please ".repeat(size / 10))));
                push(&mut history, answer(&"it is done ".repeat(size / 10)));
                sent += 1;
            }
            if let Ok(plan) = plan_compaction(&history, window_budget, CompactionTrigger::Manual { keep: 1 }) {
                push(&mut history, plan.fact);
            }
            let text = texts(&replay(&history));
            let known = history.visible().checkpoint.map(|own| Checkpoint::from_earlier(&own.checkpoint, &own.summary));
            let counted = known.as_ref().map_or(0, |known| known.left_out.get("user_instructions").copied().unwrap_or(0));
            let listed = (0..sent).filter(|number| text.contains(&format!("wish-{number}-end"))).count() as u64;
            prop_assert_eq!(listed + counted, sent, "listed {}, counted {}", listed, counted);
            if sent > 0 && known.is_some() {
                prop_assert!(text.contains("wish-0-end"), "what it is about stays");
            }
            if let Ok(again) = plan_compaction(&history, window_budget, CompactionTrigger::Manual { keep: 1 }) {
                prop_assert!(again.after < again.before, "only what is less is done again");
            }
        }
    }
}

#[test]
fn unreported_ends_of_children_are_no_reason_to_forget() {
    let mut history = session(3, 100);
    let end = json!({"event": "finished", "subagent_id": "sub_1", "summary": "word ".repeat(800)});
    for _ in 0..300 {
        push(&mut history, decoded::<crate::record::event::SubagentEvent>(end.clone()));
    }
    let plan = plan_compaction(&history, LARGE, CompactionTrigger::Manual { keep: 1 }).unwrap();
    let sent = texts(&replay(&history)).len() as u64;
    assert!(plan.before > 0 && plan.before < sent / 2, "{} tokens for {sent} bytes", plan.before);
}
