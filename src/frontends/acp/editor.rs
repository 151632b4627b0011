//! File access through the client: tools read and write the editor's buffers where it supports that.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol_schema::v1::{ReadTextFileRequest, WriteTextFileRequest};
use futures_util::future::BoxFuture;

use super::client::Client;
use super::connection::wire_id;
use crate::agent::harness::Editor;
use crate::base::id::SessionId;
use crate::host::rpc::Peer;

/// The notice about a client that does not answer file requests.
const SILENT: &str = "the editor did not answer a file request: from now on files are read and \
    written on disk, without its unsaved changes";

/// File access through the client for one Session.
pub struct ClientFiles {
    peer: Peer,
    session: SessionId,
    client: Client,
    silence: Silence,
}

/// Whether the client has stopped answering file requests; shared with the Session's task, which
/// notifies the user.
#[derive(Debug, Clone, Default)]
pub struct Silence(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_silent: AtomicBool,
    is_told: AtomicBool,
}

impl Silence {
    /// The notice for the user, once.
    pub fn take_note(&self) -> Option<String> {
        let is_news = self.is_there() && !self.0.is_told.swap(true, Ordering::AcqRel);
        is_news.then(|| SILENT.to_owned())
    }

    fn is_there(&self) -> bool {
        self.0.is_silent.load(Ordering::Acquire)
    }
}

impl ClientFiles {
    /// File access for a Session; `None` when the client supports none.
    pub fn of(peer: &Peer, session: &SessionId, client: Client) -> Option<Self> {
        let offers = client.reads_files || client.writes_files;
        let silence = Silence::default();
        offers.then(|| Self { peer: peer.clone(), session: session.clone(), client, silence })
    }

    /// The shared status of the client's file access.
    pub fn silence(&self) -> Silence {
        self.silence.clone()
    }
}

impl Editor for ClientFiles {
    fn read_text(&self, path: &Path) -> Option<BoxFuture<'static, Result<String, String>>> {
        if !self.client.reads_files || self.silence.is_there() {
            return None;
        }
        let request = ReadTextFileRequest::new(wire_id(&self.session), path);
        let peer = self.peer.clone();
        Some(Box::pin(async move {
            let answer = peer.ask("fs/read_text_file", &request).await.await;
            let answer = answer.map_err(|fault| fault.message)?;
            let content = answer["content"].as_str().map(str::to_owned);
            content.ok_or_else(|| "the answer has no `content`".to_owned())
        }))
    }

    fn write_text(
        &self,
        path: &Path,
        text: String,
    ) -> Option<BoxFuture<'static, Result<(), String>>> {
        if !self.client.writes_files || self.silence.is_there() {
            return None;
        }
        let request = WriteTextFileRequest::new(wire_id(&self.session), path, text);
        let peer = self.peer.clone();
        Some(Box::pin(async move {
            let answer = peer.ask("fs/write_text_file", &request).await.await;
            answer.map(drop).map_err(|fault| fault.message)
        }))
    }

    fn fell_silent(&self) {
        self.silence.0.is_silent.store(true, Ordering::Release);
    }
}

impl fmt::Debug for ClientFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientFiles").field("session", &self.session).finish_non_exhaustive()
    }
}
