//! Reducer of stream events: frames of the Responses API in, `ModelEvent`s out. A pure state machine.
//!
//! Deltas are for display; the final form of an item is `output_item.done`. Frames of unknown types
//! are skipped, so that a newer server does not break an older Pixir.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::base::error::Kind;
use crate::model::provider::{
    CompletedResponse, FunctionCall, ModelEvent, OutputItem, ProviderError, classify, rate_limits,
    web_search,
};
use crate::record::event::{Extra, TokenUsage};

/// The longest answer that is accepted, in bytes; far more than a model produces.
const MAX_ANSWER_BYTES: usize = 128 << 20;

/// The queue of reduced events.
type ReducedEvents = VecDeque<Result<ModelEvent, ProviderError>>;

/// The state between frames of one answer.
#[derive(Debug, Default)]
pub struct Reducer {
    is_alive: bool,
    is_over: bool,
    /// Whether deltas of the current message were shown.
    was_shown: bool,
    /// The hash of each frame by its number, as long as the server numbers them without a gap.
    frame_hashes: Vec<u64>,
    /// Bytes of all frames so far.
    bytes: usize,
    /// Keys of finished items, by which repeated ones are skipped.
    finished_keys: Vec<String>,
    /// Items after a reasoning item whose encrypted content may come with the last frame only.
    waiting_items: Vec<OutputItem>,
}

/// The fields of a frame that decide how it is handled; borrowed, because most frames are deltas.
#[derive(Deserialize)]
struct FrameHead<'a> {
    #[serde(borrow, default, rename = "type")]
    type_name: Cow<'a, str>,
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sequence_number: Option<&'a RawValue>,
}

impl Reducer {
    /// Whether anything has arrived.
    pub fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// Records that the first byte has arrived.
    pub fn mark_alive(&mut self) {
        self.is_alive = true;
    }

    /// Whether the answer has ended; later frames are ignored.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reduces one frame: the name of its event and its data.
    pub fn push_frame(&mut self, event: &str, data: &[u8], out: &mut ReducedEvents) {
        if self.is_over {
            return;
        }
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > MAX_ANSWER_BYTES {
            let message = "the Provider's answer is longer than 128 MiB";
            return self.fail(ProviderError::terminal(Kind::InvalidResponse, message), out);
        }
        let Some(head) = parse_head(data) else { return self.handle_unreadable(event, data, out) };
        if self.is_repeated(head.sequence_number, data) {
            return;
        }
        let type_name = match head.type_name.as_ref() {
            // The SSE parser's name for an event without one.
            "" if event == "message" => "",
            "" => event,
            name => name,
        };
        match type_name {
            "response.output_text.delta" | "response.refusal.delta" => {
                if let Some(text) = parse_delta(head.delta) {
                    self.was_shown = true;
                    match out.back_mut() {
                        // Deltas that arrive together are shown together.
                        Some(Ok(ModelEvent::TextDelta(shown))) => shown.push_str(&text),
                        _ => out.push_back(Ok(ModelEvent::TextDelta(text.into_owned()))),
                    }
                }
            }
            "response.reasoning_summary_text.delta"
            | "response.reasoning_text.delta"
            | "response.reasoning_summary.delta"
            | "response.reasoning.delta" => {
                if let Some(text) = parse_delta(head.delta) {
                    match out.back_mut() {
                        Some(Ok(ModelEvent::ReasoningDelta(shown))) => shown.push_str(&text),
                        _ => out.push_back(Ok(ModelEvent::ReasoningDelta(text.into_owned()))),
                    }
                }
            }
            // A summary of several parts reads as paragraphs.
            "response.reasoning_summary_part.added" if summary_index(data) > 0 => {
                out.push_back(Ok(ModelEvent::ReasoningDelta("\n\n".to_owned())));
            }
            "response.output_item.done" => self.finish_item(parse_frame(data), out),
            "response.completed" | "response.done" | "response.incomplete" => {
                self.complete(&parse_frame(data), type_name == "response.incomplete", out);
            }
            "codex.rate_limits" => {
                let limits = rate_limits::from_event(&parse_frame(data));
                out.extend(limits.map(|limits| Ok(ModelEvent::Limits(Box::new(limits)))));
            }
            "response.failed" | "error" => {
                let frame = parse_frame(data);
                let usage = frame.get("response").and_then(|response| response.get("usage"));
                let billed = usage.and_then(parse_usage).map(ModelEvent::FailedUsage);
                out.extend(billed.map(Ok));
                self.fail(classify::classify_in_band(&frame), out);
            }
            // Some servers send a bare error object in the middle of a stream.
            "" => {
                let frame = parse_frame(data);
                if frame.get("error").is_some_and(|error| !error.is_null()) {
                    self.fail(classify::classify_in_band(&frame), out);
                }
            }
            _ => {}
        }
    }

    /// Whether the same numbered frame arrived before; gateways that reconnect repeat some.
    fn is_repeated(&mut self, number: Option<&RawValue>, data: &[u8]) -> bool {
        let Some(number) = number.and_then(|number| number.get().parse::<usize>().ok()) else {
            return false;
        };
        let mark = hash_frame(data);
        if number == self.frame_hashes.len() {
            self.frame_hashes.push(mark);
            return false;
        }
        self.frame_hashes.get(number) == Some(&mark)
    }

    /// Reduces one WebSocket message. A WebSocket loses nothing, so an unreadable message is an error.
    pub fn push_message(
        &mut self,
        data: &[u8],
        out: &mut ReducedEvents,
    ) -> Result<(), ProviderError> {
        if !self.is_over && parse_head(data).is_none() {
            return Err(invalid_response("the Provider sent a message that could not be read"));
        }
        self.push_frame("", data, out);
        Ok(())
    }

    /// Skips a frame that cannot be parsed, or fails when the Turn depends on it.
    fn handle_unreadable(&mut self, event: &str, data: &[u8], out: &mut ReducedEvents) {
        let is_needed = matches!(
            event,
            "response.output_item.done"
                | "response.completed"
                | "response.done"
                | "response.incomplete"
                | "response.failed"
                | "error"
        );
        if is_needed || data == b"[DONE]" {
            self.fail(invalid_response("the Provider's final message could not be read"), out);
        }
    }

    fn finish_item(&mut self, mut frame: Value, out: &mut ReducedEvents) {
        let item = frame.get_mut("item").map(Value::take).unwrap_or_default();
        let type_name = item.get("type").and_then(Value::as_str).unwrap_or_default();
        if let Some(name) = item_key(&item) {
            if self.finished_keys.contains(&name) {
                return;
            }
            self.finished_keys.push(name);
        }
        let item = match type_name {
            "message" => {
                let (text, is_refusal) = message_text(&item);
                if !std::mem::take(&mut self.was_shown) && !text.is_empty() {
                    out.push_back(Ok(ModelEvent::TextDelta(text.clone())));
                }
                let citations = web_search::parse_citations(&item);
                OutputItem::Message { text, is_refusal, citations }
            }
            "reasoning" => OutputItem::Reasoning { item },
            "function_call" => match parse_call(&item) {
                Some(call) => OutputItem::Call(call),
                None => {
                    return self.fail(
                        invalid_response("the model called a tool without a name or id"),
                        out,
                    );
                }
            },
            "web_search_call" => OutputItem::WebSearch(web_search::parse_web_search(&item)),
            other => OutputItem::Other { type_name: other.to_owned() },
        };
        let is_sealed =
            !matches!(&item, OutputItem::Reasoning { item } if !has_encrypted_content(item));
        if is_sealed && self.waiting_items.is_empty() {
            out.push_back(Ok(ModelEvent::Item(item)));
        } else {
            self.waiting_items.push(item);
        }
    }

    fn complete(&mut self, frame: &Value, is_incomplete: bool, out: &mut ReducedEvents) {
        let response = frame.get("response").unwrap_or(&Value::Null);
        let text =
            |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        for mut item in std::mem::take(&mut self.waiting_items) {
            if let OutputItem::Reasoning { item } = &mut item {
                fill_encrypted_content(item, response);
            }
            out.push_back(Ok(ModelEvent::Item(item)));
        }
        // A gateway may call a cut answer completed and report the cut in the status or the details.
        let reason = response.get("incomplete_details").and_then(|details| text(details, "reason"));
        let reason = reason.filter(|reason| !reason.is_empty());
        let is_cut = is_incomplete
            || reason.is_some()
            || text(response, "status").as_deref() == Some("incomplete");
        out.push_back(Ok(ModelEvent::Completed(CompletedResponse {
            response_id: text(response, "id"),
            usage: response.get("usage").and_then(parse_usage),
            incomplete: is_cut.then(|| reason.unwrap_or_else(|| "unknown".to_owned())),
            wants_more: response.get("end_turn") == Some(&Value::Bool(false)),
        })));
        self.is_over = true;
    }

    fn fail(&mut self, error: ProviderError, out: &mut ReducedEvents) {
        out.push_back(Err(error));
        self.is_over = true;
    }
}

fn invalid_response(message: &str) -> ProviderError {
    ProviderError::transient(Kind::InvalidResponse, message)
}

/// Parses the head of a frame. Checking UTF-8 once costs far less than in each string.
fn parse_head(data: &[u8]) -> Option<FrameHead<'_>> {
    serde_json::from_str(std::str::from_utf8(data).ok()?).ok()
}

/// A fast hash of a frame. Frames that differ in one place never collide; a server that forges a
/// collision to hide a frame could as well leave the frame out.
fn hash_frame(data: &[u8]) -> u64 {
    const ODD: u64 = 0x517c_c1b7_2722_0a95;
    let (words, rest) = data.as_chunks::<8>();
    let mix = |mark: u64, word: u64| (mark.rotate_left(5) ^ word).wrapping_mul(ODD);
    let mark = words.iter().fold(0, |mark, word| mix(mark, u64::from_le_bytes(*word)));
    rest.iter().fold(mark, |mark, byte| mix(mark, u64::from(*byte)))
}

fn parse_frame(data: &[u8]) -> Value {
    serde_json::from_slice(data).unwrap_or_default()
}

fn summary_index(data: &[u8]) -> u64 {
    parse_frame(data).get("summary_index").and_then(Value::as_u64).unwrap_or(0)
}

fn parse_delta(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let raw = raw?.get();
    // Most deltas have no escapes, and were validated with their frame.
    let plain = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let text = match plain.filter(|text| !text.contains('\\')) {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(serde_json::from_str(raw).ok()?),
    };
    (!text.is_empty()).then_some(text)
}

/// Joins the parts of a message. A refusal is text too, because the user must read it; the flag is
/// set only when there is nothing else.
fn message_text(item: &Value) -> (String, bool) {
    let mut text = String::new();
    let mut is_refusal = false;
    for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
        let words = |name: &str| part.get(name).and_then(Value::as_str).unwrap_or_default();
        if part.get("type").and_then(Value::as_str) == Some("refusal") {
            is_refusal |= text.is_empty();
            text.push_str(words("refusal"));
        } else {
            is_refusal &= words("text").is_empty();
            text.push_str(words("text"));
        }
    }
    (text, is_refusal)
}

fn parse_call(item: &Value) -> Option<FunctionCall> {
    let text = |name: &str| item.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    Some(FunctionCall {
        call_id: text("call_id")?.to_owned(),
        name: text("name")?.to_owned(),
        arguments: text("arguments").unwrap_or("{}").to_owned(),
    })
}

/// The key that identifies an item: its id, or the whole call where a server sends none.
fn item_key(item: &Value) -> Option<String> {
    let text = |name: &str| item.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let whole = || text("call_id").filter(|_| text("type") == Some("function_call"));
    text("id").map(str::to_owned).or_else(|| whole().map(|_| item.to_string()))
}

fn has_encrypted_content(item: &Value) -> bool {
    item.get("encrypted_content").and_then(Value::as_str).is_some_and(|content| !content.is_empty())
}

/// Copies the encrypted content from the response's output list, the only place where some gateways send it.
fn fill_encrypted_content(item: &mut Value, response: &Value) {
    let Some(id) = item.get("id").cloned().filter(|_| !has_encrypted_content(item)) else { return };
    let output = response.get("output").and_then(Value::as_array).into_iter().flatten();
    let Some(twin) = output.into_iter().find(|twin| twin.get("id") == Some(&id)) else { return };
    if has_encrypted_content(twin) {
        item["encrypted_content"] = twin["encrypted_content"].clone();
    }
}

fn parse_usage(usage: &Value) -> Option<TokenUsage> {
    usage.as_object()?;
    let count = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(0);
    let detail = |group: &str, name: &str| usage.get(group).map_or(0, |group| count(group, name));
    let (input, output) = (count(usage, "input_tokens"), count(usage, "output_tokens"));
    let mut extra = Extra::new();
    let written = detail("input_tokens_details", "cache_write_tokens");
    if written > 0 {
        extra.insert("cache_write_tokens".to_owned(), written.into());
    }
    Some(TokenUsage {
        input_tokens: input,
        cached_tokens: detail("input_tokens_details", "cached_tokens"),
        output_tokens: output,
        reasoning_tokens: detail("output_tokens_details", "reasoning_tokens"),
        total_tokens: usage
            .get("total_tokens")
            .and_then(Value::as_u64)
            .unwrap_or(input.saturating_add(output)),
        extra,
    })
}

#[cfg(test)]
mod tests;
