//! The Turn: from one user input to exactly one terminal event.
//!
//! Stateless between iterations: every Provider call is built from the Session's History, and
//! everything that matters is recorded before the next step is taken.

mod activate;
mod budget;
mod compact;
mod complete;
mod doom;
mod evidence;
mod execute;
mod hydrate;
mod outside;
mod permit;
mod pressure;
mod purse;
mod request;
mod stance;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

pub use activate::named_in;
pub use budget::{Budget, RUN_COST, unpriced};
pub use compact::{Compacted, compact};
pub use pressure::Gauge;
pub use purse::{Purse, SpendLimits};
pub use stance::Stance;

use crate::agent::session::{SessionError, TurnContext};
use crate::base::blocking;
use crate::base::error::{Explain, Kind, Report, counted};
use crate::base::secret::Secrets;
use crate::host::snapshot::Tracker;
use crate::host::workspace::Workspace;
use crate::model::provider::{Item, Provider, Source, Wishes};
use crate::model::skill::Skills;
use crate::record::event::{
    AssistantMessage, Descriptor, Ephemeral, Extra, NOTICE, PermissionMode, Phase, Reasoning,
    Status, TerminalStatus, TurnFailed, UserMessage,
};
use crate::record::history;
use crate::record::resource::Shelf;
use crate::record::state_dir::SessionFolder;
use crate::settings::config::{Compaction, Miss, Retry, Sight, Window};
use crate::settings::role::Role;
use crate::tools::mcp::{Connections, Wanted};
use crate::tools::permission::Approvals;
use crate::tools::tool::Editor;
use crate::tools::toolbox::Toolbox;
use budget::BudgetRefusal;
use complete::Completion;
use doom::DoomGuard;

/// Everything a Turn needs besides its Session.
#[derive(Debug, Clone)]
pub struct Settings {
    pub provider: Arc<dyn Provider>,
    pub toolbox: Toolbox,
    /// The MCP servers of the Session.
    pub connections: Connections,
    /// All tools of the Session, also those that its role withholds.
    pub tools: Toolbox,
    pub workspace: Workspace,
    pub secrets: Arc<Secrets>,
    pub model: String,
    pub effort: Option<String>,
    /// Permission mode and sandbox profile, which may change while a Turn runs.
    pub stance: Stance,
    /// Whether a front-end answers questions; without one they are denied at once.
    pub can_ask: bool,
    /// Lasting approvals, of the Session and of the project.
    pub approvals: Approvals,
    pub role: &'static Role,
    pub dry_run: bool,
    pub max_iterations: Option<u32>,
    pub retry: Retry,
    /// The longest that one iteration may take, all attempts together.
    pub total: Duration,
    /// How long a cancelled tool may take to clean up.
    pub tool_grace: Duration,
    pub output_limit: usize,
    pub session_folder: SessionFolder,
    /// The Sessions whose spilled output may be read: this one first.
    pub output_folders: Arc<[SessionFolder]>,
    pub prompt: Prompt,
    /// Limits of the run; shared by its Turns.
    pub budget: Arc<Budget>,
    /// Billed usage of the Session and all its Subagents.
    pub purse: Purse,
    /// Options of the response: web search and the schema of the answer.
    pub wishes: Wishes,
    /// The Resources of the Session.
    pub shelf: Shelf,
    /// Whether the model can be shown images.
    pub sight: Sight,
    /// The model's context window.
    pub window: Window,
    /// Measures how full the window is.
    pub gauge: Arc<Gauge>,
    /// Settings of compaction.
    pub compaction: Compaction,
    /// The editor whose buffers tools read, if the front-end has one.
    pub editor: Option<Arc<dyn Editor>>,
    /// Records files before they change, so that a Turn can be undone.
    pub tracker: Option<Tracker>,
    /// The Skills that may be used.
    pub skills: Skills,
}

/// The parts of the prompt beside the History.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub contract: &'static str,
    pub instructions: Arc<str>,
    pub project: Option<Arc<str>>,
    pub cache_key: String,
    /// The user's shell, for the late context.
    pub shell: String,
}

/// The input of one Turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Input {
    /// The prompt, as typed.
    pub text: String,
    /// Attached Resources; their bytes are stored already.
    pub resources: Vec<Descriptor>,
    /// Late context from the sender, such as the Delegation Context of a Subagent.
    pub context: Option<String>,
    /// Whether another agent wrote it, not a person.
    pub is_delegated: bool,
}

/// Runs a Turn, records its terminal Event, and returns its status.
pub async fn run(context: TurnContext, settings: Arc<Settings>, input: Input) -> Status {
    let (toolbox, is_late) = (OnceLock::new(), AtomicBool::new(false));
    let narrowed = Arc::default();
    let outside = outside::ProgramFiles::default();
    let turn = Turn { context, settings, toolbox, is_late, narrowed, outside };
    match turn.drive_in_time(input).await {
        Ok(()) => Status::Done,
        Err(end) => {
            turn.settle().await;
            turn.look_back().await;
            turn.fail(end).await
        }
    }
}

pub(super) struct Turn {
    context: TurnContext,
    settings: Arc<Settings>,
    /// The tools of this Turn; fixed from its start.
    toolbox: OnceLock<Toolbox>,
    /// Set when the run's deadline cancelled the Turn, so that its end is not recorded as an
    /// interrupt.
    is_late: AtomicBool,
    /// Tool restrictions of active Skills.
    narrowed: Arc<activate::Narrowed>,
    /// Files that commands wrote and that programs outside the sandbox execute, such as git hooks.
    outside: outside::ProgramFiles,
}

/// Why a Turn ends without an answer.
#[derive(Debug)]
pub(super) enum End {
    Failed {
        status: TerminalStatus,
        error: Box<Report>,
    },
    Interrupted,
    /// The Session cannot record: nothing more may happen.
    Session(Box<SessionError>),
}

impl From<SessionError> for End {
    fn from(error: SessionError) -> Self {
        End::Session(Box::new(error))
    }
}

impl End {
    fn failed(status: TerminalStatus, kind: Kind, message: impl Into<String>) -> Self {
        End::Failed { status, error: Box::new(Report::new(kind, message)) }
    }
}

impl From<BudgetRefusal> for End {
    fn from(spent: BudgetRefusal) -> Self {
        End::Failed { status: spent.status, error: spent.report }
    }
}

impl Turn {
    /// After an interrupt, ends the background commands of this Turn before its end is recorded.
    async fn settle(&self) {
        if self.context.cancel().is_cancelled() {
            let leaving = self.toolbox().settle();
            tokio::time::timeout(self.settings.tool_grace, leaving).await.ok();
        }
    }

    /// Runs the loop until the run's deadline, which cancels it like an interrupt.
    async fn drive_in_time(&self, input: Input) -> Result<(), End> {
        let Some(deadline) = self.settings.budget.deadline() else {
            return self.drive(input).await;
        };
        let mut work = pin!(self.drive(input));
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until(deadline) => {}
        }
        self.is_late.store(true, Ordering::Release);
        self.context.cancel().cancel();
        match work.await {
            Err(End::Interrupted) => Err(self.settings.budget.late().into()),
            done => done,
        }
    }

    /// The report for cancelled work: the run's deadline or an interrupt.
    fn stopped(&self) -> Report {
        if self.is_late.load(Ordering::Acquire) {
            return *self.settings.budget.late().report;
        }
        Report::new(Kind::Interrupted, "the Turn was interrupted")
    }

    async fn drive(&self, input: Input) -> Result<(), End> {
        self.begin(input).await?;
        let mut guard = DoomGuard::default();
        for iteration in 0.. {
            self.check_cap(iteration)?;
            self.context.emit(Ephemeral::Status(Status::Thinking { iteration }));
            self.make_room(iteration).await?;
            let completion = self.complete(iteration).await?;
            if self.take(completion, &mut guard).await? == Next::Answered {
                return Ok(());
            }
        }
        Err(End::failed(TerminalStatus::IterationCap, Kind::IterationCap, "too many iterations"))
    }

    async fn begin(&self, input: Input) -> Result<(), End> {
        let settings = &self.settings;
        // Servers that are still starting are waited for a moment, once per Session.
        let tell = |servers| self.context.emit(Ephemeral::Status(Status::Starting { servers }));
        self.context.cancel().run_until_cancelled(settings.connections.settled(tell)).await;
        let history = self.context.recent().await?;
        self.toolbox.get_or_init(|| self.gather());
        let mut context = settings.late_context();
        if let Some(told) = &input.context {
            context.extend(["\n\n", &settings.secrets.clean(told)]);
        }
        // The context is append-only: sent once, and again only when it changed.
        let is_news = history.latest_context() != Some(context.as_str());
        self.settings.shelf.begin_turn(&history, &input.resources);
        let active = self.activate(&input, &history).await?;
        let message = UserMessage {
            text: self.settings.secrets.clean(&input.text).into_owned(),
            context: is_news.then_some(context),
            resources: input.resources.iter().map(|resource| json!(resource)).collect(),
            ..UserMessage::default()
        };
        let said = self.context.record(message).await?;
        if let (Some(tracker), Some(seq)) = (&self.settings.tracker, said.seq()) {
            tracker.begin(seq);
        }
        // Skill sources are read for a person; a model requests them by a call.
        for skill in active.into_iter().filter(|_| !input.is_delegated) {
            self.hydrate(&skill, "user").await?;
        }
        Ok(())
    }

    /// The tools of this Turn: Pixir's own, and those of MCP servers that are connected by now.
    fn gather(&self) -> Toolbox {
        let Settings { toolbox, connections, role, shelf, .. } = &*self.settings;
        let mut guests = connections.tools(shelf, self.wanted());
        guests.retain(|guest| role.may_use(&guest.spec().name));
        toolbox.with_guests(guests)
    }

    /// Which MCP tools are offered: only read-only ones to a role that can never change anything.
    fn wanted(&self) -> Wanted {
        match self.settings.role.limit(&PermissionMode::Auto) {
            PermissionMode::Auto | PermissionMode::Ask => Wanted::All,
            PermissionMode::ReadOnly | PermissionMode::Other(_) => Wanted::Reading,
        }
    }

    fn toolbox(&self) -> &Toolbox {
        self.toolbox.get().unwrap_or(&self.settings.toolbox)
    }

    /// Records the files that commands of this Turn changed, so that it can be undone.
    async fn look_back(&self) {
        let Some(tracker) = self.settings.tracker.clone() else { return };
        match blocking::work(move || tracker.end()).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(reason))) => tracing::info!(reason, "undo covers file tools only"),
            Ok(Err(error)) => tracing::warn!(%error, "file changes of commands are not recorded"),
            Err(error) => tracing::warn!(%error, "file changes of commands are not recorded"),
        }
    }

    fn check_cap(&self, iteration: u32) -> Result<(), End> {
        if self.context.cancel().is_cancelled() {
            return Err(End::Interrupted);
        }
        let (status, cap) = (TerminalStatus::IterationCap, self.settings.max_iterations);
        let used_up = check_cap(cap, iteration).map_err(Box::new);
        used_up.map_err(|error| End::Failed { status, error })
    }

    /// Records the response and executes its calls, in the order they came.
    async fn take(&self, completion: Completion, guard: &mut DoomGuard) -> Result<Next, End> {
        let has_calls = completion.items.iter().any(|item| matches!(item, Item::Call(_)));
        let truncated = completion.end.incomplete;
        // An answer that was cut is shown as it is, and never asked for again.
        let goes_on = has_calls || (completion.end.wants_more && truncated.is_none());
        let last_text = completion.items.iter().rposition(is_text);
        // The final answer is recorded last, even if other items follow it.
        let mut answer = None;
        let mut recorded = has_calls;
        let mut items = completion.items.into_iter().enumerate().peekable();
        while let Some((place, item)) = items.next() {
            match item {
                Item::Reasoning { mut item } => {
                    self.settings.secrets.clean_value(&mut item);
                    let model = self.settings.model.clone();
                    let account = self.settings.provider.account();
                    let extra = account.map(|mark| ("account".to_owned(), json!(&*mark)));
                    let extra = extra.into_iter().collect();
                    self.context.record(Reasoning { item, model, extra }).await?;
                }
                Item::Message { text, is_refusal, citations } if !text.trim().is_empty() => {
                    let text = self.cleaned(text);
                    if !goes_on && Some(place) == last_text {
                        answer = Some((text, is_refusal, citations));
                        continue;
                    }
                    self.say(text, Phase::Commentary, None, &citations).await?;
                    recorded = true;
                }
                Item::Call(call) => {
                    let mut calls = vec![call];
                    while let Some((_, Item::Call(call))) =
                        items.next_if(|(_, item)| matches!(item, Item::Call(_)))
                    {
                        calls.push(call);
                    }
                    self.execute(calls, guard).await?;
                }
                // A web search is recorded with the usage.
                Item::Message { .. } | Item::WebSearch(_) | Item::Other { .. } => {}
            }
        }
        match answer {
            Some((text, true, _)) => return self.refuse(text).await,
            Some((text, false, citations)) => {
                if let Some(reason) = &truncated {
                    return self.cut(text, reason, &citations).await;
                }
                if let Some(schema) = &self.settings.wishes.answer_schema
                    && let Err(misses) = schema.check(&text)
                {
                    return self.miss(text, &misses).await;
                }
                self.look_back().await;
                self.say(text, Phase::Final, None, &citations).await?;
                return Ok(Next::Answered);
            }
            None if has_calls => return Ok(Next::GoOn),
            None if goes_on && recorded && guard.may_go_on_without_calls() => {
                return Ok(Next::GoOn);
            }
            None => {}
        }
        Err(unanswered(truncated.as_deref()))
    }

    async fn say(
        &self,
        text: String,
        phase: Phase,
        cut: Option<&str>,
        citations: &[Source],
    ) -> Result<(), End> {
        let mut metadata = Extra::new();
        if let Some(reason) = cut {
            metadata.insert("truncated".to_owned(), json!(reason));
        }
        if let Some(mut citations) = evidence::citations(citations) {
            self.settings.secrets.clean_value(&mut citations);
            metadata.insert("citations".to_owned(), citations);
        }
        if let Some(notice) = self.outside.notice().filter(|_| phase == Phase::Final) {
            metadata.insert(NOTICE.to_owned(), json!(notice));
        }
        let metadata = (!metadata.is_empty()).then_some(metadata);
        let phase = Some(phase);
        self.context
            .record(AssistantMessage { text, phase, metadata, extra: Extra::new() })
            .await?;
        Ok(())
    }

    /// Ends the Turn after a refusal: its text is recorded, and the Turn has no answer.
    async fn refuse(&self, text: String) -> Result<Next, End> {
        let message = format!("the model declined: {}", text.trim());
        self.say(text, Phase::Commentary, None, &[]).await?;
        Err(End::failed(TerminalStatus::Incomplete, Kind::ProviderRefusal, message))
    }

    /// Ends the Turn after a truncated answer: its text is recorded as commentary.
    async fn cut(&self, text: String, reason: &str, citations: &[Source]) -> Result<Next, End> {
        self.say(text, Phase::Commentary, Some(reason), citations).await?;
        Err(incomplete(Some(reason), format!("the answer was cut: {reason}")))
    }

    /// Ends the Turn after an answer that does not fit the schema: its text is recorded as
    /// commentary.
    async fn miss(&self, text: String, misses: &[Miss]) -> Result<Next, End> {
        self.say(text, Phase::Commentary, None, &[]).await?;
        let told: Vec<String> = misses.iter().map(ToString::to_string).collect();
        let message = format!("the answer does not fit the schema: {}", told.join("; "));
        let places: Vec<Value> = misses
            .iter()
            .map(|miss| json!({ "path": miss.path, "message": miss.message }))
            .collect();
        let report = Report::new(Kind::SchemaMismatch, message)
            .with_details(json!({ "errors": places }))
            .with_next_actions(vec![
                "resume the Session and ask for the answer again, with the same schema".to_owned(),
            ]);
        let error = Box::new(self.clean(report));
        Err(End::Failed { status: TerminalStatus::Incomplete, error })
    }

    /// Records the text of a broken stream as evidence.
    async fn keep_partial(&self, text: String, error: &Report) -> Result<(), End> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.context.record(history::partial(self.cleaned(text), &error.kind)).await?;
        Ok(())
    }

    /// Redacts secrets in text of the model, which may have read them.
    fn cleaned(&self, text: String) -> String {
        match self.settings.secrets.clean(&text) {
            Cow::Owned(cleaned) => cleaned,
            Cow::Borrowed(_) => text,
        }
    }

    /// Redacts secrets in a server's error, which may echo them in any encoding.
    fn clean_echo(&self, mut error: Report) -> Report {
        error.message = self.settings.secrets.clean_echo(&error.message);
        self.settings.secrets.clean_echo_value(&mut error.details);
        error
    }

    /// Redacts secrets in an error before it is recorded.
    fn clean(&self, mut error: Report) -> Report {
        error.message = self.settings.secrets.clean(&error.message).into_owned();
        self.settings.secrets.clean_value(&mut error.details);
        error
    }

    async fn fail(&self, end: End) -> Status {
        let (status, error) = match end {
            End::Failed { status, error } => (status, *error),
            End::Interrupted => (TerminalStatus::Interrupted, self.stopped()),
            End::Session(error) => return error.to_status(),
        };
        let failed = TurnFailed {
            terminal_status: status.clone(),
            error_kind: error.kind.clone(),
            error_message: error.message.clone(),
            details: error.details.clone(),
            extra: self
                .outside
                .notice()
                .map(|notice| (NOTICE.to_owned(), json!(notice)))
                .into_iter()
                .collect(),
        };
        if let Err(failure) = self.context.record(failed).await {
            tracing::warn!(kind = %failure.kind(), "the end of a Turn could not be recorded");
            return failure.to_status();
        }
        match status {
            TerminalStatus::Interrupted => Status::Interrupted,
            status => Status::Error { terminal_status: status.as_str().to_owned(), error },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Answered,
    GoOn,
}

/// The end of a Turn whose response had no answer.
fn unanswered(truncated: Option<&str>) -> End {
    let message = match truncated {
        Some("content_filter") => "the Provider's content filter withheld the answer".to_owned(),
        Some(reason) => format!("the answer was cut before it began: {reason}"),
        None => "the model ended its Turn without an answer".to_owned(),
    };
    incomplete(truncated, message)
}

/// The end of a Turn without a complete answer.
fn incomplete(truncated: Option<&str>, message: String) -> End {
    let (kind, action) = match truncated {
        Some("content_filter") => (Kind::ProviderRefusal, "rephrase the request"),
        _ => (
            Kind::Incomplete,
            "go on with `pixir resume` and ask for the rest, or for less at once",
        ),
    };
    let error = Report::new(kind, message)
        .with_details(json!({ "reason": truncated }))
        .with_next_actions(vec![action.to_owned()]);
    End::Failed { status: TerminalStatus::Incomplete, error: Box::new(error) }
}

/// Refuses an iteration beyond `cap`; `None` is no limit.
fn check_cap(cap: Option<u32>, iteration: u32) -> Result<(), Report> {
    let Some(cap) = cap.filter(|cap| iteration >= *cap) else { return Ok(()) };
    let iterations = counted(cap, "iteration");
    let message = format!("the Turn used its {iterations} without an answer");
    Err(Report::new(Kind::IterationCap, message)
        .with_next_actions(vec!["go on with `pixir resume`, or raise --max-iterations".to_owned()]))
}

fn is_text(item: &Item) -> bool {
    matches!(item, Item::Message { text, .. } if !text.trim().is_empty())
}
