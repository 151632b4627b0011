//! The scheduler of a run: which steps may start, which never will, and what follows when a step ends.
//!
//! The scheduler is pure: it knows neither time nor children. Ties are decided by the order of the file, so the same
//! results lead to the same starts.

use serde_json::Value;

use super::conflicts::Conflicts;
use super::outcome::{HaltReason, HoldReason, Readiness, permits_dependents};
use super::spec::{OnFailure, Step, Workflow};

/// The verdict of a review that lets the steps behind its gate start.
pub const APPROVE: &str = "approve";

/// The phase of a step.
#[derive(Debug, Clone, PartialEq)]
enum StepPhase {
    Waiting,
    Running,
    Ended(EndedStep),
}

/// The result of an ended step, as far as other steps need it.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedStep {
    pub readiness: Readiness,
    /// Its `output`, if it has one.
    pub output: Option<Value>,
    /// The verdict of its review.
    pub verdict: Option<String>,
}

/// The state of all steps of one run.
#[derive(Debug)]
pub struct Scheduler<'w> {
    workflow: &'w Workflow,
    phases: Vec<StepPhase>,
    /// The indices of the steps that each step depends on.
    dependencies: Vec<Vec<usize>>,
    conflicts: Conflicts,
    halt: Option<HaltReason>,
}

impl<'w> Scheduler<'w> {
    /// A scheduler for a run in which no step has started.
    pub fn new(workflow: &'w Workflow) -> Self {
        let place = |id: &String| workflow.steps.iter().position(|step| step.id == *id);
        let dependencies = workflow
            .steps
            .iter()
            .map(|step| step.depends_on.iter().filter_map(place).collect())
            .collect();
        let phases = vec![StepPhase::Waiting; workflow.steps.len()];
        let conflicts = Conflicts::new(workflow);
        Self { workflow, phases, dependencies, conflicts, halt: None }
    }

    /// The next step to start, in the order of the file; it counts as running from now on.
    pub fn start_next(&mut self) -> Option<usize> {
        if self.halt.is_some()
            || self.running_steps().count() >= self.workflow.limits.max_concurrency
        {
            return None;
        }
        let next = (0..self.phases.len()).find(|place| self.may_start(*place))?;
        self.phases[next] = StepPhase::Running;
        Some(next)
    }

    /// The next step that will never start, and why; the caller ends it as held.
    pub fn next_held(&self) -> Option<(usize, HoldReason)> {
        let waiting = (0..self.phases.len()).filter(|place| self.is_waiting(*place));
        if let Some(halt) = &self.halt {
            return waiting.map(|place| (place, HoldReason::Halted(halt.clone()))).next();
        }
        let mut waiting = waiting;
        waiting.find_map(|place| self.find_hold_reason(place).map(|held| (place, held)))
    }

    /// Records the result of a step, and halts the run if the step's `on_failure` is `abort`.
    pub fn record_result(&mut self, place: usize, end: EndedStep) {
        let step = &self.workflow.steps[place];
        let is_ready = end.readiness == Readiness::CheckpointReady;
        self.phases[place] = StepPhase::Ended(end);
        if !is_ready && step.on_failure == OnFailure::Abort {
            self.halt(HaltReason::Aborted(step.id.clone()));
        }
    }

    /// Stops starting steps; the first reason is kept.
    pub fn halt(&mut self, why: HaltReason) {
        self.halt.get_or_insert(why);
    }

    /// Why no more steps are started, if so.
    pub fn halt_reason(&self) -> Option<&HaltReason> {
        self.halt.as_ref()
    }

    /// Whether every step has ended.
    pub fn has_ended(&self) -> bool {
        self.phases.iter().all(|phase| matches!(phase, StepPhase::Ended(_)))
    }

    /// The indices of the running steps.
    pub fn running_steps(&self) -> impl Iterator<Item = usize> {
        let is_running = |phase: &StepPhase| *phase == StepPhase::Running;
        let places = self.phases.iter().enumerate();
        places.filter(move |(_, phase)| is_running(phase)).map(|(place, _)| place)
    }

    /// The readiness of each step, once all have ended.
    pub fn step_readiness(&self) -> Vec<Readiness> {
        let end = |phase: &StepPhase| match phase {
            StepPhase::Ended(end) => end.readiness,
            StepPhase::Waiting | StepPhase::Running => Readiness::Held,
        };
        self.phases.iter().map(end).collect()
    }

    /// The values that a step `needs` from earlier steps, by name.
    pub fn resolve_needs(&self, step: &Step) -> Result<Vec<(String, Value)>, HoldReason> {
        let find = |(name, need): (&String, &super::spec::Need)| {
            let missing = || HoldReason::Need { name: name.clone(), step: need.step.clone() };
            let end = self.find_result(&need.step).ok_or_else(missing)?;
            let output = end.output.as_ref().ok_or_else(missing)?;
            let value = output.pointer(&need.pointer).ok_or_else(missing)?;
            Ok((name.clone(), value.clone()))
        };
        step.needs.iter().map(find).collect()
    }

    fn is_waiting(&self, place: usize) -> bool {
        self.phases[place] == StepPhase::Waiting
    }

    fn find_result(&self, id: &str) -> Option<&EndedStep> {
        let place = self.workflow.steps.iter().position(|step| step.id == id)?;
        match &self.phases[place] {
            StepPhase::Ended(end) => Some(end),
            StepPhase::Waiting | StepPhase::Running => None,
        }
    }

    fn have_ended(&self, places: &[usize]) -> bool {
        places.iter().all(|place| matches!(self.phases[*place], StepPhase::Ended(_)))
    }

    fn may_start(&mut self, place: usize) -> bool {
        if !self.is_waiting(place)
            || !self.have_ended(&self.dependencies[place])
            || self.find_hold_reason(place).is_some()
        {
            return false;
        }
        let running: Vec<usize> = self.running_steps().collect();
        !running.into_iter().any(|other| self.conflicts.has_conflict(place, other))
    }

    /// Why a step will never start, if that is known already.
    fn find_hold_reason(&self, place: usize) -> Option<HoldReason> {
        let step = &self.workflow.steps[place];
        let stuck = |before: &&usize| match &self.phases[**before] {
            StepPhase::Ended(end) => {
                !permits_dependents(&self.workflow.steps[**before], end.readiness)
            }
            StepPhase::Waiting | StepPhase::Running => false,
        };
        let stuck: Vec<String> = self.dependencies[place]
            .iter()
            .filter(stuck)
            .map(|before| self.workflow.steps[*before].id.clone())
            .collect();
        if !stuck.is_empty() {
            return Some(HoldReason::Dependencies(stuck));
        }
        if let Some(source) = &step.apply
            && let Some(end) = self.find_result(source)
            && end.readiness != Readiness::CheckpointReady
        {
            // Even with `on_failure: continue`, changes of a step that is not ready are never merged.
            return Some(HoldReason::Dependencies(vec![source.clone()]));
        }
        if let Some(gate) = &step.gate
            && let Some(end) = self.find_result(gate)
        {
            let is_open = end.readiness == Readiness::CheckpointReady
                && end.verdict.as_deref() == Some(APPROVE);
            if !is_open {
                let verdict = end.verdict.clone().unwrap_or_else(|| "nothing".to_owned());
                return Some(HoldReason::Gate { step: gate.clone(), verdict });
            }
        }
        if self.have_ended(&self.dependencies[place]) {
            self.resolve_needs(step).err()
        } else {
            None
        }
    }
}
