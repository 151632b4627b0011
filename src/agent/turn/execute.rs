//! The Executor: record the call, resolve, validate, plan, decide, run, record the result.
//!
//! Whatever a tool does wrong becomes a result that the model reads. Only a Session that cannot
//! record ends the Turn from here: nothing may change before its intent is in the Log.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::activate::once;
use super::doom::{DoomGuard, Verdict};
use super::permit::Allowed;
use super::stance::Held;
use super::{End, Settings, Turn};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::id::CallId;
use crate::base::text::bound;
use crate::base::tool_error::ToolError;
use crate::host::sandbox::Profile;
use crate::host::snapshot::RunningCommand;
use crate::model::provider::Call;
use crate::record::event::{
    Canonical, Ephemeral, Extra, RecordedFiles, Status, TerminalStatus, ToolCall, ToolResult,
};
use crate::record::event::{Recorder, Signals};
use crate::record::history;
use crate::tools::permission::sorted;
use crate::tools::tool::{AnyTool, Desk, Effect, Plan, ToolContext, ToolOutput};

/// How many read-only calls may run at once.
const PARALLEL_READS: usize = 8;

/// Interval of progress Events while files are recorded.
const RECORDING_TICK: Duration = Duration::from_millis(100);

/// A planned call, on its way through permission to execution.
pub(super) struct Prepared {
    pub(super) fact: ToolCall,
    /// The arguments without those that are null: models send null for "not given".
    pub(super) args: Value,
    pub(super) tool: Arc<dyn AnyTool>,
    pub(super) plan: Plan,
    /// The permission snapshot it was planned under; a later switch means the next call.
    pub(super) held: Held,
    /// Whether it runs in a read-only sandbox.
    pub(super) is_held: bool,
    /// The approval, if the mode required one.
    pub(super) allowed: Option<Allowed>,
    /// Whether it reads a source of a Skill, and is no call of the model.
    pub(super) is_source: bool,
}

impl Turn {
    /// Executes the calls of one response: read-only calls in parallel, the others alone and in
    /// order.
    pub(super) async fn execute(&self, calls: Vec<Call>, guard: &mut DoomGuard) -> Result<(), End> {
        guard.begin_response();
        let mut waiting = calls.into_iter().peekable();
        while let Some(call) = waiting.next() {
            let first = self.admit(&call, guard).await?;
            let mut together: Vec<Prepared> = first.into_iter().collect();
            let may_share = together.first().is_some_and(is_reading);
            while may_share && together.len() < PARALLEL_READS {
                let may_join = |next: &Call| self.may_join(next, &together, guard);
                let Some(next) = waiting.next_if(may_join) else { break };
                together.extend(self.admit(&next, guard).await?);
            }
            let ran = join_all(together.into_iter().map(|prepared| self.run(prepared))).await;
            // Whatever has finished gets its result, also when another one was stopped.
            let mut stopped = Ok(());
            for ran in ran {
                match ran {
                    Ok(ran) => self.finish(ran, guard).await?,
                    Err(end) => stopped = Err(end),
                }
            }
            stopped?;
        }
        Ok(())
    }

    /// Records a call, plans it and checks its permission; `None` if it already has its result.
    async fn admit(&self, call: &Call, guard: &mut DoomGuard) -> Result<Option<Prepared>, End> {
        if self.context.cancel().is_cancelled() {
            return Err(End::Interrupted);
        }
        let args = call.args();
        let fact = self.fact_of(call, &args);
        self.context.record(fact.clone()).await?;
        match guard.judge(&signature(&fact)) {
            Verdict::Go => {}
            Verdict::Refuse(length) => {
                self.answer(&fact, Err(repeated_call(length))).await?;
                return Ok(None);
            }
            Verdict::End(length) => {
                self.answer(&fact, Err(repeated_call(length))).await?;
                return Err(repeating_model(&fact.name, length));
            }
        }
        let refused = match self.prepare(fact.clone(), args) {
            Ok(prepared) => match self.permit(prepared).await? {
                Ok(prepared) => return Ok(Some(prepared)),
                Err(denied) => denied,
            },
            Err(error) => self.bounded(&fact, error).await?,
        };
        let result = self.answer(&fact, Err(refused)).await?;
        guard.note(signature(&fact), comparable(&fact, &result));
        Ok(None)
    }

    /// The Event of a call, with secrets redacted; the call itself runs unredacted.
    fn fact_of(&self, call: &Call, args: &Result<Value, String>) -> ToolCall {
        let mut fact = call.recorded(args);
        self.settings.secrets.clean_value(&mut fact.args);
        fact.raw_args = fact.raw_args.map(|raw| self.cleaned(raw));
        fact
    }

    fn prepare(&self, fact: ToolCall, args: Result<Value, String>) -> Result<Prepared, ToolError> {
        self.prepare_under(fact, args, self.settings.stance.now())
    }

    /// Plans a call under another permission snapshot than the Session's.
    pub(super) fn prepare_under(
        &self,
        fact: ToolCall,
        args: Result<Value, String>,
        held: Held,
    ) -> Result<Prepared, ToolError> {
        let mut args = without_nulls(args.map_err(ToolError::invalid)?);
        let tool =
            self.toolbox().find(&fact.name).map_err(|unknown| self.absent(&fact, unknown))?;
        if let Value::Object(fields) = &mut args {
            tool.respell(fields);
        }
        self.toolbox().validate(&fact.name, &args)?;
        let plan = tool.plan(&args, &self.context_of(&fact, held.confinement))?;
        Ok(Prepared {
            fact,
            args,
            tool,
            plan,
            held,
            is_held: false,
            allowed: None,
            is_source: false,
        })
    }

    /// The error for an unknown tool; the state of its MCP server may explain it.
    fn absent(&self, fact: &ToolCall, unknown: ToolError) -> ToolError {
        let Settings { connections, role, .. } = &*self.settings;
        let reason =
            role.may_use(&fact.name).then(|| connections.absent(&fact.name, self.wanted()));
        reason.flatten().unwrap_or(unknown)
    }

    /// Whether a call may run in parallel: it plans as read-only, and the guard would not have to
    /// count another call first.
    fn may_join(&self, call: &Call, together: &[Prepared], guard: &DoomGuard) -> bool {
        let args = call.args();
        let fact = self.fact_of(call, &args);
        let own = signature(&fact);
        let is_repeated = guard.may_be_refused(&own)
            || together.iter().any(|prepared| signature(&prepared.fact) == own);
        !is_repeated && self.prepare(fact, args).is_ok_and(|prepared| is_reading(&prepared))
    }

    async fn run(
        &self,
        prepared: Prepared,
    ) -> Result<(ToolCall, Result<ToolOutput, ToolError>), End> {
        let (fact, outcome) = self.carry_out(prepared).await?;
        if let Some(outcome) = outcome {
            return Ok((fact, outcome));
        }
        let orphan = history::orphan_result(&fact, "the Turn was interrupted");
        self.context.record(orphan).await?;
        Err(End::Interrupted)
    }

    /// Runs a permitted call; no outcome if the Turn was interrupted and the tool did not end in
    /// time.
    pub(super) async fn carry_out(
        &self,
        prepared: Prepared,
    ) -> Result<(ToolCall, Option<Result<ToolOutput, ToolError>>), End> {
        let is_mutating = prepared.plan.effect.is_mutating();
        if self.settings.dry_run && is_mutating {
            return Ok((prepared.fact, Some(Ok(rehearsal(&prepared.plan)))));
        }
        if is_mutating {
            self.context.make_durable().await?;
        }
        if let Err(changed) = self.check_allowed(&prepared) {
            return Ok((prepared.fact, Some(Err(changed))));
        }
        let context = self.tool_context(&prepared);
        let Prepared { fact, args, tool, plan, .. } = prepared;
        // Last check before the tool runs: an interrupt may have come since.
        if self.context.cancel().is_cancelled() {
            return Err(End::Interrupted);
        }
        let may_change_files =
            plan.effect == Effect::Execute && context.confinement != Profile::ReadOnly;
        let surveyed =
            if may_change_files { self.survey_before(&fact.call_id).await? } else { None };
        self.context.emit(Ephemeral::Status(Status::Working {
            call_id: fact.call_id.clone(),
            tool: fact.name.clone(),
            summary: self.settings.secrets.clean(&plan.summary).into_owned(),
            waiting: None,
        }));
        let started = std::time::Instant::now();
        let running = tool.run(args, context);
        let patience = async {
            self.context.cancel().cancelled().await;
            tokio::time::sleep(self.settings.tool_grace).await;
        };
        let outcome = tokio::select! {
            biased;
            outcome = running => Some(outcome),
            () = patience => None,
        };
        tracing::info!(tool = %fact.name, ms = started.elapsed().as_millis(), "ran");
        self.survey_after(surveyed).await;
        Ok((fact, outcome))
    }

    /// Records all files before a command, with progress Events if that takes long. An interrupt
    /// ends it.
    async fn survey_before(&self, call_id: &CallId) -> Result<Option<RunningCommand>, End> {
        let Some(tracker) = self.settings.tracker.clone() else { return Ok(None) };
        let running = tracker.command_started();
        if tracker.before_command_at_once() {
            return Ok(Some(running));
        }
        let surveying = tracker.clone();
        let mut survey = blocking::work(move || surveying.before_command());
        let mut is_told = false;
        let surveyed = loop {
            if let Ok(done) = tokio::time::timeout(RECORDING_TICK, &mut survey).await {
                break done;
            }
            let progress = tracker.progress();
            if self.context.cancel().is_cancelled() {
                progress.inspect(|progress| progress.stop().ask());
                continue;
            }
            // The first status has no numbers, for front-ends that show it only once.
            let files = progress.filter(|_| is_told).and_then(|progress| progress.files());
            is_told = true;
            let files =
                files.map(|(done, total)| RecordedFiles { done: done as u64, total: total as u64 });
            let call_id = call_id.clone();
            self.context.emit(Ephemeral::Status(Status::Recording { call_id, files }));
        };
        match surveyed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "files are not recorded before a command"),
            Err(error) => tracing::warn!(%error, "files are not recorded before a command"),
        }
        if self.context.cancel().is_cancelled() {
            return Err(End::Interrupted);
        }
        Ok(Some(running))
    }

    /// Records all files again after a command: changes before the next command are not the Turn's.
    async fn survey_after(&self, running: Option<RunningCommand>) {
        let (Some(tracker), Some(running)) = (self.settings.tracker.clone(), running) else {
            return;
        };
        drop(running);
        if tracker.after_command_at_once() {
            return;
        }
        match blocking::work(move || tracker.after_command()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "file changes of a command are not recorded"),
            Err(error) => tracing::warn!(%error, "file changes of a command are not recorded"),
        }
    }

    async fn finish(
        &self,
        (fact, outcome): (ToolCall, Result<ToolOutput, ToolError>),
        guard: &mut DoomGuard,
    ) -> Result<(), End> {
        let wanted = outcome.as_ref().ok().and_then(|output| output.skill_context.clone());
        let is_unfinished = outcome.as_ref().is_ok_and(|output| output.is_unfinished);
        let result = self.answer(&fact, outcome).await?;
        if is_unfinished {
            guard.forget();
        } else {
            guard.note(signature(&fact), comparable(&fact, &result));
        }
        let Some(name) = wanted else { return Ok(()) };
        let skills = self.settings.skills.clone();
        let found = blocking::work(move || skills.find(&name)).await;
        match found.ok().flatten() {
            Some(skill) => self.hydrate(&skill, "model").await,
            None => Ok(()),
        }
    }

    /// Records the result of a call and returns the text that the model will read.
    async fn answer(
        &self,
        fact: &ToolCall,
        outcome: Result<ToolOutput, ToolError>,
    ) -> Result<String, End> {
        let secrets = &self.settings.secrets;
        let (ok, text, mut details, error) = match outcome {
            Ok(ToolOutput { ok, text, details, programs, .. }) => {
                self.outside.note(&programs, self.settings.workspace.root());
                (ok, text, details, None)
            }
            Err(error) => {
                let report = self.clean(error.into());
                (false, error_text(&report), Value::Null, Some(report))
            }
        };
        secrets.clean_value(&mut details);
        let cleaned = secrets.clean(&text);
        let output = bound(&cleaned, self.settings.output_limit).into_owned();
        self.context
            .record(ToolResult {
                call_id: fact.call_id.clone(),
                ok,
                output: Some(output.clone()),
                error,
                details,
                extra: Extra::new(),
            })
            .await?;
        Ok(output)
    }

    /// The context of a permitted call.
    pub(super) fn tool_context(&self, prepared: &Prepared) -> ToolContext {
        let Prepared { is_held, held, .. } = prepared;
        let confinement = if *is_held { Profile::ReadOnly } else { held.confinement };
        self.context_of(&prepared.fact, confinement)
    }

    /// The function by which tools record Events in the Session.
    fn recorder(&self) -> Recorder {
        let (context, narrowed) = (self.context.clone(), Arc::clone(&self.narrowed));
        Arc::new(move |fact| {
            let (context, narrowed) = (context.clone(), narrowed.clone());
            Box::pin(async move {
                narrowed.note(&fact);
                let fact = match fact {
                    Canonical::SkillActivation(skill) => {
                        once(skill, &context.recent().await?).into()
                    }
                    fact => fact,
                };
                context.record(fact).await.map(drop).map_err(Report::from)
            })
        })
    }

    fn context_of(&self, fact: &ToolCall, confinement: Profile) -> ToolContext {
        let cancel = self.context.cancel().child_token();
        ToolContext {
            call_id: fact.call_id.clone(),
            workspace: self.settings.workspace.clone(),
            desk: Desk::new(self.settings.editor.clone(), cancel.clone()),
            tracker: self.settings.tracker.clone(),
            cancel,
            signals: Signals::to(self.context.bus().clone()).recording(self.recorder()),
            secrets: self.settings.secrets.clone(),
            session_folder: self.settings.session_folder.clone(),
            output_folders: Arc::clone(&self.settings.output_folders),
            output_limit: self.settings.output_limit,
            confinement,
        }
    }
}

fn without_nulls(mut args: Value) -> Value {
    if let Value::Object(fields) = &mut args {
        fields.retain(|_, value| !value.is_null());
    }
    args
}

fn is_reading(prepared: &Prepared) -> bool {
    prepared.plan.is_shareable()
}

fn rehearsal(plan: &Plan) -> ToolOutput {
    let diff = plan.diff.as_ref().map(|diff| format!("\n{diff}")).unwrap_or_default();
    ToolOutput::new(
        true,
        format!("dry run, nothing was done. It would: {}{diff}", plan.summary),
        json!({ "dry_run": true, "diff": plan.diff }),
    )
}

fn error_text(report: &Report) -> String {
    let mut text = format!("error ({}): {}", report.kind, report.message);
    for action in report.next_actions() {
        text.push_str("\n- ");
        text.push_str(&action);
    }
    text
}

/// The result of a call that would begin or continue the fourth round of a cycle.
fn repeated_call(length: usize) -> ToolError {
    let message = match length {
        1 => "this exact call was made three times with the same result, so it was not run again"
            .to_owned(),
        _ => format!(
            "this call is one of {length} that were made three times in turn with the same \
             results, so it was not run again"
        ),
    };
    ToolError::new(Kind::DoomLoop, message)
        .next("change the arguments or the approach, or answer with what you know")
}

/// The end of a Turn whose model keeps repeating refused calls.
fn repeating_model(tool: &str, length: usize) -> End {
    let message = match length {
        1 => format!("the model repeated the same call to `{tool}`"),
        _ => format!("the model repeated the same {length} calls, the last one to `{tool}`"),
    };
    let action = "go on with `pixir resume`, and tell the model what to do differently";
    let error = Report::new(Kind::DoomLoop, message).with_next_actions(vec![action.to_owned()]);
    End::Failed { status: TerminalStatus::DoomLoop, error: Box::new(error) }
}

/// A result without the call id, which names the file of a long output, so that results of equal
/// calls compare equal.
fn comparable(fact: &ToolCall, result: &str) -> String {
    result.replace(fact.call_id.as_str(), "")
}

/// Name and arguments of a call, the same text for equal calls.
fn signature(fact: &ToolCall) -> String {
    match &fact.raw_args {
        Some(raw) => format!("{} {raw}", fact.name),
        None => format!("{} {}", fact.name, sorted(&fact.args)),
    }
}
