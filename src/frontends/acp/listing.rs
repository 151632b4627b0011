//! The list of Sessions: newest first, in pages, of one directory or of all known Workspaces.

use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1::{ListSessionsResponse, SessionInfo};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::Value;

use super::connection::{Connection, wire_id};
use super::setup::absolute;
use super::to_acp::title;
use crate::agent::inspect;
use crate::agent::inspect::{Place, StateRoot, Summary};
use crate::base::id::SessionId;
use crate::host::rpc::Fault;

/// How many Sessions a page has.
const PAGE: usize = 50;

/// A `session/list` request.
#[derive(Debug)]
pub struct Wanted {
    cwd: Option<PathBuf>,
    /// The last Session of the previous page.
    after: Option<Place>,
}

impl Wanted {
    /// Reads the parameters of `session/list`.
    pub fn read(params: &Value) -> Result<Self, Fault> {
        let cwd = match params.get("cwd") {
            None | Some(Value::Null) => None,
            some => Some(absolute("cwd", some)?),
        };
        let after = match params.get("cursor") {
            None | Some(Value::Null) => None,
            Some(cursor) => {
                let cursor = cursor.as_str().and_then(read_cursor);
                Some(cursor.ok_or_else(|| {
                    Fault::invalid_params("`cursor` is not one that session/list returned")
                })?)
            }
        };
        Ok(Self { cwd, after })
    }

    /// Reads the page from disk.
    pub fn page(self, connection: &Connection) -> ListSessionsResponse {
        let workspaces = match self.cwd {
            Some(cwd) => vec![cwd.canonicalize().unwrap_or(cwd)],
            None => workspaces(connection),
        };
        // One more than fits shows whether there is another page.
        let roots = inspect::state_roots(&connection.doors.config.home, &workspaces);
        let mut found = inspect::page(&roots, self.after.as_ref(), PAGE + 1);
        let is_more = found.len() > PAGE;
        found.truncate(PAGE);
        let next = found.last().filter(|_| is_more).map(|(place, _)| write_cursor(place));
        let sessions = found.iter().map(|(_, summary)| info(summary, connection)).collect();
        ListSessionsResponse::new(sessions).next_cursor(next)
    }
}

/// Every known Workspace: those of the user's cache, and those of this connection.
pub fn workspaces(connection: &Connection) -> Vec<PathBuf> {
    let mut all = inspect::known(&connection.doors.config.home);
    for own in connection.workspaces() {
        if !all.contains(&own) {
            all.push(own);
        }
    }
    all
}

/// The state folder of a Session.
pub fn find(connection: &Connection, id: &SessionId) -> Option<StateRoot> {
    let home = &connection.doors.config.home;
    inspect::state_roots(home, &workspaces(connection)).into_iter().find(|root| root.has_log(id))
}

fn info(summary: &Summary, connection: &Connection) -> SessionInfo {
    let title = Some(title(&summary.title)).filter(|title| !title.is_empty());
    let updated = jiff::Timestamp::from_second(summary.updated).ok();
    let cwd: &Path = &summary.workspace;
    SessionInfo::new(wire_id(&summary.session_id), cwd)
        .additional_directories(connection.directories(&summary.session_id))
        .title(title)
        .updated_at(updated.map(|time| time.to_string()))
}

fn write_cursor(place: &Place) -> String {
    let (seconds, nanoseconds) = place.written;
    BASE64.encode(format!("{seconds}.{nanoseconds}.{}", place.id))
}

fn read_cursor(cursor: &str) -> Option<Place> {
    let text = String::from_utf8(BASE64.decode(cursor).ok()?).ok()?;
    let mut parts = text.splitn(3, '.');
    let written = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Place { written, id: SessionId::parse(parts.next()?).ok()? })
}
