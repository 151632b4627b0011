//! The state of the chat: what Events and results change in it; keys are in `state_keys`. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::completion::CompletionSources;
use super::editor::PromptEditor;
use super::feed::ChatFeed;
use super::footer::SessionFacts;
use super::input_history::{HistorySearch, InputHistory};
use super::popup::Popup;
use super::questions::QuestionQueue;
use super::screen::ScreenSize;
use crate::base::error::Report;
use crate::base::id::CallId;
use crate::frontends::commands::CommandId;
use crate::frontends::render::{
    StatusLine, TurnOutcome, ViewStyle, choice_text, clean, error_text, question_body,
};
use crate::record::event::{
    Ephemeral, EventKind, ListenerItem, PermissionRequest, PermissionResponse, SessionStatus,
};

/// How long a hint is shown.
const HINT_TIME: Duration = Duration::from_secs(4);

/// What the rest of the chat has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatEffect {
    /// Sends a prompt, and begins a Session for it if there is none.
    Send {
        text: String,
    },
    /// Stops the running Turn.
    Interrupt,
    SkipRecording,
    Leave,
    /// Runs a slash command.
    Run {
        id: CommandId,
        rest: String,
    },
    Answer {
        call_id: CallId,
        response: PermissionResponse,
    },
    Suspend,
    EditExternally {
        text: String,
    },
    /// Lists the files of the Workspace for completion.
    ListFiles,
}

/// What the chat is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatPhase {
    Idle,
    /// A Turn runs, or its Session is being opened.
    Turn {
        is_stopping: bool,
    },
    /// A slash command runs.
    Command,
}

/// A prompt that waits for the end of the Turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedPrompt {
    pub text: String,
    /// The text as the editor showed it.
    pub shown: String,
}

/// The whole state of a chat.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the chat")]
pub struct ChatState {
    pub editor: PromptEditor,
    pub feed: ChatFeed,
    pub facts: SessionFacts,
    pub sources: CompletionSources,
    pub questions: QuestionQueue,
    pub queue: VecDeque<QueuedPrompt>,
    pub phase: ChatPhase,
    pub status: StatusLine,
    /// Rows for the Subagents at work.
    pub children: Vec<String>,
    pub has_children: bool,
    pub popup: Option<Popup>,
    pub search: Option<HistorySearch>,
    pub(super) history: InputHistory,
    pub(super) size: ScreenSize,
    pub(super) last_key: Instant,
    /// Ctrl+C was pressed on an empty editor: the next one leaves.
    pub(super) may_leave: bool,
    /// Whether files are being recorded for undo.
    pub(super) is_recording: bool,
    hint: Option<(String, Instant)>,
    /// The outcome of the Turn that ended last, until it is taken.
    outcome: Option<TurnOutcome>,
    pub colour: bool,
}

impl ChatState {
    pub fn new(style: ViewStyle, facts: SessionFacts, size: ScreenSize, now: Instant) -> Self {
        Self {
            editor: PromptEditor::default(),
            feed: ChatFeed::new(style, now),
            facts,
            sources: CompletionSources::default(),
            questions: QuestionQueue::default(),
            queue: VecDeque::new(),
            phase: ChatPhase::Idle,
            status: StatusLine::new(now),
            children: Vec::new(),
            has_children: false,
            popup: None,
            search: None,
            history: InputHistory::default(),
            size,
            last_key: now,
            may_leave: false,
            is_recording: false,
            hint: None,
            outcome: None,
            colour: style.colour,
        }
    }

    pub fn resize(&mut self, size: ScreenSize) {
        self.size = size;
    }

    /// The prompts of earlier Sessions, for the history.
    pub fn add_earlier_prompts(&mut self, prompts: Vec<String>) {
        self.history.prepend(prompts);
    }

    pub fn history(&self) -> &InputHistory {
        &self.history
    }

    /// Shows a hint for a moment.
    pub fn set_hint(&mut self, text: impl Into<String>, now: Instant) {
        self.hint = Some((text.into(), now + HINT_TIME));
    }

    pub fn hint(&self) -> Option<&str> {
        self.hint.as_ref().map(|(text, _)| text.as_str())
    }

    /// Whether the user has asked to stop the Turn that runs or is about to begin.
    pub fn is_stopping(&self) -> bool {
        self.phase == ChatPhase::Turn { is_stopping: true }
    }

    /// Whether something changes with time.
    pub fn needs_ticks(&self) -> bool {
        self.phase != ChatPhase::Idle
            || self.hint.is_some()
            || !self.children.is_empty()
            || self.questions.first().is_some() && !self.questions.is_focused()
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        if self.hint.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.hint = None;
            self.may_leave = false;
        }
        let is_empty = self.editor.is_empty() && self.search.is_none();
        self.questions.focus_when_quiet(self.last_key, is_empty, now);
    }

    /// Shows an Event of the Session.
    pub fn record(&mut self, heard: &ListenerItem, now: Instant) -> Vec<ChatEffect> {
        self.status.update(heard, now);
        let ended = self.feed.record(heard, now);
        if let ListenerItem::Event(event) = heard {
            match event.kind() {
                EventKind::Canonical(fact) => self.facts.record(fact),
                EventKind::Ephemeral(notice) => self.record_notice(notice, now),
            }
        }
        let Some(outcome) = ended else { return Vec::new() };
        let effects = self.end_turn(&outcome);
        self.outcome = Some(outcome);
        effects
    }

    /// The outcome of the Turn that has just ended.
    pub fn take_outcome(&mut self) -> Option<TurnOutcome> {
        self.outcome.take()
    }

    fn record_notice(&mut self, notice: &Ephemeral, now: Instant) {
        match notice {
            Ephemeral::PermissionRequest(request) if self.questions.push(request) => {
                self.show_question(now);
            }
            Ephemeral::PermissionResolved { call_id, .. } => self.settle_question(call_id, now),
            Ephemeral::Status(status) => {
                self.is_recording = matches!(status, SessionStatus::Recording { .. });
            }
            _ => {}
        }
    }

    /// Writes the shown question, whole, where everything final is written.
    fn show_question(&mut self, now: Instant) {
        let Some(request) = self.questions.first() else { return };
        let body = question_body(request, self.colour);
        self.feed.push_painted(&body);
        // Keys from before were not meant for it.
        self.last_key = now;
    }

    fn settle_question(&mut self, call_id: &CallId, now: Instant) {
        if self.questions.settle(call_id) {
            self.show_question(now);
        }
    }

    /// Notes the answer to the shown question.
    pub(super) fn answer_question(
        &mut self,
        call_id: CallId,
        response: PermissionResponse,
        now: Instant,
    ) -> ChatEffect {
        let chosen = self.questions.first().map(|request| answer_line(request, &response));
        if let Some(line) = chosen {
            self.feed.push_faint(&line);
        }
        self.settle_question(&call_id, now);
        ChatEffect::Answer { call_id, response }
    }

    fn end_turn(&mut self, outcome: &TurnOutcome) -> Vec<ChatEffect> {
        self.phase = ChatPhase::Idle;
        self.is_recording = false;
        self.questions.end_turn();
        if outcome.status == SessionStatus::Done {
            return self.send_next().into_iter().collect();
        }
        self.take_back_queue();
        Vec::new()
    }

    /// The next queued prompt, if nothing runs.
    pub fn send_next(&mut self) -> Option<ChatEffect> {
        if self.phase != ChatPhase::Idle {
            return None;
        }
        let next = self.queue.pop_front()?;
        Some(self.begin_turn(next))
    }

    pub(super) fn begin_turn(&mut self, prompt: QueuedPrompt) -> ChatEffect {
        self.phase = ChatPhase::Turn { is_stopping: false };
        self.feed.expect_prompt(prompt.shown);
        ChatEffect::Send { text: prompt.text }
    }

    /// Puts queued prompts back into the editor, before what is there.
    pub(super) fn take_back_queue(&mut self) {
        let mut texts: Vec<String> = self.queue.drain(..).map(|queued| queued.text).collect();
        if texts.is_empty() {
            return;
        }
        texts.extend(Some(self.editor.text()).filter(|draft| !draft.is_empty()));
        self.editor.replace_all(&texts.join("\n"));
    }

    /// A prompt could not be sent: the reason is shown, and the prompt goes back into the editor.
    pub fn fail_prompt(&mut self, text: String, report: &Report) {
        self.show_error(report);
        self.return_prompt(text);
    }

    /// A prompt was not sent: it goes back into the editor, and so do those behind it.
    pub fn return_prompt(&mut self, text: String) {
        self.phase = ChatPhase::Idle;
        self.feed.forget_prompt();
        self.queue.push_front(QueuedPrompt { shown: text.clone(), text });
        self.take_back_queue();
    }

    /// A slash command ended with words for the user.
    pub fn end_command(&mut self, result: Result<String, Report>) -> Option<ChatEffect> {
        self.phase = ChatPhase::Idle;
        self.show_words(result);
        self.send_next()
    }

    /// Words of a command that ran beside a Turn.
    pub fn show_words(&mut self, result: Result<String, Report>) {
        match result {
            Ok(words) if words.is_empty() => {}
            Ok(words) => self.feed.push_text(&words),
            Err(report) => self.show_error(&report),
        }
    }

    /// Puts a prompt before all that wait.
    pub fn queue_first(&mut self, prompt: Option<String>) {
        if let Some(text) = prompt {
            self.queue.push_front(QueuedPrompt { shown: text.clone(), text });
        }
    }

    /// Completes again, because more is known.
    pub fn complete_again(&mut self) {
        self.popup = self.sources.popup(self.editor.before_cursor());
    }

    /// Begins with another Session; what is in the editor stays.
    pub fn begin_session(&mut self, now: Instant) {
        self.phase = ChatPhase::Idle;
        self.status = StatusLine::new(now);
        self.children.clear();
        self.has_children = false;
        self.questions = QuestionQueue::default();
        self.facts.reset_usage();
    }

    pub fn show_error(&mut self, report: &Report) {
        let text = clean(&error_text(report));
        self.feed.push_text(&text);
    }
}

/// The line that stays of a question.
fn answer_line(request: &PermissionRequest, response: &PermissionResponse) -> String {
    let chosen = choice_text(response.answer, request);
    let chosen = chosen.split_once("] ").map_or(chosen.as_str(), |(_, words)| words);
    match &response.message {
        Some(message) => format!("  → no: {message}"),
        None => format!("  → {}", chosen.split(", or: ").next().unwrap_or(chosen)),
    }
}
