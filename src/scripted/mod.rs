//! The scripted model: a loopback server that speaks the real Responses wire from a script.
//!
//! It is part of the product: `pixir demo`, the tests and the benchmarks talk to it through the
//! same sockets as to a real Provider. It keeps every request for assertions, refuses what the
//! real service refuses, and misbehaves on command.

mod check;
mod connection;
mod demo;
mod issuer;
mod players;
mod render;
mod reply;
mod socket;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use issuer::Book;

pub use demo::{DEMO_FILES, DEMO_MODEL, DEMO_PROMPT, demo_answer, demo_model};
pub use issuer::{Counts, Endpoint, Fault, Issuer};
pub use players::{EXAMPLES, Example};
pub use reply::Reply;

/// What the model will say, request by request.
pub struct Script {
    source: Source,
    /// Answers the n-th request to become a WebSocket, from 0, with a status instead.
    refusal: Option<Box<dyn Fn(usize) -> Option<u16> + Send + Sync>>,
    /// What `/models` answers.
    models: Value,
}

enum Source {
    Listed(Vec<Reply>),
    Answering(Box<dyn Fn(&Received) -> Reply + Send + Sync>),
}

impl Script {
    /// The n-th request gets the n-th reply; when they run out, an HTTP 500 that says so.
    pub fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::of(Source::Listed(replies.into_iter().collect()))
    }

    /// Every request is answered by a function of what it says.
    pub fn answering(answer: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::of(Source::Answering(Box::new(answer)))
    }

    /// Answers `/models` with this.
    #[must_use]
    pub fn listing(mut self, models: Value) -> Self {
        self.models = models;
        self
    }

    /// Answers requests to become a WebSocket with a status, where the function names one for the
    /// n-th of them, from 0.
    #[must_use]
    pub fn refusing_sockets(
        mut self,
        refusal: impl Fn(usize) -> Option<u16> + Send + Sync + 'static,
    ) -> Self {
        self.refusal = Some(Box::new(refusal));
        self
    }

    fn of(source: Source) -> Self {
        let models = json!({"object": "list", "data": [{"id": "gpt-5.5", "object": "model"}]});
        Self { source, refusal: None, models }
    }

    fn reply(&self, number: usize, request: &Received) -> Reply {
        match &self.source {
            Source::Answering(answer) => answer(request),
            Source::Listed(replies) => replies.get(number).cloned().unwrap_or_else(|| {
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

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Received {
    /// Such as `POST`.
    pub method: String,
    /// Such as `/responses`.
    pub path: String,
    /// Names are in lower case.
    pub headers: Vec<(String, String)>,
    /// Null when the body is not JSON.
    pub body: Value,
    /// The bytes of the body.
    pub body_text: String,
    /// What carried it: `sse` or `websocket`.
    pub transport: &'static str,
    /// All that the model sees: the input, behind what a continued response has seen.
    context: Vec<Value>,
    /// When its first byte came.
    pub arrived: Instant,
}

impl Received {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The items that the model sees, whether they were sent now or before.
    pub fn input(&self) -> &[Value] {
        &self.context
    }

    /// The items that were sent.
    pub fn sent_input(&self) -> &[Value] {
        self.body["input"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Whether it continues a response instead of replaying everything.
    pub fn is_continued(&self) -> bool {
        self.body.get("previous_response_id").is_some()
    }

    /// What the user said, first to last.
    pub fn user_texts(&self) -> Vec<&str> {
        let users = self.input().iter().filter(|item| item["role"] == "user");
        users.filter_map(|item| item["content"][0]["text"].as_str()).collect()
    }

    /// Tool outputs since the user last spoke.
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
        let parts = self.input().iter().flat_map(check::parts);
        let images = parts.filter(|part| part["type"] == "input_image");
        images.filter_map(|part| part["image_url"].as_str()).collect()
    }
}

/// A running server; dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    requests: Arc<Requests>,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start(script: Script) -> std::io::Result<Self> {
        Self::start_with(script, None).await
    }

    /// The same, for subscriptions of this issuer too; their route wants its tokens.
    pub async fn start_for(script: Script, issuer: &Issuer) -> std::io::Result<Self> {
        Self::start_with(script, Some(issuer.book())).await
    }

    async fn start_with(script: Script, book: Option<Arc<Book>>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Requests { book, ..Requests::default() });
        let script = Arc::new(script);
        let own = Arc::clone(&requests);
        let task = tokio::spawn(serve(listener, move |socket| {
            own.connections.fetch_add(1, Ordering::Relaxed);
            connection::run(socket, Arc::clone(&script), Arc::clone(&own))
        }));
        Ok(Self { address, requests, task })
    }

    /// What goes into `OPENAI_BASE_URL`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The same for a server that takes only what every server understands.
    pub fn portable_url(&self) -> String {
        format!("http://{}/portable/v1", self.address)
    }

    /// Every question for the list of models so far.
    pub fn listings(&self) -> Vec<Received> {
        self.requests.listings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What goes into `PIXIR_CHATGPT_BASE_URL`.
    pub fn chatgpt_url(&self) -> String {
        format!("http://{}/backend-api/codex", self.address)
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.requests.connections.load(Ordering::Relaxed)
    }

    /// How many connections were asked to become a WebSocket.
    pub fn upgrades(&self) -> usize {
        self.requests.upgrades.load(Ordering::Relaxed)
    }

    /// Every request since this was last asked; whoever runs for long must not keep them all.
    pub fn take_requests(&self) -> Vec<Received> {
        std::mem::take(&mut *self.requests.lock())
    }

    /// Every request so far, in order of arrival.
    pub fn requests(&self) -> Vec<Received> {
        self.requests.lock().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What arrived; a leaf, never locked across an await.
#[derive(Debug, Default)]
struct Requests {
    received: Mutex<Vec<Received>>,
    listings: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    upgrades: AtomicUsize,
    replies: AtomicUsize,
    /// Whose tokens open the subscription's route.
    book: Option<Arc<Book>>,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, Vec<Received>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a question for the list of models.
    fn keep_listing(&self, request: Received) {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }

    /// Keeps a request and says which one of those that get a reply it is, from 0.
    fn keep(&self, request: Received, gets_reply: bool) -> usize {
        self.lock().push(request);
        self.replies.fetch_add(usize::from(gets_reply), Ordering::Relaxed)
    }
}

/// Accepts connections until it is dropped; they live in its set, so they end with it.
async fn serve<F>(listener: TcpListener, converse: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(converse(socket));
    }
}
