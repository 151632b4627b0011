//! The scheduler of a run: which steps may start, which never will, and what follows when a step ends.
//!
//! Pure: it knows neither time nor children. Ties are decided by the order of the file, so the same results lead
//! to the same starts.

use serde_json::Value;

use super::outcome::{Halt, Held, Readiness, lets_on};
use super::sets::Conflicts;
use super::spec::{OnFailure, Step, Workflow};

/// The verdict of a review that lets the steps behind its gate start.
pub const APPROVE: &str = "approve";

/// The phase of a step.
#[derive(Debug, Clone, PartialEq)]
enum Standing {
    Waiting,
    Running,
    Over(End),
}

/// What other steps need to know of a step that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    pub readiness: Readiness,
    /// Its `output`, if it has one.
    pub output: Option<Value>,
    /// The verdict of its review.
    pub verdict: Option<String>,
}

/// The state of all steps of one run.
#[derive(Debug)]
pub struct Board<'w> {
    workflow: &'w Workflow,
    standings: Vec<Standing>,
    /// The indices of the steps that each step depends on.
    before: Vec<Vec<usize>>,
    conflicts: Conflicts,
    halt: Option<Halt>,
}

impl<'w> Board<'w> {
    /// A scheduler for a run in which no step has started.
    pub fn new(workflow: &'w Workflow) -> Self {
        let place = |id: &String| workflow.steps.iter().position(|step| step.id == *id);
        let before = workflow
            .steps
            .iter()
            .map(|step| step.depends_on.iter().filter_map(place).collect())
            .collect();
        let standings = vec![Standing::Waiting; workflow.steps.len()];
        let conflicts = Conflicts::of(workflow);
        Self { workflow, standings, before, conflicts, halt: None }
    }

    /// The next step to start, in the order of the file; it counts as running from now on.
    pub fn start_next(&mut self) -> Option<usize> {
        if self.halt.is_some() || self.running().count() >= self.workflow.limits.max_concurrency {
            return None;
        }
        let next = (0..self.standings.len()).find(|place| self.may_start(*place))?;
        self.standings[next] = Standing::Running;
        Some(next)
    }

    /// The next step that will never start, and why; the caller ends it as held.
    pub fn next_held(&self) -> Option<(usize, Held)> {
        let waiting = (0..self.standings.len()).filter(|place| self.is_waiting(*place));
        if let Some(halt) = &self.halt {
            return waiting.map(|place| (place, Held::Halted(halt.clone()))).next();
        }
        let mut waiting = waiting;
        waiting.find_map(|place| self.hindrance(place).map(|held| (place, held)))
    }

    /// Records the result of a step, and halts the run if the step's `on_failure` is `abort`.
    pub fn settle(&mut self, place: usize, end: End) {
        let step = &self.workflow.steps[place];
        let is_ready = end.readiness == Readiness::CheckpointReady;
        self.standings[place] = Standing::Over(end);
        if !is_ready && step.on_failure == OnFailure::Abort {
            self.halt(Halt::Aborted(step.id.clone()));
        }
    }

    /// Stops starting steps; the first reason is kept.
    pub fn halt(&mut self, why: Halt) {
        self.halt.get_or_insert(why);
    }

    /// Why no more steps are started, if so.
    pub fn halted(&self) -> Option<&Halt> {
        self.halt.as_ref()
    }

    /// Whether every step has ended.
    pub fn is_over(&self) -> bool {
        self.standings.iter().all(|standing| matches!(standing, Standing::Over(_)))
    }

    /// The indices of the running steps.
    pub fn running(&self) -> impl Iterator<Item = usize> {
        let is_running = |standing: &Standing| *standing == Standing::Running;
        let places = self.standings.iter().enumerate();
        places.filter(move |(_, standing)| is_running(standing)).map(|(place, _)| place)
    }

    /// The readiness of each step, once all have ended.
    pub fn ends(&self) -> Vec<Readiness> {
        let end = |standing: &Standing| match standing {
            Standing::Over(end) => end.readiness,
            Standing::Waiting | Standing::Running => Readiness::Held,
        };
        self.standings.iter().map(end).collect()
    }

    /// The values that a step `needs` from earlier steps, by name.
    pub fn needs(&self, step: &Step) -> Result<Vec<(String, Value)>, Held> {
        let find = |(name, need): (&String, &super::spec::Need)| {
            let missing = || Held::Need { name: name.clone(), step: need.step.clone() };
            let end = self.end_of(&need.step).ok_or_else(missing)?;
            let output = end.output.as_ref().ok_or_else(missing)?;
            let value = output.pointer(&need.pointer).ok_or_else(missing)?;
            Ok((name.clone(), value.clone()))
        };
        step.needs.iter().map(find).collect()
    }

    fn is_waiting(&self, place: usize) -> bool {
        self.standings[place] == Standing::Waiting
    }

    fn end_of(&self, id: &str) -> Option<&End> {
        let place = self.workflow.steps.iter().position(|step| step.id == id)?;
        match &self.standings[place] {
            Standing::Over(end) => Some(end),
            Standing::Waiting | Standing::Running => None,
        }
    }

    fn are_over(&self, places: &[usize]) -> bool {
        places.iter().all(|place| matches!(self.standings[*place], Standing::Over(_)))
    }

    fn may_start(&mut self, place: usize) -> bool {
        if !self.is_waiting(place)
            || !self.are_over(&self.before[place])
            || self.hindrance(place).is_some()
        {
            return false;
        }
        let running: Vec<usize> = self.running().collect();
        !running.into_iter().any(|other| self.conflicts.between(place, other))
    }

    /// Why a step will never start, if that is known already.
    fn hindrance(&self, place: usize) -> Option<Held> {
        let step = &self.workflow.steps[place];
        let stuck = |before: &&usize| match &self.standings[**before] {
            Standing::Over(end) => !lets_on(&self.workflow.steps[**before], end.readiness),
            Standing::Waiting | Standing::Running => false,
        };
        let stuck: Vec<String> = self.before[place]
            .iter()
            .filter(stuck)
            .map(|before| self.workflow.steps[*before].id.clone())
            .collect();
        if !stuck.is_empty() {
            return Some(Held::Dependencies(stuck));
        }
        if let Some(source) = &step.apply
            && let Some(end) = self.end_of(source)
            && end.readiness != Readiness::CheckpointReady
        {
            // Even with `on_failure: continue`, changes of a step that is not ready are never merged.
            return Some(Held::Dependencies(vec![source.clone()]));
        }
        if let Some(gate) = &step.gate
            && let Some(end) = self.end_of(gate)
        {
            let is_open = end.readiness == Readiness::CheckpointReady
                && end.verdict.as_deref() == Some(APPROVE);
            if !is_open {
                let verdict = end.verdict.clone().unwrap_or_else(|| "nothing".to_owned());
                return Some(Held::Gate { step: gate.clone(), verdict });
            }
        }
        if self.are_over(&self.before[place]) { self.needs(step).err() } else { None }
    }
}
