//! Runs one step: its Subagent, the answer, the changes, and the checks.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{MAX_NAMED_FILES, RunContext, step_prompt, write_bounds};
use crate::agent::subagent::{
    Constraints, SpawnArgs, SubagentRecord, SubagentStatus, WorkspaceMode, parse_verdict,
};
use crate::agent::workflow::checkpoint::{
    CHANGES_UNKNOWN, CheckpointBundle, NOT_STATED, StepPayload,
};
use crate::agent::workflow::outcome::{Readiness, SUBAGENT_LIMIT, StepStatus};
use crate::agent::workflow::spec::{Step, StepPosture};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::base::text::bound_text;
use crate::record::event::{Canonical, Extra, TerminalStatus, WorkflowEventKind};
use crate::record::history::History;
use crate::record::log::Log;
use crate::settings::bounds::WriteGlobs;
use crate::settings::config::{AnswerSchema, SandboxLevel};

/// How much of an answer becomes the summary, in bytes; the child's Log has all of it.
const MAX_SUMMARY_BYTES: usize = 4 * 1024;

/// The inputs of a step, from the run and from earlier steps.
pub struct StepInputs {
    pub workflow_name: String,
    pub wave: u32,
    pub needs: Vec<(String, Value)>,
    /// The bundles of its dependencies.
    pub before: Vec<CheckpointBundle>,
}

/// The result of the task that runs a step.
pub enum StepTaskResult {
    Ended {
        bundle: Box<CheckpointBundle>,
        /// Files outside its write set that changed while it ran.
        strays: Vec<PathBuf>,
    },
    /// The Log could not be written.
    LogFailed(Report),
}

/// The result of one attempt.
struct StepAttempt {
    bundle: CheckpointBundle,
    strays: Vec<PathBuf>,
    child: Option<SessionId>,
}

/// Runs a step to its end, with its retries.
pub async fn run_step(
    context: &RunContext,
    step: &Step,
    inputs: StepInputs,
    halt: CancellationToken,
) -> StepTaskResult {
    match run_attempts(context, step, &inputs, &halt).await {
        Ok(StepAttempt { bundle, strays, .. }) => {
            StepTaskResult::Ended { bundle: Box::new(bundle), strays }
        }
        Err(report) => StepTaskResult::LogFailed(report),
    }
}

/// Whether another attempt would only cost more or cannot start: the budget is used up, the answer was truncated, or
/// the run has reached its limit of Subagents.
fn is_final(reason: Option<&str>) -> bool {
    let finals = [TerminalStatus::BudgetExceeded, TerminalStatus::Incomplete];
    reason == Some(SUBAGENT_LIMIT) || finals.iter().any(|status| reason == Some(status.as_str()))
}

async fn run_attempts(
    context: &RunContext,
    step: &Step,
    inputs: &StepInputs,
    halt: &CancellationToken,
) -> Result<StepAttempt, Report> {
    let mut attempt = 1;
    let mut used = crate::record::event::SubagentUsage::default();
    loop {
        let mut tried = match &step.apply {
            Some(_) => {
                let (bundle, strays) = context.apply_in_time(step, inputs, halt).await?;
                StepAttempt { bundle, strays, child: None }
            }
            None => context.run_subagent(step, inputs, halt).await?,
        };
        tried.bundle.attempts = attempt;
        used.add(&tried.bundle.usage);
        tried.bundle.usage = used;
        let may_go_on = tried.bundle.checkpoint_status == Readiness::Failed
            && tried.bundle.status != StepStatus::Cancelled
            && !halt.is_cancelled()
            && !is_final(tried.bundle.reason.as_deref())
            && attempt <= step.retries;
        if !may_go_on {
            return Ok(tried);
        }
        // Another attempt starts with the files as this one found them.
        if let Some(child) = tried.child.clone().filter(|_| step.writes_shared())
            && let Err(report) = context.roll_back_step(step, &[child], i128::MAX).await?
        {
            tried.bundle.known_limitations.push("not_taken_back".to_owned());
            tried.bundle.summary =
                format!("{}\n[no further attempt: {}]", tried.bundle.summary, report.message);
            return Ok(tried);
        }
        let facts = json!({
            "attempt": attempt,
            "reason": tried.bundle.reason,
            "child_session_id": tried.bundle.child_session_id,
        });
        context.record(WorkflowEventKind::StepRetrying, Some(&step.id), facts).await?;
        attempt += 1;
    }
}

impl RunContext {
    /// Runs a Subagent for the task, and judges the result.
    async fn run_subagent(
        &self,
        step: &Step,
        inputs: &StepInputs,
        halt: &CancellationToken,
    ) -> Result<StepAttempt, Report> {
        let failed = |reason: &str, summary: String| {
            let bundle = CheckpointBundle::failed(&step.id, reason, summary);
            StepAttempt { bundle, strays: Vec::new(), child: None }
        };
        let answer =
            match step.output.as_ref().map(|schema| AnswerSchema::parse(&schema.to_string())) {
                None => None,
                Some(Ok(schema)) => Some(schema),
                Some(Err(reason)) => return Ok(failed("output_schema_unusable", reason)),
            };
        let constraints = Constraints {
            is_read_only: step.posture == StepPosture::ReadOnly,
            is_leaf: true,
            writes: WriteGlobs { allow: step.write_set.clone(), deny: Vec::new() },
            answer_schema: answer.clone(),
            context_facts: step_prompt::delegation_fields(step, inputs, &self.run_id),
            event_fields: Extra::from_iter([
                ("workflow_id".to_owned(), json!(self.run_id)),
                ("step_id".to_owned(), json!(step.id)),
            ]),
            usage_total: Some(self.usage_total.clone()),
        };
        let apart = self.diffs_of_dependencies(&inputs.before).await;
        let spawn_args = SpawnArgs {
            task: step_prompt::build_prompt(step, inputs, &apart),
            role: Some(step.role.clone()),
            model: step.model.clone(),
            effort: step.effort.clone(),
            workspace: Some(step.workspace),
            timeout_ms: step.timeout_ms,
            resources: None,
            validate_only: None,
        };
        let record = match self.children.spawn(&spawn_args, constraints.clone(), halt.clone()).await
        {
            Ok(record) => record,
            Err(error) => {
                // This kind means that the run has started as many Subagents as it may.
                let is_limit = error.kind == Kind::BudgetExceeded;
                let reason = if is_limit { SUBAGENT_LIMIT } else { "cannot_start" };
                let message = format!("{}: {}", error.kind.name(), error.message);
                return Ok(failed(reason, message));
            }
        };
        self.child_ids.lock().push(record.id.clone());
        let record = match self.children.wait_for_end(&record.id).await {
            Ok(record) => record,
            Err(error) => return Ok(failed("lost", error.message.into())),
        };
        let tried = self.judge_result(step, &record, answer.as_ref(), halt).await?;
        if tried.bundle.reason.as_deref() != Some(NOT_STATED) {
            return Ok(tried);
        }
        self.ask_for_checkpoint(step, record, tried, constraints, halt).await
    }

    /// Asks a Subagent once for the checkpoint line that its answer lacks. Its earlier answer counts in any case.
    async fn ask_for_checkpoint(
        &self,
        step: &Step,
        record: SubagentRecord,
        tried: StepAttempt,
        constraints: Constraints,
        halt: &CancellationToken,
    ) -> Result<StepAttempt, Report> {
        let left = record.timeout.saturating_sub(record.elapsed);
        if left.is_zero() || halt.is_cancelled() {
            return Ok(tried);
        }
        let question = step_prompt::checkpoint_question(step);
        let reminded = SubagentRecord { timeout: left, ..record };
        let reply_record =
            self.children.send_message(reminded, question, constraints, halt.clone()).await;
        let Ok(reply_record) = reply_record else { return Ok(tried) };
        let Ok(record) = self.children.wait_for_end(&reply_record.id).await else {
            return Ok(tried);
        };
        let before = tried.bundle.elapsed_ms;
        let mut again = match record.status {
            SubagentStatus::Completed => self.judge_result(step, &record, None, halt).await?,
            // The earlier answer still counts, but it may have changed more files since.
            _ => self.refresh_changes(step, tried).await,
        };
        let elapsed = u64::try_from(record.elapsed.as_millis()).unwrap_or(u64::MAX);
        again.bundle.elapsed_ms = before.saturating_add(elapsed);
        again.bundle.usage = record.usage;
        again.bundle.child_seq = record.child_seq.or(again.bundle.child_seq);
        Ok(again)
    }

    /// Updates a result with the changes as they are now.
    async fn refresh_changes(&self, step: &Step, mut tried: StepAttempt) -> StepAttempt {
        if let Some(child) = tried.child.clone() {
            tried.bundle.clear_changes();
            let history = self.read_history(&child).await;
            tried.strays = self.collect_changes(step, &child, &history, &mut tried.bundle).await;
        }
        tried
    }

    async fn read_history(&self, child: &SessionId) -> History {
        let (logs, own) = (self.state_root().clone(), child.clone());
        match blocking::run_blocking(move || Log::read(&logs, &own)).await {
            Ok(Ok(reading)) => History::from_events(reading.events),
            Ok(Err(_)) | Err(_) => History::default(),
        }
    }

    /// Judges how a Subagent ended: readiness, payloads, checks and changes.
    async fn judge_result(
        &self,
        step: &Step,
        record: &SubagentRecord,
        schema: Option<&AnswerSchema>,
        halt: &CancellationToken,
    ) -> Result<StepAttempt, Report> {
        let summary = record.summary.clone().unwrap_or_default();
        let status = match record.status {
            SubagentStatus::Completed => StepStatus::Completed,
            SubagentStatus::TimedOut => StepStatus::TimedOut,
            SubagentStatus::Cancelled => StepStatus::Cancelled,
            SubagentStatus::Failed
            | SubagentStatus::Detached
            | SubagentStatus::Queued
            | SubagentStatus::Running => StepStatus::Failed,
        };
        // The run is resumed as a whole, not a single Session of it.
        let summary = match status {
            StepStatus::Completed => summary,
            _ => summary.replace("`pixir resume`", "`pixir workflow resume`"),
        };
        let mut bundle = CheckpointBundle::new(&step.id, status, Readiness::Failed, summary);
        bundle.reason.clone_from(&record.reason);
        bundle.subagent_id = Some(record.id.clone());
        bundle.child_session_id = record.child.as_ref().map(ToString::to_string);
        bundle.child_seq = record.child_seq;
        bundle.elapsed_ms = u64::try_from(record.elapsed.as_millis()).unwrap_or(u64::MAX);
        bundle.usage = record.usage;
        let child = record.child.clone();
        let (Some(id), StepStatus::Completed) = (&child, status) else {
            return Ok(StepAttempt { bundle, strays: Vec::new(), child });
        };
        bundle.dependent_safe = true;
        let history = self.read_history(id).await;
        let Some(text) = final_answer(&history) else {
            // There is an answer, but it cannot be read; this must not count as an answer without a statement.
            bundle.lower_readiness(Readiness::Failed, "log_unreadable");
            return Ok(StepAttempt { bundle, strays: Vec::new(), child });
        };
        apply_answer(step, &text, schema, &mut bundle);
        if bundle.checkpoint_status == Readiness::CheckpointReady && !step.verify.is_empty() {
            let turn = history.live_turns().last().copied();
            self.run_checks(step, Some(id), turn, &mut bundle, halt).await?;
        }
        let strays = self.collect_changes(step, id, &history, &mut bundle).await;
        Ok(StepAttempt { bundle, strays, child })
    }

    /// Determines the files that the step changed; returns those outside its write set.
    async fn collect_changes(
        &self,
        step: &Step,
        child: &SessionId,
        history: &History,
        bundle: &mut CheckpointBundle,
    ) -> Vec<PathBuf> {
        let is_held = step.posture == StepPosture::ReadOnly
            && self.children.config().sandbox.level != SandboxLevel::Off;
        if is_held && step.workspace == WorkspaceMode::Shared {
            return Vec::new();
        }
        let changed = match step.workspace {
            WorkspaceMode::Shared => self.changes_in_shared(child, history, bundle).await,
            WorkspaceMode::Isolated | WorkspaceMode::Worktree => {
                self.changes_in_own_workspace(child, bundle).await
            }
        };
        let changed = match changed {
            Ok(changed) => changed,
            Err(reason) => {
                bundle.known_limitations.push(CHANGES_UNKNOWN.to_owned());
                tracing::warn!(%reason, step = %step.id, "the changes of a step are not known");
                return Vec::new();
            }
        };
        let set = write_bounds(step);
        let (inside, strays): (Vec<PathBuf>, Vec<PathBuf>) =
            changed.into_iter().partition(|path| set.allows(path));
        bundle.written = inside
            .iter()
            .take(MAX_NAMED_FILES)
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        strays
    }
}

/// Sets the readiness that an answer states, and its payload.
fn apply_answer(
    step: &Step,
    text: &str,
    schema: Option<&AnswerSchema>,
    bundle: &mut CheckpointBundle,
) {
    bundle.summary = bound_text(text, MAX_SUMMARY_BYTES).into_owned();
    bundle.reason = None;
    bundle.checkpoint_status = Readiness::CheckpointReady;
    if let Some(schema) = schema {
        match (schema.check(text), serde_json::from_str::<Value>(text.trim())) {
            (Ok(()), Ok(value)) => {
                let payload = StepPayload::from_model("step_output", Some(schema.schema()), value);
                bundle.typed_payloads.push(payload);
            }
            _ => bundle.lower_readiness(Readiness::Failed, "output_invalid"),
        }
        return;
    }
    if step.role == "reviewer"
        && let Some(review) = parse_review(text)
    {
        bundle.typed_payloads.push(StepPayload::from_model("review_verdict", None, review));
        return;
    }
    match Readiness::parse_answer(text) {
        Some(Readiness::CheckpointReady) => {}
        Some(other) => bundle.lower_readiness(other, "stated_by_subagent"),
        None if !step.verify.is_empty() => {}
        None if step.answer_is_enough => {
            bundle.known_limitations.push(NOT_STATED.to_owned());
        }
        None => bundle.lower_readiness(Readiness::Partial, NOT_STATED),
    }
}

/// The review at the end of an answer, if it has a valid verdict.
fn parse_review(text: &str) -> Option<Value> {
    let verdict = parse_verdict(text)?;
    let text = text.trim_end().trim_end_matches('`').trim_end();
    let starts = text.match_indices('{').map(|(place, _)| place);
    let found =
        starts.filter_map(|place| serde_json::from_str::<Map<String, Value>>(&text[place..]).ok());
    let mut review = found.rev().find(|review| review.contains_key("verdict"))?;
    review.insert("verdict".to_owned(), json!(verdict));
    Some(Value::Object(review))
}

/// The whole final answer of a child, followed by what it stated when it was asked for its checkpoint.
fn final_answer(history: &History) -> Option<String> {
    let finals = history.facts().filter_map(|fact| match fact {
        Canonical::AssistantMessage(message) if message.is_final() => Some(message.text.as_str()),
        _ => None,
    });
    let finals: Vec<&str> = finals.collect();
    (!finals.is_empty()).then(|| finals.join("\n\n"))
}
