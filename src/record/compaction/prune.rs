//! Pruning: the markers that replace outputs and arguments that are too large to be replayed.
//!
//! The functions are pure and must not change: replay and estimate both use them, and a changed marker
//! would change the bytes of prefixes that Providers have cached.

use serde_json::{Map, Value};

use crate::record::event::{ToolCall, ToolResult};

/// The marker for an output that is larger than `limit`; `None` when it is not.
pub fn prune_output(result: &ToolResult, limit: u64) -> Option<String> {
    let size = result.output.as_deref().map_or(0, str::len);
    // An image in a result is shown with its text.
    let is_shown = result.descriptor().is_some();
    if size as u64 <= limit && !is_shown {
        return None;
    }
    let how = if result.ok { "it went well" } else { "it failed" };
    Some(format!("[{size} bytes of output were pruned to make room; {how}. Call again if needed.]"))
}

/// The arguments with markers in place of values larger than `limit`; `None` when there are none.
pub fn prune_arguments(call: &ToolCall, limit: u64) -> Option<Value> {
    if let Some(raw) = &call.raw_args {
        let is_large = raw.len() as u64 > limit;
        return is_large
            .then(|| Value::Object(Map::from_iter([("pruned".to_owned(), marker(raw.len()))])));
    }
    let fields = call.args.as_object()?;
    let mut pruned = None;
    for (name, value) in fields {
        let size = value_size(value);
        if size as u64 > limit {
            let copy: &mut Map<String, Value> = pruned.get_or_insert_with(|| fields.clone());
            copy.insert(name.clone(), marker(size));
        }
    }
    pruned.map(Value::Object)
}

fn value_size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_size).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + value_size(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

fn marker(size: usize) -> Value {
    format!("[{size} bytes were pruned to make room]").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::id::CallId;
    use crate::record::event::Extra;

    fn result(output: &str, ok: bool) -> ToolResult {
        let (call_id, output) = (CallId::new("c"), Some(output.to_owned()));
        ToolResult { call_id, ok, output, error: None, details: Value::Null, extra: Extra::new() }
    }

    #[test]
    fn only_what_is_large_gets_a_marker() {
        assert_eq!(prune_output(&result("short", true), 100), None);
        let marker = prune_output(&result(&"x".repeat(101), false), 100).unwrap();
        assert!(marker.contains("101 bytes") && marker.contains("failed"), "{marker}");
        let call = |args: Value, raw_args: Option<&str>| ToolCall {
            call_id: CallId::new("c"),
            name: "write".to_owned(),
            args,
            raw_args: raw_args.map(str::to_owned),
            extra: Extra::new(),
        };
        assert_eq!(prune_arguments(&call(json!({"path": "a"}), None), 100), None);
        let long = "y".repeat(200);
        let pruned =
            prune_arguments(&call(json!({"path": "a", "content": long}), None), 100).unwrap();
        assert_eq!(pruned, json!({"path": "a", "content": "[200 bytes were pruned to make room]"}));
        let nested = prune_arguments(&call(json!({"edits": [{"old": long}]}), None), 100).unwrap();
        assert_eq!(nested["edits"], "[203 bytes were pruned to make room]");
        assert!(prune_arguments(&call(Value::Null, Some(&long)), 100).is_some());
        assert_eq!(prune_arguments(&call(Value::Null, Some("{")), 100), None);
    }
}
