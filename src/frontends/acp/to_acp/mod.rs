//! Turns Events into ACP updates, for a running Turn and for replay.
//!
//! It has no clock and no channel: Events go in, updates come out. In a running Turn, a tool call is
//! sent when it begins and again when it changes; in a replay it is sent once, with its result.

mod attached;
pub mod call;
pub mod child;
pub mod diff;
mod graph;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use agent_client_protocol_schema::v1::{
    CompactionStatus, CompactionUpdate, ContentBlock, ContentChunk, Cost, MessageId, Notice,
    NoticeSeverity, Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus, SessionInfoUpdate,
    SessionUpdate, TextContent, UsageUpdate,
};
use serde_json::Value;

pub use attached::{Attached, image_of};

use super::client::Client;
use super::fault;
use crate::agent::harness::ChildView;
use crate::base::id::{CallId, EventId};
use crate::record::event::{
    AssistantMessage, Canonical, Ephemeral, Event, EventKind, HistoryCompaction, ProviderUsage,
    Reasoning, RecordedFiles, Seq, Status, SubagentEvent, TerminalStatus, Tier, TurnFailed,
    UserMessage, still_starting,
};
use crate::record::history::History;
use call::Card;
use child::Children;
use graph::Graph;
use stream::Stream;

/// The tool whose calls are not shown, because the plan that they record is.
const PLANNING: &str = "update_plan";

/// The longest title, in characters.
const TITLE: usize = 80;

/// Renders Events as updates; keeps what was sent of the Session so far.
#[derive(Debug)]
pub struct Renderer {
    /// The Workspace, because paths on the wire are absolute.
    root: PathBuf,
    client: Client,
    /// The size of the model's context window, in tokens.
    pub window: u64,
    words: Stream,
    thoughts: Stream,
    /// Calls without a result.
    cards: HashMap<CallId, Card>,
    children: Children,
    /// The Workflow that runs or ran last.
    graph: Graph,
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
    image: Attached,
}

impl Renderer {
    /// A renderer that has rendered nothing yet.
    pub fn new(root: PathBuf, client: Client, window: u64) -> Self {
        Self {
            root,
            client,
            window,
            words: Stream::default(),
            thoughts: Stream::default(),
            cards: HashMap::new(),
            children: Children::default(),
            graph: Graph::default(),
            spent: None,
            used: None,
            compacting: None,
            is_titled: false,
            owes_prompt: false,
            image: Attached::default(),
        }
    }

    /// Sets the image of the next result.
    pub fn expect_image(&mut self, image: Attached) {
        self.image = image;
    }

    /// Renders an Event of a running Turn.
    pub fn hear(&mut self, event: &Event) -> Vec<SessionUpdate> {
        match event.kind() {
            EventKind::Canonical(fact) => self.fact(event.id(), fact),
            EventKind::Ephemeral(notice) => self.notice(notice),
        }
    }

    /// Renders the history without what was undone; calls without a result stay open.
    pub fn replay(&mut self, history: &History, attached: &Attached) -> Vec<SessionUpdate> {
        let mut updates = Vec::new();
        // Only the last plan is sent: the model's, or that of a Workflow.
        let mut plan = None;
        let live: HashSet<Seq> = history.live_backwards().map(|(seq, _)| seq).collect();
        for event in history.iter() {
            let is_live = event.seq().is_none_or(|seq| live.contains(&seq));
            let Some(fact) = event.fact() else { continue };
            match fact {
                // The cost counts also when the Turn was undone.
                Canonical::ProviderUsage(usage) => self.spend(usage),
                Canonical::SubagentEvent(child) => {
                    self.charge(child);
                    updates
                        .extend(is_live.then(|| self.children.hear(child)).into_iter().flatten());
                }
                _ if !is_live => {}
                Canonical::Plan(own) => plan = Some(plan_update(own)),
                Canonical::WorkflowEvent(event) => {
                    for update in self.graph.hear(event) {
                        match update {
                            SessionUpdate::Plan(_) => plan = Some(update),
                            update => updates.push(update),
                        }
                    }
                }
                Canonical::UserMessage(message) => {
                    updates.extend(attached.user(event.id(), message));
                    self.is_titled = true;
                }
                Canonical::ToolCall(call) if call.name != PLANNING => {
                    let card = Card::new(call, &self.root, self.client);
                    self.cards.insert(call.call_id.clone(), card);
                }
                Canonical::ToolResult(result) => {
                    let card = self.cards.remove(&result.call_id);
                    let image = attached.image(result);
                    updates.extend(card.map(|card| card.whole(result, image)).unwrap_or_default());
                }
                fact => updates.extend(self.fact(event.id(), fact)),
            }
        }
        updates.extend(self.cards.values_mut().map(Card::begin));
        updates.extend(plan);
        updates.extend(self.standing(history));
        updates
    }

    /// Renders the activity of running children.
    pub fn look(&mut self, children: &[ChildView]) -> Vec<SessionUpdate> {
        self.children.look(children)
    }

    /// Continues from a renderer in the middle of a Turn: what it sent that is not in the Log yet is sent
    /// again under the same ids, so that later updates match.
    pub fn go_on_from(&mut self, other: Self, owes_prompt: bool) -> Vec<SessionUpdate> {
        self.owes_prompt = owes_prompt;
        let mut updates = Vec::new();
        for (id, card) in other.cards {
            if let Some(own) = self.cards.get_mut(&id) {
                updates.extend(card.so_far());
                *own = card;
            }
        }
        let chunks = |stream: &Stream| -> Vec<ContentChunk> {
            stream.told().map(|(id, text)| chunk(id, text)).collect()
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
                Canonical::ProviderUsage(usage) => self.spend(usage),
                Canonical::SubagentEvent(life) => {
                    self.charge(life);
                }
                Canonical::UserMessage(_) => self.is_titled = true,
                _ => {}
            }
        }
    }

    /// Updates with the title of the Session and the usage of its context window.
    pub fn standing(&self, history: &History) -> Vec<SessionUpdate> {
        let titled = history.first_words().map(|message| title_update(&message.text));
        titled.into_iter().chain(self.usage()).collect()
    }

    fn fact(&mut self, id: &EventId, fact: &Canonical) -> Vec<SessionUpdate> {
        match fact {
            // The client knows the user's message, unless it loaded the Session since.
            Canonical::UserMessage(message) => {
                let is_owed = std::mem::take(&mut self.owes_prompt);
                let said = is_owed.then(|| Attached::default().user(id, message));
                said.into_iter().flatten().chain(self.title(message)).collect()
            }
            Canonical::AssistantMessage(message) => self.message(id, message),
            Canonical::Reasoning(reasoning) => self.reasoning(id, reasoning),
            Canonical::ToolCall(call) if call.name == PLANNING => Vec::new(),
            Canonical::ToolCall(call) => {
                let mut card = Card::new(call, &self.root, self.client);
                let update = card.begin();
                self.cards.insert(call.call_id.clone(), card);
                vec![update]
            }
            Canonical::ToolResult(result) => {
                let image = std::mem::take(&mut self.image).image(result);
                let card = self.cards.remove(&result.call_id);
                card.map(|card| card.finish(result, image)).unwrap_or_default()
            }
            Canonical::Plan(plan) => vec![plan_update(plan)],
            Canonical::ProviderUsage(usage) => {
                self.spend(usage);
                self.usage().into_iter().collect()
            }
            Canonical::TurnFailed(failed) => self.failure(id, failed),
            Canonical::HistoryCompaction(compaction) => {
                self.used = compaction.tokens_after.or(self.used);
                self.compaction(id, compaction).into_iter().chain(self.usage()).collect()
            }
            Canonical::SubagentEvent(life) => {
                let usage = self.charge(life).then(|| self.usage()).flatten();
                self.children.hear(life).into_iter().chain(usage).collect()
            }
            Canonical::WorkflowEvent(event) => self.graph.hear(event),
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

    fn notice(&mut self, notice: &Ephemeral) -> Vec<SessionUpdate> {
        match notice {
            Ephemeral::TextDelta(text) => {
                let id = self.words.piece(text);
                id.map(|id| SessionUpdate::AgentMessageChunk(chunk(&id, text)))
                    .into_iter()
                    .collect()
            }
            Ephemeral::ReasoningDelta(text) => {
                let id = self.thoughts.piece(text);
                id.map(|id| SessionUpdate::AgentThoughtChunk(chunk(&id, text)))
                    .into_iter()
                    .collect()
            }
            Ephemeral::ToolOutputDelta { call_id, chunk } => {
                let card = self.cards.get_mut(call_id);
                card.and_then(|card| card.output(chunk)).into_iter().collect()
            }
            // A compaction whose request waits for the budget continues after that.
            Ephemeral::Status(Status::Compacting { .. } | Status::WaitingForBudget { .. })
                if self.compacting.is_some() =>
            {
                Vec::new()
            }
            Ephemeral::Status(Status::Compacting { .. }) => self.begin_compaction(),
            Ephemeral::Status(status) if self.compacting.is_some() => {
                let outcome = match status {
                    Status::Interrupted => CompactionStatus::Cancelled,
                    _ => CompactionStatus::Failed,
                };
                self.end_compaction(outcome).into_iter().chain(self.notice(notice)).collect()
            }
            Ephemeral::Status(Status::Recording { call_id, files }) => {
                let card = self.cards.get_mut(call_id);
                card.and_then(|card| card.hold(&RecordedFiles::words(*files))).into_iter().collect()
            }
            Ephemeral::Status(Status::Working { call_id, waiting: Some(reason), .. }) => {
                let card = self.cards.get_mut(call_id);
                card.and_then(|card| card.hold(&format!("waiting {reason}"))).into_iter().collect()
            }
            Ephemeral::Status(Status::Working { call_id, waiting: None, .. }) => {
                let card = self.cards.get_mut(call_id);
                card.and_then(Card::start).into_iter().collect()
            }
            Ephemeral::Status(Status::Starting { servers }) => {
                vec![note_update(self.client, NoticeSeverity::Info, &still_starting(servers))]
            }
            Ephemeral::ProviderRetry(retry) if self.client.takes_notices => {
                let title = format!("Trying again ({}/{})", retry.attempt, retry.max_attempts);
                vec![notice_update(NoticeSeverity::Warning, &title, &retry.error.message)]
            }
            Ephemeral::ContextPressure(pressure) => {
                self.used = Some(pressure.input_tokens);
                let severity = match pressure.tier {
                    Tier::Advisory => NoticeSeverity::Info,
                    Tier::Warning | Tier::Critical => NoticeSeverity::Warning,
                };
                let words = pressure.words();
                let told = notice_update(severity, "The context window is filling up", &words);
                let told = self.client.takes_notices.then_some(told);
                told.into_iter().chain(self.usage()).collect()
            }
            // The Session's task handles permission questions.
            Ephemeral::Status(_)
            | Ephemeral::ProviderRetry(_)
            | Ephemeral::PermissionRequest(_)
            | Ephemeral::PermissionResolved { .. } => Vec::new(),
        }
    }

    /// Renders a compaction: as a compaction or a notice, whichever the client shows.
    fn compaction(
        &mut self,
        id: &EventId,
        compaction: &HistoryCompaction,
    ) -> Option<SessionUpdate> {
        let words = compaction.words();
        let id = self.compacting.take().unwrap_or_else(|| id.to_string());
        if !self.client.takes_compactions {
            let told = || notice_update(NoticeSeverity::Info, "Context compacted", &words);
            return self.client.takes_notices.then(told);
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

    fn title(&mut self, message: &UserMessage) -> Vec<SessionUpdate> {
        if std::mem::replace(&mut self.is_titled, true) {
            return Vec::new();
        }
        vec![title_update(&message.text)]
    }

    fn message(&mut self, id: &EventId, message: &AssistantMessage) -> Vec<SessionUpdate> {
        let untold = self.words.whole(&message.text, id);
        untold
            .map(|(id, text)| SessionUpdate::AgentMessageChunk(chunk(&id, &text)))
            .into_iter()
            .chain(self.at_end(message.notice()))
            .collect()
    }

    /// Renders the notice of a Turn that has ended.
    fn at_end(&self, notice: Option<&str>) -> Option<SessionUpdate> {
        notice.map(|notice| note_update(self.client, NoticeSeverity::Warning, notice))
    }

    fn reasoning(&mut self, id: &EventId, reasoning: &Reasoning) -> Vec<SessionUpdate> {
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

    fn spend(&mut self, usage: &ProviderUsage) {
        if let Some(cost) = usage.estimated_cost_usd {
            *self.spent.get_or_insert(0.0) += cost;
        }
        // A request with another purpose says nothing about the size of the conversation.
        let is_beside = usage.extra.contains_key("purpose");
        if let Some(tokens) = usage.usage.as_ref().filter(|_| !is_beside) {
            self.used = Some(tokens.input_tokens + tokens.output_tokens);
        }
    }

    /// Adds the cost of a Subagent that ended, with its own Subagents; false when there is none.
    fn charge(&mut self, life: &SubagentEvent) -> bool {
        let is_own_end = life.ends_run() && !life.is_copy();
        let usage = life.usage.as_ref().filter(|_| is_own_end);
        let Some(cost) = usage.and_then(|usage| usage.estimated_cost_usd) else { return false };
        *self.spent.get_or_insert(0.0) += cost;
        true
    }

    fn usage(&self) -> Option<SessionUpdate> {
        let mut update = UsageUpdate::new(self.used?, self.window);
        if let Some(spent) = self.spent {
            update = update.cost(Cost::new(spent, "USD"));
        }
        Some(SessionUpdate::UsageUpdate(update))
    }

    /// Renders the failure of a Turn as a message in place of the answer.
    fn failure(&mut self, id: &EventId, failed: &TurnFailed) -> Vec<SessionUpdate> {
        // Open messages have ended, also those that the Log does not have.
        self.words.close();
        self.thoughts.close();
        let notice = self.at_end(failed.notice());
        if failed.terminal_status == TerminalStatus::Interrupted {
            return notice.into_iter().collect();
        }
        let failure = failure(&id.to_string(), &fault::told(&failed.report()));
        [failure].into_iter().chain(notice).collect()
    }
}

/// The message about a failure.
pub fn failure(id: &str, told: &str) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(chunk(id, &format!("\u{26a0} {told}")))
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
pub fn note_update(client: Client, severity: NoticeSeverity, note: &str) -> SessionUpdate {
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
    capitalised(&title(clause))
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
    SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title(text)))
}

/// The title of a Session from its first prompt: the beginning, on one line.
pub fn title(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(TITLE) {
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
