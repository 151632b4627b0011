//! JSON forms of settings: schemas of values, and serde modules for durations and limits.
//!
//! In addition to the keywords of JSON Schema, `accepts` completes the message "must be …", and `refusal` replaces it.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serializer};
use serde_json::Value;

/// A JSON object whose keys are names chosen by the user.
pub type EntryTable = BTreeMap<String, Value>;

/// The schema of a type, with all subschemas inlined.
pub fn schema_of<T: JsonSchema>() -> Value {
    let inline = |settings: &mut SchemaSettings| settings.inline_subschemas = true;
    let generator = SchemaSettings::default().with(inline).into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// Whether a value is valid against its schema.
pub fn fits(schema: &Value, value: &Value) -> bool {
    jsonschema::validator_for(schema).is_ok_and(|validator| validator.is_valid(value))
}

/// Describes in words what a schema accepts.
pub fn describe_accepted(schema: &Value) -> String {
    if let Some(words) = schema["accepts"].as_str() {
        return words.to_owned();
    }
    let words: Vec<String> =
        schema["enum"].as_array().into_iter().flatten().map(Value::to_string).collect();
    match words.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None if json_type(schema) == "boolean" => "true or false".to_owned(),
        None => format!("a whole number from {} to {}", schema["minimum"], schema["maximum"]),
    }
}

/// The JSON type that a schema accepts; the first, if there are several.
pub fn json_type(schema: &Value) -> &str {
    let kind = &schema["type"];
    kind.as_str().or_else(|| kind[0].as_str()).unwrap_or_default()
}

/// Deserialises the object of a setting, or names its first wrong field. Text is trimmed, and fields that are `null`
/// are ignored, because that is how people comment out a line of JSON.
pub fn parse_object<T: DeserializeOwned + JsonSchema>(value: &Value) -> Result<T, String> {
    let mut fields = value.as_object().ok_or("it is not an object")?.clone();
    let schema = schema_of::<T>();
    let known = schema["properties"].as_object().ok_or("it has no fields")?;
    if let Some(odd) = fields.keys().find(|name| !known.contains_key(*name)) {
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        return Err(format!("`{odd}` is none of {}", names.join(", ")));
    }
    fields.retain(|_, value| !value.is_null());
    for value in fields.values_mut() {
        if let Value::String(text) = value {
            *text = text.trim().to_owned();
        }
    }
    for (name, field) in known {
        match fields.get(name) {
            Some(value) if !fits(field, value) => {
                let refusal = field["refusal"].as_str().map(str::to_owned);
                let refusal =
                    refusal.unwrap_or_else(|| format!("must be {}", describe_accepted(field)));
                return Err(format!("`{name}` {refusal}"));
            }
            Some(_) => {}
            None => {
                let required = schema["required"].as_array();
                if required.is_some_and(|names| names.contains(&name.as_str().into())) {
                    return Err(format!("`{name}` is missing"));
                }
            }
        }
    }
    serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
}

/// The schema of a name without blanks and control characters.
pub fn word(_: &mut SchemaGenerator) -> Schema {
    let pattern = r"^[^\s\u0000-\u001f\u007f-\u009f]+$";
    json_schema!({ "type": "string", "maxLength": 200, "pattern": pattern, "accepts": "one word of text" })
}

/// The schema of text that is not empty.
pub fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1, "accepts": "text" })
}

/// The schema of a permission mode.
pub fn mode(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["auto", "ask", "read_only"] })
}

pub fn dollars(_: &mut SchemaGenerator) -> Schema {
    let words = "an amount of dollars above 0";
    json_schema!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1e9, "accepts": words })
}

pub fn file(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^/", "accepts": "an absolute path" })
}

pub fn files(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": file(generator), "accepts": "a list of absolute paths" })
}

/// The schema of a list of paths that are absolute or begin with `~/`, without `..`.
pub fn places(_: &mut SchemaGenerator) -> Schema {
    let path = json_schema!({
        "type": "string", "pattern": "^(/|~(/|$))", "not": { "pattern": r"(^|/)\.\.(/|$)" },
    });
    let words = "a list of paths that begin with / or ~/";
    json_schema!({ "type": "array", "items": path, "accepts": words })
}

pub fn variables(_: &mut SchemaGenerator) -> Schema {
    let name = json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9_]+$" });
    let words = "a list of environment variable names";
    json_schema!({ "type": "array", "items": name, "accepts": words })
}

/// A Duration as a number of milliseconds.
pub mod millis {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// An optional Duration as text such as `90s`.
pub mod span {
    use super::{
        Deserialize, Deserializer, Duration, Error, Schema, SchemaGenerator, Serializer, Value,
        json_schema,
    };
    use crate::settings::config::parse_duration;

    const WORDS: &str = "a duration such as 90s, 10m or 1h30m";

    pub fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number"], "accepts": WORDS })
    }

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => serializer.serialize_str(&format!("{}ms", span.as_millis())),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::Null => return Ok(None),
            Value::String(text) => text,
            other => other.to_string(),
        };
        parse_duration(&text).map(Some).ok_or_else(|| D::Error::custom(WORDS))
    }
}

/// An optional limit, where 0 means no limit.
pub mod zero_is_none {
    use super::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub fn serialize<S: Serializer>(most: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(most.unwrap_or(0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u32>, D::Error> {
        u32::deserialize(deserializer).map(|most| (most > 0).then_some(most))
    }
}
