//! Signing in: the methods that are offered, and requests without a sign-in.

use std::process::Command;

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, ValidatingClient, case, run_prompt};
use crate::support::acp_client::AcpClient;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("authentication", CASES);

/// A client whose agent has neither a key nor a subscription.
fn signed_out_client(env: &CaseEnv) -> ValidatingClient {
    let mut command: Command = env.binary_env.command(&["acp"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    let mut client = ValidatingClient::new(AcpClient::spawn(&mut command));
    client.initialize(json!({}));
    client
}

fn new_session(env: &CaseEnv) -> Value {
    json!({"cwd": env.binary_env.workspace(), "mcpServers": []})
}

const CASES: &[ConformanceCase] = &[
    case("a way that was not offered is refused", |env| {
        for method in ["carrier pigeon", "", "chatgpt-terminal"] {
            let error = env.client.call("authenticate", json!({"methodId": method})).unwrap_err();
            assert_eq!(error["code"], -32_602, "{method}: {error}");
        }
    }),
    case("a way that is not named is refused", |env| {
        for params in [json!({}), json!({"methodId": 3}), json!({"methodId": null}), Value::Null] {
            let error = env.client.send_invalid("authenticate", &params).unwrap_err();
            assert_eq!(error["code"], -32_602, "{params}: {error}");
        }
    }),
    case("the key of the environment signs in", |env| {
        let way = json!({"methodId": "openai-api-key"});
        assert!(env.client.call("authenticate", way).unwrap().is_object());
        env.session();
    }),
    case("a key that is not there does not", |env| {
        let mut stranger = signed_out_client(env);
        let way = json!({"methodId": "openai-api-key"});
        let error = stranger.call("authenticate", way).unwrap_err();
        assert_eq!(error["code"], -32_000, "{error}");
        assert!(error["message"].as_str().unwrap().contains("OPENAI_API_KEY"), "{error}");
    }),
    case("whoever is not signed in is told so at the door", |env| {
        let mut stranger = signed_out_client(env);
        let error = stranger.call("session/new", new_session(env)).unwrap_err();
        assert_eq!(error["code"], -32_000, "{error}");
        stranger.still_answers();
    }),
    case("a key that the Provider refuses is a matter of signing in", |env| {
        let turn = env.run_in_new_session("go » status 401 no such key");
        assert_eq!(turn.code(), -32_000, "{turn:?}");
        assert!(!turn.text().is_empty(), "it is shown too");
    }),
    case("a Provider that is merely cross is not", |env| {
        let turn = env.run_in_new_session("go » status 400 that makes no sense");
        assert_eq!(turn.code(), -32_603, "{turn:?}");
    }),
    case("signing out is answered with an object, twice", |env| {
        assert!(env.client.call("logout", json!({})).unwrap().is_object());
        assert!(env.client.call("logout", Value::Null).unwrap().is_object());
    }),
    case("a Session that was open before goes on after signing out of nothing", |env| {
        let session = env.session();
        env.client.call("logout", json!({})).unwrap();
        assert_eq!(run_prompt(&mut env.client, &session, "hello").stop(), "end_turn");
    }),
    case("the terminal way is a flag of the same command", |env| {
        let help = env.binary_env.run(&["acp", "--help"]);
        assert!(help.expect_code(0).stdout.contains("--login"));
    }),
];
