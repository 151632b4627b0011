//! One request and its answer on a WebSocket.

use std::collections::VecDeque;

use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::body::RequestBody;
use super::reduce::Reducer;
use crate::base::error::Kind;
use crate::model::credential::Authorization;
use crate::model::provider::wire::clock::CallClock;
use crate::model::provider::wire::websocket::{SocketRead, WebSocket};
use crate::model::provider::{ModelEvent, OutputItem, ProviderError};

/// A request on a WebSocket, and what is needed to read its answer.
pub struct SocketExchange {
    pub socket: WebSocket,
    /// The authorization of the handshake.
    pub authorization: Authorization,
    pub clock: CallClock,
    pub parts: RequestBody,
    pub items: Vec<OutputItem>,
    pub is_reused: bool,
    pub is_continued: bool,
}

impl SocketExchange {
    pub async fn send(&mut self, frame: Vec<u8>) -> Result<(), ProviderError> {
        let odd = |_| ProviderError::terminal(Kind::Internal, "the request is not valid UTF-8");
        let text = Utf8Bytes::try_from(frame).map_err(odd)?;
        self.clock.watch(self.socket.send(text)).await?
    }

    pub async fn read(
        &mut self,
        reducer: &mut Reducer,
        ready: &mut VecDeque<Result<ModelEvent, ProviderError>>,
    ) -> Result<(), ProviderError> {
        match self.clock.watch(self.socket.read()).await?? {
            SocketRead::KeepAlive => Ok(()),
            SocketRead::Event(text) => reducer.push_message(text.as_bytes(), ready),
        }
    }
}
