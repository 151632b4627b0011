//! Activity, working time and usage of a child's run.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::base::id::CallId;
use crate::base::text::truncate_chars;
use crate::record::event::{Canonical, Ephemeral, Event, EventKind, SessionStatus, SubagentUsage};

/// How much of an activity is kept, in characters.
const MAX_ACTIVITY_CHARACTERS: usize = 100;

/// The clock and the counters of one run; a leaf lock, never held across an await.
#[derive(Debug, Default)]
pub struct SubagentProgress(Mutex<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    usage: SubagentUsage,
    activity: String,
    /// When the clock was started; `None` while the child waits for the user, or for its turn.
    working_since: Option<Instant>,
    worked: Duration,
    /// The calls in progress, and whether each waits for others before it can begin.
    calls: HashMap<CallId, bool>,
    /// Whether its next request waits for the budget until other requests of the tree have ended.
    waits_for_budget: bool,
}

impl SubagentProgress {
    /// Starts the clock, or resumes it.
    pub fn resume(&self) {
        self.0.lock().working_since.get_or_insert_with(Instant::now);
    }

    /// Stops the clock, for a wait that does not count as work.
    pub fn pause(&self) {
        let mut state = self.0.lock();
        state.worked = state.worked();
        state.working_since = None;
    }

    /// Whether all its calls, or its next request, wait for others.
    pub fn is_blocked(&self) -> bool {
        let state = self.0.lock();
        let waits_for_place = !state.calls.is_empty() && state.calls.values().all(|waits| *waits);
        waits_for_place || state.waits_for_budget
    }

    /// Clears the waits after missed Events: a child that is not known to wait counts as working.
    pub fn clear_waits(&self) {
        let mut state = self.0.lock();
        state.calls.clear();
        state.waits_for_budget = false;
    }

    /// How long the run has worked.
    pub fn worked(&self) -> Duration {
        self.0.lock().worked()
    }

    /// Usage of the run.
    pub fn usage(&self) -> SubagentUsage {
        self.0.lock().usage
    }

    /// The current or last activity.
    pub fn activity(&self) -> String {
        self.0.lock().activity.clone()
    }

    /// Applies an Event of the child's Session.
    pub fn apply_event(&self, event: &Event) {
        match event.kind() {
            EventKind::Canonical(Canonical::ProviderUsage(usage)) => {
                self.0.lock().usage.add(&SubagentUsage::from_usage(usage));
            }
            EventKind::Canonical(Canonical::SubagentEvent(child))
                if child.ends_run() && !child.is_copy() =>
            {
                self.0.lock().usage.add(&child.usage.unwrap_or_default());
            }
            EventKind::Canonical(Canonical::ToolResult(result)) => {
                self.0.lock().calls.remove(&result.call_id);
            }
            EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Working {
                call_id,
                tool,
                summary,
                waiting,
            })) => {
                let doing = if summary.is_empty() { tool } else { summary };
                let mut state = self.0.lock();
                state.activity = truncate_chars(
                    doing.lines().next().unwrap_or_default(),
                    MAX_ACTIVITY_CHARACTERS,
                );
                state.calls.insert(call_id.clone(), waiting.is_some());
            }
            EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Thinking { .. })) => {
                let mut state = self.0.lock();
                "thinking".clone_into(&mut state.activity);
                state.calls.clear();
                state.waits_for_budget = false;
            }
            EventKind::Ephemeral(Ephemeral::Status(SessionStatus::WaitingForBudget { .. })) => {
                let mut state = self.0.lock();
                "waiting for the budget".clone_into(&mut state.activity);
                state.waits_for_budget = true;
            }
            EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Compacting { .. })) => {
                let mut state = self.0.lock();
                "compacting".clone_into(&mut state.activity);
                state.waits_for_budget = false;
            }
            EventKind::Ephemeral(Ephemeral::PermissionRequest(_)) => {
                "waiting for permission".clone_into(&mut self.0.lock().activity);
            }
            EventKind::Canonical(_) | EventKind::Ephemeral(_) => {}
        }
    }
}

impl ProgressState {
    fn worked(&self) -> Duration {
        self.worked + self.working_since.map(|since| since.elapsed()).unwrap_or_default()
    }
}
