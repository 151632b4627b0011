//! MCP servers: what offers tools beside Pixir's own, and who says so.
//!
//! The user's file names them under `mcp_servers`, a Workspace may bring an `.mcp.json` that counts
//! once it is trusted, and an editor may hand some over with a Session. What stands in `env` and
//! `headers` may be secret and is never shown; `${NAME}` takes a value from the environment, and in
//! `command` and `args` from the entry's own `env` before that.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

/// How MCP servers are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mcp {
    /// By name, each name once.
    pub servers: Vec<McpServer>,
    /// How long the first Turn of a Session waits for servers that are still starting.
    pub wait: Duration,
    /// How long a server may take until it has said what it is and which tools it has.
    pub connect: Duration,
    /// How long one call may take.
    pub call: Duration,
}

impl Default for Mcp {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            wait: Duration::from_secs(5),
            connect: Duration::from_mins(1),
            call: Duration::from_mins(10),
        }
    }
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// What its tools are named after.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// Who brought it.
    pub origin: McpOrigin,
    /// Whether it is believed when it says that a tool only reads.
    pub is_trusted: bool,
}

/// How a server is reached.
#[derive(Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// A program that speaks over its standard input and output.
    Stdio {
        /// A name to be found on PATH, or a path.
        command: String,
        /// As they are; no shell reads them.
        args: Vec<String>,
        /// Beside what every command may inherit.
        env: Vec<(String, String)>,
        /// Where it runs.
        folder: McpFolder,
    },
    /// An address that speaks streamable HTTP.
    Http {
        /// The whole address of its endpoint.
        url: String,
        /// Sent with every request.
        headers: Vec<(String, String)>,
    },
    /// An entry that cannot be used: it is told by its name, and holds up no other.
    Broken {
        /// Where the entry stands.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Where the program of a server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpFolder {
    /// In the user's home, where no repository can put something in its way.
    Home,
    /// In the Workspace.
    Workspace,
    /// Where the entry says.
    At(PathBuf),
}

/// Who brought a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpOrigin {
    /// The user's own settings.
    User,
    /// A file of the Workspace that the user trusts.
    Workspace,
    /// The program that drives Pixir, such as an editor.
    Client,
}

impl McpOrigin {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            McpOrigin::User => "user",
            McpOrigin::Workspace => "workspace",
            McpOrigin::Client => "client",
        }
    }
}

impl McpServer {
    /// A program that a client hands over; what it says of itself is not believed.
    pub fn stdio(
        name: impl Into<String>,
        command: impl Into<String>,
        args: Vec<String>,
        env: Vec<(String, String)>,
    ) -> Self {
        let (command, folder) = (command.into(), McpFolder::Home);
        Self::of_client(name.into(), McpTransport::Stdio { command, args, env, folder })
    }

    /// An address that a client hands over; what it says of itself is not believed.
    pub fn http(
        name: impl Into<String>,
        url: impl Into<String>,
        headers: Vec<(String, String)>,
    ) -> Self {
        Self::of_client(name.into(), McpTransport::Http { url: url.into(), headers })
    }

    fn of_client(name: String, transport: McpTransport) -> Self {
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

    /// What is wrong with its entry, for a person; `None` when nothing is.
    pub fn problem(&self) -> Option<String> {
        match &self.transport {
            McpTransport::Broken { key, problem } => {
                Some(format!("MCP server `{}` cannot be used: `{key}`: {problem}", self.name))
            }
            McpTransport::Stdio { .. } | McpTransport::Http { .. } => None,
        }
    }
}

/// Shows the names of variables and headers, never their values.
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

/// Reads `mcp_servers` of a settings file. Nothing is guessed: an entry with a mistake is a server that
/// is broken, and the others are as they are.
pub fn read(value: &Value) -> Result<Vec<McpServer>, String> {
    let table = value.as_object().ok_or("must be an object of servers by name")?;
    let mut servers = Vec::new();
    for (name, entry) in table {
        let read = own(name, entry);
        let key = || format!("mcp_servers.{name}");
        let Some((transport, is_trusted)) = read
            .unwrap_or_else(|problem| Some((McpTransport::Broken { key: key(), problem }, false)))
        else {
            continue;
        };
        let name = name.clone();
        servers.push(McpServer { name, transport, origin: McpOrigin::User, is_trusted });
    }
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(servers)
}

/// An entry of the user's own; `None` when it is switched off.
fn own(name: &str, entry: &Value) -> Result<Option<(McpTransport, bool)>, String> {
    let is_name = !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if !is_name {
        return Err("the name must be 1 to 64 letters, digits, `.`, `_` or `-`".to_owned());
    }
    let fields = entry.as_object().ok_or("it is not an object")?;
    if switch(fields, "disabled")? {
        return Ok(None);
    }
    known_only(fields)?;
    Ok(Some((transport(fields, McpFolder::Home)?, switch(fields, "trusted")?)))
}

/// Reads the `.mcp.json` of a Workspace, which many programs share: what Pixir does not know in it
/// is skipped, and a server that cannot be used is broken.
pub fn read_shared(text: &str) -> Result<Vec<McpServer>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        format!("it is not JSON: line {}, column {}", error.line(), error.column())
    })?;
    let Some(table) = value.get("mcpServers").and_then(Value::as_object) else {
        return Err("it has no object `mcpServers`".to_owned());
    };
    let mut servers = Vec::new();
    for (name, entry) in table {
        let is_off = entry.get("disabled").and_then(Value::as_bool).unwrap_or(false);
        if is_off {
            continue;
        }
        let fields = entry.as_object().ok_or_else(|| "it is not an object".to_owned());
        let read = fields.and_then(|fields| transport(fields, McpFolder::Workspace));
        let transport = read.unwrap_or_else(|problem| McpTransport::Broken {
            key: format!("mcpServers.{name}"),
            problem,
        });
        let (name, origin) = (name.clone(), McpOrigin::Workspace);
        servers.push(McpServer { name, transport, origin, is_trusted: false });
    }
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(servers)
}

/// Adds servers to those that are there; whoever came first keeps the name. Gives the names that
/// were taken.
pub fn join(servers: &mut Vec<McpServer>, others: Vec<McpServer>) -> Vec<String> {
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

const NAMES: [&str; 9] =
    ["type", "command", "args", "env", "cwd", "url", "headers", "trusted", "disabled"];

fn known_only(fields: &Map<String, Value>) -> Result<(), String> {
    match fields.keys().find(|name| !NAMES.contains(&name.as_str())) {
        Some(odd) => Err(format!("`{odd}` is none of {}", NAMES.join(", "))),
        None => Ok(()),
    }
}

fn transport(fields: &Map<String, Value>, folder: McpFolder) -> Result<McpTransport, String> {
    let kind = text(fields, "type")?;
    let (command, url) = (text(fields, "command")?, text(fields, "url")?);
    match (kind.as_deref(), command, url) {
        (None | Some("stdio"), Some(command), None) => Ok(McpTransport::Stdio {
            command,
            args: texts(fields, "args")?,
            env: pairs(fields, "env")?,
            folder: folder_of(fields, folder)?,
        }),
        (None | Some("http" | "streamable-http" | "streamable_http"), None, Some(url)) => {
            Ok(McpTransport::Http { url, headers: pairs(fields, "headers")? })
        }
        (Some("sse"), ..) => {
            Err("the old `sse` transport is not spoken; use `http`, if the server has it".into())
        }
        (Some("stdio"), None, _) => Err("`command` is missing".into()),
        (Some("http" | "streamable-http" | "streamable_http"), _, None) => {
            Err("`url` is missing".into())
        }
        (
            Some("stdio" | "http" | "streamable-http" | "streamable_http") | None,
            Some(_),
            Some(_),
        ) => Err("it has both `command` and `url`".into()),
        (None, None, None) => Err("it has neither `command` nor `url`".into()),
        (Some(_), ..) => Err("`type` must be \"stdio\" or \"http\"".into()),
    }
}

fn folder_of(fields: &Map<String, Value>, default: McpFolder) -> Result<McpFolder, String> {
    match text(fields, "cwd")?.as_deref() {
        None => Ok(default),
        Some("home") => Ok(McpFolder::Home),
        Some("workspace") => Ok(McpFolder::Workspace),
        Some(path) if path.starts_with('/') => Ok(McpFolder::At(path.into())),
        Some(_) => Err("`cwd` must be \"home\", \"workspace\" or an absolute path".into()),
    }
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.trim().to_owned())),
        Some(_) => Err(format!("`{name}` must be text")),
    }
}

fn texts(fields: &Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    let wanted = || format!("`{name}` must be a list of texts");
    match fields.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            let item = |item: &Value| item.as_str().map(str::to_owned).ok_or_else(wanted);
            list.iter().map(item).collect()
        }
        Some(_) => Err(wanted()),
    }
}

fn pairs(fields: &Map<String, Value>, name: &str) -> Result<Vec<(String, String)>, String> {
    let wanted = || format!("`{name}` must be an object of texts");
    match fields.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(table)) => {
            let pair = |(name, value): (&String, &Value)| {
                let value = value.as_str().ok_or_else(wanted)?;
                Ok((name.clone(), value.to_owned()))
            };
            table.iter().map(pair).collect()
        }
        Some(_) => Err(wanted()),
    }
}

fn switch(fields: &Map<String, Value>, name: &str) -> Result<bool, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(given)) => Ok(*given),
        Some(_) => Err(format!("`{name}` must be true or false")),
    }
}

/// Puts values of the environment in the place of `${NAME}` and `${NAME:-otherwise}`; names the
/// variable that is missing. A command and its arguments see the entry's own `env` first, as the
/// program will.
pub fn expand(
    server: &mut McpServer,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<(), String> {
    match &mut server.transport {
        McpTransport::Stdio { command, args, env, .. } => {
            env.iter_mut().try_for_each(|(_, value)| fill(value, environment))?;
            let own = |name: &str| {
                let found = env.iter().find(|(own, _)| own == name);
                found.map(|(_, value)| value.clone()).or_else(|| environment(name))
            };
            fill(command, &own)?;
            args.iter_mut().try_for_each(|arg| fill(arg, &own))
        }
        McpTransport::Http { url, headers } => {
            fill(url, environment)?;
            headers.iter_mut().try_for_each(|(_, value)| fill(value, environment))
        }
        McpTransport::Broken { .. } => Ok(()),
    }
}

fn fill(text: &mut String, environment: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    if text.contains("${") {
        *text = expanded(text, environment)?;
    }
    Ok(())
}

fn expanded(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
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
        filled.push_str(
            &value.ok_or_else(|| format!("the variable {name} is not set, or not for it"))?,
        );
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_is_a_program_or_an_address() {
        let servers = read(&json!({
            "web": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer t"}},
            "files": {"command": "npx", "args": ["-y", "s"], "env": {"A": "b"}, "trusted": true},
            "off": {"command": "x", "disabled": true},
        }))
        .unwrap();
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
        assert!(read(&json!([])).unwrap_err().contains("must be an object"));
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
            let servers = read(&table).unwrap();
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
        let servers = read_shared(&text.to_string()).unwrap();
        assert_eq!((servers.len(), servers[0].problem()), (2, None));
        assert!(servers[1].problem().unwrap().contains("`mcpServers.old`: the old `sse`"));
        assert!(!servers[0].is_trusted, "no file of a Workspace speaks for itself");
        assert_eq!(servers[0].origin, McpOrigin::Workspace);
        assert!(read_shared("{}").is_err() && read_shared("nonsense").is_err());
    }

    #[test]
    fn who_came_first_keeps_the_name() {
        let mut servers = vec![McpServer::http("a", "http://one", Vec::new())];
        let others = vec![
            McpServer::http("a", "http://two", Vec::new()),
            McpServer::http("b", "http://three", Vec::new()),
        ];
        assert_eq!(join(&mut servers, others), ["a"]);
        assert_eq!(servers.len(), 2);
    }

    #[test]
    fn values_come_from_the_environment_when_they_say_so() {
        let environment = |name: &str| (name == "TOKEN").then(|| "s3cret".to_owned());
        let fill = |text: &str| expanded(text, &environment);
        assert_eq!(fill("Bearer ${TOKEN}!").unwrap(), "Bearer s3cret!");
        assert_eq!(fill("${OTHER:-a}${TOKEN:-b}").unwrap(), "as3cret");
        assert_eq!(fill("$TOKEN {x}").unwrap(), "$TOKEN {x}");
        assert!(fill("${OTHER}").unwrap_err().contains("OTHER is not set"));
        assert!(fill("${TOKEN").is_err());
        let mut server =
            McpServer::http("a", "http://x/${TOKEN}", vec![("K".into(), "${TOKEN}".into())]);
        expand(&mut server, &environment).unwrap();
        assert_eq!(server.private_values()[0].1, "s3cret");
    }

    #[test]
    fn arguments_see_the_own_variables_of_an_entry_first() {
        let environment = |name: &str| (name != "NOWHERE").then(|| format!("outer {name}"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let env = vec![pair("DB", "own ${HOST}"), pair("EMPTY", "")];
        let args = ["${DB}", "${HOST}", "${EMPTY:-none}"].map(str::to_owned).to_vec();
        let mut server = McpServer::stdio("a", "${DB}/bin", args, env);
        expand(&mut server, &environment).unwrap();
        let McpTransport::Stdio { command, args, env, .. } = &server.transport else { panic!() };
        assert_eq!(command, "own outer HOST/bin");
        assert_eq!(*args, ["own outer HOST", "outer HOST", "none"]);
        assert_eq!(env[0].1, "own outer HOST", "and `env` itself sees the environment alone");
        let args = vec!["${NOWHERE}".to_owned()];
        let mut server = McpServer::stdio("a", "x", args, vec![pair("NOWHERE_ELSE", "1")]);
        assert!(expand(&mut server, &environment).unwrap_err().contains("NOWHERE is not set"));
    }
}
