//! Runs prompts in a Conversation: shows Turns, answers questions, handles signals, gives an exit code.

mod attend;
mod chat_mode;
mod line_mode;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::time::Interval;

pub use attend::AttendOutcome;
use attend::WatchOutcome;
pub use chat_mode::run_chat_session;
pub use line_mode::refuse_command_word;

use super::CliContext;
use super::exit::{self, Exit};
use crate::agent::conversation::{Conversation, UserInput};
use crate::agent::harness::{Harness, SessionTarget, StartOptions};
use crate::agent::inspect;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::setup::TurnSetup;
use crate::frontends::cli::terminal::keyboard;
use crate::frontends::cli::terminal::keyboard::{Keyboard, discard_typed_input};
use crate::frontends::cli::terminal::stdin::{GatheredPrompt, PromptSource};
use crate::frontends::relay::{EventRelay, RelayFilter};
use crate::frontends::render::{
    JsonEnvelope, OutputMode, StdioOutput, TurnOutcome, TurnSummary, TurnView, TypedAnswer,
    parse_answer,
};
use crate::frontends::signals::{SignalListener, StopRequest};
use crate::record::event::{
    Canonical, Ephemeral, EventKind, ListenFrom, ListenerItem, PermissionAnswer, PermissionMode,
    PermissionRequest, PermissionResponse, SessionStatus, SubagentEvent,
};
use crate::record::resource::Attachment;

/// Longest wait for a token renewal at the end of a run.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Wait for the last Events of children.
const CHILD_OUTPUT_GRACE: Duration = Duration::from_millis(20);

/// The Workspace, Session, prompt and settings of a run.
pub struct RunRequest {
    pub workspace: PathBuf,
    pub session: SessionTarget,
    pub gathered: GatheredPrompt,
    pub opened: TurnSetup,
    /// Attachments of the first prompt.
    pub attachments: Vec<Attachment>,
}

/// Runs one prompt, or line mode, in a new runtime.
pub fn run_session(run_request: RunRequest, context: &CliContext) -> Result<Exit, Report> {
    if let Some(word) = run_request.gathered.lone_word() {
        let command = match &run_request.session {
            SessionTarget::Resume(id) => format!("pixir resume {id} --"),
            SessionTarget::New => "pixir --".to_owned(),
        };
        let skills = context.skills(&run_request.workspace)?;
        refuse_command_word(&[word.to_owned()], &skills, &command)?;
    }
    in_runtime(async {
        let PromptSource::Text(text) = run_request.gathered.prompt else {
            return Box::pin(line_mode::run_line_mode(run_request, context)).await;
        };
        let mut runner = SessionRunner::start(
            run_request.workspace,
            run_request.session,
            run_request.opened,
            context,
        )
        .await?;
        runner.show_start_notices(&run_request.gathered.notices).await;
        runner.set_attachments(run_request.attachments);
        let exit = runner.run_one_turn(text).await;
        runner.end().await;
        exit
    })
}

/// Runs a future to its end. Threads that are stuck in a system call do not hold up the exit.
///
/// One worker beside this thread: a Turn is a chain of tasks that wait for each other, and a
/// second worker would only make every step a switch between threads. What the screen does here
/// never holds up the Turn there.
pub fn in_runtime<T>(work: impl Future<Output = Result<T, Report>>) -> Result<T, Report> {
    check_threads().map_err(|error| thread_start_error(&error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("pixir")
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()
        .map_err(|error| thread_start_error(&error))?;
    // Started now and kept: when tokio cannot start a thread, it queues the work behind threads that exist. Besides,
    // the first output of a Session would wait for them.
    for _ in 0..BLOCKING_THREADS {
        drop(runtime.spawn_blocking(|| ()));
    }
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

/// How long threads that ended may take to be released; other threads of the process may stay.
const THREAD_EXITS: Duration = Duration::from_millis(20);

/// How many threads for blocking work a run keeps: one may wait for the keyboard.
const BLOCKING_THREADS: usize = 2;

/// Starts as many threads as a run cannot do without, because tokio panics where it has none.
fn check_threads() -> io::Result<()> {
    let blocker = Mutex::new(());
    std::thread::scope(|scope| -> io::Result<()> {
        let _closed = blocker.lock();
        for _ in 0..=BLOCKING_THREADS {
            std::thread::Builder::new().spawn_scoped(scope, || drop(blocker.lock()))?;
        }
        Ok(())
    })?;
    wait_for_thread_exits();
    Ok(())
}

/// Waits until the kernel has released the threads that ended: until then they count against the limit on processes,
/// also after they were joined.
fn wait_for_thread_exits() {
    let deadline = Instant::now() + THREAD_EXITS;
    let threads = || std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    while threads() > 1 && Instant::now() < deadline {
        std::thread::yield_now();
    }
}

fn thread_start_error(error: &io::Error) -> Report {
    Report::new(Kind::Internal, format!("no thread can be started: {error}")).with_next_actions(
        vec![
        "end other programs of this user, or raise the limit on processes (`ulimit -u`, or the \
         pids limit of the container)"
            .to_owned(),
    ],
    )
}

/// Runs Turns of one Conversation for the command line.
pub struct SessionRunner<'a> {
    context: &'a CliContext,
    pub conversation: Conversation,
    relay: EventRelay,
    pub view: TurnView,
    signals: SignalListener,
    keyboard: Keyboard,
    /// Questions that wait for an answer; the first one is on the screen.
    questions: VecDeque<PermissionRequest>,
    /// When the first question was shown; input from before does not answer it.
    question_shown_at: Instant,
    /// When the recording of files for undo began; Enter skips it.
    recording_since: Option<Instant>,
    can_ask: bool,
    /// What a signal requested during the Turn or just after its end: to stop the Turn, or to leave Pixir.
    requested_stop: Option<StopRequest>,
    /// Whether the Session has, or had, children.
    has_children: bool,
    /// Attachments of the next prompt.
    attachments: Vec<Attachment>,
    /// The server of the embedded model, kept for the whole run.
    _demo: Option<crate::testing::scripted::ScriptedServer>,
    pub harness: Harness,
}

/// How a Turn ended for the runner.
pub enum TurnRunOutcome {
    Ended(Box<TurnOutcome>),
    /// stdout was closed; the Turn was stopped.
    OutputClosed,
    /// A second signal: leave at once.
    Aborted,
}

/// Everything that can happen while a Turn runs.
enum Wake {
    Received(Option<ListenerItem>),
    Signal(StopRequest),
    /// A line was typed while a question was open; `None` when no more can come.
    Typed(Option<String>),
    /// Enter was pressed while files were recorded.
    SkipRecording,
    Tick,
}

impl<'a> SessionRunner<'a> {
    /// Opens the harness and the Session.
    pub async fn start(
        workspace: PathBuf,
        session: SessionTarget,
        opened: TurnSetup,
        context: &'a CliContext,
    ) -> Result<Self, Report> {
        let signals = SignalListener::listen();
        let mut view = TurnView::new(context.display_mode(), StdioOutput::stdio(signals.count()));
        for notice in &opened.loaded.notices {
            view.print_notice(notice);
        }
        let (credential, demo) = opened.access.connect().await?;
        let harness = Harness::open(context.harness_options(opened.loaded.config, credential)?);
        let from = if session == SessionTarget::New { ListenFrom::Start } else { ListenFrom::Now };
        let can_ask = context.can_ask_in_run();
        let conversation = harness
            .start(StartOptions { workspace, session, can_ask, mcp_servers: Vec::new() })
            .await?;
        if can_ask {
            view.enable_questions();
        } else if conversation.mode() == PermissionMode::Ask {
            view.print_notice(
                "there is no terminal to ask on: calls that need permission are denied",
            );
        }
        for notice in conversation.notices() {
            view.print_notice(notice);
        }
        if from == ListenFrom::Now
            && let Ok(history) = conversation.recent_history().await
            && let Some(plan) = history.current_plan()
            && plan.entries.iter().any(|entry| entry.status != "completed")
        {
            view.show_plan(plan);
        }
        let filter =
            if view.wants_deltas() { RelayFilter::All } else { RelayFilter::WithoutDeltas };
        let relay = EventRelay::start(conversation.subscribe(from), filter);
        Ok(Self {
            context,
            conversation,
            relay,
            view,
            signals,
            keyboard: Keyboard::default(),
            questions: VecDeque::new(),
            question_shown_at: Instant::now(),
            recording_since: None,
            can_ask,
            requested_stop: None,
            has_children: false,
            attachments: Vec::new(),
            _demo: demo,
            harness,
        })
    }

    /// Shows notices before the first Turn.
    async fn show_start_notices(&mut self, notices: &[String]) {
        for notice in notices {
            self.view.print_notice(notice);
        }
        if let Ok(history) = self.conversation.history().await
            && let Some(offer) = crate::agent::workflow::interrupted_run_notice(history.facts())
        {
            self.view.print_notice(&offer);
        }
    }

    /// Ends the run: remembers the Workspace, cancels children, waits for a token renewal.
    pub async fn end(&mut self) {
        self.remember_workspace();
        self.harness.cancel_children(&self.conversation).await;
        self.wait_for_token_renewal().await;
    }

    /// Sets the attachments of the next prompt; prints a notice if the model does not accept images.
    fn set_attachments(&mut self, attachments: Vec<Attachment>) {
        self.attachments = attachments;
        let images: Vec<&Attachment> =
            self.attachments.iter().filter(|attachment| attachment.is_image()).collect();
        if !images.is_empty() && !self.conversation.sees_images() {
            let model = self.conversation.model();
            let names: Vec<&str> = images.iter().map(|image| image.name()).collect();
            let names = names.join(", ");
            self.view
                .print_notice(&format!("{model} takes no images: {names} will only be described"));
        }
    }

    /// Runs one Turn and gives its exit code.
    async fn run_one_turn(&mut self, text: String) -> Result<Exit, Report> {
        let mut outcome = self.run_turn(text).await?;
        let attended = self.wait_for_children(&mut outcome).await;
        let exit = self.finish_turn(&outcome);
        let exit = if attended { exit } else { Exit::Interrupted };
        let OutputMode::Json(_) = self.context.display_mode() else { return Ok(exit) };
        let took = self.context.started.elapsed();
        let envelope = match &outcome {
            TurnRunOutcome::Ended(ending) => JsonEnvelope::for_turn(ending, took),
            TurnRunOutcome::Aborted => {
                let report = Report::new(Kind::Interrupted, "stopped by a second signal");
                JsonEnvelope::failure("turn", report, took)
            }
            TurnRunOutcome::OutputClosed => return Ok(exit),
        };
        let envelope = envelope.with_session(self.conversation.id(), self.resume_command());
        let is_read = self.view.write_answer(&envelope.to_line()).is_ok();
        Ok(if is_read { exit } else { self.finish_turn(&TurnRunOutcome::OutputClosed) })
    }

    /// Whether line mode must end: a signal asked for it, or the Log cannot be written.
    fn must_end_session(&self, ending: &TurnOutcome) -> bool {
        self.requested_stop == Some(StopRequest::Leave)
            || exit::exit_for_turn(ending) == Exit::LogUnwritable
    }

    /// Runs one Turn to its end and shows it.
    pub async fn run_turn(&mut self, text: String) -> Result<TurnRunOutcome, Report> {
        let expanded = self.conversation.expand(text).await;
        for notice in &expanded.notices {
            self.view.print_notice(notice);
        }
        let input = UserInput { text: expanded.text };
        let attachments = std::mem::take(&mut self.attachments);
        let sent = self.conversation.send_with_attachments(input, attachments).await;
        sent?;
        let mut summary = TurnSummary::default();
        self.requested_stop = None;
        let stop = interrupt_turn(self.conversation.clone());
        let watched =
            self.watch_work(std::future::pending::<()>(), stop, |item| summary.record(item));
        let WatchOutcome::Finished { output_closed: mut unread, .. } = watched.await else {
            return Ok(TurnRunOutcome::Aborted);
        };
        // Children outlive the Turn, and so do their questions.
        self.questions.retain(|open| open.agent.is_some());
        self.view.end_question();
        unread |= self.view.finish().is_err();
        for notice in self.conversation.take_notices() {
            self.view.print_notice(&notice);
        }
        Ok(if unread {
            TurnRunOutcome::OutputClosed
        } else {
            TurnRunOutcome::Ended(Box::new(summary.into_outcome()))
        })
    }

    async fn next_wake(&mut self, ticker: &mut Interval) -> Wake {
        let is_asking = !self.questions.is_empty();
        let recording_since = self.recording_since.filter(|_| self.can_ask && !is_asking);
        let is_read = is_asking || recording_since.is_some();
        tokio::select! {
            biased;
            asked = self.signals.next() => Wake::Signal(asked),
            item = self.relay.next() => Wake::Received(item),
            wake = next_typed(&mut self.keyboard, self.question_shown_at, recording_since), if is_read => wake,
            _ = ticker.tick() => Wake::Tick,
        }
    }

    /// Updates the list of open questions. A repeated question is not asked again.
    fn track_question(&mut self, item: &ListenerItem) {
        let ListenerItem::Event(event) = item else { return };
        match event.kind() {
            EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) if self.can_ask => {
                if self.questions.iter().any(|open| open.call_id == request.call_id) {
                    return;
                }
                self.questions.push_back((**request).clone());
                if self.questions.len() == 1 {
                    self.show_question();
                }
            }
            EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. }) => {
                let was_shown = self.questions.front().is_some_and(|open| open.call_id == *call_id);
                self.questions.retain(|open| open.call_id != *call_id);
                if was_shown {
                    self.view.end_question();
                    self.show_question();
                }
            }
            EventKind::Ephemeral(_) | EventKind::Canonical(_) => {}
        }
    }

    /// Tracks whether files are being recorded for undo.
    fn track_recording(&mut self, item: &ListenerItem) {
        let ListenerItem::Event(event) = item else { return };
        let EventKind::Ephemeral(Ephemeral::Status(status)) = event.kind() else { return };
        if !matches!(status, SessionStatus::Recording { .. }) {
            self.recording_since = None;
        } else if self.recording_since.is_none() {
            self.keyboard.begin_wait_for_enter();
            self.recording_since = Some(Instant::now());
        }
    }

    fn skip_recording(&mut self) {
        self.recording_since = None;
        if keyboard::is_echo_on() {
            self.view.erase_after_enter();
        }
        self.conversation.skip_recording();
    }

    fn show_question(&mut self) {
        if let Some(request) = self.questions.front() {
            // Before the question is shown: input after this may be its answer.
            discard_typed_input();
            self.question_shown_at = Instant::now();
            self.view.show_question(request);
        }
    }

    /// Answers the shown question with a typed line; the end of input means no.
    async fn answer_question(&mut self, line: Option<String>) {
        let Some(request) = self.questions.front() else { return };
        let response = match line.as_deref().map(|line| parse_answer(line, request)) {
            None => PermissionResponse::from(PermissionAnswer::No),
            Some(TypedAnswer::Response(response)) => response,
            Some(TypedAnswer::Unclear) => return self.view.repeat_choices(request),
        };
        let call_id = request.call_id.clone();
        self.view.end_question();
        // Fails if the question was answered elsewhere first; that answer counts.
        if let Err(error) = self.conversation.answer(&call_id, response).await {
            tracing::debug!(%error, "the question was settled elsewhere");
        }
        self.questions.retain(|open| open.call_id != call_id);
        self.show_question();
    }

    /// Prints how to resume, and gives the exit code.
    fn finish_turn(&mut self, outcome: &TurnRunOutcome) -> Exit {
        match outcome {
            TurnRunOutcome::Ended(ending) => {
                self.print_resume_hint();
                exit::exit_for_turn(ending)
            }
            TurnRunOutcome::OutputClosed if self.view.has_failed() => Exit::Error,
            TurnRunOutcome::OutputClosed | TurnRunOutcome::Aborted => Exit::Interrupted,
        }
    }

    /// Adds the Workspace to the known ones, for `resume` from elsewhere. The harness does so in the background; a
    /// short run may end before that.
    pub fn remember_workspace(&self) {
        if let Ok(home) = self.context.home() {
            inspect::remember_workspace(&home, self.conversation.workspace());
        }
    }

    /// Waits for a token renewal under way, because the old refresh token is used up; a signal ends the wait.
    pub async fn wait_for_token_renewal(&mut self) {
        let settled = tokio::time::timeout(RENEWAL_TIMEOUT, self.harness.shut_down());
        tokio::select! {
            _ = settled => {}
            _ = self.signals.next() => {}
        }
    }

    fn print_resume_hint(&mut self) {
        let command = self.resume_command();
        self.view.print_notice(&format!("resume: {command}"));
    }

    /// The command line that resumes this Session.
    pub fn resume_command(&self) -> String {
        self.context.resume_command(self.conversation.id(), self.conversation.workspace())
    }
}

/// The next input while a question is open, or while files are recorded.
async fn next_typed(
    keyboard: &mut Keyboard,
    asked_at: Instant,
    recording: Option<Instant>,
) -> Wake {
    match recording {
        None => Wake::Typed(keyboard.line_after(asked_at).await),
        Some(since) => match keyboard.enter_after(since).await {
            Some(()) => Wake::SkipRecording,
            // The input has ended.
            None => std::future::pending().await,
        },
    }
}

/// The Subagent Event of a message from the bus, if it is one.
fn subagent_event(item: &ListenerItem) -> Option<&SubagentEvent> {
    let ListenerItem::Event(event) = item else { return None };
    match event.kind() {
        EventKind::Canonical(Canonical::SubagentEvent(life)) => Some(life),
        EventKind::Canonical(_) | EventKind::Ephemeral(_) => None,
    }
}

/// Whether line mode shows this while it waits for a prompt.
fn is_shown_at_prompt(item: &ListenerItem) -> bool {
    let is_question = |event: &crate::record::event::Event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::PermissionRequest(_)))
    };
    subagent_event(item).is_some_and(SubagentEvent::ends_run)
        || matches!(item, ListenerItem::Event(event) if is_question(event))
}

/// Interrupts the Turn; its end arrives as an Event.
async fn interrupt_turn(conversation: Conversation) {
    if let Err(error) = conversation.interrupt().await {
        tracing::debug!(%error, "the Turn was already over");
    }
}
