//! Constraints of a child that a Workflow starts, beyond the arguments of `spawn_agent`.

use serde_json::Value;

use crate::agent::turn::UsageTotal;
use crate::record::event::{Canonical, Extra};
use crate::record::history::History;
use crate::settings::bounds::{WriteBounds, WriteGlobs};
use crate::settings::config::AnswerSchema;

/// The constraints of one child, in addition to its `SubagentSpec`.
#[derive(Debug, Clone, Default)]
pub struct Constraints {
    /// Whether the child is read-only, whatever its role allows.
    pub is_read_only: bool,
    /// Whether the child may not have children: the Workflow schedules all work.
    pub is_leaf: bool,
    /// The paths that it may write, within its parent's bounds.
    pub writes: WriteGlobs,
    /// The schema of its answer.
    pub answer_schema: Option<AnswerSchema>,
    /// Further facts for its Delegation Context.
    pub context_facts: Vec<(&'static str, Value)>,
    /// Further fields of each of its Events in the parent's Log.
    pub event_fields: Extra,
    /// The usage total that includes its usage; `None` is its parent's.
    pub usage_total: Option<UsageTotal>,
}

impl Constraints {
    /// The write bounds of a child whose parent has `bounds`.
    pub fn narrow_bounds(&self, bounds: &WriteBounds) -> Result<WriteBounds, String> {
        let mut bounds = bounds.clone();
        bounds.add_globs(&self.writes)?;
        Ok(bounds)
    }
}

/// The write bounds of a child that has a Log: its parent's, and those that it began with.
pub fn recorded_bounds(history: &History, bounds: &WriteBounds) -> Result<WriteBounds, String> {
    let mut bounds = bounds.clone();
    for fact in history.facts() {
        let (allow, deny) = match fact {
            Canonical::SessionStarted(started) => {
                (&started.posture.allow_write, &started.posture.deny_write)
            }
            Canonical::PostureChanged(changed) => (&changed.allow_write, &changed.deny_write),
            _ => continue,
        };
        bounds.add_globs(&WriteGlobs { allow: allow.clone(), deny: deny.clone() })?;
    }
    Ok(bounds)
}
