//! The table of settings, derived from the types of `Config`: names, accepted values, and who may set them.

use std::fmt::Write;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{Config, forms, provider_servers};

/// One setting: its name, description and schema.
#[derive(Debug, Clone)]
pub struct SettingKey {
    /// The dotted name; a dot is a nested JSON object.
    pub name: String,
    /// One sentence without a full stop.
    pub about: String,
    /// Whether a Workspace may set the key: only keys that cannot widen trust.
    pub in_workspace: bool,
    /// The JSON pointer to its value in a serialised `Config`.
    pointer: String,
    schema: Value,
}

/// All settings.
static KEYS: LazyLock<Vec<SettingKey>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    collect_keys(&forms::schema_of::<Config>(), ("", ""), false, &mut keys);
    for (name, own, next) in ALIASES {
        let of = |name: &str| keys.iter().position(|key: &SettingKey| key.name == name);
        if let (Some(own), Some(next)) = (of(own), of(next)) {
            let about = format!("Earlier name of `{}`", keys[own].name);
            keys.insert(next, SettingKey { name: (*name).to_owned(), about, ..keys[own].clone() });
        }
    }
    keys
});

/// Aliases: each with the setting that it means, and the setting that it is listed before.
const ALIASES: &[(&str, &str, &str)] = &[
    (SANDBOX, SANDBOX_LEVEL, SANDBOX_LEVEL),
    ("undo.max_total_bytes", "undo.max_bytes", "instructions_limit"),
];

const SANDBOX: &str = "sandbox";
const SANDBOX_LEVEL: &str = "sandbox.level";

/// The setting that a name means if it is also the name of a group.
pub fn canonical_name(name: &str) -> &str {
    if name == SANDBOX { SANDBOX_LEVEL } else { name }
}

/// Adds the fields of an object, and those of nested objects.
fn collect_keys(
    schema: &Value,
    (prefix, place): (&str, &str),
    in_workspace: bool,
    keys: &mut Vec<SettingKey>,
) {
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        let (name, place) = (format!("{prefix}{field}"), format!("{place}/{field}"));
        let in_workspace = in_workspace || schema["workspace"] == true;
        if schema.get("properties").is_some() {
            collect_keys(schema, (&format!("{name}."), &place), in_workspace, keys);
            continue;
        }
        let about = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
        let about = about.trim_end_matches('.').to_owned();
        keys.push(SettingKey { name, about, in_workspace, pointer: place, schema: schema.clone() });
    }
}

impl SettingKey {
    /// Every setting, including aliases.
    pub fn all() -> &'static [SettingKey] {
        &KEYS
    }

    /// Every setting that is listed.
    pub fn all_listed() -> impl Iterator<Item = &'static SettingKey> {
        KEYS.iter().filter(|key| canonical_name(&key.name) == key.name)
    }

    /// The setting of this name.
    pub fn find(name: &str) -> Option<&'static SettingKey> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The name that was most likely meant, if one is similar.
    pub fn nearest_name(name: &str) -> Option<&'static str> {
        let last = name.rsplit('.').next().unwrap_or(name);
        KEYS.iter()
            .map(|key| {
                let own_last = key.name.rsplit('.').next().unwrap_or(&key.name);
                let whole = strsim::jaro_winkler(name, &key.name);
                // A right name in the wrong group is as near as a misspelt one.
                let leaf = strsim::jaro_winkler(last, own_last) - 0.02;
                (whole.max(leaf), key.name.as_str())
            })
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .map(|(_, name)| name)
    }

    /// The environment variable of the setting: `PIXIR_RETRY_BASE_MS` for `retry.base_ms`.
    pub fn variable_name(&self) -> String {
        format!("PIXIR_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// The accepted values, in the words of the error message.
    pub fn accepts(&self) -> String {
        forms::describe_accepted(&self.schema)
    }

    /// Converts typed text to the JSON type of the setting; text that does not fit stays text, for the error message.
    pub fn parse_value(&self, text: &str) -> Value {
        let as_text = || Value::from(text);
        let trimmed = text.trim();
        match forms::json_type(&self.schema) {
            "integer" => trimmed.parse::<u64>().map_or_else(|_| as_text(), Value::from),
            "number" => {
                let number = trimmed.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                number.map_or_else(as_text, Value::from)
            }
            "boolean" => match trimmed {
                "1" | "true" => Value::from(true),
                "0" | "false" => Value::from(false),
                _ => as_text(),
            },
            "array" if !trimmed.starts_with('[') => {
                text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
            }
            "array" | "object" => serde_json::from_str(text).unwrap_or_else(|_| as_text()),
            _ => as_text(),
        }
    }

    /// Sets a value; the error says what is accepted.
    pub fn set(&self, config: &mut Config, value: &Value) -> Result<(), String> {
        let refusal = || format!("must be {}, not {}", self.accepts(), describe_found(value));
        if value.is_null() || !forms::fits(&self.schema, value) {
            return Err(refusal());
        }
        let mut tree = serde_json::to_value(&*config).map_err(|error| error.to_string())?;
        // Servers are serialised as names alone, which cannot be deserialised.
        tree[MCP_SERVERS] = json!({});
        if let Some(place) = tree.pointer_mut(&self.pointer) {
            match (place, value) {
                // A path that one file hides stays hidden, whatever another file says.
                (Value::Array(old), Value::Array(new)) if self.name == "sandbox.hide" => {
                    old.extend_from_slice(new);
                }
                (place, value) => *place = value.clone(),
            }
        }
        let mut new: Config = serde_json::from_value(tree).map_err(|error| match value {
            Value::Object(_) => error.to_string(),
            _ => refusal(),
        })?;
        if self.name != MCP_SERVERS {
            new.mcp.servers.clone_from(&config.mcp.servers);
        }
        *config = Config {
            home: config.home.clone(),
            model_named: config.model_named,
            mode_named: config.mode_named,
            role: config.role,
            writes: config.writes.clone(),
            dry_run: config.dry_run,
            answer_schema: config.answer_schema.clone(),
            ..new
        };
        Ok(())
    }

    /// The value in a `Config`; `null` when the setting is unset and has no default.
    pub fn read_from(&self, config: &Config) -> Value {
        let tree = serde_json::to_value(config).unwrap_or_default();
        let mut value = tree.pointer(&self.pointer).cloned().unwrap_or_default();
        if self.name == "providers" {
            provider_servers::hide_logins(&mut value);
        }
        value
    }
}

const MCP_SERVERS: &str = "mcp_servers";

/// Describes the refused value, without repeating long ones.
fn describe_found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(given) if given.len() <= 40 => format!("{given:?}"),
        Value::String(_) => "a long text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The reference of all settings, as a Markdown page.
pub fn settings_reference() -> String {
    let mut page = "# Settings\n\n\
        Written by a test from the table of settings.\n\n\
        Weakest first: the default, your `~/.pixir/config.json`, the Workspace's `.pixir/config.json`, the environment, a flag. \
        In files, a dot is an object inside an object: `retry.base_ms` is `{\"retry\": {\"base_ms\": 500}}`. A Workspace \
        may set the keys that say so below; everything else in its file, and anything that would widen the sandbox, \
        needs your trust (`pixir trust`). \
        `pixir config list --origin` shows the effective values and where each comes from; `pixir config set KEY VALUE` changes your file.\n"
        .to_owned();
    let defaults = Config::default();
    for key in SettingKey::all_listed() {
        let default = match key.read_from(&defaults) {
            Value::Null => "none".to_owned(),
            value => format!("`{value}`"),
        };
        let scope = if key.in_workspace { "you, or a Workspace" } else { "you" };
        // Writing to a String cannot fail.
        write!(
            page,
            "\n## `{}`\n\n{}.\n\n- accepts: {}\n- default: {default}\n- set by: {scope}\n- environment: `{}`\n",
            key.name,
            key.about,
            key.accepts(),
            key.variable_name()
        )
        .ok();
        if key.name == SANDBOX_LEVEL {
            writeln!(page, "- also written: `{SANDBOX}`").ok();
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_described() {
        for key in SettingKey::all() {
            assert!(!key.about.is_empty() && !key.about.ends_with('.'), "{}", key.name);
            assert!(!key.accepts().is_empty() && !key.accepts().contains("null"), "{}", key.name);
            assert!(jsonschema::validator_for(&key.schema).is_ok(), "{}", key.schema);
        }
    }

    #[test]
    fn a_default_that_is_shown_is_one_that_is_accepted() {
        let defaults = Config::default();
        for key in SettingKey::all_listed().filter(|key| key.name != MCP_SERVERS) {
            let value = key.read_from(&defaults);
            if value.is_null() {
                continue;
            }
            let mut config = defaults.clone();
            assert_eq!(key.set(&mut config, &value), Ok(()), "{} {value}", key.name);
            assert_eq!(key.read_from(&config), value, "{}", key.name);
        }
    }
}
