//! Classification of Provider errors, from an HTTP error answer or from an error inside the stream.
//!
//! Servers word the same error in many ways, so the code is examined first, then the message, the
//! type and the status. An unknown error is a `provider_error`, retried when the server is at fault
//! and not when the request is.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::ProviderError;
use super::rate_limits;
use super::reset::LimitReset;
use crate::base::error::Kind;
use crate::base::text::{on_one_line, truncate_chars};
use crate::record::event::RateLimits;

/// The longest error body that is read, in bytes.
pub const BODY_LIMIT: usize = 16 * 1024;
/// How much of a server's message is shown to the user, in characters.
const MESSAGE_LIMIT: usize = 600;

/// Facts from the headers of an HTTP error answer.
#[derive(Debug, Default)]
pub struct ErrorHints {
    pub retry_after: Option<Duration>,
    /// Whether the server wants a retry; overrides our own judgement.
    pub should_retry: Option<bool>,
    pub request_id: Option<String>,
    pub limits: Option<RateLimits>,
    /// When the answer arrived; turns a time of reset into a wait.
    pub now: Option<SystemTime>,
}

impl ErrorHints {
    /// Reads the known headers; `now` turns an HTTP date into a wait.
    pub fn from_headers<'a>(header: impl Fn(&str) -> Option<&'a str>, now: SystemTime) -> Self {
        let milliseconds = header("retry-after-ms")
            .and_then(|text| text.trim().parse::<f64>().ok())
            .and_then(|number| Duration::try_from_secs_f64(number / 1000.0).ok());
        let seconds = || header("retry-after").and_then(|text| parse_retry_after(text.trim(), now));
        Self {
            retry_after: milliseconds.or_else(seconds),
            should_retry: header("x-should-retry").and_then(|text| text.trim().parse().ok()),
            request_id: header("x-request-id")
                .or_else(|| header("x-oai-request-id"))
                .map(str::to_owned),
            limits: rate_limits::from_headers(header),
            now: Some(now),
        }
    }

    /// Adds these facts to an error.
    fn apply_to(self, mut error: ProviderError) -> ProviderError {
        error.retry_after = self.retry_after.or(error.retry_after);
        error.retryable = self.should_retry.unwrap_or(error.retryable);
        if let Some(limits) = self.limits {
            let is_silent = error.retry_after.is_none();
            if error.kind == Kind::UsageLimitReached && is_silent {
                let reset = LimitReset { at: rate_limits::resets_at(&limits), wait: None };
                let reset = reset.with_both(self.now.unwrap_or(SystemTime::UNIX_EPOCH));
                error.retry_after = reset.wait;
                error.facts.resets_at = reset.at.or(error.facts.resets_at);
            } else if error.kind == Kind::RateLimited && is_silent {
                error.retry_after = rate_limits::refills_in(&limits);
            }
            error.facts.rate_limits = Some(limits);
        }
        match self.request_id {
            Some(id) => error.with_fact("request_id", id),
            None => error,
        }
    }
}

/// Parses `Retry-After`: a number of seconds or a date; a date in the past means now.
fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Classifies an HTTP error answer.
pub fn classify_http(status: u16, hints: ErrorHints, body: &[u8]) -> ProviderError {
    let text = String::from_utf8_lossy(body);
    let json: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    let mut complaint = ErrorPayload::from_json(&json);
    if complaint.message.is_empty() {
        complaint.message = body_message(&text);
    }
    complaint.status = Some(status);
    let now = hints.now.unwrap_or(SystemTime::UNIX_EPOCH);
    let mut error = complaint.classify(now).with_status(status);
    if error.message.is_empty() {
        error.message = format!("the Provider answered with HTTP status {status}");
    }
    hints.apply_to(error)
}

/// A 200 answer of an unexpected format: a web page, compressed data, or other content. The same
/// request would get it again, so the request is not retried.
pub struct UnexpectedResponse<'a> {
    /// Host and port of the server.
    pub peer: &'a str,
    /// The expected format, for the message.
    pub expected: &'static str,
    pub content_type: Option<&'a str>,
    pub encoding: Option<&'a str>,
    /// As much of the body as was read.
    pub body: &'a [u8],
}

impl UnexpectedResponse<'_> {
    pub fn classify(&self) -> ProviderError {
        let text = String::from_utf8_lossy(self.body);
        let json = serde_json::from_str::<Value>(&text).ok().filter(Value::is_object);
        let has_error =
            json.as_ref().is_some_and(|json| json.get("error").is_some_and(is_not_null));
        if has_error {
            // An error with status 200; only an error that is known to be transient is retried.
            return classify_http(200, ErrorHints::default(), self.body);
        }
        let found = match self.compression() {
            Some(coding) => format!("{coding}-compressed data that was not asked for"),
            None if text.trim().is_empty() => "an empty body".to_owned(),
            None if is_web_page(&text) => match html_title(&text) {
                Some(title) => format!("a web page (\"{}\")", truncate_message(&title)),
                None => "a web page".to_owned(),
            },
            None if json.is_some() => "a JSON document".to_owned(),
            None => self.content_type.map_or("something else".to_owned(), truncate_message),
        };
        let Self { peer, expected, .. } = self;
        let message = format!("{peer} answered with {found} instead of {expected}");
        let error = ProviderError::terminal(Kind::InvalidResponse, message).with_status(200);
        error.with_fact("content_type", self.content_type.unwrap_or("unknown"))
    }

    fn compression(&self) -> Option<String> {
        let named = compression(self.encoding).map(truncate_message);
        named.or_else(|| self.body.starts_with(&[0x1f, 0x8b]).then(|| "gzip".to_owned()))
    }
}

/// The compression that a `content-encoding` names; requests ask for none.
pub fn compression(encoding: Option<&str>) -> Option<&str> {
    encoding
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
}

fn is_not_null(value: &Value) -> bool {
    !value.is_null()
}

/// Classifies an error inside the stream: a top-level `error` event or a failed response.
pub fn classify_in_band(frame: &Value) -> ProviderError {
    let holder = frame.get("response").unwrap_or(frame);
    let complaint = ErrorPayload::from_json(holder);
    let status = complaint.status;
    let mut error = complaint.classify(SystemTime::now());
    error.facts.status = status;
    // Over a WebSocket, the headers are a field of the error.
    if let Some(headers) = frame.get("headers") {
        error = ErrorHints::from_headers(|name| headers.get(name)?.as_str(), SystemTime::now())
            .apply_to(error);
    }
    if error.message.is_empty() {
        "the Provider ended the answer with an error and gave no reason"
            .clone_into(&mut error.message);
    }
    error
}

/// The fields of an error, whatever shape the server gave it.
#[derive(Debug, Default)]
struct ErrorPayload {
    status: Option<u16>,
    code: String,
    /// The `type` of the error, less specific than `code`.
    error_type: String,
    message: String,
    /// The plan whose usage limit was reached.
    plan: Option<String>,
    reset: LimitReset,
}

impl ErrorPayload {
    /// Parses `{"error":{…}}`, `{"error":"…"}`, `{"detail":…}` and a bare `{code, message}`.
    fn from_json(json: &Value) -> Self {
        let inner = match json.get("error").filter(|error| !error.is_null()) {
            Some(error) => error,
            None => json.get("detail").unwrap_or(json),
        };
        let text =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let word = |key: &str| text(inner, key).filter(|word| !word.is_empty() && word != "error");
        let code = ["code", "error_code", "type"].into_iter().find_map(word);
        let message = inner.as_str().map(str::to_owned).or_else(|| text(inner, "message"));
        // Some servers send the status as a numeric `code`.
        let status = ["status", "status_code"]
            .into_iter()
            .find_map(|key| json.get(key).and_then(Value::as_u64))
            .or_else(|| inner.get("code").and_then(Value::as_u64))
            .and_then(|status| u16::try_from(status).ok())
            .filter(|status| (400..600).contains(status));
        let wait = inner.get("resets_in_seconds").and_then(Value::as_u64).map(Duration::from_secs);
        Self {
            status,
            code: code.unwrap_or_default(),
            error_type: word("type").unwrap_or_default(),
            message: truncate_message(&message.unwrap_or_default()),
            plan: text(inner, "plan_type"),
            reset: LimitReset { at: inner.get("resets_at").and_then(Value::as_u64), wait },
        }
    }

    fn classify(self, now: SystemTime) -> ProviderError {
        let prose = self.message.to_lowercase();
        let by_type = || match self.status {
            // The status of an error is more specific than its type.
            Some(400..) => None,
            _ => kind_of_type(&self.error_type).or_else(|| kind_of_type(&self.code)),
        };
        let (kind, retryable) = kind_of_code(&self.code, &prose)
            .or_else(|| kind_of_code(&self.error_type, &prose))
            .or_else(|| kind_of_message(&prose))
            .or_else(by_type)
            .unwrap_or_else(|| kind_of_status(self.status, &prose));
        let mut error = ProviderError::terminal(kind, self.message);
        error.retryable = retryable;
        let reset = self.reset.with_both(now);
        error.retry_after = reset.wait.or_else(|| parse_stated_wait(&prose));
        error.facts.resets_at = reset.at;
        if !self.code.is_empty() {
            error.facts.code = Some(self.code.into());
        }
        if let Some(plan) = self.plan {
            error = error.with_fact("plan", plan);
        }
        error
    }
}

fn kind_of_code(code: &str, prose: &str) -> Option<(Kind, bool)> {
    Some(match code {
        "context_length_exceeded" | "exceed_context_size_error" => (Kind::ContextOverflow, false),
        "rate_limit_exceeded" => (Kind::RateLimited, true),
        // Waiting does not help when the plan does not include this model.
        "insufficient_quota"
        | "credit_balance_exhausted"
        | "billing_hard_limit_reached"
        | "usage_not_included"
        | "subscription_sharing_user_not_eligible" => (Kind::QuotaExceeded, false),
        "usage_limit_reached" | "subscription_sharing_usage_limit_exceeded" => {
            (Kind::UsageLimitReached, false)
        }
        "server_is_overloaded"
        | "slow_down"
        | "overloaded_error"
        | "subscription_sharing_usage_unavailable"
        | "subscription_sharing_user_unavailable" => (Kind::ProviderOverloaded, true),
        "invalid_prompt"
        | "bio_policy"
        | "cyber_policy"
        | "content_policy_violation"
        | "misalignment_policy_violation" => (Kind::ProviderRefusal, false),
        "model_not_found" | "model_not_supported" => (Kind::ModelNotSupported, false),
        // The request is sent again without what the server lost, or on a new connection.
        "previous_response_not_found" | "websocket_connection_limit_reached" => {
            (Kind::ProviderError, true)
        }
        "invalid_encrypted_content" => (Kind::ProviderError, false),
        "invalid_api_key"
        | "invalid_token"
        | "token_expired"
        | "subscription_sharing_invalid_user" => (Kind::AuthRefused, false),
        "server_error" | "internal_error" => match kind_of_message(prose) {
            Some(better) => better,
            None => (Kind::ProviderError, true),
        },
        _ => return None,
    })
}

fn kind_of_message(prose: &str) -> Option<(Kind, bool)> {
    let says = |words: &[&str]| words.iter().any(|word| prose.contains(word));
    if says(&[
        "context window",
        "prompt is too long",
        "maximum context length",
        "available context size",
        "greater than the context length",
    ]) {
        return Some((Kind::ContextOverflow, false));
    }
    if prose.contains("model")
        && says(&["does not exist", "not supported", "not found", "do not have access"])
    {
        return Some((Kind::ModelNotSupported, false));
    }
    if says(&["exceeded your current quota"]) {
        return Some((Kind::QuotaExceeded, false));
    }
    if says(&["rate limit reached", "too many requests"]) {
        return Some((Kind::RateLimited, true));
    }
    says(&["overloaded"]).then_some((Kind::ProviderOverloaded, true))
}

/// Classifies the `type` of an error. A WebSocket frame has a type and often no status.
fn kind_of_type(error_type: &str) -> Option<(Kind, bool)> {
    Some(match error_type {
        "invalid_request_error" | "invalid_request" | "bad_request_error" | "bad_request" => {
            (Kind::ProviderError, false)
        }
        "authentication_error" | "permission_error" | "permission_denied" => {
            (Kind::AuthRefused, false)
        }
        "not_found_error" | "not_found" => (Kind::NotFound, false),
        "rate_limit_error" | "too_many_requests" | "tokens" | "requests" => {
            (Kind::RateLimited, true)
        }
        "billing_error" => (Kind::QuotaExceeded, false),
        "request_too_large" => (Kind::ContextOverflow, false),
        "timeout_error" => (Kind::Timeout, true),
        "service_unavailable_error" | "service_unavailable" => (Kind::ProviderOverloaded, true),
        _ => return None,
    })
}

fn kind_of_status(status: Option<u16>, prose: &str) -> (Kind, bool) {
    match status {
        // A region or network block is not caused by the credential.
        Some(403) if prose.contains("cloudflare") => (Kind::Network, false),
        Some(401 | 403) => (Kind::AuthRefused, false),
        // Redirects are not followed: the credential goes to its own endpoint only.
        Some(300..=399 | 404) => (Kind::NotFound, false),
        Some(408) => (Kind::Timeout, true),
        Some(429) => (Kind::RateLimited, true),
        Some(503 | 529) => (Kind::ProviderOverloaded, true),
        Some(status) if status < 500 && !matches!(status, 409 | 425) => {
            (Kind::ProviderError, false)
        }
        // The server is at fault; also for an unknown error inside a stream, whose request was accepted.
        _ => (Kind::ProviderError, true),
    }
}

/// Parses "try again in 11.054s", "… in 250ms" and "… in 3 seconds" out of a message.
fn parse_stated_wait(prose: &str) -> Option<Duration> {
    let (_, rest) = prose.split_once("try again in ")?;
    let rest = rest.trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, unit) = rest.split_at(digits);
    let number: f64 = number.trim_end_matches('.').parse().ok()?;
    let unit: String = unit.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    let seconds = match unit.as_str() {
        "ms" | "milliseconds" | "millisecond" => number / 1000.0,
        "s" | "sec" | "second" | "seconds" => number,
        "m" | "min" | "minute" | "minutes" => number * 60.0,
        "h" | "hour" | "hours" => number * 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

/// The message of a body without JSON. An HTML page is reduced to its title and a mark for Cloudflare blocks.
fn body_message(text: &str) -> String {
    if !is_web_page(text) {
        return truncate_message(text.trim());
    }
    let lower = text.to_ascii_lowercase();
    let title = html_title(text);
    let title = title.as_deref().unwrap_or("untitled");
    let mut prose = format!("the server answered with a web page: {}", truncate_message(title));
    if lower.contains("cloudflare") && !prose.to_ascii_lowercase().contains("cloudflare") {
        prose.push_str(" (Cloudflare)");
    }
    prose
}

fn is_web_page(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.contains("<html") || lower.contains("<!doctype")
}

/// The `<title>` of a web page.
fn html_title(text: &str) -> Option<String> {
    let start = text.to_ascii_lowercase().find("<title>")?;
    let rest = text.get(start + "<title>".len()..)?;
    let title = rest.split('<').next().unwrap_or_default();
    let title = on_one_line(title);
    (!title.is_empty()).then_some(title)
}

pub fn truncate_message(text: &str) -> String {
    truncate_chars(text, MESSAGE_LIMIT)
}

#[cfg(test)]
mod tests;
