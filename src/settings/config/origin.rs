//! The origin of a setting: the layer that set its effective value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::keys::canonical;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
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

impl Origin {
    /// The name of the layer.
    pub fn layer(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::User(_) => "user",
            Origin::Workspace(_) => "workspace",
            Origin::Variable(_) => "environment",
            Origin::Flag(_) => "flag",
        }
    }

    /// Layer and location, as JSON.
    pub fn facts(&self) -> Value {
        let mut facts = json!({ "layer": self.layer() });
        if let (Some(facts), Value::Object(place)) = (facts.as_object_mut(), self.place()) {
            facts.extend(place);
        }
        facts
    }

    /// The file, variable or flag, as JSON.
    pub fn place(&self) -> Value {
        match self {
            Origin::Default => json!({}),
            Origin::User(path) | Origin::Workspace(path) => {
                json!({ "file": path.display().to_string() })
            }
            Origin::Variable(name) => json!({ "variable": name }),
            Origin::Flag(name) => json!({ "flag": name }),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::User(path) | Origin::Workspace(path) => write!(f, "{}", path.display()),
            Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// The origins of all settings; a setting that is not in it has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// The origin of a setting's effective value.
    pub fn of(&self, name: &str) -> Origin {
        self.0.get(canonical(name)).cloned().unwrap_or_default()
    }

    pub(super) fn set(&mut self, name: &str, origin: Origin) {
        self.0.insert(canonical(name).to_owned(), origin);
    }
}
