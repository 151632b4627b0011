//! Errors of every shape, and their classification.

use serde_json::json;

use super::*;
use crate::base::error::Explain;
use crate::host::http::HttpError;

#[track_caller]
fn check_http(status: u16, body: &str, kind: Kind, retryable: bool) {
    let error = classify_http(status, ErrorHints::default(), body.as_bytes());
    assert_eq!((error.kind, error.retryable), (kind, retryable), "{status} {body}");
    assert!(!error.message.is_empty(), "{status} {body}");
}

#[test]
fn statuses_and_bodies_of_every_shape_have_a_class() {
    let html = "<!DOCTYPE html><html><title>Attention Required! | Cloudflare</title>blocked</html>";
    for (status, body, kind, retryable) in [
        (
            400,
            r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#,
            Kind::ContextOverflow,
            false,
        ),
        (
            400,
            r#"{"error":{"message":"This model's maximum context length is 8 tokens"}}"#,
            Kind::ContextOverflow,
            false,
        ),
        (
            400,
            r#"{"detail":"Unsupported parameter: max_output_tokens"}"#,
            Kind::ProviderError,
            false,
        ),
        (400, r#"{"detail":[{"msg":"odd"}]}"#, Kind::ProviderError, false),
        (
            400,
            r#"{"error":{"code":"invalid_prompt","message":"no"}}"#,
            Kind::ProviderRefusal,
            false,
        ),
        (
            400,
            r#"{"error":{"message":"The requested model 'x' does not exist"}}"#,
            Kind::ModelNotSupported,
            false,
        ),
        (
            401,
            r#"{"error":{"code":"invalid_api_key","message":"bad key"}}"#,
            Kind::AuthRefused,
            false,
        ),
        (401, "", Kind::AuthRefused, false),
        (401, r#"{"detail":{"error_code":"invalid_token"}}"#, Kind::AuthRefused, false),
        (403, html, Kind::Network, false),
        (403, "no", Kind::AuthRefused, false),
        (404, "404 page not found", Kind::NotFound, false),
        (
            429,
            r#"{"error":{"code":"insufficient_quota","message":"pay"}}"#,
            Kind::QuotaExceeded,
            false,
        ),
        (
            429,
            r#"{"error":{"type":"usage_limit_reached","message":"spent","resets_in_seconds":90}}"#,
            Kind::UsageLimitReached,
            false,
        ),
        (
            429,
            r#"{"error":{"type":"tokens","code":"rate_limit_exceeded","message":"slow"}}"#,
            Kind::RateLimited,
            true,
        ),
        (429, "", Kind::RateLimited, true),
        (500, "oops", Kind::ProviderError, true),
        (502, "<html><title>502 Bad Gateway</title></html>", Kind::ProviderError, true),
        (
            503,
            r#"{"error":{"code":"server_is_overloaded","message":"busy"}}"#,
            Kind::ProviderOverloaded,
            true,
        ),
        (503, "", Kind::ProviderOverloaded, true),
        (418, "\u{fffd}", Kind::ProviderError, false),
    ] {
        check_http(status, body, kind, retryable);
    }
}

#[test]
fn errors_in_band_have_the_same_classes() {
    for (frame, kind, retryable) in [
        (
            json!({"type":"error","code":"rate_limit_exceeded","message":"x"}),
            Kind::RateLimited,
            true,
        ),
        (
            json!({"type":"error","error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"x"}}),
            Kind::ContextOverflow,
            false,
        ),
        (json!({"type":"error","status":401,"error":{"message":"x"}}), Kind::AuthRefused, false),
        (
            json!({"response":{"error":{"code":"server_error","message":"x"}}}),
            Kind::ProviderError,
            true,
        ),
        (
            json!({"response":{"error":{"code":"slow_down","message":"x"}}}),
            Kind::ProviderOverloaded,
            true,
        ),
        (json!({"response":{"error":null}}), Kind::ProviderError, true),
        (json!({"error":"words"}), Kind::ProviderError, true),
        (json!(null), Kind::ProviderError, true),
    ] {
        let error = classify_in_band(&frame);
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{frame}");
        assert!(!error.message.is_empty());
    }
}

/// Frames without a status, as a WebSocket sends them: the class of the error decides.
#[test]
fn an_error_without_a_status_is_classified_by_its_type() {
    for (error_type, kind, retryable) in [
        ("invalid_request_error", Kind::ProviderError, false),
        ("authentication_error", Kind::AuthRefused, false),
        ("permission_error", Kind::AuthRefused, false),
        ("not_found_error", Kind::NotFound, false),
        ("rate_limit_error", Kind::RateLimited, true),
        ("tokens", Kind::RateLimited, true),
        ("insufficient_quota", Kind::QuotaExceeded, false),
        ("billing_error", Kind::QuotaExceeded, false),
        ("usage_limit_reached", Kind::UsageLimitReached, false),
        ("overloaded_error", Kind::ProviderOverloaded, true),
        ("service_unavailable_error", Kind::ProviderOverloaded, true),
        ("timeout_error", Kind::Timeout, true),
        ("server_error", Kind::ProviderError, true),
        ("api_error", Kind::ProviderError, true),
        ("invented_later", Kind::ProviderError, true),
    ] {
        // An unknown code does not hide the type.
        for code in [json!(null), json!("unheard_of")] {
            let error = json!({"type": error_type, "code": code, "message": "x"});
            for frame in [json!({"type": "error", "error": error}), json!({"error": error})] {
                let found = classify_in_band(&frame);
                assert_eq!((found.kind, found.retryable), (kind, retryable), "{frame}");
            }
        }
    }
    // A status, also one that is written as a numeric code, is more exact.
    for (frame, kind, retryable) in [
        (
            json!({"type":"error","status":500,"error":{"type":"invalid_request_error","message":"x"}}),
            Kind::ProviderError,
            true,
        ),
        (json!({"error":{"code":401,"type":"api_error","message":"x"}}), Kind::AuthRefused, false),
        (json!({"error":{"code":503,"message":"x"}}), Kind::ProviderOverloaded, true),
    ] {
        let found = classify_in_band(&frame);
        assert_eq!((found.kind, found.retryable), (kind, retryable), "{frame}");
    }
}

#[test]
fn a_200_that_is_something_else_is_named_and_not_retried() {
    let page = "<!DOCTYPE html><html><title>\n Sign  in to the hotel </title></html>";
    for (content_type, encoding, body, words) in [
        (Some("text/html"), None, page.as_bytes(), "a web page (\"Sign in to the hotel\")"),
        (None, None, b"<html><body>hi", "a web page instead"),
        (Some("text/event-stream"), Some("gzip"), b"", "gzip-compressed data"),
        (None, Some("br"), b"", "br-compressed data"),
        (Some("text/event-stream"), None, b"\x1f\x8b\x08\x00", "gzip-compressed data"),
        (Some("application/json"), None, br#"{"object":"response"}"#, "a JSON document"),
        (Some("text/plain"), None, b"hello", "text/plain"),
        (None, Some("identity"), b"hello", "something else"),
    ] {
        let peer = "127.0.0.1:80";
        let expected = "a stream of events";
        let error = UnexpectedResponse { peer, expected, content_type, encoding, body }.classify();
        assert_eq!((error.kind, error.retryable), (Kind::InvalidResponse, false), "{error:?}");
        assert!(error.message.starts_with("127.0.0.1:80 answered with "), "{error}");
        assert!(error.message.contains(words), "{error}");
        assert!(error.next_actions()[0].contains("base_url"), "{error:?}");
    }
    // An error with status 200 is classified by its body.
    for (body, kind, retryable) in [
        (r#"{"error":{"code":"insufficient_quota","message":"x"}}"#, Kind::QuotaExceeded, false),
        (r#"{"error":{"type":"rate_limit_error","message":"x"}}"#, Kind::RateLimited, true),
        (r#"{"error":{"message":"odd"}}"#, Kind::ProviderError, false),
    ] {
        let (peer, expected, body) = ("x:1", "JSON", body.as_bytes());
        let error = UnexpectedResponse { peer, expected, content_type: None, encoding: None, body }
            .classify();
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{error:?}");
    }
}

#[test]
fn waits_are_read_from_headers_and_from_prose() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    let read = |name: &'static str, value: &'static str| {
        ErrorHints::from_headers(|asked| (asked == name).then_some(value), now).retry_after
    };
    assert_eq!(read("retry-after", "7"), Some(Duration::from_secs(7)));
    assert_eq!(read("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT"), Some(Duration::from_secs(10)));
    assert_eq!(read("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
    assert_eq!(read("retry-after", "soon"), None);
    assert_eq!(read("retry-after", "-5"), None);
    assert_eq!(read("retry-after-ms", "250"), Some(Duration::from_millis(250)));
    for (prose, expected) in [
        ("please try again in 11.054s. visit", Some(11_054)),
        ("try again in 250ms.", Some(250)),
        ("try again in 3 seconds", Some(3000)),
        ("try again in 1m", Some(60_000)),
        ("try again in a while", None),
        ("try again later", None),
    ] {
        assert_eq!(parse_stated_wait(prose), expected.map(Duration::from_millis), "{prose}");
    }
}

#[test]
fn the_server_has_the_last_word_on_retrying() {
    let hints = |value: &'static str| {
        ErrorHints::from_headers(
            |name| (name == "x-should-retry").then_some(value),
            SystemTime::UNIX_EPOCH,
        )
    };
    assert!(!classify_http(500, hints("false"), b"x").retryable);
    assert!(classify_http(400, hints("true"), b"x").retryable);
}

#[test]
fn a_used_up_plan_states_its_reset_time() {
    let body = br#"{"error":{"type":"usage_limit_reached","message":"spent","resets_at":1800000000,"resets_in_seconds":90}}"#;
    let error = classify_http(429, ErrorHints::default(), body);
    assert_eq!(error.retry_after, Some(Duration::from_secs(90)));
    assert_eq!(error.facts.resets_at, Some(1_800_000_000));
}

/// Every row of the table of errors: source, kind, whether a retry may help, and next actions.
#[test]
fn the_table_of_errors() {
    let failed = |code: &str, message: &str| {
        classify_in_band(&json!({"response": {"error": {"code": code, "message": message}}}))
    };
    let typed = |status: u16, code: &str, message: &str| {
        let body = json!({"error": {"type": code, "message": message}}).to_string();
        classify_http(status, ErrorHints::default(), body.as_bytes())
    };
    let cloudflare = "<html><title>Attention Required! | Cloudflare</title>you are blocked</html>";
    let overflow = "Your input exceeds the context window of this model.";
    let rows: Vec<(&str, ProviderError, Kind, bool, &str)> = vec![
        (
            "failed overflow",
            failed("context_length_exceeded", overflow),
            Kind::ContextOverflow,
            false,
            "new Session",
        ),
        (
            "400 overflow",
            typed(400, "invalid_request_error", overflow),
            Kind::ContextOverflow,
            false,
            "new Session",
        ),
        (
            "failed rate limit",
            failed("rate_limit_exceeded", "Please try again in 11.054s."),
            Kind::RateLimited,
            true,
            "wait 11 s",
        ),
        ("failed quota", failed("insufficient_quota", "x"), Kind::QuotaExceeded, false, "billing"),
        (
            "429 credit",
            typed(429, "credit_balance_exhausted", "x"),
            Kind::QuotaExceeded,
            false,
            "billing",
        ),
        (
            "429 usage limit",
            typed(429, "usage_limit_reached", "x"),
            Kind::UsageLimitReached,
            false,
            "the usage limit of the plan resets",
        ),
        (
            "429 not in the plan",
            typed(429, "usage_not_included", "x"),
            Kind::QuotaExceeded,
            false,
            "plan",
        ),
        ("429 other", typed(429, "", "x"), Kind::RateLimited, true, "wait"),
        (
            "failed overload",
            failed("server_is_overloaded", "x"),
            Kind::ProviderOverloaded,
            true,
            "wait",
        ),
        ("503 slow down", typed(503, "slow_down", "x"), Kind::ProviderOverloaded, true, "wait"),
        ("failed server", failed("server_error", "x"), Kind::ProviderError, true, "resume"),
        ("failed unknown", failed("brand_new", "x"), Kind::ProviderError, true, "resume"),
        ("invalid prompt", failed("invalid_prompt", "x"), Kind::ProviderRefusal, false, "rephrase"),
        ("bio", failed("bio_policy", "x"), Kind::ProviderRefusal, false, "rephrase"),
        ("cyber", failed("cyber_policy", "x"), Kind::ProviderRefusal, false, "rephrase"),
        (
            "misalignment",
            failed("misalignment_policy_violation", "x"),
            Kind::ProviderRefusal,
            false,
            "rephrase",
        ),
        (
            "400 model",
            typed(400, "invalid_request_error", "The model 'x' does not exist"),
            Kind::ModelNotSupported,
            false,
            "pixir models",
        ),
        (
            "400 image",
            typed(400, "invalid_request_error", "The image data you provided is not valid."),
            Kind::ProviderError,
            false,
            "refused again",
        ),
        ("401", typed(401, "", "x"), Kind::AuthRefused, false, "pixir login"),
        (
            "403 cloudflare",
            classify_http(403, ErrorHints::default(), cloudflare.as_bytes()),
            Kind::Network,
            false,
            "network",
        ),
        ("404", typed(404, "", "x"), Kind::NotFound, false, "OPENAI_BASE_URL"),
        ("500", typed(500, "", "x"), Kind::ProviderError, true, "resume"),
        (
            "refused connection",
            ProviderError::from(HttpError::Connect("connection refused".to_owned())),
            Kind::Network,
            true,
            "network",
        ),
        (
            "bad certificate",
            ProviderError::from(HttpError::Tls(
                "invalid peer certificate: UnknownIssuer".to_owned(),
            )),
            Kind::Tls,
            false,
            "SSL_CERT_FILE",
        ),
    ];
    for (name, error, kind, retryable, action) in rows {
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{name}");
        let actions = crate::base::error::Explain::next_actions(&error).join("; ");
        assert!(actions.contains(action), "{name}: {actions}");
    }
}

#[test]
fn a_moment_of_reset_becomes_a_wait_too() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let hints = ErrorHints::from_headers(|_| None, now);
    let body = br#"{"error":{"type":"usage_limit_reached","plan_type":"plus","message":"spent","resets_at":1800005400}}"#;
    let error = classify_http(429, hints, body);
    assert_eq!(error.retry_after, Some(Duration::from_mins(90)));
    assert_eq!(error.details()["plan"], "plus");
    let action = crate::base::error::Explain::next_actions(&error).remove(0);
    assert!(action.contains("1 h 30 min (until 2027-01-15 09:30 UTC)"), "{action}");
}
