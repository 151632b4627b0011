//! Tests of parsing lines, and of requests and their cancellation.

use std::io::Cursor;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::reader::{RpcLine, read_line};
use super::*;

#[track_caller]
fn parse_invalid(line: &str) -> (String, i64) {
    match RpcMessage::parse_line(line.as_bytes()) {
        Some(RpcMessage::Invalid { id, fault }) => (id.key(), fault.code),
        other => panic!("{line} was parsed as {other:?}"),
    }
}

#[test]
fn what_is_no_message_is_refused_with_the_right_code() {
    for (line, code) in [
        ("{", -32_700),
        ("nonsense", -32_700),
        ("{\"jsonrpc\":\"2.0\",}", -32_700),
        ("[1,", -32_700),
        ("[]", -32_600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#, -32_600),
        ("42", -32_600),
        ("null", -32_600),
        (r#""text""#, -32_600),
        ("{}", -32_600),
        (r#"{"jsonrpc":"2.0"}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":true,"method":"x"}"#, -32_600),
    ] {
        assert_eq!(parse_invalid(line), ("null".to_owned(), code), "{line}");
    }
    // An error has the id of its request where that can be parsed.
    assert_eq!(parse_invalid(r#"{"jsonrpc":"1.0","id":7,"method":"x"}"#), ("7".into(), -32_600));
    assert_eq!(parse_invalid(r#"{"id":"a","method":"x"}"#), ("\"a\"".into(), -32_600));
    assert_eq!(parse_invalid(r#"{"jsonrpc":"2.0","id":7,"method":3}"#), ("7".into(), -32_600));
    assert_eq!(parse_invalid(r#"{"jsonrpc":"2.0","id":7}"#), ("7".into(), -32_600));
    assert_eq!(
        RpcMessage::parse_line(b"\xff\xfe{}").map(|m| matches!(m, RpcMessage::Invalid { .. })),
        Some(true)
    );
}

#[test]
fn blank_lines_are_nothing() {
    for line in ["", "  ", "\r", "\t \r"] {
        assert!(RpcMessage::parse_line(line.as_bytes()).is_none(), "{line:?}");
    }
}

#[test]
fn an_id_comes_back_as_it_was() {
    for id in ["1", "-3", "1.50", "123456789012345678901234567890", r#""a\u00e9""#, r#""""#, "null"]
    {
        let line = format!(r#" {{"jsonrpc":"2.0","id":{id},"method":"m","more":1}} "#);
        let Some(RpcMessage::Request { id: read, method, params }) =
            RpcMessage::parse_line(line.as_bytes())
        else {
            panic!("{line}")
        };
        assert_eq!(serde_json::to_string(&read).unwrap(), id);
        assert_eq!((method.as_str(), params), ("m", Ok(Value::Null)));
        assert_eq!(read.is_blank(), id == "\"\"");
    }
}

#[test]
fn a_lone_surrogate_becomes_the_replacement_character() {
    let text = |escaped: &str| {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"t":"{escaped}"}}}}"#);
        match RpcMessage::parse_line(line.as_bytes()) {
            Some(RpcMessage::Notification { params, .. }) => {
                params.map(|params| params["t"].as_str().unwrap().to_owned())
            }
            other => panic!("{other:?}"),
        }
    };
    for (escaped, expected) in [
        (r"\ud83d\ude00", "\u{1f600}"),
        (r"a\ud83d", "a\u{fffd}"),
        (r"\ude00b", "\u{fffd}b"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}\u{1f600}"),
        (r"\ud83d\n\\", "\u{fffd}\n\\"),
        (r"\\ud83d \udc00", "\\ud83d \u{fffd}"),
        (r"\ud83d\u0041", "\u{fffd}A"),
    ] {
        assert_eq!(text(escaped).as_deref(), Ok(expected), "{escaped}");
    }
}

#[test]
fn what_is_odd_is_not_repeated_at_length() {
    let fault = RpcError::invalid_params("\u{fc}".repeat(100_000));
    assert_eq!(fault.message.chars().count(), 2001);
}

#[test]
fn parameters_are_an_object_or_nothing() {
    let params = |text: &str| {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{text}}}"#);
        match RpcMessage::parse_line(line.as_bytes()) {
            Some(RpcMessage::Notification { params, .. }) => params.map_err(|fault| fault.code),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(params("{\"a\":1}"), Ok(json!({"a": 1})));
    assert_eq!(params("null"), Ok(Value::Null));
    assert_eq!(params("[1]"), Err(-32_602));
    assert_eq!(params("3"), Err(-32_602));
    let deep = format!("{}{}", "[".repeat(400), "]".repeat(400));
    assert_eq!(params(&format!("{{\"a\":{deep}}}")), Err(-32_602));
}

#[test]
fn responses_are_parsed() {
    let outcome = |text: &str| {
        let line = format!(r#"{{"jsonrpc":"2.0","id":4,{text}}}"#);
        match RpcMessage::parse_line(line.as_bytes()) {
            Some(RpcMessage::Response { id, outcome }) => {
                assert_eq!(id.number(), Some(4));
                outcome.map_err(|fault| fault.code)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(outcome(r#""result":{"a":1}"#), Ok(json!({"a": 1})));
    assert_eq!(outcome(r#""result":null"#), Ok(Value::Null));
    assert_eq!(outcome(r#""error":{"code":-32800,"message":"x"}"#), Err(-32_800));
    assert_eq!(outcome(r#""error":null,"result":1"#), Ok(json!(1)));
    assert_eq!(outcome(r#""error":"odd""#), Err(-32_603));
}

#[test]
fn lines_are_cut_at_their_ends_and_a_huge_one_costs_nothing_but_itself() {
    let mut input = Cursor::new(b"one\r\n\ntoo long for this\ntwo".to_vec());
    let mut next = || read_line(&mut input, 8);
    assert_eq!(next(), Some(RpcLine::Whole(b"one\r".to_vec())));
    assert_eq!(next(), Some(RpcLine::Whole(Vec::new())));
    assert_eq!(next(), Some(RpcLine::TooLong));
    assert_eq!(next(), Some(RpcLine::Whole(b"two".to_vec())));
    assert_eq!(next(), None);
}

/// Output stream that collects the written bytes.
#[derive(Clone, Default)]
struct TestOutput(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for TestOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TestOutput {
    fn lines(&self) -> Vec<Value> {
        let bytes = self.0.lock().unwrap().clone();
        bytes.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

#[tokio::test]
async fn a_request_gets_its_response_or_is_cancelled() {
    let sink = TestOutput::default();
    let writer = spawn_writer(sink.clone()).unwrap();
    let peer = Peer::new(&writer);
    let (first, second) =
        (peer.send_request("a", &json!({})).await, peer.send_request("b", &json!({})).await);
    peer.handle_response(&RpcId::from(1), Ok(json!("yes")));
    peer.handle_response(&RpcId::from(9), Ok(json!("no request")));
    assert_eq!(second.await, Ok(json!("yes")));
    drop(first);
    peer.send_response(&RpcId::from(7), Err::<(), _>(RpcError::method_not_found("x"))).await;
    writer.finish(Duration::from_secs(10)).await;
    let lines = sink.lines();
    assert_eq!(lines[0]["method"], "a");
    assert_eq!(lines[1]["id"], 1);
    assert_eq!(
        (&lines[2]["method"], &lines[2]["params"]["requestId"]),
        (&json!("$/cancel_request"), &json!(0))
    );
    assert_eq!((&lines[3]["id"], &lines[3]["error"]["code"]), (&json!(7), &json!(-32_601)));
}

#[tokio::test]
async fn a_disconnected_reader_does_not_block_senders() {
    struct Broken;
    impl std::io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    }
    let writer = spawn_writer(Broken).unwrap();
    let gone = writer.reader_gone();
    let peer = Peer::new(&writer);
    let all_sent = tokio::time::timeout(Duration::from_secs(10), async {
        for _ in 0..5000 {
            peer.send_notification("x", &json!({})).await;
        }
        gone.cancelled().await;
        writer.finish(Duration::from_mins(1)).await;
    });
    all_sent.await.expect("neither sending nor finishing waits for a reader that is gone");
}

proptest! {
    #[test]
    fn no_line_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        RpcMessage::parse_line(&bytes);
    }

    #[test]
    fn every_request_can_be_answered(id in "0|[1-9][0-9]{0,24}|\"[a-z]{0,5}\"", params in "\\{\\}|null|\\[\\]|7") {
        let line = format!(r#"{{"params":{params},"id":{id},"method":"m","jsonrpc":"2.0"}}"#);
        let Some(RpcMessage::Request { id: read, .. }) = RpcMessage::parse_line(line.as_bytes()) else {
            panic!("{line}")
        };
        let known: Value = serde_json::from_str(&id).unwrap();
        prop_assert_eq!(read.key(), RpcId::key_for_value(&known));
    }
}
