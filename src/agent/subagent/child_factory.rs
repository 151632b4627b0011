//! Creates and opens child Sessions, with the settings of their parent, narrowed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::constraints::{self, Constraints};
use super::record::SubagentRecord;
use super::spec::{self, WorkspaceMode};
use super::{Children, ParentSession, SubagentRegistry};
use crate::agent::child_workspace;
use crate::agent::child_workspace::{ChildWorkspace, ChildWorkspaceError, ChildWorkspaces};
use crate::agent::conversation::Conversation;
use crate::agent::session::{LiveSessions, Session, SessionError, SessionOptions};
use crate::agent::turn::{PermissionState, PromptParts, TurnSettings};
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::base::tool_error::ToolError;
use crate::host::process::CommandRunner;
use crate::host::sandbox::Profile;
use crate::host::snapshot::{SurveyLimits, TurnTracker};
use crate::host::workspace::Workspace;
use crate::model::credential::{Credential, FieldPolicy};
use crate::model::prompt;
use crate::model::roles::RoleCatalog;
use crate::model::skill::DiscoveryFolders;
use crate::record::event::{Extra, InitialPosture, LOG_VERSION, PostureChanged, SessionStarted};
use crate::record::history::History;
use crate::record::log::LogError;
use crate::record::resource::{Attachment, Resources};
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::bounds::WriteBounds;
use crate::settings::config::{Config, ContextWindowSize, ImageSupport};
use crate::settings::role::Role;
use crate::tools::shell::BackgroundCommands;
use crate::tools::toolbox::Toolbox;

/// The factory of child Sessions, with what all of them share.
pub struct ChildFactory {
    pub sessions: Arc<LiveSessions>,
    pub session_options: SessionOptions,
    pub config: Config,
    pub commands: CommandRunner,
    /// The registry of child Workspaces.
    pub child_workspaces: ChildWorkspaces,
    /// The user's home folder; `None` if it is unknown.
    pub user_home: Option<PathBuf>,
    pub credential: Credential,
}

/// The open Conversation of a child.
pub struct ChildHandle {
    pub conversation: Conversation,
    /// The children of the child.
    pub children: Arc<Children>,
}

/// The parent of a child.
#[derive(Clone, Copy)]
pub struct ParentContext<'a> {
    pub parent: &'a SessionId,
    pub base: &'a TurnSettings,
    pub subagents: &'a SubagentRegistry,
    pub constraints: &'a Constraints,
}

impl ParentContext<'_> {
    /// The state root of the Logs of the whole tree, whatever Workspaces its Sessions use.
    fn logs(&self) -> &StateRoot {
        self.base.session_folder.root()
    }

    /// Write bounds of a new child.
    fn bounds(&self) -> Result<WriteBounds, Report> {
        self.constraints
            .narrow_bounds(self.base.workspace.bounds())
            .map_err(|reason| invalid_bounds(&reason))
    }
}

/// Why a child was not created.
pub enum SpawnError {
    /// A Session with that id exists.
    IdTaken,
    Failed(Report),
}

impl<E: Into<Report>> From<E> for SpawnError {
    fn from(error: E) -> Self {
        SpawnError::Failed(error.into())
    }
}

impl ChildFactory {
    /// The roles of a Workspace.
    pub fn load_roles(&self, workspace: &Path) -> RoleCatalog {
        RoleCatalog::new(&DiscoveryFolders {
            workspace: workspace.to_owned(),
            user: self.user_home.clone(),
            home: self.config.home.clone(),
        })
    }

    /// The role of a child, limited to its parent's. Fails if the file of a role is gone, or not
    /// trusted any more.
    pub fn resolve_role(
        &self,
        record: &SubagentRecord,
        of: &ParentContext<'_>,
    ) -> Result<&'static Role, ToolError> {
        let role = spec::find_role(&record.role, &self.load_roles(of.logs().workspace()))?;
        Ok(role.restricted_to(of.base.role))
    }

    /// Creates a child with a Session of that id.
    pub async fn create(
        &self,
        id: &SessionId,
        record: &SubagentRecord,
        of: ParentContext<'_>,
    ) -> Result<ChildHandle, SpawnError> {
        let role = self.resolve_role(record, &of)?;
        let bounds = of.bounds()?;
        let child_workspace = self.create_workspace(id, record, &of).await?;
        let session =
            self.create_session(id, record, &of, role, child_workspace.as_ref(), &bounds)?;
        for globs in bounds.sets().skip(1) {
            let narrower = PostureChanged {
                allow_write: globs.allow.clone(),
                deny_write: globs.deny.clone(),
                ..PostureChanged::default()
            };
            session.record(narrower.into()).await?;
        }
        let workspace = match &child_workspace {
            Some(child_workspace) => self.open_workspace(child_workspace)?,
            None => of.base.workspace.clone(),
        };
        let (workspace, history) = (workspace.with_bounds(bounds), History::default());
        Ok(self.open_conversation(session, workspace, record, role, &of, &history).await?)
    }

    /// Creates the child Workspace of a new child, if it is to have one. It is created before the Log,
    /// so that a failure leaves no Session.
    async fn create_workspace(
        &self,
        id: &SessionId,
        record: &SubagentRecord,
        of: &ParentContext<'_>,
    ) -> Result<Option<ChildWorkspace>, SpawnError> {
        let mode = match record.workspace {
            WorkspaceMode::Shared => return Ok(None),
            WorkspaceMode::Isolated => child_workspace::ChildWorkspaceMode::Isolated,
            WorkspaceMode::Worktree => child_workspace::ChildWorkspaceMode::Worktree,
        };
        let wanted = child_workspace::ChildWorkspaceRequest {
            child: id.clone(),
            parent: of.parent.clone(),
            subagent: Some(record.id.clone()),
            logs: of.logs().clone(),
            workspace: of.base.workspace.clone(),
            mode,
        };
        match self.child_workspaces.create(wanted).await {
            Err(error) if error.is_already_registered() => Err(SpawnError::IdTaken),
            other => Ok(Some(other?)),
        }
    }

    /// The Workspace of an existing child. A child that had its own never works in its parent's.
    fn find_workspace(
        &self,
        child: &SessionId,
        record: &SubagentRecord,
        of: &ParentContext<'_>,
    ) -> Result<Workspace, Report> {
        match self.child_workspaces.find(of.logs(), child)? {
            Some(child_workspace) => self.open_workspace(&child_workspace),
            None if record.workspace == WorkspaceMode::Shared => Ok(of.base.workspace.clone()),
            None => {
                Err(Report::describe(&ChildWorkspaceError::AlreadyClosed { child: child.clone() }))
            }
        }
    }

    fn open_workspace(&self, child_workspace: &ChildWorkspace) -> Result<Workspace, Report> {
        Ok(Workspace::open(child_workspace.folder())?.with_hidden_folder(self.config.home.path()))
    }

    /// Opens a child that has a Log.
    pub async fn open(
        &self,
        child: &SessionId,
        record: &SubagentRecord,
        of: ParentContext<'_>,
    ) -> Result<ChildHandle, Report> {
        let role = self.resolve_role(record, &of)?;
        let workspace = self.find_workspace(child, record, &of)?;
        let (session, _) =
            self.sessions.open(of.logs(), child, self.session_options.clone()).await?;
        let history = session.history().await?;
        let bounds = constraints::recorded_bounds(&history, of.base.workspace.bounds())
            .map_err(|reason| invalid_bounds(&reason))?;
        let workspace = workspace.with_bounds(bounds);
        self.open_conversation(session, workspace, record, role, &of, &history).await
    }

    fn create_session(
        &self,
        id: &SessionId,
        record: &SubagentRecord,
        of: &ParentContext<'_>,
        role: &Role,
        child_workspace: Option<&ChildWorkspace>,
        bounds: &WriteBounds,
    ) -> Result<Session, SpawnError> {
        let folder = child_workspace.map_or(of.base.workspace.root(), ChildWorkspace::folder);
        let globs = bounds.sets().next().cloned().unwrap_or_default();
        let posture = InitialPosture {
            pixir_version: env!("CARGO_PKG_VERSION").to_owned(),
            log_version: LOG_VERSION,
            workspace: folder.to_string_lossy().into_owned(),
            role: role.name.to_owned(),
            permission_mode: record.mode.clone(),
            sandbox_mode: self.config.sandbox.level.name().to_owned(),
            model: record.model.clone(),
            effort: record.effort.clone(),
            allow_write: globs.allow,
            deny_write: globs.deny,
        };
        let first = SessionStarted {
            posture,
            parent_session_id: Some(of.parent.to_string()),
            subagent_id: Some(record.id.clone()),
            extra: Extra::from_iter([
                ("depth".to_owned(), json!(record.depth)),
                ("attempt".to_owned(), json!(record.attempt)),
                ("workspace_mode".to_owned(), json!(record.workspace.name())),
            ]),
        };
        match self.sessions.create(of.logs(), id, first.into(), self.session_options.clone()) {
            Err(SessionError::Log(LogError::AlreadyExists { .. })) => Err(SpawnError::IdTaken),
            made => Ok(made?),
        }
    }

    async fn open_conversation(
        &self,
        session: Session,
        workspace: Workspace,
        record: &SubagentRecord,
        role: &'static Role,
        of: &ParentContext<'_>,
        history: &History,
    ) -> Result<ChildHandle, Report> {
        let settings = self.child_settings(&session, workspace, record, role, of, history);
        let deepest = self.config.subagents.max_depth;
        let parent_session = ParentSession {
            session: session.clone(),
            depth: if of.constraints.is_leaf { deepest } else { record.depth },
            subagent_id: Some(record.id.clone()),
            is_usage_counted: true,
            settings: settings.clone(),
        };
        let children = of.subagents.register_parent(parent_session, history).await?;
        let settings = children.with_tools(settings);
        Ok(ChildHandle { conversation: Conversation::new(session, settings, Vec::new()), children })
    }

    fn child_settings(
        &self,
        session: &Session,
        workspace: Workspace,
        record: &SubagentRecord,
        role: &'static Role,
        of: &ParentContext<'_>,
        history: &History,
    ) -> TurnSettings {
        let base = of.base;
        let folder = of.logs().session_folder(session.id());
        let resources = Resources::new(&folder.folder()).with_history(history);
        let background = BackgroundCommands::new(self.config.bash.max_background, history);
        let commands = self.commands.clone();
        let mut tools = Toolbox::with_background(
            &self.config,
            commands,
            history,
            resources.clone(),
            background,
        );
        if base.tools.find_tool("skill_view").is_ok() {
            tools = tools.with_skills(&base.skills);
        }
        // A Log can be planted, and a parent may have become stricter since.
        let mode = role.limit_mode(&crate::settings::role::stricter_mode(
            &record.mode,
            &base.permission_state.mode(),
        ));
        let sandbox_profile = Profile::for_mode(self.config.sandbox.level, &mode);
        let model = record.model.clone().unwrap_or_else(|| base.model.clone());
        let cache_scope = format!("{}:{}", of.parent, role.name);
        let (image_support, window) =
            image_support_and_window(&self.config, &self.credential, &model);
        TurnSettings {
            toolbox: tools.clone().for_role(role),
            tools,
            role,
            permission_state: PermissionState::for_child(
                &base.permission_state,
                mode,
                sandbox_profile,
            ),
            image_support,
            window,
            // The child's History is not its parent's.
            pressure_gauge: Arc::default(),
            usage_total: of
                .constraints
                .usage_total
                .as_ref()
                .unwrap_or(&base.usage_total)
                .for_child(),
            prompt: PromptParts {
                // Siblings of one role share their prefix, so they share the cache.
                cache_key: prompt::cache_key(prompt::VERSION, &model, &cache_scope),
                ..base.prompt.clone()
            },
            model,
            effort: record.effort.clone(),
            tracker: self.tracker(&workspace, &folder),
            workspace,
            resources,
            output_folders: std::iter::once(&folder)
                .chain(&*base.output_folders)
                .cloned()
                .collect(),
            session_folder: folder,
            // The user's schema is for the answer of the root Session only.
            response_options: crate::model::provider::ResponseOptions {
                answer_schema: of.constraints.answer_schema.clone(),
                ..base.response_options.clone()
            },
            ..base.clone()
        }
    }

    fn tracker(&self, workspace: &Workspace, folder: &SessionFolder) -> Option<TurnTracker> {
        let limits = SurveyLimits::from_undo_settings(self.config.undo);
        let make = || TurnTracker::new(workspace.clone(), folder.clone(), limits);
        self.config.undo.enabled.then(make)
    }
}

/// Image support and context window of a model.
pub fn image_support_and_window(
    config: &Config,
    credential: &Credential,
    model: &str,
) -> (ImageSupport, ContextWindowSize) {
    let endpoint = || (config.home.clone(), credential.base_url());
    let takes_images = credential.policy() != FieldPolicy::Portable;
    let image_support = ImageSupport::new(takes_images, endpoint(), model);
    (image_support, ContextWindowSize::new(config.context_window, endpoint(), model))
}

/// The error for bounds that cannot be used: without them, the child could write more.
fn invalid_bounds(reason: &str) -> Report {
    Report::new(Kind::InvalidArgs, format!("write bounds: {reason}"))
}

/// The Resources that a parent passes to a child, by their ids.
pub fn inherited_attachments(
    base: &TurnSettings,
    ids: &[String],
) -> Result<Vec<Attachment>, Report> {
    let mut attachments = Vec::new();
    for id in ids {
        let lost = |reason: String| Report::new(Kind::NotFound, reason);
        let Some(descriptor) = base.resources.find(id) else {
            return Err(lost(format!("there is no Resource `{id}`")));
        };
        let gone = |_| lost(format!("the bytes of Resource `{id}` are gone"));
        let bytes = base.resources.bytes(&descriptor).map_err(gone)?;
        attachments.push(Attachment::from_bytes(&descriptor.name, bytes)?);
    }
    Ok(attachments)
}
