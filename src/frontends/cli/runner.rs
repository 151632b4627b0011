//! Runs prompts in a Conversation: shows Turns, answers questions, handles signals, gives an exit code.

mod attend;
mod line_mode;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::time::Interval;

pub use attend::Attended;
use attend::Watched;
pub use line_mode::refuse_command_word;

use super::Context;
use super::exit::{self, Exit};
use super::relay::{Relay, Wish};
use crate::agent::conversation::{Conversation, Input};
use crate::agent::harness::{Harness, Start, Which};
use crate::agent::inspect;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::setup::Opened;
use crate::frontends::cli::terminal::keyboard;
use crate::frontends::cli::terminal::keyboard::{Keyboard, forget_typed};
use crate::frontends::cli::terminal::signals::{Asked, Signals};
use crate::frontends::cli::terminal::stdin::{Gathered, Prompt};
use crate::frontends::render::{Ending, Envelope, Mode, Paper, Reply, Tally, View, understand};
use crate::record::event::{
    Answer, Canonical, Ephemeral, EventKind, From as ListenFrom, Heard, PermissionMode,
    PermissionRequest, Said, Status, SubagentEvent,
};
use crate::record::resource::Attachment;

/// Longest wait for a token renewal at the end of a run.
const SETTLE: Duration = Duration::from_secs(5);

/// Wait for the last Events of children.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// The Workspace, Session, prompt and settings of a run.
pub struct Errand {
    pub workspace: PathBuf,
    pub session: Which,
    pub gathered: Gathered,
    pub opened: Opened,
    /// Attachments of the first prompt.
    pub attachments: Vec<Attachment>,
}

/// Runs one prompt, or line mode, in a new runtime.
pub fn drive(errand: Errand, context: &Context) -> Result<Exit, Report> {
    if let Some(word) = errand.gathered.lone_word() {
        let command = match &errand.session {
            Which::Resume(id) => format!("pixir resume {id} --"),
            Which::New => "pixir --".to_owned(),
        };
        let skills = context.skills(&errand.workspace)?;
        refuse_command_word(&[word.to_owned()], &skills, &command)?;
    }
    in_runtime(async {
        let Prompt::Text(text) = errand.gathered.prompt else {
            return Box::pin(line_mode::run(errand, context)).await;
        };
        let mut driver =
            Driver::start(errand.workspace, errand.session, errand.opened, context).await?;
        driver.announce(&errand.gathered.notices).await;
        driver.attach(errand.attachments);
        let exit = driver.one_turn(text).await;
        driver.end().await;
        exit
    })
}

/// Runs a future to its end. Threads that are stuck in a system call do not hold up the exit.
///
/// One worker beside this thread: a Turn is a chain of tasks that wait for each other, and a
/// second worker would only make every step a switch between threads. What the screen does here
/// never holds up the Turn there.
pub fn in_runtime<T>(work: impl Future<Output = Result<T, Report>>) -> Result<T, Report> {
    check_threads().map_err(|error| no_threads(&error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("pixir")
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()
        .map_err(|error| no_threads(&error))?;
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
    let gate = Mutex::new(());
    std::thread::scope(|scope| -> io::Result<()> {
        let _closed = gate.lock();
        for _ in 0..=BLOCKING_THREADS {
            std::thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()))?;
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

fn no_threads(error: &io::Error) -> Report {
    Report::new(Kind::Internal, format!("no thread can be started: {error}")).with_next_actions(
        vec![
        "end other programs of this user, or raise the limit on processes (`ulimit -u`, or the \
         pids limit of the container)"
            .to_owned(),
    ],
    )
}

/// Runs Turns of one Conversation for the command line.
pub struct Driver<'a> {
    context: &'a Context,
    pub conversation: Conversation,
    relay: Relay,
    pub view: View,
    signals: Signals,
    keyboard: Keyboard,
    /// Questions that wait for an answer; the first one is on the screen.
    questions: VecDeque<PermissionRequest>,
    /// When the first question was shown; input from before does not answer it.
    asked_at: Instant,
    /// When the recording of files for undo began; Enter skips it.
    recording_since: Option<Instant>,
    can_ask: bool,
    /// What a signal requested during the Turn or just after its end: to stop the Turn, or to leave Pixir.
    asked: Option<Asked>,
    /// Whether the Session has, or had, children.
    has_children: bool,
    /// Attachments of the next prompt.
    attachments: Vec<Attachment>,
    /// The server of the embedded model, kept for the whole run.
    _demo: Option<crate::testing::scripted::Server>,
    pub harness: Harness,
}

/// How a Turn ended for the runner.
pub enum Driven {
    Ended(Box<Ending>),
    /// stdout was closed; the Turn was stopped.
    Unread,
    /// A second signal: leave at once.
    Abandoned,
}

/// Everything that can happen while a Turn runs.
enum Wake {
    Heard(Option<Heard>),
    Signal(Asked),
    /// A line was typed while a question was open; `None` when no more can come.
    Typed(Option<String>),
    /// Enter was pressed while files were recorded.
    SkipRecording,
    Tick,
}

impl<'a> Driver<'a> {
    /// Opens the harness and the Session.
    pub async fn start(
        workspace: PathBuf,
        session: Which,
        opened: Opened,
        context: &'a Context,
    ) -> Result<Self, Report> {
        let signals = Signals::listen();
        let mut view = View::new(context.mode(), Paper::standard(signals.count()));
        for notice in &opened.loaded.notices {
            view.notice(notice);
        }
        let (credential, demo) = opened.access.open().await?;
        let harness = Harness::open(context.door(opened.loaded.config, credential)?);
        let from = if session == Which::New { ListenFrom::Start } else { ListenFrom::Now };
        let can_ask = context.can_ask_in_run();
        let conversation =
            harness.start(Start { workspace, session, can_ask, mcp_servers: Vec::new() }).await?;
        if can_ask {
            view.will_ask();
        } else if conversation.mode() == PermissionMode::Ask {
            view.notice("there is no terminal to ask on: calls that need permission are denied");
        }
        for notice in conversation.notices() {
            view.notice(notice);
        }
        if from == ListenFrom::Now
            && let Ok(history) = conversation.recent().await
            && let Some(plan) = history.current_plan()
            && plan.entries.iter().any(|entry| entry.status != "completed")
        {
            view.remind(plan);
        }
        let wish = if view.wants_pieces() { Wish::Everything } else { Wish::Wholes };
        let relay = Relay::start(conversation.subscribe(from), wish);
        Ok(Self {
            context,
            conversation,
            relay,
            view,
            signals,
            keyboard: Keyboard::default(),
            questions: VecDeque::new(),
            asked_at: Instant::now(),
            recording_since: None,
            can_ask,
            asked: None,
            has_children: false,
            attachments: Vec::new(),
            _demo: demo,
            harness,
        })
    }

    /// Shows notices before the first Turn.
    async fn announce(&mut self, notices: &[String]) {
        for notice in notices {
            self.view.notice(notice);
        }
        if let Ok(history) = self.conversation.history().await
            && let Some(offer) = crate::agent::workflow::cut_off(history.facts())
        {
            self.view.notice(&offer);
        }
    }

    /// Ends the run: remembers the Workspace, cancels children, waits for a token renewal.
    pub async fn end(&mut self) {
        self.remember();
        self.harness.cancel_children(&self.conversation).await;
        self.settle().await;
    }

    /// Sets the attachments of the next prompt; prints a notice if the model does not accept images.
    fn attach(&mut self, attachments: Vec<Attachment>) {
        self.attachments = attachments;
        let images: Vec<&Attachment> =
            self.attachments.iter().filter(|attachment| attachment.is_image()).collect();
        if !images.is_empty() && !self.conversation.sees_images() {
            let model = self.conversation.model();
            let names: Vec<&str> = images.iter().map(|image| image.name()).collect();
            let names = names.join(", ");
            self.view.notice(&format!("{model} takes no images: {names} will only be described"));
        }
    }

    /// Runs one Turn and gives its exit code.
    async fn one_turn(&mut self, text: String) -> Result<Exit, Report> {
        let mut driven = self.turn(text).await?;
        let attended = self.attend_children(&mut driven).await;
        let exit = self.close(&driven);
        let exit = if attended { exit } else { Exit::Interrupted };
        let Mode::Json(_) = self.context.mode() else { return Ok(exit) };
        let took = self.context.started.elapsed();
        let envelope = match &driven {
            Driven::Ended(ending) => Envelope::turn(ending, took),
            Driven::Abandoned => {
                let report = Report::new(Kind::Interrupted, "stopped by a second signal");
                Envelope::failure("turn", report, took)
            }
            Driven::Unread => return Ok(exit),
        };
        let envelope = envelope.of_session(self.conversation.id(), self.resume_command());
        let is_read = self.view.answer(&envelope.line()).is_ok();
        Ok(if is_read { exit } else { self.close(&Driven::Unread) })
    }

    /// Whether line mode must end: a signal asked for it, or the Log cannot be written.
    fn must_leave(&self, ending: &Ending) -> bool {
        self.asked == Some(Asked::Leave) || exit::of_ending(ending) == Exit::LogUnwritable
    }

    /// Runs one Turn to its end and shows it.
    pub async fn turn(&mut self, text: String) -> Result<Driven, Report> {
        let expanded = self.conversation.expand(text).await;
        for notice in &expanded.notices {
            self.view.notice(notice);
        }
        let input = Input { text: expanded.text };
        let attachments = std::mem::take(&mut self.attachments);
        let sent = self.conversation.send_with(input, attachments).await;
        sent?;
        let mut tally = Tally::default();
        self.asked = None;
        let stop = stop(self.conversation.clone());
        let watched = self.watch(std::future::pending::<()>(), stop, |heard| tally.hear(heard));
        let Watched::Over { mut unread, .. } = watched.await else { return Ok(Driven::Abandoned) };
        // Children outlive the Turn, and so do their questions.
        self.questions.retain(|open| open.agent.is_some());
        self.view.answered();
        unread |= self.view.finish().is_err();
        for notice in self.conversation.take_notices() {
            self.view.notice(&notice);
        }
        Ok(if unread { Driven::Unread } else { Driven::Ended(Box::new(tally.ending())) })
    }

    async fn next(&mut self, ticker: &mut Interval) -> Wake {
        let is_asking = !self.questions.is_empty();
        let recording_since = self.recording_since.filter(|_| self.can_ask && !is_asking);
        let is_read = is_asking || recording_since.is_some();
        tokio::select! {
            biased;
            asked = self.signals.next() => Wake::Signal(asked),
            heard = self.relay.next() => Wake::Heard(heard),
            wake = typed(&mut self.keyboard, self.asked_at, recording_since), if is_read => wake,
            _ = ticker.tick() => Wake::Tick,
        }
    }

    /// Updates the list of open questions. A repeated question is not asked again.
    fn note_question(&mut self, heard: &Heard) {
        let Heard::Event(event) = heard else { return };
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
                    self.view.answered();
                    self.show_question();
                }
            }
            EventKind::Ephemeral(_) | EventKind::Canonical(_) => {}
        }
    }

    /// Tracks whether files are being recorded for undo.
    fn note_recording(&mut self, heard: &Heard) {
        let Heard::Event(event) = heard else { return };
        let EventKind::Ephemeral(Ephemeral::Status(status)) = event.kind() else { return };
        if !matches!(status, Status::Recording { .. }) {
            self.recording_since = None;
        } else if self.recording_since.is_none() {
            self.keyboard.begin_wait_for_enter();
            self.recording_since = Some(Instant::now());
        }
    }

    fn skip_recording(&mut self) {
        self.recording_since = None;
        if keyboard::echoes() {
            self.view.entered();
        }
        self.conversation.skip_recording();
    }

    fn show_question(&mut self) {
        if let Some(request) = self.questions.front() {
            // Before the question is shown: input after this may be its answer.
            forget_typed();
            self.asked_at = Instant::now();
            self.view.question(request);
        }
    }

    /// Answers the shown question with a typed line; the end of input means no.
    async fn reply(&mut self, line: Option<String>) {
        let Some(request) = self.questions.front() else { return };
        let said = match line.as_deref().map(|line| understand(line, request)) {
            None => Said::from(Answer::No),
            Some(Reply::Said(said)) => said,
            Some(Reply::Unclear) => return self.view.ask_again(request),
        };
        let call_id = request.call_id.clone();
        self.view.answered();
        // Fails if the question was answered elsewhere first; that answer counts.
        if let Err(error) = self.conversation.answer(&call_id, said).await {
            tracing::debug!(%error, "the question was settled elsewhere");
        }
        self.questions.retain(|open| open.call_id != call_id);
        self.show_question();
    }

    /// Prints how to resume, and gives the exit code.
    fn close(&mut self, driven: &Driven) -> Exit {
        match driven {
            Driven::Ended(ending) => {
                self.hint();
                exit::of_ending(ending)
            }
            Driven::Unread if self.view.has_failed() => Exit::Error,
            Driven::Unread | Driven::Abandoned => Exit::Interrupted,
        }
    }

    /// Adds the Workspace to the known ones, for `resume` from elsewhere. The harness does so in the background; a
    /// short run may end before that.
    pub fn remember(&self) {
        if let Ok(home) = self.context.home() {
            inspect::remember(&home, self.conversation.workspace());
        }
    }

    /// Waits for a token renewal under way, because the old refresh token is used up; a signal ends the wait.
    pub async fn settle(&mut self) {
        let settled = tokio::time::timeout(SETTLE, self.harness.settle());
        tokio::select! {
            _ = settled => {}
            _ = self.signals.next() => {}
        }
    }

    fn hint(&mut self) {
        let command = self.resume_command();
        self.view.notice(&format!("resume: {command}"));
    }

    /// The command line that resumes this Session.
    pub fn resume_command(&self) -> String {
        self.context.resume_command(self.conversation.id(), self.conversation.workspace())
    }
}

/// The next input while a question is open, or while files are recorded.
async fn typed(keyboard: &mut Keyboard, asked_at: Instant, recording: Option<Instant>) -> Wake {
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
fn life_of(heard: &Heard) -> Option<&SubagentEvent> {
    let Heard::Event(event) = heard else { return None };
    match event.kind() {
        EventKind::Canonical(Canonical::SubagentEvent(life)) => Some(life),
        EventKind::Canonical(_) | EventKind::Ephemeral(_) => None,
    }
}

/// Whether line mode shows this while it waits for a prompt.
fn is_shown(heard: &Heard) -> bool {
    let is_question = |event: &crate::record::event::Event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::PermissionRequest(_)))
    };
    life_of(heard).is_some_and(SubagentEvent::ends_run)
        || matches!(heard, Heard::Event(event) if is_question(event))
}

/// Interrupts the Turn; its end arrives as an Event.
async fn stop(conversation: Conversation) {
    if let Err(error) = conversation.interrupt().await {
        tracing::debug!(%error, "the Turn was already over");
    }
}
