//! The title of a tool call: its name and most telling argument, on one line.

use serde_json::Value;

use super::sanitise::name_on_one_line;
use crate::record::event::{ToolCall, describe_mcp_call, split_mcp_name};

/// The arguments that describe a call best, in this order.
const TITLE_ARGUMENTS: &[&str] =
    &["command", "cmd", "path", "file_path", "pattern", "query", "url", "name", "id", "task"];

/// The tool whose calls are shown by the plan that they record.
pub const PLAN_TOOL: &str = "update_plan";

/// How many files of a patch are named.
const NAMED_FILES: usize = 3;

/// The title of a call, at most `width` cells wide.
pub fn call_title(call: &ToolCall, width: usize) -> String {
    if call.name == PLAN_TOOL {
        return PLAN_TOOL.to_owned();
    }
    if let Some((server, tool)) = split_mcp_name(&call.name) {
        return name_on_one_line(&describe_mcp_call(server, tool, &call.args, width), width);
    }
    let text = |key: &str| call.args.get(key).and_then(Value::as_str);
    let about = TITLE_ARGUMENTS
        .iter()
        .find_map(|key| text(key))
        .map(str::to_owned)
        .or_else(|| text("patch").or_else(|| text("input")).map(patched_files))
        .unwrap_or_else(|| compact_arguments(&call.args));
    name_on_one_line(&format!("{} {about}", call.name), width)
}

/// The files that a patch names.
fn patched_files(patch: &str) -> String {
    let file = |line: &str| Some(line.strip_prefix("*** ")?.split_once(" File: ")?.1.to_owned());
    let files: Vec<String> = patch.lines().filter_map(file).collect();
    let shown = files.iter().take(NAMED_FILES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(NAMED_FILES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn compact_arguments(args: &Value) -> String {
    match args {
        Value::Null => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        other => other.to_string(),
    }
}
