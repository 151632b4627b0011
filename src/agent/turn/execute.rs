//! The Executor: record the call, resolve, validate, plan, decide, run, record the result.
//!
//! Whatever a tool does wrong becomes a result that the model reads. Only a Session that cannot
//! record ends the Turn from here: nothing may change before its intent is in the Log.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::activate::omit_known_text;
use super::doom_loop::{DoomLoopGuard, LoopVerdict};
use super::permission_state::PermissionSnapshot;
use super::permit::CallApproval;
use super::{Turn, TurnEnd, TurnSettings};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::text::bound_text;
use crate::base::tool_error::ToolError;
use crate::host::sandbox::Profile;
use crate::model::provider::FunctionCall;
use crate::record::event::{
    Canonical, Ephemeral, Extra, SessionStatus, TerminalStatus, ToolCall, ToolResult,
};
use crate::record::event::{FactRecorder, ToolEvents};
use crate::record::history;
use crate::tools::permission::sort_keys;
use crate::tools::tool::{AnyTool, CallEffect, CallPlan, EditorBridge, ToolContext, ToolOutput};

/// How many read-only calls may run at once.
const PARALLEL_READS: usize = 8;

/// A planned call, on its way through permission to execution.
pub(super) struct PreparedCall {
    pub(super) event: ToolCall,
    /// The arguments without those that are null: models send null for "not given".
    pub(super) args: Value,
    pub(super) tool: Arc<dyn AnyTool>,
    pub(super) plan: CallPlan,
    /// The permission snapshot it was planned under; a later change applies to the next call.
    pub(super) permission: PermissionSnapshot,
    /// Whether it runs in a read-only sandbox.
    pub(super) is_sandboxed_read_only: bool,
    /// The approval, if the mode required one.
    pub(super) approval: Option<CallApproval>,
    /// Whether it reads a source of a Skill, and is not a call of the model.
    pub(super) is_source: bool,
}

impl Turn {
    /// Executes the calls of one response: read-only calls in parallel, the others alone and in
    /// order.
    pub(super) async fn execute_calls(
        &self,
        calls: Vec<FunctionCall>,
        guard: &mut DoomLoopGuard,
    ) -> Result<(), TurnEnd> {
        guard.begin_response();
        let mut waiting = calls.into_iter().peekable();
        while let Some(call) = waiting.next() {
            let first = self.record_and_prepare(&call, guard).await?;
            let mut together: Vec<PreparedCall> = first.into_iter().collect();
            let may_share = together.first().is_some_and(is_read_only);
            while may_share && together.len() < PARALLEL_READS {
                let may_join =
                    |next: &FunctionCall| self.may_run_in_parallel(next, &together, guard);
                let Some(next) = waiting.next_if(may_join) else { break };
                together.extend(self.record_and_prepare(&next, guard).await?);
            }
            let ran = join_all(together.into_iter().map(|prepared| self.run_call(prepared))).await;
            // A finished call gets its result even if another one was stopped.
            let mut stopped = Ok(());
            for ran in ran {
                match ran {
                    Ok(ran) => self.finish_call(ran, guard).await?,
                    Err(end) => stopped = Err(end),
                }
            }
            stopped?;
        }
        Ok(())
    }

    /// Records a call, plans it and checks its permission; `None` if it already has its result.
    async fn record_and_prepare(
        &self,
        call: &FunctionCall,
        guard: &mut DoomLoopGuard,
    ) -> Result<Option<PreparedCall>, TurnEnd> {
        if self.context.cancel().is_cancelled() {
            return Err(TurnEnd::Interrupted);
        }
        let args = call.parse_arguments();
        let fact = self.tool_call_event(call, &args);
        self.context.record(fact.clone()).await?;
        match guard.judge(&call_signature(&fact)) {
            LoopVerdict::Go => {}
            LoopVerdict::Refuse(length) => {
                self.record_result(&fact, Err(repeated_call_error(length))).await?;
                return Ok(None);
            }
            LoopVerdict::End(length) => {
                self.record_result(&fact, Err(repeated_call_error(length))).await?;
                return Err(doom_loop_end(&fact.name, length));
            }
        }
        let refused = match self.prepare_call(fact.clone(), args) {
            Ok(prepared) => match self.check_permission(prepared).await? {
                Ok(prepared) => return Ok(Some(prepared)),
                Err(denied) => denied,
            },
            Err(error) => self.record_bounds_refusal(&fact, error).await?,
        };
        let result = self.record_result(&fact, Err(refused)).await?;
        guard.record(call_signature(&fact), without_call_id(&fact, &result));
        Ok(None)
    }

    /// The Event of a call, with secrets redacted; the call itself runs unredacted.
    fn tool_call_event(&self, call: &FunctionCall, args: &Result<Value, String>) -> ToolCall {
        let mut fact = call.to_tool_call(args);
        self.settings.secrets.redact_value(&mut fact.args);
        fact.raw_args = fact.raw_args.map(|raw| self.redact_text(raw));
        fact
    }

    fn prepare_call(
        &self,
        fact: ToolCall,
        args: Result<Value, String>,
    ) -> Result<PreparedCall, ToolError> {
        self.prepare_call_under(fact, args, self.settings.permission_state.snapshot())
    }

    /// Plans a call under another permission snapshot than the Session's.
    pub(super) fn prepare_call_under(
        &self,
        fact: ToolCall,
        args: Result<Value, String>,
        permission: PermissionSnapshot,
    ) -> Result<PreparedCall, ToolError> {
        let mut args = without_nulls(args.map_err(ToolError::invalid_args)?);
        let tool = self
            .toolbox()
            .find_tool(&fact.name)
            .map_err(|unknown| self.unknown_tool_error(&fact, unknown))?;
        if let Value::Object(fields) = &mut args {
            tool.normalize_args(fields);
        }
        self.toolbox().validate(&fact.name, &args)?;
        let plan = tool.plan(&args, &self.build_tool_context(&fact, permission.sandbox_profile))?;
        Ok(PreparedCall {
            event: fact,
            args,
            tool,
            plan,
            permission,
            is_sandboxed_read_only: false,
            approval: None,
            is_source: false,
        })
    }

    /// The error for an unknown tool; the state of its MCP server may explain it.
    fn unknown_tool_error(&self, fact: &ToolCall, unknown: ToolError) -> ToolError {
        let TurnSettings { mcp_servers, role, .. } = &*self.settings;
        let reason = role
            .may_use(&fact.name)
            .then(|| mcp_servers.explain_missing_tool(&fact.name, self.mcp_tool_filter()));
        reason.flatten().unwrap_or(unknown)
    }

    /// Whether a call may run in parallel: it plans as read-only, and the guard would not have to
    /// count another call first.
    fn may_run_in_parallel(
        &self,
        call: &FunctionCall,
        together: &[PreparedCall],
        guard: &DoomLoopGuard,
    ) -> bool {
        let args = call.parse_arguments();
        let fact = self.tool_call_event(call, &args);
        let own = call_signature(&fact);
        let is_repeated = guard.may_be_refused(&own)
            || together.iter().any(|prepared| call_signature(&prepared.event) == own);
        !is_repeated && self.prepare_call(fact, args).is_ok_and(|prepared| is_read_only(&prepared))
    }

    async fn run_call(
        &self,
        prepared: PreparedCall,
    ) -> Result<(ToolCall, Result<ToolOutput, ToolError>), TurnEnd> {
        let (fact, outcome) = self.run_permitted(prepared).await?;
        if let Some(outcome) = outcome {
            return Ok((fact, outcome));
        }
        let orphan = history::orphan_result(&fact, "the Turn was interrupted");
        self.context.record(orphan).await?;
        Err(TurnEnd::Interrupted)
    }

    /// Runs a permitted call; no outcome if the Turn was interrupted and the tool did not end in
    /// time.
    pub(super) async fn run_permitted(
        &self,
        prepared: PreparedCall,
    ) -> Result<(ToolCall, Option<Result<ToolOutput, ToolError>>), TurnEnd> {
        let is_mutating = prepared.plan.effect.is_mutating();
        if self.settings.dry_run && is_mutating {
            return Ok((prepared.event, Some(Ok(dry_run_output(&prepared.plan)))));
        }
        if is_mutating {
            self.context.make_durable().await?;
        }
        if let Err(changed) = self.check_unchanged(&prepared) {
            return Ok((prepared.event, Some(Err(changed))));
        }
        let context = self.tool_context(&prepared);
        let PreparedCall { event: fact, args, tool, plan, .. } = prepared;
        // Last check before the tool runs: an interrupt may have come since.
        if self.context.cancel().is_cancelled() {
            return Err(TurnEnd::Interrupted);
        }
        let may_change_files = is_mutating && context.sandbox_profile != Profile::ReadOnly;
        if may_change_files && self.settings.tracker.is_none() {
            self.record_missing_tracker().await;
        }
        let slot = match tool.acquire_slot(&args, &context).await {
            Ok(slot) => slot,
            Err(error) => return Ok((fact, Some(Err(error)))),
        };
        // What other programs changed while the call waited for its slot is not the command's.
        let surveyed = if may_change_files && plan.effect == CallEffect::Execute {
            self.survey_before(&fact.call_id).await?
        } else {
            None
        };
        self.context.emit(Ephemeral::Status(SessionStatus::Working {
            call_id: fact.call_id.clone(),
            tool: fact.name.clone(),
            summary: self.settings.secrets.redact(&plan.summary).into_owned(),
            waiting: None,
        }));
        let started = std::time::Instant::now();
        let running = tool.run(args, context);
        let patience = async {
            self.context.cancel().cancelled().await;
            tokio::time::sleep(self.settings.tool_grace).await;
        }
        .shared();
        let outcome = tokio::select! {
            biased;
            outcome = running => Some(outcome),
            () = patience.clone() => None,
        };
        drop(slot);
        tracing::info!(tool = %fact.name, ms = started.elapsed().as_millis(), "ran");
        self.survey_after(&fact.call_id, surveyed, patience).await;
        Ok((fact, outcome))
    }

    async fn finish_call(
        &self,
        (fact, outcome): (ToolCall, Result<ToolOutput, ToolError>),
        guard: &mut DoomLoopGuard,
    ) -> Result<(), TurnEnd> {
        let wanted = outcome.as_ref().ok().and_then(|output| output.skill_context.clone());
        let is_unfinished = outcome.as_ref().is_ok_and(|output| output.is_unfinished);
        let result = self.record_result(&fact, outcome).await?;
        if is_unfinished {
            guard.clear();
        } else {
            guard.record(call_signature(&fact), without_call_id(&fact, &result));
        }
        let Some(name) = wanted else { return Ok(()) };
        let skills = self.settings.skills.clone();
        let found = blocking::run_blocking(move || skills.find(&name)).await;
        match found.ok().flatten() {
            Some(skill) => self.read_skill_sources(&skill, "model").await,
            None => Ok(()),
        }
    }

    /// Records the result of a call, with secrets redacted and the text bounded, and returns the text that the model
    /// will read.
    async fn record_result(
        &self,
        fact: &ToolCall,
        outcome: Result<ToolOutput, ToolError>,
    ) -> Result<String, TurnEnd> {
        let secrets = &self.settings.secrets;
        let (ok, text, mut details, error) = match outcome {
            Ok(ToolOutput { ok, text, details, programs, .. }) => {
                self.program_files.add(&programs, self.settings.workspace.root());
                (ok, text, details, None)
            }
            Err(error) => {
                let report = self.redact_report(error.into());
                (false, tool_error_text(&report), Value::Null, Some(report))
            }
        };
        secrets.redact_value(&mut details);
        let cleaned = secrets.redact(&text);
        let output = bound_text(&cleaned, self.settings.output_limit).into_owned();
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
    pub(super) fn tool_context(&self, prepared: &PreparedCall) -> ToolContext {
        let PreparedCall { is_sandboxed_read_only, permission, .. } = prepared;
        let sandbox_profile =
            if *is_sandboxed_read_only { Profile::ReadOnly } else { permission.sandbox_profile };
        self.build_tool_context(&prepared.event, sandbox_profile)
    }

    /// The function by which tools record Events in the Session.
    fn event_recorder(&self) -> FactRecorder {
        let (context, skill_tool_limits) =
            (self.context.clone(), Arc::clone(&self.skill_tool_limits));
        Arc::new(move |fact| {
            let (context, skill_tool_limits) = (context.clone(), skill_tool_limits.clone());
            Box::pin(async move {
                skill_tool_limits.add(&fact);
                let fact = match fact {
                    Canonical::SkillActivation(skill) => {
                        omit_known_text(skill, &context.recent_history().await?).into()
                    }
                    fact => fact,
                };
                context.record(fact).await.map(drop).map_err(Report::from)
            })
        })
    }

    fn build_tool_context(&self, fact: &ToolCall, sandbox_profile: Profile) -> ToolContext {
        let cancel = self.context.cancel().child_token();
        ToolContext {
            call_id: fact.call_id.clone(),
            workspace: self.settings.workspace.clone(),
            editor: EditorBridge::new(self.settings.editor.clone(), cancel.clone()),
            tracker: self.settings.tracker.clone(),
            cancel,
            events: ToolEvents::to_bus(self.context.bus().clone())
                .with_recorder(self.event_recorder()),
            secrets: self.settings.secrets.clone(),
            session_folder: self.settings.session_folder.clone(),
            output_folders: Arc::clone(&self.settings.output_folders),
            output_limit: self.settings.output_limit,
            sandbox_profile,
        }
    }
}

fn without_nulls(mut args: Value) -> Value {
    if let Value::Object(fields) = &mut args {
        fields.retain(|_, value| !value.is_null());
    }
    args
}

fn is_read_only(prepared: &PreparedCall) -> bool {
    prepared.plan.is_shareable()
}

fn dry_run_output(plan: &CallPlan) -> ToolOutput {
    let diff = plan.diff.as_ref().map(|diff| format!("\n{diff}")).unwrap_or_default();
    ToolOutput::new(
        true,
        format!("dry run, nothing was done. It would: {}{diff}", plan.summary),
        json!({ "dry_run": true, "diff": plan.diff }),
    )
}

/// The text that the model reads for a failed tool call.
fn tool_error_text(report: &Report) -> String {
    let mut text = format!("error ({}): {}", report.kind, report.message);
    for action in report.next_actions() {
        text.push_str("\n- ");
        text.push_str(&action);
    }
    text
}

/// The result of a call that would begin or continue the fourth round of a cycle.
fn repeated_call_error(length: usize) -> ToolError {
    let message = match length {
        1 => "this exact call was made three times with the same result, so it was not run again"
            .to_owned(),
        _ => format!(
            "this call is one of {length} that were made three times in turn with the same \
             results, so it was not run again"
        ),
    };
    ToolError::new(Kind::DoomLoop, message)
        .with_next_action("change the arguments or the approach, or answer with what you know")
}

/// The end of a Turn whose model keeps repeating refused calls.
fn doom_loop_end(tool: &str, length: usize) -> TurnEnd {
    let message = match length {
        1 => format!("the model repeated the same call to `{tool}`"),
        _ => format!("the model repeated the same {length} calls, the last one to `{tool}`"),
    };
    let action = "go on with `pixir resume`, and tell the model what to do differently";
    let error = Report::new(Kind::DoomLoop, message).with_next_actions(vec![action.to_owned()]);
    TurnEnd::Failed { status: TerminalStatus::DoomLoop, error: Box::new(error) }
}

/// A result without the call id, which names the file of a long output, so that results of equal
/// calls compare equal.
fn without_call_id(fact: &ToolCall, result: &str) -> String {
    result.replace(fact.call_id.as_str(), "")
}

/// Name and arguments of a call, the same text for equal calls.
fn call_signature(fact: &ToolCall) -> String {
    match &fact.raw_args {
        Some(raw) => format!("{} {raw}", fact.name),
        None => format!("{} {}", fact.name, sort_keys(&fact.args)),
    }
}
