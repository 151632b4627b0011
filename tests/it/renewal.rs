//! Token renewal: races, refusals, and secrets that are never shown.

use std::process::{Child, Command};
use std::time::Duration;

use pixir::scripted::{IssuerEndpoint, IssuerFault, ModelScript, Reply, ScriptedServer};
use serde_json::json;

use super::support::sign_in_env::{RunOutput, SignInEnv};

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_reads_the_store_tells_the_model_nothing() {
    let mut env = SignInEnv::new().await;
    let script = ModelScript::answering(|request| match request.outputs().as_slice() {
        [] => Reply::calls("bash", json!({"command": "cat \"$HOME/.pixir/auth.json\""})),
        _ => Reply::says("done"),
    });
    env.server = ScriptedServer::start_with_issuer(script, &env.issuer).await.unwrap();
    // The token expires soon, so this run renews it and prints the new one.
    env.sign_in(100);
    // With a sandbox, the store could not be opened.
    let _ = env.run(&["--sandbox", "off", "--events", "show me"]).assert_exit_code(0);
    let requests = env.server.requests();
    let output = requests.last().unwrap().outputs()[0].to_owned();
    assert!(output.contains("[redacted:"), "{output}");
    assert_eq!(env.issuer.counts().refreshes, 1);
    for secret in env.issuer.issued_secrets() {
        assert!(!requests.iter().any(|request| request.body_text.contains(&secret)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_processes_renew_once() {
    let env = SignInEnv::new().await;
    env.sign_in(60);
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Slow(Duration::from_millis(200)));
    // The old token is refused, so every process needs the renewed one.
    env.issuer.invalidate_access_tokens();
    let children: Vec<Child> =
        (0..32).map(|_| env.command(&["hello", "there"]).spawn().unwrap()).collect();
    let mut runs = Vec::new();
    for child in children {
        runs.push(RunOutput::from_output(child.wait_with_output().unwrap()).assert_exit_code(0));
    }
    assert!(runs.iter().all(|run| run.out == "hello from the plan\n"));
    let counts = env.issuer.counts();
    assert_eq!((counts.refreshes, counts.reuses), (1, 0));
    assert!(!env.stored_tokens()["refresh_token"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_renewed_and_the_turn_goes_on() {
    let env = SignInEnv::new().await;
    env.sign_in(3600);
    env.issuer.invalidate_access_tokens();
    let run = env.run(&["hello", "there"]).assert_exit_code(0);
    assert_eq!(run.out, "hello from the plan\n");
    assert_eq!((env.issuer.counts().refreshes, env.server.requests().len()), (1, 2));
    // A backend that refuses every token is reported, and not asked again and again.
    env.issuer.switch_account("somebody-else");
    let run = env.run(&["hello", "again"]).assert_exit_code(4);
    assert!(run.err.contains("pixir login"), "{}", run.err);
    assert!(env.server.requests().len() <= 5);
    assert!(env.auth_file().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_renewed_at_the_handshake_of_a_socket_too() {
    let env = SignInEnv::new().await;
    env.sign_in(3600);
    env.issuer.invalidate_access_tokens();
    let child =
        env.command(&["hello", "there"]).env("PIXIR_TRANSPORT", "websocket").spawn().unwrap();
    let run = RunOutput::from_output(child.wait_with_output().unwrap()).assert_exit_code(0);
    assert_eq!(run.out, "hello from the plan\n");
    let requests = env.server.requests();
    assert_eq!((env.issuer.counts().refreshes, env.server.upgrades(), requests.len()), (1, 2, 1));
    assert_eq!(requests[0].transport, "websocket");
    assert!(requests[0].header("chatgpt-account-id").is_some());
    assert_eq!(requests[0].header("originator"), Some("pixir"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_refuses_every_token_is_asked_no_more_than_needed() {
    let mut env = SignInEnv::new().await;
    let script = ModelScript::answering(|_| Reply::status(401, r#"{"detail":"Unauthorized"}"#));
    env.server = ScriptedServer::start_with_issuer(script, &env.issuer).await.unwrap();
    env.sign_in(3600);
    let run = env.run(&["--json", "hello", "there"]).assert_exit_code(4);
    assert_eq!(run.envelope()["error"]["kind"], "auth_refused");
    // No other process stored tokens, so there is one renewal and one retry.
    assert_eq!((env.server.requests().len(), env.issuer.counts().refreshes), (2, 1));
    assert_eq!(env.stored_tokens()["kind"], "subscription");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_does_not_lose_the_token_that_is_being_renewed() {
    let env = SignInEnv::new().await;
    env.sign_in(-10);
    let before = env.stored_tokens();
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Slow(Duration::from_millis(400)));
    let child = env.command(&["hello", "there"]).spawn().unwrap();
    while env.issuer.counts().requests == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_ne!(env.stored_tokens()["refresh_token"], before["refresh_token"]);
    assert_eq!(env.run(&["hello", "again"]).assert_exit_code(0).out, "hello from the plan\n");
    assert_eq!((env.issuer.counts().refreshes, env.issuer.counts().reuses), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_fails_in_passing_is_tried_again() {
    let env = SignInEnv::new().await;
    env.sign_in(-10);
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Answer(503, "busy".into()));
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Answer(200, "<html>garbage".into()));
    let run = env.run(&["hello", "there"]).assert_exit_code(0);
    assert_eq!(run.out, "hello from the plan\n");
    // A failed renewal is not reported while the old token is valid.
    env.sign_in(60);
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Answer(503, "busy".into()));
    let run = env.run(&["hello", "again"]).assert_exit_code(0);
    assert!(!run.err.contains("busy"), "{}", run.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_that_has_ended_says_what_to_do_and_is_kept() {
    let env = SignInEnv::new().await;
    env.sign_in(-10);
    let before = env.stored_tokens();
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::code(401, "refresh_token_expired"));
    let run = env.run(&["--json", "hello", "there"]).assert_exit_code(4);
    assert_eq!(run.envelope()["error"]["details"]["code"], "refresh_token_expired");
    assert!(run.envelope()["error"]["details"].to_string().contains("pixir login"));
    assert_eq!(env.issuer.counts().requests, 1, "a final refusal is not retried");
    assert_eq!(env.stored_tokens(), before);
    assert_eq!(env.server.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_repeated_with_another_token_counts_against_the_budget() {
    let env = SignInEnv::new().await;
    env.sign_in(3600);
    env.issuer.invalidate_access_tokens();
    let run = env.run(&["--json", "--max-requests", "1", "hello", "there"]).assert_exit_code(6);
    assert_eq!(run.envelope()["error"]["details"]["budget"], "max_requests");
    assert_eq!(env.server.requests().len(), 1, "the second request was never sent");
    env.issuer.invalidate_access_tokens();
    let run = env.run(&["--json", "--max-requests", "2", "hello", "there"]).assert_exit_code(0);
    assert_eq!(run.envelope()["output"], "hello from the plan");
    assert_eq!(env.server.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_refused_on_an_open_socket_is_renewed_and_the_socket_opened_again() {
    let mut env = SignInEnv::new().await;
    let script = ModelScript::answering(|request| match request.outputs().len() {
        0 => Reply::calls("bash", json!({"command": "true"})),
        _ if request.is_continued() => Reply::status(401, r#"{"detail":"Unauthorized"}"#),
        _ => Reply::says("hello from the plan"),
    });
    env.server = ScriptedServer::start_with_issuer(script, &env.issuer).await.unwrap();
    env.sign_in(3600);
    let child = env.command(&["--events", "hello"]).env("PIXIR_TRANSPORT", "websocket").spawn();
    let run =
        RunOutput::from_output(child.unwrap().wait_with_output().unwrap()).assert_exit_code(0);
    assert!(run.out.contains(r#""reset_reason":"token_refused""#), "{}", run.out);
    assert_eq!((env.issuer.counts().refreshes, env.server.upgrades()), (1, 2));
    assert_eq!(env.server.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn asking_for_models_can_be_interrupted_without_losing_the_token() {
    let env = SignInEnv::new().await;
    env.sign_in(-10);
    let before = env.stored_tokens();
    env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Slow(Duration::from_millis(400)));
    let child = env.command(&["models", "refresh"]).spawn().unwrap();
    while env.issuer.counts().requests == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let _ = RunOutput::from_output(child.wait_with_output().unwrap()).assert_exit_code(130);
    assert_ne!(env.stored_tokens()["refresh_token"], before["refresh_token"]);
    assert_eq!((env.issuer.counts().refreshes, env.issuer.counts().reuses), (1, 0));
}
