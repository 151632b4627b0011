//! The actor: owns every Subagent of a Harness, schedules their runs, and wakes waiters.
//!
//! It awaits only its inbox and the ends of runs. Slow work, recording included, happens in the
//! task of a run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id as TaskId, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::capacity::Capacity;
use super::progress::Progress;
use super::queue::Queue;
use super::record::{Record, Status, View};
use super::run::{self, Job, Leash, Over};
use super::show;
use crate::base::error::{Kind, counted};
use crate::base::id::SessionId;
use crate::base::tool_error::ToolError;
use crate::settings::config::Subagents as Limits;

/// The sender of an answer; its receiver may be gone.
pub type Reply<T> = oneshot::Sender<T>;

/// Whether a wait ends with any of its children or with all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Any,
    All,
}

/// Messages to the actor.
pub enum Inbox {
    /// Registers a Session that may have children.
    Register { family: SessionId, records: Vec<Record>, token: CancellationToken },
    /// Starts a run; answered when that is recorded.
    Start { job: Box<Job>, reply: Reply<Result<Record, ToolError>> },
    /// Returns views of these children, or of all.
    Look { family: SessionId, ids: Option<Vec<String>>, reply: Reply<Result<Vec<View>, ToolError>> },
    /// Waits until the runs of these are over; `on_behalf` is the child that does nothing else
    /// meanwhile.
    Wait { ids: Vec<String>, rule: Rule, on_behalf: Option<String>, reply: Reply<()> },
    /// Marks the ends of these as reported to the parent.
    Told { ids: Vec<String> },
    /// Closes a child: cancels its run, and accepts no more input.
    Close { family: SessionId, id: String, reply: Reply<Result<View, ToolError>> },
    /// Cancels all children of a Session; answered when their runs are over.
    CancelAll { family: SessionId, reply: Reply<()> },
    /// Waits until no child of a Session works or is queued; `on_behalf` as above.
    Idle { family: SessionId, on_behalf: Option<String>, reply: Reply<()> },
}

/// What can wake the task.
enum Wake {
    Message(Inbox),
    RunOver(Result<(TaskId, Over), JoinError>),
    /// Another actor of the process has freed a place.
    PlaceFreed,
}

/// The children of one Session.
struct Brood {
    token: CancellationToken,
    children: Vec<String>,
}

/// The record of a child, and its run while there is one.
struct Kept {
    family: SessionId,
    record: Record,
    run: Option<Run>,
}

/// A queued or working run.
struct Run {
    cancel: CancellationToken,
    /// Sent when the run may start.
    permit: Option<oneshot::Sender<()>>,
    progress: Arc<Progress>,
    /// The record before the run, restored if the run cannot begin.
    before: Option<Record>,
}

struct Waiter {
    left: HashSet<String>,
    rule: Rule,
    on_behalf: Option<String>,
    reply: Reply<()>,
}

pub struct Actor {
    limits: Limits,
    broods: HashMap<SessionId, Brood>,
    kept: HashMap<String, Kept>,
    runs: JoinSet<Over>,
    tasks: HashMap<TaskId, String>,
    queue: Queue,
    waiters: Vec<Waiter>,
    capacity: Capacity,
    /// How many places of `capacity` the children occupy.
    held: usize,
    freed: watch::Receiver<usize>,
}

/// Frees the places that the children occupied.
impl Drop for Actor {
    fn drop(&mut self) {
        self.capacity.change(self.held, 0);
    }
}

impl Actor {
    pub fn new(limits: Limits, capacity: Capacity) -> Self {
        Self {
            freed: capacity.freed(),
            capacity,
            held: 0,
            limits,
            broods: HashMap::new(),
            kept: HashMap::new(),
            runs: JoinSet::new(),
            tasks: HashMap::new(),
            queue: Queue::default(),
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
            Inbox::Look { family, ids, reply } => {
                reply.send(self.look(&family, ids)).ok();
            }
            Inbox::Wait { ids, rule, on_behalf, reply } => self.wait(ids, rule, on_behalf, reply),
            Inbox::Told { ids } => {
                for id in ids {
                    if let Some(kept) = self.kept.get_mut(&id) {
                        kept.record.is_told |= kept.record.status.is_over();
                    }
                }
            }
            Inbox::Close { family, id, reply } => {
                reply.send(self.close(&family, &id)).ok();
            }
            Inbox::CancelAll { family, reply } => {
                for kept in self.kept.values().filter(|kept| kept.family == family) {
                    if let Some(run) = &kept.run {
                        run.cancel.cancel();
                    }
                }
                self.wait_for(self.busy(&family), None, reply);
            }
            Inbox::Idle { family, on_behalf, reply } => {
                self.wait_for(self.busy(&family), on_behalf, reply);
            }
        }
    }

    fn register(&mut self, family: SessionId, records: Vec<Record>, token: CancellationToken) {
        self.forget_the_gone();
        let children = records.iter().map(|record| record.id.clone()).collect();
        for record in records {
            let kept = Kept { family: family.clone(), record, run: None };
            self.kept.insert(kept.record.id.clone(), kept);
        }
        self.broods.insert(family, Brood { token, children });
    }

    /// Drops the records of closed Sessions; they are in their Logs.
    fn forget_the_gone(&mut self) {
        let kept = &mut self.kept;
        self.broods.retain(|_, brood| {
            let is_busy = |id: &String| kept.get(id).is_some_and(|kept| kept.run.is_some());
            let stays = !brood.token.is_cancelled() || brood.children.iter().any(is_busy);
            if !stays {
                for id in &brood.children {
                    kept.remove(id);
                }
            }
            stays
        });
    }

    fn start(&mut self, job: Job, reply: Reply<Result<Record, ToolError>>) {
        let family = job.link.parent.id().clone();
        let id = job.record.id.clone();
        let Some(brood) = self.broods.get_mut(&family) else {
            let gone = ToolError::new(Kind::SessionClosed, "the Session has closed");
            reply.send(Err(gone)).ok();
            return;
        };
        let before = self.kept.remove(&id);
        if let Some(kept) = before.as_ref().filter(|kept| kept.run.is_some()) {
            let busy = show::busy(&kept.record);
            self.kept.extend(before.map(|kept| (id, kept)));
            reply.send(Err(busy)).ok();
            return;
        }
        if before.is_none() {
            let most = self.limits.max_per_run;
            if !job.link.base.budget.count_child(most) {
                reply.send(Err(too_many(most))).ok();
                return;
            }
            brood.children.push(id.clone());
        }
        let (permit, waiting) = oneshot::channel();
        let (cancel, progress) = (CancellationToken::new(), Arc::new(Progress::default()));
        let leash =
            Leash { cancel: cancel.clone(), permit: waiting, progress: Arc::clone(&progress) };
        let record = Record { status: Status::Queued, ..job.record.clone() };
        let task = self.runs.spawn(run::run(job, leash, reply));
        self.tasks.insert(task.id(), id.clone());
        let before = before.map(|kept| kept.record);
        let run = Some(Run { cancel, permit: Some(permit), progress, before });
        self.kept.insert(id.clone(), Kept { family: family.clone(), record, run });
        self.queue.push(&family, id);
        self.schedule();
    }

    /// Starts queued runs while there are places.
    fn schedule(&mut self) {
        loop {
            let mut running: HashMap<&SessionId, usize> = HashMap::new();
            let working = self.kept.values().filter(|kept| kept.is_running());
            for kept in working {
                *running.entry(&kept.family).or_default() += 1;
            }
            let paused = self.paused();
            let busy = running.values().sum::<usize>().saturating_sub(paused);
            self.capacity.change(self.held, busy);
            self.held = busy;
            let most = self.limits.max_running;
            let may_start = |parent: &SessionId| running.get(parent).copied().unwrap_or(0) < most;
            // A place is taken only for a run that can start: freeing one wakes every actor.
            if !self.queue.has_next(may_start) || !self.capacity.take(self.limits.max_in_process) {
                return;
            }
            self.held += 1;
            let Some(id) = self.queue.next(may_start) else { return };
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            kept.record.status = Status::Running;
            if let Some(permit) = kept.run.as_mut().and_then(|run| run.permit.take()) {
                // A run that was cancelled meanwhile reports it by its end.
                permit.send(()).ok();
            }
        }
    }

    /// How many children only wait for their own children.
    fn paused(&self) -> usize {
        let waiting = self.waiters.iter().filter(|waiter| !waiter.reply.is_closed());
        let behalf: HashSet<&str> =
            waiting.filter_map(|waiter| waiter.on_behalf.as_deref()).collect();
        // A child that a person resumed occupies no place here.
        let is_running = |id: &&&str| self.kept.get(**id).is_some_and(Kept::is_running);
        behalf.iter().filter(is_running).count()
    }

    fn run_over(&mut self, over: Result<(TaskId, Over), JoinError>) {
        let (task, over) = match over {
            Ok((task, over)) => (task, Some(over)),
            Err(error) => {
                tracing::error!(%error, "the task of a Subagent crashed");
                (error.id(), None)
            }
        };
        let Some(id) = self.tasks.remove(&task) else { return };
        self.queue.remove(&id);
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let before = kept.run.take().and_then(|run| run.before);
        match (over, before) {
            (Some(Over::Ended(record)), _) => {
                let is_closed = kept.record.is_closed;
                kept.record = Record { is_told: false, is_closed, ..*record };
            }
            (Some(Over::Refused), Some(before)) => kept.record = before,
            (Some(Over::Refused), None) => self.drop_child(&id),
            (None, _) => kept.record.status = Status::Failed,
        }
        for waiter in &mut self.waiters {
            if waiter.left.remove(&id) && waiter.rule == Rule::Any {
                waiter.left.clear();
            }
        }
        self.wake();
        self.schedule();
    }

    fn drop_child(&mut self, id: &str) {
        if let Some(kept) = self.kept.remove(id)
            && let Some(brood) = self.broods.get_mut(&kept.family)
        {
            brood.children.retain(|own| own != id);
        }
    }

    fn wake(&mut self) {
        for waiter in self.waiters.extract_if(.., |waiter| waiter.left.is_empty()) {
            waiter.reply.send(()).ok();
        }
    }

    fn wait(&mut self, ids: Vec<String>, rule: Rule, on_behalf: Option<String>, reply: Reply<()>) {
        let count = ids.len();
        let is_busy = |id: &String| self.kept.get(id).is_some_and(|kept| kept.run.is_some());
        let mut left: HashSet<String> = ids.into_iter().filter(is_busy).collect();
        if rule == Rule::Any && left.len() < count {
            left.clear();
        }
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiters.push(Waiter { left, rule, on_behalf, reply });
        self.wake();
        // A waiting child frees its place.
        self.schedule();
    }

    fn wait_for(&mut self, left: HashSet<String>, on_behalf: Option<String>, reply: Reply<()>) {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiters.push(Waiter { left, rule: Rule::All, on_behalf, reply });
        self.wake();
        self.schedule();
    }

    fn busy(&self, family: &SessionId) -> HashSet<String> {
        let own = self.kept.iter().filter(|(_, kept)| kept.family == *family);
        own.filter(|(_, kept)| kept.run.is_some()).map(|(id, _)| id.clone()).collect()
    }

    fn look(&self, family: &SessionId, ids: Option<Vec<String>>) -> Result<Vec<View>, ToolError> {
        let brood = self.broods.get(family);
        let all = brood.map(|brood| brood.children.as_slice()).unwrap_or_default();
        let ids = ids.unwrap_or_else(|| all.to_vec());
        ids.iter().map(|id| self.find(family, id).map(|kept| self.view(kept))).collect()
    }

    fn find(&self, family: &SessionId, id: &str) -> Result<&Kept, ToolError> {
        let own = self.kept.get(id).filter(|kept| kept.family == *family);
        own.ok_or_else(|| show::unknown(id))
    }

    fn view(&self, kept: &Kept) -> View {
        let mut record = kept.record.clone();
        let mut doing = String::new();
        if let Some(run) = &kept.run {
            record.elapsed = run.progress.worked();
            record.usage.add(&run.progress.usage());
            doing = run.progress.doing();
        }
        View { place: self.queue.place(&record.id), record, doing }
    }

    fn close(&mut self, family: &SessionId, id: &str) -> Result<View, ToolError> {
        let view = self.view(self.find(family, id)?);
        if let Some(kept) = self.kept.get_mut(id) {
            kept.record.is_closed = true;
            if let Some(run) = &kept.run {
                run.cancel.cancel();
            }
        }
        Ok(view)
    }
}

/// The error when the limit of children per run is reached.
fn too_many(most: usize) -> ToolError {
    let message = format!(
        "this run has started {}, the most it may (`subagents.max_per_run` of the config)",
        counted(most, "Subagent")
    );
    ToolError::new(Kind::BudgetExceeded, message)
        .details(json!({ "budget": "subagents.max_per_run", "limit": most }))
        .next("do the rest without further Subagents, or tell the user to raise that limit")
}

impl Kept {
    fn is_running(&self) -> bool {
        self.record.status == Status::Running && self.run.is_some()
    }
}
