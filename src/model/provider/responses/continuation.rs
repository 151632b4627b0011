//! Continuation of a response: when the server already has the start of the input, only new items are sent.
//!
//! No I/O happens here. The sent bytes are kept, and so is the form in which each item of the answer is
//! replayed. A request that does not begin with these bytes, item for item, is sent whole; only
//! outputs of its calls may stand between the items of an answer, because tools run in the order of
//! their calls and not after the last one. Every change of the History, such as a checkpoint or a
//! rewind, changes these bytes, so it needs no separate rule.

use serde_json::value::RawValue;

use super::body::RequestBody;
use crate::model::provider::input;
use crate::model::provider::input::InputOptions;
use crate::model::provider::{CompletedResponse, OutputItem};

/// The request and answer that the server has seen at the end of a call, and can continue from.
#[derive(Debug)]
pub struct ResponseContinuation {
    model: String,
    sent: RequestBody,
    /// The answer's items in the form in which they are replayed.
    answer: Vec<Box<RawValue>>,
    response_id: String,
}

impl ResponseContinuation {
    /// The continuation of a response; `None` when the answer is incomplete or has no id.
    pub fn from_response(
        sent: RequestBody,
        options: &InputOptions<'_>,
        items: &[OutputItem],
        end: &CompletedResponse,
    ) -> Option<Self> {
        let response_id = end.response_id.clone().filter(|id| !id.is_empty())?;
        if end.incomplete.is_some() {
            return None;
        }
        let answer = serde_json::from_slice(&input::write_answer(items, options)).ok()?;
        Some(Self { model: options.model.to_owned(), sent, answer, response_id })
    }

    /// The frame that continues this response, or the reason why it cannot be continued.
    pub fn continue_with(&self, next: &RequestBody, model: &str) -> Result<Vec<u8>, &'static str> {
        if self.model != model {
            return Err("model_changed");
        }
        if self.sent.head() != next.head() || self.sent.tail() != next.tail() {
            return Err("fields_changed");
        }
        let new = self.new_items(next.input()).ok_or("history_changed")?;
        Ok(next.to_frame(Some(&self.response_id), new.join(",").as_bytes()))
    }

    /// The items that the server has not seen.
    fn new_items<'a>(&self, input: &'a [u8]) -> Option<Vec<&'a str>> {
        let known = self.sent.input().strip_suffix(b"]")?;
        let rest = std::str::from_utf8(input.strip_prefix(known)?).ok()?;
        let mut expected = self.answer.iter().map(|item| item.get()).peekable();
        let mut new = Vec::new();
        for item in split_items(rest)? {
            if expected.next_if_eq(&item).is_some() {
                continue;
            }
            if expected.peek().is_some() && !item.starts_with(OUTPUT_START) {
                return None;
            }
            new.push(item);
        }
        expected.peek().is_none().then_some(new)
    }
}

/// The start of an output item in the input.
const OUTPUT_START: &str = "{\"type\":\"function_call_output\",";

/// The items in the rest of an array; `None` when the rest does not begin at the end of an item.
fn split_items(rest: &str) -> Option<Vec<&str>> {
    let mut list = rest.strip_suffix(']')?;
    let mut items = Vec::new();
    while !list.is_empty() {
        list = list.strip_prefix(',')?;
        let mut values = serde_json::Deserializer::from_str(list).into_iter::<&RawValue>();
        items.push(values.next()?.ok()?.get());
        list = &list[values.byte_offset()..];
    }
    Some(items)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::provider::FunctionCall;

    const OPTIONS: InputOptions<'_> =
        InputOptions { model: "m", account: None, unreadable_to: None, contents: None };

    fn parts(input: &str) -> RequestBody {
        RequestBody::from_text(
            "{\"type\":\"response.create\",\"model\":\"m\",\"input\":",
            input,
            ",\"x\":1}",
        )
    }

    fn after(items: &[OutputItem]) -> ResponseContinuation {
        let end = CompletedResponse {
            response_id: Some("r1".to_owned()),
            ..CompletedResponse::default()
        };
        ResponseContinuation::from_response(parts(r#"[{"a":1}]"#), &OPTIONS, items, &end).unwrap()
    }

    fn output_items() -> Vec<OutputItem> {
        let call = FunctionCall { call_id: "c".into(), name: "n".into(), arguments: "{ }".into() };
        vec![
            OutputItem::Message { text: "hm".into(), is_refusal: false, citations: Vec::new() },
            OutputItem::Call(call),
        ]
    }

    const ANSWER: &str = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hm"}]},{"type":"function_call","call_id":"c","name":"n","arguments":"{}"}"#;

    #[track_caller]
    fn check(input: &str, expected: Result<Value, &'static str>) {
        let frame = after(&output_items()).continue_with(&parts(input), "m");
        let frame = frame.map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap());
        let expected = expected.map(|input| {
            json!({"type": "response.create", "previous_response_id": "r1", "model": "m", "input": input, "x": 1})
        });
        assert_eq!(frame, expected, "{input}");
    }

    #[test]
    fn what_extends_the_answer_is_sent_alone() {
        check(
            &format!(r#"[{{"a":1}},{ANSWER},{{"b":2}},{{"c":3}}]"#),
            Ok(json!([{"b": 2}, {"c": 3}])),
        );
        check(&format!(r#"[{{"a":1}},{ANSWER}]"#), Ok(json!([])));
    }

    #[test]
    fn outputs_may_stand_between_the_calls_of_an_answer() {
        let output = r#"{"type":"function_call_output","call_id":"c","output":"x"}"#;
        let [message, call] =
            [&ANSWER[..ANSWER.find(",{").unwrap()], &ANSWER[ANSWER.find(",{").unwrap() + 1..]];
        let expected =
            json!([{"type": "function_call_output", "call_id": "c", "output": "x"}, {"b": 2}]);
        check(&format!(r#"[{{"a":1}},{message},{output},{call},{{"b":2}}]"#), Ok(expected));
        let other = r#"{"type":"message"}"#;
        check(
            &format!(r#"[{{"a":1}},{message},{other},{call},{{"b":2}}]"#),
            Err("history_changed"),
        );
    }

    #[test]
    fn anything_else_is_sent_whole() {
        let changed = Err("history_changed");
        check(r#"[{"a":1}]"#, changed.clone());
        check(r#"[{"a":1},{"b":2}]"#, changed.clone());
        check(&format!(r#"[{{"a":2}},{ANSWER},{{"b":2}}]"#), changed.clone());
        check(&format!(r#"[{ANSWER},{{"b":2}}]"#), changed.clone());
        check(&format!(r#"[{{"a":1}},{}]"#, ANSWER.replace("hm", "hmm")), changed);
    }

    #[test]
    fn changed_fields_or_models_are_not_continued() {
        let continuation = after(&[]);
        let input = r#"[{"a":1},{"b":2}]"#;
        assert_eq!(continuation.continue_with(&parts(input), "other"), Err("model_changed"));
        let head = "{\"type\":\"response.create\",\"model\":\"m\",\"input\":";
        let other = RequestBody::from_text(head, input, ",\"x\":2}");
        assert_eq!(continuation.continue_with(&other, "m"), Err("fields_changed"));
        assert!(continuation.continue_with(&parts(input), "m").is_ok());
    }

    #[test]
    fn a_cut_answer_cannot_be_continued() {
        let cut = CompletedResponse {
            response_id: Some("r".to_owned()),
            incomplete: Some("max_output_tokens".to_owned()),
            ..CompletedResponse::default()
        };
        assert!(ResponseContinuation::from_response(parts("[]"), &OPTIONS, &[], &cut).is_none());
        assert!(
            ResponseContinuation::from_response(
                parts("[]"),
                &OPTIONS,
                &[],
                &CompletedResponse::default()
            )
            .is_none()
        );
    }
}
