//! Parses durations such as `90s`, `10m`, `1h30m` or `7d`; a bare number is seconds.

use std::time::Duration;

/// The longest accepted duration; more is taken for a typing error.
const MAX_DURATION: Duration = Duration::from_hours(24 * 366);

/// Parses a duration; `None` when it is invalid, zero, or longer than a year.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return within_limit(Duration::from_secs(seconds));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let count: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let milliseconds = match rest.get(..letters)? {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return None,
        };
        rest = rest.get(letters..)?;
        total = total.checked_add(Duration::from_millis(count.checked_mul(milliseconds)?))?;
    }
    within_limit(total)
}

fn within_limit(duration: Duration) -> Option<Duration> {
    (!duration.is_zero() && duration <= MAX_DURATION).then_some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, milliseconds) in [
            ("90", 90_000),
            ("90s", 90_000),
            ("250ms", 250),
            ("10m", 600_000),
            ("10min", 600_000),
            ("1h30m", 5_400_000),
            (" 7d ", 604_800_000),
            ("1w", 604_800_000),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in
            ["", "0", "0s", "m", "5x", "-5s", "1.5h", "5 s", "99999999999999999999s", "2000d"]
        {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
