//! One request and its answer on a WebSocket.

use std::collections::VecDeque;

use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::body::Parts;
use super::reduce::Reducer;
use crate::base::error::Kind;
use crate::model::credential::Authorization;
use crate::model::provider::wire::clock::Clock;
use crate::model::provider::wire::websocket::{Heard, Socket};
use crate::model::provider::{Item, ModelEvent, ProviderError};

/// A request on a WebSocket, and what is needed to read its answer.
pub struct Talk {
    pub socket: Socket,
    /// The authorization of the handshake.
    pub authorization: Authorization,
    pub clock: Clock,
    pub parts: Parts,
    pub items: Vec<Item>,
    pub is_reused: bool,
    pub is_continued: bool,
}

impl Talk {
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
            Heard::Life => Ok(()),
            Heard::Event(text) => reducer.take_whole(text.as_bytes(), ready),
        }
    }
}
