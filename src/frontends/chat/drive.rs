//! The loop of the chat: waits for keys, Events and results, hands them to the state, and does what it asks for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossterm::event::Event as TerminalEvent;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::chat_command::{CommandContext, run_command};
use super::external_editor::edit_text;
use super::live_view::live_frame;
use super::session_work::{WorkResult, open_session, send_prompt};
use super::state::{ChatEffect, ChatPhase, ChatState};
use super::terminal::{ChatTerminal, TerminalWake};
use super::{ChatOptions, ChatOutcome, ProjectFacts};
use crate::agent::conversation::{Attachment, Conversation};
use crate::agent::harness::{Harness, SessionTarget, StartOptions};
use crate::agent::inspect;
use crate::agent::inspect::StateRoot;
use crate::base::error::{Kind, Report};
use crate::frontends::commands::CommandId;
use crate::frontends::relay::EventRelay;
use crate::frontends::render::{TurnOutcome, child_rows};
use crate::frontends::signals::{SignalListener, StopRequest};
use crate::record::event::{Canonical, EventKind, ListenerItem};

/// The least time between two drawings: 60 per second.
const FRAME: Duration = Duration::from_millis(16);

/// How often what changes with time is drawn.
const TICK: Duration = Duration::from_millis(100);

/// How many Events are shown before keys are looked at again.
const BATCH: usize = 512;

/// How long the end of a Turn is waited for when the user leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the last Events of a Session are waited for.
const LAST_EVENTS: Duration = Duration::from_millis(50);

/// How long a token renewal at the end is waited for.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a chat until the user leaves.
pub async fn run_chat(
    options: ChatOptions,
    signals: SignalListener,
) -> Result<ChatOutcome, Report> {
    let terminal = ChatTerminal::open(signals.count(), options.reflows).map_err(|error| {
        Report::new(Kind::Internal, format!("the terminal cannot be used: {error}"))
    })?;
    let mut driver = ChatDriver::new(options, terminal, signals);
    driver.begin();
    driver.run().await;
    Ok(driver.end().await)
}

/// Everything that can happen.
enum ChatWake {
    Terminal(TerminalWake),
    Received(Option<ListenerItem>),
    Done(Box<WorkResult>),
    Project(ProjectFacts),
    Signal(StopRequest),
    /// Something waits to be drawn, or time has passed.
    Timer,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the loop")]
pub(super) struct ChatDriver {
    terminal: ChatTerminal,
    signals: SignalListener,
    pub(super) state: ChatState,
    pub(super) harness: Arc<Harness>,
    workspace: PathBuf,
    /// The Session to open next.
    pub(super) target: SessionTarget,
    pub(super) conversation: Option<Conversation>,
    pub(super) relay: Option<EventRelay>,
    work: JoinSet<WorkResult>,
    project: Option<oneshot::Receiver<ProjectFacts>>,
    state_roots: Vec<StateRoot>,
    attachments: Vec<Attachment>,
    external_editor: Option<String>,
    is_listing_files: bool,
    /// Whether a Session is being opened.
    pub(super) is_opening: bool,
    /// The prompt that waits for it.
    pub(super) waiting_prompt: Option<String>,
    drawn_at: Instant,
    is_stale: bool,
    is_leaving: bool,
    outcome: ChatOutcome,
}

impl ChatDriver {
    fn new(options: ChatOptions, terminal: ChatTerminal, signals: SignalListener) -> Self {
        let now = Instant::now();
        let mut state = ChatState::new(options.style, options.facts, terminal.size(), now);
        state.feed.push_faint(&state.facts.start_line());
        for notice in &options.notices {
            state.feed.push_text(notice);
        }
        Self {
            terminal,
            signals,
            state,
            harness: Arc::new(options.harness),
            workspace: options.workspace,
            target: options.session,
            conversation: None,
            relay: None,
            work: JoinSet::new(),
            project: Some(options.project),
            state_roots: options.state_roots,
            attachments: options.attachments,
            external_editor: options.external_editor,
            is_listing_files: false,
            is_opening: false,
            waiting_prompt: None,
            drawn_at: now,
            is_stale: true,
            is_leaving: false,
            outcome: ChatOutcome { conversation: None, stopped_by: None, last_turn: None },
        }
    }

    /// Shows the editor, and opens a Session that exists; a new one begins with the first prompt.
    fn begin(&mut self) {
        self.draw();
        if self.target != SessionTarget::New {
            self.open_session(None);
        }
    }

    async fn run(&mut self) {
        while !self.is_leaving {
            let wake = self.next_wake().await;
            self.handle(wake).await;
            if self.is_stale && self.drawn_at.elapsed() >= FRAME {
                self.draw();
            }
        }
    }

    async fn next_wake(&mut self) -> ChatWake {
        let wait = match (self.is_stale, self.state.needs_ticks()) {
            (true, _) => Some(FRAME.saturating_sub(self.drawn_at.elapsed())),
            (false, true) => Some(TICK),
            (false, false) => None,
        };
        let timer = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            asked = self.signals.next() => ChatWake::Signal(asked),
            wake = self.terminal.next() => ChatWake::Terminal(wake),
            () = timer => ChatWake::Timer,
            Some(done) = self.work.join_next(), if !self.work.is_empty() => {
                let result = done.unwrap_or_else(|error| failed_work(&error));
                ChatWake::Done(Box::new(result))
            }
            facts = next_facts(&mut self.project) => ChatWake::Project(facts),
            heard = next_event(&mut self.relay) => ChatWake::Received(heard),
        }
    }

    async fn handle(&mut self, wake: ChatWake) {
        let now = Instant::now();
        self.is_stale = true;
        match wake {
            ChatWake::Terminal(wake) => self.handle_terminal(wake, now).await,
            ChatWake::Received(None) => self.relay = None,
            ChatWake::Received(Some(heard)) => self.record_events(heard, now).await,
            ChatWake::Done(result) => self.handle_result(*result, now).await,
            ChatWake::Project(facts) => {
                self.project = None;
                self.state.sources.slash_names = facts.slash_names;
                self.state.add_earlier_prompts(facts.earlier_prompts);
            }
            ChatWake::Signal(asked) => self.handle_signal(asked, now).await,
            ChatWake::Timer => {
                self.state.tick(now);
                self.refresh_children().await;
            }
        }
    }

    async fn handle_terminal(&mut self, wake: TerminalWake, now: Instant) {
        match wake {
            TerminalWake::Event(event) => {
                let mut next = Some(event);
                while let Some(event) = next {
                    self.handle_event(event, now).await;
                    next = if self.is_leaving { None } else { self.terminal.try_next() };
                }
                // What was typed is shown at once.
                self.draw();
            }
            TerminalWake::Closed => self.is_leaving = true,
            TerminalWake::Stop => self.suspend(),
            TerminalWake::Continued => self.take_terminal_again(),
        }
    }

    async fn handle_event(&mut self, event: TerminalEvent, now: Instant) {
        match event {
            TerminalEvent::Key(key) => {
                let effects = self.state.press(key, now);
                self.perform(effects).await;
            }
            TerminalEvent::Paste(text) => self.state.paste(&text, now),
            TerminalEvent::Resize(..) => {
                self.terminal.update_size();
                self.state.resize(self.terminal.size());
            }
            TerminalEvent::FocusGained | TerminalEvent::FocusLost | TerminalEvent::Mouse(_) => {}
        }
    }

    async fn handle_signal(&mut self, asked: StopRequest, now: Instant) {
        match asked {
            StopRequest::Stop if self.state.phase != ChatPhase::Idle => {
                let effects = self.state.stop_turn();
                self.state.set_hint("stopped by a signal", now);
                self.perform(effects).await;
            }
            StopRequest::Stop | StopRequest::Leave => {
                self.outcome.stopped_by = Some(asked);
                self.is_leaving = true;
            }
        }
    }

    async fn record_events(&mut self, first: ListenerItem, now: Instant) {
        let mut next = Some(first);
        let mut count = 0;
        while let Some(heard) = next {
            self.state.has_children |= is_about_child(&heard);
            let effects = self.state.record(&heard, now);
            if let Some(outcome) = self.state.take_outcome() {
                self.end_turn(outcome);
            }
            self.perform(effects).await;
            count += 1;
            next = if count < BATCH {
                self.relay.as_mut().and_then(EventRelay::try_next)
            } else {
                None
            };
        }
    }

    fn end_turn(&mut self, outcome: TurnOutcome) {
        if let Some(conversation) = &self.conversation {
            for notice in conversation.take_notices() {
                self.state.feed.push_text(&notice);
            }
        }
        // Nothing more can be recorded.
        let kind = outcome.error().and_then(|error| Kind::from_name(&error.kind));
        if kind == Some(Kind::LogWriteFailed) {
            self.outcome.last_turn = Some(outcome);
            self.is_leaving = true;
        }
    }

    pub(super) async fn perform(&mut self, effects: Vec<ChatEffect>) {
        for effect in effects {
            match effect {
                ChatEffect::Send { text } => self.send(text),
                ChatEffect::Interrupt => self.interrupt(),
                ChatEffect::SkipRecording => {
                    if let Some(conversation) = &self.conversation {
                        conversation.skip_recording();
                    }
                }
                ChatEffect::Leave => self.is_leaving = true,
                ChatEffect::Run { id, rest } => self.run_command(id, rest),
                ChatEffect::Answer { call_id, response } => {
                    let Some(conversation) = self.conversation.clone() else { continue };
                    self.work.spawn(async move {
                        // Fails if the question was answered elsewhere first; that answer counts.
                        conversation.answer(&call_id, response).await.ok();
                        WorkResult::Delivered
                    });
                }
                ChatEffect::Suspend => self.suspend(),
                ChatEffect::EditExternally { text } => self.edit_externally(&text).await,
                ChatEffect::ListFiles => self.list_files(),
            }
        }
    }

    fn start_options(&self) -> StartOptions {
        StartOptions {
            workspace: self.workspace.clone(),
            session: self.target.clone(),
            can_ask: true,
            mcp_servers: Vec::new(),
        }
    }

    pub(super) fn open_session(&mut self, prompt: Option<String>) {
        self.waiting_prompt = prompt;
        if std::mem::replace(&mut self.is_opening, true) {
            return;
        }
        let is_resumed = self.target != SessionTarget::New;
        let opening = open_session(Arc::clone(&self.harness), self.start_options());
        self.work.spawn(async move { WorkResult::Opened { opened: opening.await, is_resumed } });
    }

    pub(super) fn send(&mut self, text: String) {
        let Some(conversation) = self.conversation.clone() else {
            return self.open_session(Some(text));
        };
        let attachments = std::mem::take(&mut self.attachments);
        self.work.spawn(async move {
            let sent = send_prompt(conversation, text.clone(), attachments).await;
            WorkResult::Sent { text, sent }
        });
    }

    pub(super) fn interrupt(&mut self) {
        let Some(conversation) = self.conversation.clone() else { return };
        self.work.spawn(async move {
            // Fails when the Turn has just ended.
            conversation.interrupt().await.ok();
            WorkResult::Delivered
        });
    }

    fn run_command(&mut self, id: CommandId, rest: String) {
        match id {
            CommandId::Help => return self.state.show_help(),
            CommandId::Usage => {
                let words = self.state.facts.usage_text();
                return self.state.feed.push_text(&words);
            }
            CommandId::Status => return self.show_status(),
            _ => {}
        }
        let runs_alone = self.state.phase == ChatPhase::Idle;
        if runs_alone {
            self.state.phase = ChatPhase::Command;
        }
        let context = CommandContext {
            harness: Arc::clone(&self.harness),
            conversation: self.conversation.clone(),
            start: self.start_options(),
            state_roots: self.current_state_roots(),
        };
        self.work.spawn(async move { WorkResult::Command(run_command(id, rest, context).await) });
    }

    /// The state of this Workspace, with that of the Session, which may not have existed at the start.
    fn current_state_roots(&self) -> Vec<StateRoot> {
        let own = self.conversation.as_ref();
        let is_listed =
            |own: &Conversation| self.state_roots.iter().any(|root| root.has_log(own.id()));
        let missing = own.filter(|own| !is_listed(own)).map(|own| own.state_root().clone());
        self.state_roots.iter().cloned().chain(missing).collect()
    }

    fn show_status(&mut self) {
        let facts = &self.state.facts;
        let mut words = format!("{}\n{}", facts.start_line(), facts.usage_text());
        if let Some(conversation) = &self.conversation {
            let log = conversation.log_path().display();
            words = format!("Session {}\nLog {log}\n{words}", conversation.id());
        }
        self.state.feed.push_text(&words);
    }

    fn list_files(&mut self) {
        if std::mem::replace(&mut self.is_listing_files, true) {
            return;
        }
        let workspace = self.workspace.clone();
        self.work.spawn(async move {
            let listing = move || inspect::workspace_files(&workspace);
            WorkResult::Files(tokio::task::spawn_blocking(listing).await.unwrap_or_default())
        });
    }

    async fn refresh_children(&mut self) {
        let Some(conversation) = self.conversation.as_ref().filter(|_| self.state.has_children)
        else {
            return;
        };
        let children = self.harness.children(conversation).await;
        let size = self.terminal.size();
        self.state.children = child_rows(&children, size.width, size.height / 3);
    }

    fn suspend(&mut self) {
        if self.terminal.suspend().is_err() {
            self.is_leaving = true;
        }
        self.state.resize(self.terminal.size());
    }

    fn take_terminal_again(&mut self) {
        if self.terminal.enter_again().is_err() {
            self.is_leaving = true;
        }
        self.state.resize(self.terminal.size());
    }

    /// Lets the user write the prompt in an editor of their own.
    async fn edit_externally(&mut self, text: &str) {
        let Some(command) = self.external_editor.clone() else {
            return self.state.set_hint(
                "set VISUAL or EDITOR to write in an editor of your own",
                Instant::now(),
            );
        };
        self.terminal.leave();
        let edited = edit_text(&command, text).await;
        self.take_terminal_again();
        match edited {
            Ok(edited) => self.state.editor.replace_all(&edited),
            Err(error) => self.state.set_hint(error.to_string(), Instant::now()),
        }
    }

    fn draw(&mut self) {
        let now = Instant::now();
        if self.terminal.update_size() {
            self.state.resize(self.terminal.size());
        }
        let finished = self.state.feed.take_finished();
        let frame = live_frame(&self.state, self.terminal.size(), now);
        if self.terminal.draw(&finished, frame).is_err() {
            self.is_leaving = true;
        }
        self.drawn_at = now;
        self.is_stale = false;
    }

    /// Stops what runs, shows its end, and gives the terminal back.
    async fn end(mut self) -> ChatOutcome {
        self.state.popup = None;
        if let Some(conversation) = self.conversation.clone() {
            if matches!(self.state.phase, ChatPhase::Turn { .. }) {
                let stopping = tokio::time::timeout(LEAVE_TIMEOUT, conversation.interrupt());
                tokio::select! {
                    _ = stopping => {}
                    _ = self.signals.next() => {}
                }
            }
            self.show_last_events().await;
            self.harness.cancel_children(&conversation).await;
        }
        self.draw();
        self.terminal.leave();
        tokio::select! {
            _ = tokio::time::timeout(RENEWAL_TIMEOUT, self.harness.shut_down()) => {}
            _ = self.signals.next() => {}
        }
        self.outcome.conversation = self.conversation.take();
        self.outcome
    }

    async fn show_last_events(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        while let Ok(Some(heard)) = tokio::time::timeout(LAST_EVENTS, relay.next()).await {
            self.state.record(&heard, Instant::now());
        }
    }
}

fn failed_work(error: &tokio::task::JoinError) -> WorkResult {
    let message = format!("a task of the chat ended early: {error}");
    WorkResult::Command(Err(Report::new(Kind::Internal, message)))
}

fn is_about_child(heard: &ListenerItem) -> bool {
    let ListenerItem::Event(event) = heard else { return false };
    matches!(event.kind(), EventKind::Canonical(Canonical::SubagentEvent(_)))
}

async fn next_facts(project: &mut Option<oneshot::Receiver<ProjectFacts>>) -> ProjectFacts {
    match project {
        // Without facts the chat works too.
        Some(facts) => facts.await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

async fn next_event(relay: &mut Option<EventRelay>) -> Option<ListenerItem> {
    match relay {
        Some(relay) => relay.next().await,
        None => std::future::pending().await,
    }
}
