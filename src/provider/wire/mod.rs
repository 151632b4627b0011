//! Transports: how requests are sent and how events come back, whatever the dialect.

pub mod clock;
pub mod sse;
pub mod websocket;

use super::{ProviderError, classify};
use crate::error::Kind;
use crate::http::HttpError;

/// The error of a call whose request got no answer, or not all of it.
pub fn unreachable(error: HttpError) -> ProviderError {
    let network = |what: &str, cause: &str| format!("{what}: {}", classify::cut(cause));
    match error {
        HttpError::Setting(message) => ProviderError::terminal(Kind::InvalidConfig, message),
        HttpError::InvalidRequest(cause) => {
            ProviderError::terminal(Kind::Network, network("no request could be made", &cause))
        }
        HttpError::Connect(cause) => ProviderError::passing(
            Kind::Network,
            network("the Provider could not be reached", &cause),
        ),
        // A certificate that is not trusted now will not be trusted in a second.
        HttpError::Tls(cause) => {
            ProviderError::terminal(Kind::Tls, network("the Provider could not be reached", &cause))
        }
        HttpError::Broken(cause) => {
            ProviderError::passing(Kind::Network, network("the connection broke", &cause))
        }
        HttpError::TooLong(message) => ProviderError::terminal(Kind::InvalidResponse, message),
    }
}
