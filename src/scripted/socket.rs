//! Sockets: the same scripts over frames, made by hand so that a fault falls on its byte.
//!
//! Like the real service, each connection knows the responses it gave and no others: a request may
//! go on from one of them, and is refused when it does not pair with what that response has seen.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::connection::items;
use super::render::{self, Piece};
use super::reply::{After, Delivery, Ending, Head, Reply, Torn};
use super::{Received, Requests, Script, check};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The largest message that is read.
const LIMIT: u64 = 256 * 1024 * 1024;

/// Whether a request asks to become a WebSocket.
pub fn is_wanted(request: &Received) -> bool {
    request.method == "GET"
        && request.path.ends_with("/responses")
        && request.header("upgrade").is_some_and(|to| to.eq_ignore_ascii_case("websocket"))
}

/// Answers requests until the client leaves or a fault says otherwise.
pub async fn run(
    mut socket: TcpStream,
    handshake: Received,
    script: &Script,
    requests: &Requests,
) -> std::io::Result<()> {
    let key = handshake.header("sec-websocket-key").unwrap_or_default();
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {}\r\n\r\n",
        derive_accept_key(key.as_bytes())
    );
    socket.write_all(head.as_bytes()).await?;
    let mut line = Line { socket, handshake, known: HashMap::new() };
    while let Some(message) = line.read().await? {
        if line.answer(message, script, requests).await? == Next::Close {
            return Ok(());
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Listen,
    Close,
}

struct Line {
    socket: TcpStream,
    handshake: Received,
    /// What the model had seen at the end of each response.
    known: HashMap<String, Vec<Value>>,
}

impl Line {
    /// The next text message; `None` when the client has left.
    async fn read(&mut self) -> std::io::Result<Option<String>> {
        loop {
            let (Ok(first), Ok(second)) =
                (self.socket.read_u8().await, self.socket.read_u8().await)
            else {
                return Ok(None);
            };
            let length = match second & 0x7f {
                126 => u64::from(self.socket.read_u16().await?),
                127 => self.socket.read_u64().await?,
                short => u64::from(short),
            };
            if length > LIMIT {
                return Ok(None);
            }
            let mask = self.socket.read_u32().await?.to_be_bytes();
            let mut payload = vec![0; usize::try_from(length).unwrap_or_default()];
            self.socket.read_exact(&mut payload).await?;
            for (place, byte) in payload.iter_mut().enumerate() {
                *byte ^= mask[place % 4];
            }
            match first & 0x0f {
                TEXT => return Ok(Some(String::from_utf8_lossy(&payload).into_owned())),
                PING => self.socket.write_all(&frame(PONG, &payload)).await?,
                CLOSE => return Ok(None),
                _ => {}
            }
        }
    }

    async fn answer(
        &mut self,
        text: String,
        script: &Script,
        requests: &Requests,
    ) -> std::io::Result<Next> {
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let previous = body.get("previous_response_id").map(|id| id.as_str().unwrap_or_default());
        let seen = previous.map(|id| self.known.get(id).cloned());
        let mut context = seen.clone().flatten().unwrap_or_default();
        context.extend(items(&body));
        let request = Received {
            body: body.clone(),
            body_text: text,
            arrived: Instant::now(),
            transport: "websocket",
            context,
            ..self.handshake.clone()
        };
        let refusal = match seen {
            Some(None) => Some((400, not_found(previous.unwrap_or_default()))),
            // Whoever asks was asked at the handshake.
            _ => check::refusal(&whole(&body, request.input())).map(|body| (400, body)),
        };
        let number = requests.keep(request.clone(), refusal.is_none());
        if let Some((status, body)) = refusal {
            return self.refuse(previous, status, &[], &body).await;
        }
        let reply = script.reply(number, &request);
        match &reply.head {
            Head::Plain { status, body } => {
                self.refuse(previous, *status, &reply.headers, body).await
            }
            Head::Stream => self.stream(&reply, &request).await,
        }
    }

    /// An error instead of an answer; what it went on from is forgotten, as at the real service.
    async fn refuse(
        &mut self,
        previous: Option<&str>,
        status: u16,
        headers: &[(String, String)],
        body: &str,
    ) -> std::io::Result<Next> {
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
        self.socket.write_all(&frame(TEXT, message.to_string().as_bytes())).await?;
        Ok(Next::Listen)
    }

    async fn stream(&mut self, reply: &Reply, request: &Received) -> std::io::Result<Next> {
        let mut left = reply.cut.unwrap_or(usize::MAX);
        let mut packet = Vec::new();
        for piece in render::pieces(reply, &request.body["model"], request.input().len()) {
            let bytes = match piece {
                Piece::Pause(time) => {
                    self.socket.write_all(&std::mem::take(&mut packet)).await?;
                    tokio::time::sleep(time).await;
                    continue;
                }
                Piece::Bytes(bytes) => {
                    self.remember(&bytes, request);
                    frames(&bytes)
                }
                Piece::Binary => frame(BINARY, b"\0\x01"),
                Piece::Close(code) => {
                    packet.extend(frame(CLOSE, &code.to_be_bytes()));
                    self.socket.write_all(&packet).await?;
                    self.socket.shutdown().await?;
                    return Ok(Next::Close);
                }
            };
            let kept = &bytes[..bytes.len().min(left)];
            left -= kept.len();
            match reply.delivery {
                Delivery::AsOne => packet.extend_from_slice(kept),
                Delivery::ByteByByte => {
                    for byte in kept {
                        self.socket.write_all(std::slice::from_ref(byte)).await?;
                    }
                }
            }
            if left == 0 {
                break;
            }
        }
        self.socket.write_all(&packet).await?;
        if left == 0 {
            match reply.torn {
                Torn::Closed => self.socket.shutdown().await?,
                Torn::Reset => self.socket.set_zero_linger()?,
            }
            return Ok(Next::Close);
        }
        if reply.after == After::HoldOpen && matches!(reply.ending, Ending::Nothing) {
            // Reading notices when the client has had enough; its pings stay without answer.
            while self.socket.read_u8().await.is_ok() {}
            return Ok(Next::Close);
        }
        Ok(Next::Listen)
    }

    /// Keeps what the model has seen at the end of a response.
    fn remember(&mut self, bytes: &[u8], request: &Received) {
        let Some(event) = data(&String::from_utf8_lossy(bytes))
            .and_then(|data| serde_json::from_str::<Value>(data).ok())
        else {
            return;
        };
        if event["type"] != "response.completed" {
            return;
        }
        let mut seen = request.input().to_vec();
        seen.extend(event["response"]["output"].as_array().cloned().unwrap_or_default());
        // It has its own reasoning, in whatever state it was shown.
        seen.retain(|item| item["type"] != "reasoning");
        let id = event["response"]["id"].as_str().unwrap_or_default().to_owned();
        self.known.insert(id, seen);
    }
}

fn not_found(id: &str) -> String {
    let message = format!("Previous response with id '{id}' not found.");
    let code = "previous_response_not_found";
    json!({"error": {"type": "invalid_request_error", "code": code, "message": message}})
        .to_string()
}

/// The request as if all of it had been sent.
fn whole(body: &Value, context: &[Value]) -> Value {
    let mut whole = body.clone();
    whole["input"] = context.into();
    whole
}

/// Bytes of an event stream as frames: one for each event, a ping for a comment, and garbage as it is.
fn frames(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let blocks = text.split("\n\n").filter(|block| !block.is_empty());
    blocks
        .flat_map(|block| match data(block) {
            Some(data) => frame(TEXT, data.as_bytes()),
            None if block.starts_with(':') => frame(PING, b""),
            None => frame(TEXT, block.as_bytes()),
        })
        .collect()
}

fn data(block: &str) -> Option<&str> {
    block.lines().find_map(|line| line.strip_prefix("data: "))
}

/// One frame of a server, which are never masked.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80 | kind];
    match u16::try_from(payload.len()) {
        Ok(length @ 0..126) => out.extend(length.to_be_bytes().get(1)),
        Ok(length) => {
            out.push(126);
            out.extend(length.to_be_bytes());
        }
        Err(_) => {
            out.push(127);
            out.extend((payload.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}
