//! The actor that owns every Subagent of a Harness, schedules their runs, and wakes waiters.
//!
//! The actor awaits only its inbox and the ends of runs. Slow work, recording included, happens in the
//! task of a run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id as TaskId, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::concurrency_limit::ConcurrencyLimit;
use super::progress::SubagentProgress;
use super::queue::RunQueue;
use super::record::{SubagentRecord, SubagentStatus, SubagentView};
use super::run::{self, RunControl, SubagentJob, SubagentRunResult};
use super::show;
use crate::base::error::{Kind, counted};
use crate::base::id::SessionId;
use crate::base::tool_error::ToolError;
use crate::settings::config::SubagentLimits as Limits;

/// The sender of an answer; its receiver may be gone.
pub type SubagentReply<T> = oneshot::Sender<T>;

/// Whether a wait ends with any of its children or with all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitRule {
    Any,
    All,
}

/// Messages to the actor.
pub enum Inbox {
    /// Registers a Session that may have children.
    Register { parent: SessionId, records: Vec<SubagentRecord>, token: CancellationToken },
    /// Starts a run; answered when that is recorded.
    Start { job: Box<SubagentJob>, reply: SubagentReply<Result<SubagentRecord, ToolError>> },
    /// Returns views of these children, or of all.
    Views {
        parent: SessionId,
        ids: Option<Vec<String>>,
        reply: SubagentReply<Result<Vec<SubagentView>, ToolError>>,
    },
    /// Waits until the runs of these children are over; `on_behalf` is the child that does nothing
    /// else meanwhile.
    Wait { ids: Vec<String>, rule: WaitRule, on_behalf: Option<String>, reply: SubagentReply<()> },
    /// Marks the ends of these children as reported to the parent.
    MarkReported { ids: Vec<String> },
    /// Closes a child: cancels its run, and accepts no more input.
    Close { parent: SessionId, id: String, reply: SubagentReply<Result<SubagentView, ToolError>> },
    /// Cancels all children of a Session; answered when their runs are over.
    CancelAll { parent: SessionId, reply: SubagentReply<()> },
    /// Waits until no child of a Session is running or queued; `on_behalf` as in `Wait`.
    WaitIdle { parent: SessionId, on_behalf: Option<String>, reply: SubagentReply<()> },
}

/// The events that the task waits for.
enum Wake {
    Message(Inbox),
    RunOver(Result<(TaskId, SubagentRunResult), JoinError>),
    /// Another actor of the process has freed a place.
    PlaceFreed,
}

/// The children of one Session.
struct ChildSet {
    token: CancellationToken,
    children: Vec<String>,
}

/// The record of a child, and its run while there is one.
struct ChildEntry {
    parent: SessionId,
    record: SubagentRecord,
    run: Option<ActiveRun>,
}

/// A queued or running run.
struct ActiveRun {
    cancel: CancellationToken,
    /// Sent when the run may start.
    start: Option<oneshot::Sender<()>>,
    progress: Arc<SubagentProgress>,
    /// The record before the run, restored if the run cannot begin.
    before: Option<SubagentRecord>,
}

struct Waiter {
    left: HashSet<String>,
    rule: WaitRule,
    on_behalf: Option<String>,
    reply: SubagentReply<()>,
}

pub struct Actor {
    limits: Limits,
    child_sets: HashMap<SessionId, ChildSet>,
    children: HashMap<String, ChildEntry>,
    runs: JoinSet<SubagentRunResult>,
    tasks: HashMap<TaskId, String>,
    queue: RunQueue,
    waiters: Vec<Waiter>,
    capacity: ConcurrencyLimit,
    /// How many places of `capacity` the children occupy.
    occupied: usize,
    freed: watch::Receiver<usize>,
}

/// Frees the places that the children occupied.
impl Drop for Actor {
    fn drop(&mut self) {
        self.capacity.adjust(self.occupied, 0);
    }
}

impl Actor {
    pub fn new(limits: Limits, capacity: ConcurrencyLimit) -> Self {
        Self {
            freed: capacity.subscribe_freed(),
            capacity,
            occupied: 0,
            limits,
            child_sets: HashMap::new(),
            children: HashMap::new(),
            runs: JoinSet::new(),
            tasks: HashMap::new(),
            queue: RunQueue::default(),
            waiters: Vec::new(),
        }
    }

    pub async fn run(mut self, mut inbox: mpsc::Receiver<Inbox>) {
        while let Some(wake) = self.next(&mut inbox).await {
            match wake {
                Wake::Message(message) => self.handle(message),
                Wake::RunOver(over) => self.run_over(over),
                Wake::PlaceFreed => self.schedule(),
            }
        }
    }

    async fn next(&mut self, inbox: &mut mpsc::Receiver<Inbox>) -> Option<Wake> {
        let has_queued_runs = !self.queue.is_empty();
        tokio::select! {
            biased;
            Some(message) = inbox.recv() => Some(Wake::Message(message)),
            Some(over) = self.runs.join_next_with_id() => Some(Wake::RunOver(over)),
            Ok(()) = self.freed.changed(), if has_queued_runs => Some(Wake::PlaceFreed),
            else => None,
        }
    }

    fn handle(&mut self, message: Inbox) {
        match message {
            Inbox::Register { parent, records, token } => self.register(parent, records, token),
            Inbox::Start { job, reply } => self.start(*job, reply),
            Inbox::Views { parent, ids, reply } => {
                reply.send(self.views(&parent, ids)).ok();
            }
            Inbox::Wait { ids, rule, on_behalf, reply } => {
                self.wait_for_ids(ids, rule, on_behalf, reply);
            }
            Inbox::MarkReported { ids } => {
                for id in ids {
                    if let Some(child) = self.children.get_mut(&id) {
                        child.record.is_reported |= child.record.status.is_over();
                    }
                }
            }
            Inbox::Close { parent, id, reply } => {
                reply.send(self.close(&parent, &id)).ok();
            }
            Inbox::CancelAll { parent, reply } => {
                for child in self.children.values().filter(|child| child.parent == parent) {
                    if let Some(run) = &child.run {
                        run.cancel.cancel();
                    }
                }
                self.add_waiter(self.busy_ids(&parent), None, reply);
            }
            Inbox::WaitIdle { parent, on_behalf, reply } => {
                self.add_waiter(self.busy_ids(&parent), on_behalf, reply);
            }
        }
    }

    fn register(
        &mut self,
        parent: SessionId,
        records: Vec<SubagentRecord>,
        token: CancellationToken,
    ) {
        self.drop_closed_parents();
        let children = records.iter().map(|record| record.id.clone()).collect();
        for record in records {
            let child = ChildEntry { parent: parent.clone(), record, run: None };
            self.children.insert(child.record.id.clone(), child);
        }
        self.child_sets.insert(parent, ChildSet { token, children });
    }

    /// Drops the records of closed Sessions; they are in their Logs.
    fn drop_closed_parents(&mut self) {
        let children = &mut self.children;
        self.child_sets.retain(|_, child_set| {
            let is_busy = |id: &String| children.get(id).is_some_and(|child| child.run.is_some());
            let stays = !child_set.token.is_cancelled() || child_set.children.iter().any(is_busy);
            if !stays {
                for id in &child_set.children {
                    children.remove(id);
                }
            }
            stays
        });
    }

    fn start(&mut self, job: SubagentJob, reply: SubagentReply<Result<SubagentRecord, ToolError>>) {
        let parent = job.parent_link.parent.id().clone();
        let id = job.record.id.clone();
        let Some(child_set) = self.child_sets.get_mut(&parent) else {
            let gone = ToolError::new(Kind::SessionClosed, "the Session has closed");
            reply.send(Err(gone)).ok();
            return;
        };
        let before = self.children.remove(&id);
        if let Some(child) = before.as_ref().filter(|child| child.run.is_some()) {
            let busy = show::busy_subagent_error(&child.record);
            self.children.extend(before.map(|child| (id, child)));
            reply.send(Err(busy)).ok();
            return;
        }
        if before.is_none() {
            let most = self.limits.max_per_run;
            if !job.parent_link.base.budget.count_child(most) {
                reply.send(Err(too_many_error(most))).ok();
                return;
            }
            child_set.children.push(id.clone());
        }
        let (permit, waiting) = oneshot::channel();
        let (cancel, progress) = (CancellationToken::new(), Arc::new(SubagentProgress::default()));
        let control =
            RunControl { cancel: cancel.clone(), start: waiting, progress: Arc::clone(&progress) };
        let record = SubagentRecord { status: SubagentStatus::Queued, ..job.record.clone() };
        let task = self.runs.spawn(run::run_child(job, control, reply));
        self.tasks.insert(task.id(), id.clone());
        let before = before.map(|child| child.record);
        let run = Some(ActiveRun { cancel, start: Some(permit), progress, before });
        self.children.insert(id.clone(), ChildEntry { parent: parent.clone(), record, run });
        self.queue.push(&parent, id);
        self.schedule();
    }

    /// Starts queued runs while there are places.
    fn schedule(&mut self) {
        loop {
            let mut running: HashMap<&SessionId, usize> = HashMap::new();
            let working = self.children.values().filter(|child| child.is_running());
            for child in working {
                *running.entry(&child.parent).or_default() += 1;
            }
            let paused = self.count_paused();
            let busy = running.values().sum::<usize>().saturating_sub(paused);
            self.capacity.adjust(self.occupied, busy);
            self.occupied = busy;
            let most = self.limits.max_running;
            let may_start = |parent: &SessionId| running.get(parent).copied().unwrap_or(0) < most;
            // A place is taken only for a run that can start: freeing one wakes every actor.
            if !self.queue.has_next(may_start)
                || !self.capacity.try_acquire(self.limits.max_in_process)
            {
                return;
            }
            self.occupied += 1;
            let Some(id) = self.queue.pop_next(may_start) else { return };
            let Some(child) = self.children.get_mut(&id) else { continue };
            child.record.status = SubagentStatus::Running;
            if let Some(permit) = child.run.as_mut().and_then(|run| run.start.take()) {
                // A run that was cancelled meanwhile reports it by its end.
                permit.send(()).ok();
            }
        }
    }

    /// How many children only wait for their own children.
    fn count_paused(&self) -> usize {
        let waiting = self.waiters.iter().filter(|waiter| !waiter.reply.is_closed());
        let behalf: HashSet<&str> =
            waiting.filter_map(|waiter| waiter.on_behalf.as_deref()).collect();
        // A child that the user resumed occupies no place here.
        let is_running = |id: &&&str| self.children.get(**id).is_some_and(ChildEntry::is_running);
        behalf.iter().filter(is_running).count()
    }

    fn run_over(&mut self, over: Result<(TaskId, SubagentRunResult), JoinError>) {
        let (task, over) = match over {
            Ok((task, over)) => (task, Some(over)),
            Err(error) => {
                tracing::error!(%error, "the task of a Subagent crashed");
                (error.id(), None)
            }
        };
        let Some(id) = self.tasks.remove(&task) else { return };
        self.queue.remove(&id);
        let Some(child) = self.children.get_mut(&id) else { return };
        let before = child.run.take().and_then(|run| run.before);
        match (over, before) {
            (Some(SubagentRunResult::Ended(record)), _) => {
                let is_closed = child.record.is_closed;
                child.record = SubagentRecord { is_reported: false, is_closed, ..*record };
            }
            (Some(SubagentRunResult::Refused), Some(before)) => child.record = before,
            (Some(SubagentRunResult::Refused), None) => self.drop_child(&id),
            (None, _) => child.record.status = SubagentStatus::Failed,
        }
        for waiter in &mut self.waiters {
            if waiter.left.remove(&id) && waiter.rule == WaitRule::Any {
                waiter.left.clear();
            }
        }
        self.wake_waiters();
        self.schedule();
    }

    fn drop_child(&mut self, id: &str) {
        if let Some(child) = self.children.remove(id)
            && let Some(child_set) = self.child_sets.get_mut(&child.parent)
        {
            child_set.children.retain(|own| own != id);
        }
    }

    fn wake_waiters(&mut self) {
        for waiter in self.waiters.extract_if(.., |waiter| waiter.left.is_empty()) {
            waiter.reply.send(()).ok();
        }
    }

    fn wait_for_ids(
        &mut self,
        ids: Vec<String>,
        rule: WaitRule,
        on_behalf: Option<String>,
        reply: SubagentReply<()>,
    ) {
        let count = ids.len();
        let is_busy = |id: &String| self.children.get(id).is_some_and(|child| child.run.is_some());
        let mut left: HashSet<String> = ids.into_iter().filter(is_busy).collect();
        if rule == WaitRule::Any && left.len() < count {
            left.clear();
        }
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiters.push(Waiter { left, rule, on_behalf, reply });
        self.wake_waiters();
        // A waiting child frees its place.
        self.schedule();
    }

    fn add_waiter(
        &mut self,
        left: HashSet<String>,
        on_behalf: Option<String>,
        reply: SubagentReply<()>,
    ) {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiters.push(Waiter { left, rule: WaitRule::All, on_behalf, reply });
        self.wake_waiters();
        self.schedule();
    }

    fn busy_ids(&self, parent: &SessionId) -> HashSet<String> {
        let own = self.children.iter().filter(|(_, child)| child.parent == *parent);
        own.filter(|(_, child)| child.run.is_some()).map(|(id, _)| id.clone()).collect()
    }

    fn views(
        &self,
        parent: &SessionId,
        ids: Option<Vec<String>>,
    ) -> Result<Vec<SubagentView>, ToolError> {
        let child_set = self.child_sets.get(parent);
        let all = child_set.map(|child_set| child_set.children.as_slice()).unwrap_or_default();
        let ids = ids.unwrap_or_else(|| all.to_vec());
        ids.iter().map(|id| self.find(parent, id).map(|child| self.view(child))).collect()
    }

    fn find(&self, parent: &SessionId, id: &str) -> Result<&ChildEntry, ToolError> {
        let own = self.children.get(id).filter(|child| child.parent == *parent);
        own.ok_or_else(|| show::unknown_subagent_error(id))
    }

    fn view(&self, child: &ChildEntry) -> SubagentView {
        let mut record = child.record.clone();
        let mut doing = String::new();
        if let Some(run) = &child.run {
            record.elapsed = run.progress.worked();
            record.usage.add(&run.progress.usage());
            doing = run.progress.activity();
        }
        SubagentView { position: self.queue.position(&record.id), record, activity: doing }
    }

    fn close(&mut self, parent: &SessionId, id: &str) -> Result<SubagentView, ToolError> {
        let view = self.view(self.find(parent, id)?);
        if let Some(child) = self.children.get_mut(id) {
            child.record.is_closed = true;
            if let Some(run) = &child.run {
                run.cancel.cancel();
            }
        }
        Ok(view)
    }
}

/// The error when the limit of children per run is reached.
fn too_many_error(most: usize) -> ToolError {
    let message = format!(
        "this run has started {}, the most it may (`subagents.max_per_run` of the config)",
        counted(most, "Subagent")
    );
    ToolError::new(Kind::BudgetExceeded, message)
        .with_details(json!({ "budget": "subagents.max_per_run", "limit": most }))
        .with_next_action(
            "do the rest without further Subagents, or tell the user to raise that limit",
        )
}

impl ChildEntry {
    fn is_running(&self) -> bool {
        self.record.status == SubagentStatus::Running && self.run.is_some()
    }
}
