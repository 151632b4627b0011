//! Wires: how requests leave and how frames come back, whatever the dialect.

pub mod clock;
pub mod frames;
pub mod sse;
pub mod websocket;

use super::{ProviderError, classify};
use crate::error::Kind;
use crate::network::NetworkError;

/// What a request that brought no answer means.
fn unreachable(error: NetworkError) -> ProviderError {
    match error {
        NetworkError::Setting(message) => ProviderError::terminal(Kind::InvalidConfig, message),
        NetworkError::Unusable(causes) => {
            ProviderError::terminal(Kind::Network, format!("no request could be made: {causes}"))
        }
        NetworkError::Connect(causes) => {
            classify::connection("the Provider could not be reached", &causes)
        }
        NetworkError::Broken(causes) => classify::connection("the connection broke", &causes),
    }
}
