//! Budgets: hard limits of a run, checked before every request.
//!
//! Tokens and cost are counted over the whole Session and its Subagents, because that is what is
//! billed; requests, children and time over this run. The expected usage of a request is reserved
//! before it is sent; its actual usage is known only afterwards, so the last one may overshoot.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::usage_total::{
    ExpectedRequest, LimitReached, Reservation, SpendLimit, SpendLimits, UsageAmount, UsageTotal,
};
use crate::base::error::{Kind, Report, counted};
use crate::record::event::{TerminalStatus, TokenUsage};
use crate::settings::config::{BudgetLimits as Limits, Prices};

/// The limits of a run, and its counts of requests and children.
#[derive(Debug)]
pub struct RunBudget {
    limits: Limits,
    prices: Prices,
    started: Instant,
    requests: AtomicU64,
    /// Subagents that were started.
    children: AtomicUsize,
}

/// The refusal of a request: the status and the error that end the Turn.
#[derive(Debug)]
pub struct BudgetRefusal {
    pub status: TerminalStatus,
    pub report: Box<Report>,
}

/// Waits for a reservation; calls `tell(true)` if it is not granted at once, and `tell(false)` when
/// it is.
pub async fn notify_wait<T>(reserving: impl Future<Output = T>, tell: impl Fn(bool)) -> T {
    let mut reserving = pin!(reserving);
    let first = std::future::poll_fn(|context| Poll::Ready(reserving.as_mut().poll(context)));
    if let Poll::Ready(reserved) = first.await {
        return reserved;
    }
    tell(true);
    let reserved = reserving.await;
    tell(false);
    reserved
}

impl RunBudget {
    /// Starts the clock of the run.
    pub fn new(limits: Limits, prices: Prices) -> Self {
        Self {
            limits,
            prices,
            started: Instant::now(),
            requests: AtomicU64::default(),
            children: AtomicUsize::default(),
        }
    }

    /// Prices by model.
    pub fn prices(&self) -> &Prices {
        &self.prices
    }

    /// The deadline of the run.
    pub fn deadline(&self) -> Option<Instant> {
        self.started.checked_add(self.limits.timeout?)
    }

    /// Time left until the deadline.
    pub fn time_left(&self) -> Option<Duration> {
        Some(self.deadline()?.saturating_duration_since(Instant::now()))
    }

    /// Spending limits of the Session and its children.
    pub fn spend_limits(&self) -> SpendLimits {
        SpendLimits { tokens: self.limits.max_tokens_total, cost: self.limits.max_cost }
    }

    /// Waits until one more request may be sent, and reserves its expected usage; fails with the
    /// limit that forbids it. `input_tokens` is called only if something is limited.
    pub async fn reserve(
        &self,
        model: &str,
        usage_total: &UsageTotal,
        input_tokens: impl FnOnce() -> u64,
    ) -> Result<Option<Reservation>, BudgetRefusal> {
        self.check_time()?;
        let limits = self.spend_limits();
        if !usage_total.is_limited(limits) {
            return Ok(None);
        }
        self.check_price(model, usage_total)?;
        let input_tokens = input_tokens();
        let expected = ExpectedRequest { model, prices: &self.prices, input_tokens };
        let reserved = usage_total.reserve(limits, expected).await;
        reserved.map(Some).map_err(|exhausted| limit_reached_refusal(&exhausted))
    }

    /// Checks the limits before a request is sent or resent, and counts it. `billed` are the tokens
    /// that the current call was already billed for.
    pub fn check_and_count(
        &self,
        model: &str,
        usage_total: &UsageTotal,
        billed: &TokenUsage,
    ) -> Result<(), BudgetRefusal> {
        self.check_time()?;
        let checked = usage_total.check(self.spend_limits(), self.amount(model, billed));
        checked.map_err(|exhausted| limit_reached_refusal(&exhausted))?;
        self.count_request()
    }

    /// The amount for tokens of a model.
    pub fn amount(&self, model: &str, tokens: &TokenUsage) -> UsageAmount {
        let cost = self.prices.cost(model, tokens).unwrap_or_default();
        UsageAmount { tokens: tokens.total_tokens, cost }
    }

    /// Counts one more child of the run; false if it has had `most`.
    pub fn count_child(&self, most: usize) -> bool {
        let more = |count: usize| (count < most).then_some(count + 1);
        self.children.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn check_time(&self) -> Result<(), BudgetRefusal> {
        match self.deadline() {
            Some(deadline) if Instant::now() >= deadline => Err(self.timeout_refusal()),
            _ => Ok(()),
        }
    }

    fn count_request(&self) -> Result<(), BudgetRefusal> {
        let Some(limit) = self.limits.max_requests else { return Ok(()) };
        let used = self.requests.fetch_add(1, Ordering::Relaxed);
        if used >= limit {
            let requests = counted(limit, "request");
            let message = format!("the run has made {requests}, its limit (--max-requests)");
            return Err(limit_refusal("max_requests", message, &json!(limit), &json!(limit)));
        }
        Ok(())
    }

    /// A limit that cannot be checked is not a limit, so a model without a price is refused.
    fn check_price(&self, model: &str, usage_total: &UsageTotal) -> Result<(), BudgetRefusal> {
        let limit = match self.limits.max_cost {
            Some(_) => "--max-cost",
            None if usage_total.has_cost_limit() => RUN_COST_LIMIT,
            None => return Ok(()),
        };
        if self.prices.get(model).is_some() {
            return Ok(());
        }
        let status = TerminalStatus::ConfigurationError;
        Err(BudgetRefusal { status, report: Box::new(missing_price_report(model, limit)) })
    }

    /// The refusal after the deadline of the run.
    pub fn timeout_refusal(&self) -> BudgetRefusal {
        let allowed = self.limits.timeout.unwrap_or_default();
        let message = format!("the run's time of {} s is over (--timeout)", allowed.as_secs_f64());
        let report = Report::new(Kind::Timeout, message)
            .with_details(json!({ "budget": "timeout", "limit_s": allowed.as_secs_f64() }))
            .with_next_actions(vec!["go on with `pixir resume`, or raise --timeout".to_owned()]);
        BudgetRefusal { status: TerminalStatus::TimedOut, report: Box::new(report) }
    }
}

/// The cost limit of a Workflow run, as it is written in a Workflow.
pub const RUN_COST_LIMIT: &str = "`budget.cost_usd`";

/// The report for a cost limit on a model without a configured price.
pub fn missing_price_report(model: &str, limit: &str) -> Report {
    let message =
        format!("{limit} cannot be checked: the price of {model} is not in `prices` of the config");
    let example = format!(
        r#"add it, in dollars per million tokens: {{"prices": {{"{model}": {{"input": 1, "output": 2}}}}}}"#
    );
    let tokens = match limit {
        RUN_COST_LIMIT => "or use `budget.tokens`",
        _ => "or use --max-tokens-total",
    };
    Report::new(Kind::InvalidConfig, message).with_next_actions(vec![example, tokens.to_owned()])
}

/// The report for a limit on tokens or cost that is reached.
fn limit_reached_refusal(exhausted: &LimitReached) -> BudgetRefusal {
    let LimitReached { is_run_limit: is_of_run, limit } = exhausted;
    let (name, of_run, limit, used, amount) = match *limit {
        SpendLimit::Tokens { limit, used } => {
            let amount = format!("used {used} tokens of {limit}");
            ("max_tokens_total", "tokens", json!(limit), json!(used), amount)
        }
        SpendLimit::Cost { limit, used } => {
            let amount = format!("cost about ${used:.4} of ${limit}");
            ("max_cost", "cost_usd", json!(limit), json!(used), amount)
        }
    };
    if !is_of_run {
        let message = format!("the Session has {amount} (--{})", name.replace('_', "-"));
        return limit_refusal(name, message, &limit, &used);
    }
    let name = format!("budget.{of_run}");
    let report = Report::new(Kind::BudgetExceeded, format!("the run has {amount} (`{name}`)"))
        .with_details(json!({ "budget": name, "limit": limit, "used": used }))
        .with_next_actions(vec![format!("raise `{name}` of the workflow, and run it again")]);
    BudgetRefusal { status: TerminalStatus::BudgetExceeded, report: Box::new(report) }
}

fn limit_refusal(name: &str, message: String, limit: &Value, used: &Value) -> BudgetRefusal {
    let flag = name.replace('_', "-");
    let action = match name {
        "max_requests" => format!("go on with `pixir resume`, or raise --{flag}"),
        _ => format!("raise --{flag}, or start a new Session"),
    };
    let report = Report::new(Kind::BudgetExceeded, message)
        .with_details(json!({ "budget": name, "limit": limit, "used": used }))
        .with_next_actions(vec![action]);
    BudgetRefusal { status: TerminalStatus::BudgetExceeded, report: Box::new(report) }
}
