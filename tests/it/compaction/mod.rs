//! Context windows that fill up: notices, compaction, and the facts that are kept.

mod long;
mod notices;

use pixir::scripted::{ReceivedRequest, Reply};
use serde_json::{Value, json};

/// The tokens of everything the model reads in a request, as its tokenizer counts them.
pub fn tokens(request: &ReceivedRequest) -> u64 {
    let tokenizer = tiktoken_rs::o200k_base_singleton();
    let mut texts: Vec<String> = Vec::new();
    for item in request.input() {
        for name in ["arguments", "name", "output"] {
            texts.extend(item[name].as_str().map(str::to_owned));
        }
        let parts = item["content"].as_array().into_iter().flatten();
        texts.extend(parts.filter_map(|part| part["text"].as_str().map(str::to_owned)));
    }
    texts.push(request.body["instructions"].as_str().unwrap_or_default().to_owned());
    texts.push(request.body.get("tools").map(ToString::to_string).unwrap_or_default());
    let words: usize = texts.iter().map(|text| tokenizer.encode_ordinary(text).len()).sum();
    (words + 5 * request.input().len()) as u64
}

/// The reply of a Provider to a request that is too long.
pub fn too_long() -> Reply {
    let message = "Your input exceeds the context window of this model.";
    let error = json!({"error": {"code": "context_length_exceeded", "message": message}});
    Reply::status(400, error.to_string())
}

/// The Events of a type in a Log.
pub fn of_type(events: &[Value], name: &str) -> Vec<Value> {
    events.iter().filter(|event| event["type"] == name).cloned().collect()
}
