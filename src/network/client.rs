//! The client of one endpoint: requests out, answers back, and connections kept for the next one.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HOST, UPGRADE};
use http::{HeaderMap, Method};
use tokio_util::task::AbortOnDropHandle;

use super::line::{Line, Lost, Request, Response};
use super::route::{self, Route};
use super::{Endpoint, Network, NetworkError};

/// How many unused connections are kept, and for how long.
const MOST: usize = 4;
const LONGEST: Duration = Duration::from_secs(90);

/// A client; cheap until it is used.
pub struct Client {
    way: Arc<Way>,
    kept: Arc<Kept>,
    /// A connection that is being opened for a request to come.
    ahead: Mutex<Option<(Instant, Ahead)>>,
}

type Ahead = AbortOnDropHandle<Result<Line, NetworkError>>;

impl Client {
    pub(super) fn new(network: Network, endpoint: Endpoint) -> Self {
        let way = Arc::new(Way { network, endpoint, route: OnceLock::new() });
        Self { way, kept: Arc::default(), ahead: Mutex::default() }
    }

    /// Begins to open a connection, because a request will follow soon; nothing is sent on it.
    pub fn dial_ahead(&self) {
        let mut ahead = self.ahead();
        let is_on_its_way = ahead.as_ref().is_some_and(|(since, _)| since.elapsed() < LONGEST);
        if is_on_its_way || !self.kept.lock().is_empty() {
            return;
        }
        let way = Arc::clone(&self.way);
        let dialling = tokio::spawn(async move { way.route()?.open().await });
        *ahead = Some((Instant::now(), AbortOnDropHandle::new(dialling)));
    }

    /// Host and port of the endpoint, for messages.
    pub fn peer(&self) -> &str {
        self.way.route().map_or("", Route::peer)
    }

    /// Asks for something; `path` is appended to the endpoint's URL.
    pub async fn get(&self, path: &str, headers: HeaderMap) -> Result<Response, NetworkError> {
        self.send(Method::GET, path, headers, Bytes::new()).await
    }

    /// Asks for something to be gone.
    pub async fn delete(&self, path: &str, headers: HeaderMap) -> Result<Response, NetworkError> {
        self.send(Method::DELETE, path, headers, Bytes::new()).await
    }

    /// Sends a body and waits for the head of the answer.
    pub async fn post(
        &self,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response, NetworkError> {
        self.send(Method::POST, path, headers, body).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response, NetworkError> {
        let route = self.way.route()?;
        let uri = route::address(&format!("{}{path}", self.way.endpoint.base_url))?;
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let mut request = Request { method, target, headers, body };
        request.headers.insert(HOST, route.host()?);
        // What becomes another protocol starts on a connection of its own.
        let is_upgrade = request.headers.contains_key(UPGRADE);
        let used = if is_upgrade { None } else { self.kept.take().await };
        let waiting = match used {
            Some(line) => Some(line),
            None => self.dialled().await?,
        };
        if let Some(line) = waiting {
            // A server may close a waiting connection at any moment. What has not left goes over
            // a new one; what has left may have been heard, and is not said twice.
            match self.answered(line, &request).await {
                Ok(response) => return Ok(response),
                Err(Lost { is_unsent: true, .. }) => {}
                Err(Lost { error, .. }) => return Err(error.with_peer(route.peer())),
            }
        }
        let line = route.open().await?;
        let answered = self.answered(line, &request).await;
        answered.map_err(|lost| lost.error.with_peer(route.peer()))
    }

    /// The connection that was begun ahead, when it is still good. That it cannot be had is the
    /// answer to this request too.
    async fn dialled(&self) -> Result<Option<Line>, NetworkError> {
        let Some((since, dialling)) = self.ahead().take() else { return Ok(None) };
        // A task that was cut off by its runtime says nothing about the endpoint.
        let Ok(line) = dialling.await else { return Ok(None) };
        let mut line = line?;
        let is_good =
            since.elapsed() < LONGEST && poll_fn(|cx| Poll::Ready(line.is_idle(cx))).await;
        Ok(is_good.then_some(line))
    }

    fn ahead(&self) -> MutexGuard<'_, Option<(Instant, Ahead)>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answered(&self, mut line: Line, request: &Request) -> Result<Response, Lost> {
        let head = line.exchange(request).await?;
        Ok(Response::new(head, line, self.kept.clone(), self.peer().into()))
    }
}

#[cfg(test)]
impl Client {
    /// How many kept connections are still open; the others are forgotten.
    pub async fn kept_open(&self) -> usize {
        let mut open = Vec::new();
        while let Some(line) = self.kept.take().await {
            open.push(line);
        }
        let count = open.len();
        open.into_iter().rev().for_each(|line| self.kept.put(line));
        count
    }
}

/// Shows where it leads and nothing that is private.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.way.endpoint).finish_non_exhaustive()
    }
}

/// Where an endpoint is; the route to it is found once, when somebody first wants to go.
struct Way {
    network: Network,
    endpoint: Endpoint,
    route: OnceLock<Result<Route, NetworkError>>,
}

impl Way {
    fn route(&self) -> Result<&Route, NetworkError> {
        let find = || Route::find(&self.network, &self.endpoint);
        self.route.get_or_init(find).as_ref().map_err(Clone::clone)
    }
}

/// Connections that wait for the next request. Nobody watches them; whoever takes one looks at it
/// first.
#[derive(Default)]
pub struct Kept(Mutex<Vec<(Instant, Line)>>);

impl Kept {
    /// Keeps a connection, at the expense of the oldest.
    pub fn put(&self, line: Line) {
        let mut lines = self.lock();
        lines.retain(|(since, _)| since.elapsed() < LONGEST);
        if lines.len() >= MOST {
            lines.remove(0);
        }
        lines.push((Instant::now(), line));
    }

    /// The youngest connection that is still open.
    async fn take(&self) -> Option<Line> {
        if self.lock().is_empty() {
            return None;
        }
        // The runtime learns of a close from the kernel when it is asked to look.
        tokio::task::yield_now().await;
        loop {
            let (since, mut line) = self.lock().pop()?;
            let is_young = since.elapsed() < LONGEST;
            if is_young && poll_fn(|cx| Poll::Ready(line.is_idle(cx))).await {
                return Some(line);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Instant, Line)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
