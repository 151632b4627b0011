//! Usage total: what a Session and all its Subagents were billed for, and what their requests under
//! way have reserved.
//!
//! One list of accounts is shared by a tree of Sessions. A request counts in every account on the
//! path of its Session: the whole tree, a Workflow run, the children of one parent, the Session
//! itself. Its expected usage is reserved before it is sent, so that concurrent requests cannot
//! overspend together; its actual usage replaces the reservation when it is over.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::record::event::{Canonical, ProviderUsage, SubagentUsage, Tokens};
use crate::record::history::History;
use crate::settings::config::Prices;

/// Minimum expected output of a request, in tokens.
const LEAST_OUTPUT: u64 = 2_000;

/// If this many times the estimate is left, a first request is sent without waiting for another one
/// that would show the cost.
const AMPLE: u32 = 1_000;

/// Usage of a tree of Sessions; clones share it.
#[derive(Debug, Clone)]
pub struct Purse {
    shared: Arc<Shared>,
    /// Indexes of the accounts that a request counts in, the whole tree's first.
    path: Arc<[usize]>,
}

#[derive(Debug)]
struct Shared {
    accounts: Mutex<Vec<Account>>,
    /// Notified when a reservation ends or usage is added.
    changed: Notify,
}

/// Usage of some Sessions of the tree, and its limits.
#[derive(Debug, Default)]
struct Account {
    limits: SpendLimits,
    spent: Amount,
    /// Requests that were billed.
    calls: u64,
    output_tokens: u64,
    /// Requests under way.
    open: usize,
    /// Requests under way that are the first of their Session and its siblings: their cost may be
    /// far from the estimate.
    open_firsts: usize,
    /// Expected usage of requests under way.
    reserved: Amount,
    /// Billed usage of failed attempts whose calls are not over.
    held: Amount,
    /// How many calls `held` belongs to.
    holds: usize,
    /// Index of the account of this Session's children.
    children: Option<usize>,
}

/// Tokens and cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Amount {
    /// Input and output.
    pub tokens: u64,
    /// Estimated dollars, of what has a price.
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
pub struct Expected<'a> {
    /// The model that will be asked.
    pub model: &'a str,
    /// Prices by model.
    pub prices: &'a Prices,
    /// The estimated size of the input.
    pub input_tokens: u64,
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exhausted {
    /// Whether it is a limit of a Workflow run, not of the Session.
    pub is_of_run: bool,
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
    purse: Purse,
    amount: Amount,
    is_first: bool,
}

/// Usage billed for failed attempts of a call, until the call's usage is recorded: spent, and not
/// in `spent` yet. Released on drop.
#[derive(Debug)]
pub struct Hold {
    purse: Purse,
    amount: Amount,
}

/// Whether a request may be sent now.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Admission {
    Leaves {
        amount: Amount,
        is_first: bool,
    },
    /// Another request has to end first.
    Waits,
    Refused(Exhausted),
}

impl Default for Purse {
    fn default() -> Self {
        Self::holding(Account::default())
    }
}

impl Purse {
    fn holding(account: Account) -> Self {
        let shared = Shared { accounts: Mutex::new(vec![account]), changed: Notify::new() };
        Self { shared: Arc::new(shared), path: Arc::new([0]) }
    }

    /// Usage that a Log records: its own, and that of children that ended.
    pub fn of(history: &History, prices: &Prices) -> Self {
        let mut account = Account::default();
        for fact in history.facts() {
            match fact {
                Canonical::ProviderUsage(bill) => account.pay(bill, prices),
                Canonical::SubagentEvent(child) if child.ends_run() && !child.is_copy() => {
                    account.add(&child.usage.unwrap_or_default());
                }
                _ => {}
            }
        }
        Self::holding(account)
    }

    /// The total for a child's Session: siblings share an account, and each has its own.
    #[must_use]
    pub fn of_child(&self) -> Self {
        let mut accounts = self.lock();
        let own = self.path[self.path.len() - 1];
        let children = accounts[own].children.unwrap_or(accounts.len());
        if children == accounts.len() {
            accounts.push(Account::default());
            accounts[own].children = Some(children);
        }
        accounts.push(Account::default());
        self.extended(&[children, accounts.len() - 1])
    }

    /// The total for work with its own limits, such as a Workflow run.
    #[must_use]
    pub fn within(&self, limits: SpendLimits) -> Self {
        let mut accounts = self.lock();
        accounts.push(Account { limits, ..Account::default() });
        self.extended(&[accounts.len() - 1])
    }

    fn extended(&self, more: &[usize]) -> Self {
        let path = self.path.iter().chain(more).copied().collect();
        Self { shared: Arc::clone(&self.shared), path }
    }

    /// Adds the recorded usage of one Provider call.
    pub fn pay(&self, bill: &ProviderUsage, prices: &Prices) {
        self.change(|account| account.pay(bill, prices));
    }

    /// Adds the usage of a child whose process died.
    pub fn charge(&self, usage: &SubagentUsage) {
        self.change(|account| account.add(usage));
    }

    /// Whether anything limits what may be spent.
    pub fn is_limited(&self, session: SpendLimits) -> bool {
        let accounts = self.lock();
        session.is_any() || self.path.iter().any(|place| accounts[*place].limits.is_any())
    }

    /// Whether the run, and not only the Session, has a limit in dollars.
    pub fn has_cost_limit(&self) -> bool {
        let accounts = self.lock();
        self.path.iter().any(|place| accounts[*place].limits.cost.is_some())
    }

    /// Waits until a request may be sent, and reserves its expected usage. It may be sent when the
    /// limits cover it beside all requests under way, or when none is under way.
    pub async fn reserve(
        &self,
        session: SpendLimits,
        expected: Expected<'_>,
    ) -> Result<Reservation, Exhausted> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            // Registers for notification before the limits are checked.
            changed.as_mut().enable();
            match self.admission(session, expected) {
                Admission::Leaves { amount, is_first } => {
                    return Ok(Reservation { purse: self.clone(), amount, is_first });
                }
                Admission::Refused(exhausted) => return Err(exhausted),
                Admission::Waits => changed.await,
            }
        }
    }

    /// Decides about a request, and reserves for it if it may be sent.
    fn admission(&self, session: SpendLimits, expected: Expected<'_>) -> Admission {
        let mut accounts = self.lock();
        let with_held = |account: &Account| account.spent.and(account.held);
        if let Err(exhausted) = self.find_exhausted(&accounts, session, with_held) {
            return Admission::Refused(exhausted);
        }
        let nearest_first = || self.path.iter().rev().map(|place| &accounts[*place]);
        // Estimates from the nearest account that has billed requests.
        let amount = expected.amount(nearest_first().find(|own| own.calls > 0));
        // Neither the Session nor a sibling was billed for anything yet.
        let is_first = nearest_first().take(2).all(|own| own.calls == 0);
        let must_wait = |(account, limits, _): (&Account, SpendLimits, bool)| {
            let is_short = account.open > 0 && !account.covers(amount, limits);
            let has_first = is_first && account.open_firsts > 0;
            is_short || has_first && !account.covers(amount.times(AMPLE), limits)
        };
        if self.limited(&accounts, session).any(must_wait) {
            return Admission::Waits;
        }
        for place in &*self.path {
            let account = &mut accounts[*place];
            account.open += 1;
            account.open_firsts += usize::from(is_first);
            account.reserved.add(amount);
        }
        Admission::Leaves { amount, is_first }
    }

    /// Holds an amount that failed attempts of a call were billed for.
    pub fn hold(&self, amount: Amount) -> Hold {
        self.change(|account| {
            account.holds += 1;
            account.held.add(amount);
        });
        Hold { purse: self.clone(), amount }
    }

    /// Fails if a limit is reached; `billed` is what the call under way was billed for and is not
    /// in the Log yet.
    pub fn check(&self, session: SpendLimits, billed: Amount) -> Result<(), Exhausted> {
        self.find_exhausted(&self.lock(), session, |account| account.spent.and(billed))
    }

    /// Waits until a limit is reached.
    pub async fn exhausted(&self, session: SpendLimits) {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if self.check(session, Amount::default()).is_err() {
                return;
            }
            changed.await;
        }
    }

    fn find_exhausted(
        &self,
        accounts: &[Account],
        session: SpendLimits,
        spent: impl Fn(&Account) -> Amount,
    ) -> Result<(), Exhausted> {
        for (account, limits, is_of_run) in self.limited(accounts, session) {
            if let Some(limit) = limits.reached(spent(account)) {
                return Err(Exhausted { is_of_run, limit });
            }
        }
        Ok(())
    }

    /// The accounts on the path that have limits, those of the Session first, and whether the limits are
    /// those of a run.
    fn limited<'a>(
        &'a self,
        accounts: &'a [Account],
        session: SpendLimits,
    ) -> impl Iterator<Item = (&'a Account, SpendLimits, bool)> {
        let family = accounts.first().map(|account| (account, session, false));
        let runs = self.path.iter().map(|place| {
            let account = &accounts[*place];
            (account, account.limits, true)
        });
        family.into_iter().chain(runs).filter(|(_, limits, _)| limits.is_any())
    }

    fn change(&self, change: impl Fn(&mut Account)) {
        let mut accounts = self.lock();
        for place in &*self.path {
            change(&mut accounts[*place]);
        }
        drop(accounts);
        self.shared.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Account>> {
        self.shared.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Self { amount, is_first, .. } = *self;
        self.purse.change(|account| account.release(amount, is_first));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let amount = self.amount;
        self.purse.change(|account| account.let_go(amount));
    }
}

impl Expected<'_> {
    /// Expected usage: the input, plus the average output of the nearest account's requests; at
    /// least the average of those requests as a whole.
    fn amount(&self, nearest: Option<&Account>) -> Amount {
        let average = |sum: fn(&Account) -> u64| {
            nearest.and_then(|own| sum(own).checked_div(own.calls)).unwrap_or_default()
        };
        let output_tokens = average(|own| own.output_tokens).max(LEAST_OUTPUT);
        let (input_tokens, model) = (self.input_tokens, self.model);
        let tokens = Tokens { input_tokens, output_tokens, ..Tokens::default() };
        let cost = self.prices.cost(model, &tokens).unwrap_or_default();
        Amount {
            tokens: input_tokens.saturating_add(output_tokens).max(average(|own| own.spent.tokens)),
            cost: cost.max(nearest.map_or(0.0, Account::average_cost)),
        }
    }
}

impl Account {
    fn add(&mut self, usage: &SubagentUsage) {
        self.spent.tokens = self.spent.tokens.saturating_add(usage.total_tokens);
        self.spent.cost += usage.estimated_cost_usd.unwrap_or_default();
        self.calls = self.calls.saturating_add(usage.calls);
        self.output_tokens = self.output_tokens.saturating_add(usage.output_tokens);
    }

    /// Usage that was recorded without a cost is priced now.
    fn pay(&mut self, bill: &ProviderUsage, prices: &Prices) {
        let Some(billed) = bill.billed() else { return };
        let cost = bill.estimated_cost_usd.or_else(|| prices.cost(&bill.model, &billed));
        self.add(&SubagentUsage { estimated_cost_usd: cost, ..SubagentUsage::of_call(bill) });
    }

    fn release(&mut self, amount: Amount, is_first: bool) {
        self.open = self.open.saturating_sub(1);
        self.open_firsts = self.open_firsts.saturating_sub(usize::from(is_first));
        self.reserved.tokens = self.reserved.tokens.saturating_sub(amount.tokens);
        self.reserved.cost -= amount.cost;
        if self.open == 0 {
            // Clears floating-point residue.
            self.reserved = Amount::default();
        }
    }

    fn let_go(&mut self, amount: Amount) {
        self.holds = self.holds.saturating_sub(1);
        self.held.tokens = self.held.tokens.saturating_sub(amount.tokens);
        self.held.cost -= amount.cost;
        if self.holds == 0 {
            self.held = Amount::default();
        }
    }

    /// Whether `limits` cover `amount` beside everything spent, held and reserved.
    fn covers(&self, amount: Amount, limits: SpendLimits) -> bool {
        let all = self.spent.and(self.held).and(self.reserved).and(amount);
        limits.tokens.is_none_or(|limit| all.tokens <= limit)
            && limits.cost.is_none_or(|limit| all.cost <= limit)
    }

    #[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^52")]
    fn average_cost(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.spent.cost / self.calls as f64 }
    }
}

impl Amount {
    fn times(self, factor: u32) -> Self {
        let tokens = self.tokens.saturating_mul(u64::from(factor));
        Self { tokens, cost: self.cost * f64::from(factor) }
    }

    fn add(&mut self, more: Self) {
        *self = self.and(more);
    }

    fn and(self, more: Self) -> Self {
        let tokens = self.tokens.saturating_add(more.tokens);
        Self { tokens, cost: self.cost + more.cost }
    }
}

impl SpendLimits {
    fn is_any(self) -> bool {
        self.tokens.is_some() || self.cost.is_some()
    }

    fn reached(self, spent: Amount) -> Option<SpendLimit> {
        let tokens = self.tokens.filter(|limit| spent.tokens >= *limit);
        let cost = self.cost.filter(|limit| spent.cost >= *limit);
        tokens
            .map(|limit| SpendLimit::Tokens { limit, used: spent.tokens })
            .or(cost.map(|limit| SpendLimit::Cost { limit, used: spent.cost }))
    }
}

#[cfg(test)]
mod tests;
