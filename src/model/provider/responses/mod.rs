//! The Responses API of OpenAI and compatible servers, over WebSocket or SSE.

mod body;
mod call;
mod continuation;
mod exchange;
mod reduce;
mod transport;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::HeaderMap;
use serde_json::Value;

pub use body::http_body;
pub use reduce::Reducer;

use super::wire::sse::{self, ResponseStream};
use super::wire::websocket::{SocketTimeouts, WebSocket};
use super::{ModelEvent, ModelRequest, Provider, ProviderError};
use crate::base::error::Kind;
use crate::base::id::{SessionId, sha256};
use crate::host::http::{HttpClient, HttpSettings};
use crate::model::credential::{AuthRecovery, Authorization, Credential, FieldPolicy};
use crate::settings::config::models;
use crate::settings::config::models::Model;
use crate::settings::config::{Config, StreamTimeouts, TransportSetting};
use call::ResponsesCall;
use transport::SessionTransports;

/// Endpoints that are known to support WebSocket.
const WEBSOCKET_ENDPOINTS: [&str; 2] = ["https://api.openai.com/", "https://chatgpt.com/"];

/// The Provider for `/responses`.
#[derive(Debug, Clone)]
pub struct ResponsesProvider {
    shared: Arc<Shared>,
}

/// State that all calls share.
#[derive(Debug)]
struct Shared {
    credential: Credential,
    account: Arc<str>,
    limits: StreamTimeouts,
    transport: TransportSetting,
    socket_timeouts: SocketTimeouts,
    client: HttpClient,
    transports: SessionTransports,
}

/// Options of the transport.
#[derive(Debug, Clone, Default)]
pub struct TransportOptions {
    /// The transport; `None` chooses by endpoint: WebSocket where it is known to work.
    pub transport: Option<TransportSetting>,
    pub http: HttpSettings,
    pub socket_timeouts: SocketTimeouts,
}

impl TransportOptions {
    /// Options from settings and environment; `lookup` reads a variable.
    pub fn from_config(config: &Config, lookup: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            transport: config.transport,
            http: HttpSettings::from_environment(lookup)
                .with_extra_certificates(config.extra_roots.clone()),
            ..Self::default()
        }
    }
}

impl ResponsesProvider {
    /// Creates the Provider. Cheap: nothing is loaded or connected before the first call.
    pub fn new(credential: Credential, limits: StreamTimeouts, options: TransportOptions) -> Self {
        let base_url = credential.base_url();
        let speaks_sockets = WEBSOCKET_ENDPOINTS.iter().any(|known| base_url.starts_with(known));
        let usual = if speaks_sockets { TransportSetting::Auto } else { TransportSetting::Sse };
        let policy = options.transport.unwrap_or(usual);
        let client = options.http.client(base_url.to_owned(), limits.connect);
        let shared = Shared {
            account: account_fingerprint(&credential),
            credential,
            limits,
            transport: policy,
            socket_timeouts: SocketTimeouts {
                connect: options.socket_timeouts.connect.min(limits.connect),
                ..options.socket_timeouts
            },
            client,
            transports: SessionTransports::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lists the models of the endpoint; costs nothing, and is bounded by the stream limits.
    pub async fn list_models(&self, version: &str) -> Result<Vec<Model>, ProviderError> {
        let shared = &self.shared;
        let path = match shared.credential.policy() {
            // This catalogue leaves out models that need a newer client.
            FieldPolicy::ChatGpt => format!("/models?client_version={version}"),
            FieldPolicy::OpenAi | FieldPolicy::Portable => "/models".to_owned(),
        };
        let get = |headers| sse::get_json(&shared.client, shared.limits, &path, headers);
        let (answer, _) =
            shared.send_authorized("", None, &mut AuthRecovery::default(), get).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        models::parse_listing(&answer).ok_or_else(|| {
            let message = "the endpoint answered, but not with a list of models";
            ProviderError::terminal(Kind::InvalidResponse, message)
        })
    }
}

impl Provider for ResponsesProvider {
    fn stream(
        &self,
        request: ModelRequest,
    ) -> BoxStream<'static, Result<ModelEvent, ProviderError>> {
        let call = ResponsesCall::new(self.shared.clone(), request);
        stream::unfold(call, |mut call| async move { call.next().await.map(|event| (event, call)) })
            .boxed()
    }

    fn request_body(&self, request: &ModelRequest) -> Option<Vec<u8>> {
        Some(ResponsesCall::new(self.shared.clone(), request.clone()).http_body())
    }

    fn forget_session(&self, session: &SessionId) {
        self.shared.transports.forget_session(session);
    }

    fn account(&self) -> Option<Arc<str>> {
        Some(self.shared.account.clone())
    }
}

impl Shared {
    /// Sends one request. A refused token is left to the caller, which counts requests.
    async fn post(
        &self,
        session: &SessionId,
        authorization: &Authorization,
        body: Vec<u8>,
    ) -> Result<ResponseStream, ProviderError> {
        let headers = self.credential.headers(authorization, session.as_str())?;
        sse::post_for_events(&self.client, self.limits, "/responses", headers, Bytes::from(body))
            .await
    }

    /// Opens a socket and returns the authorization that was used. A handshake costs nothing, so it is
    /// repeated here after a refused token.
    async fn open_socket(
        &self,
        session: &SessionId,
        first: Option<Authorization>,
        recovery: &mut AuthRecovery,
    ) -> Result<(WebSocket, Authorization), ProviderError> {
        let open =
            |headers| WebSocket::open(&self.client, "/responses", headers, self.socket_timeouts);
        self.send_authorized(session.as_str(), first, recovery, open).await
    }

    /// Makes a request that costs nothing, with the credential's headers. A refused token is replaced
    /// at most twice.
    async fn send_authorized<T, F: Future<Output = Result<T, ProviderError>>>(
        &self,
        session: &str,
        first: Option<Authorization>,
        recovery: &mut AuthRecovery,
        request: impl Fn(HeaderMap) -> F,
    ) -> Result<(T, Authorization), ProviderError> {
        let mut authorization = match first {
            Some(first) => first,
            None => self.credential.authorize().await?,
        };
        loop {
            let headers = self.credential.headers(&authorization, session)?;
            let error = match request(headers).await {
                Ok(answer) => return Ok((answer, authorization)),
                Err(error) => error,
            };
            if error.facts.status != Some(401) {
                return Err(error);
            }
            match self.credential.recover(&authorization, recovery).await? {
                Some(another) => authorization = another,
                None => return Err(error),
            }
        }
    }
}

/// A hash that tells endpoints and paying accounts apart without naming them.
fn account_fingerprint(credential: &Credential) -> Arc<str> {
    let subscriber = credential.tokens().map(|tokens| tokens.account_id);
    let parts = [
        Some(credential.base_url()),
        credential.organization.as_deref(),
        credential.project.as_deref(),
        subscriber.as_deref(),
    ];
    sha256(parts.map(Option::unwrap_or_default).join("\n").as_bytes())[..12].into()
}
