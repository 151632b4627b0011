//! WebSocket connections of the scripted model; frames are written by hand so that a fault can fall on any byte.
//!
//! As at the real service, a connection knows only the responses that it sent: a request may continue
//! one of them, and is refused when its input does not fit that response.

use std::collections::HashMap;
use std::io;
use std::time::Instant;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use super::connection::{ConnectionAction, MAX_REQUEST_BYTES, abort_connection, input_items};
use super::event_stream::{self, StreamPiece};
use super::reply::{AfterReply, Reply, ReplyDelivery, ReplyEnding, ReplyHead};
use super::{ModelScript, ReceivedRequest, RequestLog, request_check};

/// Whether a request asks for an upgrade to WebSocket.
pub fn is_upgrade_request(request: &ReceivedRequest) -> bool {
    request.method == "GET"
        && request.path.ends_with("/responses")
        && request.header("upgrade").is_some_and(|to| to.eq_ignore_ascii_case("websocket"))
}

/// Answers requests until the client disconnects or a fault ends the connection.
pub async fn run(
    mut socket: TcpStream,
    handshake: ReceivedRequest,
    script: &ModelScript,
    requests: &RequestLog,
) -> io::Result<()> {
    let key = handshake.header("sec-websocket-key").unwrap_or_default();
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {}\r\n\r\n",
        derive_accept_key(key.as_bytes())
    );
    socket.write_all(head.as_bytes()).await?;
    let limits = WebSocketConfig::default()
        .max_message_size(Some(MAX_REQUEST_BYTES))
        .max_frame_size(Some(MAX_REQUEST_BYTES));
    let frames = WebSocketStream::from_raw_socket(socket, Role::Server, Some(limits)).await;
    let mut connection = SocketConnection { frames, handshake, known: HashMap::new() };
    while let Some(message) = connection.read().await {
        if connection.answer_message(message, script, requests).await? == ConnectionAction::Close {
            return Ok(());
        }
    }
    Ok(())
}

struct SocketConnection {
    /// The WebSocket that reads messages; answers are written to its TCP socket directly.
    frames: WebSocketStream<TcpStream>,
    handshake: ReceivedRequest,
    /// The items that the model had seen at the end of each response, by response id.
    known: HashMap<String, Vec<Value>>,
}

impl SocketConnection {
    /// The next text message; `None` when the client has disconnected.
    async fn read(&mut self) -> Option<String> {
        loop {
            match self.frames.next().await?.ok()? {
                Message::Text(text) => return Some(text.to_string()),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    fn socket(&mut self) -> &mut TcpStream {
        self.frames.get_mut()
    }

    async fn answer_message(
        &mut self,
        text: String,
        script: &ModelScript,
        requests: &RequestLog,
    ) -> io::Result<ConnectionAction> {
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let previous = body.get("previous_response_id").map(|id| id.as_str().unwrap_or_default());
        let seen = previous.map(|id| self.known.get(id).cloned());
        let mut context = seen.clone().flatten().unwrap_or_default();
        context.extend(input_items(&body));
        let request = ReceivedRequest {
            body: body.clone(),
            body_text: text,
            arrived: Instant::now(),
            transport: "websocket",
            context,
            ..self.handshake.clone()
        };
        let refusal = match seen {
            Some(None) => Some((400, response_not_found(previous.unwrap_or_default()))),
            // Authorization was checked at the handshake.
            _ => request_check::refusal(&with_full_input(&body, request.input()))
                .map(|body| (400, body)),
        };
        let number = requests.record(request.clone(), refusal.is_none());
        if let Some((status, body)) = refusal {
            return self.refuse(previous, status, &[], &body).await;
        }
        let reply = script.reply_to(number, &request);
        match &reply.head {
            ReplyHead::Plain { status, body } => {
                self.refuse(previous, *status, &reply.headers, body).await
            }
            ReplyHead::Stream => self.stream(&reply, &request).await,
        }
    }

    /// Sends an error; the response that was continued is forgotten, as at the real service.
    async fn refuse(
        &mut self,
        previous: Option<&str>,
        status: u16,
        headers: &[(String, String)],
        body: &str,
    ) -> io::Result<ConnectionAction> {
        if let Some(id) = previous {
            self.known.remove(id);
        }
        let body: Value =
            serde_json::from_str(body).unwrap_or_else(|_| json!({"error": {"message": body}}));
        let headers: Value = headers
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), Value::from(value.as_str())))
            .collect();
        let error = body.get("error").cloned().unwrap_or(body);
        let message =
            json!({"type": "error", "status": status, "error": error, "headers": headers});
        self.socket().write_all(&text_frame(&message.to_string())?).await?;
        Ok(ConnectionAction::Listen)
    }

    async fn stream(
        &mut self,
        reply: &Reply,
        request: &ReceivedRequest,
    ) -> io::Result<ConnectionAction> {
        let mut left = reply.cut_after.unwrap_or(usize::MAX);
        let mut packet = Vec::new();
        for piece in
            event_stream::stream_pieces(reply, &request.body["model"], request.input().len())
        {
            let bytes = match piece {
                StreamPiece::Pause(time) => {
                    self.socket().write_all(&std::mem::take(&mut packet)).await?;
                    tokio::time::sleep(time).await;
                    continue;
                }
                StreamPiece::Bytes(bytes) => {
                    self.remember_response(&bytes, request);
                    event_frames(&bytes)?
                }
                StreamPiece::Binary => {
                    encode_frame(Frame::message(&b"\0\x01"[..], OpCode::Data(Data::Binary), true))?
                }
                StreamPiece::Close(code) => {
                    let reason = CloseFrame { code: code.into(), reason: "".into() };
                    packet.extend(encode_frame(Frame::close(Some(reason)))?);
                    self.socket().write_all(&packet).await?;
                    self.socket().shutdown().await?;
                    return Ok(ConnectionAction::Close);
                }
            };
            let kept = &bytes[..bytes.len().min(left)];
            left -= kept.len();
            match reply.delivery {
                ReplyDelivery::AsOne => packet.extend_from_slice(kept),
                ReplyDelivery::ByteByByte => {
                    for byte in kept {
                        self.socket().write_all(std::slice::from_ref(byte)).await?;
                    }
                }
            }
            if left == 0 {
                break;
            }
        }
        self.socket().write_all(&packet).await?;
        if left == 0 {
            abort_connection(self.socket(), reply.disconnect).await?;
            return Ok(ConnectionAction::Close);
        }
        if reply.after == AfterReply::HoldOpen && matches!(reply.ending, ReplyEnding::Nothing) {
            // Reading notices when the client disconnects; pings are not answered.
            while self.socket().read_u8().await.is_ok() {}
            return Ok(ConnectionAction::Close);
        }
        Ok(ConnectionAction::Listen)
    }

    /// Records the items that the model has seen at the end of a response.
    fn remember_response(&mut self, bytes: &[u8], request: &ReceivedRequest) {
        let Some(event) = event_data(&String::from_utf8_lossy(bytes))
            .and_then(|data| serde_json::from_str::<Value>(data).ok())
        else {
            return;
        };
        if event["type"] != "response.completed" {
            return;
        }
        let mut seen = request.input().to_vec();
        seen.extend(event["response"]["output"].as_array().cloned().unwrap_or_default());
        // Reasoning is left out: the server has it, whether or not it was sent with encrypted content.
        seen.retain(|item| item["type"] != "reasoning");
        let id = event["response"]["id"].as_str().unwrap_or_default().to_owned();
        self.known.insert(id, seen);
    }
}

fn response_not_found(id: &str) -> String {
    let message = format!("Previous response with id '{id}' not found.");
    let code = "previous_response_not_found";
    json!({"error": {"type": "invalid_request_error", "code": code, "message": message}})
        .to_string()
}

/// The body with the full context as its input.
fn with_full_input(body: &Value, context: &[Value]) -> Value {
    let mut whole = body.clone();
    whole["input"] = context.into();
    whole
}

/// Bytes of an event stream as frames: one per event, a ping per comment, and other bytes as a text frame.
fn event_frames(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let stream = String::from_utf8_lossy(bytes);
    let mut out = Vec::new();
    for block in stream.split("\n\n").filter(|block| !block.is_empty()) {
        out.extend(match event_data(block) {
            Some(data) => text_frame(data)?,
            None if block.starts_with(':') => encode_frame(Frame::ping(Bytes::new()))?,
            None => text_frame(block)?,
        });
    }
    Ok(out)
}

fn event_data(block: &str) -> Option<&str> {
    block.lines().find_map(|line| line.strip_prefix("data: "))
}

fn text_frame(words: &str) -> io::Result<Vec<u8>> {
    encode_frame(Frame::message(words.as_bytes().to_vec(), OpCode::Data(Data::Text), true))
}

/// The bytes of a frame; a server does not mask them.
fn encode_frame(frame: Frame) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    frame.format(&mut out).map_err(io::Error::other)?;
    Ok(out)
}
