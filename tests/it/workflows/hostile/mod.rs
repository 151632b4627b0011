//! More than a hundred invalid specs: each is refused with its place and a specific message.

/// Errors within one step.
mod single_step_errors;
/// Texts that are not JSON, and errors at the top level of a spec.
mod spec_errors;
/// Errors between steps.
mod step_graph_errors;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{flaws, of_steps};

/// A name, an invalid spec, the pointer of the error, and a part of the message.
pub type BrokenSpec = (&'static str, String, &'static str, &'static str);

/// A value with further fields.
pub fn with_fields(mut base: Value, fields: &Value) -> Value {
    for (key, value) in fields.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

/// A spec with these fields at its top level.
pub fn top(fields: &Value) -> String {
    with_fields(of_steps(&json!([{"id": "a", "task": "x"}])), fields).to_string()
}

/// A spec of one step with these fields.
pub fn one(fields: &Value) -> String {
    of_steps(&json!([with_fields(json!({"id": "a", "task": "x"}), fields)])).to_string()
}

/// A spec of a step that delivers findings, and a second step with these fields.
pub fn two(fields: &Value) -> String {
    let scan = json!({"id": "scan", "task": "x", "role": "explorer", "output": {
        "type": "object", "properties": {"findings": {"type": "array", "items": {"type": "string"}}},
    }});
    of_steps(&json!([scan, with_fields(json!({"id": "b"}), fields)])).to_string()
}

/// A spec of these steps.
pub fn steps(steps: &Value) -> String {
    of_steps(steps).to_string()
}

#[test]
fn a_hundred_hostile_specs_are_refused_at_their_place() {
    let all: Vec<BrokenSpec> = [
        spec_errors::texts(),
        spec_errors::tops(),
        single_step_errors::cases(),
        step_graph_errors::cases(),
    ]
    .concat();
    assert!(all.len() >= 100, "{}", all.len());
    let mut wrong = Vec::new();
    for (name, text, pointer, words) in &all {
        let found = flaws(text, &json!({}));
        // One error is reported once, without errors that follow from it.
        let twice = ["itself", "waits", "circle"].iter().any(|word| words.contains(word));
        let fits = |(own, message): &(String, String)| {
            let is_place = own == pointer || words.contains("nested") && own.starts_with(pointer);
            is_place && message.contains(words)
        };
        if !found.first().is_some_and(fits) || found.len() > 1 && !twice {
            wrong.push(format!("{name}: {pointer}: {words}\n  found: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    for bytes in [&b"\xff\xfe{\0}\0"[..], b"{\"id\": \"\xc3\"}", b"\x00", b"\xed\xa0\x80"] {
        assert_eq!(flaws(bytes, &json!({})).len(), 1);
    }
    assert!(flaws(b"{\"id\": \"\xc3\"}", &json!({}))[0].1.contains("not UTF-8 from byte 8"));
}

#[test]
fn thousands_of_flaws_are_counted_and_not_all_listed() {
    let steps: Vec<Value> = (0..2_000)
        .map(|n| json!({"id": format!("s{n}"), "tusk": "x", "depends_on": ["a", "b", "c", "d"]}))
        .collect();
    let text = of_steps(&json!(steps)).to_string();
    let report = pixir::workbench::expand_workflow(text.as_bytes(), Map::new()).unwrap_err();
    assert_eq!(report.details["flaws"].as_array().unwrap().len(), 100);
    // Six errors per step, and one because there are more steps than a run may start.
    assert_eq!(report.details["left_out"], 2_000 * 6 + 1 - 100);
    assert!(report.message.ends_with("(and 12000 more)"), "{}", report.message);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "\\PC{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["a", "b", "**", "{{ a }}", "/x", "object", "write", "reviewer"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        let key =
            prop_oneof![prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned), "\\PC{0,6}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Keys that the reader knows.
const KEYS: &[&str] = &[
    "id",
    "name",
    "parameters",
    "limits",
    "budget",
    "steps",
    "task",
    "apply",
    "role",
    "depends_on",
    "posture",
    "workspace",
    "read_set",
    "write_set",
    "timeout_ms",
    "retries",
    "on_failure",
    "needs",
    "output",
    "verify",
    "gate",
    "type",
    "default",
    "required",
    "step",
    "pointer",
    "command",
    "properties",
    "$ref",
    "enum",
    "items",
];

/// A valid spec, to be damaged.
fn valid_spec() -> Value {
    json!({
        "id": "x",
        "parameters": {"n": {"type": "integer", "default": 2}},
        "limits": {"max_concurrency": "{{ n }}"},
        "steps": [
            {"id": "a", "task": "x", "role": "explorer", "output": {"type": "object", "properties": {"v": {}}}},
            {"id": "b", "task": "x", "needs": {"v": "a/v"}, "write_set": ["src/**", "a.md"], "verify": ["true"]},
            {"id": "c", "task": "x", "role": "reviewer", "depends_on": "b"},
            {"id": "d", "apply": "b", "gate": "c"},
        ],
    })
}

/// Replaces the value at a numbered place.
fn replace_value(value: &mut Value, mut place: usize, other: Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !place.is_multiple_of(7) => {
            let nth = place % fields.len();
            place /= fields.len();
            if let Some(inner) = fields.values_mut().nth(nth) {
                replace_value(inner, place, other);
            }
        }
        Value::Array(values) if !values.is_empty() && !place.is_multiple_of(7) => {
            let nth = place % values.len();
            place /= values.len();
            replace_value(&mut values[nth], place, other);
        }
        value => *value = other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_given_is_read_or_refused(value in any_json()) {
        let found = flaws(value.to_string(), &json!({}));
        prop_assert!(found.iter().all(|(pointer, _)| pointer.is_empty() || pointer.starts_with('/')));
    }

    #[test]
    fn whatever_is_spoilt_is_read_or_refused(place in any::<usize>(), other in any_json()) {
        let mut spec = valid_spec();
        replace_value(&mut spec, place, other);
        for (pointer, _) in flaws(spec.to_string(), &json!({})) {
            // An error points to a value of the file, or to a missing one.
            let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
            prop_assert!(spec.pointer(parent).is_some(), "{} in {}", pointer, spec);
        }
    }

    #[test]
    fn a_torn_text_is_refused(end in 0_usize..600) {
        let text = valid_spec().to_string();
        let torn = text.get(..end.min(text.len() - 1)).unwrap_or_default();
        prop_assert_eq!(flaws(torn, &json!({})).len(), 1);
    }
}
