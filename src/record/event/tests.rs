//! Tests of the wire form of Events: names, round trips, and tolerance.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::base::id::SessionId;

fn decode(type_name: &str, data: &str) -> Canonical {
    Canonical::decode(type_name, &RawValue::from_string(data.to_owned()).unwrap())
}

#[test]
fn every_canonical_type_reads_a_payload_and_gives_it_back_with_strange_fields() {
    for type_name in Canonical::TYPES {
        let data = json!({
            "text": "t", "call_id": "c", "name": "n", "decision": "allow",
            "terminal_status": "invented_later", "strange": {"kept": [1, null]},
        });
        let fact = decode(type_name, &data.to_string());
        assert!(!matches!(fact, Canonical::Unknown(_)), "{type_name}: {fact:?}");
        assert_eq!(fact.type_name(), *type_name);
        let back = serde_json::to_value(&fact).unwrap();
        assert_eq!(back["strange"], data["strange"], "{type_name}");
        let again = decode(type_name, &back.to_string());
        assert_eq!(again, fact, "{type_name}");
    }
    assert_eq!(Canonical::TYPES.len(), 20);
}

#[test]
fn words_of_another_version_pass_through() {
    let fact = decode("turn_failed", r#"{"terminal_status":"eaten_by_a_grue"}"#);
    let Canonical::TurnFailed(failed) = &fact else { panic!("{fact:?}") };
    assert_eq!(failed.terminal_status, TerminalStatus::Other("eaten_by_a_grue".into()));
    assert!(serde_json::to_string(&fact).unwrap().contains("eaten_by_a_grue"));
}

#[test]
fn a_payload_that_breaks_its_promise_is_kept_as_it_is() {
    let fact = decode("user_message", r#"{"text": 5}"#);
    let Canonical::Unknown(unknown) = &fact else { panic!("{fact:?}") };
    assert!(unknown.problem.is_some());
    assert_eq!(serde_json::to_string(&fact).unwrap(), r#"{"text": 5}"#);
}

#[test]
fn canonical_and_ephemeral_names_do_not_meet() {
    for name in Ephemeral::TYPES {
        assert!(!Canonical::TYPES.contains(name));
    }
}

#[tokio::test]
async fn an_end_before_the_first_poll_is_received() {
    let bus = Bus::new(SessionId::mint(), 0);
    bus.emit(Ephemeral::Status(SessionStatus::Done));
    let source = bus.clone();
    let mut listener = bus.listen(
        ListenFrom::Start,
        Arc::new(move |_| {
            let now = source.current_backlog();
            Box::pin(async move { Some(now) })
        }),
    );
    bus.emit(Ephemeral::Status(SessionStatus::Thinking { iteration: 0 }));
    bus.emit(Ephemeral::Status(SessionStatus::Interrupted));
    let received = tokio::time::timeout(Duration::from_secs(10), listener.next()).await;
    let Ok(Some(ListenerItem::Event(event))) = received else { panic!("{received:?}") };
    let EventKind::Ephemeral(Ephemeral::Status(status)) = event.kind() else { panic!("{event:?}") };
    assert_eq!(*status, SessionStatus::Interrupted);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((".*", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_payload_of_any_type_survives_a_round_trip(
        place in 0..Canonical::TYPES.len() + 1, data in any_json(),
    ) {
        let type_name = Canonical::TYPES.get(place).copied().unwrap_or("from_the_future");
        let fact = decode(type_name, &data.to_string());
        let back = serde_json::to_string(&fact).unwrap();
        prop_assert_eq!(&decode(type_name, &back), &fact);
        if let Value::Object(fields) = &data {
            let back: Value = serde_json::from_str(&back).unwrap();
            for (key, value) in fields {
                prop_assert_eq!(back.get(key), Some(value), "field {} was lost", key);
            }
        }
    }
}
