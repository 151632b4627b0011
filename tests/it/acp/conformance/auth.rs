//! Signing in: the methods that are offered, and requests without a sign-in.

use std::process::Command;

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, JudgedClient, case, turn};
use crate::support::acp_client::AcpClient;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("authentication", CASES);

/// A client whose agent has neither a key nor a subscription.
fn signed_out_client(scene: &CaseEnv) -> JudgedClient {
    let mut command: Command = scene.env.command(&["acp"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    let mut probe = JudgedClient::new(AcpClient::spawn(&mut command));
    probe.initialize(json!({}));
    probe
}

fn new_session(scene: &CaseEnv) -> Value {
    json!({"cwd": scene.env.workspace(), "mcpServers": []})
}

const CASES: &[ConformanceCase] = &[
    case("a way that was not offered is refused", |scene| {
        for method in ["carrier pigeon", "", "chatgpt-terminal"] {
            let error = scene.probe.call("authenticate", json!({"methodId": method})).unwrap_err();
            assert_eq!(error["code"], -32_602, "{method}: {error}");
        }
    }),
    case("a way that is not named is refused", |scene| {
        for params in [json!({}), json!({"methodId": 3}), json!({"methodId": null}), Value::Null] {
            let error = scene.probe.send_invalid("authenticate", &params).unwrap_err();
            assert_eq!(error["code"], -32_602, "{params}: {error}");
        }
    }),
    case("the key of the environment signs in", |scene| {
        let way = json!({"methodId": "openai-api-key"});
        assert!(scene.probe.call("authenticate", way).unwrap().is_object());
        scene.session();
    }),
    case("a key that is not there does not", |scene| {
        let mut stranger = signed_out_client(scene);
        let way = json!({"methodId": "openai-api-key"});
        let error = stranger.call("authenticate", way).unwrap_err();
        assert_eq!(error["code"], -32_000, "{error}");
        assert!(error["message"].as_str().unwrap().contains("OPENAI_API_KEY"), "{error}");
    }),
    case("whoever is not signed in is told so at the door", |scene| {
        let mut stranger = signed_out_client(scene);
        let error = stranger.call("session/new", new_session(scene)).unwrap_err();
        assert_eq!(error["code"], -32_000, "{error}");
        stranger.still_answers();
    }),
    case("a key that the Provider refuses is a matter of signing in", |scene| {
        let turn = scene.once("go » status 401 no such key");
        assert_eq!(turn.code(), -32_000, "{turn:?}");
        assert!(!turn.text().is_empty(), "it is shown too");
    }),
    case("a Provider that is merely cross is not", |scene| {
        let turn = scene.once("go » status 400 that makes no sense");
        assert_eq!(turn.code(), -32_603, "{turn:?}");
    }),
    case("signing out is answered with an object, twice", |scene| {
        assert!(scene.probe.call("logout", json!({})).unwrap().is_object());
        assert!(scene.probe.call("logout", Value::Null).unwrap().is_object());
    }),
    case("a Session that was open before goes on after signing out of nothing", |scene| {
        let session = scene.session();
        scene.probe.call("logout", json!({})).unwrap();
        assert_eq!(turn(&mut scene.probe, &session, "hello").stop(), "end_turn");
    }),
    case("the terminal way is a flag of the same command", |scene| {
        let help = scene.env.run(&["acp", "--help"]);
        assert!(help.expect_code(0).stdout.contains("--login"));
    }),
];
