//! Opening a new or existing Session, and the actor for it.

use std::sync::Arc;

use super::Actor;
use crate::agent::harness;
use crate::agent::harness::StartOptions;
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::frontends::acp::capabilities::ClientCapabilities;
use crate::frontends::acp::client_files::ClientFiles;
use crate::frontends::acp::connection::ClientConnection;
use crate::frontends::acp::error;
use crate::frontends::acp::session_setup::SessionSetup;
use crate::host::rpc::RpcError;

/// The Session to open: a new one or an existing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenTarget {
    New,
    Known(SessionId),
}

/// Opens a Session and returns its actor.
pub async fn open_session(
    connection: Arc<ClientConnection>,
    client: ClientCapabilities,
    setup: &SessionSetup,
    target: OpenTarget,
) -> Result<Actor, RpcError> {
    let explain = |report: &Report| match &target {
        OpenTarget::New => error::from_report(report),
        OpenTarget::Known(id) => error::from_session_report(report, &id.to_string()),
    };
    connection.workspace_directory(setup)?;
    let generation = connection.generation();
    let harness = connection.harness(&setup.cwd).await.map_err(|report| explain(&report))?;
    let session = match &target {
        OpenTarget::New => harness::SessionTarget::New,
        OpenTarget::Known(id) => harness::SessionTarget::Resume(id.clone()),
    };
    let mcp_servers = setup.to_mcp_servers();
    let start = StartOptions { workspace: setup.cwd.clone(), session, can_ask: true, mcp_servers };
    let started = harness.start(start).await;
    let mut conversation = started.map_err(|error| explain(&Report::describe(&error)))?;
    let files = ClientFiles::for_session(&connection.peer, conversation.id(), client);
    let editor_status = files.as_ref().map(ClientFiles::status).unwrap_or_default();
    if let Some(files) = files {
        conversation = conversation.with_editor(Arc::new(files));
    }
    let mut actor =
        Actor::new(connection, client, (harness, generation), conversation, editor_status);
    actor.apply_setup(setup);
    Ok(actor)
}

/// Forks a Session, and returns the id of the fork.
pub async fn fork_session(
    connection: &ClientConnection,
    setup: &SessionSetup,
    parent: &SessionId,
) -> Result<SessionId, RpcError> {
    let explain = |report: &Report| error::from_session_report(report, &parent.to_string());
    let workspace = connection.workspace_directory(setup)?;
    let harness = connection.harness(&workspace).await.map_err(|report| explain(&report))?;
    harness.fork(&workspace, parent).await.map_err(|report| explain(&report))
}
