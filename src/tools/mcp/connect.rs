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
use super::handler::McpClientHandler;
use super::http_transport::{McpHttpClient, parse_headers};
use super::sanitize_text;
use super::stdio_transport::{
    CallDelivery, LONGEST_MESSAGE, SharedFailure, StderrTail, StdioTransport,
};
use crate::base::secret::Secrets;
use crate::host::http::HttpSettings;
use crate::host::process::{CommandRunner, ServiceProgram};
use crate::settings::config::{McpFolder, McpOrigin, McpServer, McpSettings, McpTransport};

/// How many tools of one server are read; `MOST_PAGES` limits the pages of its list.
const MOST_LISTED: usize = 10_000;
const MOST_PAGES: usize = 100;

/// How long to wait for the exit of a program that closed its pipes.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The context of connections: command runner, HTTP settings, folders, secrets and limits.
#[derive(Clone)]
pub struct McpContext {
    pub commands: CommandRunner,
    pub http: HttpSettings,
    pub workspace: PathBuf,
    /// The user's home folder, where programs run by default.
    pub home: PathBuf,
    pub secrets: Arc<Secrets>,
    pub limits: McpSettings,
}

/// An initialized connection, with the tools of its server.
pub struct McpConnection {
    pub running: RunningService<RoleClient, McpClientHandler>,
    pub handler: McpClientHandler,
    pub tools: ListedTools,
    pub failure: SharedFailure,
    pub errors: StderrTail,
    /// Tracks which calls reached the server, if the transport can tell.
    pub call_delivery: Option<CallDelivery>,
}

/// Connects, within the time limit of the settings.
pub async fn connect(server: &McpServer, context: &McpContext) -> Result<McpConnection, McpError> {
    let (failure, errors) = (SharedFailure::default(), StderrTail::default());
    let after = context.limits.connect;
    let attempt = try_connect(server, context, failure.clone(), errors.clone());
    let outcome = match tokio::time::timeout(after, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(McpError::TimedOut { after, errors: String::new() }),
    };
    outcome.map_err(|error| error.with_errors(errors.tail(&context.secrets)))
}

async fn try_connect(
    server: &McpServer,
    context: &McpContext,
    failure: SharedFailure,
    errors: StderrTail,
) -> Result<McpConnection, McpError> {
    let handler =
        McpClientHandler::new(&server.name, &context.workspace, Arc::clone(&context.secrets));
    let greet = ClientLifecycleMode::Initialize;
    let mut delivery = None;
    let greeted = match &server.transport {
        McpTransport::Stdio { command, args, env, folder } => {
            let program = ServiceProgram {
                command: resolve_command(server, command, context)?,
                args: args.clone(),
                directory: resolve_folder(folder, context)?,
                environment: env.clone(),
            };
            let started = context.commands.start_service(&program).await;
            let started = started.map_err(|error| McpError::from(&error))?;
            let secrets = Arc::clone(&context.secrets);
            let pipes = StdioTransport::new(
                started,
                &server.name,
                failure.clone(),
                errors.clone(),
                secrets,
            );
            delivery = Some(pipes.delivery());
            handler.clone().serve_with_lifecycle(pipes, greet).await
        }
        McpTransport::Http { url, headers } => {
            let client = McpHttpClient::new(&context.http, url, failure.clone());
            let settings = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                .custom_headers(parse_headers(url, headers)?)
                .max_sse_event_size(LONGEST_MESSAGE);
            let transport = StreamableHttpClientTransport::with_client(client, settings);
            handler.clone().serve_with_lifecycle(transport, greet).await
        }
        McpTransport::Broken { key, problem } => {
            return Err(McpError::InvalidSetting(format!("`{key}`: {problem}")));
        }
    };
    let running = greeted.map_err(|error| initialize_error(&failure, &error))?;
    match list_tools(running.peer()).await {
        Ok(tools) => {
            Ok(McpConnection { running, handler, tools, failure, errors, call_delivery: delivery })
        }
        Err(error) => {
            if delivery.is_some() && is_cut(&error) {
                // The program ends: wait for its exit code.
                tokio::time::timeout(EXIT_TIMEOUT, running.waiting()).await.ok();
            }
            Err(request_error(&failure, &error))
        }
    }
}

/// Whether a request failed because the connection ended.
fn is_cut(error: &ServiceError) -> bool {
    matches!(error, ServiceError::TransportClosed | ServiceError::TransportSend(_))
}

/// Resolves a command: a name or an absolute path. Only trusted settings of a Workspace may use a
/// relative path, because that leads to a program of the repository.
fn resolve_command(
    server: &McpServer,
    command: &str,
    context: &McpContext,
) -> Result<String, McpError> {
    if let Some(rest) = command.strip_prefix("~/") {
        return Ok(context.home.join(rest).to_string_lossy().into_owned());
    }
    let is_relative = command.contains('/') && !command.starts_with('/');
    if is_relative && server.origin != McpOrigin::Workspace {
        let reason = format!("its command {command:?} is neither a name nor an absolute path");
        return Err(McpError::InvalidSetting(reason));
    }
    Ok(command.to_owned())
}

fn resolve_folder(folder: &McpFolder, context: &McpContext) -> Result<PathBuf, McpError> {
    let path = match folder {
        McpFolder::Home if !context.home.is_dir() => return Ok(PathBuf::from("/")),
        McpFolder::Home => &context.home,
        McpFolder::Workspace => &context.workspace,
        McpFolder::At(path) => path,
    };
    if !path.is_dir() {
        return Err(McpError::InvalidSetting(format!(
            "its folder {} does not exist",
            path.display()
        )));
    }
    Ok(path.clone())
}

/// The tools that a server lists.
#[derive(Default)]
pub struct ListedTools {
    pub tools: Vec<Tool>,
    /// How many entries could not be read.
    pub unreadable: usize,
}

impl ListedTools {
    /// Adds a page, and returns the cursor of the next.
    fn add_page(&mut self, page: ServerResult) -> Result<Option<String>, ServiceError> {
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
pub async fn list_tools(peer: &Peer<RoleClient>) -> Result<ListedTools, ServiceError> {
    let mut listed = ListedTools::default();
    let offers_tools = peer.peer_info().is_some_and(|info| info.capabilities.tools.is_some());
    if !offers_tools {
        return Ok(listed);
    }
    let mut asked = PaginatedRequestParams::default();
    for _ in 0..MOST_PAGES {
        let request = ListToolsRequest::with_param(asked.clone());
        let page = peer.send_request(ClientRequest::ListToolsRequest(request)).await?;
        asked.cursor = listed.add_page(page)?;
        if asked.cursor.is_none() || listed.tools.len() >= MOST_LISTED {
            break;
        }
    }
    listed.tools.truncate(MOST_LISTED);
    Ok(listed)
}

/// The error of a failed initialization; the transport's reason takes precedence over the SDK's.
fn initialize_error(failure: &SharedFailure, error: &ClientInitializeError) -> McpError {
    failure
        .take()
        .unwrap_or_else(|| McpError::protocol(sanitize_text::clean_line(&error.to_string(), 300)))
}

/// The error of a failed request; the transport's reason takes precedence over the SDK's.
pub fn request_error(failure: &SharedFailure, error: &ServiceError) -> McpError {
    match (failure.take(), error) {
        (Some(known), _) => known,
        (None, ServiceError::TransportClosed) => McpError::Closed,
        (None, error) => McpError::protocol(sanitize_text::clean_line(&error.to_string(), 300)),
    }
}
