//! Retry: whether a failed call is tried again, and after how long. Pure; the caller sleeps.

use std::time::Duration;

use super::ProviderError;
use crate::settings::config::RetryPolicy;

/// The wait before the next attempt, or `None` when this failure is final.
///
/// `attempt` counts from 1 and is the one that failed; `jitter` is a random number from 0 to 1.
/// The back-off doubles from `base` to `cap`, and the wait lies between half of it and all of it:
/// clients that failed together spread out, and the cap is never exceeded. A server that names a
/// wait gets exactly that plus up to a tenth, unless it is longer than `retry_after_cap`; then
/// the error, which says how long, goes to the user instead of a silent minute.
pub fn next_retry_delay(
    error: &ProviderError,
    attempt: u32,
    retry: &RetryPolicy,
    jitter: f64,
) -> Option<Duration> {
    if !error.retryable || attempt >= retry.max_attempts {
        return None;
    }
    let jitter = jitter.clamp(0.0, 1.0);
    if let Some(asked) = error.retry_after {
        return (asked <= retry.retry_after_cap).then(|| asked.mul_f64(1.0 + jitter / 10.0));
    }
    let doublings = attempt.saturating_sub(1).min(30);
    let backoff = retry.base.saturating_mul(1 << doublings).min(retry.cap);
    Some(backoff.mul_f64(0.5 + jitter / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Kind;

    #[track_caller]
    fn check(error: &ProviderError, attempt: u32, jitter: f64, expected_ms: Option<u128>) {
        let delay = next_retry_delay(error, attempt, &RetryPolicy::default(), jitter);
        assert_eq!(delay.map(|delay| delay.as_millis()), expected_ms, "attempt {attempt}");
    }

    #[test]
    fn the_back_off_doubles_to_its_cap_and_ends_after_five_attempts() {
        let error = ProviderError::transient(Kind::Network, "gone");
        for (attempt, expected) in [(1, 500), (2, 1000), (3, 2000), (4, 4000)] {
            check(&error, attempt, 1.0, Some(expected));
            check(&error, attempt, 0.0, Some(expected / 2));
        }
        check(&error, 5, 1.0, None);
        check(&error, u32::MAX, 1.0, None);
        let patient = RetryPolicy { max_attempts: 100, ..RetryPolicy::default() };
        for attempt in [5, 6, 50, 99] {
            assert_eq!(next_retry_delay(&error, attempt, &patient, 1.0), Some(patient.cap));
        }
    }

    #[test]
    fn a_terminal_error_is_never_tried_again() {
        check(&ProviderError::terminal(Kind::QuotaExceeded, "broke"), 1, 0.5, None);
    }

    #[test]
    fn a_named_wait_is_honoured_up_to_its_cap() {
        let mut error = ProviderError::transient(Kind::RateLimited, "slow down");
        error.retry_after = Some(Duration::from_secs(11));
        check(&error, 1, 0.0, Some(11_000));
        check(&error, 1, 1.0, Some(12_100));
        error.retry_after = Some(RetryPolicy::default().retry_after_cap);
        check(&error, 2, 0.0, Some(60_000));
        error.retry_after = Some(Duration::from_secs(61));
        check(&error, 1, 0.0, None);
        error.retry_after = Some(Duration::ZERO);
        check(&error, 1, 1.0, Some(0));
    }
}
