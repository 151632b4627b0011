//! The list of Sessions: newest first, in pages, of one directory or of all known Workspaces.

use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1::{ListSessionsResponse, SessionInfo};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::Value;

use super::connection::{ClientConnection, wire_id};
use super::session_setup::absolute_path;
use super::to_acp::title_text;
use crate::agent::inspect;
use crate::agent::inspect::{ListPosition, SessionSummary, StateRoot};
use crate::base::id::SessionId;
use crate::host::rpc::RpcError;

/// How many Sessions a page has.
const PAGE_SIZE: usize = 50;

/// A `session/list` request.
#[derive(Debug)]
pub struct SessionListRequest {
    cwd: Option<PathBuf>,
    /// The last Session of the previous page.
    after: Option<ListPosition>,
}

impl SessionListRequest {
    /// Reads the parameters of `session/list`.
    pub fn read(params: &Value) -> Result<Self, RpcError> {
        let cwd = match params.get("cwd") {
            None | Some(Value::Null) => None,
            some => Some(absolute_path("cwd", some)?),
        };
        let after = match params.get("cursor") {
            None | Some(Value::Null) => None,
            Some(cursor) => {
                let cursor = cursor.as_str().and_then(read_cursor);
                Some(cursor.ok_or_else(|| {
                    RpcError::invalid_params("`cursor` is not one that session/list returned")
                })?)
            }
        };
        Ok(Self { cwd, after })
    }

    /// Reads the page from disk.
    pub fn page(self, connection: &ClientConnection) -> ListSessionsResponse {
        let workspaces = match self.cwd {
            Some(cwd) => vec![cwd.canonicalize().unwrap_or(cwd)],
            None => known_workspaces(connection),
        };
        // One more than fits shows whether there is another page.
        let roots = inspect::state_roots(&connection.host.config.home, &workspaces);
        let mut found = inspect::list_page(&roots, self.after.as_ref(), PAGE_SIZE + 1);
        let is_more = found.len() > PAGE_SIZE;
        found.truncate(PAGE_SIZE);
        let next = found.last().filter(|_| is_more).map(|(place, _)| write_cursor(place));
        let sessions = found.iter().map(|(_, summary)| session_info(summary, connection)).collect();
        ListSessionsResponse::new(sessions).next_cursor(next)
    }
}

/// Every known Workspace: those of the user's cache, and those of this connection.
pub fn known_workspaces(connection: &ClientConnection) -> Vec<PathBuf> {
    let mut all = inspect::known_workspaces(&connection.host.config.home);
    for own in connection.workspaces() {
        if !all.contains(&own) {
            all.push(own);
        }
    }
    all
}

/// The state folder of a Session.
pub fn find_session(connection: &ClientConnection, id: &SessionId) -> Option<StateRoot> {
    let home = &connection.host.config.home;
    inspect::state_roots(home, &known_workspaces(connection))
        .into_iter()
        .find(|root| root.has_log(id))
}

fn session_info(summary: &SessionSummary, connection: &ClientConnection) -> SessionInfo {
    let title = Some(title_text(&summary.title)).filter(|title| !title.is_empty());
    let updated = jiff::Timestamp::from_second(summary.updated).ok();
    let cwd: &Path = &summary.workspace;
    SessionInfo::new(wire_id(&summary.session_id), cwd)
        .additional_directories(connection.directories(&summary.session_id))
        .title(title)
        .updated_at(updated.map(|time| time.to_string()))
}

fn write_cursor(place: &ListPosition) -> String {
    let (seconds, nanoseconds) = place.written;
    BASE64.encode(format!("{seconds}.{nanoseconds}.{}", place.id))
}

fn read_cursor(cursor: &str) -> Option<ListPosition> {
    let text = String::from_utf8(BASE64.decode(cursor).ok()?).ok()?;
    let mut parts = text.splitn(3, '.');
    let written = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(ListPosition { written, id: SessionId::parse(parts.next()?).ok()? })
}
