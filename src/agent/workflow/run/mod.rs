//! Runs a Workflow: starts steps, judges their results and records them in the Log, until all have ended.
//!
//! One task drives the run and owns the scheduler; each running step has its own task, which always ends with a
//! bundle. Every decision is recorded in the Log.

mod apply;
mod back;
mod landed;
mod pulse;
mod record;
mod resume;
mod step;
mod verify;
mod words;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::task::{Id as TaskId, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::board::{Board, End};
use super::checkpoint::Bundle;
use super::digest::digest;
use super::fold::Past;
use super::outcome::{Halt, Held, Outcome, Readiness, SUBAGENT_LIMIT, StepStatus};
use super::spec::{Step, Workflow};
use crate::agent::subagent::Family;
use crate::agent::turn::{Budget, Purse, RUN_COST, Settings, SpendLimits, Stance, unpriced};
use crate::base::error::{Report, counted};
use crate::base::id::SessionId;
use crate::base::secret::Secrets;
use crate::host::snapshot::Tracker;
use crate::host::workspace::Workspace;
use crate::record::event::{TerminalStatus, WorkflowEventKind};
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::bounds::{Bounds, WriteGlobs};
use pulse::Pulse;
use step::{Done, Inputs};

/// How long steps may continue after the budget is used up, so that an answer that is just arriving counts.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The most files that are named of those that a step changed.
const NAMED: usize = 200;

/// What all steps of a run share: Session, Workspace, permissions, spending.
pub struct Stage {
    family: Arc<Family>,
    /// The id of the run.
    run: String,
    workspace: Workspace,
    /// The folder of the run's Session.
    folder: SessionFolder,
    secrets: Arc<Secrets>,
    /// The Session's current permissions, which may become stricter during a run.
    stance: Stance,
    tracker: Option<Tracker>,
    budget: Arc<Budget>,
    /// The usage of the steps, limited by the budget of the Workflow.
    purse: Purse,
    /// The Subagents of all attempts. No other lock is taken while this one is held.
    children: Mutex<Vec<String>>,
}

impl Stage {
    /// The context of a run in the Session of `family`; fails when a budget in dollars cannot be enforced.
    pub fn new(family: Arc<Family>, run: String, workflow: &Workflow) -> Result<Self, Report> {
        let base = family.base();
        check_prices(workflow, &base)?;
        let limits = SpendLimits { tokens: workflow.budget.tokens, cost: workflow.budget.cost_usd };
        Ok(Self {
            workspace: base.workspace.clone(),
            folder: base.session_folder.clone(),
            secrets: Arc::clone(&base.secrets),
            stance: base.stance.clone(),
            tracker: base.tracker.clone(),
            budget: Arc::clone(&base.budget),
            purse: base.purse.within(limits),
            children: Mutex::default(),
            family,
            run,
        })
    }

    fn children(&self) -> MutexGuard<'_, Vec<String>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the budget is used up.
    async fn exhausted(&self) {
        self.purse.exhausted(self.budget.spend_limits()).await;
    }

    /// The state root that holds the Logs.
    fn logs(&self) -> &StateRoot {
        self.family.session().state_root()
    }
}

/// A request to run or resume a Workflow.
pub struct Order {
    pub workflow: Arc<Workflow>,
    /// The template that it was made from.
    pub template: Option<String>,
    /// The recorded run, when it is resumed.
    pub past: Option<Past>,
    /// A shorter time limit than that of the Workflow.
    pub horizon: Option<Duration>,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Finished {
    pub run: String,
    pub session_id: SessionId,
    pub workflow: Arc<Workflow>,
    pub outcome: Outcome,
    /// Why no more steps were started, if so.
    pub halt: Option<Halt>,
    /// In the order of the Workflow.
    pub bundles: Vec<Bundle>,
    /// The steps that were started together, by index.
    pub waves: Vec<Vec<usize>>,
    /// The steps that an earlier part of the run had finished, by index.
    pub reused: Vec<usize>,
    /// The Subagents of all attempts.
    pub children: Vec<String>,
}

/// Runs a Workflow to its end. Fails only when the Log cannot be written; then all steps are stopped.
pub async fn run(
    stage: Stage,
    order: Order,
    cancel: CancellationToken,
) -> Result<Finished, Report> {
    let workflow = Arc::clone(&order.workflow);
    let stop = CancellationToken::new();
    // Dropping this future stops all steps.
    let guard = stop.clone().drop_guard();
    let mut run = Run {
        stage: Arc::new(stage),
        board: Board::new(&workflow),
        workflow: &order.workflow,
        bundles: vec![None; workflow.steps.len()],
        beside: vec![BTreeSet::new(); workflow.steps.len()],
        tasks: JoinSet::new(),
        places: HashMap::new(),
        waves: Vec::new(),
        reused: Vec::new(),
        stop: stop.clone(),
    };
    let driven = run.drive(&order, &cancel).await;
    if driven.is_err() {
        stop.cancel();
        while run.tasks.join_next().await.is_some() {}
    }
    drop(guard);
    driven
}

struct Run<'w> {
    stage: Arc<Stage>,
    workflow: &'w Arc<Workflow>,
    board: Board<'w>,
    bundles: Vec<Option<Bundle>>,
    /// The steps that ran at the same time as each step, for a while at least.
    beside: Vec<BTreeSet<usize>>,
    tasks: JoinSet<Done>,
    places: HashMap<TaskId, usize>,
    waves: Vec<Vec<usize>>,
    reused: Vec<usize>,
    /// Stops every running step.
    stop: CancellationToken,
}

/// What the driver of a run waits for.
enum Wake {
    Over(Result<(TaskId, Done), JoinError>),
    Halt(Halt),
    Nothing,
}

impl Run<'_> {
    async fn drive(
        &mut self,
        order: &Order,
        cancel: &CancellationToken,
    ) -> Result<Finished, Report> {
        match &order.past {
            None => {
                let sha256 = self.workflow.hash();
                let template = order.template.as_deref();
                self.stage.record_started(self.workflow, &sha256, template).await?;
            }
            Some(past) => {
                self.take_up(past).await?;
            }
        }
        let part = order.past.as_ref().map_or(0, |past| past.resumes + 1);
        let pulse = Pulse::new(&self.stage.folder, &self.stage.run, part);
        let mut beat = tokio::time::interval(pulse::BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let time = Duration::from_millis(self.workflow.limits.timeout_ms);
        let deadline = Instant::now() + order.horizon.map_or(time, |nearer| nearer.min(time));
        let stage = Arc::clone(&self.stage);
        let is_spent = || stage.exhausted().now_or_never().is_some();
        let mut last_words: Option<Instant> = None;
        loop {
            // The step that ended last may have used up the budget: no more steps start. Requests under way are
            // paid for, and may be answered soon.
            if self.board.halted().is_none() && !self.board.is_over() && is_spent() {
                last_words = Some(Instant::now() + LAST_WORDS);
                self.board.halt(Halt::Budget);
            }
            // Steps that will never start come first, because one of them may end the run.
            self.hold().await?;
            self.start().await?;
            // A step that will never start may have ended the run as well.
            if self.board.halted().is_some() && last_words.is_none() {
                self.stop.cancel();
            }
            if self.board.is_over() {
                break;
            }
            let is_halted = self.board.halted().is_some();
            let wake = tokio::select! {
                biased;
                Some(over) = self.tasks.join_next_with_id() => Wake::Over(over),
                () = cancel.cancelled(), if !is_halted || last_words.is_some() => Wake::Halt(Halt::Cancelled),
                () = tokio::time::sleep_until(deadline), if !is_halted => Wake::Halt(Halt::Deadline),
                _ = beat.tick(), if self.changes_shared() => {
                    pulse.beat();
                    Wake::Nothing
                }
                () = stage.exhausted(), if !is_halted => Wake::Nothing,
                () = until(last_words), if last_words.is_some() => {
                    last_words = None;
                    Wake::Nothing
                }
            };
            match wake {
                Wake::Over(over) => {
                    self.settle(over).await?;
                    if !is_halted && self.board.halted() == Some(&Halt::Budget) {
                        last_words = Some(Instant::now() + LAST_WORDS);
                    }
                }
                Wake::Halt(halt) => {
                    last_words = None;
                    self.board.halt(halt);
                }
                Wake::Nothing => {}
            }
            if self.board.halted().is_some() && last_words.is_none() {
                self.stop.cancel();
            }
        }
        self.finish().await
    }

    /// Whether a running step may change the shared Workspace.
    fn changes_shared(&self) -> bool {
        self.board.running().any(|place| self.workflow.steps[place].writes_shared())
    }

    /// Starts every step that may start.
    async fn start(&mut self) -> Result<(), Report> {
        let mut wave = Vec::new();
        while let Some(place) = self.board.start_next() {
            let step = &self.workflow.steps[place];
            let number = u32::try_from(self.waves.len() + 1).unwrap_or(u32::MAX);
            let key = self.key(step);
            self.stage.record_scheduled(step, number, &key).await?;
            let inputs = self.inputs(step, number);
            let running: Vec<usize> = self.board.running().filter(|own| *own != place).collect();
            for other in running {
                self.beside[other].insert(place);
                self.beside[place].insert(other);
            }
            let (stage, workflow) = (Arc::clone(&self.stage), Arc::clone(self.workflow));
            let halt = self.stop.child_token();
            let task = self.tasks.spawn(async move {
                let step = &workflow.steps[place];
                step::run(&stage, step, inputs, halt).await
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
    async fn hold(&mut self) -> Result<(), Report> {
        while let Some((place, held)) = self.board.next_held() {
            let step = &self.workflow.steps[place];
            self.stage.record_held(step, &held).await?;
            let mut bundle = Bundle::new(&step.id, StepStatus::Held, Readiness::Held, held.told());
            bundle.reason = Some(held.reason().to_owned());
            bundle.known_limitations.push(held.reason().to_owned());
            if let Held::Gate { .. } = held {
                bundle.known_limitations.push("review_did_not_approve".to_owned());
            }
            self.decide(place, bundle).await?;
        }
        Ok(())
    }

    async fn settle(&mut self, over: Result<(TaskId, Done), JoinError>) -> Result<(), Report> {
        let (task, done) = match over {
            Ok((task, done)) => (task, Some(done)),
            Err(error) => (error.id(), None),
        };
        let Some(place) = self.places.remove(&task) else { return Ok(()) };
        let step = &self.workflow.steps[place];
        let mut bundle = match done {
            Some(Done::Ended { bundle, strays }) => self.blame(place, *bundle, &strays),
            Some(Done::Unwritten(report)) => return Err(report),
            None => {
                let summary = "the task of the step crashed".to_owned();
                let mut bundle =
                    Bundle::new(&step.id, StepStatus::Failed, Readiness::Failed, summary);
                bundle.reason = Some("crashed".to_owned());
                bundle
            }
        };
        if bundle.status == StepStatus::Cancelled
            && let Some(halt) = self.board.halted()
        {
            if *halt == Halt::Deadline {
                bundle.status = StepStatus::TimedOut;
            }
            bundle.reason = Some(halt.reason().to_owned());
        }
        // A request of this step was refused for want of budget, so requests of further steps would be, too.
        let ran_out = bundle.reason.as_deref() == Some(TerminalStatus::BudgetExceeded.as_str());
        if ran_out && self.board.halted().is_none() {
            self.board.halt(Halt::Budget);
        }
        self.decide(place, bundle).await
    }

    /// Lowers a step to `partial` for files outside its write set that no concurrent step may have changed.
    fn blame(&self, place: usize, mut bundle: Bundle, strays: &[PathBuf]) -> Bundle {
        let neighbours: Vec<Bounds> = self.beside[place]
            .iter()
            .map(|other| &self.workflow.steps[*other])
            .filter(|other| other.writes_shared())
            .map(set_of)
            .collect();
        let own: Vec<String> = strays
            .iter()
            .filter(|path| !neighbours.iter().any(|set| set.allow(path)))
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        if !own.is_empty() && bundle.checkpoint_status != Readiness::Failed {
            bundle.lower(Readiness::Partial, "wrote_outside_write_set");
            let files = counted(own.len(), "file");
            let named = own.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
            bundle.summary =
                format!("{}\n[{files} outside its write set changed: {named}]", bundle.summary);
        }
        bundle
    }

    /// Records the result of a step and tells the scheduler.
    async fn decide(&mut self, place: usize, mut bundle: Bundle) -> Result<(), Report> {
        bundle.key = self.key(&self.workflow.steps[place]);
        bundle.advise();
        self.stage.record_checkpoint(&bundle).await?;
        self.board.settle(place, end_of(&bundle));
        self.bundles[place] = Some(bundle);
        Ok(())
    }

    async fn finish(&mut self) -> Result<Finished, Report> {
        let halt = self.board.halted().cloned();
        let is_refused = |bundle: &Bundle| bundle.reason.as_deref() == Some(SUBAGENT_LIMIT);
        let has_met_limit = self.bundles.iter().flatten().any(is_refused);
        let outcome = Outcome::of(self.workflow, &self.board.ends(), halt.as_ref(), has_met_limit);
        let finished = Finished {
            run: self.stage.run.clone(),
            session_id: self.stage.family.session().id().clone(),
            workflow: Arc::clone(self.workflow),
            outcome,
            halt,
            bundles: self.bundles.iter_mut().filter_map(Option::take).collect(),
            waves: std::mem::take(&mut self.waves),
            reused: std::mem::take(&mut self.reused),
            children: self.stage.children().clone(),
        };
        self.stage.record(WorkflowEventKind::Finished, None, finished.facts()).await?;
        Ok(finished)
    }

    /// The digest of a step and of what earlier steps hand to it; a resumed run reuses its bundle while it is the same.
    fn key(&self, step: &Step) -> String {
        let handed: Vec<_> = step
            .depends_on
            .iter()
            .filter_map(|id| self.bundle_of(id).map(Bundle::essence))
            .collect();
        digest(&json!({ "step": step, "handed": handed }))
    }

    fn bundle_of(&self, id: &str) -> Option<&Bundle> {
        let place = self.workflow.steps.iter().position(|step| step.id == id)?;
        self.bundles[place].as_ref()
    }

    fn inputs(&self, step: &Step, wave: u32) -> Inputs {
        let before = step.depends_on.iter().filter_map(|id| self.bundle_of(id)).cloned().collect();
        Inputs {
            workflow_name: self.workflow.name.clone(),
            wave,
            needs: self.board.needs(step).unwrap_or_default(),
            before,
        }
    }
}

/// Refuses a budget in dollars that cannot be enforced, because a model has no price.
fn check_prices(workflow: &Workflow, base: &Settings) -> Result<(), Report> {
    let asking = workflow.steps.iter().filter(|step| step.apply.is_none());
    let mut models = asking.map(|step| step.model.as_ref().unwrap_or(&base.model));
    let unknown = models.find(|model| base.budget.prices().of(model).is_none());
    match unknown.filter(|_| workflow.budget.cost_usd.is_some()) {
        Some(model) => Err(unpriced(model, RUN_COST)),
        None => Ok(()),
    }
}

/// Sleeps until a moment; returns at once without one.
async fn until(moment: Option<Instant>) {
    if let Some(moment) = moment {
        tokio::time::sleep_until(moment).await;
    }
}

/// What the scheduler needs to know of a bundle.
fn end_of(bundle: &Bundle) -> End {
    End {
        readiness: bundle.checkpoint_status,
        output: bundle.output().cloned(),
        verdict: bundle.verdict(),
    }
}

/// The write set of a step as bounds. A set that cannot be used, which validation refuses, allows nothing.
fn set_of(step: &Step) -> Bounds {
    let mut bounds = Bounds::none();
    let deny = if step.write_set.is_empty() { vec!["**".to_owned()] } else { Vec::new() };
    let globs = WriteGlobs { allow: step.write_set.clone(), deny };
    if bounds.narrow(&globs).is_err() {
        bounds.narrow(&WriteGlobs { allow: Vec::new(), deny: vec!["**".to_owned()] }).ok();
    }
    bounds
}
