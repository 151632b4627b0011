//! Prompt content: what the model sees of the blocks that a client sends.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, RecordedTurn, case, wait_for_turn_end,
};

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("prompt content", CASES).with_args(&["--auto"]);

/// A PNG image of one red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Runs a prompt of content blocks to its end.
#[track_caller]
fn send_prompt(env: &mut CaseEnv, prompt: &Value) -> RecordedTurn {
    let session = env.session();
    let id =
        env.client.send_request("session/prompt", json!({"sessionId": session, "prompt": prompt}));
    wait_for_turn_end(&mut env.client, &session, id, |asked| panic!("{asked}"))
}

/// The text of content blocks as the model received it.
#[track_caller]
fn text_seen_by_model(env: &mut CaseEnv, mut blocks: Vec<Value>) -> String {
    blocks.push(text(" » repeat"));
    let turn = send_prompt(env, &json!(blocks));
    assert_eq!(turn.stop(), "end_turn");
    turn.text()
}

#[track_caller]
fn assert_refused(env: &mut CaseEnv, prompt: &Value) {
    let session = env.session();
    let params = json!({"sessionId": session, "prompt": prompt});
    let error = env.client.send_invalid("session/prompt", &params).unwrap_err();
    assert_eq!(error["code"], -32_602, "{prompt}: {error}");
}

/// The model request that contains a text.
fn request(env: &CaseEnv, mark: &str) -> String {
    let requests = env.binary_env.server.requests();
    let found = requests.iter().rev().find(|request| request.body_text.contains(mark));
    found.expect("the model was asked").body_text.clone()
}

const CASES: &[ConformanceCase] = &[
    case("text reaches the model", |env| {
        assert!(text_seen_by_model(env, vec![text("hello there")]).contains("hello there"));
    }),
    case("text of every alphabet reaches the model", |env| {
        let words = "žluťoučký 漢字 עברית 🦀 \u{200d} \"quoted\" \\ back";
        assert!(text_seen_by_model(env, vec![text(words)]).contains(words));
    }),
    case("blocks stay in order", |env| {
        let link = json!({"type": "resource_link", "uri": "https://example.org/b", "name": "beta"});
        let shown = text_seen_by_model(env, vec![text("alpha"), link, text("gamma")]);
        let place = |word: &str| shown.find(word).unwrap_or_else(|| panic!("{word} in {shown}"));
        assert!(place("alpha") < place("beta") && place("beta") < place("gamma"), "{shown}");
    }),
    case("a link to a file is a path", |env| {
        let path = env.write("src/linked.rs", "fn main() {}\n");
        let uri = format!("file://{}", path.display());
        let link = json!({"type": "resource_link", "uri": uri, "name": "linked.rs"});
        assert!(text_seen_by_model(env, vec![text("look at "), link]).contains("src/linked.rs"));
    }),
    case("a link with all its fields is a link", |env| {
        let link = json!({
            "type": "resource_link", "uri": "https://example.org/page?x=1#y", "name": "page",
            "title": "A Page", "description": "of words", "mimeType": "text/html", "size": 12,
            "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"},
        });
        let shown = text_seen_by_model(env, vec![link]);
        assert!(shown.contains("https://example.org/page?x=1#y"), "{shown}");
    }),
    case("an embedded text is shown to the model", |env| {
        let resource = json!({"uri": "file:///w/notes.md", "mimeType": "text/markdown", "text": "the embedded words"});
        let turn = send_prompt(
            env,
            &json!([{"type": "resource", "resource": resource}, text("read » say ok")]),
        );
        assert_eq!(turn.stop(), "end_turn");
        assert!(request(env, "notes.md").contains("the embedded words"));
    }),
    case("an embedded blob is not lost", |env| {
        let resource = json!({"uri": "file:///w/dot.png", "mimeType": "image/png", "blob": PNG});
        let turn = send_prompt(
            env,
            &json!([{"type": "resource", "resource": resource}, text("look » see")]),
        );
        assert_eq!((turn.stop(), turn.text().as_str()), ("end_turn", "1 images"));
    }),
    case("an image is shown to the model", |env| {
        let image = json!({"type": "image", "mimeType": "image/png", "data": PNG});
        let turn = send_prompt(env, &json!([image, text("look » see")]));
        assert_eq!(turn.text(), "1 images");
    }),
    case("an image is beside the Log and not in it", |env| {
        let image = json!({"type": "image", "mimeType": "image/png", "data": PNG, "uri": "file:///w/red.png"});
        let session = env.session();
        let prompt = json!([image, text("look » see")]);
        let params = json!({"sessionId": session, "prompt": prompt});
        env.client.call("session/prompt", params).unwrap();
        let log = json!(env.log(&session)).to_string();
        assert!(log.contains("red.png") && !log.contains(&PNG[..40]), "{log}");
    }),
    case("an image that cannot be read is not dropped silently", |env| {
        let image = json!({"type": "image", "mimeType": "image/png", "data": "!!!"});
        let shown = text_seen_by_model(env, vec![text("look"), image]);
        assert!(shown.contains("image"), "{shown}");
    }),
    case("sound is not dropped silently", |env| {
        let sound = json!({"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="});
        let shown = text_seen_by_model(env, vec![text("listen"), sound]);
        assert!(shown.contains("audio"), "{shown}");
    }),
    case("a block of a later version is not dropped silently", |env| {
        let session = env.session();
        let odd = json!({"type": "hologram", "data": "x"});
        let prompt = json!({"sessionId": session, "prompt": [odd, text("look » repeat")]});
        match env.client.send_invalid("session/prompt", &prompt) {
            Ok(_) => assert!(request(env, "hologram").contains("look")),
            Err(error) => assert_eq!(error["code"], -32_602),
        }
    }),
    case("a prompt of nothing is refused", |env| {
        assert_refused(env, &json!([]));
        assert_refused(env, &json!([text("")]));
        assert_refused(env, &json!([text("  \n ")]));
    }),
    case("a prompt that is no list is refused", |env| {
        for prompt in [json!("text"), json!({}), Value::Null, json!(3)] {
            assert_refused(env, &prompt);
        }
    }),
    case("a refused prompt leaves the Session as it was", |env| {
        let session = env.session();
        let before = env.log(&session).len();
        let params = json!({"sessionId": session, "prompt": []});
        env.client.send_invalid("session/prompt", &params).unwrap_err();
        assert_eq!(env.log(&session).len(), before);
        assert_eq!(env.run_prompt(&session, "hello").stop(), "end_turn");
    }),
    case("annotations and meta are taken", |env| {
        let session = env.session();
        let block = json!({"type": "text", "text": "hi", "annotations": {"priority": 1.0}, "_meta": {"a": 1}});
        let params = json!({"sessionId": session, "prompt": [block], "_meta": {"b": {"c": 2}}});
        assert_eq!(env.client.call("session/prompt", params).unwrap()["stopReason"], "end_turn");
    }),
    case("what the client knows of the moment reaches the model", |env| {
        let session = env.session();
        let meta = json!({"presenter_context": "the cursor is in main.rs line 7"});
        let params = json!({"sessionId": session, "prompt": [text("context-case")], "_meta": meta});
        env.client.call("session/prompt", params).unwrap();
        assert!(request(env, "context-case").contains("the cursor is in main.rs line 7"));
    }),
    case("a prompt of a megabyte is a prompt", |env| {
        let long = format!("{} » say taken", "long ".repeat(200_000));
        assert_eq!(env.run_in_new_session(&long).text(), "taken");
    }),
    case("text that only looks like an order is for the model", |env| {
        for words in ["/no-such-command x", "// a comment", "/", "/usr/bin/env"] {
            assert!(text_seen_by_model(env, vec![text(words)]).contains(words), "{words}");
        }
    }),
    case("mentions in a row stay apart", |env| {
        let link = |name: &str| json!({"type": "resource_link", "name": name, "uri": format!("https://example.org/{name}")});
        let shown =
            text_seen_by_model(env, vec![text("compare"), link("a"), link("b"), text("please")]);
        assert!(
            shown.contains("compare [a](https://example.org/a) [b](https://example.org/b) please"),
            "{shown}"
        );
    }),
    case("an image that is cut or none at all is not sent on", |env| {
        let cut = BASE64.encode(&BASE64.decode(PNG).unwrap()[..60]);
        for (data, why) in [(cut, "broken"), (BASE64.encode("no picture"), "is not one")] {
            let image = json!({"type": "image", "mimeType": "image/png", "data": data});
            let turn = send_prompt(env, &json!([image, text("look » see")]));
            assert_eq!((turn.stop(), turn.text().as_str()), ("end_turn", "0 images"));
            assert!(request(env, why).contains("look"), "{why}");
        }
    }),
    case("half a letter of a text that was cut is no reason to refuse it", |env| {
        let session = env.session();
        let id = "half-a-letter";
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":"{id}","method":"session/prompt","params":{{"sessionId":"{session}","prompt":[{{"type":"text","text":"cut \\\\ud83d \ud83d\ude00 \ud83d» say taken"}}]}}}}"#
        );
        let answer = env.client.send_line(line.as_bytes(), |message| message["id"] == id);
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        let message = env.log(&session).into_iter().find(|fact| fact["type"] == "user_message");
        assert_eq!(message.unwrap()["data"]["text"], "cut \\\\ud83d \u{1f600} \u{fffd}» say taken");
    }),
];
