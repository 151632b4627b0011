//! The Purse: what a Session and everybody it delegated to were billed for, and what their requests
//! under way have reserved.
//!
//! One list of accounts is shared by a whole family. A request counts in every account on the path of
//! its Session: the family as a whole, a Workflow run, the children of one parent, the Session itself.
//! What it is expected to use up is reserved before it leaves, so that many requests at once cannot
//! spend what only one of them could; its bill replaces the reservation when it is over.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::config::Prices;
use crate::event::{Canonical, ProviderUsage, SubagentUsage, Tokens};
use crate::history::History;

/// The output that a request is expected to have at least, in tokens.
const LEAST_OUTPUT: u64 = 2_000;

/// Where this many times the estimate is left, a request leaves although nothing tells yet what its kind comes to.
const AMPLE: u32 = 1_000;

/// What a tree of Sessions has used up; shared by all of them.
#[derive(Debug, Clone)]
pub struct Purse {
    shared: Arc<Shared>,
    /// Places of the accounts that a request counts in, that of the whole family first.
    path: Arc<[usize]>,
}

#[derive(Debug)]
struct Shared {
    accounts: Mutex<Vec<Account>>,
    /// A reservation ended or a bill was paid.
    changed: Notify,
}

/// The sum of some of the family's requests, and its limits.
#[derive(Debug, Default)]
struct Account {
    limits: SpendLimits,
    spent: Amount,
    /// Requests that were billed.
    calls: u64,
    output_tokens: u64,
    /// Requests under way.
    open: usize,
    /// Those of them that are the first of their Session and its siblings: their cost may be far from the estimate.
    open_firsts: usize,
    /// What those under way are expected to use up.
    reserved: Amount,
    /// What failed attempts of calls that are not over were billed for.
    held: Amount,
    /// How many calls that is of.
    holds: usize,
    /// The account of all children of the Session that this is the account of.
    children: Option<usize>,
}

/// A sum of bills.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Amount {
    /// Input and output.
    pub tokens: u64,
    /// Estimated dollars, of what has a price.
    pub cost: f64,
}

/// The most that an account may spend.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpendLimits {
    /// Input and output.
    pub tokens: Option<u64>,
    /// Estimated dollars.
    pub cost: Option<f64>,
}

/// A request before it leaves.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The model that will be asked.
    pub model: &'a str,
    /// What tokens cost.
    pub prices: &'a Prices,
    /// The estimated size of the input.
    pub input_tokens: u64,
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exhausted {
    /// The limit of a Workflow run, and not one of the Session.
    pub is_of_run: bool,
    pub limit: SpendLimit,
}

/// Which limit is reached, and what was used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SpendLimit {
    Tokens { limit: u64, used: u64 },
    Cost { limit: f64, used: f64 },
}

/// What a request under way is expected to use up; given back when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    purse: Purse,
    amount: Amount,
    is_first: bool,
}

/// What failed attempts of a call were billed for, until the bill of the call is paid: it is spent, and not in
/// the sum of bills yet.
#[derive(Debug)]
pub struct Hold {
    purse: Purse,
    amount: Amount,
}

/// Whether a request may leave now.
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

    /// What a Log says was spent: its own bills, and those of the children that ended.
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

    /// The same for the Session of one child: siblings share an account, and each has its own.
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

    /// The same for work that has limits of its own.
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

    /// Takes a bill that is on record.
    pub fn pay(&self, bill: &ProviderUsage, prices: &Prices) {
        self.change(|account| account.pay(bill, prices));
    }

    /// Takes what a child used up whose end nobody saw.
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

    /// Waits until a request may leave, and reserves what it is expected to use up. It leaves when what
    /// is left covers it beside all requests under way, or when none is under way.
    pub async fn reserve(
        &self,
        session: SpendLimits,
        expected: Expected<'_>,
    ) -> Result<Reservation, Exhausted> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            // Whatever changes from here on is heard.
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

    /// Decides about a request, and reserves for it when it may leave.
    fn admission(&self, session: SpendLimits, expected: Expected<'_>) -> Admission {
        let mut accounts = self.lock();
        let with_held = |account: &Account| account.spent.and(account.held);
        if let Err(exhausted) = self.find_exhausted(&accounts, session, with_held) {
            return Admission::Refused(exhausted);
        }
        let nearest_first = || self.path.iter().rev().map(|place| &accounts[*place]);
        // The nearest account that knows what such requests come to.
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

    /// Keeps from others what failed attempts of a call were billed for.
    pub fn hold(&self, amount: Amount) -> Hold {
        self.change(|account| {
            account.holds += 1;
            account.held.add(amount);
        });
        Hold { purse: self.clone(), amount }
    }

    /// Refuses when a limit is reached; `billed` is what the call under way was billed for already, and
    /// what is not in the Log yet.
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
    /// What it is reckoned to use up: its input and the output of the nearest account's average request,
    /// and not less than that request came to as a whole.
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

    /// One from before the price was known is reckoned anew.
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
            // Sums of decimals leave crumbs.
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

    /// Whether so much more is left beside everything that is spent and reserved.
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
