//! Pressure: how full the model's window will be with the next request, measured before it is sent.
//!
//! The Provider's count for the last request covers the prefix that it read; only later Events are
//! estimated. Without a count, after a compaction, or if the count is implausibly small, everything is
//! estimated. That estimate is cached and extended, so each request estimates new Events only.

use parking_lot::Mutex;
use serde_json::json;

use super::{Turn, TurnEnd};
use crate::base::error::{Kind, Report};
use crate::base::tokens::{TOKENS_PER_ITEM, estimate_tokens};
use crate::record::compaction;
use crate::record::compaction::{
    CompactionTrigger, SubagentEndWeight, WindowBudget, weigh_checkpoint, weigh_fact,
};
use crate::record::event::{
    Canonical, ContextPressure, Ephemeral, PressureTier, ProviderUsage, Seq, SessionStatus,
    TerminalStatus,
};
use crate::record::history::History;

/// The hint when nothing can be compacted.
const NO_ROOM_HINT: &str = "choose a model with a larger window, or begin a new Session";

/// The cached estimate of a Session's window, and the tier shown last; it can be lost at any time.
#[derive(Debug, Default)]
pub struct PressureGauge(Mutex<GaugeState>);

#[derive(Debug, Default)]
struct GaugeState {
    known: Option<TokenEstimate>,
    shown: Option<PressureTier>,
}

/// An estimate of everything up to a seq.
#[derive(Debug, Clone)]
struct TokenEstimate {
    seq: Seq,
    model: String,
    tokens: u64,
}

/// The size of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PressureReading {
    pub tokens: u64,
    /// The part of `tokens` that is estimated, not counted by the Provider.
    pub estimated: u64,
}

impl PressureGauge {
    /// Measures a History for a model; `fixed` returns the other tokens of the request, and is called
    /// only when needed.
    pub(super) fn measure(
        &self,
        history: &History,
        model: &str,
        fixed: impl Fn() -> u64,
    ) -> PressureReading {
        let known = self.0.lock().known.clone().filter(|known| known.model == model);
        let since =
            known.and_then(|known| Some(known.tokens + estimate_since(history, known.seq)?));
        let is_fresh = since.is_none();
        let afresh = || fixed() + estimate_all(history);
        let mut tokens = since.unwrap_or_else(afresh);
        let counted = counted_reading(history, model);
        // Some servers report wrong counts: less than half of the estimate is not believed.
        let mut credible = counted.filter(|reading| reading.tokens.saturating_mul(2) >= tokens);
        if credible.is_none() && counted.is_some() && !is_fresh {
            // The extended estimate still counts images that only their own Turn showed.
            tokens = afresh();
            credible = counted.filter(|reading| reading.tokens.saturating_mul(2) >= tokens);
        }
        if let Some(seq) = history.last_seq() {
            self.0.lock().known = Some(TokenEstimate { seq, model: model.to_owned(), tokens });
        }
        credible.unwrap_or(PressureReading { tokens, estimated: tokens })
    }

    /// Whether a tier has to be shown: once, and again after it was left.
    fn should_show(&self, tier: Option<PressureTier>) -> bool {
        let mut state = self.0.lock();
        let is_higher = tier > state.shown;
        state.shown = tier;
        is_higher
    }

    fn reset(&self) {
        *self.0.lock() = GaugeState::default();
    }
}

/// The Provider's last count plus an estimate of later Events; `None` if no count is valid.
fn counted_reading(history: &History, model: &str) -> Option<PressureReading> {
    let mut weight_sum = WeightSum::default();
    let mut facts = history.live_backwards().map(|(_, fact)| fact);
    while let Some(fact) = facts.next() {
        match fact {
            Canonical::ProviderUsage(usage) if counts_conversation(usage, model) => {
                let tokens = usage.usage.as_ref()?;
                // The output is part of the next input, reasoning included.
                let counted = tokens.input_tokens.saturating_add(tokens.output_tokens);
                let estimated = weight_sum.total_after(facts);
                let tokens = counted.saturating_add(estimated);
                return Some(PressureReading { tokens, estimated });
            }
            Canonical::HistoryCompaction(_) => return None,
            _ if is_answer(fact) => {}
            _ => weight_sum.add(fact),
        }
    }
    None
}

/// Estimate of the Events after a seq; `None` if earlier Events may not count any longer.
fn estimate_since(history: &History, seq: Seq) -> Option<u64> {
    let mut weight_sum = WeightSum::default();
    let mut facts = history.live_backwards();
    while let Some((own, fact)) = facts.next() {
        match fact {
            _ if own <= seq => {
                let before = facts.map(|(_, fact)| fact);
                return Some(weight_sum.total_after(std::iter::once(fact).chain(before)));
            }
            Canonical::HistoryCompaction(_) | Canonical::HistoryRewound(_) => return None,
            _ => weight_sum.add(fact),
        }
    }
    None
}

/// Sum of the estimated sizes of Events, added from the last one backwards.
#[derive(Default)]
struct WeightSum {
    sum: u64,
    /// Size of Subagent ends whose user message was not added yet.
    ends: u64,
    /// Whether a user message was added: the Events before it belong to an earlier Turn.
    is_earlier: bool,
}

impl WeightSum {
    fn add(&mut self, fact: &Canonical) {
        let weight = weigh_fact(fact, None, !self.is_earlier);
        match fact {
            Canonical::SubagentEvent(_) => self.ends += weight,
            Canonical::UserMessage(_) => {
                self.sum += weight + SubagentEndWeight::default().add(self.ends);
                self.ends = 0;
                self.is_earlier = true;
            }
            _ => self.sum += weight,
        }
    }

    /// The sum, given the Events before: their Subagent ends have used up part of the common
    /// limit.
    fn total_after<'a>(self, before: impl Iterator<Item = &'a Canonical>) -> u64 {
        if self.ends == 0 {
            return self.sum;
        }
        let mut end_weight = SubagentEndWeight::default();
        for fact in before {
            if end_weight.is_full() || matches!(fact, Canonical::UserMessage(_)) {
                break;
            }
            if matches!(fact, Canonical::SubagentEvent(_)) {
                end_weight.add(weigh_fact(fact, None, false));
            }
        }
        self.sum + end_weight.add(self.ends)
    }
}

/// Whether a usage record counts the conversation of this model.
fn counts_conversation(usage: &ProviderUsage, model: &str) -> bool {
    usage.model == model
        && !usage.extra.contains_key("purpose")
        && usage.usage.as_ref().is_some_and(|tokens| tokens.input_tokens > 0)
}

/// Whether the model wrote a fact, so that a usage record counts it.
fn is_answer(fact: &Canonical) -> bool {
    matches!(
        fact,
        Canonical::AssistantMessage(_) | Canonical::Reasoning(_) | Canonical::ToolCall(_)
    )
}

/// Estimate of everything that is replayed.
fn estimate_all(history: &History) -> u64 {
    let visible = history.visible();
    let is_user = |(_, fact): &(Seq, &Canonical)| matches!(fact, Canonical::UserMessage(_));
    let last = visible.facts.iter().rposition(is_user).unwrap_or_default();
    let limit = |seq: Seq| visible.checkpoint.and_then(|own| own.prune_limit(seq));
    let facts = visible.facts.iter().enumerate();
    let mut ends = SubagentEndWeight::default();
    let weights = facts.map(|(place, (seq, fact))| {
        ends.bounded(fact, weigh_fact(fact, limit(*seq), place >= last))
    });
    visible.checkpoint.map_or(0, weigh_checkpoint) + weights.sum::<u64>()
}

impl Turn {
    /// Measures the window, emits its pressure if the tier is new, and compacts at the critical
    /// tier.
    pub(super) async fn check_pressure(&self, iteration: u32) -> Result<(), TurnEnd> {
        let history = self.context.recent_history().await?;
        let window = self.settings.window.tokens();
        let reading = self.measure_pressure(&history);
        let tier = PressureTier::from_tokens(reading.tokens, window);
        let is_news = self.settings.pressure_gauge.should_show(tier);
        if let Some(tier) = tier.filter(|_| is_news) {
            let can_shrink = || self.can_compact(&history, CompactionTrigger::CriticalPressure);
            let helps = tier != PressureTier::Critical || can_shrink();
            let pressure = self.pressure_event(tier, reading, window, helps);
            self.context.emit(Ephemeral::ContextPressure(pressure));
        }
        if tier == Some(PressureTier::Critical) && self.settings.compaction.auto {
            self.record_compaction(&history, CompactionTrigger::CriticalPressure, iteration)
                .await?;
        }
        if tier == Some(PressureTier::Critical) { self.check_fit(window).await } else { Ok(()) }
    }

    /// Refuses a request that cannot fit, before it is sent. An estimate may be a third too high,
    /// and a window of unknown size may be larger than assumed.
    async fn check_fit(&self, window: u64) -> Result<(), TurnEnd> {
        let reading = self.measure_pressure(&self.context.recent_history().await?);
        // A server that read more than the window has a larger one.
        let counted = reading.tokens - reading.estimated;
        let least = counted + reading.estimated / 4 * 3;
        if least <= window || counted > window || !self.settings.window.is_known() {
            return Ok(());
        }
        let (tokens, model) = (reading.tokens, &self.settings.model);
        let message = format!(
            "the input has about {tokens} tokens and cannot fit the window of {model}, which has {window}"
        );
        let report = Report::new(Kind::ContextOverflow, message)
            .with_details(json!({ "input_tokens": tokens, "window_tokens": window }))
            .with_next_actions(vec![
                "ask about less at once: keep long text in a file, and have the model read parts of it"
                    .to_owned(),
                "choose a model with a larger window with `--model`".to_owned(),
                "if the window is larger, name it in `context_window` of the config".to_owned(),
            ]);
        let status = TerminalStatus::ConfigurationError;
        Err(TurnEnd::Failed { status, error: Box::new(report) })
    }

    /// Compacts after the Provider reported an overflow; returns whether it did.
    pub(super) async fn compact_after_overflow(&self, iteration: u32) -> Result<bool, TurnEnd> {
        if !self.settings.compaction.auto {
            return Ok(false);
        }
        let history = self.context.recent_history().await?;
        self.record_compaction(&history, CompactionTrigger::OverflowRecovery, iteration).await
    }

    /// Records a compaction, if there is one that helps.
    async fn record_compaction(
        &self,
        history: &History,
        trigger: CompactionTrigger,
        iteration: u32,
    ) -> Result<bool, TurnEnd> {
        if !self.can_compact(history, trigger) {
            return Ok(false);
        }
        // Model-assisted compaction takes time, so it has its own status.
        let compacting = SessionStatus::Compacting { iteration };
        self.context.emit(Ephemeral::Status(compacting.clone()));
        let asks = self.settings.compaction.model_assisted;
        let tell = |waits| self.emit_budget_wait(waits, iteration, &compacting);
        let (settings, session) = (&self.settings, self.context.session_id());
        let work = super::compact(settings, session, history, trigger, asks, tell);
        let Some(done) = self.context.cancel().run_until_cancelled(work).await else {
            return Err(TurnEnd::Interrupted);
        };
        let Some(mut done) = done.ok() else { return Ok(false) };
        if let Some(usage_record) = &mut done.usage_record {
            usage_record.iteration = iteration;
        }
        for fact in done.into_facts() {
            self.context.record(fact).await?;
        }
        self.settings.pressure_gauge.reset();
        let window = self.settings.window.tokens();
        let left = self.measure_pressure(&self.context.recent_history().await?);
        // Pressure that remains after compaction is not shown again.
        self.settings.pressure_gauge.should_show(PressureTier::from_tokens(left.tokens, window));
        self.context.emit(Ephemeral::Status(SessionStatus::Thinking { iteration }));
        Ok(true)
    }

    fn can_compact(&self, history: &History, trigger: CompactionTrigger) -> bool {
        compaction::plan_compaction(history, self.settings.compaction_room(), trigger).is_ok()
    }

    pub(super) fn measure_pressure(&self, history: &History) -> PressureReading {
        let settings = &self.settings;
        let specs = self.toolbox().specs();
        settings.pressure_gauge.measure(history, &settings.model, || settings.fixed_tokens(&specs))
    }

    fn pressure_event(
        &self,
        tier: PressureTier,
        reading: PressureReading,
        window: u64,
        helps: bool,
    ) -> ContextPressure {
        let id = self.context.session_id();
        let look = format!("preview it with `pixir compact {id} --dry-run`");
        let action = match (tier, self.settings.compaction.auto) {
            (PressureTier::Critical, _) if !helps => {
                "no older Turns are left to compact".to_owned()
            }
            (PressureTier::Critical, true) => "compacting now; the Log keeps everything".to_owned(),
            (_, true) => {
                format!("compacts automatically at 90 %, or now with `pixir compact {id}`")
            }
            (_, false) => format!("make room with `pixir compact {id}`"),
        };
        ContextPressure {
            tier,
            model: self.settings.model.clone(),
            input_tokens: reading.tokens,
            window_tokens: window,
            window_is_assumed: !self.settings.window.is_known(),
            estimated_tokens: reading.estimated,
            next_actions: vec![action, if helps { look } else { NO_ROOM_HINT.to_owned() }],
        }
    }
}

impl super::TurnSettings {
    /// Tokens of a request besides the conversation: instructions, project and tool specs.
    pub(super) fn fixed_tokens(&self, specs: &[crate::model::tool_spec::ToolSpec]) -> u64 {
        let tool = |spec: &crate::model::tool_spec::ToolSpec| {
            let parameters = serde_json::to_string(&spec.parameters).unwrap_or_default();
            TOKENS_PER_ITEM
                + estimate_tokens(&spec.name)
                + estimate_tokens(&spec.description)
                + estimate_tokens(&parameters)
        };
        let project = self.prompt.project.as_deref().map_or(0, estimate_tokens);
        estimate_tokens(&self.prompt.instructions) + project + specs.iter().map(tool).sum::<u64>()
    }

    /// The size of the window and its fixed part, for compaction.
    pub(super) fn compaction_room(&self) -> WindowBudget {
        WindowBudget {
            window: self.window.tokens(),
            fixed: self.fixed_tokens(&self.toolbox.specs()),
        }
    }
}

#[cfg(test)]
mod tests;
