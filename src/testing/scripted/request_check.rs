//! Request checks: refuses what the real service refuses, with the same messages, so that a bad replay
//! fails a test and not a user.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The longest cache key that is accepted, in characters.
const CACHE_KEY_LIMIT: usize = 64;

/// The body of the 400 with which the real service would refuse a request, if it would.
pub fn refusal(body: &Value) -> Option<String> {
    let (message, code) = find_refusal(body)?;
    let error =
        json!({"message": message, "type": "invalid_request_error", "param": null, "code": code});
    Some(json!({ "error": error }).to_string())
}

/// The refusal of a server that supports only the portable part of the API.
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
    let has_image = list("input").flat_map(parts).any(|part| part["type"] == "input_image");
    let fault = match (field, tool, item) {
        (Some(field), _, _) => format!("Unsupported parameter: {field}"),
        (None, Some(tool), _) => format!("Unsupported tool type: {}", tool["type"]),
        (None, None, Some(_)) => "Unsupported input item: reasoning".to_owned(),
        (None, None, None) if has_image => "Unsupported content type: input_image".to_owned(),
        (None, None, None) => return None,
    };
    Some(json!({"error": {"message": fault, "type": "invalid_request_error"}}).to_string())
}

/// The refusal of the subscription backend for a field that it does not accept.
pub fn chatgpt_refusal(body: &Value) -> Option<String> {
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
    // A WebSocket always streams, and may continue a response.
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

type Refusal = (String, Option<&'static str>);

fn find_refusal(body: &Value) -> Option<Refusal> {
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
    // A WebSocket always streams, so its body has no `stream`.
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
        Some(items) => check_pairing(items)
            .or_else(|| check_reasoning(items))
            .or_else(|| check_contents(items)),
    }
}

/// Refuses calls without an output, and outputs without an earlier call.
fn check_pairing(items: &[Value]) -> Option<Refusal> {
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
    // In the order of the request, so that the same request is refused with the same message.
    let unanswered = items.iter().filter_map(|item| item["call_id"].as_str());
    let mut unanswered =
        unanswered.filter(|call_id| open.get(call_id).is_some_and(|count| *count > 0));
    unanswered
        .next()
        .map(|call_id| (format!("No tool output found for function call {call_id}."), None))
}

/// Refuses reasoning without encrypted content, or without the item that it produced.
fn check_reasoning(items: &[Value]) -> Option<Refusal> {
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

/// The content parts of an item: of a message, or of an output that is a list.
pub fn parts(item: &Value) -> impl Iterator<Item = &Value> {
    let lists = [item["content"].as_array(), item["output"].as_array()];
    lists.into_iter().flatten().flatten()
}

/// Refuses content parts of a type that their item may not have, and invalid images.
fn check_contents(items: &[Value]) -> Option<Refusal> {
    for (place, item) in items.iter().enumerate() {
        let may_show = item["role"] == "user" || item["type"] == "function_call_output";
        for part in parts(item) {
            let fault = match part["type"].as_str().unwrap_or_default() {
                "input_image" if may_show => check_image(part),
                "input_text" | "output_text" if part["text"].is_string() => None,
                // Parts that a test writes by hand may have no type.
                "" => None,
                other => Some(format!("Invalid value: '{other}'.")),
            };
            if let Some(words) = fault {
                return Some((format!("Invalid 'input[{place}]': {words}"), Some("invalid_value")));
            }
        }
    }
    None
}

fn check_image(part: &Value) -> Option<String> {
    const MAGIC: [(&str, &[u8]); 4] = [
        ("image/png", b"\x89PNG\r\n\x1a\n"),
        ("image/jpeg", b"\xff\xd8\xff"),
        ("image/gif", b"GIF8"),
        ("image/webp", b"RIFF"),
    ];
    let detail = part.get("detail").map_or(Some("auto"), Value::as_str);
    if !matches!(detail, Some("auto" | "low" | "high" | "original")) {
        return Some("Invalid value for 'detail'.".to_owned());
    }
    let url = part["image_url"].as_str().unwrap_or_default();
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let Some((media_type, text)) = data else {
        return Some("Expected a base64-encoded data URL with an image MIME type.".to_owned());
    };
    let bytes = STANDARD.decode(text).unwrap_or_default();
    let is_image = MAGIC.iter().any(|(own, magic)| *own == media_type && bytes.starts_with(magic));
    (!is_image).then(|| "The image data you provided does not represent a valid image.".to_owned())
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
    fn images_are_looked_at() {
        let shown = |url: &str, role: &str| {
            let part = json!({"type": "input_image", "image_url": url, "detail": "auto"});
            json!([{"type": "message", "role": role, "content": [part]}])
        };
        let png = "data:image/png;base64,iVBORw0KGgoAAAAN";
        check(&shown(png, "user"), None);
        check(&shown(png, "developer"), Some("Invalid value: 'input_image'"));
        check(&shown("data:image/gif;base64,iVBORw0KGgoAAAAN", "user"), Some("a valid image"));
        check(&shown("data:image/png;base64,!!", "user"), Some("a valid image"));
        check(&shown("file:///x.png", "user"), Some("data URL"));
        let call = json!({"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"});
        let image = json!({"type": "input_image", "image_url": png});
        let text = json!({"type": "input_text", "text": "x"});
        let output =
            json!({"type": "function_call_output", "call_id": "c", "output": [text, image]});
        check(&json!([call, output]), None);
        let body = body(&json!([call, output]));
        assert!(portable_refusal(&body).is_some_and(|words| words.contains("input_image")));
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
