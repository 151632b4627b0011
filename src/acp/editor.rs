//! The client's files: its buffers for our Tools, where it offers them.

use std::fmt;
use std::path::Path;

use agent_client_protocol_schema::v1::{ReadTextFileRequest, WriteTextFileRequest};
use futures_util::future::BoxFuture;

use super::client::Client;
use super::connection::wire_id;
use crate::harness::Editor;
use crate::id::SessionId;
use crate::rpc::Peer;

/// The files of a client, as one Session sees them.
pub struct ClientFiles {
    peer: Peer,
    session: SessionId,
    client: Client,
}

impl ClientFiles {
    /// What the client offers, if it offers anything.
    pub fn of(peer: &Peer, session: &SessionId, client: Client) -> Option<Self> {
        let offers = client.reads_files || client.writes_files;
        offers.then(|| Self { peer: peer.clone(), session: session.clone(), client })
    }
}

impl Editor for ClientFiles {
    fn read_text(&self, path: &Path) -> Option<BoxFuture<'static, Result<String, String>>> {
        if !self.client.reads_files {
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
        if !self.client.writes_files {
            return None;
        }
        let request = WriteTextFileRequest::new(wire_id(&self.session), path, text);
        let peer = self.peer.clone();
        Some(Box::pin(async move {
            let answer = peer.ask("fs/write_text_file", &request).await.await;
            answer.map(drop).map_err(|fault| fault.message)
        }))
    }
}

impl fmt::Debug for ClientFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientFiles").field("session", &self.session).finish_non_exhaustive()
    }
}
