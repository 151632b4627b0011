//! The graph of a spec's steps: resolves references, rejects cycles, and checks gates, needs and merges.

use std::collections::{BTreeSet, HashMap};

use super::diagnostic::{SpecDiagnostic, child_pointer, quoted};
use super::output;
use super::read::SpecReader;
use super::step::StepDraft;
use super::{Step, StepPosture, WorkspaceMode};

/// The most cycles that are reported.
const MOST_CYCLES: usize = 10;
/// The most flaws that get a suggestion, because each is compared with every name.
const MOST_SUGGESTIONS: usize = 200;
/// The most steps of a long cycle that are named.
const MOST_NAMED: usize = 20;

/// Resolves the references between steps, and reports those that are invalid.
pub fn join_steps(reader: &mut SpecReader<'_>, mut drafts: Vec<StepDraft>) -> Vec<Step> {
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, draft) in drafts.iter().enumerate() {
        let id = &draft.step.id;
        if id.is_empty() {
            continue;
        }
        match places.get(id) {
            Some(first) => {
                let message =
                    format!("the id {} is taken by {}", quoted(id), drafts[*first].pointer);
                reader.add_flaw(child_pointer(&draft.pointer, "id"), message);
            }
            None => {
                places.insert(id.clone(), place);
            }
        }
    }
    let edges = collect_edges(reader, &drafts, &places);
    report_cycles(reader, &drafts, &edges);
    let before: Vec<BTreeSet<usize>> =
        edges.iter().map(|own| own.iter().map(|edge| edge.0).collect()).collect();
    for (place, before) in before.into_iter().enumerate() {
        check_gate(reader, &drafts, place, &places);
        check_needs(reader, &drafts, place, &places);
        resolve_apply(reader, &mut drafts, place, &places);
        drafts[place].step.depends_on =
            before.into_iter().map(|other| drafts[other].step.id.clone()).collect();
    }
    drafts.into_iter().map(|draft| draft.step).collect()
}

/// The dependencies of each step: index of the other step, and pointer to the reference.
fn collect_edges<'d>(
    reader: &mut SpecReader<'_>,
    drafts: &'d [StepDraft],
    places: &HashMap<String, usize>,
) -> Vec<Vec<(usize, &'d str)>> {
    let names: Vec<&str> = drafts.iter().map(|draft| draft.step.id.as_str()).collect();
    let mut all = Vec::new();
    for draft in drafts {
        let mut own: Vec<(usize, &str)> = Vec::new();
        for (id, pointer) in &draft.edges {
            if let Some(place) = places.get(id) {
                own.push((*place, pointer));
                continue;
            }
            let message = format!("there is no step {}", quoted(id));
            let mut flaw = SpecDiagnostic::new(pointer.clone(), message);
            // Thousands of names or suggestions would be useless.
            if reader.flaws.len() < MOST_SUGGESTIONS {
                flaw = flaw.with_accepted(id, &names);
                flaw.accepted.truncate(MOST_NAMED);
            }
            reader.flaws.push(flaw);
        }
        all.push(own);
    }
    all
}

/// Reports cycles of steps that wait for each other.
fn report_cycles(reader: &mut SpecReader<'_>, drafts: &[StepDraft], edges: &[Vec<(usize, &str)>]) {
    let mut is_done = vec![false; drafts.len()];
    for _ in 0..MOST_CYCLES {
        mark_reachable(edges, &mut is_done);
        let Some(mut at) = is_done.iter().position(|done| !done) else { return };
        // Every remaining step depends on a remaining step, so following dependencies leads into a cycle.
        let mut way: Vec<(usize, &str)> = Vec::new();
        let mut seen: HashMap<usize, usize> = HashMap::new();
        while !seen.contains_key(&at) {
            let Some((next, pointer)) = edges[at].iter().find(|edge| !is_done[edge.0]) else {
                return;
            };
            seen.insert(at, way.len());
            way.push((at, pointer));
            at = *next;
        }
        let circle = &way[seen[&at]..];
        // The cycle is named from the step that comes first in the file.
        let first = circle.iter().enumerate().min_by_key(|(_, step)| step.0).map_or(0, |own| own.0);
        let in_turn: Vec<(usize, &str)> =
            circle[first..].iter().chain(&circle[..first]).copied().collect();
        let name = |place: usize| quoted(&drafts[place].step.id);
        let mut names: Vec<String> =
            in_turn.iter().take(MOST_NAMED).map(|step| name(step.0)).collect();
        if in_turn.len() > MOST_NAMED {
            names.push(format!("{} more", in_turn.len() - MOST_NAMED));
        }
        let (start, pointer) = in_turn[0];
        let message = if in_turn.len() == 1 {
            format!("the step {} waits for itself", name(start))
        } else {
            format!("steps wait for each other: {} -> {}", names.join(" -> "), name(start))
        };
        reader.add_flaw(pointer, message);
        for (place, _) in in_turn {
            is_done[place] = true;
        }
    }
}

/// Marks every step that can run when its dependencies are done, in topological order.
fn mark_reachable(edges: &[Vec<(usize, &str)>], is_done: &mut [bool]) {
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); edges.len()];
    let mut missing = vec![0_usize; edges.len()];
    for (place, own) in edges.iter().enumerate() {
        for (other, _) in own.iter().filter(|edge| !is_done[edge.0]) {
            followers[*other].push(place);
            missing[place] += 1;
        }
    }
    let mut ready: Vec<usize> =
        (0..edges.len()).filter(|place| missing[*place] == 0 && !is_done[*place]).collect();
    while let Some(place) = ready.pop() {
        is_done[place] = true;
        for follower in &followers[place] {
            missing[*follower] -= 1;
            if missing[*follower] == 0 && !is_done[*follower] {
                ready.push(*follower);
            }
        }
    }
}

fn check_gate(
    reader: &mut SpecReader<'_>,
    drafts: &[StepDraft],
    place: usize,
    places: &HashMap<String, usize>,
) {
    let draft = &drafts[place];
    let Some(review) = draft.step.gate.as_ref().and_then(|id| places.get(id)) else { return };
    let review = &drafts[*review];
    if review.can_approve() || review.is_unreliable || std::ptr::eq(review, draft) {
        return;
    }
    let id = quoted(&review.step.id);
    let message = if review.step.role == "reviewer" && review.step.output.is_some() {
        format!("{id} cannot approve: its `output` needs a `verdict` whose enum has `approve`")
    } else {
        format!(
            "{id} cannot approve: a gate is a step of role `reviewer`, or one whose `output` has a `verdict` whose \
             enum has `approve`"
        )
    };
    reader.add_flaw(child_pointer(&draft.pointer, "gate"), message);
}

fn check_needs(
    reader: &mut SpecReader<'_>,
    drafts: &[StepDraft],
    place: usize,
    places: &HashMap<String, usize>,
) {
    let draft = &drafts[place];
    for (name, need) in &draft.step.needs {
        let Some(source) = places.get(&need.step).map(|place| &drafts[*place]) else { continue };
        let at = child_pointer(&child_pointer(&draft.pointer, "needs"), name);
        let id = quoted(&need.step);
        match &source.step.output {
            None if source.has_output_key => {}
            None => {
                let message =
                    format!("the step {id} states no `output`, so nothing can be needed of it");
                reader.add_flaw(at, message);
            }
            Some(schema) => {
                if let Err(nowhere) = output::check_pointer(schema, &need.pointer) {
                    let message = format!("the output of {id} has no {}", quoted(&nowhere.part));
                    reader.flaws.push(
                        SpecDiagnostic::new(at, message)
                            .with_accepted(&nowhere.part, &nowhere.known),
                    );
                }
            }
        }
    }
}

fn resolve_apply(
    reader: &mut SpecReader<'_>,
    drafts: &mut [StepDraft],
    place: usize,
    places: &HashMap<String, usize>,
) {
    let Some(source) = drafts[place].step.apply.clone() else { return };
    let Some(source_place) = places.get(&source).filter(|own| **own != place) else { return };
    let from = &drafts[*source_place];
    let message = if from.step.apply.is_some() {
        Some("applies changes itself, and has none of its own")
    } else if from.is_unreliable {
        None
    } else if from.step.posture == StepPosture::ReadOnly {
        Some("only reads, so there is nothing to apply")
    } else if from.step.workspace == WorkspaceMode::Shared {
        Some("works in the shared Workspace, where its changes are already")
    } else {
        None
    };
    let globs = from.step.write_set.clone();
    if let Some(message) = message {
        let message = format!("the step {} {message}", quoted(&source));
        reader.add_flaw(child_pointer(&drafts[place].pointer, "apply"), message);
    }
    let step = &mut drafts[place].step;
    // The step reads what it writes; its checks may read everything.
    step.read_set = if step.verify.is_empty() { globs.clone() } else { vec!["**".to_owned()] };
    step.write_set = globs;
}
