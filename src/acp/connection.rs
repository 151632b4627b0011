//! The connection: what all Sessions of one client share.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol_schema::v1::{self, SessionNotification, SessionUpdate};
use tokio_util::sync::CancellationToken;

use super::doors::Doors;
use super::inbox::Handle;
use super::ticket::Flights;
use crate::error::Report;
use crate::harness::Harness;
use crate::id::SessionId;
use crate::rpc::Peer;

/// What all Sessions of one client share.
pub struct Connection {
    pub peer: Peer,
    pub doors: Doors,
    pub flights: Flights,
    /// One Harness per Workspace, because a Workspace has settings of its own. A leaf.
    harnesses: Mutex<HashMap<PathBuf, Arc<Harness>>>,
    /// How often who pays has changed.
    generation: AtomicU64,
    /// The Sessions that the client has open. A leaf.
    sessions: Mutex<HashMap<SessionId, Handle>>,
    /// Their further directories, for the list. A leaf.
    directories: Mutex<HashMap<SessionId, Vec<PathBuf>>>,
    /// Those that are being closed or deleted; each is cancelled when that is done. A leaf.
    leaving: Mutex<HashMap<SessionId, CancellationToken>>,
}

impl Connection {
    /// A connection without any Session.
    pub fn new(peer: Peer, doors: Doors) -> Self {
        Self {
            peer,
            doors,
            flights: Flights::default(),
            harnesses: Mutex::default(),
            generation: AtomicU64::new(0),
            sessions: Mutex::default(),
            directories: Mutex::default(),
            leaving: Mutex::default(),
        }
    }

    /// The Harness of a Workspace, opened when it is first needed.
    pub async fn harness(&self, workspace: &Path) -> Result<Arc<Harness>, Report> {
        // One Workspace may have many names.
        let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
        if let Some(known) = self.harnesses().get(&real) {
            return Ok(Arc::clone(known));
        }
        let opened = (self.doors.open)(real.clone()).await?;
        // Somebody else may have been quicker; two of them would not know of each other's Sessions.
        Ok(Arc::clone(self.harnesses().entry(real).or_insert(opened)))
    }

    /// Forgets every Harness: who signs in or out changes who pays.
    pub fn forget_harnesses(&self) {
        self.harnesses().clear();
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes whenever somebody signs in or out.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The Workspaces that were used here.
    pub fn workspaces(&self) -> Vec<PathBuf> {
        self.harnesses().keys().cloned().collect()
    }

    /// The Harnesses that are open.
    pub fn open_harnesses(&self) -> Vec<Arc<Harness>> {
        self.harnesses().values().cloned().collect()
    }

    /// The way to a Session's task.
    pub fn session(&self, id: &SessionId) -> Option<Handle> {
        self.sessions().get(id).cloned()
    }

    /// Notes a Session that is open.
    pub fn admit(&self, id: &SessionId, handle: Handle) {
        self.sessions().insert(id.clone(), handle);
    }

    /// Forgets a Session that could not be opened, unless its name leads to another task by now.
    pub fn dismiss(&self, id: &SessionId, handle: &Handle) {
        let mut sessions = self.sessions();
        if sessions.get(id).is_some_and(|known| known.same_channel(handle)) {
            sessions.remove(id);
        }
    }

    /// From now on the Session is not open, and whoever opens it again waits for `gone`. Gives the
    /// way to its task, and what was already leaving under its name.
    pub fn leave(
        &self,
        id: &SessionId,
        gone: CancellationToken,
    ) -> (Option<Handle>, Option<CancellationToken>) {
        let handle = self.sessions().remove(id);
        (handle, self.leavings().insert(id.clone(), gone))
    }

    /// What has to be over before the Session can be opened again.
    pub fn leaving(&self, id: &SessionId) -> Option<CancellationToken> {
        self.leavings().get(id).cloned()
    }

    /// Forgets what has left.
    pub fn sweep(&self) {
        self.leavings().retain(|_, gone| !gone.is_cancelled());
    }

    /// Notes which further directories a Session has; none when it is closed.
    pub fn widen(&self, id: &SessionId, directories: Vec<PathBuf>) {
        let mut all = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        if directories.is_empty() {
            all.remove(id);
        } else {
            all.insert(id.clone(), directories);
        }
    }

    /// The further directories of a Session: a client names them anew whenever it opens one, so
    /// only what is open has any.
    pub fn directories(&self, id: &SessionId) -> Vec<PathBuf> {
        let all = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).cloned().unwrap_or_default()
    }

    /// All ways to all tasks.
    pub fn all(&self) -> Vec<Handle> {
        self.sessions().values().cloned().collect()
    }

    /// Tells the client that something happened.
    pub async fn tell(&self, id: &SessionId, update: SessionUpdate) {
        let notification = SessionNotification::new(wire_id(id), update);
        self.peer.notify("session/update", &notification).await;
    }

    fn harnesses(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<Harness>>> {
        self.harnesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leavings(&self) -> MutexGuard<'_, HashMap<SessionId, CancellationToken>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Handle>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Session's id as the wire has it.
pub fn wire_id(id: &SessionId) -> v1::SessionId {
    v1::SessionId::new(id.to_string())
}
