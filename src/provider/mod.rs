//! Providers: where the model is. One method, pulled as a stream; dropping it abandons the call.
//!
//! What the model may see of a History is decided in `input` and nowhere else; when a failed call
//! is worth another attempt is decided in `retry`, by the caller, because only the caller knows
//! whether a tool has already run.

mod classify;
mod input;
mod limits;
mod reset;
mod responses;
mod retry;
mod search;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde_json::{Value, json};

pub use reset::{spoken, utc};
pub use responses::{Reducer, Responses, Travel, body};
pub use retry::next_delay;

use crate::config::AnswerSchema;
use crate::credential::CredentialError;
use crate::error::{Explain, Kind};
use crate::event::{Continuation, Extra, RateLimits, Tokens, ToolCall};
use crate::history::History;
use crate::id::{CallId, SessionId};
use crate::resource::Contents;
use crate::tool::ToolSpec;

/// A model behind a wire.
pub trait Provider: Send + Sync + Debug {
    /// Starts one call. The stream yields until `Completed` or an error, each of which is its last
    /// item, and ends at once when the wire says its last word. It sends the request anew only while
    /// the model has said nothing, at most `resends` times, and announces each time by `Sent`.
    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ProviderError>>;
    /// The body that a call would send, without sending it; `None` where there is nothing to show.
    fn rehearse(&self, _request: &Request) -> Option<Vec<u8>> {
        None
    }
    /// No call of this Session will follow: what is kept for it may go.
    fn forget(&self, _session: &SessionId) {}
    /// Who pays, and where, as a short mark; `None` when there is nothing to tell apart.
    fn account(&self) -> Option<Arc<str>> {
        None
    }
}

/// One call: everything the model sees.
#[derive(Debug, Clone)]
pub struct Request {
    /// The model's name.
    pub model: String,
    /// How hard it should think; `None` leaves that to the model.
    pub effort: Option<String>,
    /// Byte-stable instructions of the Prompt contract.
    pub instructions: Arc<str>,
    /// The project-stable developer message; none when there is nothing to say.
    pub project: Option<Arc<str>>,
    /// What it may call.
    pub tools: Arc<[ToolSpec]>,
    /// What happened so far.
    pub history: History,
    /// What is shown of its Resources.
    pub contents: Contents,
    /// The Provider's cache key.
    pub cache_key: String,
    /// The Session it belongs to; its calls share a connection.
    pub session: SessionId,
    /// How often the Provider may send it anew by itself, on another wire or without what the
    /// server refused, as long as nothing was said.
    pub resends: u32,
    /// What the user wants of the answer.
    pub wishes: Wishes,
}

/// What the user wants of an answer, beyond an answer.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// The Provider may search the web.
    pub web_search: bool,
    /// What the final message must look like.
    pub answer_schema: Option<AnswerSchema>,
}

/// What a model says while it answers.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// The request is about to leave; more than once when it is sent anew.
    Sent(Sent),
    /// The first byte of the answer arrived.
    Alive,
    TextDelta(String),
    ReasoningDelta(String),
    /// A finished output item, in arrival order.
    Item(Item),
    /// What the server said was left.
    Limits(Box<RateLimits>),
    /// What a failed answer cost all the same; its error follows.
    Billed(Tokens),
    /// The end, with the bill.
    Completed(Completed),
}

/// How a request travels.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sent {
    pub transport: &'static str,
    /// Why this is not the transport that was preferred.
    pub fallback_reason: Option<String>,
    /// `None` where a transport has no memory.
    pub continuation: Option<Continuation>,
    /// Reasoning was left out, because the server could not read it.
    pub is_without_reasoning: bool,
    /// What became of the same request before.
    pub after: Option<Box<ProviderError>>,
}

/// A finished piece of the model's output.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Text for the user; `is_refusal` when the model said nothing but why it will not answer.
    Message {
        text: String,
        is_refusal: bool,
        /// What the text refers to on the web.
        citations: Vec<Source>,
    },
    Reasoning {
        item: Value,
    },
    Call(Call),
    /// A search that the Provider made by itself.
    WebSearch(WebSearch),
    /// Hosted tools and types of the future; kept out of the Turn, never a failure.
    Other {
        type_name: String,
    },
}

/// A search on the web: what it was, never what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WebSearch {
    /// `search`, `open_page` or `find_in_page`, as the Provider says.
    pub action: String,
    /// How long each query was, in characters.
    pub query_lengths: Vec<usize>,
    pub sources: Vec<Source>,
}

/// A page on the web.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    pub url: String,
    pub title: String,
}

/// A finished tool call; `arguments` is JSON text exactly as sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the wire's word; an item's `id` is another thing")]
pub struct Call {
    pub call_id: String,
    pub name: String,
    pub arguments: String,
}

impl Call {
    /// The arguments: an object, or why they are none.
    pub fn args(&self) -> Result<Value, String> {
        if self.arguments.trim().is_empty() {
            return Ok(json!({}));
        }
        match serde_json::from_str::<Value>(&self.arguments) {
            Ok(args @ Value::Object(_)) => Ok(args),
            Ok(_) => Err("the arguments are not a JSON object".to_owned()),
            Err(error) => Err(format!("the arguments are not JSON: {error}")),
        }
    }

    /// The fact that is recorded of it.
    pub fn recorded(&self, args: &Result<Value, String>) -> ToolCall {
        ToolCall {
            call_id: CallId::new(&self.call_id),
            name: self.name.clone(),
            args: args.clone().unwrap_or(Value::Null),
            raw_args: args.is_err().then(|| self.arguments.clone()),
            extra: Extra::new(),
        }
    }
}

/// How a call ended well.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completed {
    pub response_id: Option<String>,
    pub usage: Option<Tokens>,
    /// The answer was cut, and why.
    pub incomplete: Option<String>,
    /// The backend says that the model wants to go on.
    pub wants_more: bool,
}

/// A call that failed: its kind says why, and `retryable` whether another attempt can help.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub kind: Kind,
    pub message: String,
    /// Whether another attempt can help.
    pub retryable: bool,
    /// The wait that the server asked for.
    pub retry_after: Option<Duration>,
    pub facts: Box<ErrorFacts>,
}

/// What a server said about a failure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ErrorFacts {
    /// HTTP status.
    pub status: Option<u16>,
    pub code: Option<ServerErrorCode>,
    /// The code with which a WebSocket was closed.
    pub close_code: Option<u16>,
    /// When a spent plan begins again, in seconds since 1970.
    pub resets_at: Option<u64>,
    pub rate_limits: Option<RateLimits>,
    /// Facts on which nothing depends, by name.
    pub others: serde_json::Map<String, Value>,
}

/// The code of an error as a server names it.
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
    /// A failure that the same request would meet again.
    pub fn terminal(kind: Kind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, retryable: false, retry_after: None, facts: Box::default() }
    }

    /// A failure that may pass.
    pub fn passing(kind: Kind, message: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::terminal(kind, message) }
    }

    /// Adds a fact on which nothing depends.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
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

/// A call that could not be authorised; what a person must do first is in the kind.
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
    fn kind(&self) -> Kind {
        self.kind
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
            |wait| format!("wait {} and run it again", reset::spoken(wait)),
        );
        let until = format!("{}, or use another credential or `--provider`", reset::until(self));
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
                &["see what there is with `pixir models refresh`", "choose one with `--model`"]
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
                "check what stands between, such as a proxy or a sign-in page of the network",
            ],
            Kind::InvalidResponse | Kind::ProviderError | Kind::Incomplete => {
                &["resume the Session to try again"]
            }
            _ => &[],
        };
        actions.iter().map(|action| (*action).to_owned()).collect()
    }
}
