//! The connection: what all Sessions of one client share.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol_schema::v1::{self, SessionNotification, SessionUpdate};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::doors::Doors;
use super::fault;
use super::inbox::{Handle, Inbox};
use super::setup::Setup;
use super::ticket::Flights;
use crate::error::Report;
use crate::harness::Harness;
use crate::id::SessionId;
use crate::rpc::{Fault, Peer};

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
    /// Whether the client is gone, and every Session is to end.
    is_ending: AtomicBool,
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
            is_ending: AtomicBool::new(false),
        }
    }

    /// The directory that a client wants to work in, as it is really called, if it may.
    pub fn directory(&self, setup: &Setup) -> Result<PathBuf, Fault> {
        let directory = setup.directory()?;
        (self.doors.admit)(&directory).map_err(|report| fault::of(&report))?;
        Ok(directory)
    }

    /// The Harness of a Workspace, opened when it is first needed.
    pub async fn harness(&self, workspace: &Path) -> Result<Arc<Harness>, Report> {
        // One Workspace may have many names.
        let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
        if let Some(known) = self.harnesses().get(&real) {
            return Ok(Arc::clone(known));
        }
        loop {
            let generation = self.generation();
            let opened = (self.doors.open)(real.clone()).await?;
            let mut harnesses = self.harnesses();
            // Who signed in or out meanwhile does not want what was opened before.
            if generation == self.generation() {
                // Somebody else may have been quicker; two of them would not know of each other's
                // Sessions.
                return Ok(Arc::clone(harnesses.entry(real).or_insert(opened)));
            }
        }
    }

    /// Forgets every Harness: who signs in or out changes who pays.
    pub fn forget_harnesses(&self) {
        let mut harnesses = self.harnesses();
        harnesses.clear();
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

    /// Notes a Session that is open. One that opens when everything ends is told so here, because
    /// nobody else will.
    pub fn admit(&self, id: &SessionId, handle: Handle) {
        let mut sessions = self.sessions();
        if self.is_ending.load(Ordering::Acquire) {
            let (closed, _) = oneshot::channel();
            handle.try_send(Inbox::Close { closed }).ok();
        }
        sessions.insert(id.clone(), handle);
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

    /// From now on everything ends. Gives the ways to all tasks, which have to be told.
    pub fn end(&self) -> Vec<Handle> {
        self.is_ending.store(true, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::acp::inbox::channel;
    use crate::config::Config;
    use crate::credential::Credential;
    use crate::harness::Door;
    use crate::paths::Home;
    use crate::rpc::write_lines;

    /// A connection to nobody. Its doors count how often they are opened, and take a little while.
    fn connection(folder: &Path, opened: &Arc<AtomicUsize>) -> Connection {
        let writer = write_lines(std::io::sink()).unwrap();
        let config = Config::new(Home::new(folder.join("home")));
        let (own, opened) = (config.clone(), Arc::clone(opened));
        let open = move |_| -> crate::acp::doors::Opening {
            let (config, opened) = (own.clone(), Arc::clone(&opened));
            Box::pin(async move {
                opened.fetch_add(1, Ordering::AcqRel);
                tokio::task::yield_now().await;
                let credential = Credential::new(None, "http://127.0.0.1:1/v1").unwrap();
                let (environment, own_binary) = (Vec::new(), PathBuf::from("/nowhere"));
                Ok(Arc::new(Harness::open(Door { config, credential, environment, own_binary })))
            })
        };
        let doors = Doors {
            config,
            sees_images: false,
            admit: Box::new(|_| Ok(())),
            open: Box::new(open),
            sign_in: Box::new(|_| Box::pin(async { Ok(()) })),
            sign_out: Box::new(|| Box::pin(async { Ok(()) })),
        };
        Connection::new(Peer::new(&writer), doors)
    }

    #[tokio::test]
    async fn a_session_that_opens_when_everything_ends_is_closed_like_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let connection = connection(folder.path(), &Arc::default());
        let (early, mut heard_early) = channel();
        connection.admit(&SessionId::mint(), early);
        assert!(heard_early.try_recv().is_err(), "nothing ends yet");
        assert_eq!(connection.end().len(), 1);
        let (late, mut heard_late) = channel();
        connection.admit(&SessionId::mint(), late);
        assert!(matches!(heard_late.try_recv(), Ok(Inbox::Close { .. })));
    }

    #[tokio::test]
    async fn what_was_opened_before_a_logout_is_not_used_after_it() {
        let (folder, opened) = (tempfile::tempdir().unwrap(), Arc::default());
        let connection = connection(folder.path(), &opened);
        let (harness, ()) = tokio::join!(connection.harness(folder.path()), async {
            connection.forget_harnesses();
        });
        assert_eq!(opened.load(Ordering::Acquire), 2, "the first knew the old credential");
        let again = connection.harness(folder.path()).await.unwrap();
        assert!(Arc::ptr_eq(&harness.unwrap(), &again));
    }
}
