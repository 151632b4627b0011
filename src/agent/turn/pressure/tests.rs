//! Tests of counts, estimates and tiers.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::base::id::{EventId, SessionId};
use crate::record::event::{CanonicalParts, Event, Extra, Timestamp};

const FIXED: u64 = 1_000;

fn history(facts: &[(&str, Value)]) -> History {
    let events = facts.iter().zip(0..).map(|((name, data), seq)| {
        let data = serde_json::value::RawValue::from_string(data.to_string()).unwrap();
        Arc::new(Event::new_canonical(CanonicalParts {
            id: EventId::mint(),
            session_id: SessionId::parse("s").unwrap(),
            seq: Some(seq),
            ts: Timestamp::from_text("t"),
            fact: Canonical::decode(name, &data),
            extra: Extra::new(),
        }))
    });
    History::from_events(events.collect())
}

fn user(words: usize) -> (&'static str, Value) {
    ("user_message", json!({"text": "word ".repeat(words)}))
}

fn usage_fact(model: &str, input: u64) -> (&'static str, Value) {
    (
        "provider_usage",
        json!({"model": model, "usage": {"input_tokens": input, "output_tokens": 50}}),
    )
}

fn call() -> (&'static str, Value) {
    ("tool_call", json!({"call_id": "c", "name": "read", "args": {"path": "x".repeat(400)}}))
}

fn output(words: usize) -> (&'static str, Value) {
    ("tool_result", json!({"call_id": "c", "ok": true, "output": "word ".repeat(words)}))
}

fn read(facts: &[(&str, Value)]) -> PressureReading {
    PressureGauge::default().measure(&history(facts), "m", || FIXED)
}

#[track_caller]
fn check(facts: &[(&str, Value)], tokens: std::ops::RangeInclusive<u64>, counted: u64) {
    let reading = read(facts);
    assert!(tokens.contains(&reading.tokens), "{reading:?}");
    assert_eq!(reading.tokens - reading.estimated, counted, "{reading:?}");
}

#[test]
fn what_was_counted_counts_and_only_the_rest_is_estimated() {
    check(&[user(1_000)], 2_000..=2_100, 0);
    check(&[user(1_000), usage_fact("m", 5_000), call()], 5_050..=5_050, 5_050);
    check(&[user(1_000), usage_fact("m", 5_000), call(), output(2_000)], 7_050..=7_200, 5_050);
    // A usage record of another model, for another purpose, or without a count is ignored.
    check(&[user(1_000), usage_fact("n", 5_000)], 2_000..=2_100, 0);
    check(
        &[user(1_000), ("provider_usage", json!({"model": "m", "status": "failed"}))],
        2_000..=2_100,
        0,
    );
    let mut other = usage_fact("m", 5_000);
    other.1["purpose"] = json!("compaction");
    check(&[user(1_000), other], 2_000..=2_100, 0);
    let failed = ("provider_usage", json!({"model": "m", "status": "failed"}));
    check(&[user(9), usage_fact("m", 5_000), failed, user(500)], 5_550..=5_600, 5_050);
    // An implausibly small count is ignored.
    check(&[user(9_000), usage_fact("m", 100), call(), output(100)], 10_100..=10_700, 0);
}

#[test]
fn a_compaction_voids_the_count_and_a_rewind_goes_back_to_it() {
    let compaction = ("history_compaction", json!({"to_seq": 1, "summary": "short"}));
    check(&[user(1_000), usage_fact("m", 5_000), compaction, user(100)], 1_100..=1_200, 0);
    let facts = [
        user(9),
        usage_fact("m", 5_000),
        user(9_000),
        usage_fact("m", 20_000),
        ("history_rewound", json!({"to_seq": 2})),
        user(100),
    ];
    check(&facts, 5_150..=5_200, 5_050);
}

#[test]
fn what_was_estimated_is_gone_on_from() {
    let gauge = PressureGauge::default();
    let mut facts = vec![user(1_000)];
    let first = gauge.measure(&history(&facts), "m", || FIXED);
    facts.extend([call(), output(500)]);
    // The fixed part of the request was counted the first time.
    let second = gauge.measure(&history(&facts), "m", || unreachable!());
    assert!(second.tokens > first.tokens + 500 && second.tokens < first.tokens + 700, "{second:?}");
    // An estimate from before a rewind is not extended.
    facts.push(("history_rewound", json!({"to_seq": 0})));
    let third = gauge.measure(&history(&facts), "m", || FIXED);
    assert_eq!(third.tokens, FIXED);
}

#[test]
fn a_tier_is_news_once_and_again_when_it_was_left() {
    let gauge = PressureGauge::default();
    let is_news: Vec<bool> = [
        None,
        Some(PressureTier::Advisory),
        Some(PressureTier::Advisory),
        Some(PressureTier::Critical),
        Some(PressureTier::Warning),
        None,
        Some(PressureTier::Warning),
    ]
    .into_iter()
    .map(|tier| gauge.should_show(tier))
    .collect();
    assert_eq!(is_news, [false, true, false, true, false, false, true]);
}

#[test]
fn pictures_of_earlier_turns_do_not_make_a_count_incredible() {
    let gauge = PressureGauge::default();
    let mut facts = Vec::new();
    for turn in 0..40 {
        let mut shown = user(10);
        shown.1["resources"] = json!([{"id": format!("r{turn}"), "kind": "image"}]);
        facts.push(shown);
        let reading = gauge.measure(&history(&facts), "m", || FIXED);
        assert!(reading.tokens < 8_000, "{turn}: {reading:?}");
        facts.push(usage_fact("m", 2_000 + turn * 50));
    }
}

#[test]
fn a_count_beyond_all_bounds_is_no_overflow() {
    let reading = read(&[user(10), usage_fact("m", u64::MAX), user(10)]);
    assert_eq!(reading.tokens, u64::MAX);
}

/// `count` ends of children with long summaries.
fn ends(count: usize) -> Vec<(&'static str, Value)> {
    let end = json!({"event": "finished", "subagent_id": "sub_1", "summary": "word ".repeat(800)});
    vec![("subagent_event", end); count]
}

#[test]
fn ends_of_children_weigh_no_more_than_their_reports() {
    let most = 12_000..=15_000;
    for (before, after, tokens) in [
        // A few ends count in full.
        (vec![user(9)], [ends(2), vec![]].concat(), 2_500..=3_000),
        (vec![user(9)], ends(300), most.clone()),
        // The limit is per message.
        (vec![user(9)], [ends(300), vec![user(9)], ends(300)].concat(), 25_000..=29_000),
        // Ends after a count share the limit with those before it.
        (vec![user(9), usage_fact("m", 20_000)], ends(300), 32_000..=35_000),
        (
            [vec![user(9)], ends(300), vec![usage_fact("m", 20_000)]].concat(),
            ends(300),
            20_000..=20_100,
        ),
        (
            [vec![user(9)], ends(4), vec![usage_fact("m", 20_000)]].concat(),
            ends(300),
            28_000..=31_000,
        ),
        ([ends(300), vec![user(9), usage_fact("m", 20_000)]].concat(), ends(2), 21_500..=22_500),
    ] {
        let all = [before.clone(), after].concat();
        check_any(&all, &tokens);
        // An extended estimate gives the same result.
        let gauge = PressureGauge::default();
        gauge.measure(&history(&before), "m", || FIXED);
        let reading = gauge.measure(&history(&all), "m", || FIXED);
        assert!(tokens.contains(&reading.tokens), "{reading:?} {tokens:?}");
    }
    // Events that are not replayed weigh nothing.
    let started = ("subagent_event", json!({"event": "started", "subagent_id": "sub_1"}));
    check_any(&[vec![user(9)], vec![started; 300]].concat(), &(1_000..=1_100));
}

#[track_caller]
fn check_any(facts: &[(&str, Value)], tokens: &std::ops::RangeInclusive<u64>) {
    let reading = read(facts);
    assert!(tokens.contains(&reading.tokens), "{reading:?} {tokens:?}");
}

#[test]
fn going_on_within_a_turn_adds_ends_up_to_their_bound_once() {
    let (gauge, mut facts) = (PressureGauge::default(), vec![user(9)]);
    for _ in 0..30 {
        facts.extend(ends(10));
        let reading = gauge.measure(&history(&facts), "m", || FIXED);
        assert!(reading.tokens < 15_000, "{reading:?}");
    }
}
