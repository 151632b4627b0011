//! The harness: the composition root. Settings go in, Conversations come out.

mod branch;
mod change;
mod children;
mod grant;
mod posture;
mod preview;
mod process_limits;
mod workflows;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use serde_json::Value;

use crate::agent::child_workspace;
use crate::agent::child_workspace::{AnnexError, Annexes};
use crate::agent::conversation::Conversation;
use crate::agent::inspect;
use crate::agent::session::{Manners, Session, SessionError, Sessions};
use crate::agent::subagent::{Capacity, Family, Subagents, senses};
use crate::agent::turn::{Budget, Prompt, Purse, Settings, Stance};
use crate::base::blocking;
use crate::base::error::{Explain, Kind};
use crate::base::id::SessionId;
use crate::base::secret::Secrets;
use crate::host::http::HttpSettings;
use crate::host::process::{Commands, Containment, Host};
use crate::host::sandbox::Profile;
use crate::host::snapshot::{Limits, Store, Tracker};
use crate::host::workspace::{Workspace, WorkspaceError};
use crate::model::credential::Credential;
use crate::model::prompt;
use crate::model::prompt::{Project, Sources};
use crate::model::provider::{Provider, Responses, Travel, Wishes};
use crate::model::roles::Roster;
use crate::model::skill::{Places, Skills};
use crate::record::history::History;
use crate::record::log::{Flaw, Opened};
use crate::record::resource::Shelf;
use crate::record::state_dir;
use crate::record::state_dir::{Resolved, SessionFolder, StateRoot};
use crate::settings::bounds::Bounds;
use crate::settings::config::models::Model;
use crate::settings::config::{Config, McpServer, SandboxLevel, mcp};
use crate::tools::mcp::{Connections, Ground, WeakConnections};
use crate::tools::permission::Approvals;
use crate::tools::shell::{Background, WeakBackground};
use crate::tools::toolbox::Toolbox;
pub use branch::{Done, Rewound, Way};
pub use change::Change;
pub use children::{Child, ChildStatus, ChildView};
pub use preview::{Preview, Supposed};
pub use process_limits::ProcessLimits;
pub use workflows::{StepState, WatchedStep, WorkflowOrder, WorkflowWatch};

pub use crate::tools::tool::Editor;
use grant::Grants;
use posture::{Posture, Resumed};

/// Options of a Harness; nothing below reads the environment or a settings file.
pub struct Door {
    /// The settings of this run.
    pub config: Config,
    /// The endpoint of the model and its credential.
    pub credential: Credential,
    /// The environment that commands may inherit from.
    pub environment: Vec<(OsString, OsString)>,
    /// The binary that supervises host commands: one that calls [`crate::supervise`] when its first
    /// argument is [`crate::SUPERVISE`], such as `pixir` or the embedding program itself.
    pub own_binary: PathBuf,
}

/// Options of a Conversation: which Session, and in which Workspace.
#[derive(Debug)]
pub struct Start {
    /// The directory it may touch.
    pub workspace: PathBuf,
    /// A new Session, or one that exists.
    pub session: Which,
    /// Whether the caller will answer permission questions.
    pub can_ask: bool,
    /// MCP servers that the caller brings, beside those of the settings.
    pub mcp_servers: Vec<McpServer>,
}

/// The Session to open: a new or an existing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Mints an id.
    New,
    /// Reattaches or opens the Log.
    Resume(SessionId),
}

/// The running core of one process; it serves any number of Conversations.
pub struct Harness {
    config: Config,
    provider: Arc<dyn Provider>,
    credential: Credential,
    secrets: Arc<Secrets>,
    commands: Commands,
    sessions: Arc<Sessions>,
    /// The Subagents of all Sessions; created with the first Session.
    subagents: OnceLock<Subagents>,
    /// How many Subagents may work at the same time in this process.
    capacity: Capacity,
    /// Children of live Sessions, by Session folder, for Conversations that reattach.
    families: Mutex<HashMap<SessionFolder, Weak<Family>>>,
    /// Background commands of live Sessions, by Session folder, for Conversations that reattach.
    backgrounds: Mutex<HashMap<SessionFolder, WeakBackground>>,
    /// MCP servers of live Sessions, by Session folder, for Conversations that reattach.
    connections: Mutex<HashMap<SessionFolder, WeakConnections>>,
    http: HttpSettings,
    /// The user's home folder, where programs run by default.
    user_home: PathBuf,
    shell: String,
    budget: Arc<Budget>,
    annexes: Annexes,
    approvals: Approvals,
    grants: Grants,
    /// Notices about the settings, shown in every Conversation.
    notices: Vec<String>,
    /// The models that can be chosen; looked up on first use.
    models: OnceLock<Vec<Model>>,
}

impl Harness {
    /// Builds everything that Sessions share. Starts no process and opens no connection.
    pub fn open(door: Door) -> Self {
        Self::open_sharing(door, ProcessLimits::default())
    }

    /// Builds a Harness with limits that other Harnesses of this process share.
    pub fn open_sharing(door: Door, limits: ProcessLimits) -> Self {
        let Door { config, credential, environment, own_binary } = door;
        let shell = environment
            .iter()
            .find(|(name, _)| name == "SHELL")
            .map(|(_, value)| value.to_string_lossy().into_owned())
            .unwrap_or_default();
        let secrets = Arc::new(Secrets::from_environment(environment.iter().cloned()));
        credential.hide_in(&secrets);
        let lookup = |name: &str| {
            let found = environment.iter().find(|(own, _)| own == name);
            found.and_then(|(_, value)| value.to_str()).map(str::to_owned)
        };
        let travel = Travel::of(&config, lookup);
        let http = travel.http.clone();
        let user_home = lookup("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let user_home = user_home.unwrap_or_else(|| PathBuf::from("/"));
        let host = Host { own_binary, environment, containment: Containment::Best };
        let commands = Commands::sharing(host, &config, limits.commands);
        let provider = Arc::new(Responses::new(credential.clone(), config.stream, travel));
        let sessions = Arc::new(Sessions::default());
        let budget = Arc::new(Budget::new(config.budget, config.prices.clone()));
        let approvals = Approvals::new(&config.home);
        let grants = Grants::new(&config.home);
        let annexes = Annexes::new(&config, commands.clone());
        Self {
            config,
            provider,
            credential,
            secrets,
            commands,
            sessions,
            subagents: OnceLock::new(),
            capacity: limits.subagents,
            families: Mutex::default(),
            backgrounds: Mutex::default(),
            connections: Mutex::default(),
            http,
            user_home,
            shell,
            budget,
            annexes,
            approvals,
            grants,
            notices: Vec::new(),
            models: OnceLock::new(),
        }
    }

    /// Adds notices about the settings, which every Conversation shows.
    #[must_use]
    pub fn noting(self, notices: Vec<String>) -> Self {
        Self { notices, ..self }
    }

    /// Ends background commands, and waits for work that must not be lost when the process ends,
    /// such as the renewal of a token.
    pub async fn settle(&self) {
        tokio::join!(self.credential.settle(), self.commands.close());
    }

    /// Starts a Conversation: a new Session, or one that exists.
    pub async fn start(&self, start: Start) -> Result<Conversation, HarnessError> {
        let workspace = Workspace::open(&start.workspace)?.hiding(self.config.home.folder());
        let caller = Caller { can_ask: start.can_ask, mcp_servers: start.mcp_servers };
        match start.session {
            Which::New => self.begin(workspace, caller).await,
            Which::Resume(id) => self.resume(workspace, &id, caller).await,
        }
    }

    async fn begin(
        &self,
        workspace: Workspace,
        caller: Caller,
    ) -> Result<Conversation, HarnessError> {
        let id = SessionId::mint();
        let posture = Posture::new(&self.config);
        let workspace = workspace.bounded(posture.bounds()?);
        let first = posture.first_event(&workspace);
        let place = self.state(workspace.root());
        let session = self.sessions.create(&place.root, &id, first.into(), self.manners())?;
        self.remember_workspace(workspace.root());
        let history = History::default();
        let notices = place.notice().into_iter().collect();
        self.converse(session, workspace, posture, &history, caller, notices).await
    }

    async fn resume(
        &self,
        workspace: Workspace,
        id: &SessionId,
        caller: Caller,
    ) -> Result<Conversation, HarnessError> {
        let place = self.state(workspace.root());
        let root = &place.root_of(id);
        let (session, opened) = self.sessions.open(root, id, self.manners()).await?;
        let history = session.history().await?;
        let granted = self.grants.find(id, workspace.root());
        let roster = Roster::new(&self.places(workspace.root()));
        let before = Posture::of(&history, &roster);
        let Resumed { posture, change } = before.resumed(&self.config, granted.as_ref());
        self.remember_workspace(workspace.root());
        let workspace =
            self.own_workspace(workspace, root, id, &history)?.bounded(posture.bounds()?);
        if let Some(change) = change {
            session.record(change.into()).await?;
        }
        let mut notices = notices(&opened);
        notices.extend(place.notice());
        notices.extend(recovered(&session, &workspace).await);
        self.converse(session, workspace, posture, &history, caller, notices).await
    }

    /// The state root of a Workspace.
    fn state(&self, workspace: &Path) -> Resolved {
        state_dir::resolve(&self.config.home, workspace)
    }

    /// The Workspace of a Session: that of its Log, or its own if it is a child that has one.
    fn own_workspace(
        &self,
        workspace: Workspace,
        root: &StateRoot,
        id: &SessionId,
        history: &History,
    ) -> Result<Workspace, HarnessError> {
        let annex = self.annexes.place(root, id, history)?;
        let Some(annex) = annex else { return Ok(workspace) };
        Ok(Workspace::open(annex.folder())?.hiding(self.config.home.folder()))
    }

    async fn converse(
        &self,
        session: Session,
        workspace: Workspace,
        posture: Posture,
        history: &History,
        caller: Caller,
        mut notices: Vec<String>,
    ) -> Result<Conversation, HarnessError> {
        let seat = Seat { logs: session.state_root(), id: session.id() };
        let (folder, root) = (seat.folder(), workspace.root());
        let (connections, taken) = self.connections(&folder, root, caller.mcp_servers);
        notices.extend(taken);
        let (settings, told) =
            self.settings(seat, workspace, posture, history, connections, caller.can_ask);
        notices.extend(told);
        let settings = self.with_children(&session, settings, history).await?;
        Ok(Conversation::new(session, settings, notices))
    }

    /// The settings for the Turns of a Session, and notices for the user.
    fn settings(
        &self,
        seat: Seat<'_>,
        workspace: Workspace,
        posture: Posture,
        history: &History,
        connections: Connections,
        can_ask: bool,
    ) -> (Settings, Vec<String>) {
        let Seat { logs, id } = seat;
        let project = Project::load(&Sources {
            workspace: logs.workspace(),
            user_file: &self.config.home.agents_md(),
            limit: self.config.instructions_limit,
            secrets: &self.secrets,
        });
        let mut notices = self.notices.clone();
        notices.extend(project.notices);
        let skills = Skills::new(self.places(logs.workspace()));
        let found = skills.all();
        let index = prompt::index(&found, &self.secrets);
        let roles =
            prompt::roles(&Roster::new(&self.places(logs.workspace())).all(), &self.secrets);
        let indexes = index.as_deref().into_iter().chain(roles.as_deref());
        let parts: Vec<&str> = project.text.as_deref().into_iter().chain(indexes).collect();
        let project = (!parts.is_empty()).then(|| Arc::from(parts.join("\n\n")));
        notices.extend(self.commands.sandbox().objections.iter().cloned());
        if self.config.sandbox.level == SandboxLevel::Off {
            notices.push("the sandbox is off: commands can do whatever you can do".to_owned());
        }
        let folder = seat.folder();
        let resources = Shelf::new(&folder.folder()).knowing(history);
        let mut tools = self.toolbox(&folder, history, resources.clone());
        if !found.skills.is_empty() {
            tools = tools.with_skills(&skills);
        }
        let confinement = Profile::of(self.config.sandbox.level, &posture.mode);
        let (sight, window) = senses(&self.config, &self.credential, &posture.model);
        let settings = Settings {
            connections,
            provider: Arc::clone(&self.provider),
            toolbox: tools.clone().of_role(posture.role),
            tools,
            approvals: self.approvals.clone(),
            role: posture.role,
            shelf: resources,
            sight,
            window,
            gauge: Arc::default(),
            compaction: self.config.compaction,
            editor: None,
            tracker: self.config.undo.enabled.then(|| {
                Tracker::new(workspace.clone(), folder.clone(), Limits::of(self.config.undo))
            }),
            secrets: Arc::clone(&self.secrets),
            stance: Stance::new(posture.mode, confinement),
            can_ask,
            dry_run: self.config.dry_run,
            max_iterations: self.config.max_iterations,
            retry: self.config.retry,
            total: self.config.stream.total,
            tool_grace: self.config.grace.process + self.config.grace.turn / 5,
            output_limit: self.config.output_limit,
            output_folders: inspect::lineage_folders(&folder, history).into(),
            session_folder: folder,
            budget: Arc::clone(&self.budget),
            purse: Purse::of(history, &self.config.prices),
            wishes: Wishes {
                web_search: self.config.web_search,
                answer_schema: self.config.answer_schema.clone(),
            },
            prompt: Prompt {
                contract: prompt::VERSION,
                instructions: prompt::INSTRUCTIONS.into(),
                project,
                cache_key: prompt::cache_key(prompt::VERSION, &posture.model, &history.family(id)),
                shell: self.shell.clone(),
            },
            model: posture.model,
            effort: posture.effort,
            skills,
            workspace,
        };
        (settings, notices)
    }

    /// Where Skills and roles of a Workspace may be.
    fn places(&self, workspace: &Path) -> Places {
        let home = self.config.home.clone();
        Places { workspace: workspace.to_owned(), user: self.user(), home }
    }

    /// The user's home folder; `None` if it is unknown.
    fn user(&self) -> Option<PathBuf> {
        Some(self.user_home.clone()).filter(|home| home.parent().is_some())
    }

    /// The tools of a Session; all its Conversations in this process share its commands.
    fn toolbox(&self, folder: &SessionFolder, history: &History, resources: Shelf) -> Toolbox {
        let mut known = self.backgrounds.lock().unwrap_or_else(PoisonError::into_inner);
        let background = known.get(folder).and_then(WeakBackground::upgrade).unwrap_or_else(|| {
            known.retain(|_, weak| weak.upgrade().is_some());
            let background = Background::new(self.config.bash.max_background, history);
            known.insert(folder.clone(), background.downgrade());
            background
        });
        Toolbox::sharing(&self.config, self.commands.clone(), history, resources, background)
    }

    /// The MCP servers of a Session: those of the settings, then those that the caller brings. All
    /// its Conversations in this process share them, as long as they want the same ones.
    fn connections(
        &self,
        folder: &SessionFolder,
        workspace: &Path,
        brought: Vec<McpServer>,
    ) -> (Connections, Vec<String>) {
        // Entries that cannot be used were reported when the settings were read.
        let usable = self.config.mcp.servers.iter().filter(|server| server.problem().is_none());
        let mut servers: Vec<McpServer> = usable.cloned().collect();
        let taken = mcp::join(&mut servers, brought);
        if servers.is_empty() {
            return (Connections::default(), Vec::new());
        }
        let told = |name| format!("MCP server `{name}` is ignored: the name is taken");
        let notices = taken.into_iter().map(told).collect();
        let mut known = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let there = known.get(folder).and_then(WeakConnections::upgrade);
        if let Some(connections) = there.filter(|there| there.are(&servers)) {
            return (connections, notices);
        }
        let connections = Connections::start(servers, self.ground(workspace));
        known.retain(|_, weak| weak.upgrade().is_some());
        known.extend(connections.downgrade().map(|weak| (folder.clone(), weak)));
        (connections, notices)
    }

    fn ground(&self, workspace: &Path) -> Ground {
        Ground {
            commands: self.commands.clone(),
            http: self.http.clone(),
            workspace: workspace.to_owned(),
            home: self.user_home.clone(),
            secrets: Arc::clone(&self.secrets),
            limits: self.config.mcp.clone(),
        }
    }

    fn manners(&self) -> Manners {
        Manners {
            secrets: Arc::clone(&self.secrets),
            durability: self.config.durability,
            grace: self.config.grace.turn,
        }
    }

    /// Adds the Workspace to the user's cache, without delaying the first request.
    fn remember_workspace(&self, root: &Path) {
        let (home, root) = (self.config.home.clone(), root.to_owned());
        // Best effort, in the background: the cache can be deleted at any time.
        tokio::spawn(async move {
            blocking::work(move || inspect::remember(&home, &root)).await.ok();
        });
    }
}

/// The place of a Session's Log; a child may work in another Workspace.
#[derive(Debug, Clone, Copy)]
struct Seat<'a> {
    logs: &'a StateRoot,
    id: &'a SessionId,
}

impl Seat<'_> {
    fn folder(&self) -> SessionFolder {
        self.logs.session_folder(self.id)
    }
}

/// What the caller of `start` provides.
struct Caller {
    can_ask: bool,
    mcp_servers: Vec<McpServer>,
}

/// Write bounds of a Session with this History.
pub fn bounds_of(history: &History, roster: &Roster) -> Result<Bounds, HarnessError> {
    Posture::of(history, roster).bounds()
}

/// Rolls back a merge that a dead process left unfinished; returns a notice.
async fn recovered(session: &Session, workspace: &Workspace) -> Option<String> {
    let folder = session.folder().clone();
    if !child_workspace::is_pending(&folder) {
        return None;
    }
    let _alone = child_workspace::alone().await;
    let workspace = workspace.clone();
    let taking = move || child_workspace::recover(&workspace, &Store::beside(&folder), &folder);
    let trouble = |error| Some(format!("an interrupted merge cannot be rolled back: {error}"));
    match blocking::work(taking).await {
        Ok(Ok(recovered)) => recovered.map(|recovered| recovered.to_string()),
        Ok(Err(error)) => trouble(error.to_string()),
        Err(error) => trouble(error.to_string()),
    }
}

/// Notices about damage in the Log that was opened.
fn notices(opened: &Opened) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(torn) = &opened.torn {
        let what = if torn.whole { "kept" } else { "skipped" };
        notices.push(format!(
            "the Log's last line was torn (line {}, {} bytes at offset {}): it is {what}",
            torn.place.line, torn.place.length, torn.place.offset
        ));
    }
    let tail = opened.torn.as_ref().map(|torn| torn.place.line);
    for damage in opened.damage.iter().filter(|damage| Some(damage.place.line) != tail) {
        let what = match &damage.flaw {
            Flaw::Unreadable { reason, .. } => format!("was skipped: {reason}"),
            Flaw::BrokenProof => "does not fit its proof: it may have been changed".to_owned(),
            Flaw::Unproven => "carries no proof".to_owned(),
            Flaw::Blob { reason } | Flaw::Payload { reason } => reason.clone(),
        };
        notices.push(format!(
            "line {} of the Log (offset {}) {what}",
            damage.place.line, damage.place.offset
        ));
    }
    notices
}

/// Why a Conversation could not start.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// The Workspace cannot be opened.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The Session cannot be opened.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The child's own Workspace cannot be used.
    #[error(transparent)]
    Annex(#[from] AnnexError),
    /// The write bounds are invalid.
    #[error("write bounds: {0}")]
    Bounds(String),
}

impl HarnessError {
    /// The wrapped error of another module.
    fn cause(&self) -> Option<&dyn Explain> {
        match self {
            HarnessError::Workspace(error) => Some(error),
            HarnessError::Session(error) => Some(error),
            HarnessError::Annex(error) => Some(error),
            HarnessError::Bounds(_) => None,
        }
    }
}

impl Explain for HarnessError {
    fn kind(&self) -> Kind {
        self.cause().map_or(Kind::InvalidArgs, Explain::kind)
    }

    fn details(&self) -> Value {
        self.cause().map_or(Value::Null, Explain::details)
    }

    fn next_actions(&self) -> Vec<String> {
        let globs = || vec!["write globs relative to the Workspace, such as 'src/**'".to_owned()];
        self.cause().map_or_else(globs, Explain::next_actions)
    }
}
