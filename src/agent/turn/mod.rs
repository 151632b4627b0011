//! The Turn: from one user input to exactly one terminal event.
//!
//! Stateless between iterations: every Provider call is built from the Session's History, and
//! everything that matters is recorded before the next step is taken.

mod activate;
mod budget;
mod compact;
mod complete;
mod doom_loop;
mod execute;
mod file_recording;
mod hydrate;
mod permission_state;
mod permit;
mod pressure;
mod program_files;
mod request;
mod search_evidence;
#[cfg(test)]
mod tests;
mod usage_total;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

pub use activate::find_named_skills;
pub use budget::{RUN_COST_LIMIT, RunBudget, missing_price_report};
pub use compact::{CompactionResult, compact};
pub use permission_state::PermissionState;
pub use pressure::PressureGauge;
pub use usage_total::{SpendLimits, UsageTotal};

use crate::agent::session::{SessionError, TurnContext};
use crate::base::error::{Explain, Kind, Report, counted};
use crate::base::secret::Secrets;
use crate::host::snapshot::TurnTracker;
use crate::host::workspace::Workspace;
use crate::model::provider::{OutputItem, Provider, ResponseOptions, WebSource};
use crate::model::skill::Skills;
use crate::record::event::{
    AssistantMessage, Ephemeral, Extra, NOTICE, PermissionMode, Phase, Reasoning,
    ResourceDescriptor, Seq, SessionStatus, TerminalStatus, TurnFailed, UserMessage,
};
use crate::record::history;
use crate::record::resource::Resources;
use crate::record::state_dir::SessionFolder;
use crate::settings::config::{
    AnswerMismatch, CompactionSettings, ContextWindowSize, ImageSupport, RetryPolicy,
};
use crate::settings::role::Role;
use crate::tools::mcp::{McpServers, McpToolFilter};
use crate::tools::permission::ApprovalStore;
use crate::tools::tool::Editor;
use crate::tools::toolbox::Toolbox;
use budget::BudgetRefusal;
use complete::Completion;
use doom_loop::DoomLoopGuard;

/// Settings of a Turn: everything it needs besides its Session.
#[derive(Debug, Clone)]
pub struct TurnSettings {
    pub provider: Arc<dyn Provider>,
    pub toolbox: Toolbox,
    /// The MCP servers of the Session.
    pub mcp_servers: McpServers,
    /// All tools of the Session, including those that its role may not use.
    pub tools: Toolbox,
    pub workspace: Workspace,
    pub secrets: Arc<Secrets>,
    pub model: String,
    pub effort: Option<String>,
    /// Permission mode and sandbox profile, which may change while a Turn runs.
    pub permission_state: PermissionState,
    /// Whether a front-end answers questions; without one they are denied at once.
    pub can_ask: bool,
    /// Lasting approvals, of the Session and of the project.
    pub approvals: ApprovalStore,
    pub role: &'static Role,
    pub dry_run: bool,
    pub max_iterations: Option<u32>,
    pub retry: RetryPolicy,
    /// The time limit of one iteration, all attempts together.
    pub iteration_timeout: Duration,
    /// How long a cancelled tool may take to clean up.
    pub tool_grace: Duration,
    pub output_limit: usize,
    pub session_folder: SessionFolder,
    /// The Sessions whose spilled output may be read: this one first.
    pub output_folders: Arc<[SessionFolder]>,
    pub prompt: PromptParts,
    /// Limits of the run; shared by its Turns.
    pub budget: Arc<RunBudget>,
    /// Billed usage of the Session and all its Subagents.
    pub usage_total: UsageTotal,
    /// Options of the response: web search and the schema of the answer.
    pub response_options: ResponseOptions,
    /// The Resources of the Session.
    pub resources: Resources,
    /// Whether the model can be shown images.
    pub image_support: ImageSupport,
    /// The model's context window.
    pub window: ContextWindowSize,
    /// Measures how full the window is.
    pub pressure_gauge: Arc<PressureGauge>,
    /// Settings of compaction.
    pub compaction: CompactionSettings,
    /// The editor whose buffers tools read, if the front-end has one.
    pub editor: Option<Arc<dyn Editor>>,
    /// Records files before they change, so that a Turn can be undone.
    pub tracker: Option<TurnTracker>,
    /// The Skills that may be used.
    pub skills: Skills,
}

/// The parts of the prompt besides the History.
#[derive(Debug, Clone)]
pub struct PromptParts {
    pub contract: &'static str,
    pub instructions: Arc<str>,
    pub project: Option<Arc<str>>,
    pub cache_key: String,
    /// The user's shell, for the late context.
    pub shell: String,
}

/// The input of one Turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnInput {
    /// The prompt, as typed.
    pub text: String,
    /// Attached Resources; their bytes are stored already.
    pub resources: Vec<ResourceDescriptor>,
    /// Late context from the sender, such as the Delegation Context of a Subagent.
    pub context: Option<String>,
    /// Whether another agent wrote the input, not the user.
    pub is_delegated: bool,
}

/// Runs a Turn, records its terminal Event, and returns its status.
pub async fn run(
    context: TurnContext,
    settings: Arc<TurnSettings>,
    input: TurnInput,
) -> SessionStatus {
    let (toolbox, is_late) = (OnceLock::new(), AtomicBool::new(false));
    let skill_tool_limits = Arc::default();
    let program_files = program_files::ProgramFiles::default();
    let turn = Turn {
        context,
        settings,
        toolbox,
        is_late,
        skill_tool_limits,
        program_files,
        seq: OnceLock::new(),
    };
    match turn.run_until_deadline(input).await {
        Ok(()) => SessionStatus::Done,
        Err(end) => {
            turn.end_background_commands().await;
            turn.record_file_changes().await;
            turn.fail(end).await
        }
    }
}

pub(super) struct Turn {
    context: TurnContext,
    settings: Arc<TurnSettings>,
    /// The tools of this Turn; fixed from its start.
    toolbox: OnceLock<Toolbox>,
    /// Set when the run's deadline cancelled the Turn, so that its end is not recorded as an
    /// interrupt.
    is_late: AtomicBool,
    /// Tool restrictions of active Skills.
    skill_tool_limits: Arc<activate::SkillToolLimits>,
    /// Files that commands wrote and that programs outside the sandbox execute, such as git hooks.
    program_files: program_files::ProgramFiles,
    /// The seq of the user's message.
    seq: OnceLock<Seq>,
}

/// Why a Turn ends without an answer.
#[derive(Debug)]
pub(super) enum TurnEnd {
    Failed {
        status: TerminalStatus,
        error: Box<Report>,
    },
    Interrupted,
    /// The Session cannot record: nothing more may happen.
    Session(Box<SessionError>),
}

impl From<SessionError> for TurnEnd {
    fn from(error: SessionError) -> Self {
        TurnEnd::Session(Box::new(error))
    }
}

impl TurnEnd {
    fn failed(status: TerminalStatus, kind: Kind, message: impl Into<String>) -> Self {
        TurnEnd::Failed { status, error: Box::new(Report::new(kind, message)) }
    }
}

impl From<BudgetRefusal> for TurnEnd {
    fn from(spent: BudgetRefusal) -> Self {
        TurnEnd::Failed { status: spent.status, error: spent.report }
    }
}

impl Turn {
    /// After an interrupt, ends the background commands of this Turn before its end is recorded.
    async fn end_background_commands(&self) {
        if self.context.cancel().is_cancelled() {
            let leaving = self.toolbox().wait_cleanup();
            tokio::time::timeout(self.settings.tool_grace, leaving).await.ok();
        }
    }

    /// Runs the loop until the run's deadline, which cancels it like an interrupt.
    async fn run_until_deadline(&self, input: TurnInput) -> Result<(), TurnEnd> {
        let Some(deadline) = self.settings.budget.deadline() else {
            return self.run_iterations(input).await;
        };
        let mut work = pin!(self.run_iterations(input));
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until(deadline) => {}
        }
        self.is_late.store(true, Ordering::Release);
        self.context.cancel().cancel();
        match work.await {
            Err(TurnEnd::Interrupted) => Err(self.settings.budget.timeout_refusal().into()),
            done => done,
        }
    }

    /// The report for cancelled work: the run's deadline or an interrupt.
    fn cancellation_report(&self) -> Report {
        if self.is_late.load(Ordering::Acquire) {
            return *self.settings.budget.timeout_refusal().report;
        }
        Report::new(Kind::Interrupted, "the Turn was interrupted")
    }

    async fn run_iterations(&self, input: TurnInput) -> Result<(), TurnEnd> {
        self.start(input).await?;
        let mut guard = DoomLoopGuard::default();
        for iteration in 0.. {
            self.check_cap(iteration)?;
            self.context.emit(Ephemeral::Status(SessionStatus::Thinking { iteration }));
            self.check_pressure(iteration).await?;
            let completion = self.complete(iteration).await?;
            if self.process_response(completion, &mut guard).await? == IterationOutcome::Answered {
                return Ok(());
            }
        }
        Err(TurnEnd::failed(
            TerminalStatus::IterationCap,
            Kind::IterationCap,
            "too many iterations",
        ))
    }

    async fn start(&self, input: TurnInput) -> Result<(), TurnEnd> {
        let settings = &self.settings;
        // Waits briefly for servers that are still starting, once per Session.
        let tell =
            |servers| self.context.emit(Ephemeral::Status(SessionStatus::Starting { servers }));
        self.context.cancel().run_until_cancelled(settings.mcp_servers.wait_for_start(tell)).await;
        let history = self.context.recent_history().await?;
        self.toolbox.get_or_init(|| self.collect_tools());
        let mut context = settings.late_context();
        if let Some(sender_context) = &input.context {
            context.extend(["\n\n", &settings.secrets.redact(sender_context)]);
        }
        // The context is append-only: sent once, and again only when it changed.
        let is_news = history.latest_context() != Some(context.as_str());
        self.settings.resources.begin_turn(&history, &input.resources);
        let active = self.activate_skills(&input, &history).await?;
        let message = UserMessage {
            text: self.settings.secrets.redact(&input.text).into_owned(),
            context: is_news.then_some(context),
            resources: input.resources.iter().map(|resource| json!(resource)).collect(),
            ..UserMessage::default()
        };
        let recorded = self.context.record(message).await?;
        if let Some(seq) = recorded.seq() {
            self.seq.get_or_init(|| seq);
            self.settings.tracker.as_ref().inspect(|tracker| tracker.begin_turn(seq));
        }
        // Skill sources are read for the user; a model requests them by a call.
        for skill in active.into_iter().filter(|_| !input.is_delegated) {
            self.read_skill_sources(&skill, "user").await?;
        }
        Ok(())
    }

    /// The tools of this Turn: Pixir's own, and those of MCP servers that are connected by now.
    fn collect_tools(&self) -> Toolbox {
        let TurnSettings { toolbox, mcp_servers, role, resources, .. } = &*self.settings;
        let mut external_tools = mcp_servers.tools(resources, self.mcp_tool_filter());
        external_tools.retain(|tool| role.may_use(&tool.spec().name));
        toolbox.with_external_tools(external_tools)
    }

    /// Which MCP tools are offered: only read-only ones to a role that can never change anything.
    fn mcp_tool_filter(&self) -> McpToolFilter {
        match self.settings.role.limit_mode(&PermissionMode::Auto) {
            PermissionMode::Auto | PermissionMode::Ask => McpToolFilter::All,
            PermissionMode::ReadOnly | PermissionMode::Other(_) => McpToolFilter::ReadOnly,
        }
    }

    fn toolbox(&self) -> &Toolbox {
        self.toolbox.get().unwrap_or(&self.settings.toolbox)
    }

    fn check_cap(&self, iteration: u32) -> Result<(), TurnEnd> {
        if self.context.cancel().is_cancelled() {
            return Err(TurnEnd::Interrupted);
        }
        let (status, cap) = (TerminalStatus::IterationCap, self.settings.max_iterations);
        let used_up = check_cap(cap, iteration).map_err(Box::new);
        used_up.map_err(|error| TurnEnd::Failed { status, error })
    }

    /// Records the response and executes its calls, in the order they came.
    async fn process_response(
        &self,
        completion: Completion,
        guard: &mut DoomLoopGuard,
    ) -> Result<IterationOutcome, TurnEnd> {
        let has_calls = completion.items.iter().any(|item| matches!(item, OutputItem::Call(_)));
        let truncated = completion.end.incomplete;
        // A truncated answer is shown as it is, and never requested again.
        let goes_on = has_calls || (completion.end.wants_more && truncated.is_none());
        let last_text = completion.items.iter().rposition(is_text);
        // The final answer is recorded last, even if other items follow it.
        let mut answer = None;
        let mut recorded = has_calls;
        let mut items = completion.items.into_iter().enumerate().peekable();
        while let Some((place, item)) = items.next() {
            match item {
                OutputItem::Reasoning { mut item } => {
                    self.settings.secrets.redact_value(&mut item);
                    let model = self.settings.model.clone();
                    let account = self.settings.provider.account();
                    let extra = account.map(|mark| ("account".to_owned(), json!(&*mark)));
                    let extra = extra.into_iter().collect();
                    self.context.record(Reasoning { item, model, extra }).await?;
                }
                OutputItem::Message { text, is_refusal, citations } if !text.trim().is_empty() => {
                    let text = self.redact_text(text);
                    if !goes_on && Some(place) == last_text {
                        answer = Some((text, is_refusal, citations));
                        continue;
                    }
                    self.record_message(text, Phase::Commentary, None, &citations).await?;
                    recorded = true;
                }
                OutputItem::Call(call) => {
                    let mut calls = vec![call];
                    while let Some((_, OutputItem::Call(call))) =
                        items.next_if(|(_, item)| matches!(item, OutputItem::Call(_)))
                    {
                        calls.push(call);
                    }
                    self.execute_calls(calls, guard).await?;
                }
                // A web search is recorded with the usage.
                OutputItem::Message { .. }
                | OutputItem::WebSearch(_)
                | OutputItem::Other { .. } => {}
            }
        }
        match answer {
            Some((text, true, _)) => return self.end_refused(text).await,
            Some((text, false, citations)) => {
                if let Some(reason) = &truncated {
                    return self.end_truncated(text, reason, &citations).await;
                }
                if let Some(schema) = &self.settings.response_options.answer_schema
                    && let Err(misses) = schema.check(&text)
                {
                    return self.end_schema_mismatch(text, &misses).await;
                }
                self.record_file_changes().await;
                self.record_message(text, Phase::Final, None, &citations).await?;
                return Ok(IterationOutcome::Answered);
            }
            None if has_calls => return Ok(IterationOutcome::Continue),
            None if goes_on && recorded && guard.may_go_on_without_calls() => {
                return Ok(IterationOutcome::Continue);
            }
            None => {}
        }
        Err(unanswered_end(truncated.as_deref()))
    }

    async fn record_message(
        &self,
        text: String,
        phase: Phase,
        cut: Option<&str>,
        citations: &[WebSource],
    ) -> Result<(), TurnEnd> {
        let mut metadata = Extra::new();
        if let Some(reason) = cut {
            metadata.insert("truncated".to_owned(), json!(reason));
        }
        if let Some(mut citations) = search_evidence::citations(citations) {
            self.settings.secrets.redact_value(&mut citations);
            metadata.insert("citations".to_owned(), citations);
        }
        if let Some(notice) = self.program_files.notice().filter(|_| phase == Phase::Final) {
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
    async fn end_refused(&self, text: String) -> Result<IterationOutcome, TurnEnd> {
        let message = format!("the model declined: {}", text.trim());
        self.record_message(text, Phase::Commentary, None, &[]).await?;
        Err(TurnEnd::failed(TerminalStatus::Incomplete, Kind::ProviderRefusal, message))
    }

    /// Ends the Turn after a truncated answer: its text is recorded as commentary.
    async fn end_truncated(
        &self,
        text: String,
        reason: &str,
        citations: &[WebSource],
    ) -> Result<IterationOutcome, TurnEnd> {
        self.record_message(text, Phase::Commentary, Some(reason), citations).await?;
        Err(incomplete_end(Some(reason), format!("the answer was cut: {reason}")))
    }

    /// Ends the Turn after an answer that does not fit the schema: its text is recorded as
    /// commentary.
    async fn end_schema_mismatch(
        &self,
        text: String,
        misses: &[AnswerMismatch],
    ) -> Result<IterationOutcome, TurnEnd> {
        self.record_message(text, Phase::Commentary, None, &[]).await?;
        let reasons: Vec<String> = misses.iter().map(ToString::to_string).collect();
        let message = format!("the answer does not fit the schema: {}", reasons.join("; "));
        let places: Vec<Value> = misses
            .iter()
            .map(|miss| json!({ "path": miss.path, "message": miss.message }))
            .collect();
        let report = Report::new(Kind::SchemaMismatch, message)
            .with_details(json!({ "errors": places }))
            .with_next_actions(vec![
                "resume the Session and ask for the answer again, with the same schema".to_owned(),
            ]);
        let error = Box::new(self.redact_report(report));
        Err(TurnEnd::Failed { status: TerminalStatus::Incomplete, error })
    }

    /// Records the text of a broken stream as evidence.
    async fn record_partial(&self, text: String, error: &Report) -> Result<(), TurnEnd> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.context.record(history::partial_message(self.redact_text(text), &error.kind)).await?;
        Ok(())
    }

    /// Redacts secrets in text of the model, which may have read them.
    fn redact_text(&self, text: String) -> String {
        match self.settings.secrets.redact(&text) {
            Cow::Owned(cleaned) => cleaned,
            Cow::Borrowed(_) => text,
        }
    }

    /// Redacts secrets in a server's error, which may echo them in any encoding.
    fn redact_echo(&self, mut error: Report) -> Report {
        error.message = self.settings.secrets.redact_server_error(&error.message);
        self.settings.secrets.redact_server_error_value(&mut error.details);
        error
    }

    /// Redacts secrets in an error before it is recorded.
    fn redact_report(&self, mut error: Report) -> Report {
        error.message = self.settings.secrets.redact(&error.message).into_owned();
        self.settings.secrets.redact_value(&mut error.details);
        error
    }

    async fn fail(&self, end: TurnEnd) -> SessionStatus {
        let (status, error) = match end {
            TurnEnd::Failed { status, error } => (status, *error),
            TurnEnd::Interrupted => (TerminalStatus::Interrupted, self.cancellation_report()),
            TurnEnd::Session(error) => return error.to_status(),
        };
        let failed = TurnFailed {
            terminal_status: status.clone(),
            error_kind: error.kind.clone(),
            error_message: error.message.clone(),
            details: error.details.clone(),
            extra: self
                .program_files
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
            TerminalStatus::Interrupted => SessionStatus::Interrupted,
            status => SessionStatus::Error { terminal_status: status.as_str().to_owned(), error },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum IterationOutcome {
    Answered,
    Continue,
}

/// The end of a Turn whose response had no answer.
fn unanswered_end(truncated: Option<&str>) -> TurnEnd {
    let message = match truncated {
        Some("content_filter") => "the Provider's content filter withheld the answer".to_owned(),
        Some(reason) => format!("the answer was cut before it began: {reason}"),
        None => "the model ended its Turn without an answer".to_owned(),
    };
    incomplete_end(truncated, message)
}

/// The end of a Turn without a complete answer.
fn incomplete_end(truncated: Option<&str>, message: String) -> TurnEnd {
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
    TurnEnd::Failed { status: TerminalStatus::Incomplete, error: Box::new(error) }
}

/// Refuses an iteration beyond `cap`; `None` is no limit.
fn check_cap(cap: Option<u32>, iteration: u32) -> Result<(), Report> {
    let Some(cap) = cap.filter(|cap| iteration >= *cap) else { return Ok(()) };
    let iterations = counted(cap, "iteration");
    let message = format!("the Turn used its {iterations} without an answer");
    Err(Report::new(Kind::IterationCap, message)
        .with_next_actions(vec!["go on with `pixir resume`, or raise --max-iterations".to_owned()]))
}

fn is_text(item: &OutputItem) -> bool {
    matches!(item, OutputItem::Message { text, .. } if !text.trim().is_empty())
}
