//! Rate limits from response headers or from a stream event. Strings of the server are bounded.

use std::time::Duration;

use serde_json::Value;

use crate::record::event::{Allowance, Credits, Extra, RateLimits, UsageWindow};

/// The longest string that is accepted from a server, in characters.
const MAX_WORD_CHARS: usize = 64;

/// The header family of a subscription unless the server names another one.
const DEFAULT_FAMILY: &str = "codex";

/// Reads the headers of an answer; `None` when they have no rate limits.
pub fn from_headers<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<RateLimits> {
    let name = header("x-codex-active-limit").and_then(bounded_word);
    let active = name.as_ref().map(|name| name.replace('_', "-").to_ascii_lowercase());
    let families: Vec<&str> = active.as_deref().into_iter().chain([DEFAULT_FAMILY]).collect();
    let in_family = |rest: &str| {
        families.iter().find_map(|family| header(&format!("x-{family}-{rest}"))).map(str::trim)
    };
    let window = |slot: &str| {
        Some(UsageWindow {
            used_percent: checked_percent(
                in_family(&format!("{slot}-used-percent"))?.parse().ok()?,
            )?,
            window_minutes: parse_number(in_family(&format!("{slot}-window-minutes"))),
            resets_at: parse_number(in_family(&format!("{slot}-reset-at"))),
        })
    };
    let allowance = |what: &str| {
        let of = |part: &str| header(&format!("x-ratelimit-{part}-{what}")).map(str::trim);
        Some(Allowance {
            limit: parse_number(of("limit")),
            remaining: parse_number(of("remaining"))?,
            resets_in_s: of("reset").and_then(parse_duration).map(|wait| wait.as_secs_f64()),
        })
    };
    let truth = |rest: &str| in_family(rest)?.to_ascii_lowercase().parse().ok();
    let credits = Credits {
        has_credits: truth("credits-has-credits"),
        unlimited: truth("credits-unlimited"),
        balance: in_family("credits-balance").and_then(bounded_word),
    };
    non_empty(RateLimits {
        primary: window("primary"),
        secondary: window("secondary"),
        requests: allowance("requests"),
        tokens: allowance("tokens"),
        name,
        reached: in_family("rate-limit-reached-type").and_then(bounded_word),
        plan: None,
        credits: Some(credits).filter(|credits| *credits != Credits::default()),
        extra: Extra::new(),
    })
}

/// Reads the rate limit event of a WebSocket.
pub fn from_event(event: &Value) -> Option<RateLimits> {
    let limits = event.get("rate_limits")?;
    let count = |value: &Value| value.as_u64();
    let window = |slot: &str| {
        let window = limits.get(slot)?;
        Some(UsageWindow {
            used_percent: checked_percent(window.get("used_percent")?.as_f64()?)?,
            window_minutes: window.get("window_minutes").and_then(count),
            resets_at: window.get("reset_at").and_then(count),
        })
    };
    let text = |value: &Value| value.as_str().and_then(bounded_word);
    let credits = event.get("credits").map(|credits| Credits {
        has_credits: credits.get("has_credits").and_then(Value::as_bool),
        unlimited: credits.get("unlimited").and_then(Value::as_bool),
        balance: credits.get("balance").and_then(text),
    });
    non_empty(RateLimits {
        primary: window("primary"),
        secondary: window("secondary"),
        name: event.get("metered_limit_name").and_then(text),
        plan: event.get("plan_type").and_then(text),
        credits: credits.filter(|credits| *credits != Credits::default()),
        ..RateLimits::default()
    })
}

/// When the used-up windows of a plan reset, in Unix seconds.
pub fn resets_at(limits: &RateLimits) -> Option<u64> {
    let windows = [&limits.primary, &limits.secondary].into_iter().flatten();
    windows.filter(|window| window.used_percent >= 100.0).filter_map(|w| w.resets_at).max()
}

/// The time until a used-up allowance is refilled.
pub fn refills_in(limits: &RateLimits) -> Option<Duration> {
    let allowances = [&limits.requests, &limits.tokens].into_iter().flatten();
    let waits = allowances.filter(|own| own.remaining == 0).filter_map(|own| own.resets_in_s);
    waits.filter_map(|seconds| Duration::try_from_secs_f64(seconds).ok()).max()
}

fn non_empty(limits: RateLimits) -> Option<RateLimits> {
    (limits != RateLimits::default()).then_some(limits)
}

fn bounded_word(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = !text.is_empty()
        && text.chars().count() <= MAX_WORD_CHARS
        && text.chars().all(|letter| letter == ' ' || letter.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

fn checked_percent(number: f64) -> Option<f64> {
    (0.0..=1000.0).contains(&number).then_some(number)
}

fn parse_number(text: Option<&str>) -> Option<u64> {
    text?.parse().ok()
}

/// Parses `6m0s`, `1.5s`, `20ms`, or a number of seconds.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest.get(..end)?.parse().ok()?;
        rest = rest.get(end..)?;
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        seconds += number
            * match rest.get(..letters)? {
                "ms" => 0.001,
                "s" | "" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = rest.get(letters..)?;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(headers: &[(&str, &str)]) -> Value {
        let find = |name: &str| headers.iter().find(|(own, _)| *own == name).map(|(_, v)| *v);
        serde_json::to_value(from_headers(find)).unwrap()
    }

    #[test]
    fn headers_of_a_plan_and_of_a_key_are_read() {
        assert_eq!(
            read(&[
                ("x-codex-primary-used-percent", "42.5"),
                ("x-codex-primary-window-minutes", "300"),
                ("x-codex-primary-reset-at", "1800000000"),
                ("x-codex-credits-has-credits", "True"),
                ("x-codex-credits-balance", "12.50"),
            ]),
            json!({
                "primary": {"used_percent": 42.5, "window_minutes": 300, "resets_at": 1_800_000_000},
                "credits": {"has_credits": true, "balance": "12.50"},
            })
        );
        assert_eq!(
            read(&[
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-remaining-requests", "0"),
                ("x-ratelimit-reset-requests", "1m1.5s"),
                ("x-ratelimit-remaining-tokens", "149984"),
            ]),
            json!({
                "requests": {"limit": 60, "remaining": 0, "resets_in_s": 61.5},
                "tokens": {"remaining": 149_984},
            })
        );
    }

    #[test]
    fn the_limit_that_counts_has_a_family_of_its_own() {
        assert_eq!(
            read(&[
                ("x-codex-active-limit", "codex_other"),
                ("x-codex-primary-used-percent", "1"),
                ("x-codex-other-primary-used-percent", "99"),
                ("x-codex-secondary-used-percent", "7"),
            ]),
            json!({
                "primary": {"used_percent": 99.0}, "secondary": {"used_percent": 7.0},
                "name": "codex_other",
            })
        );
    }

    #[test]
    fn what_is_no_limit_is_left_out() {
        assert_eq!(read(&[]), Value::Null);
        let long = "x".repeat(65);
        for (name, value) in [
            ("x-codex-primary-used-percent", "NaN"),
            ("x-codex-primary-used-percent", "-1"),
            ("x-codex-primary-used-percent", "1e9"),
            ("x-codex-primary-reset-at", "1800000000"),
            ("x-codex-active-limit", long.as_str()),
            ("x-codex-credits-balance", "\u{1b}[31m"),
            ("x-ratelimit-remaining-requests", "many"),
            ("x-codex-credits-unlimited", "perhaps"),
        ] {
            assert_eq!(read(&[(name, value)]), Value::Null, "{name}: {value}");
        }
    }

    #[test]
    fn an_event_says_the_same() {
        let event = json!({
            "type": "codex.rate_limits", "plan_type": "plus", "metered_limit_name": "codex",
            "rate_limits": {
                "primary": {"used_percent": 100, "window_minutes": 300, "reset_at": 5},
                "secondary": {"used_percent": 100.0, "reset_at": 9},
            },
            "credits": {"has_credits": false, "unlimited": false, "balance": "0"},
        });
        let limits = from_event(&event).unwrap();
        assert_eq!((resets_at(&limits), limits.plan.as_deref()), (Some(9), Some("plus")));
        assert_eq!(limits.credits.unwrap().has_credits, Some(false));
        assert_eq!(from_event(&json!({"rate_limits": {}})), None);
        assert_eq!(from_event(&json!({"rate_limits": 7})), None);
    }

    #[test]
    fn waits_are_read_as_servers_write_them() {
        for (text, milliseconds) in [
            ("6m0s", Some(360_000)),
            ("20ms", Some(20)),
            ("1.5s", Some(1_500)),
            ("17", Some(17_000)),
            ("1h2m3s", Some(3_723_000)),
            ("soon", None),
            ("1y", None),
        ] {
            assert_eq!(parse_duration(text).map(|wait| wait.as_millis()), milliseconds, "{text}");
        }
    }
}
