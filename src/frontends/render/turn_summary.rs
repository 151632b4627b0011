//! Summary of a Turn: how it ended and its usage, the same for every presenter.

use schemars::JsonSchema;
use serde::Serialize;

use crate::base::error::{Kind, Report, counted};
use crate::record::event::{
    AssistantMessage, Canonical, Ephemeral, EventKind, ListenerItem, SessionStatus, SubagentEvent,
    SubagentUsage, TerminalStatus, TokenUsage, TurnFailed,
};

/// Summary of a running Turn, built from its Events.
#[derive(Debug, Default)]
pub struct TurnSummary {
    answer: Option<String>,
    partial: Option<String>,
    failed: Option<TurnFailed>,
    usage: Usage,
    has_denied_call: bool,
    budget_stopped: usize,
    status: Option<SessionStatus>,
}

/// Tokens and calls of one Turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Usage {
    pub calls: u32,
    pub input_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub reasoning_tokens: u64,
    pub total_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_cost_usd: Option<f64>,
}

impl Usage {
    /// Adds the usage of a child.
    pub fn add_child(&mut self, child: &SubagentUsage) {
        self.calls = self.calls.saturating_add(u32::try_from(child.calls).unwrap_or(u32::MAX));
        self.input_tokens += child.input_tokens;
        self.cached_tokens += child.cached_tokens;
        self.output_tokens += child.output_tokens;
        self.reasoning_tokens += child.reasoning_tokens;
        self.total_tokens += child.total_tokens;
        if let Some(cost) = child.estimated_cost_usd {
            *self.estimated_cost_usd.get_or_insert(0.0) += cost;
        }
    }
}

/// The outcome of a Turn that has ended.
#[derive(Debug)]
pub struct TurnOutcome {
    pub status: SessionStatus,
    /// The final answer, or the part of it that arrived.
    pub output: Option<String>,
    pub failed: Option<TurnFailed>,
    pub usage: Usage,
    /// Whether a call was denied.
    pub has_denied_call: bool,
    /// How many Subagents ended because the budget was used up.
    pub budget_stopped: usize,
}

impl TurnOutcome {
    /// Adds a child that ended after the Turn.
    pub fn add_child(&mut self, life: &SubagentEvent) {
        self.usage.add_child(&life.usage.unwrap_or_default());
        self.budget_stopped += usize::from(life.ran_out_of_budget());
    }

    /// Whether the answer is complete, and no Subagent ended because the budget was used up.
    pub fn is_completed(&self) -> bool {
        self.status == SessionStatus::Done && self.budget_stopped == 0
    }

    /// The error of a Turn that is not completed.
    pub fn error(&self) -> Option<Report> {
        if let Some(failed) = &self.failed {
            return Some(Report {
                kind: failed.error_kind.clone(),
                message: failed.error_message.clone(),
                details: failed.details.clone(),
            });
        }
        match &self.status {
            SessionStatus::Error { error, .. } => Some(error.clone()),
            SessionStatus::Done if self.budget_stopped > 0 => {
                Some(budget_error(self.budget_stopped))
            }
            _ => None,
        }
    }

    /// How the Turn ended, when it has no complete answer.
    pub fn terminal_status(&self) -> Option<TerminalStatus> {
        if let Some(failed) = &self.failed {
            return Some(failed.terminal_status.clone());
        }
        match &self.status {
            SessionStatus::Error { terminal_status, .. } => {
                Some(TerminalStatus::from_text(terminal_status))
            }
            SessionStatus::Interrupted => Some(TerminalStatus::Interrupted),
            SessionStatus::Done
            | SessionStatus::Idle
            | SessionStatus::Starting { .. }
            | SessionStatus::Compacting { .. }
            | SessionStatus::WaitingForBudget { .. }
            | SessionStatus::Thinking { .. }
            | SessionStatus::Recording { .. }
            | SessionStatus::Working { .. } => None,
        }
    }
}

impl TurnSummary {
    /// Records an Event; true when the Turn is over.
    pub fn record(&mut self, item: &ListenerItem) -> bool {
        let ListenerItem::Event(event) = item else { return false };
        match event.kind() {
            EventKind::Canonical(fact) => {
                self.record_fact(fact);
                false
            }
            EventKind::Ephemeral(Ephemeral::Status(status)) if status.is_terminal() => {
                self.status = Some(status.clone());
                true
            }
            EventKind::Ephemeral(_) => false,
        }
    }

    /// The outcome; a Turn whose end was not recorded counts as interrupted.
    pub fn into_outcome(self) -> TurnOutcome {
        TurnOutcome {
            status: self.status.unwrap_or(SessionStatus::Interrupted),
            output: self.answer.or(self.partial),
            failed: self.failed,
            usage: self.usage,
            has_denied_call: self.has_denied_call,
            budget_stopped: self.budget_stopped,
        }
    }

    fn record_fact(&mut self, fact: &Canonical) {
        match fact {
            Canonical::UserMessage(_) => *self = Self::default(),
            Canonical::AssistantMessage(message) => self.record_message(message),
            Canonical::TurnFailed(failed) => self.failed = Some(failed.clone()),
            Canonical::PermissionDecision(decision) => {
                self.has_denied_call |= decision.decision == "deny";
            }
            Canonical::SubagentEvent(life) if life.ends_run() => {
                self.usage.add_child(&life.usage.unwrap_or_default());
                self.budget_stopped += usize::from(life.ran_out_of_budget());
            }
            Canonical::ProviderUsage(usage) => {
                self.usage.calls += 1;
                if let Some(tokens) = usage.billed() {
                    self.usage.add(&tokens);
                }
                if let Some(cost) = usage.estimated_cost_usd {
                    *self.usage.estimated_cost_usd.get_or_insert(0.0) += cost;
                }
            }
            _ => {}
        }
    }

    fn record_message(&mut self, message: &AssistantMessage) {
        if message.is_final() || message.truncation().is_some() {
            self.answer = Some(message.text.clone());
        } else if message.is_partial() {
            self.partial = Some(message.text.clone());
        }
    }
}

/// The error of an answer whose Subagents ended for lack of budget.
fn budget_error(count: usize) -> Report {
    let who = counted(count, "Subagent");
    let message = format!("{who} ended because the budget of the Session is used up");
    Report::new(Kind::BudgetExceeded, message)
        .with_next_actions(vec!["raise the limit, and continue with `pixir resume`".to_owned()])
}

impl Usage {
    fn add(&mut self, tokens: &TokenUsage) {
        self.input_tokens += tokens.input_tokens;
        self.cached_tokens += tokens.cached_tokens;
        self.output_tokens += tokens.output_tokens;
        self.reasoning_tokens += tokens.reasoning_tokens;
        self.total_tokens += tokens.total_tokens;
    }
}
