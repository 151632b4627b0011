//! Subagents: child Sessions that a Session starts, and their runs.
//!
//! One actor per Harness owns every child; `Children` is the handle for those of one Session. A
//! parent uses its children through Tools. Neither `session` nor `turn` knows this module.

mod actor;
mod capacity;
mod context;
mod durable;
mod nursery;
mod progress;
mod questions;
mod queue;
mod record;
mod run;
mod show;
mod spec;
mod terms;
#[cfg(test)]
mod tests;
mod tools;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use capacity::Capacity;
pub use durable::children;
pub use nursery::{Nursery, senses};
pub use record::{Record, Status, View};
pub use show::{line, value, verdict};
pub use spec::{Wish, WorkspaceMode};
pub use terms::Terms;
pub use tools::specs as tool_specs;

use crate::agent::child_workspace::{Annexes, Closed};
use crate::agent::session::{Session, SessionError};
use crate::agent::turn::{Purse, Settings};
use crate::base::error::Kind;
use crate::base::id::SessionId;
use crate::base::tool_error::ToolError;
use crate::host::process::Commands;
use crate::record::event::PermissionMode;
use crate::record::history::History;
use crate::settings::config::Config;
use crate::settings::role::{Role, strictest};
use crate::tools::toolbox::{Rest, Toolbox};
use actor::{Actor, Inbox, Reply, Rule};
use nursery::Parentage;
use run::{Job, Link};
use spec::{Spec, Wisher};

/// How many messages may wait for the actor.
const INBOX: usize = 256;

/// How long to wait for cancelled children.
const LEAVING: Duration = Duration::from_secs(3);

/// The handle of the actor; cheap to clone.
#[derive(Clone)]
pub struct Subagents {
    inbox: mpsc::Sender<Inbox>,
    nursery: Arc<Nursery>,
}

impl Subagents {
    /// Starts the actor; it ends with the last handle.
    pub fn new(nursery: Nursery, capacity: Capacity) -> Self {
        let (inbox, messages) = mpsc::channel(INBOX);
        let actor = Actor::new(nursery.config.subagents, capacity);
        // The task is detached: it ends with the last handle, and its result is not needed.
        tokio::spawn(actor.run(messages));
        Self { inbox, nursery: Arc::new(nursery) }
    }

    /// Registers the Session of a parent that this process has not registered. Children that a dead
    /// process left at work are recorded as detached.
    pub async fn family(&self, of: Kin, history: &History) -> Result<Arc<Family>, SessionError> {
        let Kin { session, depth, own, is_paid, settings } = of;
        let token = CancellationToken::new();
        let mut records = Vec::new();
        if history.facts().next().is_some() {
            // Children of an earlier handle record their ends first.
            self.idle(session.id(), LEAVING).await;
            let purse = Some(&settings.purse).filter(|_| !is_paid);
            records = detach(&session, purse).await?;
        }
        let family = session.id().clone();
        let register = Inbox::Register { family, records, token: token.clone() };
        self.inbox.send(register).await.map_err(|_| SessionError::Closed)?;
        let base = Mutex::new(Arc::new(bare(&settings)));
        let (subagents, guard) = (self.clone(), token.clone().drop_guard());
        Ok(Arc::new(Family { session, depth, own, base, token, subagents, _guard: guard }))
    }

    /// Waits until no child of a Session works or is queued.
    async fn idle(&self, family: &SessionId, patience: Duration) {
        let family = family.clone();
        let idle = self.ask(|reply| Inbox::Idle { family, on_behalf: None, reply });
        tokio::time::timeout(patience, idle).await.ok();
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Inbox) -> Result<T, ToolError> {
        let gone =
            || ToolError::new(Kind::SessionClosed, "the Subagents of this process have ended");
        let (reply, answer) = oneshot::channel();
        self.inbox.send(message(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

/// The Session of a parent, with its depth and settings.
pub struct Kin {
    pub session: Session,
    /// A root has 0.
    pub depth: u32,
    /// Its own Subagent id, if it is a child.
    pub own: Option<String>,
    /// Whether the usage of children that were running when the process died has been added to the
    /// parent's total.
    pub is_paid: bool,
    pub settings: Settings,
}

/// The children of one Session. Held by the Tools of its Conversations; with the last of them all
/// children are cancelled.
pub struct Family {
    session: Session,
    depth: u32,
    own: Option<String>,
    /// Settings that children inherit; a leaf lock, replaced when the settings of the Session
    /// change.
    base: Mutex<Arc<Settings>>,
    token: CancellationToken,
    subagents: Subagents,
    _guard: DropGuard,
}

impl Family {
    /// These settings with the Tools for Subagents, if the Session may have children.
    pub fn equip(self: &Arc<Self>, settings: Settings) -> Settings {
        let may_have = self.depth < self.subagents.nursery.config.subagents.max_depth;
        let tools = if may_have { tools::all(self) } else { Vec::new() };
        let family = Arc::clone(self);
        let rest: Rest = Arc::new(move || {
            let family = Arc::clone(&family);
            Box::pin(async move { family.cancel_all().await })
        });
        settings.with_tools(tools, rest)
    }

    /// Sets the settings that children inherit.
    pub fn follow(&self, settings: &Settings) {
        *self.base.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(bare(settings));
    }

    /// The settings that children inherit.
    pub fn base(&self) -> Arc<Settings> {
        Arc::clone(&self.base.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All children, in the order they were started.
    pub async fn children(&self) -> Vec<View> {
        self.look(None).await.unwrap_or_default()
    }

    /// Cancels all working and queued children, and returns when that is recorded.
    pub async fn cancel_all(&self) {
        let family = self.session.id().clone();
        let cancelled = self.subagents.ask(|reply| Inbox::CancelAll { family, reply });
        tokio::time::timeout(LEAVING, cancelled).await.ok();
    }

    /// Waits until no child works or is queued.
    pub async fn idle(&self) {
        let (family, on_behalf) = (self.session.id().clone(), self.own.clone());
        // An actor that has ended has no children.
        self.subagents.ask(|reply| Inbox::Idle { family, on_behalf, reply }).await.ok();
    }

    /// Starts a child under the constraints of a Workflow; `cancel` cancels it.
    pub async fn spawn(
        &self,
        wish: &Wish,
        terms: Terms,
        cancel: CancellationToken,
    ) -> Result<Record, ToolError> {
        let mut spec = Spec::of(wish, &self.wisher(), &self.subagents.nursery.config.subagents)?;
        if terms.is_reading {
            spec.mode = strictest(&spec.mode, &PermissionMode::ReadOnly);
        }
        let base = self.base();
        let record = Record::new(&spec, &base.model, base.effort.as_deref());
        let Spec { task, resources, .. } = spec;
        let link = self.link(cancel);
        self.start(Job { record, text: task, resources, terms, link }).await
    }

    /// Sends another message to a child whose run is over; `cancel` cancels the new run.
    pub async fn tell(
        &self,
        record: Record,
        text: String,
        terms: Terms,
        cancel: CancellationToken,
    ) -> Result<Record, ToolError> {
        let link = self.link(cancel);
        self.start(Job { record, text, resources: Vec::new(), terms, link }).await
    }

    /// Waits for the end of a child's run.
    pub async fn over(&self, id: &str) -> Result<Record, ToolError> {
        let ids = vec![id.to_owned()];
        self.wait(ids.clone(), Rule::All).await?;
        let mut views = self.look(Some(ids.clone())).await?;
        self.told(ids).await;
        views.pop().map(|view| view.record).ok_or_else(|| show::unknown(id))
    }

    /// The Session of the parent.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The registry of Workspaces of children's own.
    pub fn annexes(&self) -> &Annexes {
        &self.subagents.nursery.annexes
    }

    /// The starter of host commands.
    pub fn commands(&self) -> &Commands {
        &self.subagents.nursery.commands
    }

    /// The settings of the process.
    pub fn config(&self) -> &Config {
        &self.subagents.nursery.config
    }

    /// Opens the Session of a child that is not at work.
    pub async fn open(&self, child: &SessionId) -> Result<Session, SessionError> {
        let nursery = &self.subagents.nursery;
        let logs = self.session.state_root();
        nursery.sessions.open(logs, child, nursery.manners.clone()).await.map(|(own, _)| own)
    }

    fn wisher(&self) -> Wisher {
        let base = self.base();
        let roster = self.subagents.nursery.roster(self.session.state_root().workspace());
        Wisher { mode: base.stance.mode(), depth: self.depth, role: base.role, roster }
    }

    /// The role of a child for another run.
    fn role_of(&self, record: &Record) -> Result<&'static Role, ToolError> {
        let base = self.base();
        let (parent, terms) = (self.session.id(), &Terms::default());
        let of = Parentage { parent, base: &base, subagents: &self.subagents, terms };
        self.subagents.nursery.role(record, &of)
    }

    /// The parent of a run, and everything that cancels it.
    fn link(&self, turn: CancellationToken) -> Link {
        Link {
            parent: self.session.clone(),
            base: self.base(),
            subagents: self.subagents.clone(),
            family: self.token.clone(),
            turn,
        }
    }

    async fn start(&self, job: Job) -> Result<Record, ToolError> {
        let job = Box::new(job);
        self.subagents.ask(|reply| Inbox::Start { job, reply }).await?
    }

    async fn look(&self, ids: Option<Vec<String>>) -> Result<Vec<View>, ToolError> {
        let family = self.session.id().clone();
        self.subagents.ask(|reply| Inbox::Look { family, ids, reply }).await?
    }

    async fn wait(&self, ids: Vec<String>, rule: Rule) -> Result<(), ToolError> {
        let on_behalf = self.own.clone();
        self.subagents.ask(|reply| Inbox::Wait { ids, rule, on_behalf, reply }).await
    }

    async fn told(&self, ids: Vec<String>) {
        self.subagents.inbox.send(Inbox::Told { ids }).await.ok();
    }

    /// Removes the own Workspace of a closed child, unless it has changes that are nowhere else;
    /// returns a notice.
    async fn clear(&self, child: &SessionId) -> Option<String> {
        let logs = self.session.state_root();
        let annexes = &self.subagents.nursery.annexes;
        let annex = annexes.find(logs, child).ok().flatten()?;
        match annexes.close(&annex).await {
            Ok(Closed::Removed { branch: None }) => None,
            Ok(Closed::Removed { branch: Some(branch) }) => {
                Some(format!("its worktree was removed, its commits are on {branch}"))
            }
            Ok(Closed::Kept { changes }) => {
                Some(format!("its workspace was kept: {changes} changes are not merged"))
            }
            Err(error) => Some(format!("its workspace was kept: {error}")),
        }
    }

    async fn close(&self, id: &str) -> Result<View, ToolError> {
        let (family, id) = (self.session.id().clone(), id.to_owned());
        self.subagents.ask(|reply| Inbox::Close { family, id, reply }).await?
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Family").field("of", self.session.id()).finish_non_exhaustive()
    }
}

/// Settings without Tools: a `Children` that held those would hold itself.
fn bare(settings: &Settings) -> Settings {
    let none = Toolbox::new([]);
    Settings { toolbox: none.clone(), tools: none, ..settings.clone() }
}

/// Records the ends of children whose process died, and returns the records of all children. Their
/// usage is added to `usage_total`, unless that was done when their parent's parent was opened.
async fn detach(session: &Session, purse: Option<&Purse>) -> Result<Vec<Record>, SessionError> {
    let mut records = Record::all(&session.history().await?);
    for record in records.iter_mut().filter(|record| !record.status.is_over()) {
        let logs = session.state_root();
        record.detach(logs);
        record.is_told = false;
        let (usage, worked) = durable::spent(logs, record);
        record.elapsed = worked;
        session.record(record.ended(usage).into()).await?;
        record.usage.add(&usage);
        if let Some(purse) = purse {
            purse.charge(&usage);
        }
    }
    Ok(records)
}
