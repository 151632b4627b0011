//! The Delegation Context: facts about a child for its late context, short and as JSON values.

use serde_json::{Value, json};

use super::record::{SubagentRecord, whole_millis};
use crate::base::id::SessionId;

/// The longest value, in bytes of JSON.
const LONGEST_VALUE: usize = 240;

/// The longest text, in bytes.
const LONGEST: usize = 2400;

/// The lines for a child's late context. They do not change from Turn to Turn.
pub fn delegation_context(
    record: &SubagentRecord,
    more: &[(&'static str, Value)],
    parent: &SessionId,
    max_depth: u32,
) -> String {
    let facts: [(&str, Value); 8] = [
        ("subagent_id", json!(record.id)),
        ("parent_session_id", json!(parent)),
        ("role", json!(record.role)),
        ("depth", json!(record.depth)),
        ("max_depth", json!(max_depth)),
        ("workspace_mode", json!(record.workspace.name())),
        ("permission_mode", json!(record.mode.as_str())),
        ("timeout_ms", json!(whole_millis(record.timeout))),
    ];
    let mut text =
        "You are a Subagent: the next message is the task that another agent gave you.".to_owned();
    for (name, value) in facts.iter().chain(more) {
        let line = format!("\n- {}: {}", json!(name), bounded(value));
        if text.len() + line.len() > LONGEST {
            break;
        }
        text.push_str(&line);
    }
    text
}

fn bounded(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= LONGEST_VALUE {
        return text;
    }
    let shown = value.as_str().unwrap_or(&text);
    let shown: String = shown.chars().take(LONGEST_VALUE / 4).collect();
    json!(format!("{shown}…")).to_string()
}
