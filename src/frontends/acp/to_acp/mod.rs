//! Turns Events into ACP updates, for a running Turn and for replay.
//!
//! It has no clock and no channel: Events go in, updates come out. In a running Turn, a tool call is
//! sent when it begins and again when it changes; in a replay it is sent once, with its result.

mod attachments;
pub mod call;
pub mod child;
pub mod diff;
mod message_stream;
#[cfg(test)]
mod tests;
mod workflow_updates;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use agent_client_protocol_schema::v1::{
    CompactionStatus, CompactionUpdate, ContentBlock, ContentChunk, Cost, MessageId, Notice,
    NoticeSeverity, Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus, SessionInfoUpdate,
    SessionUpdate, TextContent, UsageUpdate,
};
use serde_json::Value;

pub use attachments::{Attachments, image_of};

use super::capabilities::ClientCapabilities;
use super::error;
use crate::agent::harness::ChildView;
use crate::base::id::{CallId, EventId};
use crate::record::event::{
    AssistantMessage, Canonical, Ephemeral, Event, EventKind, HistoryCompaction, PressureTier,
    ProviderUsage, Reasoning, RecordedFiles, Seq, SessionStatus, SubagentEvent, TerminalStatus,
    TurnFailed, UserMessage, starting_servers_text,
};
use crate::record::history::History;
use call::ToolCallView;
use child::ChildCalls;
use message_stream::MessageStream;
use workflow_updates::WorkflowUpdates;

/// The tool whose calls are not shown, because their plan is shown instead.
const PLAN_TOOL: &str = "update_plan";

/// The longest title, in characters.
const TITLE_CHARS: usize = 80;

/// Renders Events as updates; keeps what was sent of the Session so far.
#[derive(Debug)]
pub struct UpdateRenderer {
    /// The Workspace, because paths on the wire are absolute.
    root: PathBuf,
    client: ClientCapabilities,
    /// The size of the model's context window, in tokens.
    pub window: u64,
    words: MessageStream,
    thoughts: MessageStream,
    /// Calls without a result.
    cards: HashMap<CallId, ToolCallView>,
    children: ChildCalls,
    /// The Workflow that runs or ran last.
    workflow: WorkflowUpdates,
    /// Estimated cost so far, in dollars.
    spent: Option<f64>,
    /// Tokens in the context window after the last call.
    used: Option<u64>,
    /// The id of the compaction that runs.
    compacting: Option<String>,
    is_titled: bool,
    /// Whether the client loaded the Session before the prompt was recorded, and must be sent the prompt.
    owes_prompt: bool,
    /// The image of the next result.
    image: Attachments,
}

impl UpdateRenderer {
    /// A renderer that has rendered nothing yet.
    pub fn new(root: PathBuf, client: ClientCapabilities, window: u64) -> Self {
        Self {
            root,
            client,
            window,
            words: MessageStream::default(),
            thoughts: MessageStream::default(),
            cards: HashMap::new(),
            children: ChildCalls::default(),
            workflow: WorkflowUpdates::default(),
            spent: None,
            used: None,
            compacting: None,
            is_titled: false,
            owes_prompt: false,
            image: Attachments::default(),
        }
    }

    /// Sets the image of the next result.
    pub fn expect_image(&mut self, image: Attachments) {
        self.image = image;
    }

    /// Renders an Event of a running Turn.
    pub fn render_event(&mut self, event: &Event) -> Vec<SessionUpdate> {
        match event.kind() {
            EventKind::Canonical(fact) => self.render_fact(event.id(), fact),
            EventKind::Ephemeral(notice) => self.render_notice(notice),
        }
    }

    /// Renders the history without what was undone; calls without a result stay open.
    pub fn replay(&mut self, history: &History, attached: &Attachments) -> Vec<SessionUpdate> {
        let mut updates = Vec::new();
        // Only the last plan is sent: the model's, or that of a Workflow.
        let mut plan = None;
        let live: HashSet<Seq> = history.live_backwards().map(|(seq, _)| seq).collect();
        for event in history.iter() {
            let is_live = event.seq().is_none_or(|seq| live.contains(&seq));
            let Some(fact) = event.fact() else { continue };
            match fact {
                // The cost counts also when the Turn was undone.
                Canonical::ProviderUsage(usage) => self.add_usage(usage),
                Canonical::SubagentEvent(child) => {
                    self.add_subagent_cost(child);
                    updates.extend(
                        is_live.then(|| self.children.render_event(child)).into_iter().flatten(),
                    );
                }
                _ if !is_live => {}
                Canonical::Plan(own) => plan = Some(plan_update(own)),
                Canonical::WorkflowEvent(event) => {
                    for update in self.workflow.render_event(event) {
                        match update {
                            SessionUpdate::Plan(_) => plan = Some(update),
                            update => updates.push(update),
                        }
                    }
                }
                Canonical::UserMessage(message) => {
                    updates.extend(attached.user_message(event.id(), message));
                    self.is_titled = true;
                }
                Canonical::ToolCall(call) if call.name != PLAN_TOOL => {
                    let card = ToolCallView::new(call, &self.root, self.client);
                    self.cards.insert(call.call_id.clone(), card);
                }
                Canonical::ToolResult(result) => {
                    let card = self.cards.remove(&result.call_id);
                    let image = attached.result_image(result);
                    updates.extend(
                        card.map(|card| card.replay_updates(result, image)).unwrap_or_default(),
                    );
                }
                fact => updates.extend(self.render_fact(event.id(), fact)),
            }
        }
        updates.extend(self.cards.values_mut().map(ToolCallView::begin_update));
        updates.extend(plan);
        updates.extend(self.session_info_updates(history));
        updates
    }

    /// Renders the activity of running children.
    pub fn render_children(&mut self, children: &[ChildView]) -> Vec<SessionUpdate> {
        self.children.render_activity(children)
    }

    /// Continues from a renderer in the middle of a Turn: what it sent that is not in the Log yet is sent
    /// again under the same ids, so that later updates match.
    pub fn continue_from(&mut self, other: Self, owes_prompt: bool) -> Vec<SessionUpdate> {
        self.owes_prompt = owes_prompt;
        let mut updates = Vec::new();
        for (id, card) in other.cards {
            if let Some(own) = self.cards.get_mut(&id) {
                updates.extend(card.missed_updates());
                *own = card;
            }
        }
        let chunks = |stream: &MessageStream| -> Vec<ContentChunk> {
            stream.open_messages().map(|(id, text)| chunk(id, text)).collect()
        };
        (self.words, self.thoughts) = (other.words, other.thoughts);
        self.compacting = other.compacting;
        updates.extend(chunks(&self.thoughts).into_iter().map(SessionUpdate::AgentThoughtChunk));
        updates.extend(chunks(&self.words).into_iter().map(SessionUpdate::AgentMessageChunk));
        updates
    }

    /// Adds usage and title from the history, without rendering it.
    pub fn catch_up(&mut self, history: &History) {
        for fact in history.facts() {
            match fact {
                Canonical::ProviderUsage(usage) => self.add_usage(usage),
                Canonical::SubagentEvent(life) => {
                    self.add_subagent_cost(life);
                }
                Canonical::UserMessage(_) => self.is_titled = true,
                _ => {}
            }
        }
    }

    /// Updates with the title of the Session and the usage of its context window.
    pub fn session_info_updates(&self, history: &History) -> Vec<SessionUpdate> {
        let titled = history.first_user_message().map(|message| title_update(&message.text));
        titled.into_iter().chain(self.usage_update()).collect()
    }

    fn render_fact(&mut self, id: &EventId, fact: &Canonical) -> Vec<SessionUpdate> {
        match fact {
            // The client knows the user's message, unless it loaded the Session since.
            Canonical::UserMessage(message) => {
                let is_owed = std::mem::take(&mut self.owes_prompt);
                let prompt_updates =
                    is_owed.then(|| Attachments::default().user_message(id, message));
                prompt_updates.into_iter().flatten().chain(self.title_once(message)).collect()
            }
            Canonical::AssistantMessage(message) => self.render_message(id, message),
            Canonical::Reasoning(reasoning) => self.render_reasoning(id, reasoning),
            Canonical::ToolCall(call) if call.name == PLAN_TOOL => Vec::new(),
            Canonical::ToolCall(call) => {
                let mut card = ToolCallView::new(call, &self.root, self.client);
                let update = card.begin_update();
                self.cards.insert(call.call_id.clone(), card);
                vec![update]
            }
            Canonical::ToolResult(result) => {
                let image = std::mem::take(&mut self.image).result_image(result);
                let card = self.cards.remove(&result.call_id);
                card.map(|card| card.finish_updates(result, image)).unwrap_or_default()
            }
            Canonical::Plan(plan) => vec![plan_update(plan)],
            Canonical::ProviderUsage(usage) => {
                self.add_usage(usage);
                self.usage_update().into_iter().collect()
            }
            Canonical::TurnFailed(failed) => self.render_failure(id, failed),
            Canonical::HistoryCompaction(compaction) => {
                self.used = compaction.tokens_after.or(self.used);
                self.render_compaction(id, compaction)
                    .into_iter()
                    .chain(self.usage_update())
                    .collect()
            }
            Canonical::SubagentEvent(life) => {
                let usage = self.add_subagent_cost(life).then(|| self.usage_update()).flatten();
                self.children.render_event(life).into_iter().chain(usage).collect()
            }
            Canonical::WorkflowEvent(event) => self.workflow.render_event(event),
            // Changed settings are sent where they are changed; the rest is for the Log only.
            Canonical::SessionStarted(_)
            | Canonical::PermissionDecision(_)
            | Canonical::SkillActivation(_)
            | Canonical::SkillContextHydration(_)
            | Canonical::SessionFork(_)
            | Canonical::BranchSummary(_)
            | Canonical::HistoryRewound(_)
            | Canonical::PostureChanged(_)
            | Canonical::LogRepaired(_)
            | Canonical::Unknown(_) => Vec::new(),
        }
    }

    fn render_notice(&mut self, notice: &Ephemeral) -> Vec<SessionUpdate> {
        match notice {
            Ephemeral::TextDelta(text) => {
                let id = self.words.push_piece(text);
                id.map(|id| SessionUpdate::AgentMessageChunk(chunk(&id, text)))
                    .into_iter()
                    .collect()
            }
            Ephemeral::ReasoningDelta(text) => {
                let id = self.thoughts.push_piece(text);
                id.map(|id| SessionUpdate::AgentThoughtChunk(chunk(&id, text)))
                    .into_iter()
                    .collect()
            }
            Ephemeral::ToolOutputDelta { call_id, chunk } => {
                let card = self.cards.get_mut(call_id);
                card.and_then(|card| card.output_update(chunk)).into_iter().collect()
            }
            // A compaction whose request waits for the budget continues after that.
            Ephemeral::Status(
                SessionStatus::Compacting { .. } | SessionStatus::WaitingForBudget { .. },
            ) if self.compacting.is_some() => Vec::new(),
            Ephemeral::Status(SessionStatus::Compacting { .. }) => self.begin_compaction(),
            Ephemeral::Status(status) if self.compacting.is_some() => {
                let outcome = match status {
                    SessionStatus::Interrupted => CompactionStatus::Cancelled,
                    _ => CompactionStatus::Failed,
                };
                self.end_compaction(outcome).into_iter().chain(self.render_notice(notice)).collect()
            }
            Ephemeral::Status(SessionStatus::Recording { call_id, files }) => {
                let card = self.cards.get_mut(call_id);
                card.and_then(|card| card.hold_update(&RecordedFiles::progress_text(*files)))
                    .into_iter()
                    .collect()
            }
            Ephemeral::Status(SessionStatus::Working {
                call_id, waiting: Some(reason), ..
            }) => {
                let card = self.cards.get_mut(call_id);
                card.and_then(|card| card.hold_update(&format!("waiting {reason}")))
                    .into_iter()
                    .collect()
            }
            Ephemeral::Status(SessionStatus::Working { call_id, waiting: None, .. }) => {
                let card = self.cards.get_mut(call_id);
                card.and_then(ToolCallView::start_update).into_iter().collect()
            }
            Ephemeral::Status(SessionStatus::Starting { servers }) => {
                vec![note_update(
                    self.client,
                    NoticeSeverity::Info,
                    &starting_servers_text(servers),
                )]
            }
            Ephemeral::ProviderRetry(retry) if self.client.takes_notices => {
                let title = format!("Trying again ({}/{})", retry.attempt, retry.max_attempts);
                vec![notice_update(NoticeSeverity::Warning, &title, &retry.error.message)]
            }
            Ephemeral::ContextPressure(pressure) => {
                self.used = Some(pressure.input_tokens);
                let severity = match pressure.tier {
                    PressureTier::Advisory => NoticeSeverity::Info,
                    PressureTier::Warning | PressureTier::Critical => NoticeSeverity::Warning,
                };
                let words = pressure.summary();
                let notice = notice_update(severity, "The context window is filling up", &words);
                let notice = self.client.takes_notices.then_some(notice);
                notice.into_iter().chain(self.usage_update()).collect()
            }
            // The Session's task handles permission questions.
            Ephemeral::Status(_)
            | Ephemeral::ProviderRetry(_)
            | Ephemeral::PermissionRequest(_)
            | Ephemeral::PermissionResolved { .. } => Vec::new(),
        }
    }

    /// Renders a compaction: as a compaction or a notice, whichever the client shows.
    fn render_compaction(
        &mut self,
        id: &EventId,
        compaction: &HistoryCompaction,
    ) -> Option<SessionUpdate> {
        let words = compaction.describe();
        let id = self.compacting.take().unwrap_or_else(|| id.to_string());
        if !self.client.takes_compactions {
            let notice = || notice_update(NoticeSeverity::Info, "Context compacted", &words);
            return self.client.takes_notices.then(notice);
        }
        let summary = ContentBlock::Text(TextContent::new(words.clone()));
        let update = CompactionUpdate::new(id, CompactionStatus::Completed);
        Some(SessionUpdate::CompactionUpdate(update.summary(vec![summary])))
    }

    /// Renders the start of a compaction, for clients that show compactions.
    pub fn begin_compaction(&mut self) -> Vec<SessionUpdate> {
        if !self.client.takes_compactions {
            return Vec::new();
        }
        let id = EventId::mint().to_string();
        self.compacting = Some(id.clone());
        let update = CompactionUpdate::new(id, CompactionStatus::InProgress);
        vec![SessionUpdate::CompactionUpdate(update)]
    }

    /// Renders the end of a compaction that was cancelled or failed.
    pub fn end_compaction(&mut self, outcome: CompactionStatus) -> Option<SessionUpdate> {
        let id = self.compacting.take()?;
        Some(SessionUpdate::CompactionUpdate(CompactionUpdate::new(id, outcome)))
    }

    fn title_once(&mut self, message: &UserMessage) -> Vec<SessionUpdate> {
        if std::mem::replace(&mut self.is_titled, true) {
            return Vec::new();
        }
        vec![title_update(&message.text)]
    }

    fn render_message(&mut self, id: &EventId, message: &AssistantMessage) -> Vec<SessionUpdate> {
        let untold = self.words.finish_message(&message.text, id);
        untold
            .map(|(id, text)| SessionUpdate::AgentMessageChunk(chunk(&id, &text)))
            .into_iter()
            .chain(self.end_notice(message.notice()))
            .collect()
    }

    /// Renders the notice of a Turn that has ended.
    fn end_notice(&self, notice: Option<&str>) -> Option<SessionUpdate> {
        notice.map(|notice| note_update(self.client, NoticeSeverity::Warning, notice))
    }

    fn render_reasoning(&mut self, id: &EventId, reasoning: &Reasoning) -> Vec<SessionUpdate> {
        if self.thoughts.close() {
            return Vec::new();
        }
        let parts = reasoning.item.get("summary").and_then(Value::as_array).into_iter().flatten();
        let parts: Vec<&str> =
            parts.filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
        let text = parts.join("\n\n");
        if text.trim().is_empty() {
            return Vec::new();
        }
        vec![SessionUpdate::AgentThoughtChunk(chunk(&id.to_string(), &text))]
    }

    fn add_usage(&mut self, usage: &ProviderUsage) {
        if let Some(cost) = usage.estimated_cost_usd {
            *self.spent.get_or_insert(0.0) += cost;
        }
        // A request with another purpose says nothing about the size of the conversation.
        let is_side_request = usage.extra.contains_key("purpose");
        if let Some(tokens) = usage.usage.as_ref().filter(|_| !is_side_request) {
            self.used = Some(tokens.input_tokens + tokens.output_tokens);
        }
    }

    /// Adds the cost of a Subagent that ended, with its own Subagents; false when there is none.
    fn add_subagent_cost(&mut self, life: &SubagentEvent) -> bool {
        let is_own_end = life.ends_run() && !life.is_copy();
        let usage = life.usage.as_ref().filter(|_| is_own_end);
        let Some(cost) = usage.and_then(|usage| usage.estimated_cost_usd) else { return false };
        *self.spent.get_or_insert(0.0) += cost;
        true
    }

    fn usage_update(&self) -> Option<SessionUpdate> {
        let mut update = UsageUpdate::new(self.used?, self.window);
        if let Some(spent) = self.spent {
            update = update.cost(Cost::new(spent, "USD"));
        }
        Some(SessionUpdate::UsageUpdate(update))
    }

    /// Renders the failure of a Turn as a message in place of the answer.
    fn render_failure(&mut self, id: &EventId, failed: &TurnFailed) -> Vec<SessionUpdate> {
        // Open messages have ended, also those that the Log does not have.
        self.words.close();
        self.thoughts.close();
        let notice = self.end_notice(failed.notice());
        if failed.terminal_status == TerminalStatus::Interrupted {
            return notice.into_iter().collect();
        }
        let failure = failure_update(&id.to_string(), &error::report_text(&failed.report()));
        [failure].into_iter().chain(notice).collect()
    }
}

/// The message about a failure.
pub fn failure_update(id: &str, text: &str) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(chunk(id, &format!("\u{26a0} {text}")))
}

/// A chunk of a message.
pub fn chunk(id: &str, text: &str) -> ContentChunk {
    let text = ContentBlock::Text(TextContent::new(text));
    ContentChunk::new(text).message_id(MessageId::new(id))
}

/// A notice, for clients that show notices.
pub fn notice_update(severity: NoticeSeverity, title: &str, words: &str) -> SessionUpdate {
    SessionUpdate::Notice(Notice::new(severity, title).description(words.to_owned()))
}

/// A notice, or a message where the client shows no notices.
pub fn note_update(
    client: ClientCapabilities,
    severity: NoticeSeverity,
    note: &str,
) -> SessionUpdate {
    if client.takes_notices {
        let title = notice_title(note);
        let notice = Notice::new(severity, title.clone());
        let is_all = title.eq_ignore_ascii_case(note);
        let description = (!is_all).then(|| note.to_owned());
        return SessionUpdate::Notice(notice.description(description));
    }
    let id = EventId::mint().to_string();
    SessionUpdate::AgentMessageChunk(chunk(&id, &format!("\u{26a0} {note}\n")))
}

/// The title of a notice: its first clause.
fn notice_title(note: &str) -> String {
    let ends = [": ", "; ", ". "].into_iter().filter_map(|mark| note.find(mark));
    let clause = note.get(..ends.min().unwrap_or(note.len())).unwrap_or(note);
    capitalised(&title_text(clause))
}

/// The text with a capital first letter, unless it begins with a name.
pub fn capitalised(text: &str) -> String {
    let word = text.split(' ').next().unwrap_or_default();
    let is_word = word.chars().all(|c| c.is_lowercase() || ",:;.!?".contains(c));
    let mut rest = text.chars();
    match rest.next().filter(|_| is_word) {
        Some(first) => first.to_uppercase().chain(rest).collect(),
        None => text.to_owned(),
    }
}

fn title_update(text: &str) -> SessionUpdate {
    SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title_text(text)))
}

/// The title of a Session from its first prompt: the beginning, on one line.
pub fn title_text(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default().trim_end()),
        None => line,
    }
}

fn plan_update(plan: &crate::record::event::Plan) -> SessionUpdate {
    let entry = |entry: &crate::record::event::PlanEntry| {
        let priority = match entry.priority.as_str() {
            "high" => PlanEntryPriority::High,
            "low" => PlanEntryPriority::Low,
            _ => PlanEntryPriority::Medium,
        };
        let status = match entry.status.as_str() {
            "completed" => PlanEntryStatus::Completed,
            "in_progress" => PlanEntryStatus::InProgress,
            _ => PlanEntryStatus::Pending,
        };
        PlanEntry::new(entry.content.clone(), priority, status)
    };
    SessionUpdate::Plan(Plan::new(plan.entries.iter().map(entry).collect()))
}

/// Text in a code fence that is longer than any inside it.
pub fn fenced(text: &str, language: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}")
}
