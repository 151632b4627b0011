//! Activity, working time and usage of a child's run.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::id::CallId;
use crate::base::text::first_chars;
use crate::record::event::{Canonical, Ephemeral, Event, EventKind, Status, SubagentUsage};

/// How much of an activity is kept, in characters.
const SHOWN: usize = 100;

/// The clock and the counters of one run; a leaf lock, never held across an await.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Live>);

#[derive(Debug, Default)]
struct Live {
    usage: SubagentUsage,
    doing: String,
    /// Since when it works; `None` while it waits for a person, or for its turn.
    since: Option<Instant>,
    worked: Duration,
    /// The calls under way, and whether each waits for others before it can begin.
    calls: HashMap<CallId, bool>,
    /// Whether its next request waits for the budget until others of the tree have ended.
    waits_for_budget: bool,
}

impl Progress {
    /// Starts the clock, or resumes it.
    pub fn go(&self) {
        self.held().since.get_or_insert_with(Instant::now);
    }

    /// Stops the clock, for a wait that is not its work.
    pub fn pause(&self) {
        let mut live = self.held();
        live.worked = live.worked();
        live.since = None;
    }

    /// Whether all its calls, or its next request, wait for others.
    pub fn is_held_up(&self) -> bool {
        let live = self.held();
        let waits_for_place = !live.calls.is_empty() && live.calls.values().all(|waits| *waits);
        waits_for_place || live.waits_for_budget
    }

    /// Clears the waits after missed Events: what is not known to wait is taken to work.
    pub fn missed(&self) {
        let mut live = self.held();
        live.calls.clear();
        live.waits_for_budget = false;
    }

    /// How long it has worked.
    pub fn worked(&self) -> Duration {
        self.held().worked()
    }

    /// Usage of the run.
    pub fn usage(&self) -> SubagentUsage {
        self.held().usage
    }

    /// The current or last activity.
    pub fn doing(&self) -> String {
        self.held().doing.clone()
    }

    /// Applies an Event of the child's Session.
    pub fn hear(&self, event: &Event) {
        match event.kind() {
            EventKind::Canonical(Canonical::ProviderUsage(bill)) => {
                self.held().usage.add(&SubagentUsage::of_call(bill));
            }
            EventKind::Canonical(Canonical::SubagentEvent(child))
                if child.ends_run() && !child.is_copy() =>
            {
                self.held().usage.add(&child.usage.unwrap_or_default());
            }
            EventKind::Canonical(Canonical::ToolResult(result)) => {
                self.held().calls.remove(&result.call_id);
            }
            EventKind::Ephemeral(Ephemeral::Status(Status::Working {
                call_id,
                tool,
                summary,
                waiting,
            })) => {
                let doing = if summary.is_empty() { tool } else { summary };
                let mut live = self.held();
                live.doing = first_chars(doing.lines().next().unwrap_or_default(), SHOWN);
                live.calls.insert(call_id.clone(), waiting.is_some());
            }
            EventKind::Ephemeral(Ephemeral::Status(Status::Thinking { .. })) => {
                let mut live = self.held();
                "thinking".clone_into(&mut live.doing);
                live.calls.clear();
                live.waits_for_budget = false;
            }
            EventKind::Ephemeral(Ephemeral::Status(Status::WaitingForBudget { .. })) => {
                let mut live = self.held();
                "waiting for the budget".clone_into(&mut live.doing);
                live.waits_for_budget = true;
            }
            EventKind::Ephemeral(Ephemeral::Status(Status::Compacting { .. })) => {
                let mut live = self.held();
                "compacting".clone_into(&mut live.doing);
                live.waits_for_budget = false;
            }
            EventKind::Ephemeral(Ephemeral::PermissionRequest(_)) => {
                "waiting for permission".clone_into(&mut self.held().doing);
            }
            EventKind::Canonical(_) | EventKind::Ephemeral(_) => {}
        }
    }

    fn held(&self) -> MutexGuard<'_, Live> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn worked(&self) -> Duration {
        self.worked + self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}
