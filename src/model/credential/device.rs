//! Sign-in by device code (RFC 8628): the user types a code on any device, and Pixir polls the issuer.

use std::time::Duration;

use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::CredentialError;
use super::issuer::{CLIENT_ID, Issuer, IssuerAnswer, IssuerFailure};
use super::token::{SubscriptionTokens, unix_now};

/// The timing of polls.
#[derive(Debug, Clone, Copy)]
pub struct PollTiming {
    /// The shortest interval, whatever the server says.
    pub min_interval: Duration,
    /// The time added to the interval at every `slow_down`.
    pub slow_down_step: Duration,
    /// How long to wait for the user.
    pub deadline: Duration,
}

impl Default for PollTiming {
    fn default() -> Self {
        Self {
            min_interval: Duration::from_secs(1),
            slow_down_step: Duration::from_secs(5),
            deadline: Duration::from_mins(15),
        }
    }
}

/// The interval of RFC 8628 when the server names none.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// A device sign-in under way.
pub struct DeviceLogin<'a> {
    issuer: &'a Issuer,
    id: String,
    /// The code that the user types.
    pub user_code: String,
    interval: Duration,
}

impl<'a> DeviceLogin<'a> {
    /// Requests a code from the issuer.
    pub async fn start(issuer: &'a Issuer) -> Result<Self, CredentialError> {
        let body = json!({ "client_id": CLIENT_ID });
        let answer = issuer.request_json("/api/accounts/deviceauth/usercode", &body).await?;
        let json = match answer {
            IssuerAnswer::Json(json) => json,
            IssuerAnswer::Failure(complaint) if complaint.status == 404 => {
                return Err(CredentialError::NoDeviceLogin);
            }
            IssuerAnswer::Failure(complaint) if complaint.status >= 500 => {
                return Err(complaint.into_unavailable());
            }
            IssuerAnswer::Failure(complaint) => return Err(complaint.into_refused()),
        };
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|name| json[*name].as_str());
            found.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let (Some(id), Some(user_code)) =
            (text(&["device_auth_id"]), text(&["user_code", "usercode"]))
        else {
            let message = "it sent no code".to_owned();
            return Err(CredentialError::Unavailable { message });
        };
        Ok(Self { issuer, id, user_code, interval: parse_interval(&json["interval"]) })
    }

    /// The URL of the page for the code.
    pub fn page_url(&self) -> String {
        format!("{}/codex/device", self.issuer.base())
    }

    /// Polls until the user has typed the code, the issuer refuses, or the deadline passes.
    pub async fn finish(self, pace: PollTiming) -> Result<SubscriptionTokens, CredentialError> {
        let deadline = Instant::now() + pace.deadline;
        let mut interval = self.interval.max(pace.min_interval);
        loop {
            match self.poll().await {
                Ok(DevicePoll::Approved { code, verifier }) => {
                    let redirect_uri = format!("{}/deviceauth/callback", self.issuer.base());
                    let grant = self.issuer.exchange_code(&code, &redirect_uri, &verifier).await?;
                    return SubscriptionTokens::from_grant(grant, unix_now());
                }
                Ok(DevicePoll::Pending) => {}
                Ok(DevicePoll::SlowDown) => interval += pace.slow_down_step,
                // A temporary network failure is no reason to give up while the user types.
                Err(error) if error.is_passing() => interval = interval.max(pace.min_interval * 2),
                Err(error) => return Err(error),
            }
            if Instant::now() + interval > deadline {
                let minutes = pace.deadline.as_secs() / 60;
                return Err(CredentialError::TooLate { minutes });
            }
            tokio::time::sleep(interval).await;
        }
    }

    async fn poll(&self) -> Result<DevicePoll, CredentialError> {
        let body = json!({ "device_auth_id": self.id, "user_code": self.user_code });
        let json = match self.issuer.request_json("/api/accounts/deviceauth/token", &body).await? {
            IssuerAnswer::Json(json) => json,
            IssuerAnswer::Failure(complaint) => return judge_failure(complaint),
        };
        let secret = |name: &str| json[name].as_str().map(SecretString::from);
        let (Some(code), Some(verifier)) = (secret("authorization_code"), secret("code_verifier"))
        else {
            let message = "it approved without a code".to_owned();
            return Err(CredentialError::Unavailable { message });
        };
        Ok(DevicePoll::Approved { code, verifier })
    }
}

enum DevicePoll {
    Approved { code: SecretString, verifier: SecretString },
    Pending,
    SlowDown,
}

fn judge_failure(complaint: IssuerFailure) -> Result<DevicePoll, CredentialError> {
    match (complaint.code.as_str(), complaint.status) {
        ("slow_down", _) => Ok(DevicePoll::SlowDown),
        ("expired_token" | "deviceauth_expired" | "deviceauth_code_expired", _) => {
            Err(CredentialError::Refused {
                code: complaint.code,
                message: "the code has expired".to_owned(),
            })
        }
        ("access_denied" | "deviceauth_denied" | "authorization_declined", _) => {
            Err(complaint.into_refused())
        }
        ("deviceauth_authorization_pending" | "authorization_pending", _) | (_, 403 | 404) => {
            Ok(DevicePoll::Pending)
        }
        (_, 429 | 500..) => Err(complaint.into_unavailable()),
        _ => Err(complaint.into_refused()),
    }
}

/// Parses an interval in seconds: a number, or a number as text.
fn parse_interval(value: &Value) -> Duration {
    let seconds = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    seconds
        .filter(|seconds| *seconds <= 600.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .unwrap_or(DEFAULT_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_or_text() {
        for (value, seconds) in [
            (json!(3), 3),
            (json!("7"), 7),
            (json!(" 2 "), 2),
            (Value::Null, 5),
            (json!("soon"), 5),
            (json!(-1), 5),
            (json!(1e9), 5),
        ] {
            assert_eq!(parse_interval(&value), Duration::from_secs(seconds), "{value}");
        }
    }

    #[test]
    fn a_complaint_means_wait_or_stop() {
        let word = |code: &str, status: u16| {
            let message = "m".to_owned();
            match judge_failure(IssuerFailure { status, code: code.to_owned(), message }) {
                Ok(DevicePoll::Approved { .. }) => "approved",
                Ok(DevicePoll::Pending) => "pending",
                Ok(DevicePoll::SlowDown) => "slow down",
                Err(error) if error.is_passing() => "passing",
                Err(_) => "over",
            }
        };
        for (code, status, expected) in [
            ("", 403, "pending"),
            ("", 404, "pending"),
            ("deviceauth_authorization_pending", 400, "pending"),
            ("slow_down", 400, "slow down"),
            ("slow_down", 429, "slow down"),
            ("expired_token", 400, "over"),
            ("access_denied", 403, "over"),
            ("", 400, "over"),
            ("", 502, "passing"),
        ] {
            assert_eq!(word(code, status), expected, "{code} {status}");
        }
    }
}
