//! Baseline client made of reqwest and eventsource-stream. It sends the first request that Pixir sent, parses
//! the same typed frames and writes deltas to stdout.

use std::io::Write;
use std::path::Path;

use eventsource_stream::EventStream;
use futures_util::StreamExt;

use super::minimal_client::Frame;

/// The role of the client's process.
pub const ROLE: &str = "__bare";

/// Arguments: the model's address and the folder of the bodies to send.
pub fn run(mut arguments: impl Iterator<Item = String>) {
    let address = arguments.next().unwrap();
    let body = std::fs::read(Path::new(&arguments.next().unwrap()).join("0")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(answer(&format!("http://{address}/v1/responses"), body));
}

async fn answer(url: &str, body: Vec<u8>) {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.install_default().unwrap();
    let client = reqwest::Client::builder().no_proxy().http1_only().build().unwrap();
    let request = client
        .post(url)
        .header("accept", "text/event-stream")
        .header("content-type", "application/json")
        .bearer_auth("sk-of-the-benchmark")
        .body(body);
    let response = request.send().await.unwrap();
    let mut events = EventStream::new(response.bytes_stream());
    let mut out = std::io::stdout().lock();
    while let Some(event) = events.next().await {
        let frame: Frame = serde_json::from_str(&event.unwrap().data).unwrap();
        if frame.r#type == "response.output_text.delta" {
            out.write_all(frame.delta.as_bytes()).unwrap();
            out.flush().unwrap();
        }
    }
}
