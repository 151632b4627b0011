//! Errors of a Provider that does not answer, as shown to people and scripts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::BinaryEnv;

struct ErrorReport {
    exit: i32,
    envelope: Value,
    stderr: String,
    requests: usize,
}

async fn run_failing_turn(reply: Reply) -> ErrorReport {
    let script = ModelScript::answering(move |_| reply.clone());
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    env.configure(
        &json!({"durability": "none", "retry": {"max_attempts": 2, "base_ms": 1, "cap_ms": 2}}),
    );
    let ended = env.run(&["--json", "hi"]);
    let (id, _) = env.session().unwrap();
    assert!(pixir::verify_log(&env.workspace(), &id).unwrap().ok);
    ErrorReport {
        exit: ended.status.code().unwrap(),
        envelope: serde_json::from_str(&ended.stdout).unwrap(),
        stderr: ended.stderr,
        requests: env.server.requests().len(),
    }
}

fn refusal(status: u16, error: &Value) -> Reply {
    Reply::status(status, json!({ "error": error }).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_refusal_has_its_exit_its_words_and_its_way_on() {
    let words = "no \u{1b}[31mway\u{1b}[0m";
    let rows = [
        (
            refusal(400, &json!({"code": "context_length_exceeded", "message": words})),
            1,
            "context_overflow",
            "new Session",
            1,
        ),
        (
            refusal(429, &json!({"code": "insufficient_quota", "message": words})),
            1,
            "quota_exceeded",
            "billing",
            1,
        ),
        (refusal(429, &json!({"message": words})), 1, "rate_limited", "wait", 2),
        (
            refusal(400, &json!({"code": "model_not_found", "message": words})),
            1,
            "model_not_supported",
            "pixir models",
            1,
        ),
        (
            refusal(400, &json!({"code": "cyber_policy", "message": words})),
            6,
            "provider_refusal",
            "rephrase",
            1,
        ),
        (refusal(401, &json!({"message": words})), 4, "auth_refused", "OPENAI_API_KEY", 1),
        (refusal(500, &json!({"message": words})), 1, "provider_error", "resume", 2),
        (
            Reply::new().text("Half").fails("server_is_overloaded", words),
            1,
            "provider_overloaded",
            "wait",
            2,
        ),
    ];
    for (reply, exit, kind, action, requests) in rows {
        let failed = run_failing_turn(reply).await;
        assert_eq!((failed.exit, failed.envelope["error"]["kind"].as_str()), (exit, Some(kind)));
        assert_eq!(failed.requests, requests, "{kind}");
        let actions = failed.envelope["error"]["details"]["next_actions"].to_string();
        assert!(actions.contains(action), "{kind}: {actions}");
        assert!(failed.stderr.contains("no way"), "{kind}: {}", failed.stderr);
        assert!(!failed.stderr.contains('\u{1b}'), "{kind}: {}", failed.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_plan_states_its_reset_time_in_every_time_zone() {
    let error = json!({"type": "usage_limit_reached", "message": "The usage limit has been reached",
        "plan_type": "plus", "resets_at": 4_000_000_000_u64, "resets_in_seconds": 9_000});
    let failed = run_failing_turn(refusal(429, &error)).await;
    assert_eq!((failed.exit, failed.requests), (1, 1));
    assert!(failed.stderr.contains("The usage limit has been reached"), "{}", failed.stderr);
    assert!(
        failed.stderr.contains("wait 2 h 30 min (until 2096-10-02 07:06 UTC)"),
        "{}",
        failed.stderr
    );
    assert_eq!(failed.envelope["error"]["details"]["plan"], "plus");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_answer_is_kept_and_labelled_and_an_empty_one_is_none() {
    let kept =
        run_failing_turn(Reply::new().text("The first half").incomplete("max_output_tokens")).await;
    assert_eq!((kept.exit, &kept.envelope["status"]), (6, &json!("incomplete")));
    assert_eq!(kept.envelope["output"], "The first half");
    assert!(kept.stderr.contains("the answer was cut: max_output_tokens"), "{}", kept.stderr);
    let empty = run_failing_turn(Reply::new().incomplete("max_output_tokens")).await;
    assert_eq!((empty.exit, &empty.envelope["error"]["kind"]), (6, &json!("incomplete")));
    let withheld = run_failing_turn(Reply::new().incomplete("content_filter")).await;
    assert_eq!(
        (withheld.exit, &withheld.envelope["error"]["kind"]),
        (6, &json!("provider_refusal"))
    );
}

/// The key of the test environment in forms that a server may echo.
fn echoed_forms(key: &str) -> Vec<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    let each = |form: fn(u8) -> String| key.bytes().map(form).collect::<String>();
    vec![
        key.to_owned(),
        key.to_uppercase(),
        key.chars().rev().collect(),
        each(|byte| format!("{byte:02x}")),
        each(|byte| format!("%{byte:02X}")),
        each(|byte| format!("\\u{byte:04x}")),
        each(|byte| format!("{} ", char::from(byte))),
        each(|byte| format!("{}\n", char::from(byte))),
        STANDARD.encode(key),
        STANDARD.encode(format!("u:{key}")),
        URL_SAFE_NO_PAD.encode(format!("Bearer {key}")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_server_echoes_in_another_encoding_is_shown_and_recorded_nowhere() {
    let key = "sk-test-of-binary-env";
    for form in echoed_forms(key) {
        let words = format!("the key {form} is not known");
        // The limit on repeated error messages cuts this one in the middle of the key.
        let cut = format!("{}{form}", "x ".repeat(295));
        let replies = [
            refusal(401, &json!({"message": words, "code": form}))
                .header("x-request-id", &form.replace('\n', "")),
            Reply::status(403, words.clone()),
            Reply::status(401, cut),
            Reply::new().errors("invalid_api_key", &words),
        ];
        for reply in replies {
            let script = ModelScript::answering(move |_| reply.clone());
            let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
            let ended = env.run(&["--json", "hi"]);
            ended.expect_code(4);
            let (_, path) = env.session().unwrap();
            let log = std::fs::read_to_string(path).unwrap();
            let trace = env.workspace().join("../trace.log");
            let trace = std::fs::read_to_string(trace).unwrap();
            assert!(!log.is_empty(), "{form:?}: nothing was recorded");
            // Half of the key must not be shown either.
            let part: String = form.chars().take(form.chars().count() / 2).collect();
            let escaped = json!(part).to_string();
            for (place, text) in [
                ("stdout", &ended.stdout),
                ("stderr", &ended.stderr),
                ("log", &log),
                ("trace", &trace),
            ] {
                for part in [part.as_str(), escaped.trim_matches('"')] {
                    assert!(!text.contains(part), "{form:?} in {place}: {text}");
                }
            }
            let is_whole = ended.stderr.contains("is not known");
            assert!(!is_whole || ended.stderr.contains("[redacted:"), "{form:?}: {}", ended.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_models_that_is_refused_does_not_show_the_key() {
    use std::io::{Read, Write};
    let env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([])).await;
    for form in echoed_forms("sk-test-of-binary-env") {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let body = json!({"error": {"message": format!("the key {form} is bad")}}).to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0);
            let head = "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length:";
            write!(stream, "{head} {}\r\n\r\n{body}", body.len()).unwrap();
        });
        tokio::task::block_in_place(|| {
            let mut command = env.command(&["models", "refresh"]);
            command.env("OPENAI_BASE_URL", format!("http://{address}/v1"));
            let ended = crate::support::binary_env::RunningProcess::start(&mut command).end();
            ended.expect_code(4);
            let part: String = form.chars().take(form.chars().count() / 2).collect();
            assert!(!ended.stderr.contains(&part), "{form:?}: {}", ended.stderr);
            assert!(ended.stderr.contains("[redacted:"), "{form:?}: {}", ended.stderr);
        });
        server.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_stream_is_named_and_asked_for_once() {
    let page = "<!doctype html><html><title>Welcome to nginx!</title></html>";
    for (reply, words) in [
        (Reply::status(200, page), "a web page (\"Welcome to nginx!\")"),
        (Reply::status(200, "zzzz").header("content-encoding", "gzip"), "gzip-compressed data"),
        (Reply::status(200, r#"{"object":"response","output":[]}"#), "a JSON document"),
        (Reply::status(200, "it works!"), "text/html"),
        (Reply::status(200, "database is down"), "text/html"),
    ] {
        let failed = run_failing_turn(reply).await;
        assert_eq!((failed.exit, failed.requests), (1, 1), "{words}: {}", failed.stderr);
        assert_eq!(failed.envelope["error"]["kind"], "invalid_response", "{words}");
        let message = failed.envelope["error"]["message"].as_str().unwrap();
        assert!(message.contains(words) && message.contains("127.0.0.1:"), "{message}");
        let actions = failed.envelope["error"]["details"]["next_actions"].to_string();
        assert!(actions.contains("base_url"), "{actions}");
    }
    // An error object in a response with status 200 keeps its own class.
    let failed =
        run_failing_turn(refusal(200, &json!({"code": "insufficient_quota", "message": "spent"})))
            .await;
    assert_eq!((failed.requests, &failed.envelope["error"]["kind"]), (1, &json!("quota_exceeded")));
}

/// Starts a server that answers every request with this head and no body; gives its address and request count.
fn empty_answers(head: &'static str) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let answer = move |mut stream: std::net::TcpStream| {
        // A connection that is opened in advance may never be used.
        if !matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
            return;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        let head = format!("HTTP/1.1 200 OK\r\n{head}connection: close\r\n");
        write!(stream, "{head}content-length: 0\r\n\r\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The rest of the request is read, so that the answer is not reset.
        stream.read_to_end(&mut Vec::new()).ok();
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || answer(stream));
        }
    });
    (address, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_answer_is_a_cut_stream_or_of_a_wrong_endpoint() {
    let env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([])).await;
    env.configure(&json!({"retry": {"max_attempts": 2, "base_ms": 1, "cap_ms": 2}}));
    for (head, requests, words) in [
        ("content-type: text/event-stream\r\n", 2, "before the response was complete"),
        (
            "content-type: Text/Event-Stream; charset=utf-8\r\n",
            2,
            "before the response was complete",
        ),
        ("content-type: application/json\r\n", 1, "an empty body instead of a stream of events"),
        ("", 1, "an empty body instead of a stream of events"),
    ] {
        let (address, count) = empty_answers(head);
        let mut command = env.command(&["--json", "hi"]);
        command.env("OPENAI_BASE_URL", format!("http://{address}/v1"));
        command.env("PIXIR_TRANSPORT", "sse");
        let ended = crate::support::binary_env::RunningProcess::start(&mut command).end();
        ended.expect_code(1);
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        let message = envelope["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{head:?}: {message}");
        assert_eq!(envelope["error"]["kind"], "invalid_response", "{head:?}");
        assert_eq!(count.load(Ordering::SeqCst), requests, "{head:?}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_named_by_host_and_port() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The connections stay open without an answer.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([])).await;
    env.configure(&json!({"stream": {"idle_ms": 200}, "retry": {"max_attempts": 1}}));
    let mut command = env.command(&["--json", "hi"]);
    command.env("OPENAI_BASE_URL", format!("http://{address}/v1"));
    command.env("PIXIR_TRANSPORT", "sse");
    let ended = crate::support::binary_env::RunningProcess::start(&mut command).end();
    let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
    let words = format!("the Provider at {address} was silent for 0.2 s");
    assert_eq!(envelope["error"]["message"], words, "{envelope}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_instead_of_a_list_of_models_is_named() {
    let page = "<html><title>Sign in</title></html>";
    let script = ModelScript::new([]).listing(json!(page));
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let ended = env.run(&["models", "refresh"]);
    ended.expect_code(1);
    assert!(ended.stderr.contains("instead of JSON"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_fails_names_host_and_port() {
    let env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([])).await;
    env.configure(&json!({"retry": {"max_attempts": 2, "base_ms": 1, "cap_ms": 2}}));
    // Nothing listens on a port that was just released.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for transport in ["sse", "websocket"] {
        let mut command = env.command(&["--json", "hi"]);
        command.env("OPENAI_BASE_URL", format!("http://{address}/v1"));
        command.env("PIXIR_TRANSPORT", transport);
        let ended = crate::support::binary_env::RunningProcess::start(&mut command).end();
        ended.expect_code(1);
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(envelope["error"]["kind"], "network");
        let message = envelope["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("no connection to {address}")), "{message}");
        assert!(ended.stderr.contains(&address.to_string()), "{}", ended.stderr);
    }
    let failed = run_failing_turn(Reply::new().text("Half of an answer").cut_at(400)).await;
    let message = failed.envelope["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("the connection broke") && message.contains("(127.0.0.1:"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_frame_of_a_websocket_without_a_status_is_judged_by_its_type() {
    for (error_type, exit, kind, requests) in [
        ("invalid_request_error", 1, "provider_error", 1),
        ("authentication_error", 4, "auth_refused", 1),
        ("rate_limit_error", 1, "rate_limited", 2),
    ] {
        let frame = json!({"type": "error", "error": {"type": error_type, "message": "no"}});
        let reply = Reply::new().event("error", &frame).ends_silently();
        let env =
            BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::answering(move |_| reply.clone()))
                .await;
        env.configure(&json!({"transport": "websocket",
            "retry": {"max_attempts": 2, "base_ms": 1, "cap_ms": 2}}));
        let ended = env.run(&["--json", "hi"]);
        ended.expect_code(exit);
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(envelope["error"]["kind"], kind, "{error_type}: {envelope}");
        assert_eq!(env.server.requests().len(), requests, "{error_type}");
        let events = env.events();
        let last = events.last().unwrap();
        assert_eq!(
            (&last["type"], &last["data"]["error_kind"]),
            (&json!("turn_failed"), &json!(kind))
        );
    }
}
