//! Calls of MCP tools: their names, and a description of a call on one line for a person.
//!
//! Names and arguments come from a model and from third parties, so hidden and bidirectional characters are spelled
//! as code points.

use std::fmt::Write;

use serde_json::Value;

use super::hidden_chars::spell_hidden;

/// The prefix of the names of MCP tools, and the separator between server and tool.
const MCP_PREFIX: &str = "mcp__";
const SEPARATOR: &str = "__";

/// The server and the tool in a tool's name; `None` when it is no MCP tool.
pub fn split_mcp_name(name: &str) -> Option<(&str, &str)> {
    let (server, tool) = name.strip_prefix(MCP_PREFIX)?.split_once(SEPARATOR)?;
    (!server.is_empty() && !tool.is_empty()).then_some((server, tool))
}

/// A call on one line: `server: tool (argument: value, …)`, with at most `most` characters of arguments.
pub fn describe_mcp_call(server: &str, tool: &str, args: &Value, most: usize) -> String {
    let named = format!("{}: {}", spelled(server), spelled(tool));
    let shown_args = match args {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::Object(fields) => {
            let mut shown_args = String::new();
            for (name, value) in fields {
                let comma = if shown_args.is_empty() { "" } else { ", " };
                // Writing to a String cannot fail.
                write!(shown_args, "{comma}{name}: {value}").ok();
                if shown_args.chars().nth(most).is_some() {
                    break;
                }
            }
            shown_args
        }
        other => other.to_string(),
    };
    if shown_args.is_empty() {
        return named;
    }
    match shown_args.char_indices().nth(most) {
        Some((end, _)) => {
            format!("{named} ({}…", spelled(shown_args.get(..end).unwrap_or_default()))
        }
        None => format!("{named} ({})", spelled(&shown_args)),
    }
}

fn spelled(text: &str) -> String {
    spell_hidden(&text.replace(['\n', '\r', '\t'], " "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_says_whose_guest_it_is() {
        assert_eq!(split_mcp_name("mcp__git__log"), Some(("git", "log")));
        assert_eq!(split_mcp_name("mcp__git__a__b"), Some(("git", "a__b")));
        for own in ["bash", "mcp__", "mcp__git", "mcp____x", "mcp__git__"] {
            assert_eq!(split_mcp_name(own), None, "{own}");
        }
    }

    #[test]
    fn a_call_is_read_from_left_to_right_and_has_an_end() {
        let shown_args = |args: Value| describe_mcp_call("git", "log", &args, 40);
        assert_eq!(shown_args(json!({})), "git: log");
        assert_eq!(shown_args(Value::Null), "git: log");
        assert_eq!(
            shown_args(json!({"branch": "main\n", "count": 3})),
            r#"git: log (branch: "main\n", count: 3)"#
        );
        assert_eq!(shown_args(json!(["x"])), r#"git: log (["x"])"#);
        let long = shown_args(json!({"text": "x".repeat(1000), "unseen": 1}));
        assert_eq!(long.chars().count(), "git: log (…".chars().count() + 40);
        let turned = shown_args(json!({"text": "\u{202e}moc\u{200b}"}));
        assert_eq!(turned, r#"git: log (text: "<U+202E>moc<U+200B>")"#);
    }
}
