//! Parses a config file into a flat list of dotted keys; duplicate keys stay visible.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::keys::SettingKey;

/// One value of a config file.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingLeaf {
    /// The dotted key.
    pub path: String,
    pub value: Value,
}

/// Parses a config file; objects are descended into only where they are groups of settings.
pub fn read_leaves(text: &str) -> Result<Vec<SettingLeaf>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let entries: ObjectEntries = serde_json::from_str(text).map_err(|error| {
        format!("it is not a JSON object: line {}, column {}", error.line(), error.column())
    })?;
    let mut found = Vec::new();
    collect_leaves(&entries, "", &mut found)?;
    Ok(found)
}

fn collect_leaves(
    entries: &ObjectEntries,
    prefix: &str,
    found: &mut Vec<SettingLeaf>,
) -> Result<(), String> {
    for (name, raw) in &entries.0 {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let is_group = SettingKey::all().iter().any(|key| {
            key.name.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('.'))
        });
        if is_group && raw.get().starts_with('{') {
            let inner = serde_json::from_str(raw.get())
                .map_err(|_| format!("`{path}` is not a JSON object"))?;
            collect_leaves(&inner, &path, found)?;
            continue;
        }
        if is_group && SettingKey::find(&path).is_none() {
            return Err(format!("`{path}` must be an object of settings"));
        }
        let value = serde_json::from_str(raw.get()).map_err(|_| format!("`{path}` is not JSON"))?;
        found.push(SettingLeaf { path, value });
    }
    Ok(())
}

/// The entries of one object in order; a map would silently keep only the last of duplicate keys.
struct ObjectEntries(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for ObjectEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = ObjectEntries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectEntries, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(ObjectEntries(entries))
    }
}
