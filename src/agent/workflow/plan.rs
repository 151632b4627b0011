//! The waves of a Workflow: what a run would do if every step succeeded and took equally long, and why steps wait.

use std::collections::HashMap;

use super::conflicts::Conflicts;
use super::spec::Workflow;

/// The waves of a Workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowPlan {
    /// Indices of steps, wave by wave, each in the order of the file.
    pub waves: Vec<Vec<usize>>,
    /// Why each step does not start one wave earlier; `None` in the first wave.
    pub waits: Vec<Option<WaitReason>>,
    /// Whether the sets were too complex to compare, so that some steps may wait unnecessarily.
    pub is_approximate: bool,
}

/// Why a step does not start yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The step depends on the step with this index.
    After(usize),
    /// The sets of the step conflict with those of the step with this index.
    Conflict(usize),
    /// `max_concurrency` steps run already.
    NoSlot,
}

/// The waves of a Workflow, as indices of its steps.
pub fn plan_waves(workflow: &Workflow) -> Vec<Vec<usize>> {
    WorkflowPlan::new(workflow).waves
}

impl WorkflowPlan {
    /// Plans greedily in the order of the file, as a run does.
    pub fn new(workflow: &Workflow) -> Self {
        let steps = &workflow.steps;
        let places: HashMap<&str, usize> =
            steps.iter().enumerate().map(|(place, step)| (step.id.as_str(), place)).collect();
        let mut conflicts = Conflicts::new(workflow);
        let mut wave_of: Vec<Option<usize>> = vec![None; steps.len()];
        let mut waits: Vec<Option<WaitReason>> = vec![None; steps.len()];
        let mut waves: Vec<Vec<usize>> = Vec::new();
        let mut pending: Vec<usize> = (0..steps.len()).collect();
        while !pending.is_empty() {
            let mut picked: Vec<usize> = Vec::new();
            let mut later = Vec::new();
            for place in pending {
                let names = steps[place].depends_on.iter();
                let missing = names
                    .filter_map(|id| places.get(id.as_str()).copied())
                    .find(|other| wave_of[*other].is_none());
                let wait = if let Some(other) = missing {
                    Some(WaitReason::After(other))
                } else if picked.len() >= workflow.limits.max_concurrency {
                    Some(WaitReason::NoSlot)
                } else {
                    let mut in_the_way = |other: &&usize| conflicts.has_conflict(place, **other);
                    picked
                        .iter()
                        .find(|other| in_the_way(other))
                        .map(|other| WaitReason::Conflict(*other))
                };
                match wait {
                    Some(wait) => {
                        waits[place] = Some(wait);
                        later.push(place);
                    }
                    None => picked.push(place),
                }
            }
            // A spec that was read has no cycles; this only guarantees that the loop ends.
            if picked.is_empty() {
                break;
            }
            for place in &picked {
                wave_of[*place] = Some(waves.len());
            }
            waves.push(picked);
            pending = later;
        }
        Self { waves, waits, is_approximate: conflicts.is_approximate() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::spec::SpecContext;
    use super::*;
    use crate::settings::config::SubagentLimits;

    fn plan(value: &Value) -> WorkflowPlan {
        let context = SpecContext::with_built_in_roles(SubagentLimits::default());
        WorkflowPlan::new(&Workflow::from_json(value, &context).unwrap())
    }

    #[test]
    fn independent_steps_run_together_and_conflicting_ones_in_turn() {
        let planned = plan(&json!({"id": "x", "limits": {"max_concurrency": 3}, "steps": [
            {"id": "a", "task": "x", "role": "explorer"},
            {"id": "b", "task": "x", "workspace": "shared", "read_set": [], "write_set": "src/**"},
            {"id": "c", "task": "x", "workspace": "shared", "read_set": [], "write_set": "src/lib.rs"},
            {"id": "d", "task": "x", "workspace": "shared", "read_set": [], "write_set": "docs/**", "depends_on": "a"},
            {"id": "e", "task": "x", "role": "explorer", "read_set": "tests/**"},
            {"id": "f", "task": "x", "role": "explorer", "read_set": "tests/**"},
            {"id": "g", "task": "x", "role": "explorer", "read_set": "tests/**"},
        ]}));
        assert_eq!(planned.waves, [vec![0, 4, 5], vec![1, 3, 6], vec![2]]);
        assert_eq!(
            planned.waits,
            [
                None,
                Some(WaitReason::Conflict(0)),
                Some(WaitReason::Conflict(1)),
                Some(WaitReason::After(0)),
                None,
                None,
                Some(WaitReason::NoSlot),
            ]
        );
    }
}
