//! Lines and envelopes: every input is answered as JSON-RPC specifies, and none ends the connection.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, JudgedClient, case};

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("lines and envelopes", CASES);

/// Sends a request with an id spelled like this, and gives the id of the answer.
#[track_caller]
fn echoed(scene: &mut CaseEnv, id: &str) -> Value {
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session/list","params":{{}}}}"#);
    let wanted: Value = serde_json::from_str(id).unwrap();
    let told = scene.probe.send_line(line.as_bytes(), |message| message["id"] == wanted);
    assert!(told["result"]["sessions"].is_array(), "{told}");
    told["id"].clone()
}

#[track_caller]
fn refused(scene: &mut CaseEnv, line: &str, code: i64) {
    assert_eq!(scene.probe.code_of(line.as_bytes()), code, "{line}");
    scene.probe.still_answers();
}

/// Checks the refusal of a line whose id cannot be read.
#[track_caller]
fn nameless(scene: &mut CaseEnv, line: &[u8], code: i64) {
    let told = scene.probe.send_line(line, |message| message.get("error").is_some());
    assert_eq!((&told["id"], &told["error"]["code"]), (&Value::Null, &json!(code)), "{told}");
    scene.probe.still_answers();
}

const LIST: &str = r#""method":"session/list","params":{}"#;

const CASES: &[ConformanceCase] = &[
    case("a number is echoed as a number", |scene| {
        assert_eq!(echoed(scene, "900001"), json!(900_001));
    }),
    case("a text is echoed as a text", |scene| {
        assert_eq!(echoed(scene, r#""900002""#), json!("900002"));
    }),
    case("zero is an id", |scene| {
        assert_eq!(echoed(scene, "0"), json!(0));
    }),
    case("a negative number is an id", |scene| {
        assert_eq!(echoed(scene, "-7"), json!(-7));
    }),
    case("a large number keeps its digits", |scene| {
        assert_eq!(echoed(scene, "9007199254740993"), json!(9_007_199_254_740_993_u64));
    }),
    case("a text of any letters is an id", |scene| {
        assert_eq!(echoed(scene, r#""a \"b\" \u2028 é 🦀""#), json!("a \"b\" \u{2028} é 🦀"));
    }),
    case("a long text is an id", |scene| {
        let id = json!("x".repeat(1000));
        assert_eq!(echoed(scene, &id.to_string()), id);
    }),
    case("blank lines are nothing", |scene| {
        scene.probe.write_raw(b"\n\n   \n\t\n\r\n");
        scene.probe.still_answers();
    }),
    case("a carriage return before the end is nothing", |scene| {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":900010,{LIST}}}\r");
        let told = scene.probe.send_line(line.as_bytes(), |message| message["id"] == 900_010);
        assert!(told.get("result").is_some(), "{told}");
    }),
    case("blanks around a message are nothing", |scene| {
        let line = format!("  {{ \"jsonrpc\" : \"2.0\", \"id\" : 900011, {LIST} }}\t ");
        let told = scene.probe.send_line(line.as_bytes(), |message| message["id"] == 900_011);
        assert!(told.get("result").is_some(), "{told}");
    }),
    case("what is no JSON is a parse error without an id", |scene| {
        for line in ["{oops", "hello", "{\"jsonrpc\":\"2.0\",", "{\"a\":}", "nul"] {
            nameless(scene, line.as_bytes(), -32_700);
        }
    }),
    case("bytes that are no text are a parse error", |scene| {
        nameless(scene, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}", -32_700);
    }),
    case("a list is refused as one, whatever is in it", |scene| {
        for line in ["[]", "[1,2]", r#"[{"jsonrpc":"2.0","id":1,"method":"session/list"}]"#] {
            nameless(scene, line.as_bytes(), -32_600);
        }
    }),
    case("a value that is no object is no message", |scene| {
        for line in ["1", "\"text\"", "true", "null"] {
            nameless(scene, line.as_bytes(), -32_600);
        }
    }),
    case("an object without anything is no message", |scene| {
        nameless(scene, b"{}", -32_600);
    }),
    case("a message without its version is refused by its id", |scene| {
        let line = format!("{{\"id\":900020,{LIST}}}");
        let told = scene.probe.send_line(line.as_bytes(), |message| message["id"] == 900_020);
        assert_eq!(told["error"]["code"], -32_600);
    }),
    case("another version of JSON-RPC is refused", |scene| {
        for version in ["\"1.0\"", "2.0", "2", "null"] {
            refused(scene, &format!("{{\"jsonrpc\":{version},\"id\":900021,{LIST}}}"), -32_600);
        }
    }),
    case("an id of another kind is refused without one", |scene| {
        for id in ["{}", "[1]", "true"] {
            let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{LIST}}}");
            nameless(scene, line.as_bytes(), -32_600);
        }
    }),
    case("a method that is no text is refused by its id", |scene| {
        let told =
            scene.probe.send_line(br#"{"jsonrpc":"2.0","id":900022,"method":7}"#, |message| {
                message["id"] == 900_022
            });
        assert_eq!(told["error"]["code"], -32_600);
    }),
    case("parameters that are no object are refused", |scene| {
        for params in ["[]", "\"x\"", "3", "true"] {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":900023,"method":"session/list","params":{params}}}"#
            );
            refused(scene, &line, -32_602);
        }
    }),
    case("parameters may be absent", |scene| {
        let told = scene
            .probe
            .send_line(br#"{"jsonrpc":"2.0","id":900024,"method":"session/list"}"#, |message| {
                message["id"] == 900_024
            });
        assert!(told["result"]["sessions"].is_array(), "{told}");
    }),
    case("parameters may be null", |scene| {
        assert!(scene.probe.call("session/list", Value::Null).unwrap()["sessions"].is_array());
    }),
    case("unknown fields of an envelope are skipped", |scene| {
        let line = format!(r#"{{"jsonrpc":"2.0","id":900025,"odd":[1],"_meta":{{}},{LIST}}}"#);
        let told = scene.probe.send_line(line.as_bytes(), |message| message["id"] == 900_025);
        assert!(told.get("result").is_some(), "{told}");
    }),
    case("an unknown method is not found", |scene| {
        for method in ["nope", "session/nope", "fs/read_text_file", "session/update", "$/nope", ""]
        {
            let error = scene.probe.send_invalid(method, &json!({})).unwrap_err();
            assert_eq!(error["code"], -32_601, "{method}: {error}");
        }
    }),
    case("a method of an extension is not found", |scene| {
        let error = scene.probe.call("_vendor/thing", json!({"a": 1})).unwrap_err();
        assert_eq!(error["code"], -32_601);
    }),
    case("unstable methods that are not advertised are not found", |scene| {
        for method in ["session/status", "session/archive", "session/set_title", "auth/status"] {
            let error = scene.probe.send_invalid(method, &json!({"sessionId": "x"})).unwrap_err();
            assert_eq!(error["code"], -32_601, "{method}: {error}");
        }
    }),
    case("what is said without a question is never answered", |scene| {
        scene.probe.notify("_vendor/notice", json!({}));
        let odd: [&[u8]; 4] = [
            br#"{"jsonrpc":"2.0","method":"nope"}"#,
            br#"{"jsonrpc":"2.0","method":"session/new","params":{}}"#,
            br#"{"jsonrpc":"2.0","method":"session/cancel","params":[]}"#,
            br#"{"jsonrpc":"2.0","method":"session/cancel"}"#,
        ];
        scene.probe.drain();
        for line in odd {
            scene.probe.write_raw(&[line, b"\n"].concat());
        }
        scene.probe.still_answers();
        let heard = scene.probe.drain();
        assert!(heard.iter().all(|message| message.get("error").is_none()), "{heard:?}");
    }),
    case("a notification with a blank id is one", |scene| {
        scene.probe.drain();
        let line =
            br#"{"jsonrpc":"2.0","id":"","method":"session/cancel","params":{"sessionId":"x"}}"#;
        scene.probe.write_raw(&[line.as_slice(), b"\n"].concat());
        scene.probe.still_answers();
        let heard = scene.probe.drain();
        assert!(heard.iter().all(|message| message["id"] != ""), "{heard:?}");
    }),
    case("an answer to no question is nothing", |scene| {
        scene.probe.drain();
        for line in [
            r#"{"jsonrpc":"2.0","id":4711,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"no"}}"#,
        ] {
            scene.probe.write_raw(format!("{line}\n").as_bytes());
        }
        scene.probe.still_answers();
        let heard = scene.probe.drain();
        assert!(heard.iter().all(|message| message.get("error").is_none()), "{heard:?}");
    }),
    case("two messages in one write are two", |scene| {
        let line = |id: u32| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{LIST}}}\n");
        scene.probe.write_raw(format!("{}{}", line(900_030), line(900_031)).as_bytes());
        for id in [900_030, 900_031] {
            scene.probe.wait_for_answer(id).unwrap();
        }
    }),
    case("a message in many writes is one", |scene| {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":900032,{LIST}}}\n");
        for byte in line.as_bytes() {
            scene.probe.write_raw(&[*byte]);
        }
        scene.probe.wait_for_answer(900_032).unwrap();
    }),
    case("a line of a megabyte is a line", |scene| {
        let meta = json!({"_meta": {"long": "x".repeat(1 << 20)}});
        scene.probe.call("session/list", meta).unwrap();
    }),
    case("nesting without end is refused and survived", |scene| {
        let deep = "[".repeat(100_000);
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":900033,"method":"session/list","params":{{"a":{deep}"#
        );
        assert_eq!(scene.probe.code_of(line.as_bytes()), -32_700);
        let closed = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":900034,"method":"session/list","params":{{"a":{closed}}}}}"#
        );
        scene.probe.send_line(line.as_bytes(), |_| true);
        scene.probe.still_answers();
    }),
    case("letters that break lines elsewhere are letters", |scene| {
        let turn = scene.once("a\u{2028}b\u{85}c » say x\u{2028}y\u{85}z");
        assert_eq!(turn.text(), "x\u{2028}y\u{85}z");
    }),
    case("a byte order mark before the first line is nothing", |scene| {
        let mut other = JudgedClient::start(&scene.env, &[]);
        other.write_raw(b"\xef\xbb\xbf");
        other.initialize(json!({}));
        other.still_answers();
    }),
    case("a notification sent as a request is answered once", |scene| {
        let told = scene.probe.send_invalid("session/cancel", &json!({"sessionId": "x"}));
        assert!(told.is_ok() || told.unwrap_err()["code"].is_i64());
        scene.probe.still_answers();
    }),
];
