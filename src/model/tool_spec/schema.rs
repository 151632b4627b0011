//! JSON Schemas of tool arguments.
//!
//! Schemas of built-in tools are generated from their types by a test and stored as text, because
//! generating them would delay the first request of every run, which sends all of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// The stored schemas: one line per built-in tool.
const STORED_SCHEMAS: &str = include_str!("schemas.json");

static SCHEMA_BY_TOOL: LazyLock<HashMap<&'static str, &'static RawValue>> =
    LazyLock::new(|| serde_json::from_str(STORED_SCHEMAS).unwrap_or_default());

/// Whether a tool of this build has that name.
pub fn is_built_in(tool: &str) -> bool {
    SCHEMA_BY_TOOL.contains_key(tool)
}

/// A JSON Schema, as text.
#[derive(Clone)]
pub struct ToolSchema(Cow<'static, RawValue>);

impl ToolSchema {
    /// The stored schema of a tool, else the one generated from its type.
    pub fn for_args<A: JsonSchema>(tool: &str) -> Self {
        SCHEMA_BY_TOOL
            .get(tool)
            .map_or_else(|| generate_schema::<A>().into(), |text| Self(Cow::Borrowed(text)))
    }

    /// The schema as a JSON value.
    pub fn value(&self) -> Value {
        serde_json::from_str(self.0.get()).unwrap_or_default()
    }
}

impl From<Value> for ToolSchema {
    fn from(schema: Value) -> Self {
        // Serialising a JSON value cannot fail.
        Self(Cow::Owned(serde_json::value::to_raw_value(&schema).unwrap_or_default()))
    }
}

impl Serialize for ToolSchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl PartialEq for ToolSchema {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl fmt::Debug for ToolSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.get())
    }
}

/// Generates the schema of a type, with all parts inlined instead of `$ref`.
pub fn generate_schema<A: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<A>().to_value();
    // Some Providers refuse an object schema without `properties`, even if it has none.
    if let Value::Object(map) = &mut schema {
        map.entry("properties").or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    shorten_schema(schema)
}

/// Removes parts that a model does not need: titles, number formats, defaults, and null for a missing value.
fn shorten_schema(schema: Value) -> Value {
    let Value::Object(mut map) = schema else { return schema };
    for noise in ["title", "format", "default"] {
        map.remove(noise);
    }
    if let Some(Value::Array(types)) = map.get("type")
        && let Some(only) = types.iter().find(|name| *name != "null").cloned()
    {
        map.insert("type".to_owned(), only);
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if map.contains_key("properties") {
        map.remove("description");
    }
    let shortened = map.into_iter().map(|(key, value)| match value {
        // Names of properties are not keywords; a property may be called `title`.
        Value::Object(inner) if key == "properties" => {
            let inner = inner.into_iter().map(|(name, value)| (name, shorten_schema(value)));
            (key, Value::Object(inner.collect()))
        }
        value => (key, shorten_schema(value)),
    });
    Value::Object(shortened.collect())
}

/// Stores these schemas as text, and fails if the file was stale.
#[cfg(test)]
pub fn store_schemas(generated: impl IntoIterator<Item = (String, Value)>) {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/model/tool_spec/schemas.json");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let mut all: std::collections::BTreeMap<String, Value> =
        serde_json::from_str(&before).unwrap_or_default();
    all.extend(generated);
    let lines: Vec<String> =
        all.iter().map(|(name, schema)| format!("{}:{schema}", serde_json::json!(name))).collect();
    let page = format!("{{\n{}\n}}\n", lines.join(",\n"));
    if before != page {
        std::fs::write(&path, page).unwrap();
        panic!("src/model/tool_spec/schemas.json was stale and has been rewritten: commit it");
    }
}
