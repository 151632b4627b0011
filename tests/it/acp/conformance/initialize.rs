//! `initialize`: versions, capabilities, and requests that may not come before it.

use serde_json::{Value, json};

use super::case::{ConformanceCase, ConformanceTopic, ValidatingClient, case};

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("initialize", CASES);

#[track_caller]
fn greeted(client: &mut ValidatingClient, params: &Value) -> Value {
    client.call("initialize", params.clone()).unwrap()
}

#[track_caller]
fn version(client: &mut ValidatingClient, version: &Value) -> Value {
    let hello = client.send_invalid("initialize", &json!({"protocolVersion": version})).unwrap();
    hello["protocolVersion"].clone()
}

/// Every request except `initialize`, with valid parameters.
fn requests() -> Vec<(&'static str, Value)> {
    let session = json!({"sessionId": "20260101T000000-abcdef"});
    let with = |key: &str, value: Value| {
        let mut params = session.clone();
        params[key] = value;
        params
    };
    let mut open = with("cwd", json!("/"));
    open["mcpServers"] = json!([]);
    let mut option = with("configId", json!("mode"));
    option["value"] = json!("ask");
    vec![
        ("authenticate", json!({"methodId": "openai-api-key"})),
        ("logout", json!({})),
        ("session/new", json!({"cwd": "/", "mcpServers": []})),
        ("session/load", open.clone()),
        ("session/resume", open),
        ("session/list", json!({})),
        ("session/close", session.clone()),
        ("session/delete", session.clone()),
        ("session/prompt", with("prompt", json!([{"type": "text", "text": "x"}]))),
        ("session/set_mode", with("modeId", json!("ask"))),
        ("session/set_config_option", option),
    ]
}

const CASES: &[ConformanceCase] = &[
    case("version 1 is answered with 1", |env| {
        let hello = greeted(&mut env.client, &json!({"protocolVersion": 1}));
        assert_eq!(hello["protocolVersion"], 1);
    }),
    case("a version that nobody speaks is answered with the own one", |env| {
        for asked in [json!(0), json!(2), json!(3), json!(65_535)] {
            let hello = greeted(&mut env.client, &json!({"protocolVersion": asked}));
            assert_eq!(hello["protocolVersion"], 1, "{asked}");
        }
    }),
    case("a version that is no number is answered with the own one", |env| {
        for asked in [json!("2025-01-01"), Value::Null, json!(-1), json!(1.5), json!([])] {
            assert_eq!(version(&mut env.client, &asked), 1, "{asked}");
        }
    }),
    case("no parameters at all are answered too", |env| {
        let hello = env.client.send_invalid("initialize", &Value::Null).unwrap();
        assert_eq!(hello["protocolVersion"], 1);
    }),
    case("the shape of version 2 is answered in the shape of 1", |env| {
        let draft = json!({
            "protocolVersion": 2,
            "info": {"name": "draft", "version": "0"},
            "capabilities": {"session": {}},
        });
        let hello = env.client.send_invalid("initialize", &draft).unwrap();
        assert_eq!(hello["protocolVersion"], 1);
        assert!(hello["agentCapabilities"].is_object() && hello.get("capabilities").is_none());
    }),
    case("the agent says who it is", |env| {
        let hello = greeted(&mut env.client, &json!({"protocolVersion": 1}));
        assert_eq!(hello["agentInfo"]["name"], "pixir");
        assert_eq!(hello["agentInfo"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(hello["agentInfo"]["title"].is_string());
    }),
    case("a client that says who it is, is welcome", |env| {
        let info = json!({"name": "editor", "title": "An Editor", "version": "1.2.3"});
        let params = json!({"protocolVersion": 1, "clientInfo": info, "_meta": {"x": {"y": 1}}});
        greeted(&mut env.client, &params);
    }),
    case("capabilities may be absent, null or odd", |env| {
        greeted(&mut env.client, &json!({"protocolVersion": 1}));
        for odd in [Value::Null, json!([]), json!("all"), json!({"fs": 3}), json!({"session": []})]
        {
            let params = json!({"protocolVersion": 1, "clientCapabilities": odd});
            env.client.send_invalid("initialize", &params).unwrap();
        }
    }),
    case("unknown capabilities are skipped", |env| {
        let odd = json!({"fs": {"readTextFile": false, "teleport": true}, "dance": {}});
        let params = json!({"protocolVersion": 1, "clientCapabilities": odd});
        env.client.send_invalid("initialize", &params).unwrap();
    }),
    case("a second greeting is answered like the first", |env| {
        let first = greeted(&mut env.client, &json!({"protocolVersion": 1}));
        let second = greeted(&mut env.client, &json!({"protocolVersion": 1}));
        assert_eq!(first, second);
    }),
    case("nothing is answered before the greeting", |env| {
        let mut other = ValidatingClient::start(&env.binary_env, &[]);
        for (method, params) in requests() {
            let error = other.call(method, params).unwrap_err();
            assert_eq!(error["code"], -32_600, "{method}: {error}");
        }
        other.initialize(json!({}));
        other.still_answers();
    }),
    case("a request right behind the greeting is served", |env| {
        let mut other = ValidatingClient::start(&env.binary_env, &[]);
        let hello = other.send_request("initialize", json!({"protocolVersion": 1}));
        let cwd = env.binary_env.workspace();
        let made = other.send_request("session/new", json!({"cwd": cwd, "mcpServers": []}));
        other.wait_for_answer(hello).unwrap();
        assert!(other.wait_for_answer(made).unwrap()["sessionId"].is_string());
    }),
    case("ways to sign in have names of their own", |env| {
        let hello = greeted(&mut env.client, &json!({"protocolVersion": 1}));
        let methods = hello["authMethods"].as_array().unwrap();
        let mut ids: Vec<&str> = methods.iter().map(|m| m["id"].as_str().unwrap()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert!(!ids.is_empty() && ids.len() == count, "{methods:?}");
        assert!(methods.iter().all(|m| !m["name"].as_str().unwrap().is_empty()));
    }),
    case("a terminal to sign in is offered only where there is one", |env| {
        let terminals = |hello: &Value| {
            let methods = hello["authMethods"].as_array().unwrap().iter();
            methods.filter(|method| method["type"] == "terminal").count()
        };
        for capabilities in [json!({}), json!({"auth": {}}), json!({"auth": {"terminal": false}})] {
            assert_eq!(
                terminals(&env.client.initialize(capabilities.clone())),
                0,
                "{capabilities}"
            );
        }
        let hello = env.client.initialize(json!({"auth": {"terminal": true}}));
        assert_eq!(terminals(&hello), 1);
        // The client adds the arguments to those in its settings: `pixir acp --login`.
        let methods = hello["authMethods"].as_array().unwrap();
        let terminal = methods.iter().find(|method| method["type"] == "terminal").unwrap();
        assert_eq!(terminal["args"], json!(["--login"]));
    }),
    case("the terminal of before is offered only to who knows it", |env| {
        let meta = |hello: &Value| {
            let methods = hello["authMethods"].as_array().unwrap().iter();
            methods.filter(|method| method["_meta"]["terminal-auth"].is_object()).count()
        };
        assert_eq!(meta(&env.client.initialize(json!({}))), 0);
        assert_eq!(meta(&env.client.initialize(json!({"_meta": {"terminal-auth": true}}))), 1);
    }),
    case("markers of sessions are objects", |env| {
        let hello = env.client.initialize(json!({}));
        let markers = hello["agentCapabilities"]["sessionCapabilities"].as_object().unwrap();
        assert!(!markers.is_empty() && markers.values().all(Value::is_object), "{markers:?}");
    }),
    case("nothing unstable is advertised but forking", |env| {
        let hello = env.client.initialize(json!({}));
        let all = &hello["agentCapabilities"];
        for path in [
            "/sessionCapabilities/archive",
            "/sessionCapabilities/status",
            "/sessionCapabilities/title",
            "/sessionCapabilities/systemPrompt",
            "/auth/status",
            "/providers",
            "/mcpCapabilities/acp",
        ] {
            assert_eq!(all.pointer(path), None, "{path}");
        }
    }),
    case("sound is not taken, embedded context is", |env| {
        let hello = env.client.initialize(json!({}));
        let takes = &hello["agentCapabilities"]["promptCapabilities"];
        assert_ne!(takes["audio"], true);
        assert_eq!((&takes["embeddedContext"], &takes["image"]), (&json!(true), &json!(true)));
    }),
];
