//! The Responses API of OpenAI and compatible servers, over WebSocket or SSE.

mod body;
mod call;
mod continuation;
mod reduce;
mod talk;
mod transport;

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::HeaderMap;
use serde_json::Value;
use sha2::{Digest, Sha256};

pub use body::body;
pub use reduce::Reducer;

use super::wire::sse::{self, ResponseStream};
use super::wire::websocket::{Pace, Socket};
use super::{ModelEvent, Provider, ProviderError, Request};
use crate::base::error::Kind;
use crate::base::id::SessionId;
use crate::host::http::{HttpClient, HttpSettings};
use crate::model::credential::{Authorization, Credential, FieldPolicy, Recovery};
use crate::settings::config::models;
use crate::settings::config::models::Model;
use crate::settings::config::{Config, Stream, Transport};
use call::Call;
use transport::Lines;

/// Endpoints that are known to support WebSocket.
const SOCKETS: [&str; 2] = ["https://api.openai.com/", "https://chatgpt.com/"];

/// The Provider for `/responses`.
#[derive(Debug, Clone)]
pub struct Responses {
    shared: Arc<Shared>,
}

/// State that all calls share.
#[derive(Debug)]
struct Shared {
    credential: Credential,
    account: Arc<str>,
    limits: Stream,
    policy: Transport,
    pace: Pace,
    client: HttpClient,
    lines: Lines,
}

/// Options of the transport.
#[derive(Debug, Clone, Default)]
pub struct Travel {
    /// `None` chooses by endpoint: WebSocket where it is known to work.
    pub transport: Option<Transport>,
    pub http: HttpSettings,
    pub pace: Pace,
}

impl Travel {
    /// Options from settings and environment; `lookup` reads a variable.
    pub fn of(config: &Config, lookup: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            transport: config.transport,
            http: HttpSettings::from_environment(lookup).trusting(config.extra_roots.clone()),
            ..Self::default()
        }
    }
}

impl Responses {
    /// Creates the Provider. Cheap: nothing is loaded or connected before the first call.
    pub fn new(credential: Credential, limits: Stream, travel: Travel) -> Self {
        let base_url = credential.base_url();
        let speaks_sockets = SOCKETS.iter().any(|known| base_url.starts_with(known));
        let usual = if speaks_sockets { Transport::Auto } else { Transport::Sse };
        let policy = travel.transport.unwrap_or(usual);
        let client = travel.http.client(base_url.to_owned(), limits.connect);
        let shared = Shared {
            account: account(&credential),
            credential,
            limits,
            policy,
            pace: Pace { connect: travel.pace.connect.min(limits.connect), ..travel.pace },
            client,
            lines: Lines::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lists the models of the endpoint; costs nothing, and is bounded by the stream limits.
    pub async fn models(&self, version: &str) -> Result<Vec<Model>, ProviderError> {
        let shared = &self.shared;
        let path = match shared.credential.policy() {
            // This catalogue leaves out models that need a newer client.
            FieldPolicy::ChatGpt => format!("/models?client_version={version}"),
            FieldPolicy::OpenAi | FieldPolicy::Portable => "/models".to_owned(),
        };
        let get = |headers| sse::get(&shared.client, shared.limits, &path, headers);
        let (answer, _) = shared.admitted("", None, &mut Recovery::default(), get).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        models::listed(&answer).ok_or_else(|| {
            let message = "the endpoint answered, but not with a list of models";
            ProviderError::terminal(Kind::InvalidResponse, message)
        })
    }
}

impl Provider for Responses {
    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ProviderError>> {
        let call = Call::new(self.shared.clone(), request);
        stream::unfold(call, |mut call| async move { call.next().await.map(|event| (event, call)) })
            .boxed()
    }

    fn rehearse(&self, request: &Request) -> Option<Vec<u8>> {
        Some(Call::new(self.shared.clone(), request.clone()).http_body())
    }

    fn forget(&self, session: &SessionId) {
        self.shared.lines.forget(session);
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
        sse::post(&self.client, self.limits, "/responses", headers, Bytes::from(body)).await
    }

    /// Opens a socket and returns the authorization that was used. A handshake costs nothing, so it is
    /// repeated here after a refused token.
    async fn connect(
        &self,
        session: &SessionId,
        first: Option<Authorization>,
        recovery: &mut Recovery,
    ) -> Result<(Socket, Authorization), ProviderError> {
        let open = |headers| Socket::open(&self.client, "/responses", headers, self.pace);
        self.admitted(session.as_str(), first, recovery, open).await
    }

    /// Makes a request that costs nothing, with the credential's headers. A refused token is replaced
    /// at most twice.
    async fn admitted<T, F: Future<Output = Result<T, ProviderError>>>(
        &self,
        session: &str,
        first: Option<Authorization>,
        recovery: &mut Recovery,
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
fn account(credential: &Credential) -> Arc<str> {
    let subscriber = credential.tokens().map(|tokens| tokens.account_id);
    let parts = [
        Some(credential.base_url()),
        credential.organization.as_deref(),
        credential.project.as_deref(),
        subscriber.as_deref(),
    ];
    let digest = Sha256::digest(parts.map(Option::unwrap_or_default).join("\n"));
    let mark = digest.iter().take(6).fold(String::new(), |mut mark, byte| {
        write!(mark, "{byte:02x}").ok();
        mark
    });
    mark.into()
}
