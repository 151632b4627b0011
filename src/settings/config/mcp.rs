//! Settings of MCP servers: where their entries come from, and how they are read.
//!
//! Servers come from `mcp_servers` in the user's file, from the `.mcp.json` of a Workspace once the user trusts it,
//! and from an editor with a Session. Values of `env` and `headers` may be secret and are never shown. `${NAME}` is
//! replaced by the environment variable, in `command` and `args` by the entry's own `env` first.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{DAY, HOUR, forms, provider_servers};
use crate::base::names::names;

/// MCP servers and their timeouts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct McpSettings {
    /// Programs and addresses that offer tools, by name; see `pixir mcp --help`.
    #[serde(rename = "mcp_servers", serialize_with = "names", deserialize_with = "table")]
    #[schemars(with = "forms::EntryTable", extend("accepts" = "an object of servers by name"))]
    pub servers: Vec<McpServer>,
    /// How long the first Turn waits for servers that are still starting.
    #[serde(rename = "mcp.wait_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(max = HOUR))]
    pub wait: Duration,
    /// How long a server may take to connect and report what it offers.
    #[serde(rename = "mcp.connect_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = HOUR))]
    pub connect: Duration,
    /// How long one call of a server's tool may take.
    #[serde(rename = "mcp.call_ms", with = "forms::millis")]
    #[schemars(with = "u64", range(min = 1, max = DAY))]
    pub call: Duration,
}

/// Serialises names alone, because arguments, variables and headers may hold secrets.
fn names<S: Serializer>(servers: &[McpServer], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(servers.iter().map(|server| &server.name))
}

fn table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<McpServer>, D::Error> {
    forms::EntryTable::deserialize(deserializer).map(read_servers)
}

impl Default for McpSettings {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            wait: Duration::from_secs(5),
            connect: Duration::from_mins(1),
            call: Duration::from_mins(10),
        }
    }
}

/// One MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// The name, which is part of the names of its tools.
    pub name: String,
    /// How to connect to the server.
    pub transport: McpTransport,
    /// The origin of the entry.
    pub origin: McpOrigin,
    /// Whether Pixir trusts the server's statement that a tool only reads.
    pub is_trusted: bool,
}

/// How to connect to a server.
#[derive(Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// A program that speaks over its standard input and output.
    Stdio {
        /// A program name to look up in PATH, or a path.
        command: String,
        /// Arguments, passed as they are, without a shell.
        args: Vec<String>,
        /// Variables in addition to those that every command may inherit.
        env: Vec<(String, String)>,
        /// The folder in which the program runs.
        folder: McpFolder,
    },
    /// An endpoint with the streamable HTTP transport.
    Http {
        /// The URL of the endpoint.
        url: String,
        /// Headers of every request.
        headers: Vec<(String, String)>,
    },
    /// An entry that cannot be used; it is reported, and the other servers are unaffected.
    Broken {
        /// The key of the entry.
        key: String,
        /// The mistake in the entry.
        problem: String,
    },
}

/// The folder that the program of a server runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpFolder {
    /// The user's home, where files of a repository cannot affect the program.
    Home,
    /// The Workspace.
    Workspace,
    /// The folder that the entry names.
    At(PathBuf),
}

/// The origin of a server's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpOrigin {
    /// The user's own settings.
    User,
    /// A file of the Workspace that the user trusts.
    Workspace,
    /// The program that drives Pixir, such as an editor.
    Client,
}

names!(McpOrigin { User = "user", Workspace = "workspace", Client = "client" });

impl McpServer {
    /// A program that a client passes; never trusted.
    pub fn stdio(
        name: impl Into<String>,
        command: impl Into<String>,
        args: Vec<String>,
        env: Vec<(String, String)>,
    ) -> Self {
        let (command, folder) = (command.into(), McpFolder::Home);
        Self::for_client(name.into(), McpTransport::Stdio { command, args, env, folder })
    }

    /// An HTTP endpoint that a client passes; never trusted.
    pub fn http(
        name: impl Into<String>,
        url: impl Into<String>,
        headers: Vec<(String, String)>,
    ) -> Self {
        Self::for_client(name.into(), McpTransport::Http { url: url.into(), headers })
    }

    fn for_client(name: String, transport: McpTransport) -> Self {
        Self { name, transport, origin: McpOrigin::Client, is_trusted: false }
    }

    /// Names and values that may be secret: variables of a program, headers of a request.
    pub fn private_values(&self) -> &[(String, String)] {
        match &self.transport {
            McpTransport::Stdio { env, .. } => env,
            McpTransport::Http { headers, .. } => headers,
            McpTransport::Broken { .. } => &[],
        }
    }

    /// The mistake in the server's entry, for display; `None` when the entry can be used.
    pub fn problem(&self) -> Option<String> {
        match &self.transport {
            McpTransport::Broken { key, problem } => {
                Some(format!("MCP server `{}` cannot be used: `{key}`: {problem}", self.name))
            }
            McpTransport::Stdio { .. } | McpTransport::Http { .. } => None,
        }
    }
}

/// Debug output with the names of variables and headers, never their values.
impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pairs: &[(String, String)]| -> Vec<String> {
            pairs.iter().map(|(name, _)| name.clone()).collect()
        };
        match self {
            McpTransport::Stdio { command, env, folder, .. } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("env", &names(env))
                .field("folder", folder)
                .finish_non_exhaustive(),
            McpTransport::Http { headers, .. } => {
                f.debug_struct("Http").field("headers", &names(headers)).finish_non_exhaustive()
            }
            McpTransport::Broken { key, .. } => {
                f.debug_struct("Broken").field("key", key).finish_non_exhaustive()
            }
        }
    }
}

/// The entry of a server in a file.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct McpEntry {
    #[serde(rename = "type")]
    #[schemars(schema_with = "forms::text")]
    kind: Option<String>,
    #[schemars(schema_with = "forms::text")]
    command: Option<String>,
    #[schemars(extend("accepts" = "a list of texts"))]
    args: Vec<String>,
    #[schemars(with = "BTreeMap<String, String>", extend("accepts" = "an object of texts"))]
    env: Map<String, Value>,
    #[schemars(schema_with = "cwd")]
    cwd: Option<String>,
    #[schemars(schema_with = "forms::text")]
    url: Option<String>,
    #[schemars(with = "BTreeMap<String, String>", extend("accepts" = "an object of texts"))]
    headers: Map<String, Value>,
    trusted: bool,
    /// Whether the entry is skipped; checked before the other fields are read.
    disabled: bool,
}

fn cwd(_: &mut SchemaGenerator) -> Schema {
    let words = "\"home\", \"workspace\" or an absolute path";
    json_schema!({ "type": "string", "pattern": "^(home$|workspace$|/)", "accepts": words })
}

/// Reads `mcp_servers` of a settings file. An entry with a mistake becomes a broken server and does not affect the
/// others.
fn read_servers(table: forms::EntryTable) -> Vec<McpServer> {
    let mut servers = Vec::new();
    for (name, value) in table {
        if !provider_servers::is_server_name(&name) {
            let problem = "the name must be 1 to 64 letters, digits, `.`, `_` or `-`".to_owned();
            let transport = McpTransport::Broken { key: format!("mcp_servers.{name}"), problem };
            servers.push(McpServer { name, transport, origin: McpOrigin::User, is_trusted: false });
        } else if value.get("disabled") != Some(&Value::Bool(true)) {
            servers.push(parse_server("mcp_servers", name, &value, McpOrigin::User));
        }
    }
    servers
}

/// Reads the `.mcp.json` of a Workspace, a format that many programs share: unknown fields are skipped, and a server
/// that cannot be used is broken.
pub fn parse_mcp_json(text: &str) -> Result<Vec<McpServer>, String> {
    let mut value: Value = serde_json::from_str(text).map_err(|error| {
        format!("it is not JSON: line {}, column {}", error.line(), error.column())
    })?;
    let Some(table) = value.get_mut("mcpServers").and_then(Value::as_object_mut) else {
        return Err("it has no object `mcpServers`".to_owned());
    };
    let mut servers = Vec::new();
    for (name, value) in table {
        if value.get("disabled") == Some(&Value::Bool(true)) {
            continue;
        }
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| SHARED_FIELDS.contains(&name.as_str()));
        }
        servers.push(parse_server("mcpServers", name.clone(), value, McpOrigin::Workspace));
    }
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(servers)
}

/// The fields of an entry that programs agree on; `trusted` is not one of them.
const SHARED_FIELDS: [&str; 7] = ["type", "command", "args", "env", "cwd", "url", "headers"];

/// The server that an entry describes, or a broken one.
fn parse_server(table: &str, name: String, value: &Value, origin: McpOrigin) -> McpServer {
    let read = forms::parse_object::<McpEntry>(&without_unused(value))
        .and_then(|entry| Ok((entry.trusted, parse_transport(entry, origin)?)));
    let (is_trusted, transport) = read.unwrap_or_else(|problem| {
        (false, McpTransport::Broken { key: format!("{table}.{name}"), problem })
    });
    McpServer { name, transport, origin, is_trusted }
}

/// An entry without the fields that its transport does not use, because other programs may write any value there.
fn without_unused(value: &Value) -> Value {
    let has = |name: &str| value.get(name).is_some_and(|value| !value.is_null());
    let has_command = has("command");
    let has_url = has("url");
    let mut used = value.clone();
    if let Some(fields) = used.as_object_mut() {
        fields.retain(|name, _| match name.as_str() {
            "args" | "env" | "cwd" => has_command,
            "headers" => has_url,
            _ => true,
        });
    }
    used
}

/// Adds servers whose names are free; returns the names that were taken already.
pub fn merge_servers(servers: &mut Vec<McpServer>, others: Vec<McpServer>) -> Vec<String> {
    let mut taken = Vec::new();
    for other in others {
        if servers.iter().any(|own| own.name == other.name) {
            taken.push(other.name);
        } else {
            servers.push(other);
        }
    }
    taken
}

fn parse_transport(entry: McpEntry, origin: McpOrigin) -> Result<McpTransport, String> {
    let McpEntry { kind, command, args, env, cwd, url, headers, .. } = entry;
    let kind = kind.as_deref().map(|kind| match kind {
        "streamable-http" | "streamable_http" => "http",
        kind => kind,
    });
    match (kind, command, url) {
        (Some("sse"), ..) => {
            Err("the old `sse` transport is not supported; use `http`, if the server has it".into())
        }
        (Some("stdio"), None, _) => Err("`command` is missing".into()),
        (Some("http"), _, None) => Err("`url` is missing".into()),
        (Some(kind), ..) if !matches!(kind, "stdio" | "http") => {
            Err("`type` must be \"stdio\" or \"http\"".into())
        }
        (_, Some(_), Some(_)) => Err("it has both `command` and `url`".into()),
        (_, None, None) => Err("it has neither `command` nor `url`".into()),
        (_, Some(command), None) => {
            let folder = match cwd.as_deref() {
                None if origin == McpOrigin::Workspace => McpFolder::Workspace,
                None | Some("home") => McpFolder::Home,
                Some("workspace") => McpFolder::Workspace,
                Some(path) => McpFolder::At(path.into()),
            };
            Ok(McpTransport::Stdio { command, args, env: string_pairs(env), folder })
        }
        (_, None, Some(url)) => Ok(McpTransport::Http { url, headers: string_pairs(headers) }),
    }
}

fn string_pairs(table: Map<String, Value>) -> Vec<(String, String)> {
    let pair = |(name, value): (String, Value)| Some((name, value.as_str()?.to_owned()));
    table.into_iter().filter_map(pair).collect()
}

/// Replaces `${NAME}` and `${NAME:-default}` by environment variables; the error names the missing variable. In the
/// command and its arguments the entry's own `env` comes first, as the program will see it.
pub fn expand_server(
    server: &mut McpServer,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<(), String> {
    match &mut server.transport {
        McpTransport::Stdio { command, args, env, .. } => {
            env.iter_mut().try_for_each(|(_, value)| expand_in_place(value, environment))?;
            let own = |name: &str| {
                let found = env.iter().find(|(own, _)| own == name);
                found.map(|(_, value)| value.clone()).or_else(|| environment(name))
            };
            expand_in_place(command, &own)?;
            args.iter_mut().try_for_each(|arg| expand_in_place(arg, &own))
        }
        McpTransport::Http { url, headers } => {
            expand_in_place(url, environment)?;
            headers.iter_mut().try_for_each(|(_, value)| expand_in_place(value, environment))
        }
        McpTransport::Broken { .. } => Ok(()),
    }
}

fn expand_in_place(
    text: &mut String,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<(), String> {
    if text.contains("${") {
        *text = expand_text(text, environment)?;
    }
    Ok(())
}

fn expand_text(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("${") {
        let Some((inner, after)) = behind.split_once('}') else {
            return Err("a `${` has no end".to_owned());
        };
        let (name, otherwise) = match inner.split_once(":-") {
            Some((name, otherwise)) => (name, Some(otherwise)),
            None => (inner, None),
        };
        let found = environment(name).filter(|value| !value.is_empty());
        let value = found.or_else(|| otherwise.map(str::to_owned));
        filled.push_str(before);
        filled.push_str(&value.ok_or_else(|| {
            format!("the variable {name} is not set, or may not be passed to this server")
        })?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_servers(table: Value) -> Vec<McpServer> {
        super::read_servers(serde_json::from_value(table).unwrap())
    }

    #[test]
    fn a_server_is_a_program_or_an_address() {
        let servers = read_servers(json!({
            "web": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer t"}},
            "files": {"command": "npx", "args": ["-y", "s"], "env": {"A": "b"}, "trusted": true},
            "off": {"command": "x", "disabled": true},
        }));
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["files", "web"]);
        assert!(servers[0].is_trusted && !servers[1].is_trusted);
        let McpTransport::Stdio { folder, .. } = &servers[0].transport else { panic!() };
        assert_eq!(*folder, McpFolder::Home);
        let shown = format!("{servers:?}");
        assert!(shown.contains("Authorization") && !shown.contains("Bearer"), "{shown}");
    }

    #[test]
    fn a_mistake_in_a_server_is_named_and_breaks_no_other() {
        for (mut table, words) in [
            (json!({"a b": {"command": "x"}}), "`mcp_servers.a b`: the name must be"),
            (json!({"a": 1}), "`mcp_servers.a`: it is not an object"),
            (json!({"a": {}}), "neither `command` nor `url`"),
            (json!({"a": {"command": "x", "url": "y"}}), "both `command` and `url`"),
            (json!({"a": {"command": "x", "enviroment": {}}}), "`enviroment` is none of"),
            (json!({"a": {"command": "x", "args": "y"}}), "`args` must be a list"),
            (json!({"a": {"command": "x", "env": {"A": 1}}}), "`env` must be an object of texts"),
            (json!({"a": {"command": "x", "cwd": "sub"}}), "`cwd` must be"),
            (json!({"a": {"command": "x", "trusted": "yes"}}), "`trusted` must be true or false"),
            (json!({"a": {"type": "sse", "url": "x"}}), "old `sse`"),
            (json!({"a": {"type": "http", "command": "x"}}), "`url` is missing"),
            (json!({"a": {"type": "stdio", "url": "x"}}), "`command` is missing"),
            (json!({"a": {"type": "pigeon", "url": "x"}}), "`type` must be"),
        ] {
            table["good"] = json!({"command": "y"});
            let servers = read_servers(table);
            let problem = servers[0].problem().unwrap();
            assert!(problem.contains(words), "{problem}");
            assert_eq!((servers[1].name.as_str(), servers[1].problem()), ("good", None));
        }
    }

    #[test]
    fn a_shared_file_is_read_as_far_as_it_can_be_used() {
        let text = json!({"mcpServers": {
            "My Tools": {"command": "x", "alwaysAllow": ["y"], "trusted": true},
            "old": {"type": "sse", "url": "http://x"},
        }});
        let servers = parse_mcp_json(&text.to_string()).unwrap();
        assert_eq!((servers.len(), servers[0].problem()), (2, None));
        assert!(servers[1].problem().unwrap().contains("`mcpServers.old`: the old `sse`"));
        assert!(!servers[0].is_trusted, "no file of a Workspace speaks for itself");
        assert_eq!(servers[0].origin, McpOrigin::Workspace);
        assert!(parse_mcp_json("{}").is_err() && parse_mcp_json("nonsense").is_err());
    }

    #[test]
    fn fields_of_the_other_transport_do_not_count() {
        let servers = read_servers(json!({
            "a": {"type": "http", "url": "http://x", "env": {"PORT": 8080}, "args": [1], "cwd": 5},
            "b": {"command": "x", "headers": {"n": 1}, "url": null},
        }));
        assert_eq!(servers.len(), 2);
        assert!(servers.iter().all(|server| server.problem().is_none()), "{servers:?}");
    }

    #[test]
    fn who_came_first_keeps_the_name() {
        let mut servers = vec![McpServer::http("a", "http://one", Vec::new())];
        let others = vec![
            McpServer::http("a", "http://two", Vec::new()),
            McpServer::http("b", "http://three", Vec::new()),
        ];
        assert_eq!(merge_servers(&mut servers, others), ["a"]);
        assert_eq!(servers.len(), 2);
    }

    #[test]
    fn values_come_from_the_environment_when_they_say_so() {
        let environment = |name: &str| (name == "TOKEN").then(|| "s3cret".to_owned());
        let fill = |text: &str| expand_text(text, &environment);
        assert_eq!(fill("Bearer ${TOKEN}!").unwrap(), "Bearer s3cret!");
        assert_eq!(fill("${OTHER:-a}${TOKEN:-b}").unwrap(), "as3cret");
        assert_eq!(fill("$TOKEN {x}").unwrap(), "$TOKEN {x}");
        assert!(fill("${OTHER}").unwrap_err().contains("OTHER is not set"));
        assert!(fill("${TOKEN").is_err());
        let mut server =
            McpServer::http("a", "http://x/${TOKEN}", vec![("K".into(), "${TOKEN}".into())]);
        expand_server(&mut server, &environment).unwrap();
        assert_eq!(server.private_values()[0].1, "s3cret");
    }

    #[test]
    fn arguments_see_the_own_variables_of_an_entry_first() {
        let environment = |name: &str| (name != "NOWHERE").then(|| format!("outer {name}"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let env = vec![pair("DB", "own ${HOST}"), pair("EMPTY", "")];
        let args = ["${DB}", "${HOST}", "${EMPTY:-none}"].map(str::to_owned).to_vec();
        let mut server = McpServer::stdio("a", "${DB}/bin", args, env);
        expand_server(&mut server, &environment).unwrap();
        let McpTransport::Stdio { command, args, env, .. } = &server.transport else { panic!() };
        assert_eq!(command, "own outer HOST/bin");
        assert_eq!(*args, ["own outer HOST", "outer HOST", "none"]);
        assert_eq!(env[0].1, "own outer HOST", "and `env` itself sees the environment alone");
        let args = vec!["${NOWHERE}".to_owned()];
        let mut server = McpServer::stdio("a", "x", args, vec![pair("NOWHERE_ELSE", "1")]);
        assert!(
            expand_server(&mut server, &environment).unwrap_err().contains("NOWHERE is not set")
        );
    }
}
