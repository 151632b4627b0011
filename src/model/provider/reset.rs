//! Reset times of usage limits, and their display as a duration and as UTC.

use std::time::{Duration, SystemTime};

use super::ProviderError;

/// When a usage limit resets: a point in time, a wait, both or neither.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LimitReset {
    /// The time of the reset, in Unix seconds.
    pub at: Option<u64>,
    pub wait: Option<Duration>,
}

impl LimitReset {
    /// Computes the missing half from the other.
    #[must_use]
    pub fn with_both(self, now: SystemTime) -> Self {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wait =
            self.wait.or_else(|| self.at.map(|at| Duration::from_secs(at).saturating_sub(now)));
        let at = self.at.or_else(|| self.wait.map(|wait| (now + wait).as_secs()));
        Self { at, wait }
    }
}

/// The next action for a used-up plan, such as "wait 2 h (until …)".
pub fn wait_instruction(error: &ProviderError) -> String {
    let at = error.facts.resets_at.and_then(format_utc);
    match (error.retry_after, at) {
        (Some(wait), Some(at)) => format!("wait {} (until {at})", format_duration(wait)),
        (None, Some(at)) => format!("wait until {at}"),
        (Some(wait), None) => format!("wait {}", format_duration(wait)),
        (None, None) => "wait until the usage limit of the plan resets".to_owned(),
    }
}

/// Formats a duration in its two largest units.
pub fn format_duration(wait: Duration) -> String {
    let seconds = wait.as_secs().max(1);
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    let parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown = parts.iter().skip(first).take(2).filter(|(count, _)| *count > 0);
    shown.map(|(count, unit)| format!("{count} {unit}")).collect::<Vec<_>>().join(" ")
}

/// Formats Unix seconds as UTC.
pub fn format_utc(seconds: u64) -> Option<String> {
    let moment = jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(moment.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::{Explain, Kind};

    #[test]
    fn durations_are_spoken_in_two_units() {
        for (seconds, words) in [
            (0, "1 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_700, "1 h 1 min"),
            (7_200, "2 h"),
            (90_061, "1 d 1 h"),
        ] {
            assert_eq!(format_duration(Duration::from_secs(seconds)), words);
        }
    }

    #[test]
    fn either_half_of_a_reset_gives_the_other() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let wait = Some(Duration::from_secs(90));
        let whole = LimitReset { at: Some(1_090), wait };
        assert_eq!(LimitReset { at: Some(1_090), wait: None }.with_both(now), whole);
        assert_eq!(LimitReset { at: None, wait }.with_both(now), whole);
        assert_eq!(LimitReset::default().with_both(now), LimitReset::default());
        let past = LimitReset { at: Some(5), wait: None }.with_both(now);
        assert_eq!(past.wait, Some(Duration::ZERO));
    }

    #[test]
    fn a_spent_plan_names_duration_and_utc_time() {
        let mut error = ProviderError::terminal(Kind::UsageLimitReached, "spent");
        error.facts.resets_at = Some(1_800_000_000);
        error.retry_after = Some(Duration::from_mins(90));
        let action = error.next_actions().remove(0);
        assert!(action.starts_with("wait 1 h 30 min (until 2027-01-15 08:00 UTC)"), "{action}");
    }
}
