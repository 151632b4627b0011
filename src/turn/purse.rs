//! The Purse: what a Session and everybody it delegated to were billed for, in one sum.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Prices;
use crate::event::{Canonical, ProviderUsage, SubagentUsage};
use crate::history::History;

/// What a tree of Sessions has used up; shared by all of them.
#[derive(Debug, Clone, Default)]
pub struct Purse(Arc<Mutex<Spent>>);

/// A sum of bills.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spent {
    /// Input and output.
    pub tokens: u64,
    /// Estimated dollars, of what has a price.
    pub cost: f64,
}

impl Purse {
    /// What a Log says was spent: its own bills, and those of the children that ended.
    pub fn of(history: &History, prices: &Prices) -> Self {
        let mut spent = Spent::default();
        for fact in history.facts() {
            match fact {
                Canonical::ProviderUsage(bill) => spent.take(bill, prices),
                Canonical::SubagentEvent(child) if child.ends_run() && !child.is_copy() => {
                    spent.add(&child.usage.unwrap_or_default());
                }
                _ => {}
            }
        }
        Self(Arc::new(Mutex::new(spent)))
    }

    /// Takes a bill that is on record.
    pub fn pay(&self, bill: &ProviderUsage, prices: &Prices) {
        self.held().take(bill, prices);
    }

    /// Takes what a child used up whose end nobody saw.
    pub fn charge(&self, usage: &SubagentUsage) {
        self.held().add(usage);
    }

    /// What was spent so far.
    pub fn spent(&self) -> Spent {
        *self.held()
    }

    fn held(&self) -> MutexGuard<'_, Spent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spent {
    fn add(&mut self, usage: &SubagentUsage) {
        self.tokens = self.tokens.saturating_add(usage.total_tokens);
        self.cost += usage.estimated_cost_usd.unwrap_or_default();
    }

    /// One from before the price was known is reckoned anew.
    fn take(&mut self, bill: &ProviderUsage, prices: &Prices) {
        let billed = bill.billed();
        let tokens = billed.as_ref().map_or(0, |tokens| tokens.total_tokens);
        self.tokens = self.tokens.saturating_add(tokens);
        let cost = bill.estimated_cost_usd.or_else(|| prices.cost(&bill.model, &billed?));
        self.cost += cost.unwrap_or_default();
    }
}
