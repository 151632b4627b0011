//! The JSON schema of a final answer: sent to the Provider, and checked against the answer.

use std::fmt;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::Value;

/// The largest accepted schema, in bytes; Providers refuse even smaller ones.
const MAX_SCHEMA_BYTES: usize = 256 * 1024;

/// The most mismatches that are reported; the first few suffice.
const MAX_MISMATCHES: usize = 5;

/// A JSON Schema for the final answer; cheap to clone.
#[derive(Clone)]
pub struct AnswerSchema {
    schema: Arc<Value>,
    is_strict: bool,
    validator: Arc<Validator>,
}

impl AnswerSchema {
    /// Parses a schema; the error says why it is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(format!("it is larger than {} KiB", MAX_SCHEMA_BYTES / 1024));
        }
        let schema: Value = serde_json::from_str(text).map_err(|error| {
            format!("it is not JSON: line {}, column {}", error.line(), error.column())
        })?;
        if !schema.is_object() {
            return Err("it is not a JSON object".to_owned());
        }
        let validator = jsonschema::validator_for(&schema)
            .map_err(|error| format!("it is not a JSON Schema: {error}"))?;
        let is_strict = is_strict(&schema);
        Ok(Self { schema: Arc::new(schema), is_strict, validator: Arc::new(validator) })
    }

    /// The schema as JSON.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Whether the Provider can enforce the schema (strict mode): every object is closed and requires all properties.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Checks an answer; the error lists the mismatches.
    pub fn check(&self, answer: &str) -> Result<(), Vec<AnswerMismatch>> {
        let value: Value = serde_json::from_str(answer.trim()).map_err(|error| {
            vec![AnswerMismatch {
                path: String::new(),
                message: format!("it is not JSON: {error}"),
            }]
        })?;
        let misses: Vec<AnswerMismatch> = self
            .validator
            .iter_errors(&value)
            .take(MAX_MISMATCHES)
            .map(|error| AnswerMismatch {
                path: error.instance_path().to_string(),
                message: error.to_string().chars().take(300).collect(),
            })
            .collect();
        if misses.is_empty() { Ok(()) } else { Err(misses) }
    }
}

/// A place where an answer does not match the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerMismatch {
    /// A JSON pointer; empty for the whole answer.
    pub path: String,
    pub message: String,
}

impl fmt::Display for AnswerMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl fmt::Debug for AnswerSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerSchema").field("is_strict", &self.is_strict).finish_non_exhaustive()
    }
}

impl PartialEq for AnswerSchema {
    fn eq(&self, other: &Self) -> bool {
        self.schema == other.schema
    }
}

/// Whether every object, at all levels, has all its properties in `required` and `additionalProperties: false`, as
/// strict mode demands. Other schemas are sent as they are, and only checked here.
fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let is_closed = match fields.get("properties").and_then(Value::as_object) {
                None => fields.get("type").and_then(Value::as_str) != Some("object"),
                Some(properties) => {
                    let required = fields.get("required").and_then(Value::as_array);
                    let names = |name: &String| {
                        required.is_some_and(|list| list.contains(&name.as_str().into()))
                    };
                    fields.get("additionalProperties") == Some(&Value::Bool(false))
                        && properties.keys().all(names)
                }
            };
            is_closed && fields.values().all(is_strict)
        }
        Value::Array(items) => items.iter().all(is_strict),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(value: &Value) -> AnswerSchema {
        AnswerSchema::parse(&value.to_string()).unwrap()
    }

    #[test]
    fn only_a_closed_schema_is_strict() {
        let closed = json!({
            "type": "object", "additionalProperties": false, "required": ["a"],
            "properties": {"a": {"type": "array", "items": {"type": "string"}}},
        });
        assert!(schema(&closed).is_strict());
        let mut open = closed.clone();
        open["required"] = json!([]);
        assert!(!schema(&open).is_strict());
        let mut deep = closed.clone();
        deep["properties"]["a"]["items"] = json!({"type": "object"});
        assert!(!schema(&deep).is_strict());
        assert!(schema(&json!({"type": "string"})).is_strict());
    }

    #[test]
    fn an_answer_is_checked_and_a_miss_has_a_place() {
        let schema = schema(&json!({
            "type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}},
        }));
        assert_eq!(schema.check(" {\"count\": 3}\n"), Ok(()));
        let misses = schema.check(r#"{"count": "three"}"#).unwrap_err();
        assert_eq!(misses[0].path, "/count");
        assert!(schema.check("three").unwrap_err()[0].message.starts_with("it is not JSON"));
        assert_eq!(schema.check("{}").unwrap_err()[0].path, "");
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for (text, words) in [
            ("{", "not JSON: line 1"),
            ("[]", "not a JSON object"),
            (r#"{"type": 3}"#, "not a JSON Schema"),
            (r#"{"type": "objekt"}"#, "not a JSON Schema"),
        ] {
            let mistake = AnswerSchema::parse(text).unwrap_err();
            assert!(mistake.contains(words), "{mistake}");
        }
        let remote = r#"{"$ref": "http://example.org/schema.json"}"#;
        assert!(AnswerSchema::parse(remote).is_err());
    }
}
