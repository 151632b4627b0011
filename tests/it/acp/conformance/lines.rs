//! Lines and envelopes: every input is answered as JSON-RPC specifies, and none ends the connection.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, ValidatingClient, case};

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("lines and envelopes", CASES);

/// Sends a request with an id spelled like this, and gives the id of the answer.
#[track_caller]
fn echoed(env: &mut CaseEnv, id: &str) -> Value {
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session/list","params":{{}}}}"#);
    let wanted: Value = serde_json::from_str(id).unwrap();
    let answer = env.client.send_line(line.as_bytes(), |message| message["id"] == wanted);
    assert!(answer["result"]["sessions"].is_array(), "{answer}");
    answer["id"].clone()
}

#[track_caller]
fn assert_refused(env: &mut CaseEnv, line: &str, code: i64) {
    assert_eq!(env.client.code_of(line.as_bytes()), code, "{line}");
    env.client.still_answers();
}

/// Checks the refusal of a line whose id cannot be read.
#[track_caller]
fn nameless(env: &mut CaseEnv, line: &[u8], code: i64) {
    let answer = env.client.send_line(line, |message| message.get("error").is_some());
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)), "{answer}");
    env.client.still_answers();
}

const LIST: &str = r#""method":"session/list","params":{}"#;

const CASES: &[ConformanceCase] = &[
    case("a number is echoed as a number", |env| {
        assert_eq!(echoed(env, "900001"), json!(900_001));
    }),
    case("a text is echoed as a text", |env| {
        assert_eq!(echoed(env, r#""900002""#), json!("900002"));
    }),
    case("zero is an id", |env| {
        assert_eq!(echoed(env, "0"), json!(0));
    }),
    case("a negative number is an id", |env| {
        assert_eq!(echoed(env, "-7"), json!(-7));
    }),
    case("a large number keeps its digits", |env| {
        assert_eq!(echoed(env, "9007199254740993"), json!(9_007_199_254_740_993_u64));
    }),
    case("a text of any letters is an id", |env| {
        assert_eq!(echoed(env, r#""a \"b\" \u2028 é 🦀""#), json!("a \"b\" \u{2028} é 🦀"));
    }),
    case("a long text is an id", |env| {
        let id = json!("x".repeat(1000));
        assert_eq!(echoed(env, &id.to_string()), id);
    }),
    case("blank lines are nothing", |env| {
        env.client.write_raw(b"\n\n   \n\t\n\r\n");
        env.client.still_answers();
    }),
    case("a carriage return before the end is nothing", |env| {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":900010,{LIST}}}\r");
        let answer = env.client.send_line(line.as_bytes(), |message| message["id"] == 900_010);
        assert!(answer.get("result").is_some(), "{answer}");
    }),
    case("blanks around a message are nothing", |env| {
        let line = format!("  {{ \"jsonrpc\" : \"2.0\", \"id\" : 900011, {LIST} }}\t ");
        let answer = env.client.send_line(line.as_bytes(), |message| message["id"] == 900_011);
        assert!(answer.get("result").is_some(), "{answer}");
    }),
    case("what is no JSON is a parse error without an id", |env| {
        for line in ["{oops", "hello", "{\"jsonrpc\":\"2.0\",", "{\"a\":}", "nul"] {
            nameless(env, line.as_bytes(), -32_700);
        }
    }),
    case("bytes that are no text are a parse error", |env| {
        nameless(env, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}", -32_700);
    }),
    case("a list is refused as one, whatever is in it", |env| {
        for line in ["[]", "[1,2]", r#"[{"jsonrpc":"2.0","id":1,"method":"session/list"}]"#] {
            nameless(env, line.as_bytes(), -32_600);
        }
    }),
    case("a value that is no object is no message", |env| {
        for line in ["1", "\"text\"", "true", "null"] {
            nameless(env, line.as_bytes(), -32_600);
        }
    }),
    case("an object without anything is no message", |env| {
        nameless(env, b"{}", -32_600);
    }),
    case("a message without its version is refused by its id", |env| {
        let line = format!("{{\"id\":900020,{LIST}}}");
        let answer = env.client.send_line(line.as_bytes(), |message| message["id"] == 900_020);
        assert_eq!(answer["error"]["code"], -32_600);
    }),
    case("another version of JSON-RPC is refused", |env| {
        for version in ["\"1.0\"", "2.0", "2", "null"] {
            assert_refused(
                env,
                &format!("{{\"jsonrpc\":{version},\"id\":900021,{LIST}}}"),
                -32_600,
            );
        }
    }),
    case("an id of another kind is refused without one", |env| {
        for id in ["{}", "[1]", "true"] {
            let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{LIST}}}");
            nameless(env, line.as_bytes(), -32_600);
        }
    }),
    case("a method that is no text is refused by its id", |env| {
        let answer =
            env.client.send_line(br#"{"jsonrpc":"2.0","id":900022,"method":7}"#, |message| {
                message["id"] == 900_022
            });
        assert_eq!(answer["error"]["code"], -32_600);
    }),
    case("parameters that are no object are refused", |env| {
        for params in ["[]", "\"x\"", "3", "true"] {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":900023,"method":"session/list","params":{params}}}"#
            );
            assert_refused(env, &line, -32_602);
        }
    }),
    case("parameters may be absent", |env| {
        let answer = env
            .client
            .send_line(br#"{"jsonrpc":"2.0","id":900024,"method":"session/list"}"#, |message| {
                message["id"] == 900_024
            });
        assert!(answer["result"]["sessions"].is_array(), "{answer}");
    }),
    case("parameters may be null", |env| {
        assert!(env.client.call("session/list", Value::Null).unwrap()["sessions"].is_array());
    }),
    case("unknown fields of an envelope are skipped", |env| {
        let line = format!(r#"{{"jsonrpc":"2.0","id":900025,"odd":[1],"_meta":{{}},{LIST}}}"#);
        let answer = env.client.send_line(line.as_bytes(), |message| message["id"] == 900_025);
        assert!(answer.get("result").is_some(), "{answer}");
    }),
    case("an unknown method is not found", |env| {
        for method in ["nope", "session/nope", "fs/read_text_file", "session/update", "$/nope", ""]
        {
            let error = env.client.send_invalid(method, &json!({})).unwrap_err();
            assert_eq!(error["code"], -32_601, "{method}: {error}");
        }
    }),
    case("a method of an extension is not found", |env| {
        let error = env.client.call("_vendor/thing", json!({"a": 1})).unwrap_err();
        assert_eq!(error["code"], -32_601);
    }),
    case("unstable methods that are not advertised are not found", |env| {
        for method in ["session/status", "session/archive", "session/set_title", "auth/status"] {
            let error = env.client.send_invalid(method, &json!({"sessionId": "x"})).unwrap_err();
            assert_eq!(error["code"], -32_601, "{method}: {error}");
        }
    }),
    case("what is said without a question is never answered", |env| {
        env.client.notify("_vendor/notice", json!({}));
        let odd: [&[u8]; 4] = [
            br#"{"jsonrpc":"2.0","method":"nope"}"#,
            br#"{"jsonrpc":"2.0","method":"session/new","params":{}}"#,
            br#"{"jsonrpc":"2.0","method":"session/cancel","params":[]}"#,
            br#"{"jsonrpc":"2.0","method":"session/cancel"}"#,
        ];
        env.client.drain();
        for line in odd {
            env.client.write_raw(&[line, b"\n"].concat());
        }
        env.client.still_answers();
        let messages = env.client.drain();
        assert!(messages.iter().all(|message| message.get("error").is_none()), "{messages:?}");
    }),
    case("a notification with a blank id is one", |env| {
        env.client.drain();
        let line =
            br#"{"jsonrpc":"2.0","id":"","method":"session/cancel","params":{"sessionId":"x"}}"#;
        env.client.write_raw(&[line.as_slice(), b"\n"].concat());
        env.client.still_answers();
        let messages = env.client.drain();
        assert!(messages.iter().all(|message| message["id"] != ""), "{messages:?}");
    }),
    case("an answer to no question is nothing", |env| {
        env.client.drain();
        for line in [
            r#"{"jsonrpc":"2.0","id":4711,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"no"}}"#,
        ] {
            env.client.write_raw(format!("{line}\n").as_bytes());
        }
        env.client.still_answers();
        let messages = env.client.drain();
        assert!(messages.iter().all(|message| message.get("error").is_none()), "{messages:?}");
    }),
    case("two messages in one write are two", |env| {
        let line = |id: u32| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{LIST}}}\n");
        env.client.write_raw(format!("{}{}", line(900_030), line(900_031)).as_bytes());
        for id in [900_030, 900_031] {
            env.client.wait_for_answer(id).unwrap();
        }
    }),
    case("a message in many writes is one", |env| {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":900032,{LIST}}}\n");
        for byte in line.as_bytes() {
            env.client.write_raw(&[*byte]);
        }
        env.client.wait_for_answer(900_032).unwrap();
    }),
    case("a line of a megabyte is a line", |env| {
        let meta = json!({"_meta": {"long": "x".repeat(1 << 20)}});
        env.client.call("session/list", meta).unwrap();
    }),
    case("nesting without end is refused and survived", |env| {
        let deep = "[".repeat(100_000);
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":900033,"method":"session/list","params":{{"a":{deep}"#
        );
        assert_eq!(env.client.code_of(line.as_bytes()), -32_700);
        let closed = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":900034,"method":"session/list","params":{{"a":{closed}}}}}"#
        );
        env.client.send_line(line.as_bytes(), |_| true);
        env.client.still_answers();
    }),
    case("letters that break lines elsewhere are letters", |env| {
        let turn = env.run_in_new_session("a\u{2028}b\u{85}c » say x\u{2028}y\u{85}z");
        assert_eq!(turn.text(), "x\u{2028}y\u{85}z");
    }),
    case("a byte order mark before the first line is nothing", |env| {
        let mut other = ValidatingClient::start(&env.binary_env, &[]);
        other.write_raw(b"\xef\xbb\xbf");
        other.initialize(json!({}));
        other.still_answers();
    }),
    case("a notification sent as a request is answered once", |env| {
        let answer = env.client.send_invalid("session/cancel", &json!({"sessionId": "x"}));
        assert!(answer.is_ok() || answer.unwrap_err()["code"].is_i64());
        env.client.still_answers();
    }),
];
