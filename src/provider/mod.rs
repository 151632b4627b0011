//! Providers: where the model is. One method, pulled as a stream; dropping it abandons the call.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde_json::Value;

use crate::error::{Explain, Kind};
use crate::event::Tokens;
use crate::history::History;
use crate::tool::ToolSpec;

/// A model behind a wire.
pub trait Provider: Send + Sync + Debug {
    /// Starts one call. The stream yields until `Completed` or an error, each of which is its last
    /// item; it never retries by itself, and ends at once when the wire says its last word.
    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ProviderError>>;
    /// The name in `provider_usage.transport`.
    fn transport(&self) -> &'static str;
}

/// One call: everything the model sees.
#[derive(Debug, Clone)]
pub struct Request {
    pub model: String,
    pub effort: Option<String>,
    /// Byte-stable instructions of the Prompt contract.
    pub instructions: Arc<str>,
    /// The project-stable developer message; none when there is nothing to say.
    pub project: Option<Arc<str>>,
    pub tools: Arc<[ToolSpec]>,
    pub history: History,
    pub cache_key: String,
}

/// What a model says while it answers.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// The first byte of the answer arrived.
    Alive,
    TextDelta(String),
    ReasoningDelta(String),
    /// A finished output item, in arrival order.
    Item(Item),
    /// The end, with the bill.
    Completed(Completed),
}

/// A finished piece of the model's output.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    Message { text: String },
    Reasoning { item: Value },
    Call(Call),
    /// Hosted tools and types of the future; kept out of the Turn, never a failure.
    Other { type_name: String },
}

/// A finished tool call; `arguments` is JSON text exactly as sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub call_id: String,
    pub name: String,
    pub arguments: String,
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

/// A call that failed: one variant per decision of the caller.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub kind: Kind,
    pub message: String,
    /// Whether another attempt can help.
    pub retryable: bool,
    /// What the server asked us to wait.
    pub retry_after: Option<Duration>,
    pub details: Value,
}

impl Explain for ProviderError {
    fn kind(&self) -> Kind {
        self.kind
    }
    fn details(&self) -> Value {
        self.details.clone()
    }
}
