//! Opening a new or existing Session, and the actor for it.

use std::sync::Arc;

use super::Actor;
use crate::agent::harness;
use crate::agent::harness::Start;
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::frontends::acp::client::Client;
use crate::frontends::acp::connection::Connection;
use crate::frontends::acp::editor::ClientFiles;
use crate::frontends::acp::fault;
use crate::frontends::acp::setup::Setup;
use crate::host::rpc::Fault;

/// The Session to open: a new one or an existing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    New,
    Known(SessionId),
}

/// Opens a Session and returns its actor.
pub async fn open(
    connection: Arc<Connection>,
    client: Client,
    setup: &Setup,
    which: Which,
) -> Result<Actor, Fault> {
    let explain = |report: &Report| match &which {
        Which::New => fault::of(report),
        Which::Known(id) => fault::of_session(report, &id.to_string()),
    };
    connection.directory(setup)?;
    let generation = connection.generation();
    let harness = connection.harness(&setup.cwd).await.map_err(|report| explain(&report))?;
    let session = match &which {
        Which::New => harness::Which::New,
        Which::Known(id) => harness::Which::Resume(id.clone()),
    };
    let mcp_servers = setup.handed_over();
    let start = Start { workspace: setup.cwd.clone(), session, can_ask: true, mcp_servers };
    let started = harness.start(start).await;
    let mut conversation = started.map_err(|error| explain(&Report::describe(&error)))?;
    let files = ClientFiles::of(&connection.peer, conversation.id(), client);
    let silence = files.as_ref().map(ClientFiles::silence).unwrap_or_default();
    if let Some(files) = files {
        conversation = conversation.edited_in(Arc::new(files));
    }
    let mut actor = Actor::new(connection, client, (harness, generation), conversation, silence);
    actor.set_up(setup);
    Ok(actor)
}

/// Forks a Session, and returns the id of the fork.
pub async fn branch(
    connection: &Connection,
    setup: &Setup,
    parent: &SessionId,
) -> Result<SessionId, Fault> {
    let explain = |report: &Report| fault::of_session(report, &parent.to_string());
    let workspace = connection.directory(setup)?;
    let harness = connection.harness(&workspace).await.map_err(|report| explain(&report))?;
    harness.branch(&workspace, parent).await.map_err(|report| explain(&report))
}
