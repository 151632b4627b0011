//! The JSON schema of Events, as it is published: what `--events` prints and a Log holds.
//!
//! The payloads are described by the types that write them, so the schema cannot fall behind. It is open: a
//! reader must expect types and fields of a later version.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use super::{
    Canonical, ContextPressure, Ephemeral, LOG_VERSION, PermissionAnswer, PermissionRequest,
    ProviderRetry, SessionStatus,
};
use crate::base::id::CallId;

/// The schema of one Event; not a part of the API.
pub fn events_schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut payloads: Vec<(&str, Value)> = Canonical::schemas(&mut generator)
        .into_iter()
        .map(|(name, schema)| (name, or_in_blob(&schema.to_value())))
        .collect();
    payloads.extend(
        Ephemeral::TYPES.iter().map(|name| (*name, ephemeral_payload(name, &mut generator))),
    );
    let rules: Vec<Value> = payloads.iter().map(|(name, data)| event_rule(name, data)).collect();
    let names: Vec<&str> = payloads.iter().map(|(name, _)| *name).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Pixir Event: one line of --events, or of a Log",
        "description": format!(
            "Version {LOG_VERSION} of the contract. A line of a Log has `h`, its proof, as its last key. \
             Types and fields that are not described here may come with a later version."
        ),
        "type": "object",
        "required": ["id", "session_id", "seq", "ts", "type", "data"],
        "properties": {
            "id": { "type": "string" },
            "session_id": { "type": "string" },
            "seq": {
                "description": "The place in the Log, from 0; null on Events that are in no Log",
                "type": ["integer", "null"],
                "minimum": 0,
            },
            "ts": { "type": "string", "format": "date-time" },
            "type": { "type": "string", "examples": names },
            "data": {},
            "h": { "type": "string", "pattern": "^[0-9a-f]{16}$" },
        },
        "allOf": rules,
        "$defs": generator.definitions(),
    })
}

/// The schema rule for Events of one type.
fn event_rule(name: &str, data: &Value) -> Value {
    let seq = if Ephemeral::TYPES.contains(&name) { json!("null") } else { json!("integer") };
    json!({
        "if": { "properties": { "type": { "const": name } } },
        "then": { "properties": { "seq": { "type": seq }, "data": data } },
    })
}

/// Allows a reference to a Blob: a payload over 256 KiB is stored in a separate file, which its line names.
fn or_in_blob(payload: &Value) -> Value {
    json!({ "anyOf": [payload, { "type": "object", "required": ["$blob"] }] })
}

/// The schema of an ephemeral payload, as `Ephemeral::data` writes it.
fn ephemeral_payload(name: &str, generator: &mut SchemaGenerator) -> Value {
    let object = |fields: Value| {
        let required: Vec<String> =
            fields.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        json!({ "type": "object", "required": required, "properties": fields })
    };
    let call_id = subschema::<CallId>(generator);
    match name {
        "text_delta" | "reasoning_delta" => object(json!({ "chunk": { "type": "string" } })),
        "tool_output_delta" => object(json!({ "call_id": call_id, "chunk": { "type": "string" } })),
        "status" => subschema::<SessionStatus>(generator),
        "context_pressure" => subschema::<ContextPressure>(generator),
        "provider_retry" => subschema::<ProviderRetry>(generator),
        "permission_request" => subschema::<PermissionRequest>(generator),
        "permission_resolved" => object(
            json!({ "call_id": call_id, "answer": subschema::<PermissionAnswer>(generator) }),
        ),
        _ => json!({}),
    }
}

fn subschema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}
