//! Budgets: hard limits of a run, looked at before every request leaves.
//!
//! Tokens and cost are counted over the whole Session and everybody it delegated to, because that is
//! what is paid for; requests and time over this run, because that is what somebody waits for. What a request will cost is
//! known only afterwards, so the last one may overshoot.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::purse::Purse;
use crate::config::{Budget as Limits, Prices};
use crate::error::{Kind, Report};
use crate::event::{TerminalStatus, Tokens};

/// What a run may use up, and what it has used.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    prices: Prices,
    started: Instant,
    requests: AtomicU64,
}

/// Why no request may leave.
#[derive(Debug)]
pub struct Spent {
    pub status: TerminalStatus,
    pub report: Box<Report>,
}

impl Budget {
    /// The clock of the run starts here.
    pub fn new(limits: Limits, prices: Prices) -> Self {
        Self { limits, prices, started: Instant::now(), requests: AtomicU64::new(0) }
    }

    /// What tokens cost.
    pub fn prices(&self) -> &Prices {
        &self.prices
    }

    /// When the run's time is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.started.checked_add(self.limits.timeout?)
    }

    /// How much of its time the run still has.
    pub fn left(&self) -> Option<Duration> {
        Some(self.deadline()?.saturating_duration_since(Instant::now()))
    }

    /// Lets one request leave and counts it, or says which limit forbids it. `open` is what the
    /// current call was billed for already, and what is not in the Log yet.
    pub fn admit(&self, model: &str, purse: &Purse, open: &Tokens) -> Result<(), Spent> {
        if self.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(self.late());
        }
        if let Some(limit) = self.limits.max_tokens_total {
            let used = purse.spent().tokens.saturating_add(open.total_tokens);
            if used >= limit {
                let message =
                    format!("the Session has used {used} tokens of {limit} (--max-tokens-total)");
                return Err(spent("max_tokens_total", message, &json!(limit), &json!(used)));
            }
        }
        if let Some(limit) = self.limits.max_cost {
            self.check_cost(limit, model, purse, open)?;
        }
        let Some(limit) = self.limits.max_requests else { return Ok(()) };
        let used = self.requests.fetch_add(1, Ordering::Relaxed);
        if used >= limit {
            let message = format!("the run has made its {limit} requests (--max-requests)");
            return Err(spent("max_requests", message, &json!(limit), &json!(limit)));
        }
        Ok(())
    }

    /// A limit that cannot be checked is not a limit, so a model without a price is refused.
    fn check_cost(
        &self,
        limit: f64,
        model: &str,
        purse: &Purse,
        open: &Tokens,
    ) -> Result<(), Spent> {
        let Some(open) = self.prices.cost(model, open) else {
            let status = TerminalStatus::ConfigurationError;
            return Err(Spent { status, report: Box::new(unpriced(model)) });
        };
        let used = purse.spent().cost + open;
        if used < limit {
            return Ok(());
        }
        let message = format!("the Session has cost about ${used:.4} of ${limit} (--max-cost)");
        Err(spent("max_cost", message, &json!(limit), &json!(used)))
    }

    /// The run's time is over.
    pub fn late(&self) -> Spent {
        let allowed = self.limits.timeout.unwrap_or_default();
        let message = format!("the run's time of {} s is over (--timeout)", allowed.as_secs_f64());
        let report = Report::new(Kind::Timeout, message)
            .with_details(json!({ "budget": "timeout", "limit_s": allowed.as_secs_f64() }))
            .with_next_actions(vec!["go on with `pixir resume`, or raise --timeout".to_owned()]);
        Spent { status: TerminalStatus::TimedOut, report: Box::new(report) }
    }
}

/// The report for a cost limit on a model whose price nobody knows.
pub fn unpriced(model: &str) -> Report {
    let message =
        format!("--max-cost cannot be kept: the price of {model} is not in `prices` of the config");
    let example = format!(
        r#"add it, in dollars per million tokens: {{"prices": {{"{model}": {{"input": 1, "output": 2}}}}}}"#
    );
    Report::new(Kind::InvalidConfig, message)
        .with_next_actions(vec![example, "or use --max-tokens-total".to_owned()])
}

fn spent(name: &str, message: String, limit: &Value, used: &Value) -> Spent {
    let flag = name.replace('_', "-");
    let action = match name {
        "max_requests" => format!("go on with `pixir resume`, or raise --{flag}"),
        _ => format!("raise --{flag}, or start a new Session"),
    };
    let report = Report::new(Kind::BudgetExceeded, message)
        .with_details(json!({ "budget": name, "limit": limit, "used": used }))
        .with_next_actions(vec![action]);
    Spent { status: TerminalStatus::BudgetExceeded, report: Box::new(report) }
}
