//! Going on with a run: what is finished and has the same inputs stays, what was begun and not
//! finished is taken back.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Run, end_of, pulse};
use crate::error::Report;
use crate::event::WorkflowEventKind;
use crate::tool::bound;
use crate::workflow::board::APPROVE;
use crate::workflow::checkpoint::Bundle;
use crate::workflow::fold::Past;
use crate::workflow::outcome::{Readiness, StepStatus};
use crate::workflow::spec::Step;

/// How much of a task is told again, in bytes.
const TASK: usize = 200;

/// Which steps of a run count again, by place.
struct Kept<'w> {
    places: HashMap<&'w str, usize>,
    is_kept: Vec<bool>,
}

impl Kept<'_> {
    fn has(&self, id: &str) -> bool {
        self.places.get(id).is_some_and(|place| self.is_kept[*place])
    }
}

/// What a step is, for whoever draws it.
fn told(step: &Step) -> Value {
    let first = step.task.as_deref().and_then(|task| task.lines().next());
    json!({ "id": step.id, "task": first.map(|line| bound(line, TASK)), "apply": step.apply })
}

impl Run<'_> {
    /// Goes on with a run that was cut off, or ended without being complete.
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
        // Whoever looks on may see nothing of the first part.
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

    /// Keeps what still says what a new run of its step would have to find out. A bundle is worth
    /// something as long as all that it was built on is.
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
            // Whoever is left waits for somebody who does not count.
            if later.len() == before || later.is_empty() {
                return;
            }
            waiting = later;
        }
    }

    /// Whether a bundle counts again, when everything that it was built on does.
    fn is_reusable(&self, place: usize, bundle: &Bundle) -> bool {
        let step = &self.workflow.steps[place];
        // A review that keeps a gate closed is asked again: somebody may have mended what it saw.
        let is_gate = self.workflow.steps.iter().any(|own| own.gate.as_ref() == Some(&step.id));
        let keeps_closed = is_gate && bundle.verdict().as_deref() != Some(APPROVE);
        bundle.checkpoint_status == Readiness::CheckpointReady
            && !keeps_closed
            && bundle.key == self.key(step)
    }

    /// Changes that are still to be merged must still be there.
    fn drop_sources_without_files(&mut self, kept: &mut Kept<'_>) {
        let steps = &self.workflow.steps;
        loop {
            // A merge that does not count any more wants its source again.
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

    /// Takes back what the others did to the files that all share; the newest first, because each
    /// found what those before it had left.
    async fn take_back_the_rest(&mut self, past: &Past, kept: &Kept<'_>) -> Result<(), Report> {
        let mut begun: Vec<usize> =
            (0..past.steps.len()).filter(|place| !kept.is_kept[*place]).collect();
        begun.sort_by_key(|place| std::cmp::Reverse(past.steps[*place].turn));
        for place in begun {
            let (step, was) = (&self.workflow.steps[place], &past.steps[place]);
            let source = step.apply.as_deref().and_then(|id| kept.places.get(id)).copied();
            let taken = match source {
                // Who never started has merged nothing.
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
                // It is merged once more, against whatever is there now.
                Some(source) if kept.is_kept[source] => {}
                // Else its source would find its own work, and do it twice.
                Some(source) => {
                    self.give_up(source, &report).await?;
                    self.give_up(place, &report).await?;
                }
                None => self.give_up(place, &report).await?,
            }
        }
        Ok(())
    }

    /// A step whose work is still there, and that nobody can begin anew.
    async fn give_up(&mut self, place: usize, report: &Report) -> Result<(), Report> {
        if self.bundles[place].is_some() {
            return Ok(());
        }
        let id = &self.workflow.steps[place].id;
        let summary = format!("what it had begun could not be taken back: {}", report.message);
        let mut bundle = Bundle::new(id, StepStatus::Failed, Readiness::NeedsOrchestrator, summary);
        bundle.reason = Some("not_taken_back".to_owned());
        bundle.known_limitations.push("not_taken_back".to_owned());
        self.decide(place, bundle).await
    }
}
