//! The origin of a setting: the layer that set its effective value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::keys::canonical_name;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SettingOrigin {
    /// Pixir's default.
    #[default]
    Default,
    /// The user's file.
    User(PathBuf),
    /// The Workspace's file.
    Workspace(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A flag of this run.
    Flag(String),
}

impl SettingOrigin {
    /// The name of the layer.
    pub fn layer(&self) -> &'static str {
        match self {
            SettingOrigin::Default => "default",
            SettingOrigin::User(_) => "user",
            SettingOrigin::Workspace(_) => "workspace",
            SettingOrigin::Variable(_) => "environment",
            SettingOrigin::Flag(_) => "flag",
        }
    }

    /// Layer and location, as JSON.
    pub fn to_json(&self) -> Value {
        let mut facts = json!({ "layer": self.layer() });
        if let (Some(facts), Value::Object(place)) = (facts.as_object_mut(), self.location()) {
            facts.extend(place);
        }
        facts
    }

    /// The file, variable or flag, as JSON.
    pub fn location(&self) -> Value {
        match self {
            SettingOrigin::Default => json!({}),
            SettingOrigin::User(path) | SettingOrigin::Workspace(path) => {
                json!({ "file": path.display().to_string() })
            }
            SettingOrigin::Variable(name) => json!({ "variable": name }),
            SettingOrigin::Flag(name) => json!({ "flag": name }),
        }
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Default => f.write_str("default"),
            SettingOrigin::User(path) | SettingOrigin::Workspace(path) => {
                write!(f, "{}", path.display())
            }
            SettingOrigin::Variable(name) | SettingOrigin::Flag(name) => f.write_str(name),
        }
    }
}

/// The origins of all settings; a setting that is not in it has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingOrigins(BTreeMap<String, SettingOrigin>);

impl SettingOrigins {
    /// The origin of a setting's effective value.
    pub fn get(&self, name: &str) -> SettingOrigin {
        self.0.get(canonical_name(name)).cloned().unwrap_or_default()
    }

    pub(super) fn set(&mut self, name: &str, origin: SettingOrigin) {
        self.0.insert(canonical_name(name).to_owned(), origin);
    }
}
