//! Checks: what the real service refuses, refused here with its own words, so that a bad replay
//! fails a test and not a user.

use std::collections::HashMap;

use serde_json::{Value, json};

/// The longest cache key that is accepted, in characters.
const CACHE_KEY_LIMIT: usize = 64;

/// The body of the 400 that the real service would answer, if it would.
pub fn refusal(body: &Value) -> Option<String> {
    let (message, code) = fault(body)?;
    let error =
        json!({"message": message, "type": "invalid_request_error", "param": null, "code": code});
    Some(json!({ "error": error }).to_string())
}

/// What a server says that knows only the plain parts of the dialect.
pub fn portable_refusal(body: &Value) -> Option<String> {
    const KNOWN: [&str; 11] = [
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "store",
        "stream",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
    ];
    let field = body.as_object()?.keys().find(|name| !KNOWN.contains(&name.as_str()));
    let list = |name: &str| body[name].as_array().into_iter().flatten();
    let tool = list("tools").find(|tool| tool["type"] != "function");
    let item = list("input").find(|item| item["type"] == "reasoning");
    let fault = match (field, tool, item) {
        (Some(field), _, _) => format!("Unsupported parameter: {field}"),
        (None, Some(tool), _) => format!("Unsupported tool type: {}", tool["type"]),
        (None, None, Some(_)) => "Unsupported input item: reasoning".to_owned(),
        (None, None, None) => return None,
    };
    Some(json!({"error": {"message": fault, "type": "invalid_request_error"}}).to_string())
}

/// What the subscription's backend says about a field that it does not take.
pub fn chatgpt_detail(body: &Value) -> Option<String> {
    const REFUSED: [&str; 18] = [
        "max_output_tokens",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "prompt_cache_retention",
        "metadata",
        "user",
        "safety_identifier",
        "truncation",
        "background",
        "conversation",
        "prompt",
        "max_tool_calls",
        "top_logprobs",
        "moderation",
        "multi_agent",
        "previous_response_id",
    ];
    if body["store"] != false {
        return Some("Store must be set to false".to_owned());
    }
    // A WebSocket always streams, and may go on from a response.
    let is_frame = body["type"] == "response.create";
    if body["stream"] != true && !is_frame {
        return Some("Stream must be set to true".to_owned());
    }
    if body["instructions"].as_str().is_none_or(str::is_empty) {
        return Some("Instructions are required".to_owned());
    }
    let is_refused =
        |field: &&str| body.get(field).is_some() && !(is_frame && *field == "previous_response_id");
    if let Some(field) = REFUSED.into_iter().find(is_refused) {
        return Some(format!("Unsupported parameter: {field}"));
    }
    let mut items = body["input"].as_array().into_iter().flatten();
    let has_system = items.any(|item| item["role"] == "system");
    has_system.then(|| "System messages are not allowed".to_owned())
}

type Fault = (String, Option<&'static str>);

fn fault(body: &Value) -> Option<Fault> {
    let plain = |message: &str| Some((message.to_owned(), None));
    if !body.is_object() {
        return plain("We could not parse the JSON body of your request.");
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        return plain("Missing required parameter: 'model'.");
    }
    if body["store"] != false {
        return plain("Store must be set to false");
    }
    // A WebSocket always streams, and so says nothing about it.
    let is_frame = body["type"] == "response.create";
    if body["stream"] != true && !is_frame {
        return plain("Stream must be set to true");
    }
    let key_length = body["prompt_cache_key"].as_str().map_or(0, |key| key.chars().count());
    if key_length > CACHE_KEY_LIMIT {
        let message = format!(
            "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length \
             {CACHE_KEY_LIMIT}, but got a string with length {key_length} instead."
        );
        return Some((message, Some("string_above_max_length")));
    }
    let is_continued = body.get("previous_response_id").is_some();
    if is_continued && !is_frame {
        return plain("Unsupported parameter: previous_response_id");
    }
    match body["input"].as_array() {
        Some(items) if items.is_empty() && is_continued => None,
        None => plain("Missing required parameter: 'input'."),
        Some(items) if items.is_empty() => plain("Invalid 'input': expected a non-empty array."),
        Some(items) => pairing(items).or_else(|| reasoning(items)),
    }
}

/// Calls and outputs pair up, the call first.
fn pairing(items: &[Value]) -> Option<Fault> {
    let mut open: HashMap<&str, usize> = HashMap::new();
    for item in items {
        let call_id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str() {
            Some("function_call") => *open.entry(call_id).or_default() += 1,
            Some("function_call_output") => {
                let Some(count) = open.get_mut(call_id).filter(|count| **count > 0) else {
                    let message = format!(
                        "No tool call found for function call output with call_id {call_id}."
                    );
                    return Some((message, None));
                };
                *count -= 1;
            }
            _ => {}
        }
    }
    // Named in the order of the request, so that the same request is refused with the same words.
    let unanswered = items.iter().filter_map(|item| item["call_id"].as_str());
    let mut unanswered =
        unanswered.filter(|call_id| open.get(call_id).is_some_and(|count| *count > 0));
    unanswered
        .next()
        .map(|call_id| (format!("No tool output found for function call {call_id}."), None))
}

/// Reasoning can be read, and is followed by what it produced.
fn reasoning(items: &[Value]) -> Option<Fault> {
    for (place, item) in items.iter().enumerate().filter(|(_, item)| item["type"] == "reasoning") {
        let id = item["id"].as_str().unwrap_or("(no id)");
        if item["encrypted_content"].as_str().is_none_or(str::is_empty) {
            let message = format!(
                "Item with id '{id}' not found. Items are not persisted when `store` is set to false. \
                 Try again with `store` set to true, or remove this item from your input."
            );
            return Some((message, None));
        }
        let is_followed = items[place + 1..]
            .iter()
            .find(|next| next["type"] != "reasoning")
            .is_some_and(|next| next["type"] == "function_call" || next["role"] == "assistant");
        if !is_followed {
            let message = format!(
                "Item '{id}' of type 'reasoning' was provided without its required following item."
            );
            return Some((message, None));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(input: &Value) -> Value {
        json!({"model": "m", "stream": true, "store": false, "input": input})
    }

    #[track_caller]
    fn check(input: &Value, expected: Option<&str>) {
        let refused = refusal(&body(input));
        match expected {
            None => assert_eq!(refused, None),
            Some(words) => {
                assert!(refused.as_ref().is_some_and(|text| text.contains(words)), "{refused:?}");
            }
        }
    }

    #[test]
    fn bad_replays_are_refused_as_the_service_does() {
        let user = json!({"type": "message", "role": "user", "content": []});
        let call = json!({"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": "x"});
        let sealed = json!({"type": "reasoning", "encrypted_content": "e", "summary": []});
        let open = json!({"type": "reasoning", "id": "rs_1", "summary": []});
        check(&json!([user, sealed, call, output]), None);
        check(&json!([user, call]), Some("No tool output found for function call c."));
        check(
            &json!([output]),
            Some("No tool call found for function call output with call_id c."),
        );
        check(&json!([call, output, output]), Some("No tool call found"));
        check(&json!([output, call]), Some("No tool call found"));
        check(&json!([user, sealed]), Some("without its required following item"));
        check(&json!([sealed, user]), Some("without its required following item"));
        check(&json!([open, call, output]), Some("Items are not persisted"));
        check(&json!([]), Some("'input'"));
        check(&json!(null), Some("'input'"));
    }

    #[test]
    fn bad_fields_are_refused_as_the_service_does() {
        let good = body(&json!([{"role": "user"}]));
        for (field, value, words) in [
            ("store", json!(true), "Store must be set to false"),
            ("stream", json!(false), "Stream must be set to true"),
            ("prompt_cache_key", json!("k".repeat(65)), "string_above_max_length"),
            ("model", json!(""), "'model'"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert!(refusal(&bad).unwrap().contains(words), "{field}");
        }
        assert!(refusal(&json!("x")).unwrap().contains("JSON"));
    }
}
