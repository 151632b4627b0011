//! Words of a server, made fit for a model: plain, without hidden characters, and short.
//!
//! Whatever a server says about its tools stands in every request, so it is bounded like nothing
//! else, and it is the word of a stranger.

use serde_json::{Map, Value, json};

use crate::tool::{is_hidden, plain};

/// The longest manual of a tool, in bytes.
const LONGEST_MANUAL: usize = 2048;
/// The longest text inside a schema, in bytes.
const LONGEST_NOTE: usize = 512;
/// The largest schema, in bytes.
const LARGEST_SCHEMA: usize = 16 * 1024;
/// How deep a schema may be.
const DEEPEST: usize = 16;

/// A text without escape sequences and hidden characters, cut to so many bytes.
pub fn clean(text: &str, longest: usize) -> String {
    // What is cut away need not be cleaned; what is removed leaves room.
    let head = &text[..text.floor_char_boundary(longest.saturating_mul(4))];
    let mut kept: String = plain(head.as_bytes());
    kept.retain(|c| !is_hidden(c));
    let kept = kept.trim();
    if kept.len() <= longest {
        return kept.to_owned();
    }
    let end = kept.floor_char_boundary(longest.saturating_sub('…'.len_utf8()));
    format!("{}…", kept[..end].trim_end())
}

/// The same, on one line.
pub fn line(text: &str, longest: usize) -> String {
    let joined: Vec<&str> = text.split_whitespace().take(longest).collect();
    clean(&joined.join(" "), longest).replace('\n', " ")
}

/// What the model reads about a tool.
pub fn manual(server: &str, description: &str) -> String {
    let description = clean(description, LONGEST_MANUAL);
    let server = line(server, 64);
    if description.is_empty() {
        return format!("A tool of the MCP server {server}.");
    }
    format!("[MCP server {server}] {description}")
}

/// A schema that a Provider takes: an object, no deeper and no larger than is sensible. One that
/// cannot be made so lets everything pass; the server checks what it gets.
pub fn schema(given: &Map<String, Value>) -> Value {
    let mut schema = object(given, 0);
    if size(&schema) > LARGEST_SCHEMA {
        forget_words(&mut schema);
    }
    if size(&schema) > LARGEST_SCHEMA {
        schema = Map::new();
    }
    schema.insert("type".to_owned(), json!("object"));
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), json!({}));
    }
    Value::Object(schema)
}

fn size(schema: &Map<String, Value>) -> usize {
    serde_json::to_string(schema).map_or(usize::MAX, |text| text.len())
}

fn object(given: &Map<String, Value>, depth: usize) -> Map<String, Value> {
    let kept = given.iter().filter(|(key, _)| {
        // A reference to elsewhere would be a request that nobody asked for.
        !matches!(key.as_str(), "$schema" | "$id" | "$comment") && !key.starts_with("x-")
    });
    kept.map(|(key, value)| (line(key, 128), inner(value, depth + 1))).collect()
}

fn inner(value: &Value, depth: usize) -> Value {
    match value {
        Value::Object(_) | Value::Array(_) if depth > DEEPEST => json!({}),
        Value::Object(map) if is_elsewhere(map) => json!({}),
        Value::Object(map) => Value::Object(object(map, depth)),
        Value::Array(items) => items.iter().map(|item| inner(item, depth + 1)).collect(),
        Value::String(text) => Value::String(clean(text, LONGEST_NOTE)),
        plain => plain.clone(),
    }
}

fn is_elsewhere(map: &Map<String, Value>) -> bool {
    let target = map.get("$ref").and_then(Value::as_str);
    target.is_some_and(|target| !target.starts_with('#'))
}

/// Takes out what is only there to be read; names of properties stay, also such as these.
fn forget_words(schema: &mut Map<String, Value>) {
    for words in ["description", "title", "examples", "default"] {
        if schema.get(words).is_some_and(|value| !value.is_object()) {
            schema.remove(words);
        }
    }
    for (_, value) in schema.iter_mut() {
        match value {
            Value::Object(map) => forget_words(map),
            Value::Array(items) => {
                items.iter_mut().filter_map(Value::as_object_mut).for_each(forget_words);
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
        schema(value.as_object().unwrap())
    }

    #[test]
    fn words_are_plain_and_short() {
        assert_eq!(clean("a\u{1b}[31mb\u{202e}c\u{e0041} \n", 100), "abc");
        assert_eq!(clean(&"é".repeat(100), 10).len(), 9);
        assert_eq!(line(" a\n\tb ", 100), "a b");
        assert_eq!(manual("s", ""), "A tool of the MCP server s.");
        assert!(manual("s", &"x ".repeat(5000)).len() < LONGEST_MANUAL + 40);
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
        let remote =
            json!({"properties": {"a": {"$ref": "http://x/y"}, "b": {"$ref": "#/$defs/c"}}});
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

    proptest! {
        #[test]
        fn whatever_comes_is_cut(text in "\\PC{0,300}", longest in 4usize..64) {
            let cleaned = clean(&text, longest);
            prop_assert!(cleaned.len() <= longest.max('…'.len_utf8()));
            prop_assert!(!cleaned.chars().any(is_hidden));
            prop_assert_eq!(clean(&cleaned, longest), cleaned);
        }
    }
}
