//! A Log as stable text: one line per Event, with its most important fields.

use std::path::Path;

use serde_json::Value;

/// Renders the Log at `path`; names that change from run to run are replaced.
pub fn render_log(path: &Path, workspace: &Path) -> String {
    let bytes = std::fs::read(path).unwrap();
    let mut text = String::new();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Ok(event) = serde_json::from_slice::<Value>(line) else {
            text.push_str("- damaged line\n");
            continue;
        };
        let seq = &event["seq"];
        let kind = event["type"].as_str().unwrap_or("?");
        text.push_str(format!("{seq} {kind} {}", show(kind, &event["data"])).trim_end());
        text.push('\n');
    }
    text.replace(&*workspace.to_string_lossy(), "[workspace]")
}

fn show(kind: &str, data: &Value) -> String {
    let word = |key: &str| data[key].as_str().unwrap_or("-").to_owned();
    match kind {
        "session_started" => format!("{} {}", word("role"), word("permission_mode")),
        "user_message" => format!("{:?}", word("text")),
        "assistant_message" => {
            let partial = data["metadata"]["partial"] == true;
            let phase = if partial { "partial".to_owned() } else { word("phase") };
            format!("{phase} {:?}", word("text"))
        }
        "reasoning" => word("model"),
        "tool_call" => {
            let args = data.get("raw_args").unwrap_or(&data["args"]);
            format!("{} {args}", word("name"))
        }
        "tool_result" => match data["error"]["kind"].as_str() {
            Some(kind) => format!("error {kind}"),
            None => format!("ok={} {:?}", data["ok"], shorten(&word("output"))),
        },
        "permission_decision" => {
            format!("{} {} by {}", word("decision"), word("rule"), word("answered_by"))
        }
        "provider_usage" => {
            let error = data["error_kind"].as_str().map(|kind| format!(" {kind}"));
            format!("{}{} retries={}", word("status"), error.unwrap_or_default(), data["retries"])
        }
        "turn_failed" => format!("{} {}", word("terminal_status"), word("error_kind")),
        "posture_changed" => data.to_string(),
        "subagent_event" => {
            let reason = data["reason"].as_str().map(|reason| format!(" {reason}"));
            format!("{} {} {}", word("event"), word("agent"), word("status"))
                + &reason.unwrap_or_default()
        }
        "log_repaired" => format!("kept={}", data["kept"]),
        _ => String::new(),
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((place, _)) => format!("{}…", &text[..place]),
        None => text.to_owned(),
    }
}
