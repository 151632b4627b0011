//! The board of a run: which step may start, which one never will, and what follows from an end.
//!
//! Pure: it knows neither time nor children. The order of the file decides whenever something else
//! does not, so that the same ends lead to the same starts.

use serde_json::Value;

use super::outcome::{Halt, Held, Readiness, lets_on};
use super::sets::Conflicts;
use super::spec::{OnFailure, Step, Workflow};

/// The verdict that opens a gate.
pub const APPROVE: &str = "approve";

/// How far a step is.
#[derive(Debug, Clone, PartialEq)]
enum Standing {
    Waiting,
    Running,
    Over(End),
}

/// What the others need to know of a step that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    pub readiness: Readiness,
    /// What it delivered.
    pub output: Option<Value>,
    /// What its review came to.
    pub verdict: Option<String>,
}

/// The state of one run.
#[derive(Debug)]
pub struct Board<'w> {
    workflow: &'w Workflow,
    standings: Vec<Standing>,
    /// The places of what each step depends on.
    before: Vec<Vec<usize>>,
    conflicts: Conflicts,
    halt: Option<Halt>,
}

impl<'w> Board<'w> {
    /// Nothing has started.
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

    /// A step that will never start, and why. It is to be settled as held.
    pub fn next_held(&self) -> Option<(usize, Held)> {
        let waiting = (0..self.standings.len()).filter(|place| self.is_waiting(*place));
        if let Some(halt) = &self.halt {
            return waiting.map(|place| (place, Held::Halted(halt.clone()))).next();
        }
        let mut waiting = waiting;
        waiting.find_map(|place| self.hindrance(place).map(|held| (place, held)))
    }

    /// A step is over.
    pub fn settle(&mut self, place: usize, end: End) {
        let step = &self.workflow.steps[place];
        let is_ready = end.readiness == Readiness::CheckpointReady;
        self.standings[place] = Standing::Over(end);
        if !is_ready && step.on_failure == OnFailure::Abort {
            self.halt(Halt::Aborted(step.id.clone()));
        }
    }

    /// Nothing starts any more; the first reason stays.
    pub fn halt(&mut self, why: Halt) {
        self.halt.get_or_insert(why);
    }

    /// Why nothing starts any more.
    pub fn halted(&self) -> Option<&Halt> {
        self.halt.as_ref()
    }

    /// Whether every step is over.
    pub fn is_over(&self) -> bool {
        self.standings.iter().all(|standing| matches!(standing, Standing::Over(_)))
    }

    /// The places of those that run.
    pub fn running(&self) -> impl Iterator<Item = usize> {
        let is_running = |standing: &Standing| *standing == Standing::Running;
        let places = self.standings.iter().enumerate();
        places.filter(move |(_, standing)| is_running(standing)).map(|(place, _)| place)
    }

    /// How each step ended, once all did.
    pub fn ends(&self) -> Vec<Readiness> {
        let end = |standing: &Standing| match standing {
            Standing::Over(end) => end.readiness,
            Standing::Waiting | Standing::Running => Readiness::Held,
        };
        self.standings.iter().map(end).collect()
    }

    /// What a step is handed of earlier ones, by name.
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

    /// Why a step will never start, as far as it can be known already.
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
            // Whatever may go on without it: what nobody vouches for is not merged.
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
