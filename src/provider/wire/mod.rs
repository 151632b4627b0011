//! Transports: how requests are sent and how events come back, whatever the dialect.

pub mod clock;
pub mod sse;
pub mod websocket;

use super::{ProviderError, classify};
use crate::error::Kind;
use crate::http::HttpError;

/// What a request that brought no answer means.
pub fn unreachable(error: HttpError) -> ProviderError {
    let (kind, is_passing, what) = match &error {
        HttpError::Setting(_) => (Kind::InvalidConfig, false, ""),
        HttpError::InvalidRequest(_) => (Kind::Network, false, "no request could be made: "),
        HttpError::Connect(_) => (Kind::Network, true, "the Provider could not be reached: "),
        // A certificate that is not trusted now will not be trusted in a second.
        HttpError::Tls(_) => (Kind::Tls, false, "the Provider could not be reached: "),
        HttpError::Broken(_) => (Kind::Network, true, "the connection broke: "),
        HttpError::TooLong(_) => {
            (Kind::InvalidResponse, false, "the Provider's answer is too long: ")
        }
    };
    let message = format!("{what}{}", classify::cut(&error.to_string()));
    let build = if is_passing { ProviderError::passing } else { ProviderError::terminal };
    build(kind, message)
}
