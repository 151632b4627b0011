//! Runs one step: its Subagent, the answer, the changes, and the checks.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{NAMED, Stage, set_of, words};
use crate::agent::subagent::{Record, Status, Terms, Wish, WorkspaceMode, verdict};
use crate::agent::workflow::checkpoint::{Bundle, CHANGES_UNKNOWN, NOT_STATED, Payload};
use crate::agent::workflow::outcome::{Readiness, SUBAGENT_LIMIT, StepStatus};
use crate::agent::workflow::spec::{Posture, Step, Workspace as Where};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::base::text::bound;
use crate::record::event::{Canonical, Extra, TerminalStatus, WorkflowEventKind};
use crate::record::history::History;
use crate::record::log::Log;
use crate::settings::bounds::WriteGlobs;
use crate::settings::config::{AnswerSchema, SandboxLevel};

/// How much of an answer becomes the summary, in bytes; the child's Log has all of it.
const SUMMARY: usize = 4 * 1024;

/// What a step is given by the run and by earlier steps.
pub struct Inputs {
    pub workflow_name: String,
    pub wave: u32,
    pub needs: Vec<(String, Value)>,
    /// The bundles of its dependencies.
    pub before: Vec<Bundle>,
}

/// The result of the task that runs a step.
pub enum Done {
    Ended {
        bundle: Box<Bundle>,
        /// Files outside its write set that changed while it ran.
        strays: Vec<PathBuf>,
    },
    /// The Log could not be written.
    Unwritten(Report),
}

/// The result of one attempt.
struct Tried {
    bundle: Bundle,
    strays: Vec<PathBuf>,
    child: Option<SessionId>,
}

/// Runs a step to its end, with its retries.
pub async fn run(stage: &Stage, step: &Step, inputs: Inputs, halt: CancellationToken) -> Done {
    match attempts(stage, step, &inputs, &halt).await {
        Ok(Tried { bundle, strays, .. }) => Done::Ended { bundle: Box::new(bundle), strays },
        Err(report) => Done::Unwritten(report),
    }
}

/// Whether another attempt would only cost more or cannot start: the budget is used up, the answer was truncated, or
/// the run has reached its limit of Subagents.
fn is_final(reason: Option<&str>) -> bool {
    let finals = [TerminalStatus::BudgetExceeded, TerminalStatus::Incomplete];
    reason == Some(SUBAGENT_LIMIT) || finals.iter().any(|status| reason == Some(status.as_str()))
}

async fn attempts(
    stage: &Stage,
    step: &Step,
    inputs: &Inputs,
    halt: &CancellationToken,
) -> Result<Tried, Report> {
    let mut attempt = 1;
    let mut used = crate::record::event::SubagentUsage::default();
    loop {
        let mut tried = match &step.apply {
            Some(_) => {
                let (bundle, strays) = stage.apply_in_time(step, inputs, halt).await?;
                Tried { bundle, strays, child: None }
            }
            None => stage.ask(step, inputs, halt).await?,
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
            && let Err(report) = stage.take_back(step, &[child], i128::MAX).await?
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
        stage.record(WorkflowEventKind::StepRetrying, Some(&step.id), facts).await?;
        attempt += 1;
    }
}

impl Stage {
    /// Runs a Subagent for the task, and judges the result.
    async fn ask(
        &self,
        step: &Step,
        inputs: &Inputs,
        halt: &CancellationToken,
    ) -> Result<Tried, Report> {
        let failed = |reason: &str, summary: String| {
            let mut bundle = Bundle::new(&step.id, StepStatus::Failed, Readiness::Failed, summary);
            bundle.reason = Some(reason.to_owned());
            Tried { bundle, strays: Vec::new(), child: None }
        };
        let answer =
            match step.output.as_ref().map(|schema| AnswerSchema::parse(&schema.to_string())) {
                None => None,
                Some(Ok(schema)) => Some(schema),
                Some(Err(reason)) => return Ok(failed("output_schema_unusable", reason)),
            };
        let terms = Terms {
            is_reading: step.posture == Posture::ReadOnly,
            is_leaf: true,
            writes: WriteGlobs { allow: step.write_set.clone(), deny: Vec::new() },
            answer: answer.clone(),
            facts: words::facts(step, inputs, &self.run),
            marks: Extra::from_iter([
                ("workflow_id".to_owned(), json!(self.run)),
                ("step_id".to_owned(), json!(step.id)),
            ]),
            purse: Some(self.purse.clone()),
        };
        let apart = self.changes_before(&inputs.before).await;
        let wish = Wish {
            task: words::task(step, inputs, &apart),
            role: Some(step.role.clone()),
            model: step.model.clone(),
            effort: step.effort.clone(),
            workspace: Some(match step.workspace {
                Where::Shared => WorkspaceMode::Shared,
                Where::Isolated => WorkspaceMode::Isolated,
                Where::Worktree => WorkspaceMode::Worktree,
            }),
            timeout_ms: step.timeout_ms,
            resources: None,
            validate_only: None,
        };
        let record = match self.family.spawn(&wish, terms.clone(), halt.clone()).await {
            Ok(record) => record,
            Err(error) => {
                // This kind means that the run has started as many Subagents as it may.
                let is_limit = error.kind == Kind::BudgetExceeded;
                let reason = if is_limit { SUBAGENT_LIMIT } else { "cannot_start" };
                let message = format!("{}: {}", error.kind.name(), error.message);
                return Ok(failed(reason, message));
            }
        };
        self.children().push(record.id.clone());
        let record = match self.family.over(&record.id).await {
            Ok(record) => record,
            Err(error) => return Ok(failed("lost", error.message.into())),
        };
        let tried = self.judge(step, &record, answer.as_ref(), halt).await?;
        if tried.bundle.reason.as_deref() != Some(NOT_STATED) {
            return Ok(tried);
        }
        self.ask_for_checkpoint(step, record, tried, terms, halt).await
    }

    /// Asks a Subagent once for the checkpoint line that its answer lacks. Its earlier answer counts in any case.
    async fn ask_for_checkpoint(
        &self,
        step: &Step,
        record: Record,
        tried: Tried,
        terms: Terms,
        halt: &CancellationToken,
    ) -> Result<Tried, Report> {
        let left = record.timeout.saturating_sub(record.elapsed);
        if left.is_zero() || halt.is_cancelled() {
            return Ok(tried);
        }
        let question = words::checkpoint_question(step);
        let reminded = Record { timeout: left, ..record };
        let told = self.family.tell(reminded, question, terms, halt.clone()).await;
        let Ok(told) = told else { return Ok(tried) };
        let Ok(record) = self.family.over(&told.id).await else { return Ok(tried) };
        let before = tried.bundle.elapsed_ms;
        let mut again = match record.status {
            Status::Completed => self.judge(step, &record, None, halt).await?,
            // The earlier answer still counts, but it may have changed more files since.
            _ => self.judged_again(step, tried).await,
        };
        let elapsed = u64::try_from(record.elapsed.as_millis()).unwrap_or(u64::MAX);
        again.bundle.elapsed_ms = before.saturating_add(elapsed);
        again.bundle.usage = record.usage;
        again.bundle.child_seq = record.child_seq.or(again.bundle.child_seq);
        Ok(again)
    }

    /// The same result, with the changes determined again.
    async fn judged_again(&self, step: &Step, mut tried: Tried) -> Tried {
        if let Some(child) = tried.child.clone() {
            tried.bundle.forget_changes();
            let history = self.history_of(&child).await;
            tried.strays = self.look_at_changes(step, &child, &history, &mut tried.bundle).await;
        }
        tried
    }

    async fn history_of(&self, child: &SessionId) -> History {
        let (logs, own) = (self.logs().clone(), child.clone());
        match blocking::work(move || Log::read(&logs, &own)).await {
            Ok(Ok(reading)) => History::from_events(reading.events),
            Ok(Err(_)) | Err(_) => History::default(),
        }
    }

    /// Judges how a Subagent ended: readiness, payloads, checks and changes.
    async fn judge(
        &self,
        step: &Step,
        record: &Record,
        schema: Option<&AnswerSchema>,
        halt: &CancellationToken,
    ) -> Result<Tried, Report> {
        let summary = record.summary.clone().unwrap_or_default();
        let status = match record.status {
            Status::Completed => StepStatus::Completed,
            Status::TimedOut => StepStatus::TimedOut,
            Status::Cancelled => StepStatus::Cancelled,
            Status::Failed | Status::Detached | Status::Queued | Status::Running => {
                StepStatus::Failed
            }
        };
        // The run is resumed as a whole, not a single Session of it.
        let summary = match status {
            StepStatus::Completed => summary,
            _ => summary.replace("`pixir resume`", "`pixir workflow resume`"),
        };
        let mut bundle = Bundle::new(&step.id, status, Readiness::Failed, summary);
        bundle.reason.clone_from(&record.reason);
        bundle.subagent_id = Some(record.id.clone());
        bundle.child_session_id = record.child.as_ref().map(ToString::to_string);
        bundle.child_seq = record.child_seq;
        bundle.elapsed_ms = u64::try_from(record.elapsed.as_millis()).unwrap_or(u64::MAX);
        bundle.usage = record.usage;
        let child = record.child.clone();
        let (Some(id), StepStatus::Completed) = (&child, status) else {
            return Ok(Tried { bundle, strays: Vec::new(), child });
        };
        bundle.dependent_safe = true;
        let history = self.history_of(id).await;
        let Some(text) = answer_in(&history) else {
            // There is an answer, but it cannot be read; this must not count as an answer without a statement.
            bundle.lower(Readiness::Failed, "log_unreadable");
            return Ok(Tried { bundle, strays: Vec::new(), child });
        };
        state(step, &text, schema, &mut bundle);
        if bundle.checkpoint_status == Readiness::CheckpointReady && !step.verify.is_empty() {
            let turn = history.live_turns().last().copied();
            self.verify(step, Some(id), turn, &mut bundle, halt).await?;
        }
        let strays = self.look_at_changes(step, id, &history, &mut bundle).await;
        Ok(Tried { bundle, strays, child })
    }

    /// Determines the files that the step changed; returns those outside its write set.
    async fn look_at_changes(
        &self,
        step: &Step,
        child: &SessionId,
        history: &History,
        bundle: &mut Bundle,
    ) -> Vec<PathBuf> {
        let is_held = step.posture == Posture::ReadOnly
            && self.family.config().sandbox.level != SandboxLevel::Off;
        if is_held && step.workspace == Where::Shared {
            return Vec::new();
        }
        let changed = match step.workspace {
            Where::Shared => self.changed_shared(child, history, bundle).await,
            Where::Isolated | Where::Worktree => self.changed_apart(child, bundle).await,
        };
        let changed = match changed {
            Ok(changed) => changed,
            Err(reason) => {
                bundle.known_limitations.push(CHANGES_UNKNOWN.to_owned());
                tracing::warn!(%reason, step = %step.id, "the changes of a step are not known");
                return Vec::new();
            }
        };
        let set = set_of(step);
        let (inside, strays): (Vec<PathBuf>, Vec<PathBuf>) =
            changed.into_iter().partition(|path| set.allow(path));
        bundle.written =
            inside.iter().take(NAMED).map(|path| path.to_string_lossy().into_owned()).collect();
        strays
    }
}

/// Sets the readiness that an answer states, and its payload.
fn state(step: &Step, text: &str, schema: Option<&AnswerSchema>, bundle: &mut Bundle) {
    bundle.summary = bound(text, SUMMARY).into_owned();
    bundle.reason = None;
    bundle.checkpoint_status = Readiness::CheckpointReady;
    if let Some(schema) = schema {
        match (schema.check(text), serde_json::from_str::<Value>(text.trim())) {
            (Ok(()), Ok(value)) => {
                let payload = Payload::declared("step_output", Some(schema.schema()), value);
                bundle.typed_payloads.push(payload);
            }
            _ => bundle.lower(Readiness::Failed, "output_invalid"),
        }
        return;
    }
    if step.role == "reviewer"
        && let Some(review) = review_in(text)
    {
        bundle.typed_payloads.push(Payload::declared("review_verdict", None, review));
        return;
    }
    match Readiness::stated(text) {
        Some(Readiness::CheckpointReady) => {}
        Some(other) => bundle.lower(other, "stated_by_subagent"),
        None if !step.verify.is_empty() => {}
        None if step.answer_is_enough => {
            bundle.known_limitations.push(NOT_STATED.to_owned());
        }
        None => bundle.lower(Readiness::Partial, NOT_STATED),
    }
}

/// The review at the end of an answer, if it has a valid verdict.
fn review_in(text: &str) -> Option<Value> {
    let verdict = verdict(text)?;
    let text = text.trim_end().trim_end_matches('`').trim_end();
    let starts = text.match_indices('{').map(|(place, _)| place);
    let found =
        starts.filter_map(|place| serde_json::from_str::<Map<String, Value>>(&text[place..]).ok());
    let mut review = found.rev().find(|review| review.contains_key("verdict"))?;
    review.insert("verdict".to_owned(), json!(verdict));
    Some(Value::Object(review))
}

/// The whole final answer of a child, followed by what it stated when it was asked for its checkpoint.
fn answer_in(history: &History) -> Option<String> {
    let finals = history.facts().filter_map(|fact| match fact {
        Canonical::AssistantMessage(message) if message.is_final() => Some(message.text.as_str()),
        _ => None,
    });
    let finals: Vec<&str> = finals.collect();
    (!finals.is_empty()).then(|| finals.join("\n\n"))
}
