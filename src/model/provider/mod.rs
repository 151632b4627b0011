//! Providers: the trait for calling a model. A call is a stream; dropping the stream abandons the call.
//!
//! `input` alone decides what the model sees of a History. `retry` computes whether and when a failed
//! call is tried again; the caller asks for it, because only the caller knows whether a tool has run.

mod classify;
mod input;
mod rate_limits;
mod reset;
mod responses;
mod retry;
#[cfg(test)]
mod tests;
mod web_search;
mod wire;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde_json::{Value, json};

pub use reset::{format_duration, format_utc};
pub use responses::{Reducer, ResponsesProvider, TransportOptions, http_body};
pub use retry::next_retry_delay;

use crate::base::error::{Explain, Explanation, Kind};
use crate::base::id::{CallId, SessionId};
use crate::model::credential::CredentialError;
use crate::model::tool_spec::ToolSpec;
use crate::record::event::{ContinuationUse, Extra, RateLimits, TokenUsage, ToolCall};
use crate::record::history::History;
use crate::record::resource::ResourceContents;
use crate::settings::config::AnswerSchema;

/// A service that answers requests to a model.
pub trait Provider: Send + Sync + Debug {
    /// Starts one call. The stream yields until `Completed` or an error, each of which is its last
    /// item, and ends as soon as the final message arrives. The request is sent again only while the
    /// model has not produced output, at most `resends` times; each time is announced by `Sent`.
    fn stream(
        &self,
        request: ModelRequest,
    ) -> BoxStream<'static, Result<ModelEvent, ProviderError>>;
    /// The body that a call would send, without sending it; `None` when the Provider has no body to show.
    fn request_body(&self, _request: &ModelRequest) -> Option<Vec<u8>> {
        None
    }
    /// Drops the state of a Session, such as its connection; no call of that Session will follow.
    fn forget_session(&self, _session: &SessionId) {}
    /// A short fingerprint of endpoint and paying account; `None` when there is only one.
    fn account(&self) -> Option<Arc<str>> {
        None
    }
}

/// A request to a model: everything that the model sees.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// The model's name.
    pub model: String,
    /// Reasoning effort; `None` leaves it to the model.
    pub effort: Option<String>,
    /// Byte-stable instructions of the Prompt contract.
    pub instructions: Arc<str>,
    /// The developer message of the project, stable within it; `None` when it is empty.
    pub project: Option<Arc<str>>,
    /// The tools that the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// The History so far.
    pub history: History,
    /// Contents of the Resources that this request shows.
    pub contents: ResourceContents,
    /// The Provider's cache key.
    pub cache_key: String,
    /// The Session that the call belongs to; the calls of one Session share a connection.
    pub session: SessionId,
    /// How often the Provider may send the request again by itself, over another transport or without
    /// the parts that the server refused, as long as there is no output yet.
    pub resends: u32,
    /// Options of the answer.
    pub response_options: ResponseOptions,
}

/// Options of an answer that the user asked for.
#[derive(Debug, Clone, Default)]
pub struct ResponseOptions {
    /// Whether the Provider may search the web.
    pub web_search: bool,
    /// The JSON schema that the final message must follow.
    pub answer_schema: Option<AnswerSchema>,
}

/// An event in the stream of one call.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// The request is about to be sent; repeated each time it is sent again.
    Sent(SentRequest),
    /// The first byte of the answer arrived.
    FirstByte,
    TextDelta(String),
    ReasoningDelta(String),
    /// A finished output item, in arrival order.
    Item(OutputItem),
    /// Rate limits that the server reported.
    Limits(Box<RateLimits>),
    /// Usage that a failed answer is billed for; its error follows.
    FailedUsage(TokenUsage),
    /// The end of the answer, with its usage.
    Completed(CompletedResponse),
}

/// How a request was sent: its transport, and what differs from the attempt before.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SentRequest {
    pub transport: &'static str,
    /// Why the preferred transport was not used.
    pub fallback_reason: Option<String>,
    /// `None` for a transport that cannot continue a response.
    pub continuation: Option<ContinuationUse>,
    /// Whether reasoning was left out, because the server could not read it.
    pub is_without_reasoning: bool,
    /// The error of the same request's previous attempt.
    pub previous_error: Option<Box<ProviderError>>,
}

/// A finished piece of the model's output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputItem {
    /// Text for the user; `is_refusal` when it consists of a refusal only.
    Message {
        text: String,
        is_refusal: bool,
        /// Web pages that the text cites.
        citations: Vec<WebSource>,
    },
    Reasoning {
        item: Value,
    },
    Call(FunctionCall),
    /// A web search that the Provider ran.
    WebSearch(WebSearch),
    /// An item of another type, such as one of a hosted tool; ignored by the Turn, never a failure.
    Other {
        type_name: String,
    },
}

/// A web search of the Provider: its action and sources, never the text of its queries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WebSearch {
    /// `search`, `open_page` or `find_in_page`, as the Provider reports it.
    pub action: String,
    /// How long each query was, in characters.
    pub query_lengths: Vec<usize>,
    pub sources: Vec<WebSource>,
}

/// A web page that a search found or a message cites.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WebSource {
    pub url: String,
    pub title: String,
}

/// A finished tool call of the model; `arguments` is JSON text exactly as sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCall {
    pub call_id: String,
    pub name: String,
    pub arguments: String,
}

impl FunctionCall {
    /// Parses the arguments as an object; the error says why they are not one.
    pub fn parse_arguments(&self) -> Result<Value, String> {
        if self.arguments.trim().is_empty() {
            return Ok(json!({}));
        }
        match serde_json::from_str::<Value>(&self.arguments) {
            Ok(args @ Value::Object(_)) => Ok(args),
            Ok(_) => Err("the arguments are not a JSON object".to_owned()),
            Err(error) => Err(format!("the arguments are not JSON: {error}")),
        }
    }

    /// The Event that records the call.
    pub fn to_tool_call(&self, args: &Result<Value, String>) -> ToolCall {
        ToolCall {
            call_id: CallId::new(&self.call_id),
            name: self.name.clone(),
            args: args.clone().unwrap_or(Value::Null),
            raw_args: args.is_err().then(|| self.arguments.clone()),
            extra: Extra::new(),
        }
    }
}

/// The end of a successful call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CompletedResponse {
    pub response_id: Option<String>,
    pub usage: Option<TokenUsage>,
    /// Why the answer was cut; `None` when it is complete.
    pub incomplete: Option<String>,
    /// Whether the backend reports that the model wants to go on.
    pub wants_more: bool,
}

/// The error of a call to a Provider.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub kind: Kind,
    pub message: String,
    /// Whether another attempt can help.
    pub retryable: bool,
    /// The wait that the server asked for before another attempt.
    pub retry_after: Option<Duration>,
    pub facts: Box<ErrorFacts>,
}

/// Facts that a server gave about a failure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ErrorFacts {
    /// HTTP status.
    pub status: Option<u16>,
    pub code: Option<ServerErrorCode>,
    /// The close code of the WebSocket.
    pub close_code: Option<u16>,
    /// When the usage limit of the plan resets, in seconds since 1970.
    pub resets_at: Option<u64>,
    pub rate_limits: Option<RateLimits>,
    /// Facts for display only, by name.
    pub others: serde_json::Map<String, Value>,
}

/// The error code of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerErrorCode {
    InvalidEncryptedContent,
    PreviousResponseNotFound,
    WebSocketConnectionLimitReached,
    Other(String),
}

impl From<String> for ServerErrorCode {
    fn from(code: String) -> Self {
        match code.as_str() {
            "invalid_encrypted_content" => Self::InvalidEncryptedContent,
            "previous_response_not_found" => Self::PreviousResponseNotFound,
            "websocket_connection_limit_reached" => Self::WebSocketConnectionLimitReached,
            _ => Self::Other(code),
        }
    }
}

impl ServerErrorCode {
    pub fn as_str(&self) -> &str {
        match self {
            Self::InvalidEncryptedContent => "invalid_encrypted_content",
            Self::PreviousResponseNotFound => "previous_response_not_found",
            Self::WebSocketConnectionLimitReached => "websocket_connection_limit_reached",
            Self::Other(code) => code,
        }
    }
}

impl ProviderError {
    /// A failure that the same request would cause again: not retryable.
    pub fn terminal(kind: Kind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, retryable: false, retry_after: None, facts: Box::default() }
    }

    /// A temporary failure: retryable.
    pub fn transient(kind: Kind, message: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::terminal(kind, message) }
    }

    /// Adds a fact for display only.
    #[must_use]
    pub fn with_fact(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.others.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.facts.status = Some(status);
        self
    }
}

/// A call without a usable credential; the kind tells what the user must do first.
impl From<CredentialError> for ProviderError {
    fn from(error: CredentialError) -> Self {
        let mut failed = Self::terminal(error.kind(), error.to_string());
        failed.retryable = error.is_passing();
        if let Value::Object(details) = error.details() {
            failed.facts.others = details;
        }
        failed
    }
}

impl Explain for ProviderError {
    fn explain(&self) -> Explanation {
        let details = self.details();
        Explanation { kind: self.kind, details, next_actions: self.next_actions() }
    }

    fn details(&self) -> Value {
        let ErrorFacts { status, code, close_code, resets_at, rate_limits, others } = &*self.facts;
        let mut details = others.clone();
        let typed = [
            ("resets_at", resets_at.map(Value::from)),
            ("code", code.as_ref().map(|code| code.as_str().into())),
            ("status", status.map(Value::from)),
            ("close_code", close_code.map(Value::from)),
            (
                "rate_limits",
                rate_limits.as_ref().and_then(|limits| serde_json::to_value(limits).ok()),
            ),
            ("retry_after_s", self.retry_after.map(|wait| wait.as_secs_f64().into())),
        ];
        for (name, value) in typed {
            details.extend(value.map(|value| (name.to_owned(), value)));
        }
        if details.is_empty() { Value::Null } else { Value::Object(details) }
    }

    fn next_actions(&self) -> Vec<String> {
        let wait = self.retry_after.map_or_else(
            || "wait a little and run it again".to_owned(),
            |wait| format!("wait {} and run it again", reset::format_duration(wait)),
        );
        let until =
            format!("{}, or use another credential or `--provider`", reset::wait_instruction(self));
        let actions: &[&str] = match self.kind {
            Kind::AuthRefused => &[
                "see which credential is used with `pixir login status`",
                "check OPENAI_API_KEY, or sign in again with `pixir login`",
            ],
            Kind::NotAuthenticated => &["sign in with `pixir login`, or set OPENAI_API_KEY"],
            Kind::ContextOverflow => &[
                "make room with `pixir compact`, or start a new Session with what matters",
                "name the model's real window in `context_window` of the config",
            ],
            Kind::RateLimited | Kind::ProviderOverloaded => &[&wait],
            Kind::UsageLimitReached => &[&until],
            Kind::QuotaExceeded => &["check the plan and billing of this account"],
            Kind::ModelNotSupported => {
                &["list the models with `pixir models refresh`", "choose one with `--model`"]
            }
            Kind::ProviderRefusal => &["rephrase the request"],
            Kind::Tls => &[
                "check the clock of this machine and the name in OPENAI_BASE_URL",
                "behind an inspecting proxy, name its certificate in `tls.extra_roots` of your config, or in SSL_CERT_FILE",
            ],
            Kind::Network => {
                &["check the network, the proxy and OPENAI_BASE_URL, then resume the Session"]
            }
            Kind::StreamIdle | Kind::Timeout => &[
                "resume the Session; raise `stream.idle_ms` or `stream.total_ms` in the config if the model is slow",
            ],
            Kind::NotFound => &["check OPENAI_BASE_URL: it usually ends in /v1"],
            Kind::ProviderError if !self.retryable => {
                &["the same request would be refused again: change the prompt, model or settings"]
            }
            Kind::InvalidResponse if !self.retryable => &[
                "check OPENAI_BASE_URL, or the provider's `base_url`: it must be that of a Responses API and usually ends in /v1",
                "check for a proxy or a sign-in page of the network in between",
            ],
            Kind::InvalidResponse | Kind::ProviderError | Kind::Incomplete => {
                &["resume the Session to try again"]
            }
            _ => &[],
        };
        actions.iter().map(|action| (*action).to_owned()).collect()
    }
}
