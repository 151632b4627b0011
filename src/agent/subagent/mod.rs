//! Subagents: child Sessions that a Session starts, and their runs.
//!
//! One actor per Harness owns every child; `Children` is the handle for those of one Session. A
//! parent uses its children through Tools. Neither `session` nor `turn` knows this module.

mod actor;
mod child_factory;
mod concurrency_limit;
mod constraints;
mod delegation_context;
mod progress;
mod questions;
mod queue;
mod record;
mod recorded_children;
mod run;
mod show;
mod spec;
#[cfg(test)]
mod tests;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use child_factory::{ChildFactory, image_support_and_window};
pub use concurrency_limit::ConcurrencyLimit;
pub use constraints::Constraints;
pub use record::{SubagentRecord, SubagentStatus, SubagentView};
pub use recorded_children::read_children;
pub use show::{child_json, parse_verdict, status_line};
pub use spec::{SpawnArgs, WorkspaceMode};
pub use tools::subagent_tool_specs as tool_specs;

use crate::agent::child_workspace::{ChildWorkspaces, CloseOutcome};
use crate::agent::session::{Session, SessionError};
use crate::agent::turn::{TurnSettings, UsageTotal};
use crate::base::error::Kind;
use crate::base::id::SessionId;
use crate::base::tool_error::ToolError;
use crate::host::process::CommandRunner;
use crate::record::event::PermissionMode;
use crate::record::history::History;
use crate::settings::config::Config;
use crate::settings::role::{Role, stricter_mode};
use crate::tools::toolbox::{Cleanup, Toolbox};
use actor::{Actor, Inbox, SubagentReply, WaitRule};
use child_factory::ParentContext;
use run::{ParentLink, SubagentJob};
use spec::{Requester, SubagentSpec};

/// How many messages may wait for the actor.
const INBOX_CAPACITY: usize = 256;

/// How long to wait for cancelled children.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The handle of the actor; cheap to clone.
#[derive(Clone)]
pub struct SubagentRegistry {
    inbox: mpsc::Sender<Inbox>,
    child_factory: Arc<ChildFactory>,
}

impl SubagentRegistry {
    /// Starts the actor; it ends with the last handle.
    pub fn new(child_factory: ChildFactory, capacity: ConcurrencyLimit) -> Self {
        let (inbox, messages) = mpsc::channel(INBOX_CAPACITY);
        let actor = Actor::new(child_factory.config.subagents, capacity);
        // The task is detached: it ends with the last handle, and its result is not needed.
        tokio::spawn(actor.run(messages));
        Self { inbox, child_factory: Arc::new(child_factory) }
    }

    /// Registers the Session of a parent that this process has not registered. Children that were
    /// running when their process died are recorded as detached.
    pub async fn register_parent(
        &self,
        of: ParentSession,
        history: &History,
    ) -> Result<Arc<Children>, SessionError> {
        let ParentSession { session, depth, subagent_id: own, is_usage_counted, settings } = of;
        let token = CancellationToken::new();
        let mut records = Vec::new();
        if history.facts().next().is_some() {
            // Children of an earlier handle record their ends first.
            self.wait_idle(session.id(), STOP_TIMEOUT).await;
            let usage_total = Some(&settings.usage_total).filter(|_| !is_usage_counted);
            records = detach_lost_children(&session, usage_total).await?;
        }
        let parent = session.id().clone();
        let register = Inbox::Register { parent, records, token: token.clone() };
        self.inbox.send(register).await.map_err(|_| SessionError::Closed)?;
        let base = Mutex::new(Arc::new(without_tools(&settings)));
        let (subagents, guard) = (self.clone(), token.clone().drop_guard());
        Ok(Arc::new(Children {
            session,
            depth,
            subagent_id: own,
            base,
            token,
            subagents,
            _guard: guard,
        }))
    }

    /// Waits until no child of a Session is running or queued.
    async fn wait_idle(&self, parent: &SessionId, patience: Duration) {
        let parent = parent.clone();
        let idle = self.request(|reply| Inbox::WaitIdle { parent, on_behalf: None, reply });
        tokio::time::timeout(patience, idle).await.ok();
    }

    async fn request<T>(
        &self,
        message: impl FnOnce(SubagentReply<T>) -> Inbox,
    ) -> Result<T, ToolError> {
        let gone =
            || ToolError::new(Kind::SessionClosed, "the Subagents of this process have ended");
        let (reply, answer) = oneshot::channel();
        self.inbox.send(message(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

/// The Session of a parent, with its depth and settings.
pub struct ParentSession {
    pub session: Session,
    /// The depth in the tree; a root has 0.
    pub depth: u32,
    /// Its own Subagent id, if it is a child.
    pub subagent_id: Option<String>,
    /// Whether the usage of children that were running when the process died has been added to the
    /// parent's total.
    pub is_usage_counted: bool,
    pub settings: TurnSettings,
}

/// The children of one Session. The Tools of its Conversations hold it; when the last of them is
/// dropped, all children are cancelled.
pub struct Children {
    session: Session,
    depth: u32,
    subagent_id: Option<String>,
    /// Settings that children inherit; a leaf lock, replaced when the settings of the Session
    /// change.
    base: Mutex<Arc<TurnSettings>>,
    token: CancellationToken,
    subagents: SubagentRegistry,
    _guard: DropGuard,
}

impl Children {
    /// Adds the Tools for Subagents to settings, if the Session may have children.
    pub fn with_tools(self: &Arc<Self>, settings: TurnSettings) -> TurnSettings {
        let may_have = self.depth < self.subagents.child_factory.config.subagents.max_depth;
        let tools = if may_have { tools::subagent_tools(self) } else { Vec::new() };
        let children = Arc::clone(self);
        let rest: Cleanup = Arc::new(move || {
            let children = Arc::clone(&children);
            Box::pin(async move { children.cancel_all().await })
        });
        settings.with_tools(tools, rest)
    }

    /// Sets the settings that children inherit.
    pub fn set_base_settings(&self, settings: &TurnSettings) {
        *self.base.lock() = Arc::new(without_tools(settings));
    }

    /// The settings that children inherit.
    pub fn base_settings(&self) -> Arc<TurnSettings> {
        Arc::clone(&self.base.lock())
    }

    /// All children, in the order they were started.
    pub async fn all_views(&self) -> Vec<SubagentView> {
        self.views(None).await.unwrap_or_default()
    }

    /// Cancels all running and queued children, and returns when that is recorded.
    pub async fn cancel_all(&self) {
        let parent = self.session.id().clone();
        let cancelled = self.subagents.request(|reply| Inbox::CancelAll { parent, reply });
        tokio::time::timeout(STOP_TIMEOUT, cancelled).await.ok();
    }

    /// Waits until no child is running or queued.
    pub async fn wait_idle(&self) {
        let (parent, on_behalf) = (self.session.id().clone(), self.subagent_id.clone());
        // An actor that has ended has no children.
        self.subagents.request(|reply| Inbox::WaitIdle { parent, on_behalf, reply }).await.ok();
    }

    /// Starts a child under the constraints of a Workflow; `cancel` cancels it.
    pub async fn spawn(
        &self,
        args: &SpawnArgs,
        constraints: Constraints,
        cancel: CancellationToken,
    ) -> Result<SubagentRecord, ToolError> {
        let mut spec = SubagentSpec::from_args(
            args,
            &self.requester(),
            &self.subagents.child_factory.config.subagents,
        )?;
        if constraints.is_read_only {
            spec.mode = stricter_mode(&spec.mode, &PermissionMode::ReadOnly);
        }
        let base = self.base_settings();
        let record = SubagentRecord::new(&spec, &base.model, base.effort.as_deref());
        let SubagentSpec { task, resources, .. } = spec;
        let parent_link = self.parent_link(cancel);
        self.start_run(SubagentJob { record, text: task, resources, constraints, parent_link })
            .await
    }

    /// Sends another message to a child whose run is over; `cancel` cancels the new run.
    pub async fn send_message(
        &self,
        record: SubagentRecord,
        text: String,
        constraints: Constraints,
        cancel: CancellationToken,
    ) -> Result<SubagentRecord, ToolError> {
        let parent_link = self.parent_link(cancel);
        self.start_run(SubagentJob {
            record,
            text,
            resources: Vec::new(),
            constraints,
            parent_link,
        })
        .await
    }

    /// Waits for the end of a child's run.
    pub async fn wait_for_end(&self, id: &str) -> Result<SubagentRecord, ToolError> {
        let ids = vec![id.to_owned()];
        self.wait_for_ids(ids.clone(), WaitRule::All).await?;
        let mut views = self.views(Some(ids.clone())).await?;
        self.mark_reported(ids).await;
        views.pop().map(|view| view.record).ok_or_else(|| show::unknown_subagent_error(id))
    }

    /// The Session of the parent.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The registry of child Workspaces.
    pub fn child_workspaces(&self) -> &ChildWorkspaces {
        &self.subagents.child_factory.child_workspaces
    }

    /// The starter of host commands.
    pub fn commands(&self) -> &CommandRunner {
        &self.subagents.child_factory.commands
    }

    /// The settings of the process.
    pub fn config(&self) -> &Config {
        &self.subagents.child_factory.config
    }

    /// Opens the Session of a child that is not running.
    pub async fn open_child(&self, child: &SessionId) -> Result<Session, SessionError> {
        let child_factory = &self.subagents.child_factory;
        let logs = self.session.state_root();
        child_factory
            .sessions
            .open(logs, child, child_factory.session_options.clone())
            .await
            .map(|(own, _)| own)
    }

    fn requester(&self) -> Requester {
        let base = self.base_settings();
        let role_catalog =
            self.subagents.child_factory.load_roles(self.session.state_root().workspace());
        Requester {
            mode: base.permission_state.mode(),
            depth: self.depth,
            role: base.role,
            role_catalog,
        }
    }

    /// The role of a child for another run.
    fn resolve_role(&self, record: &SubagentRecord) -> Result<&'static Role, ToolError> {
        let base = self.base_settings();
        let (parent, constraints) = (self.session.id(), &Constraints::default());
        let of = ParentContext { parent, base: &base, subagents: &self.subagents, constraints };
        self.subagents.child_factory.resolve_role(record, &of)
    }

    /// The parent of a run, and everything that cancels it.
    fn parent_link(&self, turn: CancellationToken) -> ParentLink {
        ParentLink {
            parent: self.session.clone(),
            base: self.base_settings(),
            subagents: self.subagents.clone(),
            parent_closed: self.token.clone(),
            turn_cancelled: turn,
        }
    }

    async fn start_run(&self, job: SubagentJob) -> Result<SubagentRecord, ToolError> {
        let job = Box::new(job);
        self.subagents.request(|reply| Inbox::Start { job, reply }).await?
    }

    async fn views(&self, ids: Option<Vec<String>>) -> Result<Vec<SubagentView>, ToolError> {
        let parent = self.session.id().clone();
        self.subagents.request(|reply| Inbox::Views { parent, ids, reply }).await?
    }

    async fn wait_for_ids(&self, ids: Vec<String>, rule: WaitRule) -> Result<(), ToolError> {
        let on_behalf = self.subagent_id.clone();
        self.subagents.request(|reply| Inbox::Wait { ids, rule, on_behalf, reply }).await
    }

    async fn mark_reported(&self, ids: Vec<String>) {
        self.subagents.inbox.send(Inbox::MarkReported { ids }).await.ok();
    }

    /// Removes the child Workspace of a closed child, unless it has unmerged changes; returns a
    /// notice.
    async fn close_workspace(&self, child: &SessionId) -> Option<String> {
        let logs = self.session.state_root();
        let child_workspaces = &self.subagents.child_factory.child_workspaces;
        let child_workspace = child_workspaces.find(logs, child).ok().flatten()?;
        match child_workspaces.close(&child_workspace).await {
            Ok(CloseOutcome::Removed { branch: None }) => None,
            Ok(CloseOutcome::Removed { branch: Some(branch) }) => {
                Some(format!("its worktree was removed, its commits are on {branch}"))
            }
            Ok(CloseOutcome::Kept { changes }) => {
                Some(format!("its workspace was kept: {changes} changes are not merged"))
            }
            Err(error) => Some(format!("its workspace was kept: {error}")),
        }
    }

    async fn close_child(&self, id: &str) -> Result<SubagentView, ToolError> {
        let (parent, id) = (self.session.id().clone(), id.to_owned());
        self.subagents.request(|reply| Inbox::Close { parent, id, reply }).await?
    }
}

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Children").field("parent", self.session.id()).finish_non_exhaustive()
    }
}

/// Settings without Tools: a `Children` that held those would keep itself alive.
fn without_tools(settings: &TurnSettings) -> TurnSettings {
    let none = Toolbox::new([]);
    TurnSettings { toolbox: none.clone(), tools: none, ..settings.clone() }
}

/// Records the ends of children whose process died, and returns the records of all children. Their
/// usage is added to `usage_total`, unless that was done when their parent's parent was opened.
async fn detach_lost_children(
    session: &Session,
    usage_total: Option<&UsageTotal>,
) -> Result<Vec<SubagentRecord>, SessionError> {
    let mut records = SubagentRecord::read_all(&session.history().await?);
    for record in records.iter_mut().filter(|record| !record.status.is_over()) {
        let logs = session.state_root();
        record.detach(logs);
        record.is_reported = false;
        let (usage, worked) = recorded_children::read_run_usage(logs, record);
        record.elapsed = worked;
        session.record(record.ended_event(usage).into()).await?;
        record.usage.add(&usage);
        if let Some(usage_total) = usage_total {
            usage_total.add_subagent(&usage);
        }
    }
    Ok(records)
}
