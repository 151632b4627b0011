//! The scripted model: a loopback server of the Responses API that answers from a script.
//!
//! The server is part of the product: `pixir demo`, the tests and the benchmarks talk to it through
//! the same sockets as to a real Provider. It keeps every request for assertions, refuses what the
//! real service refuses, and produces faults on command.

mod connection;
mod demo;
mod demo_workflows;
mod event_stream;
mod issuer;
mod reply;
mod request_check;
#[cfg(test)]
mod tests;
mod websocket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use issuer::IssuerHandler;

pub use demo::{DEMO_FILES, DEMO_MODEL, DEMO_PROMPT, demo_answer, demo_model};
pub use demo_workflows::{EXAMPLE_WORKFLOWS, ExampleWorkflow};
pub use issuer::{IssuerCounts, IssuerEndpoint, IssuerFault, ScriptedIssuer};
pub use reply::Reply;

/// The replies of the scripted model, request by request.
pub struct ModelScript {
    source: ReplySource,
    /// The status with which the n-th WebSocket upgrade, from 0, is refused.
    refusal: Option<Box<dyn Fn(usize) -> Option<u16> + Send + Sync>>,
    /// The answer of `/models`.
    models: Value,
}

enum ReplySource {
    Listed(Vec<Reply>),
    Answering(Box<dyn Fn(&ReceivedRequest) -> Reply + Send + Sync>),
}

impl ModelScript {
    /// A script in which the n-th request gets the n-th reply; further requests get an HTTP 500.
    pub fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::with_source(ReplySource::Listed(replies.into_iter().collect()))
    }

    /// A script that computes the reply from the request.
    pub fn answering(answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::with_source(ReplySource::Answering(Box::new(answer)))
    }

    /// Sets the answer of `/models`.
    #[must_use]
    pub fn listing(mut self, models: Value) -> Self {
        self.models = models;
        self
    }

    /// Refuses WebSocket upgrades with the status that the function returns for the n-th of them, from 0.
    #[must_use]
    pub fn refusing_sockets(
        mut self,
        refusal: impl Fn(usize) -> Option<u16> + Send + Sync + 'static,
    ) -> Self {
        self.refusal = Some(Box::new(refusal));
        self
    }

    fn with_source(source: ReplySource) -> Self {
        let models = json!({"object": "list", "data": [{"id": "gpt-5.5", "object": "model"}]});
        Self { source, refusal: None, models }
    }

    fn reply_to(&self, number: usize, request: &ReceivedRequest) -> Reply {
        match &self.source {
            ReplySource::Answering(answer) => answer(request),
            ReplySource::Listed(replies) => replies.get(number).cloned().unwrap_or_else(|| {
                let message = format!(
                    "the script has {} replies and this is request {}",
                    replies.len(),
                    number + 1
                );
                Reply::status(
                    500,
                    json!({"error": {"code": "script_is_over", "message": message}}).to_string(),
                )
            }),
        }
    }
}

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// HTTP method, such as `POST`.
    pub method: String,
    /// Path and query, such as `/v1/responses`.
    pub path: String,
    /// Headers; names are in lower case.
    pub headers: Vec<(String, String)>,
    /// The parsed body; null when it is not JSON.
    pub body: Value,
    /// The bytes of the body.
    pub body_text: String,
    /// The transport: `sse` or `websocket`.
    pub transport: &'static str,
    /// All items that the model sees: those of the continued response, then the input.
    context: Vec<Value>,
    /// Arrival time of the first byte.
    pub arrived: Instant,
}

impl ReceivedRequest {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The items that the model sees, sent with this request or an earlier one.
    pub fn input(&self) -> &[Value] {
        &self.context
    }

    /// The items that were sent with this request.
    pub fn sent_input(&self) -> &[Value] {
        self.body["input"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Whether the request continues a response instead of replaying everything.
    pub fn is_continued(&self) -> bool {
        self.body.get("previous_response_id").is_some()
    }

    /// Texts of the user's messages, first to last.
    pub fn user_texts(&self) -> Vec<&str> {
        let users = self.input().iter().filter(|item| item["role"] == "user");
        users.filter_map(|item| item["content"][0]["text"].as_str()).collect()
    }

    /// Tool outputs since the last message of the user.
    pub fn outputs(&self) -> Vec<&str> {
        let mut outputs: Vec<&str> = self
            .input()
            .iter()
            .rev()
            .take_while(|item| item["role"] != "user")
            .filter(|item| item["type"] == "function_call_output")
            .filter_map(|item| item["output"].as_str().or(item["output"][0]["text"].as_str()))
            .collect();
        outputs.reverse();
        outputs
    }

    /// The images that the model sees, as data URLs, first to last.
    pub fn images(&self) -> Vec<&str> {
        let parts = self.input().iter().flat_map(request_check::parts);
        let images = parts.filter(|part| part["type"] == "input_image");
        images.filter_map(|part| part["image_url"].as_str()).collect()
    }
}

/// A running server; dropping it closes the port and every connection.
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    requests: Arc<RequestLog>,
    _task: AbortOnDropHandle<()>,
}

impl ScriptedServer {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start(script: ModelScript) -> std::io::Result<Self> {
        Self::start_inner(script, None).await
    }

    /// Starts a server whose subscription route requires tokens of this issuer.
    pub async fn start_with_issuer(
        script: ModelScript,
        issuer: &ScriptedIssuer,
    ) -> std::io::Result<Self> {
        Self::start_inner(script, Some(issuer.handler())).await
    }

    async fn start_inner(
        script: ModelScript,
        issuer_state: Option<Arc<IssuerHandler>>,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(RequestLog { issuer: issuer_state, ..RequestLog::default() });
        let script = Arc::new(script);
        let own = Arc::clone(&requests);
        let task = tokio::spawn(serve_connections(listener, move |socket| {
            own.connections.fetch_add(1, Ordering::Relaxed);
            connection::run(socket, Arc::clone(&script), Arc::clone(&own))
        }));
        Ok(Self { address, requests, _task: AbortOnDropHandle::new(task) })
    }

    /// The value for `OPENAI_BASE_URL`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The URL of a route that accepts only the portable part of the API.
    pub fn portable_url(&self) -> String {
        format!("http://{}/portable/v1", self.address)
    }

    /// Every request for the list of models so far.
    pub fn listings(&self) -> Vec<ReceivedRequest> {
        self.requests.listings.lock().clone()
    }

    /// The value for `PIXIR_CHATGPT_BASE_URL`.
    pub fn chatgpt_url(&self) -> String {
        format!("http://{}/backend-api/codex", self.address)
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.requests.connections.load(Ordering::Relaxed)
    }

    /// How many WebSocket upgrades were requested.
    pub fn upgrades(&self) -> usize {
        self.requests.upgrades.load(Ordering::Relaxed)
    }

    /// Takes the requests since the last call, so that a long run does not keep them all.
    pub fn take_requests(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut *self.requests.received.lock())
    }

    /// Every request so far, in order of arrival.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.received.lock().clone()
    }
}

/// Received requests and counters. A leaf lock, never held across an await.
#[derive(Debug, Default)]
struct RequestLog {
    received: Mutex<Vec<ReceivedRequest>>,
    listings: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    upgrades: AtomicUsize,
    replies: AtomicUsize,
    /// The issuer whose tokens the subscription route accepts.
    issuer: Option<Arc<IssuerHandler>>,
}

impl RequestLog {
    /// Records a request for the list of models.
    fn record_listing(&self, request: ReceivedRequest) {
        self.listings.lock().push(request);
    }

    /// Records a request and returns its number among those that get a reply, from 0.
    fn record(&self, request: ReceivedRequest, gets_reply: bool) -> usize {
        self.received.lock().push(request);
        self.replies.fetch_add(usize::from(gets_reply), Ordering::Relaxed)
    }
}

/// Accepts connections until it is dropped; that also ends the connections.
async fn serve_connections<F>(listener: TcpListener, converse: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(converse(socket));
    }
}
