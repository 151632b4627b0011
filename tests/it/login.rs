//! Signing in and out with the real binary, a temporary home, and a scripted issuer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use pixir::scripted::{IssuerEndpoint, IssuerFault};
use serde_json::{Value, json};

use super::support::sign_in_env::{RunOutput, SignInEnv, run_command};

/// A running sign-in, whose output was read up to the line with the URL.
struct RunningLogin {
    child: Child,
    err: BufReader<ChildStderr>,
    read: String,
    page: String,
}

impl RunningLogin {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut read = String::new();
        let page = loop {
            let mut line = String::new();
            assert_ne!(err.read_line(&mut line).unwrap(), 0, "no page was named: {read}");
            read.push_str(&line);
            if let Some(page) = line.trim().strip_prefix("http") {
                break format!("http{page}");
            }
        };
        Self { child, err, read, page }
    }

    /// Acts as the browser: opens the page and gives the redirect URL to Pixir's listener.
    fn redirect(&self) -> String {
        let answer = get(&self.page, None);
        let line = answer.lines().find_map(|line| line.strip_prefix("location: "));
        line.unwrap_or_else(|| panic!("no redirect: {answer}")).to_owned()
    }

    fn paste(&mut self, text: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    fn finish(mut self) -> RunOutput {
        // Stdin stays open, as for a user who pastes nothing.
        let stdin = self.child.stdin.take();
        self.err.read_to_string(&mut self.read).unwrap();
        let output = self.child.wait_with_output().unwrap();
        drop(stdin);
        let out = String::from_utf8(output.stdout).unwrap();
        RunOutput::new(output.status.code(), out, self.read)
    }
}

/// Flags, variables, exit code, and the credential in use.
type Row<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], i32, &'a str);

/// Sends a GET request with an arbitrary Host header.
pub fn get(url: &str, host: Option<&str>) -> String {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let host = host.unwrap_or(address);
    write!(socket, "GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        let count = socket.read(&mut chunk).unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&chunk[..count]);
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_s_terminal_signs_in_by_the_agent_s_own_command() {
    let env = SignInEnv::new().await;
    let login = RunningLogin::start(&mut env.command(&["acp", "--login"]));
    get(&login.redirect(), None);
    let signed_in = login.finish().assert_exit_code(0);
    assert!(signed_in.out.starts_with("Signed in with ChatGPT"), "{}", signed_in.out);
    assert_eq!(env.stored_tokens()["kind"], "subscription");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_signs_in_and_a_turn_runs_on_the_plan() {
    let env = SignInEnv::new().await;
    let login = RunningLogin::start(&mut env.command(&["login"]));
    let back = login.redirect();
    assert!(back.starts_with("http://127.0.0.1:"), "{back}");
    // A forged state, a foreign host and another path are refused, and do not end the sign-in.
    let forged = back.replace("state=", "state=x");
    assert!(get(&forged, None).starts_with("HTTP/1.1 400"));
    assert!(get(&back, Some("evil.example")).starts_with("HTTP/1.1 421"));
    assert!(get(&back.replace("/auth/callback", "/"), None).starts_with("HTTP/1.1 404"));
    let answer = get(&back, None);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"));
    let signed_in = login.finish().assert_exit_code(0);
    assert_eq!(signed_in.out, "Signed in with ChatGPT as story@example.org (plus).\n");
    assert_eq!(env.stored_tokens()["kind"], "subscription");
    let mode = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode(&env.auth_file()), mode(env.auth_file().parent().unwrap())), (0o600, 0o700));

    let status = env.run(&["login", "status"]).assert_exit_code(0);
    assert!(status.out.contains("story@example.org (plus)"), "{}", status.out);
    let json = env.run(&["login", "status", "--json"]).assert_exit_code(0);
    assert_eq!(json.envelope()["output"]["credential"], "chatgpt");
    assert_eq!(json.envelope()["output"]["account_id"], "account-of-the-story");

    let _ = env.run(&["--events", "say hello"]).assert_exit_code(0);
    let requests = env.server.requests();
    assert_eq!(requests[0].path, "/backend-api/codex/responses");
    assert_eq!(requests[0].header("chatgpt-account-id"), Some("account-of-the-story"));
    assert_eq!(requests[0].header("originator"), Some("pixir"));
    assert!(requests[0].header("session-id").is_some_and(|id| !id.is_empty() && id.len() <= 64));
    assert_eq!(requests[0].header("session-id"), requests[0].header("x-client-request-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_can_be_pasted() {
    let env = SignInEnv::new().await;
    let mut login =
        RunningLogin::start(env.command(&["login", "--json"]).env("SSH_TTY", "/dev/pts/1"));
    let back = login.redirect();
    login.paste("hello");
    login.paste("nonsense=1");
    login.paste(&back.replace("state=", "state=x"));
    login.paste(&back);
    let run = login.finish().assert_exit_code(0);
    assert!(run.err.contains("another sign-in"), "{}", run.err);
    assert!(run.err.contains("that was refused (this code is unknown"), "{}", run.err);
    assert_eq!(run.envelope()["output"]["plan"], "plus");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_in_the_browser_is_reported_and_nothing_is_stored() {
    let env = SignInEnv::new().await;
    let login = RunningLogin::start(&mut env.command(&["login", "--json"]));
    let back = login.redirect();
    let (code, _) = back.split_once("code=").unwrap();
    let state = back.split_once("state=").unwrap().1;
    get(&format!("{code}error=access_denied&error_description=%3Cno%3E&state={state}"), None);
    let run = login.finish().assert_exit_code(4);
    assert_eq!(run.envelope()["error"]["kind"], "auth_refused");
    assert_eq!(run.envelope()["error"]["details"]["code"], "access_denied");
    assert!(!env.auth_file().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_port_a_code_is_shown() {
    let env = SignInEnv::new().await;
    let [one, two] = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let port = |taken: &std::net::TcpListener| taken.local_addr().unwrap().port();
    let both = format!("{},{}", port(&one), port(&two));
    let run =
        run_command(env.command(&["login"]).env("PIXIR_LOGIN_PORTS", &both)).assert_exit_code(0);
    assert!(run.err.contains("no port") && run.err.contains("/codex/device"), "{}", run.err);
    // If the second port is free, the browser is used.
    let second = format!("{},0", port(&one));
    let login = RunningLogin::start(env.command(&["login"]).env("PIXIR_LOGIN_PORTS", second));
    let back = login.redirect();
    assert!(!back.starts_with(&format!("http://127.0.0.1:{}/", port(&one))), "{back}");
    get(&back, None);
    login.finish().assert_exit_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_browser_a_code_is_shown() {
    let env = SignInEnv::new().await;
    let run =
        run_command(env.command(&["login"]).env_remove("PIXIR_NO_BROWSER")).assert_exit_code(0);
    assert!(run.err.contains("no browser here"), "{}", run.err);
    assert_eq!(env.issuer.counts().polls, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_is_typed_elsewhere() {
    let env = SignInEnv::new().await;
    for fault in [
        IssuerFault::Answer(403, String::new()),
        IssuerFault::code(400, "deviceauth_authorization_pending"),
        IssuerFault::code(400, "slow_down"),
    ] {
        env.issuer.fail(IssuerEndpoint::Poll, fault);
    }
    let run = env.run(&["login", "--device-code", "--quiet"]).assert_exit_code(0);
    assert!(run.err.contains("/codex/device") && run.err.contains("15 minutes"), "{}", run.err);
    assert_eq!((env.issuer.counts().polls, env.issuer.counts().exchanges), (4, 1));
    assert_eq!(env.stored_tokens()["account_id"], "account-of-the-story");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_that_is_refused_or_too_late_leaves_things_as_they_were() {
    let env = SignInEnv::new().await;
    env.sign_in(3600);
    let before = env.stored_tokens();
    for code in ["expired_token", "access_denied"] {
        env.issuer.fail(IssuerEndpoint::Poll, IssuerFault::code(400, code));
        let run = env.run(&["login", "--device-code", "--json"]).assert_exit_code(4);
        assert_eq!(run.envelope()["error"]["details"]["code"], code);
    }
    for _ in 0..200 {
        env.issuer.fail(IssuerEndpoint::Poll, IssuerFault::Answer(404, String::new()));
    }
    let mut hasty = env.command(&["login", "--device-code", "--json"]);
    let run = run_command(hasty.env("PIXIR_LOGIN_DEADLINE_MS", "50")).assert_exit_code(124);
    assert_eq!(run.envelope()["error"]["kind"], "timeout");
    let mut hasty = env.command(&["login", "--json"]);
    let _ = run_command(hasty.env("PIXIR_LOGIN_DEADLINE_MS", "50")).assert_exit_code(124);
    assert_eq!(env.stored_tokens(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_can_be_cancelled() {
    let env = SignInEnv::new().await;
    let login = RunningLogin::start(&mut env.command(&["login", "--json"]));
    let pid = login.child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let run = login.finish().assert_exit_code(130);
    assert_eq!(run.envelope()["status"], "interrupted");
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_out_clears_the_store_whatever_the_issuer_says() {
    let env = SignInEnv::new().await;
    env.sign_in(3600);
    let run = env.run(&["logout"]).assert_exit_code(0);
    assert_eq!(run.out, "Signed out.\n");
    assert!(!env.auth_file().exists());
    assert_eq!(env.issuer.counts().revokes, 1);
    assert_eq!(env.run(&["logout"]).assert_exit_code(0).out, "You were not signed in.\n");
    env.sign_in(3600);
    env.issuer.fail(IssuerEndpoint::Revoke, IssuerFault::Answer(500, "no".into()));
    let run = env.run(&["logout", "--json"]).assert_exit_code(0);
    assert_eq!(run.envelope()["output"], json!({"was_signed_in": true, "revoked": false}));
    std::fs::write(env.auth_file(), "damaged").unwrap();
    let _ = env.run(&["logout"]).assert_exit_code(0);
    assert!(!env.auth_file().exists());
    let status = env.run(&["login", "status", "--json"]).assert_exit_code(4);
    assert_eq!(status.envelope()["output"]["credential"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_store_is_named_and_put_aside_by_the_next_sign_in() {
    let env = SignInEnv::new().await;
    env.sign_in(3600);
    std::fs::write(env.auth_file(), "{\"access_token\":").unwrap();
    let run = env.run(&["hello", "there"]).assert_exit_code(4);
    assert!(run.err.contains("auth.json") && run.err.contains("pixir login"), "{}", run.err);
    let run = env.run(&["login", "--device-code"]).assert_exit_code(0);
    assert!(run.err.contains("auth.json.damaged"), "{}", run.err);
    assert_eq!(env.stored_tokens()["kind"], "subscription");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_pays_is_shown_with_its_reason() {
    let env = SignInEnv::new().await;
    env.sign_in(3600);
    let table: &[Row<'_>] = &[
        (&[], &[], 0, "chatgpt"),
        (&[], &[("OPENAI_API_KEY", "sk-planted-key")], 0, "chatgpt"),
        (&["--credential", "api-key"], &[("OPENAI_API_KEY", "sk-planted-key")], 0, "api-key"),
        (
            &[],
            &[("OPENAI_API_KEY", "sk-planted-key"), ("PIXIR_CREDENTIAL", "api-key")],
            0,
            "api-key",
        ),
        (
            &["--credential", "chatgpt"],
            &[("OPENAI_API_KEY", "sk-planted-key"), ("PIXIR_CREDENTIAL", "api-key")],
            0,
            "chatgpt",
        ),
        (&[], &[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")], 0, "api-key"),
        (&["--credential", "chatgpt"], &[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")], 2, ""),
        (&["--credential", "api-key"], &[], 4, ""),
        (&[], &[("PIXIR_AUTH_ISSUER", "https://evil.example")], 2, ""),
        (&[], &[("PIXIR_CHATGPT_BASE_URL", "http://evil.example")], 2, ""),
    ];
    for (flags, variables, code, kind) in table {
        let mut command = env.command(&["login", "status", "--json"]);
        command.args(*flags).envs(variables.iter().copied());
        let run = run_command(&mut command).assert_exit_code(*code);
        let output = &run.envelope()["output"];
        assert_eq!(output["credential"].as_str().unwrap_or_default(), *kind, "{flags:?}");
        assert!(output["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
        assert!(!run.out.contains("sk-planted-key") && !run.err.contains("sk-planted-key"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_subscriptions_route_takes_no_field_too_many() {
    let env = SignInEnv::new().await;
    let auth = env.issuer.sign_in(3600);
    let post = |body: &Value| {
        let url = env.server.chatgpt_url();
        let rest = url.strip_prefix("http://").unwrap().to_owned();
        let (address, path) = rest.split_once('/').unwrap();
        let mut socket = TcpStream::connect(address).unwrap();
        let bearer = auth["access_token"].as_str().unwrap();
        let body = body.to_string();
        write!(
            socket,
            "POST /{path}/responses HTTP/1.1\r\nauthorization: Bearer {bearer}\r\n\
             chatgpt-account-id: account-of-the-story\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut chunk = [0; 8192];
        let count = socket.read(&mut chunk).unwrap();
        String::from_utf8_lossy(&chunk[..count]).into_owned()
    };
    let good = json!({
        "model": "m", "store": false, "stream": true, "instructions": "x",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}],
    });
    assert!(post(&good).starts_with("HTTP/1.1 200"));
    for (field, value, detail) in [
        ("store", json!(true), "Store must be set to false"),
        ("stream", json!(false), "Stream must be set to true"),
        ("instructions", json!(""), "Instructions are required"),
        ("max_output_tokens", json!(9), "Unsupported parameter: max_output_tokens"),
        ("prompt_cache_retention", json!("24h"), "Unsupported parameter: prompt_cache_retention"),
        ("previous_response_id", json!("r"), "Unsupported parameter: previous_response_id"),
        ("metadata", json!({}), "Unsupported parameter: metadata"),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let answer = post(&bad);
        assert!(answer.starts_with("HTTP/1.1 400"), "{field}: {answer}");
        assert!(answer.contains(&json!({"detail": detail}).to_string()), "{field}: {answer}");
    }
}
