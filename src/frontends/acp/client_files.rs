//! File access through the client: tools read and write the editor's buffers where it supports that.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol_schema::v1::{ReadTextFileRequest, WriteTextFileRequest};
use futures_util::future::BoxFuture;

use super::capabilities::ClientCapabilities;
use super::connection::wire_id;
use crate::agent::harness::Editor;
use crate::base::id::SessionId;
use crate::host::rpc::Peer;

/// The notice about a client that does not answer file requests.
const UNRESPONSIVE_NOTICE: &str = "the editor did not answer a file request: from now on files are read and \
    written on disk, without its unsaved changes";

/// File access through the client for one Session.
pub struct ClientFiles {
    peer: Peer,
    session: SessionId,
    client: ClientCapabilities,
    status: EditorStatus,
}

/// Whether the client has stopped answering file requests; shared with the Session's task, which
/// notifies the user.
#[derive(Debug, Clone, Default)]
pub struct EditorStatus(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_unresponsive: AtomicBool,
    is_reported: AtomicBool,
}

impl EditorStatus {
    /// The notice for the user, once.
    pub fn take_notice(&self) -> Option<String> {
        let is_news = self.is_unresponsive() && !self.0.is_reported.swap(true, Ordering::AcqRel);
        is_news.then(|| UNRESPONSIVE_NOTICE.to_owned())
    }

    fn is_unresponsive(&self) -> bool {
        self.0.is_unresponsive.load(Ordering::Acquire)
    }
}

impl ClientFiles {
    /// File access for a Session; `None` when the client supports none.
    pub fn for_session(
        peer: &Peer,
        session: &SessionId,
        client: ClientCapabilities,
    ) -> Option<Self> {
        let offers = client.reads_files || client.writes_files;
        let status = EditorStatus::default();
        offers.then(|| Self { peer: peer.clone(), session: session.clone(), client, status })
    }

    /// The shared status of the client's file access.
    pub fn status(&self) -> EditorStatus {
        self.status.clone()
    }
}

impl Editor for ClientFiles {
    fn read_text(&self, path: &Path) -> Option<BoxFuture<'static, Result<String, String>>> {
        if !self.client.reads_files || self.status.is_unresponsive() {
            return None;
        }
        let request = ReadTextFileRequest::new(wire_id(&self.session), path);
        let peer = self.peer.clone();
        Some(Box::pin(async move {
            let answer = peer.send_request("fs/read_text_file", &request).await.await;
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
        if !self.client.writes_files || self.status.is_unresponsive() {
            return None;
        }
        let request = WriteTextFileRequest::new(wire_id(&self.session), path, text);
        let peer = self.peer.clone();
        Some(Box::pin(async move {
            let answer = peer.send_request("fs/write_text_file", &request).await.await;
            answer.map(drop).map_err(|fault| fault.message)
        }))
    }

    fn mark_unresponsive(&self) {
        self.status.0.is_unresponsive.store(true, Ordering::Release);
    }
}

impl fmt::Debug for ClientFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientFiles").field("session", &self.session).finish_non_exhaustive()
    }
}
