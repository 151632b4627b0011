//! The `output` schema of a step: whether it can be used, and which JSON pointers it allows.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::diagnostic::{SpecDiagnostic, child_pointer};
use crate::settings::config::AnswerSchema;

/// The most references that are followed before the schema counts as endless.
const MAX_REFERENCES: usize = 32;

/// The flaws of an output schema.
pub fn check_output_schema(schema: &Value, pointer: &str) -> Vec<SpecDiagnostic> {
    let mut flaws = Vec::new();
    check_references(schema, pointer, &mut flaws);
    if !flaws.is_empty() {
        return flaws;
    }
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        let message = "the schema must be of an object: `\"type\": \"object\"`";
        flaws.push(SpecDiagnostic::new(child_pointer(pointer, "type"), message));
        return flaws;
    }
    if let Err(reason) = AnswerSchema::parse(&schema.to_string()) {
        let short: String = reason.chars().take(300).collect();
        flaws.push(SpecDiagnostic::new(pointer, short));
    }
    flaws
}

/// Reports references that leave the schema, because nothing is fetched, and cycles of references that do not
/// descend into the value, because checking would never end.
fn check_references(schema: &Value, pointer: &str, flaws: &mut Vec<SpecDiagnostic>) {
    let mut waiting = vec![(pointer.to_owned(), schema)];
    while let Some((pointer, value)) = waiting.pop() {
        match value {
            Value::Array(values) => {
                let inner = values.iter().enumerate();
                waiting.extend(inner.map(|(place, own)| (format!("{pointer}/{place}"), own)));
            }
            Value::Object(fields) => {
                for key in ["$ref", "$dynamicRef", "$recursiveRef"] {
                    let target = fields.get(key).and_then(Value::as_str);
                    if target.is_some_and(|target| target != "#" && !target.starts_with("#/")) {
                        let message =
                            "a reference must stay in the schema: it is `#`, or begins with `#/`";
                        flaws.push(SpecDiagnostic::new(child_pointer(&pointer, key), message));
                    }
                }
                for key in ["$id", "$anchor", "$dynamicAnchor"] {
                    if fields.get(key).is_some_and(Value::is_string) {
                        let message = "a schema has no name of its own here";
                        flaws.push(SpecDiagnostic::new(child_pointer(&pointer, key), message));
                    }
                }
                let inner = fields.iter();
                waiting.extend(inner.map(|(key, own)| (child_pointer(&pointer, key), own)));
            }
            _ => {}
        }
    }
    if flaws.is_empty() && has_reference_cycle(schema) {
        flaws.push(SpecDiagnostic::new(pointer, "a reference of the schema leads back to itself"));
    }
}

/// The subschemas that apply to the same value, not to a part of it.
fn same_value_schemas<'v>(root: &'v Value, fields: &'v Map<String, Value>) -> Vec<&'v Value> {
    let mut all = Vec::new();
    for key in ["$ref", "$dynamicRef", "$recursiveRef"] {
        let target = fields.get(key).and_then(Value::as_str);
        all.extend(target.and_then(|own| own.strip_prefix('#')).and_then(|own| root.pointer(own)));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        all.extend(fields.get(key).and_then(Value::as_array).into_iter().flatten());
    }
    all.extend(["not", "if", "then", "else"].iter().filter_map(|key| fields.get(*key)));
    for key in ["dependentSchemas", "dependencies"] {
        let inner = fields.get(key).and_then(Value::as_object);
        all.extend(inner.into_iter().flat_map(Map::values));
    }
    all
}

/// Whether some subschema leads back to itself without descending into the value.
fn has_reference_cycle(root: &Value) -> bool {
    let mut parts = vec![root];
    let mut waiting = vec![root];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Array(values) => waiting.extend(values),
            Value::Object(fields) => waiting.extend(fields.values()),
            _ => continue,
        }
        parts.push(value);
    }
    // Subschemas are identified by their addresses.
    let mut is_done: HashSet<*const Value> = HashSet::new();
    for part in parts {
        let mut way: HashSet<*const Value> = HashSet::new();
        let mut stack: Vec<(&Value, bool)> = vec![(part, false)];
        while let Some((at, is_left)) = stack.pop() {
            let key = std::ptr::from_ref(at);
            if is_left {
                way.remove(&key);
                is_done.insert(key);
                continue;
            }
            let Some(fields) = at.as_object().filter(|_| !is_done.contains(&key)) else { continue };
            if !way.insert(key) {
                return true;
            }
            stack.push((at, true));
            stack.extend(same_value_schemas(root, fields).into_iter().map(|next| (next, false)));
        }
    }
    false
}

/// Whether the schema has a `verdict` that can be `approve`.
pub fn has_verdict(schema: &Value) -> bool {
    let words = schema.pointer("/properties/verdict/enum").and_then(Value::as_array);
    words.is_some_and(|words| words.iter().any(|word| word == "approve"))
}

/// Whether a text is a JSON pointer.
pub fn is_pointer(text: &str) -> bool {
    let is_escaped = |part: &str| part.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.is_empty() || text.starts_with('/') && text.split('/').all(is_escaped)
}

/// A pointer that the schema does not allow: the missing part, and the known names at its place.
#[derive(Debug, PartialEq, Eq)]
pub struct UnreachablePointer {
    pub part: String,
    pub known: Vec<String>,
}

/// Checks that a value can exist at a pointer. Parts that the schema leaves open are accepted; a name that is missing
/// from stated properties is not.
pub fn check_pointer(schema: &Value, pointer: &str) -> Result<(), UnreachablePointer> {
    let parts: Vec<String> =
        pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
    walk_schema(schema, schema, &parts, 0)
}

fn walk_schema(
    root: &Value,
    at: &Value,
    parts: &[String],
    hops: usize,
) -> Result<(), UnreachablePointer> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    let nowhere = |known: Vec<String>| Err(UnreachablePointer { part: part.clone(), known });
    let Some(fields) = at.as_object() else {
        return if *at == Value::Bool(false) { nowhere(Vec::new()) } else { Ok(()) };
    };
    if hops > MAX_REFERENCES {
        return Ok(());
    }
    if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
        let inner = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return inner.map_or(Ok(()), |inner| walk_schema(root, inner, parts, hops + 1));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        if let Some(choices) = fields.get(key).and_then(Value::as_array) {
            let mut ways = choices.iter().map(|choice| walk_schema(root, choice, parts, hops + 1));
            let is_reached = if key == "allOf" {
                ways.all(|way| way.is_ok())
            } else {
                ways.any(|way| way.is_ok())
            };
            if !is_reached {
                return nowhere(Vec::new());
            }
        }
    }
    let can_be = |name: &str| match fields.get("type") {
        Some(Value::String(own)) => own == name,
        Some(Value::Array(all)) => all.iter().any(|own| own == name),
        _ => true,
    };
    let index = part.parse::<usize>().ok().filter(|index| index.to_string() == *part);
    let in_list = index.filter(|_| can_be("array")).map(|index| item_schema(fields, index));
    let in_object = can_be("object").then(|| property_schema(fields, part));
    let mut known = Vec::new();
    for way in [in_list, in_object].into_iter().flatten() {
        match way {
            Ok(None) => return Ok(()),
            Ok(Some(inner)) => return walk_schema(root, inner, rest, hops + 1),
            Err(names) => known = names,
        }
    }
    nowhere(known)
}

/// The schema of an item; `None` when it is unrestricted, an error when there cannot be one.
fn item_schema(fields: &Map<String, Value>, index: usize) -> Result<Option<&Value>, Vec<String>> {
    let most = fields.get("maxItems").and_then(Value::as_u64);
    if most.is_some_and(|most| u64::try_from(index).is_ok_and(|index| index >= most)) {
        return Err(Vec::new());
    }
    let first = fields.get("prefixItems").and_then(Value::as_array);
    match first.and_then(|first| first.get(index)).or_else(|| fields.get("items")) {
        Some(Value::Bool(false)) => Err(Vec::new()),
        inner => Ok(inner),
    }
}

/// The schema of a property; `None` when it is unrestricted, an error with the known names when there cannot be one.
fn property_schema<'v>(
    fields: &'v Map<String, Value>,
    name: &str,
) -> Result<Option<&'v Value>, Vec<String>> {
    let stated = fields.get("properties").and_then(Value::as_object);
    if let Some(inner) = stated.and_then(|own| own.get(name)) {
        return Ok(Some(inner));
    }
    let known = || stated.map(|own| own.keys().cloned().collect()).unwrap_or_default();
    match fields.get("additionalProperties") {
        Some(Value::Bool(true)) => Ok(None),
        Some(inner @ Value::Object(_)) => Ok(Some(inner)),
        _ if fields.contains_key("patternProperties") => Ok(None),
        None if stated.is_none() => Ok(None),
        _ => Err(known()),
    }
}
