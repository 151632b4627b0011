//! Tests of the reducer: frames in, model events out.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn reduce(frames: &[Value]) -> Vec<Result<ModelEvent, ProviderError>> {
    let texts: Vec<String> = frames.iter().map(ToString::to_string).collect();
    let mut reducer = Reducer::default();
    let mut out = VecDeque::new();
    for text in &texts {
        reducer.push_frame("", text.as_bytes(), &mut out);
    }
    out.into()
}

fn done(item: &Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": 0, "item": item})
}

fn completed(response: &Value) -> Value {
    json!({"type": "response.completed", "response": response})
}

fn failure(events: Vec<Result<ModelEvent, ProviderError>>) -> ProviderError {
    events.into_iter().find_map(Result::err).unwrap()
}

fn items(events: Vec<Result<ModelEvent, ProviderError>>) -> Vec<OutputItem> {
    let events = events.into_iter().filter_map(Result::ok);
    events
        .filter_map(|event| if let ModelEvent::Item(item) = event { Some(item) } else { None })
        .collect()
}

fn message_item(text: &str, is_refusal: bool) -> OutputItem {
    OutputItem::Message { text: text.to_owned(), is_refusal, citations: Vec::new() }
}

#[test]
fn deltas_are_shown_and_items_count() {
    let message = json!({"type": "message", "content": [
        {"type": "output_text", "text": "Hel"}, {"type": "output_text", "text": "lo"}]});
    let events = reduce(&[
        json!({"type": "response.created", "response": {"id": "r"}}),
        json!({"type": "response.output_text.delta", "delta": "Hel"}),
        json!({"type": "response.output_text.delta", "delta": ""}),
        json!({"type": "response.output_text.delta", "delta": "lo \u{1f980}\n"}),
        json!({"type": "response.something.new", "delta": {"odd": true}}),
        done(&message),
        completed(&json!({"id": "r", "usage": {"input_tokens": 5, "output_tokens": 2}})),
        json!({"type": "response.output_text.delta", "delta": "too late"}),
    ]);
    let usage =
        TokenUsage { input_tokens: 5, output_tokens: 2, total_tokens: 7, ..TokenUsage::default() };
    let completed = CompletedResponse {
        response_id: Some("r".into()),
        usage: Some(usage),
        ..CompletedResponse::default()
    };
    assert_eq!(
        events,
        [
            Ok(ModelEvent::TextDelta("Hello \u{1f980}\n".into())),
            Ok(ModelEvent::Item(message_item("Hello", false))),
            Ok(ModelEvent::Completed(completed)),
        ]
    );
}

#[test]
fn a_message_that_was_never_streamed_is_shown_whole() {
    let message = json!({"type": "message", "content": [{"type": "output_text", "text": "all"}]});
    let events = reduce(&[done(&message)]);
    assert_eq!(events[0], Ok(ModelEvent::TextDelta("all".into())));
}

#[test]
fn a_refusal_is_text_with_a_mark() {
    let only = json!({"type": "message", "content": [{"type": "refusal", "refusal": "no"}]});
    assert_eq!(items(reduce(&[done(&only)])), [message_item("no", true)]);
    let both = json!({"type": "message", "content": [
        {"type": "refusal", "refusal": "no, "}, {"type": "output_text", "text": "but"}]});
    assert_eq!(items(reduce(&[done(&both)])), [message_item("no, but", false)]);
    let delta = reduce(&[json!({"type": "response.refusal.delta", "delta": "n"})]);
    assert_eq!(delta, [Ok(ModelEvent::TextDelta("n".into()))]);
}

#[test]
fn reasoning_is_streamed_under_all_its_names() {
    for name in ["reasoning_summary_text", "reasoning_text", "reasoning", "reasoning_summary"] {
        let events = reduce(&[json!({"type": format!("response.{name}.delta"), "delta": "hm"})]);
        assert_eq!(events, [Ok(ModelEvent::ReasoningDelta("hm".into()))], "{name}");
    }
    let part = |index: u32| json!({"type": "response.reasoning_summary_part.added", "summary_index": index});
    assert_eq!(reduce(&[part(0), part(1)]), [Ok(ModelEvent::ReasoningDelta("\n\n".into()))]);
}

#[test]
fn calls_need_a_name_and_an_id() {
    let call =
        json!({"type": "function_call", "call_id": "c", "name": "read", "arguments": "{oops"});
    let expected =
        FunctionCall { call_id: "c".into(), name: "read".into(), arguments: "{oops".into() };
    assert_eq!(items(reduce(&[done(&call)])), [OutputItem::Call(expected)]);
    for field in ["call_id", "name"] {
        let mut bad = call.clone();
        bad[field] = "".into();
        let error = failure(reduce(&[done(&bad)]));
        assert_eq!((error.kind, error.retryable), (Kind::InvalidResponse, true), "{field}");
    }
    let mut empty = call;
    empty["arguments"] = "".into();
    let items = items(reduce(&[done(&empty)]));
    assert!(matches!(&items[..], [OutputItem::Call(call)] if call.arguments == "{}"), "{items:?}");
}

#[test]
fn a_seal_that_comes_late_is_put_where_it_belongs() {
    let open = json!({"type": "reasoning", "id": "rs_1", "summary": []});
    let call = json!({"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"});
    let sealed =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"});
    let early = reduce(&[done(&open), done(&call)]);
    assert_eq!(early, [], "items wait for the seal, in order");
    let late =
        items(reduce(&[done(&open), done(&call), completed(&json!({"output": [sealed, call]}))]));
    assert_eq!(late[0], OutputItem::Reasoning { item: sealed.clone() });
    assert!(matches!(late[1], OutputItem::Call(_)));
    let never = items(reduce(&[done(&open), completed(&json!({}))]));
    assert_eq!(never, [OutputItem::Reasoning { item: open }]);
    assert_eq!(items(reduce(&[done(&sealed)])).len(), 1);
}

#[test]
fn every_terminal_event_ends_the_call() {
    let last = |frame: Value| match reduce(&[frame]).pop().unwrap() {
        Ok(ModelEvent::Completed(completed)) => completed,
        other => panic!("{other:?}"),
    };
    let cut = last(
        json!({"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}}),
    );
    assert_eq!(cut.incomplete.as_deref(), Some("max_output_tokens"));
    assert_eq!(last(json!({"type": "response.incomplete"})).incomplete.as_deref(), Some("unknown"));
    for (response, expected) in [
        (json!({"status": "completed"}), None),
        (json!({"status": "completed", "incomplete_details": null}), None),
        (json!({"status": "completed", "incomplete_details": {}}), None),
        (json!({"status": "completed", "incomplete_details": {"reason": "x"}}), Some("x")),
        (json!({"status": "incomplete"}), Some("unknown")),
    ] {
        let completed = last(json!({"type": "response.completed", "response": response}));
        assert_eq!(completed.incomplete.as_deref(), expected, "{response}");
    }
    assert_eq!(
        last(json!({"type": "response.done", "response": {"id": "r"}})).response_id.as_deref(),
        Some("r")
    );
    assert!(last(completed(&json!({"end_turn": false}))).wants_more);
    let usage = json!({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 12});
    let tokens = last(completed(&json!({"usage": usage}))).usage.unwrap();
    assert_eq!((tokens.cached_tokens, tokens.reasoning_tokens, tokens.total_tokens), (4, 1, 12));
    assert_eq!(tokens.extra["cache_write_tokens"], 2);
}

#[test]
fn errors_in_the_stream_have_their_kind() {
    for (frame, kind) in [
        (
            json!({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "Please try again in 11.054s."}}}),
            Kind::RateLimited,
        ),
        (
            json!({"type": "error", "code": "context_length_exceeded", "message": "x"}),
            Kind::ContextOverflow,
        ),
        (json!({"error": {"message": "boom"}}), Kind::ProviderError),
    ] {
        assert_eq!(failure(reduce(std::slice::from_ref(&frame))).kind, kind, "{frame}");
    }
    let waits = failure(reduce(&[json!({"type": "response.failed", "response": {"error":
        {"code": "rate_limit_exceeded", "message": "Please try again in 11.054s."}}})]));
    assert_eq!(waits.retry_after, Some(std::time::Duration::from_millis(11_054)));
}

#[test]
fn garbage_is_skipped_unless_it_hides_the_end() {
    let take = |event: &str, data: &[u8]| {
        let mut out = VecDeque::new();
        Reducer::default().push_frame(event, data, &mut out);
        Vec::from(out)
    };
    for data in [&b"{not json"[..], b"", b"\xff\xfe", b"[]", b"7", b"{\"type\":7}"] {
        assert_eq!(take("response.output_text.delta", data), [], "{data:?}");
    }
    for (event, data) in
        [("response.completed", &b"{cut"[..]), ("response.output_item.done", b"x"), ("", b"[DONE]")]
    {
        assert_eq!(failure(take(event, data)).kind, Kind::InvalidResponse);
    }
    assert_eq!(failure(take("error", b"{\"error\":\"x\"}")).kind, Kind::ProviderError);
}

#[test]
fn items_of_the_future_are_no_failure() {
    let search = json!({"type": "brand_new_call", "id": "ws_1"});
    assert_eq!(
        items(reduce(&[done(&search)])),
        [OutputItem::Other { type_name: "brand_new_call".into() }]
    );
    assert_eq!(
        items(reduce(&[done(&Value::Null)])),
        [OutputItem::Other { type_name: String::new() }]
    );
}

#[test]
fn deltas_that_come_together_are_shown_together() {
    let mut reducer = Reducer::default();
    let mut out = VecDeque::new();
    let frame = br#"{"type":"response.output_text.delta","sequence_number":7,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"word "}"#;
    for _ in 0..20_000 {
        reducer.push_frame("response.output_text.delta", frame, &mut out);
    }
    assert_eq!(out, [Ok(ModelEvent::TextDelta("word ".repeat(20_000)))]);
}

proptest! {
    #[test]
    fn no_frame_makes_it_panic(
        frames in proptest::collection::vec(("[a-z_.]{0,12}|response.output_item.done|response.completed|response.failed|error",
            "(\\{|\\}|\\[|\\]|,|:|1|null|\"type\"|\"item\"|\"response\"|\"reasoning\"|\"id\"|\"output\"|\"error\"|\"usage\"){0,14}"), 0..8),
    ) {
        let mut reducer = Reducer::default();
        let mut out = VecDeque::new();
        for (event, data) in &frames {
            reducer.push_frame(event, data.as_bytes(), &mut out);
            reducer.push_frame("", format!("{{\"type\":\"{event}\",\"item\":{data},\"response\":{data}}}").as_bytes(), &mut out);
        }
        prop_assert!(out.iter().filter(|event| event.is_err()).count() <= 1);
    }
}

#[test]
fn a_failed_answer_that_was_billed_says_so_before_its_error() {
    let usage = json!({"input_tokens": 7, "output_tokens": 2});
    let error = json!({"code": "server_error", "message": "x"});
    let frame = |usage: &Value| json!({"type": "response.failed", "response": {"error": error, "usage": usage}});
    let events = reduce(&[frame(&usage)]);
    let [Ok(ModelEvent::FailedUsage(tokens)), Err(_)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((tokens.input_tokens, tokens.total_tokens), (7, 9));
    assert_eq!(reduce(&[frame(&Value::Null)]).len(), 1);
}

#[test]
fn a_call_that_is_sent_twice_without_an_id_counts_once() {
    let call = |arguments: &str| {
        done(&json!({"type": "function_call", "call_id": "c", "name": "n", "arguments": arguments}))
    };
    let frames = [call("{}"), call("{}"), call("{\"a\":1}"), completed(&json!({"id": "r"}))];
    assert_eq!(items(reduce(&frames)).len(), 2);
}

#[test]
fn an_answer_without_end_is_an_error_and_not_the_end_of_memory() {
    let mut reducer = Reducer { bytes: MAX_ANSWER_BYTES - 10, ..Reducer::default() };
    let mut out = VecDeque::new();
    let frame = json!({"type": "response.output_text.delta", "delta": "more"}).to_string();
    reducer.push_frame("", frame.as_bytes(), &mut out);
    let error = failure(out.into());
    assert_eq!((error.kind, error.retryable), (Kind::InvalidResponse, false));
    assert!(reducer.is_over());
}
