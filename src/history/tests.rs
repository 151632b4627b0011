//! Stories of the fold: order, Turns, orphans, and a cheap copy.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::event::{Event, Extra, Sequenced, Timestamp};
use crate::id::{EventId, SessionId};

fn event(seq: Option<Seq>, type_name: &str, data: &str) -> SharedEvent {
    let data = RawValue::from_string(data.to_owned()).unwrap();
    Arc::new(Event::sequenced(Sequenced {
        id: EventId::mint(),
        session_id: SessionId::parse("s").unwrap(),
        seq,
        ts: Timestamp::from_text("2026-01-01T00:00:00.000000Z"),
        fact: Canonical::decode(type_name, &data),
        extra: Extra::new(),
    }))
}

#[track_caller]
fn turns(events: &[(&str, &str)]) -> Turns {
    let events = events.iter().zip(0..).map(|((name, data), seq)| event(Some(seq), name, data));
    History::from_events(events.collect()).turns()
}

const SAYS: (&str, &str) = ("user_message", r#"{"text":"x"}"#);
const FINAL: (&str, &str) = ("assistant_message", r#"{"text":"x","phase":"final"}"#);
const OLD_FINAL: (&str, &str) = ("assistant_message", r#"{"text":"x"}"#);
const COMMENTARY: (&str, &str) = ("assistant_message", r#"{"text":"x","phase":"commentary"}"#);
const PARTIAL: (&str, &str) = ("assistant_message", r#"{"text":"x","metadata":{"partial":true}}"#);
const FAILED: (&str, &str) = ("turn_failed", r#"{"terminal_status":"provider_error"}"#);

#[test]
fn a_turn_ends_with_a_final_message_or_a_failure_and_nothing_else() {
    assert_eq!(turns(&[]).count, 0);
    assert!(turns(&[SAYS, FINAL]).open.is_none());
    assert!(turns(&[SAYS, OLD_FINAL]).open.is_none());
    assert_eq!(turns(&[SAYS, COMMENTARY]).open, Some(OpenTurn { number: 1, seq: Some(0) }));
    assert_eq!(turns(&[SAYS, PARTIAL]).open, Some(OpenTurn { number: 1, seq: Some(0) }));
    let failed = turns(&[SAYS, FINAL, SAYS, PARTIAL, FAILED]);
    assert_eq!((failed.count, failed.open.is_none()), (2, true));
    assert_eq!(failed.last_failure.unwrap().as_str(), "provider_error");
    assert!(turns(&[SAYS, FAILED, SAYS, FINAL]).last_failure.is_none());
}

#[test]
fn orphans_are_calls_without_a_result_even_when_an_id_is_used_again() {
    let call = |seq, id: &str| {
        event(Some(seq), "tool_call", &format!(r#"{{"call_id":"{id}","name":"bash"}}"#))
    };
    let result =
        |seq, id: &str| event(Some(seq), "tool_result", &format!(r#"{{"call_id":"{id}"}}"#));
    let history =
        History::from_events(vec![call(0, "a"), result(1, "a"), call(2, "b"), call(3, "a")]);
    let orphans: Vec<_> = history.orphans().iter().map(|call| call.call_id.to_string()).collect();
    assert_eq!(orphans, ["b", "a"]);
}

proptest! {
    #[test]
    fn order_is_by_seq_then_position_and_since_is_a_suffix(
        seqs in proptest::collection::vec(0_u64..600, 0..700), from in 0_u64..600,
    ) {
        let events: Vec<_> =
            seqs.iter().map(|seq| event(Some(*seq), "user_message", r#"{"text":""}"#)).collect();
        let mut expected = events.clone();
        expected.sort_by_key(|event| event.seq());
        let history = History::from_events(events);
        prop_assert_eq!(history.len(), seqs.len());
        prop_assert!(history.iter().eq(expected.iter()));
        let suffix: Vec<_> =
            expected.iter().filter(|event| event.seq() >= Some(from)).cloned().collect();
        prop_assert_eq!(history.since(from), suffix);
        prop_assert_eq!(history.last_seq(), seqs.iter().max().copied());
    }
}

#[test]
fn a_copy_shares_what_came_before_and_does_not_see_what_comes_after() {
    let mut history = History::default();
    for seq in 0..1000 {
        history.push(event(Some(seq), "plan", "{}"));
    }
    let copy = history.clone();
    history.push(event(Some(1000), "plan", "{}"));
    assert_eq!((copy.len(), history.len()), (1000, 1001));
}

mod rewinding {
    use super::*;
    use crate::event::{HistoryRewound, UserMessage};
    use crate::history::rewind::Undone;

    fn said(text: &str) -> Canonical {
        UserMessage { text: text.to_owned(), ..UserMessage::default() }.into()
    }

    fn back(to_seq: u64) -> Canonical {
        HistoryRewound { to_seq, ..HistoryRewound::default() }.into()
    }

    #[test]
    fn turns_are_taken_back_and_brought_back() {
        let undone = |marker, turns: &[u64]| Some(Undone { marker, turns: turns.to_vec() });
        for (facts, live, expected) in [
            (vec![said("a"), said("b")], vec![0, 1], None),
            (vec![said("a"), said("b"), back(1)], vec![0], undone(2, &[1])),
            (vec![said("a"), said("b"), back(0)], vec![], undone(2, &[0, 1])),
            (vec![said("a"), said("b"), back(1), back(0)], vec![], undone(3, &[0])),
            // Brought back: the last of the two, then both.
            (vec![said("a"), said("b"), back(1), back(0), back(3)], vec![0], undone(2, &[1])),
            (vec![said("a"), said("b"), back(1), back(2)], vec![0, 1], None),
            (vec![said("a"), said("b"), back(1), back(0), back(3), back(2)], vec![0, 1], None),
            // Whoever goes on cannot bring it back.
            (vec![said("a"), said("b"), back(1), said("c")], vec![0, 3], None),
            (vec![said("a"), back(0), said("c"), back(2)], vec![], undone(3, &[2])),
        ] {
            let events = facts.iter().zip(0..).map(|(fact, seq)| {
                let data = match fact {
                    Canonical::HistoryRewound(back) => format!(r#"{{"to_seq":{}}}"#, back.to_seq),
                    _ => r#"{"text":"x"}"#.to_owned(),
                };
                event(Some(seq), fact.type_name(), &data)
            });
            let history = History::from_events(events.collect());
            assert_eq!(history.live_turns(), live, "{facts:?}");
            assert_eq!(history.undone(), expected, "{facts:?}");
        }
    }
}
