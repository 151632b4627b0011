//! Sanitizes the tool schemas of servers: a Provider that refuses a single schema refuses the whole
//! request, and with it every Turn. A part that cannot be sanitized accepts everything; the server
//! checks its arguments.

use serde_json::{Map, Value, json};

use super::sanitize_text::{clean_line, clean_text};

/// The longest text inside a schema, in bytes.
const LONGEST_NOTE: usize = 512;
/// The largest schema, in bytes.
const LARGEST: usize = 16 * 1024;
/// How deep a schema may be.
const DEEPEST: usize = 16;
/// Keywords that Providers refuse at the top of a schema.
const NOT_ON_TOP: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "enum", "const", "$ref"];

/// A schema that a Provider accepts: a valid object of bounded depth and size.
pub fn sanitize_schema(given: &Map<String, Value>) -> Value {
    let mut schema = sanitize_object(given, 0);
    schema.retain(|key, _| !NOT_ON_TOP.contains(&key.as_str()));
    if json_size(&schema) > LARGEST {
        remove_descriptions(&mut schema);
    }
    if json_size(&schema) > LARGEST {
        schema = Map::new();
    }
    schema.insert("type".to_owned(), json!("object"));
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), json!({}));
    }
    keep_valid_properties(schema)
}

/// The schema if it is valid; else with its valid properties; else an empty one.
fn keep_valid_properties(schema: Map<String, Value>) -> Value {
    let mut schema = Value::Object(schema);
    if is_valid_schema(&schema) {
        return schema;
    }
    // Definitions that properties refer to are checked with them.
    let defs: Vec<(String, Value)> = ["$defs", "definitions"]
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), schema.get(*name)?.clone())))
        .collect();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for property in properties.values_mut() {
            let mut alone = json!({ "type": "object", "properties": { "it": property } });
            for (name, value) in &defs {
                alone[name] = value.clone();
            }
            if !is_valid_schema(&alone) {
                *property = json!({});
            }
        }
    }
    if is_valid_schema(&schema) {
        return schema;
    }
    let properties = schema["properties"].take();
    let slim = json!({ "type": "object", "properties": properties });
    if is_valid_schema(&slim) { slim } else { json!({ "type": "object", "properties": {} }) }
}

/// Whether a schema is valid and its references resolve.
fn is_valid_schema(schema: &Value) -> bool {
    jsonschema::draft202012::new(schema).is_ok()
}

fn json_size(schema: &Map<String, Value>) -> usize {
    serde_json::to_string(schema).map_or(usize::MAX, |text| text.len())
}

fn sanitize_object(given: &Map<String, Value>, depth: usize) -> Map<String, Value> {
    let kept = given.iter().filter(|(key, _)| {
        // A reference to another document would cause an unexpected request.
        !matches!(key.as_str(), "$schema" | "$id" | "$comment" | "$dynamicRef" | "$vocabulary")
            && !key.starts_with("x-")
    });
    let mut kept: Map<String, Value> = kept
        .map(|(key, value)| (clean_line(key, 128), sanitize_keyword(key, value, depth + 1)))
        .collect();
    let is_list = kept.get("type").is_some_and(|kind| match kind {
        Value::String(kind) => kind == "array",
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "array"),
        _ => false,
    });
    // Providers refuse an array without `items`.
    if is_list && !kept.contains_key("items") && !kept.contains_key("prefixItems") {
        kept.insert("items".to_owned(), json!({}));
    }
    kept
}

fn sanitize_keyword(key: &str, value: &Value, depth: usize) -> Value {
    match (key, value) {
        // `true` means `{}`, and not every Provider accepts it.
        ("properties", Value::Object(properties)) if depth <= DEEPEST => {
            let property = |(name, value): (&String, &Value)| {
                let value = match value {
                    Value::Object(_) => sanitize_value(value, depth + 1),
                    _ => json!({}),
                };
                (clean_line(name, 128), value)
            };
            Value::Object(properties.iter().map(property).collect())
        }
        ("items", Value::Bool(_)) => json!({}),
        (_, value) => sanitize_value(value, depth),
    }
}

fn sanitize_value(value: &Value, depth: usize) -> Value {
    match value {
        Value::Object(_) | Value::Array(_) if depth > DEEPEST => json!({}),
        Value::Object(map) if is_external_reference(map) => json!({}),
        Value::Object(map) => Value::Object(sanitize_object(map, depth)),
        Value::Array(items) => items.iter().map(|item| sanitize_value(item, depth + 1)).collect(),
        Value::String(text) => Value::String(clean_text(text, LONGEST_NOTE)),
        plain => plain.clone(),
    }
}

fn is_external_reference(map: &Map<String, Value>) -> bool {
    let target = map.get("$ref").and_then(Value::as_str);
    target.is_some_and(|target| !target.starts_with('#'))
}

/// Removes descriptive keywords; properties of the same names stay.
fn remove_descriptions(schema: &mut Map<String, Value>) {
    for words in ["description", "title", "examples", "default"] {
        if schema.get(words).is_some_and(|value| !value.is_object()) {
            schema.remove(words);
        }
    }
    for (_, value) in schema.iter_mut() {
        match value {
            Value::Object(map) => remove_descriptions(map),
            Value::Array(items) => {
                items.iter_mut().filter_map(Value::as_object_mut).for_each(remove_descriptions);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schema_of(value: &Value) -> Value {
        sanitize_schema(value.as_object().unwrap())
    }

    #[test]
    fn a_schema_is_an_object_whatever_came() {
        assert_eq!(schema_of(&json!({})), json!({"type": "object", "properties": {}}));
        let given = json!({"$schema": "x", "type": "string", "properties": 1, "x-odd": 2});
        assert_eq!(schema_of(&given), json!({"type": "object", "properties": {}}));
        let usual = json!({"type": "object", "required": ["a"], "properties":
            {"a": {"type": "string", "description": "an\u{200b} a"}, "title": {"type": "number"}}});
        let mut expected = usual.clone();
        expected["properties"]["a"]["description"] = json!("an a");
        assert_eq!(schema_of(&usual), expected);
        let remote = json!({"properties": {"a": {"$ref": "http://x/y"}, "b": {"$ref": "#/$defs/c"}},
                "$defs": {"c": {"type": "string"}}});
        let kept = schema_of(&remote);
        assert_eq!(kept["properties"]["a"], json!({}));
        assert_eq!(kept["properties"]["b"], json!({"$ref": "#/$defs/c"}));
    }

    #[test]
    fn a_huge_schema_loses_its_words_and_then_itself() {
        let property = json!({"type": "string", "description": "x".repeat(500)});
        let named = |count: usize| -> Value {
            let all = (0..count).map(|n| (format!("p{n}"), property.clone()));
            json!({"properties": Value::Object(all.collect())})
        };
        let wordless = schema_of(&named(100));
        assert_eq!(wordless["properties"]["p99"], json!({"type": "string"}));
        assert_eq!(schema_of(&named(5000)), json!({"type": "object", "properties": {}}));
        let mut deep = json!({});
        for _ in 0..500 {
            deep = json!({"properties": {"a": deep}});
        }
        assert!(schema_of(&deep).to_string().len() < 1000);
    }

    #[test]
    fn what_a_provider_refuses_is_mended_part_by_part() {
        let open = json!({"type": "object", "properties": {}});
        for odd in [
            json!({"type": 5, "properties": [1], "required": 7}),
            json!({"type": "object", "required": ["a", "a"]}),
            json!({"additionalProperties": "no"}),
            json!({"anyOf": [{"required": ["a"]}], "not": {}, "$ref": "#/$defs/a"}),
        ] {
            assert_eq!(schema_of(&odd), open, "{odd}");
        }
        let mixed = schema_of(&json!({"required": ["good"], "properties": {
            "good": {"type": "string"},
            "kind": {"type": "nonsense"},
            "regex": {"type": "string", "pattern": "("},
            "number": {"minimum": "a"},
            "flag": true,
            "what": 7,
            "lost": {"$ref": "#/$defs/nowhere"},
            "list": {"type": "array"},
            "lists": {"type": ["array", "null"], "items": true},
        }}));
        assert_eq!(
            mixed,
            json!({"type": "object", "required": ["good"], "properties": {
                "good": {"type": "string"}, "kind": {}, "regex": {}, "number": {}, "flag": {},
                "what": {}, "lost": {}, "list": {"type": "array", "items": {}},
                "lists": {"type": ["array", "null"], "items": {}},
            }})
        );
        let endless = json!({"properties": {"a": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}});
        assert_eq!(schema_of(&endless)["properties"]["a"]["$ref"], "#/$defs/node");
    }

    /// Keywords of schemas in valid and invalid places.
    fn any_schema_like_value() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "type",
            "object",
            "array",
            "properties",
            "items",
            "$ref",
            "#/a",
            "required",
            "enum",
            "pattern",
            "(",
            "anyOf",
            "minimum",
            "$defs",
            "additionalProperties",
            "const",
        ]);
        let leaf = prop_oneof![
            word.clone().prop_map(|word| json!(word)),
            any::<bool>().prop_map(|truth| json!(truth)),
            any::<i8>().prop_map(|number| json!(number)),
            Just(Value::Null),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((word.clone(), inner), 0..4).prop_map(|fields| {
                    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_comes_holds(given in any_schema_like_value()) {
            let given = json!({"properties": {"a": given.clone()}, "x": given.clone(),
                "items": given, "type": "array"});
            let made = schema_of(&given);
            prop_assert!(is_valid_schema(&made), "{made}");
            prop_assert_eq!(&made["type"], "object");
            prop_assert!(made["properties"].is_object());
        }
    }
}
