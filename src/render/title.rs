//! What a tool call is called on the screen: its name and what it is about, on one line.

use serde_json::Value;

use super::sanitise::one_line;
use crate::event::ToolCall;

/// The arguments that say most about a call, in this order.
const TELLING: &[&str] = &["command", "path", "file_path", "pattern", "query", "url", "name", "id"];

/// A name of at most `width` cells for a call.
pub fn title(call: &ToolCall, width: usize) -> String {
    let about = TELLING
        .iter()
        .find_map(|key| call.args.get(*key).and_then(Value::as_str))
        .map_or_else(|| compact(&call.args), str::to_owned);
    one_line(&format!("{} {about}", call.name), width)
}

fn compact(args: &Value) -> String {
    match args {
        Value::Null => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        other => other.to_string(),
    }
}
