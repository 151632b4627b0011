//! The footer: model, mode, folder, and how full the model's window is; pure.

use super::cells::{fit_line, line_width};
use crate::agent::conversation::Conversation;
use crate::frontends::commands::mode_name;
use crate::frontends::render::{format_count, one_line};
use crate::record::event::{Canonical, ProviderUsage};

/// What the footer and the start line show about a Session.
#[derive(Debug, Clone, Default)]
pub struct SessionFacts {
    pub model: String,
    pub effort: Option<String>,
    pub mode: String,
    /// The folder, with `~` for the user's home.
    pub folder: String,
    pub branch: Option<String>,
    /// The model's window in tokens, once a Session is open.
    pub window: u64,
    pub spent: SpentTokens,
}

/// What the calls of a Session have used.
#[derive(Debug, Clone, Default)]
pub struct SpentTokens {
    /// Tokens of the last request and its answer.
    context: u64,
    total: u64,
    input: u64,
    cached: u64,
    cost: Option<f64>,
}

impl SessionFacts {
    /// Reads model, effort, mode and window of a Session.
    pub fn read_settings(&mut self, conversation: &Conversation) {
        conversation.model().clone_into(&mut self.model);
        self.effort = conversation.effort().map(str::to_owned);
        mode_name(conversation).clone_into(&mut self.mode);
        self.window = conversation.window();
    }

    /// Begins to count for another Session.
    pub fn reset_usage(&mut self) {
        self.spent = SpentTokens::default();
    }

    /// Counts a call of the model.
    pub fn record(&mut self, fact: &Canonical) {
        let Canonical::ProviderUsage(usage) = fact else { return };
        self.record_usage(usage);
    }

    fn record_usage(&mut self, usage: &ProviderUsage) {
        if let Some(tokens) = &usage.usage {
            self.spent.context = tokens.input_tokens + tokens.output_tokens;
        }
        if let Some(tokens) = usage.billed() {
            self.spent.total += tokens.total_tokens.max(tokens.input_tokens + tokens.output_tokens);
            self.spent.input += tokens.input_tokens;
            self.spent.cached += tokens.cached_tokens;
        }
        if let Some(cost) = usage.estimated_cost_usd {
            *self.spent.cost.get_or_insert(0.0) += cost;
        }
    }

    /// Tokens and cost in words, as `/usage` shows them.
    pub fn usage_text(&self) -> String {
        let Some(counts) = self.counts() else { return "nothing was used yet".to_owned() };
        counts.join(" · ")
    }

    /// The counts, once there are some.
    fn counts(&self) -> Option<Vec<String>> {
        if self.spent.total == 0 {
            return None;
        }
        let mut counts = Vec::new();
        if let Some(percent) = self.spent.context.saturating_mul(100).checked_div(self.window) {
            counts.push(format!("{percent} % context"));
        }
        counts.push(format!("{} tokens", format_count(self.spent.total)));
        if let Some(cost) = self.spent.cost {
            counts.push(format!("${cost:.2}"));
        }
        if self.spent.cached > 0 && self.spent.input > 0 {
            counts.push(format!("{} % cached", self.spent.cached * 100 / self.spent.input));
        }
        Some(counts)
    }

    /// Model and mode.
    fn settings_text(&self) -> String {
        let model = one_line(&self.model, 60);
        match &self.effort {
            Some(effort) => format!("{model} {} · {}", one_line(effort, 20), self.mode_text()),
            None => format!("{model} · {}", self.mode_text()),
        }
    }

    fn mode_text(&self) -> String {
        self.mode.replace('_', "-")
    }

    /// The folder and its branch.
    pub fn place_text(&self) -> String {
        let folder = one_line(&self.folder, 200);
        match &self.branch {
            Some(branch) => format!("{folder} ({})", one_line(branch, 60)),
            None => folder,
        }
    }

    /// The first line of a chat.
    pub fn start_line(&self) -> String {
        let model = one_line(&self.model, 60);
        let place = self.place_text();
        format!(
            "{model}, mode {}, in {place}; /quit or Ctrl-D leaves, /help shows commands",
            self.mode_text()
        )
    }

    /// The footer in a row of this width: what is less important is left out first.
    pub fn footer_row(&self, width: usize) -> String {
        let right = self.counts().map(|counts| counts.join(" · ")).unwrap_or_default();
        let settings = self.settings_text();
        let left = format!("{settings} · {}", self.place_text());
        for left in [&left, &settings] {
            let gap = width.saturating_sub(line_width(left) + line_width(&right));
            if gap >= 2 || right.is_empty() && line_width(left) <= width {
                let gap = if right.is_empty() { 0 } else { gap };
                return format!("{left}{}{right}", " ".repeat(gap));
            }
        }
        fit_line(&settings, width)
    }
}
