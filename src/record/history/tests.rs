//! Tests of the History: order, Turns, orphans, and a cheap copy.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::base::id::{EventId, SessionId};
use crate::record::event::{CanonicalParts, Event, Extra, Timestamp};

fn event(seq: Option<Seq>, type_name: &str, data: &str) -> SharedEvent {
    let data = RawValue::from_string(data.to_owned()).unwrap();
    Arc::new(Event::new_canonical(CanonicalParts {
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
    let orphans: Vec<_> =
        history.orphan_calls().iter().map(|call| call.call_id.to_string()).collect();
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
    use crate::record::event::{HistoryRewound, UserMessage};
    use crate::record::history::rewind::UndoneTurns;

    fn user_message(text: &str) -> Canonical {
        UserMessage { text: text.to_owned(), ..UserMessage::default() }.into()
    }

    fn back(to_seq: u64) -> Canonical {
        HistoryRewound { to_seq, ..HistoryRewound::default() }.into()
    }

    #[test]
    fn turns_are_taken_back_and_brought_back() {
        let undone = |marker, turns: &[u64]| Some(UndoneTurns { marker, turns: turns.to_vec() });
        for (facts, live, expected) in [
            (vec![user_message("a"), user_message("b")], vec![0, 1], None),
            (vec![user_message("a"), user_message("b"), back(1)], vec![0], undone(2, &[1])),
            (vec![user_message("a"), user_message("b"), back(0)], vec![], undone(2, &[0, 1])),
            (vec![user_message("a"), user_message("b"), back(1), back(0)], vec![], undone(3, &[0])),
            // Redone: the last of the two, then both.
            (
                vec![user_message("a"), user_message("b"), back(1), back(0), back(3)],
                vec![0],
                undone(2, &[1]),
            ),
            (vec![user_message("a"), user_message("b"), back(1), back(2)], vec![0, 1], None),
            (
                vec![user_message("a"), user_message("b"), back(1), back(0), back(3), back(2)],
                vec![0, 1],
                None,
            ),
            // No redo after a new message.
            (
                vec![user_message("a"), user_message("b"), back(1), user_message("c")],
                vec![0, 3],
                None,
            ),
            (vec![user_message("a"), back(0), user_message("c"), back(2)], vec![], undone(3, &[2])),
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
            assert_eq!(history.last_undone(), expected, "{facts:?}");
        }
    }
}

mod forgetting {
    use super::*;

    use crate::record::event::HistoryCompaction;

    /// A piece of a Log: a type and its payload, which may name the seq that it gets.
    type RandomPiece = (&'static str, String);

    /// Random Turns with their facts, compactions and rewinds, as a Log could have them: each number picks the next
    /// fact.
    fn pieces(picks: &[(u8, u64)]) -> Vec<RandomPiece> {
        let mut pieces = vec![("session_started", "{}".to_owned())];
        for (pick, place) in picks {
            let seq = pieces.len() as u64;
            let back = seq.saturating_sub(1 + place % 12);
            let turn = |words: String| {
                vec![
                    ("user_message", words),
                    ("tool_call", format!(r#"{{"call_id":"c{seq}","name":"bash"}}"#)),
                    ("tool_result", format!(r#"{{"call_id":"c{seq}"}}"#)),
                    ("assistant_message", r#"{"text":"x","phase":"final"}"#.to_owned()),
                ]
            };
            pieces.extend(match pick {
                0 => turn(format!(r#"{{"text":"{seq}","context":"context {seq}"}}"#)),
                1 | 2 => turn(format!(r#"{{"text":"{seq}"}}"#)),
                3 => vec![("plan", format!(r#"{{"entries":[{{"content":"{seq}"}}]}}"#))],
                4 => {
                    let summary = format!(r#"{{"summary":"short","to_seq":{back}}}"#);
                    vec![("history_compaction", summary)]
                }
                5 => vec![("history_compaction", format!(r#"{{"prune_to_seq":{back}}}"#))],
                6 => vec![("history_rewound", format!(r#"{{"to_seq":{back}}}"#))],
                7 => vec![("tool_call", format!(r#"{{"call_id":"c{back}","name":"bash"}}"#))],
                8 => vec![("tool_result", format!(r#"{{"call_id":"c{back}"}}"#))],
                _ => vec![(FAILED.0, FAILED.1.to_owned())],
            });
        }
        pieces
    }

    fn seqs(history: &History) -> (Vec<Seq>, Option<Seq>) {
        let visible = history.visible();
        let seqs = visible.facts.iter().map(|(seq, _)| *seq).collect();
        (seqs, visible.checkpoint.and_then(HistoryCompaction::hidden_to))
    }

    proptest! {
        /// A Turn sees no difference, wherever Events were forgotten and whatever Events came later.
        #[test]
        fn what_counts_for_a_turn_is_the_same(
            picks in proptest::collection::vec((0_u8..10, 0_u64..40), 0..60),
        ) {
            let (mut whole, mut held) = (History::default(), History::default());
            for (seq, (name, data)) in (0..).zip(pieces(&picks)) {
                let next = event(Some(seq), name, &data);
                if next.fact().is_some_and(|fact| held.needs_forgotten(fact)) {
                    held = whole.clone();
                }
                whole.push(Arc::clone(&next));
                held.push(next);
                if let Some(shorter) = held.without_hidden() {
                    prop_assert!(shorter.len() <= held.len());
                    held = shorter;
                }
                prop_assert_eq!(seqs(&held), seqs(&whole));
                prop_assert_eq!(held.current_plan(), whole.current_plan());
                prop_assert_eq!(held.latest_context(), whole.latest_context());
                prop_assert_eq!(held.turns(), whole.turns());
                prop_assert_eq!(held.orphan_calls(), whole.orphan_calls());
                prop_assert_eq!(held.last_seq(), whole.last_seq());
                prop_assert_eq!(held.first_fact(), whole.first_fact());
                prop_assert_eq!(held.first_user_message(), whole.first_user_message());
                let forgotten = held.forgotten().map_or(0, |forgotten| forgotten.to + 1);
                prop_assert_eq!(held.since(forgotten), whole.since(forgotten));
            }
        }
    }

    #[test]
    fn little_stays_of_what_a_checkpoint_stands_for() {
        let mut history = History::default();
        for turn in 0..100 {
            history.push(event(Some(turn * 2), "user_message", &format!(r#"{{"text":"{turn}"}}"#)));
            history.push(event(Some(turn * 2 + 1), FINAL.0, FINAL.1));
        }
        assert!(history.without_hidden().is_none());
        history.push(event(Some(200), "history_compaction", r#"{"summary":"s","to_seq":195}"#));
        let held = history.without_hidden().unwrap();
        assert_eq!((held.len(), held.turns().count), (5, 100));
        assert_eq!(held.first_user_message().map(|own| own.text.as_str()), Some("0"));
        assert_eq!(held.forgotten().map(|own| (own.to, own.at)), Some((195, 200)));
        assert!(held.without_hidden().is_none(), "nothing is forgotten twice");
    }
}
