//! Creates and opens children: a Session of their own, with the settings of their parent, narrowed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::record::Record;
use super::spec::{self, WorkspaceMode};
use super::terms::{self, Terms};
use super::{Family, Kin, Subagents};
use crate::agent::child_workspace;
use crate::agent::child_workspace::{Annex, AnnexError, Annexes};
use crate::agent::conversation::Conversation;
use crate::agent::session::{Manners, Session, SessionError, Sessions};
use crate::agent::turn::{Prompt, Settings, Stance};
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::base::tool_error::ToolError;
use crate::host::process::Commands;
use crate::host::sandbox::Profile;
use crate::host::snapshot::{Limits, Tracker};
use crate::host::workspace::Workspace;
use crate::model::credential::{Credential, FieldPolicy};
use crate::model::prompt;
use crate::model::roles::Roster;
use crate::model::skill::Places;
use crate::record::event::{Extra, InitialPosture, LOG_VERSION, PostureChanged, SessionStarted};
use crate::record::history::History;
use crate::record::log::LogError;
use crate::record::resource::{Attachment, Shelf};
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::bounds::Bounds;
use crate::settings::config::{Config, Sight, Window};
use crate::settings::role::Role;
use crate::tools::shell::Background;
use crate::tools::toolbox::Toolbox;

/// The factory of child Sessions, with what all of them share.
pub struct Nursery {
    pub sessions: Arc<Sessions>,
    pub manners: Manners,
    pub config: Config,
    pub commands: Commands,
    /// The registry of Workspaces of children's own.
    pub annexes: Annexes,
    /// The user's home folder; `None` if it is unknown.
    pub user: Option<PathBuf>,
    pub credential: Credential,
}

/// The open Conversation of a child.
pub struct Raised {
    pub conversation: Conversation,
    /// The handle of its own children.
    pub family: Arc<Family>,
}

/// The parent of a child.
#[derive(Clone, Copy)]
pub struct Parentage<'a> {
    pub parent: &'a SessionId,
    pub base: &'a Settings,
    pub subagents: &'a Subagents,
    pub terms: &'a Terms,
}

impl Parentage<'_> {
    /// The state root of the Logs of the whole tree, whatever Workspaces its Sessions use.
    fn logs(&self) -> &StateRoot {
        self.base.session_folder.root()
    }

    /// Write bounds of a new child.
    fn bounds(&self) -> Result<Bounds, Report> {
        self.terms.narrow(self.base.workspace.bounds()).map_err(|reason| unusable(&reason))
    }
}

/// Why a child was not created.
pub enum Unborn {
    /// A Session of that id exists.
    Taken,
    Failed(Report),
}

impl<E: Into<Report>> From<E> for Unborn {
    fn from(error: E) -> Self {
        Unborn::Failed(error.into())
    }
}

impl Nursery {
    /// The roles of a Workspace.
    pub fn roster(&self, workspace: &Path) -> Roster {
        Roster::new(&Places {
            workspace: workspace.to_owned(),
            user: self.user.clone(),
            home: self.config.home.clone(),
        })
    }

    /// The role of a child, limited to its parent's. Fails if the file of a role is gone, or not
    /// trusted any more.
    pub fn role(&self, record: &Record, of: &Parentage<'_>) -> Result<&'static Role, ToolError> {
        let role = spec::role(&record.role, &self.roster(of.logs().workspace()))?;
        Ok(role.within(of.base.role))
    }

    /// Creates a child with a Session of that id.
    pub async fn raise(
        &self,
        id: &SessionId,
        record: &Record,
        of: Parentage<'_>,
    ) -> Result<Raised, Unborn> {
        let role = self.role(record, &of)?;
        let bounds = of.bounds()?;
        let annex = self.place(id, record, &of).await?;
        let session = self.begin(id, record, &of, role, annex.as_ref(), &bounds)?;
        for globs in bounds.sets().skip(1) {
            let narrower = PostureChanged {
                allow_write: globs.allow.clone(),
                deny_write: globs.deny.clone(),
                ..PostureChanged::default()
            };
            session.record(narrower.into()).await?;
        }
        let workspace = match &annex {
            Some(annex) => self.open(annex)?,
            None => of.base.workspace.clone(),
        };
        let (workspace, history) = (workspace.bounded(bounds), History::default());
        Ok(self.converse(session, workspace, record, role, &of, &history).await?)
    }

    /// Creates the Workspace of a new child, if it is to have its own. It comes before the Log, so
    /// that a failure leaves no Session.
    async fn place(
        &self,
        id: &SessionId,
        record: &Record,
        of: &Parentage<'_>,
    ) -> Result<Option<Annex>, Unborn> {
        let mode = match record.workspace {
            WorkspaceMode::Shared => return Ok(None),
            WorkspaceMode::Isolated => child_workspace::Mode::Isolated,
            WorkspaceMode::Worktree => child_workspace::Mode::Worktree,
        };
        let wanted = child_workspace::Wanted {
            child: id.clone(),
            parent: of.parent.clone(),
            subagent: Some(record.id.clone()),
            logs: of.logs().clone(),
            workspace: of.base.workspace.clone(),
            mode,
        };
        match self.annexes.make(wanted).await {
            Err(error) if error.is_taken() => Err(Unborn::Taken),
            other => Ok(Some(other?)),
        }
    }

    /// The Workspace of a child that exists. One that had its own never works in its parent's.
    fn find(
        &self,
        child: &SessionId,
        record: &Record,
        of: &Parentage<'_>,
    ) -> Result<Workspace, Report> {
        match self.annexes.find(of.logs(), child)? {
            Some(annex) => self.open(&annex),
            None if record.workspace == WorkspaceMode::Shared => Ok(of.base.workspace.clone()),
            None => Err(Report::describe(&AnnexError::Closed { child: child.clone() })),
        }
    }

    fn open(&self, annex: &Annex) -> Result<Workspace, Report> {
        Ok(Workspace::open(annex.folder())?.hiding(self.config.home.folder()))
    }

    /// Opens a child that has a Log.
    pub async fn wake(
        &self,
        child: &SessionId,
        record: &Record,
        of: Parentage<'_>,
    ) -> Result<Raised, Report> {
        let role = self.role(record, &of)?;
        let workspace = self.find(child, record, &of)?;
        let (session, _) = self.sessions.open(of.logs(), child, self.manners.clone()).await?;
        let history = session.history().await?;
        let bounds = terms::recorded(&history, of.base.workspace.bounds())
            .map_err(|reason| unusable(&reason))?;
        let workspace = workspace.bounded(bounds);
        self.converse(session, workspace, record, role, &of, &history).await
    }

    fn begin(
        &self,
        id: &SessionId,
        record: &Record,
        of: &Parentage<'_>,
        role: &Role,
        annex: Option<&Annex>,
        bounds: &Bounds,
    ) -> Result<Session, Unborn> {
        let folder = annex.map_or(of.base.workspace.root(), Annex::folder);
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
        match self.sessions.create(of.logs(), id, first.into(), self.manners.clone()) {
            Err(SessionError::Log(LogError::AlreadyExists { .. })) => Err(Unborn::Taken),
            made => Ok(made?),
        }
    }

    async fn converse(
        &self,
        session: Session,
        workspace: Workspace,
        record: &Record,
        role: &'static Role,
        of: &Parentage<'_>,
        history: &History,
    ) -> Result<Raised, Report> {
        let settings = self.settings(&session, workspace, record, role, of, history);
        let deepest = self.config.subagents.max_depth;
        let kin = Kin {
            session: session.clone(),
            depth: if of.terms.is_leaf { deepest } else { record.depth },
            own: Some(record.id.clone()),
            is_paid: true,
            settings: settings.clone(),
        };
        let family = of.subagents.family(kin, history).await?;
        let settings = family.equip(settings);
        Ok(Raised { conversation: Conversation::new(session, settings, Vec::new()), family })
    }

    fn settings(
        &self,
        session: &Session,
        workspace: Workspace,
        record: &Record,
        role: &'static Role,
        of: &Parentage<'_>,
        history: &History,
    ) -> Settings {
        let base = of.base;
        let folder = of.logs().session_folder(session.id());
        let resources = Shelf::new(&folder.folder()).knowing(history);
        let background = Background::new(self.config.bash.max_background, history);
        let commands = self.commands.clone();
        let mut tools =
            Toolbox::sharing(&self.config, commands, history, resources.clone(), background);
        if base.tools.find("skill_view").is_ok() {
            tools = tools.with_skills(&base.skills);
        }
        // A Log can be planted, and a parent may have become stricter since.
        let mode = role.limit(&crate::settings::role::strictest(&record.mode, &base.stance.mode()));
        let confinement = Profile::of(self.config.sandbox.level, &mode);
        let model = record.model.clone().unwrap_or_else(|| base.model.clone());
        let family = format!("{}:{}", of.parent, role.name);
        let (sight, window) = senses(&self.config, &self.credential, &model);
        Settings {
            toolbox: tools.clone().of_role(role),
            tools,
            role,
            stance: Stance::beneath(&base.stance, mode, confinement),
            sight,
            window,
            // The child's History is not its parent's.
            gauge: Arc::default(),
            purse: of.terms.purse.as_ref().unwrap_or(&base.purse).of_child(),
            prompt: Prompt {
                // Siblings of one role share their prefix, so they share the cache.
                cache_key: prompt::cache_key(prompt::VERSION, &model, &family),
                ..base.prompt.clone()
            },
            model,
            effort: record.effort.clone(),
            tracker: self.tracker(&workspace, &folder),
            workspace,
            shelf: resources,
            output_folders: std::iter::once(&folder)
                .chain(&*base.output_folders)
                .cloned()
                .collect(),
            session_folder: folder,
            // The user's schema is for the answer of the root Session only.
            wishes: crate::model::provider::Wishes {
                answer_schema: of.terms.answer.clone(),
                ..base.wishes.clone()
            },
            ..base.clone()
        }
    }

    fn tracker(&self, workspace: &Workspace, folder: &SessionFolder) -> Option<Tracker> {
        let limits = Limits::of(self.config.undo);
        let make = || Tracker::new(workspace.clone(), folder.clone(), limits);
        self.config.undo.enabled.then(make)
    }
}

/// Image support and context window of a model.
pub fn senses(config: &Config, credential: &Credential, model: &str) -> (Sight, Window) {
    let endpoint = || (config.home.clone(), credential.base_url());
    let takes_images = credential.policy() != FieldPolicy::Portable;
    let sight = Sight::new(takes_images, endpoint(), model);
    (sight, Window::new(config.context_window, endpoint(), model))
}

/// The error for bounds that cannot be used: going on without them would widen.
fn unusable(reason: &str) -> Report {
    Report::new(Kind::InvalidArgs, format!("write bounds: {reason}"))
}

/// The Resources that a parent hands on, by their ids.
pub fn inherited(base: &Settings, ids: &[String]) -> Result<Vec<Attachment>, Report> {
    let mut attachments = Vec::new();
    for id in ids {
        let lost = |reason: String| Report::new(Kind::NotFound, reason);
        let Some(descriptor) = base.shelf.find(id) else {
            return Err(lost(format!("there is no Resource `{id}`")));
        };
        let gone = |_| lost(format!("the bytes of Resource `{id}` are gone"));
        let bytes = base.shelf.bytes(&descriptor).map_err(gone)?;
        attachments.push(Attachment::from_bytes(&descriptor.name, bytes)?);
    }
    Ok(attachments)
}
