//! The client's files: its buffers for our Tools, where it offers them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol_schema::v1::{ReadTextFileRequest, WriteTextFileRequest};
use futures_util::future::BoxFuture;

use super::client::Client;
use super::connection::wire_id;
use crate::harness::Editor;
use crate::id::SessionId;
use crate::rpc::Peer;

/// What the user is told of a client that does not answer.
const SILENT: &str = "the editor did not answer when it was asked for a file: from now on files are read and \
    written on the disk, without what is not saved";

/// The files of a client, as one Session sees them.
pub struct ClientFiles {
    peer: Peer,
    session: SessionId,
    client: Client,
    silence: Silence,
}

/// Whether the client has stopped answering for files; shared with whoever tells the user.
#[derive(Debug, Clone, Default)]
pub struct Silence(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_silent: AtomicBool,
    is_told: AtomicBool,
}

impl Silence {
    /// What the user should know of it, once.
    pub fn take_note(&self) -> Option<String> {
        let is_news = self.is_there() && !self.0.is_told.swap(true, Ordering::AcqRel);
        is_news.then(|| SILENT.to_owned())
    }

    fn is_there(&self) -> bool {
        self.0.is_silent.load(Ordering::Acquire)
    }
}

impl ClientFiles {
    /// What the client offers, if it offers anything.
    pub fn of(peer: &Peer, session: &SessionId, client: Client) -> Option<Self> {
        let offers = client.reads_files || client.writes_files;
        let silence = Silence::default();
        offers.then(|| Self { peer: peer.clone(), session: session.clone(), client, silence })
    }

    /// Tells when the client has stopped answering.
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
