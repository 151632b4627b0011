//! The keys of settings: names, who may set them, and what values they take, as the types of a Config say.

use std::fmt::Write;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{Config, forms, servers};

/// One setting.
#[derive(Debug, Clone)]
pub struct Key {
    /// Dotted, as in nested JSON objects.
    pub name: String,
    /// One sentence without a full stop.
    pub about: String,
    /// Whether a Workspace may set it: only what cannot widen trust.
    pub in_workspace: bool,
    /// Where it is in a Config that is written as JSON: a pointer.
    place: String,
    schema: Value,
}

/// Every setting there is.
static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    collect(&forms::schema_of::<Config>(), ("", ""), false, &mut keys);
    for (name, own, next) in OTHER_NAMES {
        let of = |name: &str| keys.iter().position(|key: &Key| key.name == name);
        if let (Some(own), Some(next)) = (of(own), of(next)) {
            let about = format!("Earlier name of `{}`", keys[own].name);
            keys.insert(next, Key { name: (*name).to_owned(), about, ..keys[own].clone() });
        }
    }
    keys
});

/// Second names: each with the setting that it means, and the one that it stands before.
const OTHER_NAMES: &[(&str, &str, &str)] = &[
    (SANDBOX, SANDBOX_LEVEL, SANDBOX_LEVEL),
    ("undo.max_total_bytes", "undo.max_bytes", "instructions_limit"),
];

const SANDBOX: &str = "sandbox";
const SANDBOX_LEVEL: &str = "sandbox.level";

/// The setting that is meant by a name that also is the name of a group.
pub fn canonical(name: &str) -> &str {
    if name == SANDBOX { SANDBOX_LEVEL } else { name }
}

/// Adds the fields of an object, and those of objects in it.
fn collect(schema: &Value, (prefix, place): (&str, &str), in_workspace: bool, keys: &mut Vec<Key>) {
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        let (name, place) = (format!("{prefix}{field}"), format!("{place}/{field}"));
        let in_workspace = in_workspace || schema["workspace"] == true;
        if schema.get("properties").is_some() {
            collect(schema, (&format!("{name}."), &place), in_workspace, keys);
            continue;
        }
        let about = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
        let about = about.trim_end_matches('.').to_owned();
        keys.push(Key { name, about, in_workspace, place, schema: schema.clone() });
    }
}

impl Key {
    /// Every setting, also under its second names.
    pub fn all() -> &'static [Key] {
        &KEYS
    }

    /// Every setting that is shown.
    pub fn shown() -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(|key| canonical(&key.name) == key.name)
    }

    /// The setting of this name.
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The name a person most likely meant, if any is near.
    pub fn nearest(name: &str) -> Option<&'static str> {
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

    /// The environment variable that sets it: `retry.base_ms` is `PIXIR_RETRY_BASE_MS`.
    pub fn variable(&self) -> String {
        format!("PIXIR_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// What it accepts, in the words of its refusal.
    pub fn accepts(&self) -> String {
        forms::accepts(&self.schema)
    }

    /// Reads what somebody typed; what does not fit stays text, for the error that names it.
    pub fn value_of(&self, text: &str) -> Value {
        let as_text = || Value::from(text);
        let trimmed = text.trim();
        match forms::kind(&self.schema) {
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

    /// Puts a value in its place, or says what was expected.
    pub fn set(&self, config: &mut Config, value: &Value) -> Result<(), String> {
        let refusal = || format!("must be {}, not {}", self.accepts(), found(value));
        if value.is_null() || !forms::fits(&self.schema, value) {
            return Err(refusal());
        }
        let mut tree = serde_json::to_value(&*config).map_err(|error| error.to_string())?;
        // Shown by their names alone, which are not to be read back.
        tree[SERVERS] = json!({});
        if let Some(place) = tree.pointer_mut(&self.place) {
            match (place, value) {
                // What one file hides stays hidden, whatever another one says.
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
        if self.name != SERVERS {
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

    /// What it is in a Config; `null` when nobody has set it and there is no default.
    pub fn show(&self, config: &Config) -> Value {
        let tree = serde_json::to_value(config).unwrap_or_default();
        let mut value = tree.pointer(&self.place).cloned().unwrap_or_default();
        if self.name == "providers" {
            servers::hide_logins(&mut value);
        }
        value
    }
}

const SERVERS: &str = "mcp_servers";

/// What came instead, without echoing long values.
fn found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(given) if given.len() <= 40 => format!("{given:?}"),
        Value::String(_) => "a long text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Every setting as a page.
pub fn reference() -> String {
    let mut page = "# Settings\n\n\
        Written by a test from the table of settings.\n\n\
        Weakest first: the default, your `~/.pixir/config.json`, the Workspace's `.pixir/config.json`, the environment, a flag. \
        In files, a dot is an object inside an object: `retry.base_ms` is `{\"retry\": {\"base_ms\": 500}}`. A Workspace \
        may set what is marked so; everything else in its file needs your trust (`pixir trust`), and what would widen the sandbox too. \
        `pixir config list --origin` shows what holds here, and who said so; `pixir config set KEY VALUE` changes your file.\n"
        .to_owned();
    let defaults = Config::default();
    for key in Key::shown() {
        let default = match key.show(&defaults) {
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
            key.variable()
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
        for key in Key::all() {
            assert!(!key.about.is_empty() && !key.about.ends_with('.'), "{}", key.name);
            assert!(!key.accepts().is_empty() && !key.accepts().contains("null"), "{}", key.name);
            assert!(jsonschema::validator_for(&key.schema).is_ok(), "{}", key.schema);
        }
    }

    #[test]
    fn a_default_that_is_shown_is_one_that_is_accepted() {
        let defaults = Config::default();
        for key in Key::shown().filter(|key| key.name != SERVERS) {
            let value = key.show(&defaults);
            if value.is_null() {
                continue;
            }
            let mut config = defaults.clone();
            assert_eq!(key.set(&mut config, &value), Ok(()), "{} {value}", key.name);
            assert_eq!(key.show(&config), value, "{}", key.name);
        }
    }
}
