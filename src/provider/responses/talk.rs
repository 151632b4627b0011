//! One request on a socket: written as a frame, read until its last word.

use std::collections::VecDeque;

use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::body::Parts;
use super::reduce::Reducer;
use crate::credential::Authorization;
use crate::error::Kind;
use crate::provider::wire::clock::Clock;
use crate::provider::wire::websocket::{Heard, Socket};
use crate::provider::{Item, ModelEvent, ProviderError};

/// A request on a socket.
pub struct Talk {
    pub socket: Socket,
    /// What its handshake was let in with.
    pub authorization: Authorization,
    pub clock: Clock,
    pub parts: Parts,
    pub items: Vec<Item>,
    pub is_reused: bool,
    pub is_continued: bool,
}

impl Talk {
    pub async fn send(&mut self, frame: Vec<u8>) -> Result<(), ProviderError> {
        let odd = |_| ProviderError::terminal(Kind::Internal, "a request that is not text");
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
