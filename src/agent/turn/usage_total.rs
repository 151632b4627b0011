//! Usage total: the billed usage of a Session and all its Subagents, and the reservations of their
//! requests in progress.
//!
//! One list of accounts is shared by a tree of Sessions. A request counts in every account on the
//! path of its Session: the whole tree, a Workflow run, the children of one parent, the Session
//! itself. Its expected usage is reserved before it is sent, so that concurrent requests cannot
//! overspend together; its actual usage replaces the reservation when it is over.

use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::record::event::{Canonical, ProviderUsage, SubagentUsage, TokenUsage};
use crate::record::history::History;
use crate::settings::config::Prices;

/// Minimum expected output of a request, in tokens.
const MIN_OUTPUT_TOKENS: u64 = 2_000;

/// If this many times the estimate is left, a first request is sent without waiting for another one
/// that would show the cost.
const AMPLE_FACTOR: u32 = 1_000;

/// Usage of a tree of Sessions; clones share it.
#[derive(Debug, Clone)]
pub struct UsageTotal {
    shared: Arc<Shared>,
    /// Indexes of the accounts that a request counts in, the whole tree's first.
    path: Arc<[usize]>,
}

#[derive(Debug)]
struct Shared {
    accounts: Mutex<Vec<UsageAccount>>,
    /// Notified when a reservation ends or usage is added.
    changed: Notify,
}

/// Usage of some Sessions of the tree, and its limits.
#[derive(Debug, Default)]
struct UsageAccount {
    limits: SpendLimits,
    spent: UsageAmount,
    /// Requests that were billed.
    calls: u64,
    output_tokens: u64,
    /// Requests under way.
    under_way: usize,
    /// Requests under way that are the first of their Session and its siblings: their cost may be
    /// far from the estimate.
    firsts_under_way: usize,
    /// Expected usage of requests under way.
    reserved: UsageAmount,
    /// Billed usage of failed attempts whose calls are not over.
    held: UsageAmount,
    /// How many calls `held` belongs to.
    holds: usize,
    /// Index of the account of this Session's children.
    children: Option<usize>,
}

/// Tokens and cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct UsageAmount {
    /// Input and output.
    pub tokens: u64,
    /// Estimated dollars, for models with a price.
    pub cost: f64,
}

/// Spending limits of an account.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpendLimits {
    /// Input and output.
    pub tokens: Option<u64>,
    /// Estimated dollars.
    pub cost: Option<f64>,
}

/// A request before it is sent.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedRequest<'a> {
    /// The model that will be asked.
    pub model: &'a str,
    /// Prices by model.
    pub prices: &'a Prices,
    /// The estimated size of the input.
    pub input_tokens: u64,
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitReached {
    /// Whether it is a limit of a Workflow run, not of the Session.
    pub is_run_limit: bool,
    pub limit: SpendLimit,
}

/// Which limit is reached, and what was used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SpendLimit {
    Tokens { limit: u64, used: u64 },
    Cost { limit: f64, used: f64 },
}

/// Reserved usage of a request under way; released on drop.
#[derive(Debug)]
pub struct Reservation {
    usage_total: UsageTotal,
    amount: UsageAmount,
    is_first: bool,
}

/// Usage billed for failed attempts of a call, until the call's usage is recorded: spent, but not yet
/// in `spent`. Released on drop.
#[derive(Debug)]
pub struct SpendHold {
    usage_total: UsageTotal,
    amount: UsageAmount,
}

/// Whether a request may be sent now.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ReservationDecision {
    Granted {
        amount: UsageAmount,
        is_first: bool,
    },
    /// Another request has to end first.
    MustWait,
    Refused(LimitReached),
}

impl Default for UsageTotal {
    fn default() -> Self {
        Self::with_account(UsageAccount::default())
    }
}

impl UsageTotal {
    fn with_account(account: UsageAccount) -> Self {
        let shared = Shared { accounts: Mutex::new(vec![account]), changed: Notify::new() };
        Self { shared: Arc::new(shared), path: Arc::new([0]) }
    }

    /// The usage that a Log records: of its Session, and of children that ended.
    pub fn from_history(history: &History, prices: &Prices) -> Self {
        let mut account = UsageAccount::default();
        for fact in history.facts() {
            match fact {
                Canonical::ProviderUsage(usage) => account.add_call(usage, prices),
                Canonical::SubagentEvent(child) if child.ends_run() && !child.is_copy() => {
                    account.add(&child.usage.unwrap_or_default());
                }
                _ => {}
            }
        }
        Self::with_account(account)
    }

    /// The total for a child's Session: siblings share an account, and each has its own.
    #[must_use]
    pub fn for_child(&self) -> Self {
        let mut accounts = self.shared.accounts.lock();
        let own = self.path[self.path.len() - 1];
        let children = accounts[own].children.unwrap_or(accounts.len());
        if children == accounts.len() {
            accounts.push(UsageAccount::default());
            accounts[own].children = Some(children);
        }
        accounts.push(UsageAccount::default());
        self.extended(&[children, accounts.len() - 1])
    }

    /// The total for work with its own limits, such as a Workflow run.
    #[must_use]
    pub fn with_limits(&self, limits: SpendLimits) -> Self {
        let mut accounts = self.shared.accounts.lock();
        accounts.push(UsageAccount { limits, ..UsageAccount::default() });
        self.extended(&[accounts.len() - 1])
    }

    fn extended(&self, more: &[usize]) -> Self {
        let path = self.path.iter().chain(more).copied().collect();
        Self { shared: Arc::clone(&self.shared), path }
    }

    /// Adds the recorded usage of one Provider call.
    pub fn add_call(&self, usage: &ProviderUsage, prices: &Prices) {
        self.update_accounts(|account| account.add_call(usage, prices));
    }

    /// Adds the usage of a child whose process died.
    pub fn add_subagent(&self, usage: &SubagentUsage) {
        self.update_accounts(|account| account.add(usage));
    }

    /// Whether a spending limit applies.
    pub fn is_limited(&self, session: SpendLimits) -> bool {
        let accounts = self.shared.accounts.lock();
        session.is_any() || self.path.iter().any(|place| accounts[*place].limits.is_any())
    }

    /// Whether the run, and not only the Session, has a limit in dollars.
    pub fn has_cost_limit(&self) -> bool {
        let accounts = self.shared.accounts.lock();
        self.path.iter().any(|place| accounts[*place].limits.cost.is_some())
    }

    /// Waits until a request may be sent, and reserves its expected usage. It may be sent when the
    /// limits cover it in addition to all requests in progress, or when none is in progress.
    pub async fn reserve(
        &self,
        session: SpendLimits,
        expected: ExpectedRequest<'_>,
    ) -> Result<Reservation, LimitReached> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            // Registers for notification before the limits are checked.
            changed.as_mut().enable();
            match self.decide_reservation(session, expected) {
                ReservationDecision::Granted { amount, is_first } => {
                    return Ok(Reservation { usage_total: self.clone(), amount, is_first });
                }
                ReservationDecision::Refused(exhausted) => return Err(exhausted),
                ReservationDecision::MustWait => changed.await,
            }
        }
    }

    /// Decides about a request, and reserves for it if it may be sent.
    fn decide_reservation(
        &self,
        session: SpendLimits,
        expected: ExpectedRequest<'_>,
    ) -> ReservationDecision {
        let mut accounts = self.shared.accounts.lock();
        let with_held = |account: &UsageAccount| account.spent.plus(account.held);
        if let Err(exhausted) = self.find_exhausted(&accounts, session, with_held) {
            return ReservationDecision::Refused(exhausted);
        }
        let nearest_first = || self.path.iter().rev().map(|place| &accounts[*place]);
        // Estimates from the nearest account that has billed requests.
        let amount = expected.estimate_usage(nearest_first().find(|own| own.calls > 0));
        // Neither the Session nor a sibling was billed for anything yet.
        let is_first = nearest_first().take(2).all(|own| own.calls == 0);
        let must_wait = |(account, limits, _): (&UsageAccount, SpendLimits, bool)| {
            let is_short = account.under_way > 0 && !account.covers(amount, limits);
            let has_first = is_first && account.firsts_under_way > 0;
            is_short || has_first && !account.covers(amount.times(AMPLE_FACTOR), limits)
        };
        if self.limited_accounts(&accounts, session).any(must_wait) {
            return ReservationDecision::MustWait;
        }
        for place in &*self.path {
            let account = &mut accounts[*place];
            account.under_way += 1;
            account.firsts_under_way += usize::from(is_first);
            account.reserved.add(amount);
        }
        ReservationDecision::Granted { amount, is_first }
    }

    /// Holds an amount that failed attempts of a call were billed for.
    pub fn hold(&self, amount: UsageAmount) -> SpendHold {
        self.update_accounts(|account| {
            account.holds += 1;
            account.held.add(amount);
        });
        SpendHold { usage_total: self.clone(), amount }
    }

    /// Fails if a limit is reached; `billed` is the usage of the current call that is not in the Log
    /// yet.
    pub fn check(&self, session: SpendLimits, billed: UsageAmount) -> Result<(), LimitReached> {
        self.find_exhausted(&self.shared.accounts.lock(), session, |account| {
            account.spent.plus(billed)
        })
    }

    /// Waits until a limit is reached.
    pub async fn wait_for_limit(&self, session: SpendLimits) {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if self.check(session, UsageAmount::default()).is_err() {
                return;
            }
            changed.await;
        }
    }

    fn find_exhausted(
        &self,
        accounts: &[UsageAccount],
        session: SpendLimits,
        spent: impl Fn(&UsageAccount) -> UsageAmount,
    ) -> Result<(), LimitReached> {
        for (account, limits, is_of_run) in self.limited_accounts(accounts, session) {
            if let Some(limit) = limits.limit_reached(spent(account)) {
                return Err(LimitReached { is_run_limit: is_of_run, limit });
            }
        }
        Ok(())
    }

    /// The accounts on the path that have limits, those of the Session first, and whether the limits are
    /// those of a run.
    fn limited_accounts<'a>(
        &'a self,
        accounts: &'a [UsageAccount],
        session: SpendLimits,
    ) -> impl Iterator<Item = (&'a UsageAccount, SpendLimits, bool)> {
        let session_account = accounts.first().map(|account| (account, session, false));
        let runs = self.path.iter().map(|place| {
            let account = &accounts[*place];
            (account, account.limits, true)
        });
        session_account.into_iter().chain(runs).filter(|(_, limits, _)| limits.is_any())
    }

    fn update_accounts(&self, change: impl Fn(&mut UsageAccount)) {
        let mut accounts = self.shared.accounts.lock();
        for place in &*self.path {
            change(&mut accounts[*place]);
        }
        drop(accounts);
        self.shared.changed.notify_waiters();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Self { amount, is_first, .. } = *self;
        self.usage_total.update_accounts(|account| account.release(amount, is_first));
    }
}

impl Drop for SpendHold {
    fn drop(&mut self) {
        let amount = self.amount;
        self.usage_total.update_accounts(|account| account.release_hold(amount));
    }
}

impl ExpectedRequest<'_> {
    /// Expected usage: the input, plus the average output of the nearest account's requests; at
    /// least the average of those requests as a whole.
    fn estimate_usage(&self, nearest: Option<&UsageAccount>) -> UsageAmount {
        let average = |sum: fn(&UsageAccount) -> u64| {
            nearest.and_then(|own| sum(own).checked_div(own.calls)).unwrap_or_default()
        };
        let output_tokens = average(|own| own.output_tokens).max(MIN_OUTPUT_TOKENS);
        let (input_tokens, model) = (self.input_tokens, self.model);
        let tokens = TokenUsage { input_tokens, output_tokens, ..TokenUsage::default() };
        let cost = self.prices.cost(model, &tokens).unwrap_or_default();
        UsageAmount {
            tokens: input_tokens.saturating_add(output_tokens).max(average(|own| own.spent.tokens)),
            cost: cost.max(nearest.map_or(0.0, UsageAccount::average_cost)),
        }
    }
}

impl UsageAccount {
    fn add(&mut self, usage: &SubagentUsage) {
        self.spent.tokens = self.spent.tokens.saturating_add(usage.total_tokens);
        self.spent.cost += usage.estimated_cost_usd.unwrap_or_default();
        self.calls = self.calls.saturating_add(usage.calls);
        self.output_tokens = self.output_tokens.saturating_add(usage.output_tokens);
    }

    /// Usage that was recorded without a cost is priced now.
    fn add_call(&mut self, usage: &ProviderUsage, prices: &Prices) {
        let Some(billed) = usage.billed() else { return };
        let cost = usage.estimated_cost_usd.or_else(|| prices.cost(&usage.model, &billed));
        self.add(&SubagentUsage { estimated_cost_usd: cost, ..SubagentUsage::from_usage(usage) });
    }

    fn release(&mut self, amount: UsageAmount, is_first: bool) {
        self.under_way = self.under_way.saturating_sub(1);
        self.firsts_under_way = self.firsts_under_way.saturating_sub(usize::from(is_first));
        self.reserved.tokens = self.reserved.tokens.saturating_sub(amount.tokens);
        self.reserved.cost -= amount.cost;
        if self.under_way == 0 {
            // Clears floating-point residue.
            self.reserved = UsageAmount::default();
        }
    }

    fn release_hold(&mut self, amount: UsageAmount) {
        self.holds = self.holds.saturating_sub(1);
        self.held.tokens = self.held.tokens.saturating_sub(amount.tokens);
        self.held.cost -= amount.cost;
        if self.holds == 0 {
            self.held = UsageAmount::default();
        }
    }

    /// Whether `limits` cover `amount` in addition to everything spent, held and reserved.
    fn covers(&self, amount: UsageAmount, limits: SpendLimits) -> bool {
        let all = self.spent.plus(self.held).plus(self.reserved).plus(amount);
        limits.tokens.is_none_or(|limit| all.tokens <= limit)
            && limits.cost.is_none_or(|limit| all.cost <= limit)
    }

    #[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^52")]
    fn average_cost(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.spent.cost / self.calls as f64 }
    }
}

impl UsageAmount {
    fn times(self, factor: u32) -> Self {
        let tokens = self.tokens.saturating_mul(u64::from(factor));
        Self { tokens, cost: self.cost * f64::from(factor) }
    }

    fn add(&mut self, more: Self) {
        *self = self.plus(more);
    }

    fn plus(self, more: Self) -> Self {
        let tokens = self.tokens.saturating_add(more.tokens);
        Self { tokens, cost: self.cost + more.cost }
    }
}

impl SpendLimits {
    fn is_any(self) -> bool {
        self.tokens.is_some() || self.cost.is_some()
    }

    fn limit_reached(self, spent: UsageAmount) -> Option<SpendLimit> {
        let tokens = self.tokens.filter(|limit| spent.tokens >= *limit);
        let cost = self.cost.filter(|limit| spent.cost >= *limit);
        tokens
            .map(|limit| SpendLimit::Tokens { limit, used: spent.tokens })
            .or(cost.map(|limit| SpendLimit::Cost { limit, used: spent.cost }))
    }
}

#[cfg(test)]
mod tests;
