//! HTTP/1.1 connections of the scripted model, written by hand so that a fault can fall on any byte.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::event_stream::{self, StreamPiece};
use super::reply::{AfterReply, Disconnect, Reply, ReplyDelivery, ReplyHead};
use super::{ModelScript, ReceivedRequest, RequestLog, request_check, websocket};

/// The largest request that is read, in bytes.
pub(super) const MAX_REQUEST_BYTES: usize = 256 * 1024 * 1024;

/// What to do with the connection after a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionAction {
    /// Another request may follow.
    Listen,
    Close,
}

/// Answers requests until the client disconnects or a fault ends the connection.
pub async fn run(mut socket: TcpStream, script: Arc<ModelScript>, requests: Arc<RequestLog>) {
    socket.set_nodelay(true).ok();
    let mut buffer = Vec::new();
    loop {
        let Ok(Some(request)) = read_request(&mut socket, &mut buffer).await else { return };
        if websocket::is_upgrade_request(&request) {
            let number = requests.upgrades.fetch_add(1, Ordering::Relaxed);
            let refusal = script.refusal.as_ref().and_then(|refusal| refusal(number));
            let no_socket = json!({"error": {"message": "no WebSocket here"}}).to_string();
            let refusal = refusal.map(|status| (status, no_socket));
            let Some((status, body)) =
                refusal.or_else(|| authorization_refusal(&requests, &request))
            else {
                // The client may leave in the middle of an answer.
                websocket::run(socket, request, &script, &requests).await.ok();
                return;
            };
            if write_plain(&mut socket, status, &[], &body).await.is_err() {
                return;
            }
            continue;
        }
        match handle_request(&mut socket, &script, &requests, request).await {
            Ok(ConnectionAction::Listen) => {}
            // The client may leave in the middle of an answer.
            Ok(ConnectionAction::Close) | Err(_) => return,
        }
    }
}

async fn handle_request(
    socket: &mut TcpStream,
    script: &ModelScript,
    requests: &RequestLog,
    request: ReceivedRequest,
) -> std::io::Result<ConnectionAction> {
    if request.method == "GET" && request.path.split('?').next().is_some_and(is_listing) {
        requests.record_listing(request);
        return write_plain(socket, 200, &[], &script.models.to_string()).await;
    }
    if request.method != "POST" || !request.path.ends_with("/responses") {
        let message = format!("Invalid URL ({} {})", request.method, request.path);
        return write_plain(socket, 404, &[], &json!({"error": {"message": message}}).to_string())
            .await;
    }
    let refusal = route_refusal(requests, &request, &request.body);
    let serial = request.input().len();
    let number = requests.record(request.clone(), refusal.is_none());
    if let Some((status, body)) = refusal {
        return write_plain(socket, status, &[], &body).await;
    }
    let reply = script.reply_to(number, &request);
    match &reply.head {
        ReplyHead::Plain { status, body } => {
            write_plain(socket, *status, &reply.headers, body).await
        }
        ReplyHead::Stream => write_stream(socket, &reply, &request.body["model"], serial).await,
    }
}

/// The refusal of a request that its route does not accept, if any.
pub(super) fn route_refusal(
    requests: &RequestLog,
    request: &ReceivedRequest,
    body: &Value,
) -> Option<(u16, String)> {
    if is_chatgpt(request) {
        if let Some(refusal) = authorization_refusal(requests, request) {
            return Some(refusal);
        }
        if let Some(detail) = request_check::chatgpt_refusal(body) {
            return Some((400, json!({ "detail": detail }).to_string()));
        }
    }
    if request.path.starts_with("/portable/")
        && let Some(refusal) = request_check::portable_refusal(body)
    {
        return Some((400, refusal));
    }
    Some((400, request_check::refusal(body)?))
}

/// The refusal of an unauthorized request to the subscription route.
pub(super) fn authorization_refusal(
    requests: &RequestLog,
    request: &ReceivedRequest,
) -> Option<(u16, String)> {
    let book = requests.issuer.as_ref().filter(|_| is_chatgpt(request))?;
    book.refusal(request)
}

fn is_chatgpt(request: &ReceivedRequest) -> bool {
    request.path.starts_with("/backend-api/codex/")
}

fn is_listing(path: &str) -> bool {
    path.ends_with("/models")
}

pub(super) async fn write_plain(
    socket: &mut TcpStream,
    status: u16,
    headers: &[(String, String)],
    body: &str,
) -> std::io::Result<ConnectionAction> {
    let kind = if body.starts_with('{') { "application/json" } else { "text/html" };
    let mut head = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    socket.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
    Ok(ConnectionAction::Listen)
}

async fn write_stream(
    socket: &mut TcpStream,
    reply: &Reply,
    model: &Value,
    serial: usize,
) -> std::io::Result<ConnectionAction> {
    let mut head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            .to_owned();
    for (name, value) in &reply.headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head.push_str("\r\n");
    let mut packet = head.into_bytes();
    let mut left = reply.cut_after.unwrap_or(usize::MAX);
    for piece in event_stream::stream_pieces(reply, model, serial) {
        match piece {
            StreamPiece::Pause(time) => {
                socket.write_all(&std::mem::take(&mut packet)).await?;
                tokio::time::sleep(time).await;
            }
            // A step that exists only on a WebSocket ends the connection here.
            StreamPiece::Binary | StreamPiece::Close(_) => left = 0,
            StreamPiece::Bytes(bytes) => {
                let kept = &bytes[..bytes.len().min(left)];
                left -= kept.len();
                match reply.delivery {
                    ReplyDelivery::AsOne => push_chunk(&mut packet, kept),
                    ReplyDelivery::ByteByByte => {
                        for byte in kept {
                            push_chunk(&mut packet, std::slice::from_ref(byte));
                            socket.write_all(&std::mem::take(&mut packet)).await?;
                        }
                    }
                }
            }
        }
        if left == 0 {
            break;
        }
    }
    socket.write_all(&packet).await?;
    if left == 0 {
        abort_connection(socket, reply.disconnect).await?;
        return Ok(ConnectionAction::Close);
    }
    if reply.after == AfterReply::HoldOpen {
        // Reading notices when the client disconnects.
        socket.read_u8().await?;
        return Ok(ConnectionAction::Close);
    }
    socket.write_all(b"0\r\n\r\n").await?;
    Ok(ConnectionAction::Listen)
}

/// Ends a connection in the middle of an answer.
pub(super) async fn abort_connection(
    socket: &mut TcpStream,
    torn: Disconnect,
) -> std::io::Result<()> {
    match torn {
        Disconnect::Closed => socket.shutdown().await,
        Disconnect::Reset => socket.set_zero_linger(),
    }
}

/// The input items of a body.
pub fn input_items(body: &Value) -> Vec<Value> {
    body["input"].as_array().cloned().unwrap_or_default()
}

fn push_chunk(packet: &mut Vec<u8>, bytes: &[u8]) {
    // An empty chunk would end the body.
    if !bytes.is_empty() {
        packet.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        packet.extend_from_slice(bytes);
        packet.extend_from_slice(b"\r\n");
    }
}

/// Reads one request; bytes after it stay in the buffer. `None` when the client has disconnected.
pub(super) async fn read_request(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> std::io::Result<Option<ReceivedRequest>> {
    let mut arrived = None;
    let head_end = loop {
        if let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break end + 4;
        }
        if buffer.len() > MAX_REQUEST_BYTES || socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
        arrived = arrived.or_else(|| Some(Instant::now()));
    };
    let arrived = arrived.unwrap_or_else(Instant::now);
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let Some(end) = head_end.checked_add(length).filter(|end| *end <= MAX_REQUEST_BYTES) else {
        return Ok(None);
    };
    while buffer.len() < end {
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body_text = String::from_utf8_lossy(&buffer[head_end..end]).into_owned();
    buffer.drain(..end);
    let body = serde_json::from_str(&body_text).unwrap_or_default();
    let context = input_items(&body);
    let transport = "sse";
    Ok(Some(ReceivedRequest {
        method,
        path,
        headers,
        body,
        body_text,
        transport,
        context,
        arrived,
    }))
}
