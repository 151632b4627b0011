//! Resumes a run: reuses steps that have finished with the same inputs, and rolls back those that started without
//! finishing.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{RunDriver, heartbeat, step_result};
use crate::agent::workflow::checkpoint::CheckpointBundle;
use crate::agent::workflow::outcome::{Readiness, StepStatus};
use crate::agent::workflow::replay::RecordedRun;
use crate::agent::workflow::scheduler::APPROVE;
use crate::agent::workflow::spec::Step;
use crate::base::error::Report;
use crate::base::text::bound_text;
use crate::record::event::WorkflowEventKind;

/// How much of a task is repeated in the `resumed` Event, in bytes.
const MAX_TASK_BYTES: usize = 200;

/// The steps of a run whose bundles are reused, by index.
struct ReusedSteps<'w> {
    places: HashMap<&'w str, usize>,
    is_reused: Vec<bool>,
}

impl ReusedSteps<'_> {
    fn contains(&self, id: &str) -> bool {
        self.places.get(id).is_some_and(|place| self.is_reused[*place])
    }
}

/// A step in the `resumed` Event, for presenters.
fn announce_step(step: &Step) -> Value {
    let first = step.task.as_deref().and_then(|task| task.lines().next());
    json!({ "id": step.id, "task": first.map(|line| bound_text(line, MAX_TASK_BYTES)), "apply": step.apply })
}

impl RunDriver<'_> {
    /// Resumes a run that was interrupted, or ended incomplete.
    pub(super) async fn resume_from(&mut self, past: &RecordedRun) -> Result<(), Report> {
        self.context.recover_interrupted_merge().await?;
        let workflow = self.workflow.clone();
        let places = workflow.steps.iter().enumerate();
        let places = places.map(|(place, step)| (step.id.as_str(), place)).collect();
        let mut kept = ReusedSteps { places, is_reused: vec![false; workflow.steps.len()] };
        self.reuse_valid_bundles(past, &mut kept);
        self.drop_sources_without_files(&mut kept);
        let reusable: Vec<usize> =
            (0..workflow.steps.len()).filter(|place| kept.is_reused[*place]).collect();
        let ids: Vec<&str> =
            reusable.iter().map(|place| workflow.steps[*place].id.as_str()).collect();
        // A presenter may not have seen the Events of the earlier parts.
        let steps: Vec<_> = workflow.steps.iter().map(announce_step).collect();
        let facts = json!({
            "workflow_name": workflow.name,
            "steps": steps,
            "reused": ids,
            "spec_sha256": past.spec_sha256,
        });
        self.context.record(WorkflowEventKind::Resumed, None, facts).await?;
        for place in &reusable {
            if let Some(bundle) = &self.bundles[*place] {
                self.scheduler.record_result(*place, step_result(bundle));
            }
        }
        self.reused = reusable;
        self.roll_back_unfinished(past, &kept).await
    }

    /// Reuses the bundles that are still valid: those with the same key whose dependencies are all reused.
    fn reuse_valid_bundles(&mut self, past: &RecordedRun, kept: &mut ReusedSteps<'_>) {
        let mut waiting: Vec<usize> = (0..self.workflow.steps.len()).collect();
        loop {
            let before = waiting.len();
            let mut later = Vec::new();
            for place in waiting {
                let step = &self.workflow.steps[place];
                let Some(bundle) = &past.steps[place].bundle else { continue };
                if !step.depends_on.iter().all(|id| kept.contains(id)) {
                    later.push(place);
                } else if self.is_reusable(place, bundle) {
                    self.bundles[place] = Some(bundle.clone());
                    kept.is_reused[place] = true;
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
    fn is_reusable(&self, place: usize, bundle: &CheckpointBundle) -> bool {
        let step = &self.workflow.steps[place];
        // A review that did not approve runs again, because its objections may have been dealt with.
        let is_gate = self.workflow.steps.iter().any(|own| own.gate.as_ref() == Some(&step.id));
        let keeps_closed = is_gate && bundle.verdict().as_deref() != Some(APPROVE);
        bundle.checkpoint_status == Readiness::CheckpointReady
            && !keeps_closed
            && bundle.key == self.reuse_key(step)
    }

    /// Drops bundles of steps whose changes are still to be merged but no longer exist, and the bundles that depend on
    /// them.
    fn drop_sources_without_files(&mut self, kept: &mut ReusedSteps<'_>) {
        let steps = &self.workflow.steps;
        loop {
            // A merge that runs again needs its source.
            let mut is_wanted = vec![false; steps.len()];
            for (place, step) in steps.iter().enumerate() {
                let source = step.apply.as_deref().filter(|_| !kept.is_reused[place]);
                if let Some(source) = source.and_then(|source| kept.places.get(source)) {
                    is_wanted[*source] = true;
                }
            }
            let is_lost = |place: &usize| {
                let bundle = self.bundles[*place].as_ref();
                let has_files = || bundle.is_some_and(|own| self.context.has_own_workspace(own));
                let is_built_on_lost = !steps[*place].depends_on.iter().all(|id| kept.contains(id));
                kept.is_reused[*place] && (is_built_on_lost || is_wanted[*place] && !has_files())
            };
            let lost: Vec<usize> = (0..steps.len()).filter(is_lost).collect();
            if lost.is_empty() {
                return;
            }
            for place in lost {
                kept.is_reused[place] = false;
                self.bundles[place] = None;
            }
        }
    }

    /// Rolls back what the steps that are not reused changed in the shared Workspace; the newest first, because each
    /// built on what earlier ones had left.
    async fn roll_back_unfinished(
        &mut self,
        past: &RecordedRun,
        kept: &ReusedSteps<'_>,
    ) -> Result<(), Report> {
        let mut begun: Vec<usize> =
            (0..past.steps.len()).filter(|place| !kept.is_reused[*place]).collect();
        begun.sort_by_key(|place| std::cmp::Reverse(past.steps[*place].start_order));
        for place in begun {
            let (step, was) = (&self.workflow.steps[place], &past.steps[place]);
            let source = step.apply.as_deref().and_then(|id| kept.places.get(id)).copied();
            let taken = match source {
                // A step that never started has merged nothing.
                Some(_) if was.start_order == 0 => continue,
                Some(_) => self.context.roll_back_merges(step).await?,
                None if was.children.is_empty() || !step.writes_shared() => continue,
                None => {
                    let until =
                        heartbeat::last_heartbeat(&self.context.session_folder, &past.id, was.part);
                    self.context.roll_back_step(step, &was.children, until).await?
                }
            };
            let Err(report) = taken else { continue };
            match source {
                // The source is reused: it is merged once more, into the files as they are now.
                Some(source) if kept.is_reused[source] => {}
                // Otherwise the source would find its own changes, and make them twice.
                Some(source) => {
                    self.end_not_rolled_back(source, &report).await?;
                    self.end_not_rolled_back(place, &report).await?;
                }
                None => self.end_not_rolled_back(place, &report).await?,
            }
        }
        Ok(())
    }

    /// Ends a step whose changes could not be rolled back, so that it cannot run again.
    async fn end_not_rolled_back(&mut self, place: usize, report: &Report) -> Result<(), Report> {
        if self.bundles[place].is_some() {
            return Ok(());
        }
        let id = &self.workflow.steps[place].id;
        let summary =
            format!("its unfinished changes could not be rolled back: {}", report.message);
        let mut bundle =
            CheckpointBundle::new(id, StepStatus::Failed, Readiness::NeedsOrchestrator, summary);
        bundle.reason = Some("not_taken_back".to_owned());
        bundle.known_limitations.push("not_taken_back".to_owned());
        self.record_result(place, bundle).await
    }
}
