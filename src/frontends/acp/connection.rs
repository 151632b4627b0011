//! State that all Sessions of one client share.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use agent_client_protocol_schema::v1::{self, SessionNotification, SessionUpdate};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::error;
use super::host::AcpHost;
use super::inbox::{Inbox, SessionHandle};
use super::responder::InFlight;
use super::session_setup::SessionSetup;
use crate::agent::harness::Harness;
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::host::rpc::{Peer, RpcError};

/// The connection to one client: its peer, Harnesses and open Sessions.
pub struct ClientConnection {
    pub peer: Peer,
    pub host: AcpHost,
    pub in_flight: InFlight,
    /// One Harness per Workspace, because each Workspace has its own settings. A leaf lock.
    harnesses: Mutex<HashMap<PathBuf, Arc<Harness>>>,
    /// How often the credential has changed.
    generation: AtomicU64,
    /// The Sessions that the client has open. A leaf lock.
    sessions: Mutex<HashMap<SessionId, SessionHandle>>,
    /// The additional directories of open Sessions, for the list. A leaf lock.
    directories: Mutex<HashMap<SessionId, Vec<PathBuf>>>,
    /// Sessions that are being closed or deleted; each token is cancelled when that is done. A leaf lock.
    closing: Mutex<HashMap<SessionId, CancellationToken>>,
    /// Whether the client has disconnected, and every Session is to end.
    is_ending: AtomicBool,
}

impl ClientConnection {
    /// A connection without any Session.
    pub fn new(peer: Peer, host: AcpHost) -> Self {
        Self {
            peer,
            host,
            in_flight: InFlight::default(),
            harnesses: Mutex::default(),
            generation: AtomicU64::new(0),
            sessions: Mutex::default(),
            directories: Mutex::default(),
            closing: Mutex::default(),
            is_ending: AtomicBool::new(false),
        }
    }

    /// The canonical working directory of a Session, if it may be a Workspace.
    pub fn workspace_directory(&self, setup: &SessionSetup) -> Result<PathBuf, RpcError> {
        let directory = setup.directory()?;
        (self.host.check_directory)(&directory).map_err(|report| error::from_report(&report))?;
        Ok(directory)
    }

    /// The Harness of a Workspace, opened when it is first needed.
    pub async fn harness(&self, workspace: &Path) -> Result<Arc<Harness>, Report> {
        // One Workspace may have several paths.
        let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
        if let Some(known) = self.harnesses.lock().get(&real) {
            return Ok(Arc::clone(known));
        }
        loop {
            let generation = self.generation();
            let opened = (self.host.open_harness)(real.clone()).await?;
            let mut harnesses = self.harnesses.lock();
            // After a sign-in or sign-out meanwhile, the Harness has an old credential.
            if generation == self.generation() {
                // Another task may have opened one first; two Harnesses would not know each
                // other's Sessions.
                return Ok(Arc::clone(harnesses.entry(real).or_insert(opened)));
            }
        }
    }

    /// Drops every Harness after a sign-in or sign-out, because the credential has changed.
    pub fn forget_harnesses(&self) {
        let mut harnesses = self.harnesses.lock();
        harnesses.clear();
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of sign-ins and sign-outs so far.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The Workspaces with an open Harness.
    pub fn workspaces(&self) -> Vec<PathBuf> {
        self.harnesses.lock().keys().cloned().collect()
    }

    /// The Harnesses that are open.
    pub fn open_harnesses(&self) -> Vec<Arc<Harness>> {
        self.harnesses.lock().values().cloned().collect()
    }

    /// The handle of an open Session's task.
    pub fn session(&self, id: &SessionId) -> Option<SessionHandle> {
        self.sessions.lock().get(id).cloned()
    }

    /// Adds an open Session. During shutdown it is closed at once, because `begin_shutdown` has not seen it.
    pub fn add_session(&self, id: &SessionId, handle: SessionHandle) {
        let mut sessions = self.sessions.lock();
        if self.is_ending.load(Ordering::Acquire) {
            let (closed, _) = oneshot::channel();
            handle.try_send(Inbox::Close { closed }).ok();
        }
        sessions.insert(id.clone(), handle);
    }

    /// Removes a Session that could not be opened, unless its id belongs to another task by now.
    pub fn remove_session(&self, id: &SessionId, handle: &SessionHandle) {
        let mut sessions = self.sessions.lock();
        if sessions.get(id).is_some_and(|known| known.same_channel(handle)) {
            sessions.remove(id);
        }
    }

    /// Removes a Session from the open ones; opening it again waits for `gone`. Returns the handle of its
    /// task, and the token of an earlier close of the same Session.
    pub fn begin_closing(
        &self,
        id: &SessionId,
        gone: CancellationToken,
    ) -> (Option<SessionHandle>, Option<CancellationToken>) {
        let handle = self.sessions.lock().remove(id);
        (handle, self.closing.lock().insert(id.clone(), gone))
    }

    /// The token to wait for before the Session can be opened again.
    pub fn closing(&self, id: &SessionId) -> Option<CancellationToken> {
        self.closing.lock().get(id).cloned()
    }

    /// Drops the tokens of Sessions that are closed.
    pub fn remove_closed(&self) {
        self.closing.lock().retain(|_, gone| !gone.is_cancelled());
    }

    /// Sets the additional directories of a Session; none when it is closed.
    pub fn set_directories(&self, id: &SessionId, directories: Vec<PathBuf>) {
        let mut all = self.directories.lock();
        if directories.is_empty() {
            all.remove(id);
        } else {
            all.insert(id.clone(), directories);
        }
    }

    /// The additional directories of a Session. The client names them each time it opens one, so only
    /// open Sessions have any.
    pub fn directories(&self, id: &SessionId) -> Vec<PathBuf> {
        let all = self.directories.lock();
        all.get(id).cloned().unwrap_or_default()
    }

    /// Starts the shutdown. Returns the handles of all tasks, which have to be closed.
    pub fn begin_shutdown(&self) -> Vec<SessionHandle> {
        self.is_ending.store(true, Ordering::Release);
        self.sessions.lock().values().cloned().collect()
    }

    /// Sends an update of a Session to the client.
    pub async fn send_update(&self, id: &SessionId, update: SessionUpdate) {
        let notification = SessionNotification::new(wire_id(id), update);
        self.peer.send_notification("session/update", &notification).await;
    }
}

/// A Session's id on the wire.
pub fn wire_id(id: &SessionId) -> v1::SessionId {
    v1::SessionId::new(id.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::agent::harness::HarnessOptions;
    use crate::base::paths::Home;
    use crate::frontends::acp::inbox::channel;
    use crate::host::rpc::spawn_writer;
    use crate::model::credential::Credential;
    use crate::settings::config::Config;

    /// A connection without a client. Its host counts how often a Harness is opened, and takes a little while.
    fn connection(folder: &Path, opened: &Arc<AtomicUsize>) -> ClientConnection {
        let writer = spawn_writer(std::io::sink()).unwrap();
        let config = Config::new(Home::new(folder.join("home")));
        let (own, opened) = (config.clone(), Arc::clone(opened));
        let open = move |_| -> crate::frontends::acp::host::HarnessFuture {
            let (config, opened) = (own.clone(), Arc::clone(&opened));
            Box::pin(async move {
                opened.fetch_add(1, Ordering::AcqRel);
                tokio::task::yield_now().await;
                let credential = Credential::new(None, "http://127.0.0.1:1/v1").unwrap();
                let (environment, own_binary) = (Vec::new(), PathBuf::from("/nowhere"));
                Ok(Arc::new(Harness::open(HarnessOptions {
                    config,
                    credential,
                    environment,
                    own_binary,
                })))
            })
        };
        let host = AcpHost {
            config,
            sees_images: false,
            check_directory: Box::new(|_| Ok(())),
            open_harness: Box::new(open),
            sign_in: Box::new(|_| Box::pin(async { Ok(()) })),
            sign_out: Box::new(|| Box::pin(async { Ok(()) })),
        };
        ClientConnection::new(Peer::new(&writer), host)
    }

    #[tokio::test]
    async fn a_session_that_opens_when_everything_ends_is_closed_like_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let connection = connection(folder.path(), &Arc::default());
        let (early, mut early_inbox) = channel();
        connection.add_session(&SessionId::mint(), early);
        assert!(early_inbox.try_recv().is_err(), "nothing ends yet");
        assert_eq!(connection.begin_shutdown().len(), 1);
        let (late, mut late_inbox) = channel();
        connection.add_session(&SessionId::mint(), late);
        assert!(matches!(late_inbox.try_recv(), Ok(Inbox::Close { .. })));
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
