//! Named servers: other places that speak the Responses dialect, in the user's own file only.

use std::collections::BTreeMap;

use serde_json::Value;

/// The servers that the user has named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Servers(BTreeMap<String, Server>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub base_url: String,
    /// The environment variable that holds its key; the key itself never stands in a file.
    pub key_env: Option<String>,
    /// Whether it takes everything that OpenAI takes, or only what every server understands.
    pub is_portable: bool,
    /// What it can run, the one to use first.
    pub models: Vec<String>,
}

impl Servers {
    /// Reads `{"ollama": {"base_url": "http://127.0.0.1:11434/v1", "models": ["gpt-oss:20b"]}}`.
    pub fn read(value: &Value) -> Result<Self, String> {
        let table = value.as_object().ok_or("must be an object of servers by name")?;
        let read = |(name, entry): (&String, &Value)| {
            let is_name = !name.is_empty()
                && name.len() <= 64
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
            if !is_name {
                return Err(format!("has a server with an odd name: {name:?}"));
            }
            let server = server(entry)
                .map_err(|reason| format!("has a mistake in server `{name}`: {reason}"))?;
            Ok((name.clone(), server))
        };
        table.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The server of that name.
    pub fn find(&self, name: &str) -> Option<&Server> {
        self.0.get(name)
    }

    /// The table as it would be written; an address without a name and password in it.
    pub fn shown(&self) -> Value {
        let row = |(name, server): (&String, &Server)| {
            let policy = if server.is_portable { "portable" } else { "openai" };
            let row = serde_json::json!({
                "base_url": without_login(&server.base_url),
                "key_env": server.key_env,
                "policy": policy,
                "models": server.models,
            });
            (name.clone(), row)
        };
        self.0.iter().map(row).collect()
    }

    /// Every name, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// `https://me:secret@host/v1?key=…` as `https://host/v1`.
fn without_login(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or(host);
    format!("{scheme}://{host}{path}")
}

fn server(entry: &Value) -> Result<Server, String> {
    const NAMES: [&str; 4] = ["base_url", "key_env", "policy", "models"];
    let fields = entry.as_object().ok_or("it is not an object")?;
    if let Some(odd) = fields.keys().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(format!("`{odd}` is none of {}", NAMES.join(", ")));
    }
    let text = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.trim().to_owned())),
        Some(_) => Err(format!("`{name}` must be text")),
    };
    let is_variable = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let key_env = text("key_env")?;
    if key_env.as_ref().is_some_and(|name| !is_variable(name)) {
        return Err("`key_env` must name an environment variable, not hold the key".to_owned());
    }
    let is_portable = match text("policy")?.as_deref() {
        None | Some("portable") => true,
        Some("openai") => false,
        Some(_) => return Err("`policy` must be \"portable\" or \"openai\"".to_owned()),
    };
    let models = match fields.get("models") {
        None | Some(Value::Null) => Vec::new(),
        Some(value) => {
            let list = value.as_array().ok_or("`models` must be a list of names")?;
            let names = list.iter().map(|name| name.as_str().filter(|name| !name.is_empty()));
            let names: Option<Vec<&str>> = names.collect();
            let names = names.ok_or("`models` must be a list of names")?;
            names.into_iter().map(str::to_owned).collect()
        }
    };
    let base_url = text("base_url")?.ok_or("`base_url` is missing")?;
    Ok(Server { base_url, key_env, is_portable, models })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_is_portable_unless_it_says_otherwise() {
        let servers = Servers::read(&json!({
            "ollama": {"base_url": "http://127.0.0.1:11434/v1", "models": ["a", "b"]},
            "proxy": {"base_url": "https://x/v1", "key_env": "PROXY_KEY", "policy": "openai"},
        }))
        .unwrap();
        assert_eq!(servers.names(), ["ollama", "proxy"]);
        assert!(servers.find("ollama").unwrap().is_portable);
        let proxy = servers.find("proxy").unwrap();
        assert_eq!((proxy.is_portable, proxy.key_env.as_deref()), (false, Some("PROXY_KEY")));
        assert_eq!(servers.find("other"), None);
    }

    #[test]
    fn a_mistake_in_a_server_is_named() {
        for (table, words) in [
            (json!([]), "must be an object"),
            (json!({"a b": {"base_url": "x"}}), "odd name"),
            (json!({"a": {}}), "server `a`: `base_url` is missing"),
            (json!({"a": {"base_url": "x", "key": "sk"}}), "`key` is none of"),
            (json!({"a": {"base_url": "x", "key_env": "sk-123 4"}}), "not hold the key"),
            (json!({"a": {"base_url": "x", "policy": "all"}}), "`policy` must be"),
            (json!({"a": {"base_url": "x", "models": [1]}}), "`models` must be"),
        ] {
            let mistake = Servers::read(&table).unwrap_err();
            assert!(mistake.contains(words), "{mistake}");
        }
    }
}
