//! Where children are made: a Session of their own, and settings that are their parent's, narrowed.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::record::Record;
use super::spec::{self, WorkspaceMode};
use super::{Family, Kin, Subagents};
use crate::annex::{self, Annex, AnnexError, Annexes};
use crate::config::{Config, Sight};
use crate::conversation::Conversation;
use crate::error::{Kind, Report};
use crate::event::{Extra, LOG_VERSION, PostureChanged, SessionStarted};
use crate::history::History;
use crate::id::SessionId;
use crate::log::LogError;
use crate::paths;
use crate::prompt;
use crate::resource::{Attachment, Shelf};
use crate::role::Role;
use crate::sandbox::Profile;
use crate::session::{Manners, Session, SessionError, Sessions};
use crate::snapshot::{Limits, Tracker};
use crate::tool::{Background, Commands, Toolbox};
use crate::turn::{Prompt, Settings, Stance};
use crate::workspace::Workspace;

/// How often another id is tried when one is taken; many children are born in one second.
const NAMES: usize = 16;

/// What all children of the process are made of.
pub struct Nursery {
    pub sessions: Arc<Sessions>,
    pub manners: Manners,
    pub config: Config,
    pub commands: Commands,
    /// Where children work that have Workspaces of their own.
    pub annexes: Annexes,
    /// Whether a model can be shown images.
    pub sight: Box<dyn Fn(&str) -> Sight + Send + Sync>,
}

/// A child that can be talked to.
pub struct Raised {
    pub conversation: Conversation,
    /// The children that it may have.
    pub family: Arc<Family>,
}

/// Whose child.
pub struct Parentage<'a> {
    pub parent: &'a SessionId,
    pub base: &'a Settings,
    pub subagents: &'a Subagents,
}

impl Parentage<'_> {
    /// The Workspace that holds the Logs of the whole tree, wherever its parts work.
    fn logs(&self) -> &Path {
        paths::holding(&self.base.session_folder)
    }
}

impl Nursery {
    /// Makes a child with a Session of its own.
    pub async fn raise(&self, record: &Record, of: Parentage<'_>) -> Result<Raised, Report> {
        let role = spec::role(&record.role).map_err(|error| Report::from(&error))?;
        let annex = self.place(record, &of).await?;
        let session = self.begin(record, &of, role, annex.as_ref());
        let session = session.map_err(|error| Report::from(&error))?;
        for globs in of.base.workspace.bounds().sets().skip(1) {
            let narrower = PostureChanged {
                allow_write: globs.allow.clone(),
                deny_write: globs.deny.clone(),
                ..PostureChanged::default()
            };
            session.record(narrower.into()).await.map_err(|error| Report::from(&error))?;
        }
        let workspace = match &annex {
            Some(annex) => self.open(annex, &of)?,
            None => of.base.workspace.clone(),
        };
        self.converse(session, workspace, record, &of, &History::default()).await
    }

    /// Makes the Workspace of a new child, if it is to have its own. It comes before the Log: a child
    /// that has no place to work never was.
    async fn place(&self, record: &Record, of: &Parentage<'_>) -> Result<Option<Annex>, Report> {
        let mode = match record.workspace {
            WorkspaceMode::Shared => return Ok(None),
            WorkspaceMode::Isolated => annex::Mode::Isolated,
            WorkspaceMode::Worktree => annex::Mode::Worktree,
        };
        let mut tries = 0;
        loop {
            let wanted = annex::Wanted {
                child: SessionId::mint(),
                parent: of.parent.clone(),
                subagent: Some(record.id.clone()),
                logs: of.logs().to_owned(),
                workspace: of.base.workspace.clone(),
                mode,
            };
            match self.annexes.make(wanted).await {
                Err(error) if error.is_taken() && tries < NAMES => tries += 1,
                other => return other.map(Some).map_err(|error| Report::from(&error)),
            }
        }
    }

    /// The Workspace of a child that exists. One that had its own never works in its parent's.
    fn find(
        &self,
        child: &SessionId,
        record: &Record,
        of: &Parentage<'_>,
    ) -> Result<Workspace, Report> {
        let found = self.annexes.find(of.logs(), child).map_err(|error| Report::from(&error))?;
        match found {
            Some(annex) => self.open(&annex, of),
            None if record.workspace == WorkspaceMode::Shared => Ok(of.base.workspace.clone()),
            None => Err(Report::from(&AnnexError::NoAnnex(record.id.clone()))),
        }
    }

    fn open(&self, annex: &Annex, of: &Parentage<'_>) -> Result<Workspace, Report> {
        let opened = Workspace::open(annex.folder()).map_err(|error| Report::from(&error))?;
        let bounds = of.base.workspace.bounds().clone();
        Ok(opened.hiding(self.config.home.folder()).bounded(bounds))
    }

    /// Goes on with a child that has a Log.
    pub async fn wake(
        &self,
        child: &SessionId,
        record: &Record,
        of: Parentage<'_>,
    ) -> Result<Raised, Report> {
        let workspace = self.find(child, record, &of)?;
        let opened = self.sessions.open(of.logs(), child, self.manners.clone()).await;
        let (session, _) = opened.map_err(|error| Report::from(&error))?;
        let history = session.history().await.map_err(|error| Report::from(&error))?;
        self.converse(session, workspace, record, &of, &history).await
    }

    fn begin(
        &self,
        record: &Record,
        of: &Parentage<'_>,
        role: &Role,
        annex: Option<&Annex>,
    ) -> Result<Session, SessionError> {
        let workspace = &of.base.workspace;
        let folder = annex.map_or(workspace.root(), Annex::folder);
        let globs = workspace.bounds().sets().next().cloned().unwrap_or_default();
        let first = SessionStarted {
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
            parent_session_id: Some(of.parent.to_string()),
            subagent_id: Some(record.id.clone()),
            extra: Extra::from_iter([
                ("depth".to_owned(), json!(record.depth)),
                ("attempt".to_owned(), json!(record.attempt)),
                ("workspace_mode".to_owned(), json!(record.workspace.name())),
            ]),
        };
        let mut tries = 0;
        loop {
            let id = annex.map_or_else(SessionId::mint, |annex| annex.child().clone());
            let manners = self.manners.clone();
            let made = self.sessions.create(of.logs(), &id, first.clone().into(), manners);
            match made {
                Err(SessionError::Log(LogError::AlreadyExists { .. }))
                    if annex.is_none() && tries < NAMES =>
                {
                    tries += 1;
                }
                made => return made,
            }
        }
    }

    async fn converse(
        &self,
        session: Session,
        workspace: Workspace,
        record: &Record,
        of: &Parentage<'_>,
        history: &History,
    ) -> Result<Raised, Report> {
        let settings = self.settings(&session, workspace, record, of, history)?;
        let kin = Kin {
            session: session.clone(),
            depth: record.depth,
            own: Some(record.id.clone()),
            settings: settings.clone(),
        };
        let family = of.subagents.family(kin, history).await;
        let family = family.map_err(|error| Report::from(&error))?;
        let settings = family.equip(settings);
        Ok(Raised { conversation: Conversation::new(session, settings, Vec::new()), family })
    }

    fn settings(
        &self,
        session: &Session,
        workspace: Workspace,
        record: &Record,
        of: &Parentage<'_>,
        history: &History,
    ) -> Result<Settings, Report> {
        let base = of.base;
        let role = spec::role(&record.role).map_err(|error| Report::from(&error))?;
        let folder = paths::session_folder(of.logs(), session.id());
        let resources = Shelf::new(folder.clone()).knowing(history);
        let background = Background::new(self.config.bash.max_background, history);
        let commands = self.commands.clone();
        let mut tools =
            Toolbox::sharing(&self.config, commands, history, resources.clone(), background);
        if base.tools.find("skill_view").is_ok() {
            tools = tools.with_skills(&base.skills);
        }
        // A Log can be planted, and a parent may have become stricter since.
        let mode = role.limit(&crate::role::strictest(&record.mode, &base.stance.mode()));
        let confinement = Profile::of(self.config.sandbox.level, &mode);
        let model = record.model.clone().unwrap_or_else(|| base.model.clone());
        let family = format!("{}:{}", of.parent, role.name);
        Ok(Settings {
            toolbox: tools.clone().of_role(role),
            tools,
            role,
            stance: Stance::new(mode, confinement),
            sight: (self.sight)(&model),
            prompt: Prompt {
                // Siblings of one role share what comes first, so they share the cache.
                cache_key: prompt::cache_key(prompt::VERSION, &model, &family),
                ..base.prompt.clone()
            },
            model,
            effort: record.effort.clone(),
            tracker: self.tracker(&workspace, &folder),
            workspace,
            shelf: resources,
            session_folder: folder,
            // What the user wants of the answer is wanted of theirs.
            wishes: crate::provider::Wishes { answer_schema: None, ..base.wishes.clone() },
            ..base.clone()
        })
    }

    fn tracker(&self, workspace: &Workspace, folder: &Path) -> Option<Tracker> {
        let limits = Limits::of(self.config.undo);
        let make = || Tracker::new(workspace.clone(), folder.to_owned(), limits);
        self.config.undo.enabled.then(make)
    }
}

/// The Resources that a parent hands on, by their ids.
pub fn inherited(base: &Settings, ids: &[String]) -> Result<Vec<Attachment>, Report> {
    let mut attachments = Vec::new();
    for id in ids {
        let lost = |reason: String| Report::new(Kind::NotFound, reason);
        let Some(descriptor) = base.shelf.find(id) else {
            return Err(lost(format!("there is no Resource `{id}`")));
        };
        let bytes = base.shelf.bytes(&descriptor);
        let bytes = bytes.map_err(|_| lost(format!("the bytes of Resource `{id}` are gone")))?;
        let attachment = Attachment::from_bytes(&descriptor.name, bytes);
        attachments.push(attachment.map_err(|error| Report::from(&error))?);
    }
    Ok(attachments)
}
