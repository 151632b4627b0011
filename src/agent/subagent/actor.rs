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
    Register { family: SessionId, records: Vec<SubagentRecord>, token: CancellationToken },
    /// Starts a run; answered when that is recorded.
    Start { job: Box<SubagentJob>, reply: SubagentReply<Result<SubagentRecord, ToolError>> },
    /// Returns views of these children, or of all.
    Views {
        family: SessionId,
        ids: Option<Vec<String>>,
        reply: SubagentReply<Result<Vec<SubagentView>, ToolError>>,
    },
    /// Waits until the runs of these children are over; `on_behalf` is the child that does nothing
    /// else meanwhile.
    Wait { ids: Vec<String>, rule: WaitRule, on_behalf: Option<String>, reply: SubagentReply<()> },
    /// Marks the ends of these children as reported to the parent.
    MarkReported { ids: Vec<String> },
    /// Closes a child: cancels its run, and accepts no more input.
    Close { family: SessionId, id: String, reply: SubagentReply<Result<SubagentView, ToolError>> },
    /// Cancels all children of a Session; answered when their runs are over.
    CancelAll { family: SessionId, reply: SubagentReply<()> },
    /// Waits until no child of a Session is running or queued; `on_behalf` as in `Wait`.
    WaitIdle { family: SessionId, on_behalf: Option<String>, reply: SubagentReply<()> },
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
    family: SessionId,
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
        let is_anybody_waiting = !self.queue.is_empty();
        tokio::select! {
            biased;
            Some(message) = inbox.recv() => Some(Wake::Message(message)),
            Some(over) = self.runs.join_next_with_id() => Some(Wake::RunOver(over)),
            Ok(()) = self.freed.changed(), if is_anybody_waiting => Some(Wake::PlaceFreed),
            else => None,
        }
    }

    fn handle(&mut self, message: Inbox) {
        match message {
            Inbox::Register { family, records, token } => self.register(family, records, token),
            Inbox::Start { job, reply } => self.start(*job, reply),
            Inbox::Views { family, ids, reply } => {
                reply.send(self.views(&family, ids)).ok();
            }
            Inbox::Wait { ids, rule, on_behalf, reply } => {
                self.wait_for_ids(ids, rule, on_behalf, reply);
            }
            Inbox::MarkReported { ids } => {
                for id in ids {
                    if let Some(kept) = self.children.get_mut(&id) {
                        kept.record.is_reported |= kept.record.status.is_over();
                    }
                }
            }
            Inbox::Close { family, id, reply } => {
                reply.send(self.close(&family, &id)).ok();
            }
            Inbox::CancelAll { family, reply } => {
                for kept in self.children.values().filter(|kept| kept.family == family) {
                    if let Some(run) = &kept.run {
                        run.cancel.cancel();
                    }
                }
                self.add_waiter(self.busy_ids(&family), None, reply);
            }
            Inbox::WaitIdle { family, on_behalf, reply } => {
                self.add_waiter(self.busy_ids(&family), on_behalf, reply);
            }
        }
    }

    fn register(
        &mut self,
        family: SessionId,
        records: Vec<SubagentRecord>,
        token: CancellationToken,
    ) {
        self.drop_closed_parents();
        let children = records.iter().map(|record| record.id.clone()).collect();
        for record in records {
            let kept = ChildEntry { family: family.clone(), record, run: None };
            self.children.insert(kept.record.id.clone(), kept);
        }
        self.child_sets.insert(family, ChildSet { token, children });
    }

    /// Drops the records of closed Sessions; they are in their Logs.
    fn drop_closed_parents(&mut self) {
        let kept = &mut self.children;
        self.child_sets.retain(|_, child_set| {
            let is_busy = |id: &String| kept.get(id).is_some_and(|kept| kept.run.is_some());
            let stays = !child_set.token.is_cancelled() || child_set.children.iter().any(is_busy);
            if !stays {
                for id in &child_set.children {
                    kept.remove(id);
                }
            }
            stays
        });
    }

    fn start(&mut self, job: SubagentJob, reply: SubagentReply<Result<SubagentRecord, ToolError>>) {
        let family = job.parent_link.parent.id().clone();
        let id = job.record.id.clone();
        let Some(child_set) = self.child_sets.get_mut(&family) else {
            let gone = ToolError::new(Kind::SessionClosed, "the Session has closed");
            reply.send(Err(gone)).ok();
            return;
        };
        let before = self.children.remove(&id);
        if let Some(kept) = before.as_ref().filter(|kept| kept.run.is_some()) {
            let busy = show::busy_subagent_error(&kept.record);
            self.children.extend(before.map(|kept| (id, kept)));
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
        let before = before.map(|kept| kept.record);
        let run = Some(ActiveRun { cancel, start: Some(permit), progress, before });
        self.children.insert(id.clone(), ChildEntry { family: family.clone(), record, run });
        self.queue.push(&family, id);
        self.schedule();
    }

    /// Starts queued runs while there are places.
    fn schedule(&mut self) {
        loop {
            let mut running: HashMap<&SessionId, usize> = HashMap::new();
            let working = self.children.values().filter(|kept| kept.is_running());
            for kept in working {
                *running.entry(&kept.family).or_default() += 1;
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
            let Some(kept) = self.children.get_mut(&id) else { continue };
            kept.record.status = SubagentStatus::Running;
            if let Some(permit) = kept.run.as_mut().and_then(|run| run.start.take()) {
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
        let Some(kept) = self.children.get_mut(&id) else { return };
        let before = kept.run.take().and_then(|run| run.before);
        match (over, before) {
            (Some(SubagentRunResult::Ended(record)), _) => {
                let is_closed = kept.record.is_closed;
                kept.record = SubagentRecord { is_reported: false, is_closed, ..*record };
            }
            (Some(SubagentRunResult::Refused), Some(before)) => kept.record = before,
            (Some(SubagentRunResult::Refused), None) => self.drop_child(&id),
            (None, _) => kept.record.status = SubagentStatus::Failed,
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
        if let Some(kept) = self.children.remove(id)
            && let Some(child_set) = self.child_sets.get_mut(&kept.family)
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
        let is_busy = |id: &String| self.children.get(id).is_some_and(|kept| kept.run.is_some());
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

    fn busy_ids(&self, family: &SessionId) -> HashSet<String> {
        let own = self.children.iter().filter(|(_, kept)| kept.family == *family);
        own.filter(|(_, kept)| kept.run.is_some()).map(|(id, _)| id.clone()).collect()
    }

    fn views(
        &self,
        family: &SessionId,
        ids: Option<Vec<String>>,
    ) -> Result<Vec<SubagentView>, ToolError> {
        let child_set = self.child_sets.get(family);
        let all = child_set.map(|child_set| child_set.children.as_slice()).unwrap_or_default();
        let ids = ids.unwrap_or_else(|| all.to_vec());
        ids.iter().map(|id| self.find(family, id).map(|kept| self.view(kept))).collect()
    }

    fn find(&self, family: &SessionId, id: &str) -> Result<&ChildEntry, ToolError> {
        let own = self.children.get(id).filter(|kept| kept.family == *family);
        own.ok_or_else(|| show::unknown_subagent_error(id))
    }

    fn view(&self, kept: &ChildEntry) -> SubagentView {
        let mut record = kept.record.clone();
        let mut doing = String::new();
        if let Some(run) = &kept.run {
            record.elapsed = run.progress.worked();
            record.usage.add(&run.progress.usage());
            doing = run.progress.activity();
        }
        SubagentView { position: self.queue.position(&record.id), record, activity: doing }
    }

    fn close(&mut self, family: &SessionId, id: &str) -> Result<SubagentView, ToolError> {
        let view = self.view(self.find(family, id)?);
        if let Some(kept) = self.children.get_mut(id) {
            kept.record.is_closed = true;
            if let Some(run) = &kept.run {
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
