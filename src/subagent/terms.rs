//! The terms of a child that a Workflow starts: narrower than what a model could wish for.

use serde_json::Value;

use crate::bounds::{Bounds, WriteGlobs};
use crate::config::AnswerSchema;
use crate::event::{Canonical, Extra};
use crate::history::History;
use crate::turn::Purse;

/// What holds for one child beside its Spec.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// It only reads, whatever its role may.
    pub is_reading: bool,
    /// It has no children of its own: somebody else says who works.
    pub is_leaf: bool,
    /// Where it may write, within what its parent may.
    pub writes: WriteGlobs,
    /// What its answer must be.
    pub answer: Option<AnswerSchema>,
    /// What it is told of itself, beside its Delegation Context.
    pub facts: Vec<(&'static str, Value)>,
    /// What stands in each of its facts in the parent's Log.
    pub marks: Extra,
    /// What its bills count in, where that is more than its parent's family.
    pub purse: Option<Purse>,
}

impl Terms {
    /// The bounds of a child whose parent has these.
    pub fn narrow(&self, bounds: &Bounds) -> Result<Bounds, String> {
        let mut bounds = bounds.clone();
        bounds.narrow(&self.writes)?;
        Ok(bounds)
    }
}

/// The bounds of a child that has a Log: its parent's, and those that it began with.
pub fn recorded(history: &History, bounds: &Bounds) -> Result<Bounds, String> {
    let mut bounds = bounds.clone();
    for fact in history.facts() {
        let (allow, deny) = match fact {
            Canonical::SessionStarted(started) => {
                (&started.posture.allow_write, &started.posture.deny_write)
            }
            Canonical::PostureChanged(changed) => (&changed.allow_write, &changed.deny_write),
            _ => continue,
        };
        bounds.narrow(&WriteGlobs { allow: allow.clone(), deny: deny.clone() })?;
    }
    Ok(bounds)
}
