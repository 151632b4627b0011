//! The setup of a Session from request parameters: working directory, additional directories, MCP servers.
//!
//! An MCP server that cannot be used is left out with a note; the Session is opened all the same.

use std::path::PathBuf;

use serde_json::Value;

use crate::base::id::SessionId;
use crate::host::rpc::RpcError;
use crate::settings::config::McpServer;

/// The parameters with which a client opens a Session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSetup {
    pub cwd: PathBuf,
    /// Additional directories of the Session.
    pub directories: Vec<PathBuf>,
    /// `None` when the client names none: then an open Session keeps its servers.
    pub servers: Option<Vec<ClientMcpServer>>,
    /// Notices about what was left out, for the user.
    pub notes: Vec<String>,
}

/// An MCP server of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMcpServer {
    /// A program to start.
    Stdio { name: String, command: PathBuf, args: Vec<String>, env: Vec<(String, String)> },
    /// An address to call.
    Http { name: String, url: String, headers: Vec<(String, String)> },
}

impl SessionSetup {
    /// Reads the parameters of `session/new`, `session/load` and `session/resume`.
    pub fn read(params: &Value) -> Result<Self, RpcError> {
        let cwd = absolute_path("cwd", params.get("cwd"))?;
        let mut directories = Vec::new();
        for directory in
            list_parameter("additionalDirectories", params.get("additionalDirectories"))?
        {
            let directory = absolute_path("additionalDirectories", Some(directory))?;
            if directory != cwd && !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        let (mut servers, mut notes) = (Vec::new(), Vec::new());
        let named = params.get("mcpServers").filter(|named| !named.is_null());
        for server in list_parameter("mcpServers", named)? {
            match ClientMcpServer::read(server) {
                Ok(server) => servers.push(server),
                Err(note) => notes.push(note),
            }
        }
        let servers = named.is_some().then_some(servers);
        Ok(Self { cwd, directories, servers, notes })
    }

    /// The canonical working directory, if it exists.
    pub fn directory(&self) -> Result<PathBuf, RpcError> {
        let real = self.cwd.canonicalize().ok().filter(|real| real.is_dir());
        real.ok_or_else(|| {
            RpcError::invalid_params(format!("`cwd` {} is not a directory", self.cwd.display()))
        })
    }

    /// The MCP servers for the Harness.
    pub fn to_mcp_servers(&self) -> Vec<McpServer> {
        self.servers.iter().flatten().cloned().map(ClientMcpServer::into_mcp_server).collect()
    }
}

impl ClientMcpServer {
    /// The server for the Harness: like one of the user's settings, but never trusted.
    fn into_mcp_server(self) -> McpServer {
        match self {
            ClientMcpServer::Stdio { name, command, args, env } => {
                McpServer::stdio(name, command.to_string_lossy(), args, env)
            }
            ClientMcpServer::Http { name, url, headers } => McpServer::http(name, url, headers),
        }
    }

    fn read(value: &Value) -> Result<Self, String> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let name = text("name").filter(|name| !name.is_empty());
        let shown = name.as_deref().unwrap_or("without a name").to_owned();
        let invalid = |why: &str| Err(format!("the MCP server {shown} is not used: {why}"));
        let name = name.unwrap_or_else(|| "unnamed".to_owned());
        match (text("type").as_deref(), text("command"), text("url")) {
            (None | Some("stdio"), Some(command), _) if !command.is_empty() => {
                let args = value.get("args").and_then(Value::as_array).into_iter().flatten();
                let args = args.filter_map(Value::as_str).map(str::to_owned).collect();
                let (command, env) = (PathBuf::from(command), name_value_pairs(value.get("env")));
                Ok(ClientMcpServer::Stdio { name, command, args, env })
            }
            (None | Some("http"), _, Some(url)) if !url.is_empty() => Ok(ClientMcpServer::Http {
                name,
                url,
                headers: name_value_pairs(value.get("headers")),
            }),
            (None | Some("stdio"), ..) => invalid("it has no command"),
            (Some("http"), ..) => invalid("it has no url"),
            (Some(other), ..) => invalid(&format!("Pixir does not speak `{other}`")),
        }
    }
}

/// The Session id of a request, parsed and as sent.
pub fn session_id(params: &Value) -> Result<(SessionId, String), RpcError> {
    let text = params.get("sessionId").and_then(Value::as_str);
    let text = text.ok_or_else(|| RpcError::invalid_params("`sessionId` must be a text"))?;
    let id = SessionId::parse(text).map_err(|_| super::error::unknown_session(text))?;
    Ok((id, text.to_owned()))
}

/// Parses an absolute path; a relative one would depend on where this process was started.
pub fn absolute_path(name: &str, value: Option<&Value>) -> Result<PathBuf, RpcError> {
    let path = value.and_then(Value::as_str).map(PathBuf::from);
    let path = path.filter(|path| path.is_absolute() && !path.to_string_lossy().contains('\0'));
    path.ok_or_else(|| RpcError::invalid_params(format!("`{name}` must be an absolute path")))
}

fn list_parameter<'v>(name: &str, value: Option<&'v Value>) -> Result<&'v [Value], RpcError> {
    match value {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(RpcError::invalid_params(format!("`{name}` must be a list"))),
    }
}

/// Name and value pairs, from a list of objects or from one object.
fn name_value_pairs(value: Option<&Value>) -> Vec<(String, String)> {
    let entry = |item: &Value| {
        let text = |key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
        Some((text("name")?, text("value")?))
    };
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(entry).collect(),
        Some(Value::Object(map)) => map
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect(),
        _ => Vec::new(),
    }
}
