//! Resumes a run: reuses steps that have finished with the same inputs, and rolls back those that started without
//! finishing.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Run, end_of, pulse};
use crate::agent::workflow::board::APPROVE;
use crate::agent::workflow::checkpoint::Bundle;
use crate::agent::workflow::fold::Past;
use crate::agent::workflow::outcome::{Readiness, StepStatus};
use crate::agent::workflow::spec::Step;
use crate::base::error::Report;
use crate::base::text::bound;
use crate::record::event::WorkflowEventKind;

/// How much of a task is repeated in the `resumed` Event, in bytes.
const TASK: usize = 200;

/// The steps of a run whose bundles are reused, by index.
struct Kept<'w> {
    places: HashMap<&'w str, usize>,
    is_kept: Vec<bool>,
}

impl Kept<'_> {
    fn has(&self, id: &str) -> bool {
        self.places.get(id).is_some_and(|place| self.is_kept[*place])
    }
}

/// A step in the `resumed` Event, for presenters.
fn told(step: &Step) -> Value {
    let first = step.task.as_deref().and_then(|task| task.lines().next());
    json!({ "id": step.id, "task": first.map(|line| bound(line, TASK)), "apply": step.apply })
}

impl Run<'_> {
    /// Resumes a run that was interrupted, or ended incomplete.
    pub(super) async fn take_up(&mut self, past: &Past) -> Result<(), Report> {
        self.stage.take_back_half_a_merge().await?;
        let workflow = self.workflow.clone();
        let places = workflow.steps.iter().enumerate();
        let places = places.map(|(place, step)| (step.id.as_str(), place)).collect();
        let mut kept = Kept { places, is_kept: vec![false; workflow.steps.len()] };
        self.keep_what_counts(past, &mut kept);
        self.drop_sources_without_files(&mut kept);
        let reusable: Vec<usize> =
            (0..workflow.steps.len()).filter(|place| kept.is_kept[*place]).collect();
        let ids: Vec<&str> =
            reusable.iter().map(|place| workflow.steps[*place].id.as_str()).collect();
        // A presenter may not have seen the Events of the earlier parts.
        let steps: Vec<_> = workflow.steps.iter().map(told).collect();
        let facts = json!({
            "workflow_name": workflow.name,
            "steps": steps,
            "reused": ids,
            "spec_sha256": past.spec_sha256,
        });
        self.stage.record(WorkflowEventKind::Resumed, None, facts).await?;
        for place in &reusable {
            if let Some(bundle) = &self.bundles[*place] {
                self.board.settle(*place, end_of(bundle));
            }
        }
        self.reused = reusable;
        self.take_back_the_rest(past, &kept).await
    }

    /// Reuses the bundles that are still valid: those with the same key whose dependencies are all reused.
    fn keep_what_counts(&mut self, past: &Past, kept: &mut Kept<'_>) {
        let mut waiting: Vec<usize> = (0..self.workflow.steps.len()).collect();
        loop {
            let before = waiting.len();
            let mut later = Vec::new();
            for place in waiting {
                let step = &self.workflow.steps[place];
                let Some(bundle) = &past.steps[place].bundle else { continue };
                if !step.depends_on.iter().all(|id| kept.has(id)) {
                    later.push(place);
                } else if self.is_reusable(place, bundle) {
                    self.bundles[place] = Some(bundle.clone());
                    kept.is_kept[place] = true;
                }
            }
            // The remaining steps depend on steps that are not reused.
            if later.len() == before || later.is_empty() {
                return;
            }
            waiting = later;
        }
    }

    /// Whether a bundle can be reused, given that those of its dependencies are.
    fn is_reusable(&self, place: usize, bundle: &Bundle) -> bool {
        let step = &self.workflow.steps[place];
        // A review that did not approve runs again, because its objections may have been dealt with.
        let is_gate = self.workflow.steps.iter().any(|own| own.gate.as_ref() == Some(&step.id));
        let keeps_closed = is_gate && bundle.verdict().as_deref() != Some(APPROVE);
        bundle.checkpoint_status == Readiness::CheckpointReady
            && !keeps_closed
            && bundle.key == self.key(step)
    }

    /// Drops bundles of steps whose changes are still to be merged but no longer exist, and the bundles that depend on
    /// them.
    fn drop_sources_without_files(&mut self, kept: &mut Kept<'_>) {
        let steps = &self.workflow.steps;
        loop {
            // A merge that runs again needs its source.
            let mut is_wanted = vec![false; steps.len()];
            for (place, step) in steps.iter().enumerate() {
                let source = step.apply.as_deref().filter(|_| !kept.is_kept[place]);
                if let Some(source) = source.and_then(|source| kept.places.get(source)) {
                    is_wanted[*source] = true;
                }
            }
            let is_lost = |place: &usize| {
                let bundle = self.bundles[*place].as_ref();
                let has_files = || bundle.is_some_and(|own| self.stage.has_files(own));
                let is_built_on_lost = !steps[*place].depends_on.iter().all(|id| kept.has(id));
                kept.is_kept[*place] && (is_built_on_lost || is_wanted[*place] && !has_files())
            };
            let lost: Vec<usize> = (0..steps.len()).filter(is_lost).collect();
            if lost.is_empty() {
                return;
            }
            for place in lost {
                kept.is_kept[place] = false;
                self.bundles[place] = None;
            }
        }
    }

    /// Rolls back what the steps that are not reused changed in the shared Workspace; the newest first, because each
    /// built on what earlier ones had left.
    async fn take_back_the_rest(&mut self, past: &Past, kept: &Kept<'_>) -> Result<(), Report> {
        let mut begun: Vec<usize> =
            (0..past.steps.len()).filter(|place| !kept.is_kept[*place]).collect();
        begun.sort_by_key(|place| std::cmp::Reverse(past.steps[*place].turn));
        for place in begun {
            let (step, was) = (&self.workflow.steps[place], &past.steps[place]);
            let source = step.apply.as_deref().and_then(|id| kept.places.get(id)).copied();
            let taken = match source {
                // A step that never started has merged nothing.
                Some(_) if was.turn == 0 => continue,
                Some(_) => self.stage.take_back_merges(step).await?,
                None if was.children.is_empty() || !step.writes_shared() => continue,
                None => {
                    let until = pulse::last(&self.stage.folder, &past.id, was.part);
                    self.stage.take_back(step, &was.children, until).await?
                }
            };
            let Err(report) = taken else { continue };
            match source {
                // The source is reused: it is merged once more, into the files as they are now.
                Some(source) if kept.is_kept[source] => {}
                // Otherwise the source would find its own changes, and make them twice.
                Some(source) => {
                    self.give_up(source, &report).await?;
                    self.give_up(place, &report).await?;
                }
                None => self.give_up(place, &report).await?,
            }
        }
        Ok(())
    }

    /// Ends a step whose changes could not be rolled back, so that it cannot run again.
    async fn give_up(&mut self, place: usize, report: &Report) -> Result<(), Report> {
        if self.bundles[place].is_some() {
            return Ok(());
        }
        let id = &self.workflow.steps[place].id;
        let summary =
            format!("its unfinished changes could not be rolled back: {}", report.message);
        let mut bundle = Bundle::new(id, StepStatus::Failed, Readiness::NeedsOrchestrator, summary);
        bundle.reason = Some("not_taken_back".to_owned());
        bundle.known_limitations.push("not_taken_back".to_owned());
        self.decide(place, bundle).await
    }
}
