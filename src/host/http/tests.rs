//! Tests of the client with servers that send exactly given bytes.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{HttpClient, HttpError, HttpResponse, HttpSettings};

/// Time limit of one exchange, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The responses on one connection, in order; then the server closes it.
type Answers = Vec<Vec<u8>>;

/// A test server that counts connections and requests.
struct CountingServer {
    client: HttpClient,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl CountingServer {
    /// Starts a server with one list of responses per connection; further connections get none.
    async fn start(connections: Vec<Answers>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        let (accepted, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let closed = Arc::new(AtomicUsize::new(0));
        let (counted, counted_requests, ended) =
            (accepted.clone(), requests.clone(), closed.clone());
        tokio::spawn(async move {
            let mut connections = connections.into_iter();
            while let Ok((mut socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let answers = connections.next().unwrap_or_default();
                let (counted_requests, ended) = (counted_requests.clone(), ended.clone());
                tokio::spawn(async move {
                    for answer in answers {
                        if !read_request(&mut socket).await {
                            break;
                        }
                        counted_requests.fetch_add(1, Ordering::SeqCst);
                        socket.write_all(&answer).await.unwrap();
                    }
                    drop(socket);
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self {
            client: HttpSettings::default().client(base_url, PATIENCE),
            connections: accepted,
            requests,
            closed,
        }
    }

    async fn post(&self) -> Result<HttpResponse, HttpError> {
        let body = Bytes::from_static(b"question");
        tokio::time::timeout(PATIENCE, self.client.post("/ask", HeaderMap::new(), body))
            .await
            .unwrap()
    }

    async fn post_text(&self) -> Result<String, HttpError> {
        read_text(&mut self.post().await?).await
    }

    fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

/// Reads one request; `false` when there is none.
async fn read_request(socket: &mut TcpStream) -> bool {
    let mut request = Vec::new();
    while !request.ends_with(b"question") {
        match socket.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return false,
        }
    }
    true
}

async fn read_text(response: &mut HttpResponse) -> Result<String, HttpError> {
    let mut text = Vec::new();
    while let Some(chunk) = tokio::time::timeout(PATIENCE, response.chunk()).await.unwrap()? {
        text.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8(text).unwrap())
}

fn response_with_length(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn response_in_chunks(pieces: &[&str]) -> Vec<u8> {
    let mut answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for piece in pieces {
        write!(answer, "{:x}\r\n{piece}\r\n", piece.len()).unwrap();
    }
    (answer + "0\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn an_answer_ends_by_its_length_its_last_chunk_or_its_connection() {
    let open_ended = b"HTTP/1.1 200 OK\r\n\r\nto the end".to_vec();
    let closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbye".to_vec();
    let server = CountingServer::start(vec![
        vec![
            response_with_length("by length"),
            response_in_chunks(&["in ", "chunks"]),
            response_with_length(""),
            open_ended,
        ],
        vec![closing],
        vec![response_with_length("again")],
    ])
    .await;
    for expected in ["by length", "in chunks", "", "to the end", "bye", "again"] {
        assert_eq!(server.post_text().await.unwrap(), expected);
    }
    assert_eq!(server.counts(), (3, 6));
}

#[tokio::test]
async fn an_end_that_comes_alone_is_an_end() {
    let (client, server) = client_and_connection().await;
    let talk = tokio::spawn(async move {
        let mut socket = server.await.unwrap();
        for _ in 0..2 {
            assert!(read_request(&mut socket).await);
            let answer = response_in_chunks(&["data"]);
            let (most, end) = answer.split_at(answer.len() - 5);
            socket.write_all(most).await.unwrap();
            // The client has read the data before the end is written.
            let mut word = [0];
            let peeked = tokio::time::timeout(Duration::from_millis(20), socket.peek(&mut word));
            assert!(peeked.await.is_err(), "nothing is sent in between");
            socket.write_all(end).await.unwrap();
        }
    });
    for _ in 0..2 {
        let body = Bytes::from_static(b"question");
        let mut response = client.post("/ask", HeaderMap::new(), body).await.unwrap();
        assert_eq!(read_text(&mut response).await.unwrap(), "data");
    }
    talk.await.unwrap();
}

/// A client, and the only connection that it will open.
async fn client_and_connection() -> (HttpClient, tokio::task::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { listener.accept().await.unwrap().0 });
    (HttpSettings::default().client(base_url, PATIENCE), server)
}

#[tokio::test]
async fn a_response_before_the_request_body_was_read_is_returned() {
    let (client, server) = client_and_connection().await;
    tokio::spawn(async move {
        let mut socket = server.await.unwrap();
        socket.read_u8().await.unwrap();
        let refusal = b"HTTP/1.1 413 Too Long\r\ncontent-length: 2\r\n\r\nno";
        socket.write_all(refusal).await.unwrap();
        // The rest is never read, and the connection stays.
        std::future::pending::<()>().await;
    });
    let body = Bytes::from(vec![b'x'; 64 << 20]);
    let asking = client.post("/ask", HeaderMap::new(), body);
    let mut response = tokio::time::timeout(PATIENCE, asking).await.unwrap().unwrap();
    assert_eq!(response.status(), 413);
    assert_eq!(read_text(&mut response).await.unwrap(), "no");
}

#[tokio::test]
async fn an_answer_that_is_cut_is_broken_and_not_whole() {
    let short = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_vec();
    let endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n".to_vec();
    let garbage = b"SSH-2.0-OpenSSH\r\n\r\n".to_vec();
    let silent = Vec::new();
    let answers = [short, endless, garbage, silent];
    let server = CountingServer::start(answers.map(|answer| vec![answer]).into()).await;
    for _ in 0..4 {
        let error = server.post_text().await.unwrap_err();
        assert!(matches!(error, HttpError::Broken(_)), "{error:?}");
    }
    assert_eq!(server.counts(), (4, 4));
}

#[tokio::test]
async fn a_connection_is_used_again_once_its_answer_was_read() {
    let answers =
        vec![response_with_length("a"), response_in_chunks(&["b", "c"]), response_with_length("d")];
    let server = CountingServer::start(vec![answers, Vec::new()]).await;
    for expected in ["a", "bc", "d"] {
        assert_eq!(server.post_text().await.unwrap(), expected);
    }
    assert_eq!(server.counts(), (1, 3));
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced_and_nothing_is_lost() {
    let rounds = 20;
    let server = CountingServer::start(vec![vec![response_with_length("hello")]; rounds]).await;
    for round in 1..=rounds {
        // Each connection is closed after its answer, without `connection: close`.
        assert_eq!(server.post_text().await.unwrap(), "hello");
        assert_eq!(server.counts(), (round, round));
        wait_until_closed(&server).await;
    }
}

/// Waits until the server has closed every connection and the client had a chance to notice.
async fn wait_until_closed(server: &CountingServer) {
    let wait = async {
        while server.closed.load(Ordering::SeqCst) < server.counts().0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

#[tokio::test]
async fn what_has_left_is_never_sent_a_second_time() {
    // The second request is read, and the connection is closed without an answer.
    let server = CountingServer::start(vec![
        vec![response_with_length("first"), Vec::new()],
        vec![response_with_length("x")],
    ])
    .await;
    assert_eq!(server.post_text().await.unwrap(), "first");
    let error = server.post_text().await.unwrap_err();
    assert!(matches!(error, HttpError::Broken(_)), "{error:?}");
    assert_eq!(server.counts(), (1, 2));
    assert_eq!(server.post_text().await.unwrap(), "x");
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let long = |length: usize| {
        let header = "x".repeat(length);
        format!("HTTP/1.1 200 OK\r\nx-long: {header}\r\ncontent-length: 2\r\n\r\nok").into_bytes()
    };
    let many = |count: usize| {
        let headers = "x-header: x\r\n".repeat(count);
        format!("HTTP/1.1 200 OK\r\n{headers}content-length: 2\r\n\r\nok").into_bytes()
    };
    let answers = [long(32 << 10), many(150), long(1 << 20), many(500)];
    let server = CountingServer::start(answers.map(|answer| vec![answer]).into()).await;
    let mut ends = Vec::new();
    for _ in 0..4 {
        ends.push(server.post_text().await);
        wait_until_closed(&server).await;
    }
    assert_eq!((ends[0].as_deref().unwrap(), ends[1].as_deref().unwrap()), ("ok", "ok"));
    for end in &ends[2..] {
        assert!(matches!(end, Err(HttpError::Broken(_))), "{end:?}");
    }
}

#[tokio::test]
async fn informational_answers_before_the_answer_are_skipped() {
    let announced = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n".repeat(5);
    let answer = format!("{announced}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let server = CountingServer::start(vec![vec![answer.into_bytes()]]).await;
    assert_eq!(server.post_text().await.unwrap(), "ok");
}

#[tokio::test]
async fn a_refused_connection_is_not_a_broken_one() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = HttpSettings::default().client(base_url, PATIENCE);
    let error = client.get("/", HeaderMap::new()).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect(_)), "{error:?}");
}

#[test]
fn nothing_private_is_shown() {
    let network = HttpSettings::from_environment(|name| {
        (name == "HTTPS_PROXY").then(|| "http://ada:opensesame@proxy.example".to_owned())
    });
    let base_url = "https://model.example/v1".to_owned();
    let shown = format!("{network:?} {:?}", network.clone().client(base_url, PATIENCE));
    assert!(shown.contains("HTTPS_PROXY") && !shown.contains("opensesame"), "{shown}");
}
