//! Named model servers: other endpoints with the Responses API, from the user's own file only.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::forms;

/// The servers that the user has named:
/// `{"ollama": {"base_url": "http://127.0.0.1:11434/v1", "models": ["gpt-oss:20b"]}}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "forms::EntryTable")]
pub struct ProviderServers(BTreeMap<String, ProviderServer>);

/// One named model server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderServer {
    #[schemars(schema_with = "forms::text")]
    pub base_url: String,
    /// The environment variable that holds the server's key; the key itself is never in a file.
    #[serde(default)]
    #[schemars(schema_with = "variable")]
    pub key_env: Option<String>,
    #[serde(default)]
    #[schemars(with = "String", extend("enum" = ["portable", "openai"]))]
    pub policy: ServerPolicy,
    /// The names of the server's models, the default one first.
    #[serde(default)]
    #[schemars(inner(length(min = 1)), extend("accepts" = "a list of names"))]
    pub models: Vec<String>,
}

/// Which fields of a request a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerPolicy {
    /// Only fields that every server accepts.
    #[default]
    Portable,
    /// All fields that OpenAI accepts.
    OpenAi,
}

impl TryFrom<forms::EntryTable> for ProviderServers {
    type Error = String;

    fn try_from(table: forms::EntryTable) -> Result<Self, String> {
        let read = |(name, entry): (String, Value)| {
            if !is_server_name(&name) {
                return Err(format!("has a server with an invalid name: {name:?}"));
            }
            let server = forms::parse_object(&entry)
                .map_err(|reason| format!("has a mistake in server `{name}`: {reason}"))?;
            Ok((name, server))
        };
        table.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl ProviderServers {
    /// Finds a server by name.
    pub fn find(&self, name: &str) -> Option<&ProviderServer> {
        self.0.get(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// Whether a text is a valid name of a server of any kind.
pub fn is_server_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn variable(_: &mut SchemaGenerator) -> Schema {
    let refusal = "must name an environment variable, not hold the key";
    json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9_]+$", "refusal": refusal })
}

/// Removes user names and passwords from the addresses of a serialised table of servers.
pub fn hide_logins(table: &mut Value) {
    for server in table.as_object_mut().into_iter().flat_map(|table| table.values_mut()) {
        let hidden = server["base_url"].as_str().map(without_login);
        server["base_url"] = hidden.into();
    }
}

/// Shortens `https://me:secret@host/v1?key=…` to `https://host/v1`.
fn without_login(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or(host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(table: &Value) -> Result<ProviderServers, String> {
        serde_json::from_value(table.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_is_portable_unless_it_says_otherwise() {
        let servers = read(&json!({
            "ollama": {"base_url": "http://127.0.0.1:11434/v1", "models": ["a", "b"]},
            "proxy": {"base_url": "https://x/v1", "key_env": "PROXY_KEY", "policy": "openai"},
        }))
        .unwrap();
        assert_eq!(servers.names(), ["ollama", "proxy"]);
        assert_eq!(servers.find("ollama").unwrap().policy, ServerPolicy::Portable);
        let proxy = servers.find("proxy").unwrap();
        assert_eq!(
            (proxy.policy, proxy.key_env.as_deref()),
            (ServerPolicy::OpenAi, Some("PROXY_KEY"))
        );
        assert_eq!(servers.find("other"), None);
    }

    #[test]
    fn a_mistake_in_a_server_is_named() {
        for (table, words) in [
            (json!({"a b": {"base_url": "x"}}), "invalid name"),
            (json!({"a": {}}), "server `a`: `base_url` is missing"),
            (json!({"a": {"base_url": "x", "key": "sk"}}), "`key` is none of"),
            (json!({"a": {"base_url": "x", "key_env": "sk-123 4"}}), "not hold the key"),
            (json!({"a": {"base_url": "x", "policy": "all"}}), "`policy` must be"),
            (json!({"a": {"base_url": "x", "models": [1]}}), "`models` must be"),
        ] {
            let mistake = read(&table).unwrap_err();
            assert!(mistake.contains(words), "{mistake}");
        }
    }
}
