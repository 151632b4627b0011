//! Runs a Workflow: starts steps, judges their results and records them in the Log, until all have ended.
//!
//! One task drives the run and owns the scheduler; each running step has its own task, which always ends with a
//! bundle. Every decision is recorded in the Log.

mod apply;
mod heartbeat;
mod record;
mod resume;
mod rollback_merge;
mod rollback_step;
mod step;
mod step_prompt;
mod verify;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::{Id as TaskId, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::checkpoint::CheckpointBundle;
use super::outcome::{HaltReason, HoldReason, Readiness, RunOutcome, SUBAGENT_LIMIT, StepStatus};
use super::replay::RecordedRun;
use super::scheduler::{EndedStep, Scheduler};
use super::spec::{Step, Workflow};
use crate::agent::subagent::Children;
use crate::agent::turn::{
    PermissionState, RUN_COST_LIMIT, RunBudget, SpendLimits, TurnSettings, UsageTotal,
    missing_price_report,
};
use crate::base::error::{Report, counted};
use crate::base::id::SessionId;
use crate::base::secret::Secrets;
use crate::host::snapshot::TurnTracker;
use crate::host::workspace::Workspace;
use crate::record::event::{TerminalStatus, WorkflowEventKind};
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::bounds::{WriteBounds, WriteGlobs};
use crate::tools::permission::canonical_digest;
use heartbeat::Heartbeat;
use step::{StepInputs, StepTaskResult};

/// How long steps may continue after the budget is used up, so that an answer that is just arriving counts.
const BUDGET_GRACE: Duration = Duration::from_secs(2);

/// How many of the files that a step changed are named.
const MAX_NAMED_FILES: usize = 200;

/// The context that all steps of a run share: Session, Workspace, permissions, spending.
pub struct RunContext {
    children: Arc<Children>,
    /// The id of the run.
    run_id: String,
    workspace: Workspace,
    /// The folder of the run's Session.
    session_folder: SessionFolder,
    secrets: Arc<Secrets>,
    /// The Session's current permissions, which may become stricter during a run.
    permissions: PermissionState,
    tracker: Option<TurnTracker>,
    budget: Arc<RunBudget>,
    /// The usage of the steps, limited by the budget of the Workflow.
    usage_total: UsageTotal,
    /// The Subagents of all attempts. No other lock is taken while this one is held.
    child_ids: Mutex<Vec<String>>,
}

impl RunContext {
    /// The context of a run in the Session of `children`; fails when a budget in dollars cannot be enforced.
    pub fn new(children: Arc<Children>, run: String, workflow: &Workflow) -> Result<Self, Report> {
        let base = children.base_settings();
        check_prices(workflow, &base)?;
        let limits = SpendLimits { tokens: workflow.budget.tokens, cost: workflow.budget.cost_usd };
        Ok(Self {
            workspace: base.workspace.clone(),
            session_folder: base.session_folder.clone(),
            secrets: Arc::clone(&base.secrets),
            permissions: base.permission_state.clone(),
            tracker: base.tracker.clone(),
            budget: Arc::clone(&base.budget),
            usage_total: base.usage_total.with_limits(limits),
            child_ids: Mutex::default(),
            children,
            run_id: run,
        })
    }

    /// Waits until the budget is used up.
    async fn wait_until_exhausted(&self) {
        self.usage_total.wait_for_limit(self.budget.spend_limits()).await;
    }

    /// The state root that holds the Logs.
    fn state_root(&self) -> &StateRoot {
        self.children.session().state_root()
    }
}

/// A request to run or resume a Workflow.
pub struct WorkflowRunInput {
    pub workflow: Arc<Workflow>,
    /// The template that it was made from.
    pub template: Option<String>,
    /// The recorded run, when it is resumed.
    pub resumed_from: Option<RecordedRun>,
    /// A shorter time limit than that of the Workflow.
    pub time_limit: Option<Duration>,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct FinishedRun {
    pub run_id: String,
    pub session_id: SessionId,
    pub workflow: Arc<Workflow>,
    pub outcome: RunOutcome,
    /// Why no more steps were started, if so.
    pub halt: Option<HaltReason>,
    /// In the order of the Workflow.
    pub bundles: Vec<CheckpointBundle>,
    /// The steps that were started together, by index.
    pub waves: Vec<Vec<usize>>,
    /// The steps that an earlier part of the run had finished, by index.
    pub reused: Vec<usize>,
    /// The Subagents of all attempts.
    pub children: Vec<String>,
}

/// Runs a Workflow to its end. Fails only when the Log cannot be written; then all steps are stopped.
pub async fn run(
    context: RunContext,
    input: WorkflowRunInput,
    cancel: CancellationToken,
) -> Result<FinishedRun, Report> {
    let workflow = Arc::clone(&input.workflow);
    let stop = CancellationToken::new();
    // Dropping this future stops all steps.
    let guard = stop.clone().drop_guard();
    let mut run = RunDriver {
        context: Arc::new(context),
        scheduler: Scheduler::new(&workflow),
        workflow: &input.workflow,
        bundles: vec![None; workflow.steps.len()],
        concurrent: vec![BTreeSet::new(); workflow.steps.len()],
        tasks: JoinSet::new(),
        places: HashMap::new(),
        waves: Vec::new(),
        reused: Vec::new(),
        stop: stop.clone(),
    };
    let driven = run.drive(&input, &cancel).await;
    if driven.is_err() {
        stop.cancel();
        while run.tasks.join_next().await.is_some() {}
    }
    drop(guard);
    driven
}

struct RunDriver<'w> {
    context: Arc<RunContext>,
    workflow: &'w Arc<Workflow>,
    scheduler: Scheduler<'w>,
    bundles: Vec<Option<CheckpointBundle>>,
    /// The steps whose runs overlapped with that of each step.
    concurrent: Vec<BTreeSet<usize>>,
    tasks: JoinSet<StepTaskResult>,
    places: HashMap<TaskId, usize>,
    waves: Vec<Vec<usize>>,
    reused: Vec<usize>,
    /// Stops every running step.
    stop: CancellationToken,
}

/// The events that the driver of a run waits for.
enum Wake {
    StepEnded(Result<(TaskId, StepTaskResult), JoinError>),
    Halt(HaltReason),
    Nothing,
}

impl RunDriver<'_> {
    async fn drive(
        &mut self,
        input: &WorkflowRunInput,
        cancel: &CancellationToken,
    ) -> Result<FinishedRun, Report> {
        match &input.resumed_from {
            None => {
                let sha256 = self.workflow.hash();
                let template = input.template.as_deref();
                self.context.record_started(self.workflow, &sha256, template).await?;
            }
            Some(past) => {
                self.resume_from(past).await?;
            }
        }
        let part = input.resumed_from.as_ref().map_or(0, |past| past.resumes + 1);
        let heartbeat = Heartbeat::new(&self.context.session_folder, &self.context.run_id, part);
        let mut beat = tokio::time::interval(heartbeat::HEARTBEAT_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let time = Duration::from_millis(self.workflow.limits.timeout_ms);
        let deadline = Instant::now() + input.time_limit.map_or(time, |nearer| nearer.min(time));
        let context = Arc::clone(&self.context);
        let is_spent = || context.wait_until_exhausted().now_or_never().is_some();
        let mut grace_end: Option<Instant> = None;
        loop {
            // The step that ended last may have used up the budget: no more steps start. Requests under way are
            // paid for, and may be answered soon.
            if self.scheduler.halt_reason().is_none() && !self.scheduler.has_ended() && is_spent() {
                grace_end = Some(Instant::now() + BUDGET_GRACE);
                self.scheduler.halt(HaltReason::Budget);
            }
            // Steps that will never start come first, because one of them may end the run.
            self.end_held_steps().await?;
            self.start_ready_steps().await?;
            // A step that will never start may have ended the run as well.
            if self.scheduler.halt_reason().is_some() && grace_end.is_none() {
                self.stop.cancel();
            }
            if self.scheduler.has_ended() {
                break;
            }
            let is_halted = self.scheduler.halt_reason().is_some();
            let wake = tokio::select! {
                biased;
                Some(over) = self.tasks.join_next_with_id() => Wake::StepEnded(over),
                () = cancel.cancelled(), if !is_halted || grace_end.is_some() => Wake::Halt(HaltReason::Cancelled),
                () = tokio::time::sleep_until(deadline), if !is_halted => Wake::Halt(HaltReason::Deadline),
                _ = beat.tick(), if self.may_change_shared() => {
                    heartbeat.touch();
                    Wake::Nothing
                }
                () = context.wait_until_exhausted(), if !is_halted => Wake::Nothing,
                () = sleep_until_set(grace_end), if grace_end.is_some() => {
                    grace_end = None;
                    Wake::Nothing
                }
            };
            match wake {
                Wake::StepEnded(over) => {
                    self.handle_step_end(over).await?;
                    if !is_halted && self.scheduler.halt_reason() == Some(&HaltReason::Budget) {
                        grace_end = Some(Instant::now() + BUDGET_GRACE);
                    }
                }
                Wake::Halt(halt) => {
                    grace_end = None;
                    self.scheduler.halt(halt);
                }
                Wake::Nothing => {}
            }
            if self.scheduler.halt_reason().is_some() && grace_end.is_none() {
                self.stop.cancel();
            }
        }
        self.finish().await
    }

    /// Whether a running step may change the shared Workspace.
    fn may_change_shared(&self) -> bool {
        self.scheduler.running_steps().any(|place| self.workflow.steps[place].writes_shared())
    }

    /// Starts every step that may start.
    async fn start_ready_steps(&mut self) -> Result<(), Report> {
        let mut wave = Vec::new();
        while let Some(place) = self.scheduler.start_next() {
            let step = &self.workflow.steps[place];
            let number = u32::try_from(self.waves.len() + 1).unwrap_or(u32::MAX);
            let key = self.reuse_key(step);
            self.context.record_scheduled(step, number, &key).await?;
            let inputs = self.collect_inputs(step, number);
            let running: Vec<usize> =
                self.scheduler.running_steps().filter(|own| *own != place).collect();
            for other in running {
                self.concurrent[other].insert(place);
                self.concurrent[place].insert(other);
            }
            let (context, workflow) = (Arc::clone(&self.context), Arc::clone(self.workflow));
            let halt = self.stop.child_token();
            let task = self.tasks.spawn(async move {
                let step = &workflow.steps[place];
                step::run_step(&context, step, inputs, halt).await
            });
            self.places.insert(task.id(), place);
            wave.push(place);
        }
        if !wave.is_empty() {
            self.waves.push(wave);
        }
        Ok(())
    }

    /// Ends every step that will never start as held, and records it.
    async fn end_held_steps(&mut self) -> Result<(), Report> {
        while let Some((place, held)) = self.scheduler.next_held() {
            let step = &self.workflow.steps[place];
            self.context.record_held(step, &held).await?;
            let mut bundle =
                CheckpointBundle::new(&step.id, StepStatus::Held, Readiness::Held, held.message());
            bundle.reason = Some(held.name().to_owned());
            bundle.known_limitations.push(held.name().to_owned());
            if let HoldReason::Gate { .. } = held {
                bundle.known_limitations.push("review_did_not_approve".to_owned());
            }
            self.record_result(place, bundle).await?;
        }
        Ok(())
    }

    async fn handle_step_end(
        &mut self,
        over: Result<(TaskId, StepTaskResult), JoinError>,
    ) -> Result<(), Report> {
        let (task, done) = match over {
            Ok((task, done)) => (task, Some(done)),
            Err(error) => (error.id(), None),
        };
        let Some(place) = self.places.remove(&task) else { return Ok(()) };
        let step = &self.workflow.steps[place];
        let mut bundle = match done {
            Some(StepTaskResult::Ended { bundle, strays }) => {
                self.lower_for_strays(place, *bundle, &strays)
            }
            Some(StepTaskResult::LogFailed(report)) => return Err(report),
            None => {
                let summary = "the task of the step crashed".to_owned();
                CheckpointBundle::failed(&step.id, "crashed", summary)
            }
        };
        if bundle.status == StepStatus::Cancelled
            && let Some(halt) = self.scheduler.halt_reason()
        {
            if *halt == HaltReason::Deadline {
                bundle.status = StepStatus::TimedOut;
            }
            bundle.reason = Some(halt.name().to_owned());
        }
        // A request of this step was refused for lack of budget, so requests of further steps would be, too.
        let ran_out = bundle.reason.as_deref() == Some(TerminalStatus::BudgetExceeded.as_str());
        if ran_out && self.scheduler.halt_reason().is_none() {
            self.scheduler.halt(HaltReason::Budget);
        }
        self.record_result(place, bundle).await
    }

    /// Lowers a step to `partial` for files outside its write set that no concurrent step may have changed.
    fn lower_for_strays(
        &self,
        place: usize,
        mut bundle: CheckpointBundle,
        strays: &[PathBuf],
    ) -> CheckpointBundle {
        let concurrent_bounds: Vec<WriteBounds> = self.concurrent[place]
            .iter()
            .map(|other| &self.workflow.steps[*other])
            .filter(|other| other.writes_shared())
            .map(write_bounds)
            .collect();
        let own: Vec<String> = strays
            .iter()
            .filter(|path| !concurrent_bounds.iter().any(|set| set.allows(path)))
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        if !own.is_empty() && bundle.checkpoint_status != Readiness::Failed {
            bundle.lower_readiness(Readiness::Partial, "wrote_outside_write_set");
            let files = counted(own.len(), "file");
            let named = own.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
            bundle.summary =
                format!("{}\n[{files} outside its write set changed: {named}]", bundle.summary);
        }
        bundle
    }

    /// Records the result of a step and passes it to the scheduler.
    async fn record_result(
        &mut self,
        place: usize,
        mut bundle: CheckpointBundle,
    ) -> Result<(), Report> {
        bundle.key = self.reuse_key(&self.workflow.steps[place]);
        bundle.set_next_actions();
        self.context.record_checkpoint(&bundle).await?;
        self.scheduler.record_result(place, step_result(&bundle));
        self.bundles[place] = Some(bundle);
        Ok(())
    }

    async fn finish(&mut self) -> Result<FinishedRun, Report> {
        let halt = self.scheduler.halt_reason().cloned();
        let is_refused =
            |bundle: &CheckpointBundle| bundle.reason.as_deref() == Some(SUBAGENT_LIMIT);
        let has_met_limit = self.bundles.iter().flatten().any(is_refused);
        let outcome = RunOutcome::from_steps(
            self.workflow,
            &self.scheduler.step_readiness(),
            halt.as_ref(),
            has_met_limit,
        );
        let finished = FinishedRun {
            run_id: self.context.run_id.clone(),
            session_id: self.context.children.session().id().clone(),
            workflow: Arc::clone(self.workflow),
            outcome,
            halt,
            bundles: self.bundles.iter_mut().filter_map(Option::take).collect(),
            waves: std::mem::take(&mut self.waves),
            reused: std::mem::take(&mut self.reused),
            children: self.context.child_ids.lock().clone(),
        };
        self.context.record(WorkflowEventKind::Finished, None, finished.event_fields()).await?;
        Ok(finished)
    }

    /// The digest of a step and of its inputs from earlier steps; a resumed run reuses its bundle while it is the same.
    fn reuse_key(&self, step: &Step) -> String {
        let handed: Vec<_> = step
            .depends_on
            .iter()
            .filter_map(|id| self.find_bundle(id).map(CheckpointBundle::key_input))
            .collect();
        canonical_digest(&json!({ "step": step, "handed": handed }))
    }

    fn find_bundle(&self, id: &str) -> Option<&CheckpointBundle> {
        let place = self.workflow.steps.iter().position(|step| step.id == id)?;
        self.bundles[place].as_ref()
    }

    fn collect_inputs(&self, step: &Step, wave: u32) -> StepInputs {
        let before =
            step.depends_on.iter().filter_map(|id| self.find_bundle(id)).cloned().collect();
        StepInputs {
            workflow_name: self.workflow.name.clone(),
            wave,
            needs: self.scheduler.resolve_needs(step).unwrap_or_default(),
            before,
        }
    }
}

/// Refuses a budget in dollars that cannot be enforced, because a model has no price.
fn check_prices(workflow: &Workflow, base: &TurnSettings) -> Result<(), Report> {
    let asking = workflow.steps.iter().filter(|step| step.apply.is_none());
    let mut models = asking.map(|step| step.model.as_ref().unwrap_or(&base.model));
    let unknown = models.find(|model| base.budget.prices().get(model).is_none());
    match unknown.filter(|_| workflow.budget.cost_usd.is_some()) {
        Some(model) => Err(missing_price_report(model, RUN_COST_LIMIT)),
        None => Ok(()),
    }
}

/// Sleeps until a moment; returns at once without one.
async fn sleep_until_set(moment: Option<Instant>) {
    if let Some(moment) = moment {
        tokio::time::sleep_until(moment).await;
    }
}

/// The part of a bundle that the scheduler needs.
fn step_result(bundle: &CheckpointBundle) -> EndedStep {
    EndedStep {
        readiness: bundle.checkpoint_status,
        output: bundle.output().cloned(),
        verdict: bundle.verdict(),
    }
}

/// The write set of a step as bounds. A set that cannot be used, which validation refuses, allows nothing.
fn write_bounds(step: &Step) -> WriteBounds {
    let mut bounds = WriteBounds::none();
    let deny = if step.write_set.is_empty() { vec!["**".to_owned()] } else { Vec::new() };
    let globs = WriteGlobs { allow: step.write_set.clone(), deny };
    if bounds.add_globs(&globs).is_err() {
        bounds.add_globs(&WriteGlobs { allow: Vec::new(), deny: vec!["**".to_owned()] }).ok();
    }
    bounds
}
