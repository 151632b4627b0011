//! One attempt to connect: start or reach a server, initialize it, and list its tools.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{ClientRequest, ListToolsRequest, PaginatedRequestParams, ServerResult, Tool};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, Peer, RunningService,
    ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::Value;

use super::McpError;
use super::handler::Handler;
use super::http_transport::{McpHttpClient, headers_of};
use super::pipes::{Delivery, Errors, Flaw, LONGEST_MESSAGE, Pipes};
use super::wording;
use crate::base::secret::Secrets;
use crate::host::http::HttpSettings;
use crate::host::process::{Commands, Program};
use crate::settings::config::{Mcp, McpFolder, McpOrigin, McpServer, McpTransport};

/// How many tools of one server are read, and in how many pages they may come.
const MOST_LISTED: usize = 10_000;
const MOST_PAGES: usize = 100;

/// How long to wait for the exit of a program that closed its pipes.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// What connections need: how to start programs, HTTP settings, folders, secrets and limits.
#[derive(Clone)]
pub struct Ground {
    pub commands: Commands,
    pub http: HttpSettings,
    pub workspace: PathBuf,
    /// The user's home folder, where programs run by default.
    pub home: PathBuf,
    pub secrets: Arc<Secrets>,
    pub limits: Mcp,
}

/// An initialized connection, with the tools of its server.
pub struct Live {
    pub running: RunningService<RoleClient, Handler>,
    pub handler: Handler,
    pub tools: Listed,
    pub flaw: Flaw,
    pub errors: Errors,
    /// Tracks which calls reached the server, if the transport can tell.
    pub delivery: Option<Delivery>,
}

/// Connects, within the time limit of the settings.
pub async fn connect(server: &McpServer, ground: &Ground) -> Result<Live, McpError> {
    let (flaw, errors) = (Flaw::default(), Errors::default());
    let after = ground.limits.connect;
    let attempt = attempt(server, ground, flaw.clone(), errors.clone());
    let outcome = match tokio::time::timeout(after, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(McpError::Silent { after, errors: String::new() }),
    };
    outcome.map_err(|error| error.with_errors(errors.tail(&ground.secrets)))
}

async fn attempt(
    server: &McpServer,
    ground: &Ground,
    flaw: Flaw,
    errors: Errors,
) -> Result<Live, McpError> {
    let handler = Handler::new(&server.name, &ground.workspace, Arc::clone(&ground.secrets));
    let greet = ClientLifecycleMode::Initialize;
    let mut delivery = None;
    let greeted = match &server.transport {
        McpTransport::Stdio { command, args, env, folder } => {
            let program = Program {
                command: command_of(server, command, ground)?,
                args: args.clone(),
                directory: folder_of(folder, ground)?,
                environment: env.clone(),
            };
            let started = ground.commands.serve(&program).await;
            let started = started.map_err(|error| McpError::from(&error))?;
            let secrets = Arc::clone(&ground.secrets);
            let pipes = Pipes::to(started, &server.name, flaw.clone(), errors.clone(), secrets);
            delivery = Some(pipes.delivery());
            handler.clone().serve_with_lifecycle(pipes, greet).await
        }
        McpTransport::Http { url, headers } => {
            let client = McpHttpClient::new(&ground.http, url, flaw.clone());
            let settings = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                .custom_headers(headers_of(url, headers)?)
                .max_sse_event_size(LONGEST_MESSAGE);
            let transport = StreamableHttpClientTransport::with_client(client, settings);
            handler.clone().serve_with_lifecycle(transport, greet).await
        }
        McpTransport::Broken { key, problem } => {
            return Err(McpError::Setting(format!("`{key}`: {problem}")));
        }
    };
    let running = greeted.map_err(|error| explained(&flaw, &error))?;
    match list(running.peer()).await {
        Ok(tools) => Ok(Live { running, handler, tools, flaw, errors, delivery }),
        Err(error) => {
            if delivery.is_some() && is_cut(&error) {
                // The exit code of a program that ended is about to be known.
                tokio::time::timeout(END_PATIENCE, running.waiting()).await.ok();
            }
            Err(failed(&flaw, &error))
        }
    }
}

/// Whether a request failed because the connection did.
fn is_cut(error: &ServiceError) -> bool {
    matches!(error, ServiceError::TransportClosed | ServiceError::TransportSend(_))
}

/// A command is a name or an absolute path; only trusted settings of a Workspace may use a relative
/// one, because that leads to a program of the repository.
fn command_of(server: &McpServer, command: &str, ground: &Ground) -> Result<String, McpError> {
    if let Some(rest) = command.strip_prefix("~/") {
        return Ok(ground.home.join(rest).to_string_lossy().into_owned());
    }
    let is_relative = command.contains('/') && !command.starts_with('/');
    if is_relative && server.origin != McpOrigin::Workspace {
        let reason = format!("its command {command:?} is neither a name nor an absolute path");
        return Err(McpError::Setting(reason));
    }
    Ok(command.to_owned())
}

fn folder_of(folder: &McpFolder, ground: &Ground) -> Result<PathBuf, McpError> {
    let path = match folder {
        McpFolder::Home if !ground.home.is_dir() => return Ok(PathBuf::from("/")),
        McpFolder::Home => &ground.home,
        McpFolder::Workspace => &ground.workspace,
        McpFolder::At(path) => path,
    };
    if !path.is_dir() {
        return Err(McpError::Setting(format!("its folder {} does not exist", path.display())));
    }
    Ok(path.clone())
}

/// The tools that a server lists.
#[derive(Default)]
pub struct Listed {
    pub tools: Vec<Tool>,
    /// How many entries could not be read.
    pub unreadable: usize,
}

impl Listed {
    /// Adds a page, and returns the cursor of the next.
    fn take(&mut self, page: ServerResult) -> Result<Option<String>, ServiceError> {
        let page = match page {
            ServerResult::ListToolsResult(page) => {
                self.tools.extend(page.tools);
                return Ok(page.next_cursor);
            }
            // One tool that cannot be read does not hide the others.
            other => serde_json::to_value(other).unwrap_or_default(),
        };
        let Some(entries) = page.get("tools").and_then(Value::as_array) else {
            return Err(ServiceError::UnexpectedResponse);
        };
        for entry in entries {
            match serde_json::from_value(entry.clone()) {
                Ok(tool) => self.tools.push(tool),
                Err(_) => self.unreadable += 1,
            }
        }
        Ok(page.get("nextCursor").and_then(Value::as_str).map(str::to_owned))
    }
}

/// Lists every tool of a server, page by page.
pub async fn list(peer: &Peer<RoleClient>) -> Result<Listed, ServiceError> {
    let mut listed = Listed::default();
    let offers_tools = peer.peer_info().is_some_and(|info| info.capabilities.tools.is_some());
    if !offers_tools {
        return Ok(listed);
    }
    let mut asked = PaginatedRequestParams::default();
    for _ in 0..MOST_PAGES {
        let request = ListToolsRequest::with_param(asked.clone());
        let page = peer.send_request(ClientRequest::ListToolsRequest(request)).await?;
        asked.cursor = listed.take(page)?;
        if asked.cursor.is_none() || listed.tools.len() >= MOST_LISTED {
            break;
        }
    }
    listed.tools.truncate(MOST_LISTED);
    Ok(listed)
}

/// Why initialization failed: the transport's reason counts more than the SDK's.
fn explained(flaw: &Flaw, error: &ClientInitializeError) -> McpError {
    flaw.take().unwrap_or_else(|| McpError::odd(wording::line(&error.to_string(), 300)))
}

/// Why a request failed: the transport's reason counts more than the SDK's.
pub fn failed(flaw: &Flaw, error: &ServiceError) -> McpError {
    match (flaw.take(), error) {
        (Some(known), _) => known,
        (None, ServiceError::TransportClosed) => McpError::Closed,
        (None, error) => McpError::odd(wording::line(&error.to_string(), 300)),
    }
}
