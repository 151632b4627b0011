//! Analysis of a Provider request: its parts, how much of the window each takes, and whether a server would accept
//! its items.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::Value;

use crate::base::tokens;

/// The name of the method by which tokens are estimated.
pub const TOKEN_METHOD: &str = "shape_of_text";

/// Bytes of encrypted reasoning for one token.
const SEALED_BYTES_PER_TOKEN: u64 = 5;

/// The longest excerpt of an item, in characters.
const MAX_EXCERPT_CHARS: usize = 300;

/// The analysis of a request; its JSON form is a stable interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RequestAnatomy {
    pub bytes: u64,
    pub estimated_tokens: u64,
    pub parts: Vec<RequestPart>,
    pub items: Vec<RequestItem>,
    /// Items by type.
    pub counts: BTreeMap<String, u64>,
    /// Whether every call has exactly one output after it, and no other problem was found.
    pub is_valid: bool,
    pub problems: Vec<String>,
}

/// A part of a request; all parts add up to the whole request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestPart {
    pub name: &'static str,
    pub count: u64,
    pub bytes: u64,
    pub estimated_tokens: u64,
}

/// One input item of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestItem {
    pub index: usize,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub bytes: u64,
    pub estimated_tokens: u64,
    /// The beginning of the item's text.
    pub excerpt: String,
}

/// The estimated tokens of all texts in a value; encrypted reasoning and images are not estimated as text.
fn estimate_value(value: &Value) -> u64 {
    match value {
        Value::String(text) => tokens::estimate_tokens(text),
        Value::Array(all) => all.iter().map(estimate_value).sum(),
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "input_image") => {
            tokens::estimate_image_tokens(None)
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match (name.as_str(), value) {
                ("encrypted_content", Value::String(sealed)) => {
                    sealed.len() as u64 / SEALED_BYTES_PER_TOKEN
                }
                _ => estimate_value(value),
            })
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Analyses a request.
pub fn analyze_request(body: &Value) -> RequestAnatomy {
    let text = |value: &Value| value.as_str().map_or(0, str::len) as u64;
    let list = |name: &str| body[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let tools = list("tools");
    let items: Vec<RequestItem> = list("input").iter().enumerate().map(describe_item).collect();
    let sum = |of: fn(&RequestItem) -> u64| items.iter().map(of).sum::<u64>();
    let part = |name, count: usize, bytes, estimated_tokens| RequestPart {
        name,
        count: count as u64,
        bytes,
        estimated_tokens,
    };
    let instructions = text(&body["instructions"]);
    let tool_bytes: u64 = tools.iter().map(json_length).sum();
    let parts = vec![
        part(
            "instructions",
            usize::from(instructions > 0),
            instructions,
            estimate_value(&body["instructions"]),
        ),
        // Schemas are read with their names and brackets.
        part("tools", tools.len(), tool_bytes, tools.iter().map(estimate_schema).sum()),
        RequestPart {
            name: "input",
            count: items.len() as u64,
            bytes: sum(|item| item.bytes),
            estimated_tokens: sum(|item| item.estimated_tokens),
        },
    ];
    let problems = find_problems(list("input"));
    let mut counts = BTreeMap::new();
    for item in &items {
        *counts.entry(item.kind.clone()).or_default() += 1;
    }
    RequestAnatomy {
        bytes: json_length(body),
        estimated_tokens: parts.iter().map(|part| part.estimated_tokens).sum(),
        parts,
        items,
        counts,
        is_valid: problems.is_empty(),
        problems,
    }
}

fn estimate_schema(tool: &Value) -> u64 {
    tokens::estimate_tokens(&tool.to_string())
}

fn json_length(value: &Value) -> u64 {
    serde_json::to_string(value).map_or(0, |text| text.len() as u64)
}

fn describe_item((index, value): (usize, &Value)) -> RequestItem {
    let word = |name: &str| value[name].as_str().map(str::to_owned);
    let bytes = json_length(value);
    RequestItem {
        index,
        kind: word("type").unwrap_or_else(|| "unknown".to_owned()),
        role: word("role"),
        call_id: word("call_id"),
        name: word("name"),
        bytes,
        estimated_tokens: estimate_value(value) + tokens::TOKENS_PER_ITEM,
        excerpt: excerpt(value),
    }
}

/// The content parts of a message or of an output.
fn content_pieces(value: &Value) -> impl Iterator<Item = &Value> {
    let of = |name: &str| value[name].as_array().into_iter().flatten();
    of("content").chain(of("output"))
}

fn excerpt(value: &Value) -> String {
    let piece_text = content_pieces(value).find_map(|piece| piece["text"].as_str());
    let plain = ["output", "arguments"].iter().find_map(|name| value[*name].as_str());
    let text = piece_text.or(plain).unwrap_or_default();
    text.chars().take(MAX_EXCERPT_CHARS).collect()
}

/// The problems for which a server would refuse the items.
fn find_problems(items: &[Value]) -> Vec<String> {
    let mut problems = Vec::new();
    // Whether each call has its output; ids may be used again once they are answered.
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str() {
            Some("function_call") => {
                if open.insert(id, index).is_some() {
                    problems.push(format!("item {index}: call {id} is made twice"));
                }
            }
            Some("function_call_output") => {
                if open.remove(id).is_none() {
                    problems.push(format!("item {index}: output {id} has no call before it"));
                }
                if item["output"].as_str() == Some("") {
                    problems.push(format!("item {index}: output {id} is empty"));
                }
            }
            Some("message") if !open.is_empty() => {
                let waiting = open.len();
                problems.push(format!(
                    "item {index}: a message between {waiting} calls and their outputs"
                ));
            }
            Some("reasoning") if index + 1 == items.len() => {
                problems.push(format!("item {index}: reasoning with no item after it"));
            }
            Some(_) => {}
            None => problems.push(format!("item {index} has no type")),
        }
    }
    let mut left: Vec<(&str, usize)> = open.into_iter().collect();
    left.sort_by_key(|(_, index)| *index);
    problems
        .extend(left.iter().map(|(id, index)| format!("item {index}: call {id} has no output")));
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems_of(items: &Value) -> Vec<String> {
        analyze_request(&json!({"instructions": "", "input": items})).problems
    }

    #[test]
    fn what_a_server_would_refuse_is_found() {
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "read"});
        let output = |id: &str, text: &str| json!({"type": "function_call_output", "call_id": id, "output": text});
        let message = json!({"type": "message", "role": "user", "content": []});
        assert_eq!(
            problems_of(&json!([
                message,
                call("a"),
                call("b"),
                output("a", "x"),
                output("b", "y")
            ])),
            [""; 0]
        );
        assert_eq!(
            problems_of(&json!([call("a"), output("a", "x"), call("a"), output("a", "x")])),
            [""; 0]
        );
        for (items, words) in [
            (json!([call("a")]), "call a has no output"),
            (json!([output("a", "x")]), "has no call"),
            (json!([call("a"), output("a", "")]), "is empty"),
            (json!([call("a"), message, output("a", "x")]), "a message between"),
            (json!([call("a"), call("a"), output("a", "x")]), "is made twice"),
            (json!([{"type": "reasoning"}]), "no item after it"),
            (json!([{}]), "has no type"),
        ] {
            let problems = problems_of(&items);
            assert!(problems.iter().any(|problem| problem.contains(words)), "{problems:?}");
        }
    }

    #[test]
    fn the_parts_add_up_and_an_image_is_not_counted_by_its_bytes() {
        let image = json!({"type": "input_image", "image_url": "x".repeat(1_000_000)});
        let body = json!({
            "instructions": "i".repeat(400),
            "tools": [{"name": "a"}],
            "input": [{"type": "message", "role": "user", "content": [image, {"type": "input_text", "text": "look"}]}],
        });
        let found = analyze_request(&body);
        assert_eq!(
            found.parts.iter().map(|part| part.estimated_tokens).sum::<u64>(),
            found.estimated_tokens
        );
        assert!(found.estimated_tokens < 2_300, "{}", found.estimated_tokens);
        assert_eq!((found.items[0].excerpt.as_str(), found.counts["message"]), ("look", 1));
        assert!(analyze_request(&Value::Null).is_valid);
    }
}
