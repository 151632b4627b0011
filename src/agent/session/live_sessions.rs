//! The live Sessions of this process, so that opening one again attaches to it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::inbox::Inbox;
use super::{Session, SessionError, SessionOptions};
use crate::base::id::SessionId;
use crate::record::event::{Canonical, WeakBus};
use crate::record::log::{LogError, LogOpenReport};
use crate::record::state_dir::{SessionFolder, StateRoot};

/// How long to wait for a closing Session of this process to release its lock.
const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// The live Sessions of one process; the entries are weak and do not keep a Session open.
#[derive(Debug, Default)]
pub struct LiveSessions {
    live: Mutex<HashMap<PathBuf, WeakSession>>,
}

#[derive(Debug)]
struct WeakSession {
    id: SessionId,
    folder: SessionFolder,
    path: PathBuf,
    inbox: mpsc::WeakSender<Inbox>,
    bus: WeakBus,
}

impl WeakSession {
    fn upgrade(&self) -> Option<Session> {
        let inbox = self.inbox.upgrade()?;
        let bus = self.bus.upgrade()?;
        let (id, folder) = (self.id.clone(), self.folder.clone());
        Some(Session { id, folder, path: self.path.clone(), inbox, bus })
    }
}

impl LiveSessions {
    /// Creates a Session and registers it.
    pub fn create(
        &self,
        root: impl Into<StateRoot>,
        id: &SessionId,
        first: Canonical,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let session = Session::create(root, id, first, options)?;
        self.register(&session);
        Ok(session)
    }

    /// Attaches to a live Session of this process, or opens its Log.
    pub async fn open(
        &self,
        root: impl Into<StateRoot>,
        id: &SessionId,
        options: SessionOptions,
    ) -> Result<(Session, LogOpenReport), SessionError> {
        let root = root.into();
        let path = root.log(id);
        let deadline = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        loop {
            if let Some(session) = self.find_live(&path) {
                return Ok((session, LogOpenReport::default()));
            }
            match Session::open(&root, id, options.clone()) {
                Ok((session, opened)) => {
                    self.register(&session);
                    return Ok((session, opened));
                }
                // The last handle is gone, but its task still holds the lock for a moment.
                // The kernel's table may already have dropped the holder's pid.
                Err(SessionError::Log(LogError::Busy { holder, .. }))
                    if holder.is_none_or(|pid| pid == std::process::id())
                        && tokio::time::Instant::now() < deadline =>
                {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn find_live(&self, path: &Path) -> Option<Session> {
        let live = self.live.lock();
        live.get(path).and_then(WeakSession::upgrade)
    }

    /// Registers a live Session, so that opening it again finds it.
    pub fn register(&self, session: &Session) {
        let weak = WeakSession {
            id: session.id.clone(),
            folder: session.folder.clone(),
            path: session.path.clone(),
            inbox: session.inbox.downgrade(),
            bus: session.bus.downgrade(),
        };
        let mut live = self.live.lock();
        live.retain(|_, known| known.inbox.strong_count() > 0);
        live.insert(session.path.clone(), weak);
    }
}
