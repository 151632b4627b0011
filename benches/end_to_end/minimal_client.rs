//! The minimal client: the smallest possible one. It sends the requests that Pixir sent, reads the stream,
//! finds deltas and calls in it, writes the deltas to stdout, runs the calls, and nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The role of the minimal client's process.
pub const ROLE: &str = "__minimal_client";

/// The fields of a stream frame that the client reads.
#[derive(Deserialize)]
pub struct Frame {
    pub r#type: String,
    #[serde(default)]
    pub delta: String,
    pub item: Option<Item>,
}

#[derive(Deserialize)]
pub struct Item {
    r#type: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    command: String,
    #[serde(default)]
    path: String,
}

/// Arguments: the model's address and the folder of the bodies to send.
pub fn run(mut arguments: impl Iterator<Item = String>) {
    let address = arguments.next().unwrap();
    let bodies = arguments.next().unwrap();
    let stream = TcpStream::connect(&address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::with_capacity(64 * 1024, stream.try_clone().unwrap());
    for number in 0.. {
        let body = std::fs::read(Path::new(&bodies).join(number.to_string())).unwrap();
        send(&stream, &address, &body);
        let calls = listen(&mut reader);
        if calls.is_empty() {
            return;
        }
        calls.iter().for_each(call);
    }
}

fn send(mut stream: &TcpStream, address: &str, body: &[u8]) {
    let mut request = format!(
        "POST /v1/responses HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n\
         content-type: application/json\r\nauthorization: Bearer sk-of-the-benchmark\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    stream.write_all(&request).unwrap();
}

/// Reads one answer to its end and returns the calls in it.
fn listen(reader: &mut BufReader<TcpStream>) -> Vec<Item> {
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    let mut calls = Vec::new();
    let mut pending = Vec::new();
    let mut out = std::io::stdout().lock();
    loop {
        if reader.buffer().is_empty() {
            out.flush().unwrap();
        }
        line.clear();
        reader.read_line(&mut line).unwrap();
        let length = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let start = pending.len();
        pending.resize(start + length + 2, 0);
        reader.read_exact(&mut pending[start..]).unwrap();
        pending.truncate(start + length);
        if length == 0 {
            out.flush().unwrap();
            return calls;
        }
        let mut taken = 0;
        while let Some(end) = memchr::memchr(b'\n', &pending[taken..]) {
            if let Some(data) = pending[taken..taken + end].strip_prefix(b"data: ") {
                let frame: Frame = serde_json::from_slice(data).unwrap();
                match frame.r#type.as_str() {
                    "response.output_text.delta" => out.write_all(frame.delta.as_bytes()).unwrap(),
                    "response.output_item.done" => {
                        calls.extend(frame.item.filter(|item| item.r#type == "function_call"));
                    }
                    _ => {}
                }
            }
            taken += end + 1;
        }
        pending.drain(..taken);
    }
}

fn call(item: &Item) {
    let arguments: Arguments = serde_json::from_str(&item.arguments).unwrap();
    if item.name == "bash" {
        let mut command = Command::new("bash");
        command.arg("-c").arg(arguments.command).stdin(Stdio::null()).stderr(Stdio::piped());
        command.output().unwrap();
    } else {
        std::fs::read(arguments.path).unwrap();
    }
}
