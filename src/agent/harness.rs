//! The harness: the composition root. Settings go in, Conversations come out.

mod children;
mod mode_grants;
mod posture;
mod preview;
mod process_limits;
mod rewind_fork;
mod settings_change;
mod workflows;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use crate::agent::child_workspace;
use crate::agent::child_workspace::{ChildWorkspaceError, ChildWorkspaces};
use crate::agent::conversation::Conversation;
use crate::agent::inspect;
use crate::agent::session::{LiveSessions, Session, SessionError, SessionOptions};
use crate::agent::subagent::{
    Children, ConcurrencyLimit, SubagentRegistry, image_support_and_window,
};
use crate::agent::turn::{PermissionState, PromptParts, RunBudget, TurnSettings, UsageTotal};
use crate::base::blocking;
use crate::base::error::{Explain, Explanation, Kind};
use crate::base::id::SessionId;
use crate::base::secret::Secrets;
use crate::host::http::HttpSettings;
use crate::host::process::{CommandRunner, Containment, HostEnvironment};
use crate::host::sandbox::Profile;
use crate::host::snapshot::{ContentStore, SurveyLimits, TurnTracker};
use crate::host::workspace::{Workspace, WorkspaceError};
use crate::model::credential::Credential;
use crate::model::prompt;
use crate::model::prompt::{AgentsMd, AgentsMdSources};
use crate::model::provider::{Provider, ResponseOptions, ResponsesProvider, TransportOptions};
use crate::model::roles::RoleCatalog;
use crate::model::skill::{DiscoveryFolders, Skills};
use crate::record::history::History;
use crate::record::log::{DamageKind, LogOpenReport};
use crate::record::resource::Resources;
use crate::record::state_dir;
use crate::record::state_dir::{SessionFolder, StateLocation, StateRoot};
use crate::settings::bounds::WriteBounds;
use crate::settings::config::models::Model;
use crate::settings::config::{Config, McpServer, SandboxLevel, mcp};
use crate::tools::mcp::{McpContext, McpServers, WeakMcpServers};
use crate::tools::permission::ApprovalStore;
use crate::tools::shell::{BackgroundCommands, WeakBackgroundCommands};
use crate::tools::toolbox::Toolbox;
pub use children::{Child, ChildStatus, ChildView};
pub use preview::{PreviewAssumptions, RequestPreview};
pub use process_limits::ProcessLimits;
pub use rewind_fork::{RewindDirection, RewindReport, RewoundFileChange};
pub use settings_change::SettingsChange;
pub use workflows::{RunWorkflowOptions, StepState, WatchedStep, WorkflowWatch};

pub use crate::tools::tool::Editor;
use mode_grants::ModeGrants;
use posture::{Posture, ResumedPosture};

/// Options of a Harness; nothing below reads the environment or a settings file.
pub struct HarnessOptions {
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
pub struct StartOptions {
    /// The directory that the Session may touch.
    pub workspace: PathBuf,
    /// A new Session, or one that exists.
    pub session: SessionTarget,
    /// Whether the caller will answer permission questions.
    pub can_ask: bool,
    /// MCP servers of the caller, in addition to those of the settings.
    pub mcp_servers: Vec<McpServer>,
}

/// The Session to open: a new or an existing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionTarget {
    /// A new Session with a new id.
    New,
    /// An existing Session: the live one of this process, or one opened from its Log.
    Resume(SessionId),
}

/// The running core of one process; it serves any number of Conversations.
pub struct Harness {
    config: Config,
    provider: Arc<dyn Provider>,
    credential: Credential,
    secrets: Arc<Secrets>,
    commands: CommandRunner,
    sessions: Arc<LiveSessions>,
    /// The Subagents of all Sessions; created with the first Session.
    subagents: OnceLock<SubagentRegistry>,
    /// How many Subagents may work at the same time in this process.
    subagent_limit: ConcurrencyLimit,
    /// Children of live Sessions, by Session folder, for Conversations that reattach.
    live_children: Mutex<HashMap<SessionFolder, Weak<Children>>>,
    /// Background commands of live Sessions, by Session folder, for Conversations that reattach.
    backgrounds: Mutex<HashMap<SessionFolder, WeakBackgroundCommands>>,
    /// MCP servers of live Sessions, by Session folder, for Conversations that reattach.
    mcp_servers: Mutex<HashMap<SessionFolder, WeakMcpServers>>,
    http: HttpSettings,
    /// The user's home folder, where programs run by default.
    user_home: PathBuf,
    shell: String,
    budget: Arc<RunBudget>,
    child_workspaces: ChildWorkspaces,
    approvals: ApprovalStore,
    mode_grants: ModeGrants,
    /// Notices about the settings, shown in every Conversation.
    notices: Vec<String>,
    /// The models that can be chosen; looked up on first use.
    models: OnceLock<Vec<Model>>,
}

impl Harness {
    /// Builds everything that Sessions share. Starts no process and opens no connection.
    pub fn open(options: HarnessOptions) -> Self {
        Self::open_with_limits(options, ProcessLimits::default())
    }

    /// Builds a Harness with limits that other Harnesses of this process share.
    pub fn open_with_limits(options: HarnessOptions, limits: ProcessLimits) -> Self {
        let HarnessOptions { config, credential, environment, own_binary } = options;
        let shell = environment
            .iter()
            .find(|(name, _)| name == "SHELL")
            .map(|(_, value)| value.to_string_lossy().into_owned())
            .unwrap_or_default();
        let secrets = Arc::new(Secrets::from_environment(environment.iter().cloned()));
        credential.register_secrets(&secrets);
        let lookup = |name: &str| {
            let found = environment.iter().find(|(own, _)| own == name);
            found.and_then(|(_, value)| value.to_str()).map(str::to_owned)
        };
        let transport_options = TransportOptions::from_config(&config, lookup);
        let http = transport_options.http.clone();
        let user_home = lookup("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let user_home = user_home.unwrap_or_else(|| PathBuf::from("/"));
        let host = HostEnvironment { own_binary, environment, containment: Containment::Best };
        let commands = CommandRunner::with_slots(host, &config, limits.commands);
        let provider =
            Arc::new(ResponsesProvider::new(credential.clone(), config.stream, transport_options));
        let sessions = Arc::new(LiveSessions::default());
        let budget = Arc::new(RunBudget::new(config.budget, config.prices.clone()));
        let approvals = ApprovalStore::new(&config.home);
        let mode_grants = ModeGrants::new(&config.home);
        let child_workspaces = ChildWorkspaces::new(&config, commands.clone());
        Self {
            config,
            provider,
            credential,
            secrets,
            commands,
            sessions,
            subagents: OnceLock::new(),
            subagent_limit: limits.subagents,
            live_children: Mutex::default(),
            backgrounds: Mutex::default(),
            mcp_servers: Mutex::default(),
            http,
            user_home,
            shell,
            budget,
            child_workspaces,
            approvals,
            mode_grants,
            notices: Vec::new(),
            models: OnceLock::new(),
        }
    }

    /// Adds notices about the settings, which every Conversation shows.
    #[must_use]
    pub fn with_notices(self, notices: Vec<String>) -> Self {
        Self { notices, ..self }
    }

    /// Ends background commands, and waits for work that must not be lost when the process ends,
    /// such as the renewal of a token.
    pub async fn shut_down(&self) {
        tokio::join!(self.credential.wait_for_renewal(), self.commands.close());
    }

    /// Starts a Conversation: a new Session, or one that exists.
    pub async fn start(&self, start: StartOptions) -> Result<Conversation, HarnessError> {
        let workspace =
            Workspace::open(&start.workspace)?.with_hidden_folder(self.config.home.path());
        let caller = CallerOptions { can_ask: start.can_ask, mcp_servers: start.mcp_servers };
        match start.session {
            SessionTarget::New => self.start_new(workspace, caller).await,
            SessionTarget::Resume(id) => self.resume(workspace, &id, caller).await,
        }
    }

    async fn start_new(
        &self,
        workspace: Workspace,
        caller: CallerOptions,
    ) -> Result<Conversation, HarnessError> {
        let id = SessionId::mint();
        let posture = Posture::new(&self.config);
        let workspace = workspace.with_bounds(posture.bounds()?);
        let first = posture.first_event(&workspace);
        let place = self.resolve_state(workspace.root());
        let session =
            self.sessions.create(&place.root, &id, first.into(), self.session_options())?;
        self.remember_workspace(workspace.root());
        let history = History::default();
        let notices = place.notice().into_iter().collect();
        self.open_conversation(session, workspace, posture, &history, caller, notices).await
    }

    async fn resume(
        &self,
        workspace: Workspace,
        id: &SessionId,
        caller: CallerOptions,
    ) -> Result<Conversation, HarnessError> {
        let place = self.resolve_state(workspace.root());
        let root = &place.root_for_session(id);
        let (session, opened) = self.sessions.open(root, id, self.session_options()).await?;
        let history = session.history().await?;
        let granted = self.mode_grants.find(id, workspace.root());
        let roles = RoleCatalog::new(&self.discovery_folders(workspace.root()));
        let before = Posture::from_history(&history, &roles);
        let ResumedPosture { posture, change } = before.resume_with(&self.config, granted.as_ref());
        self.remember_workspace(workspace.root());
        let workspace =
            self.session_workspace(workspace, root, id, &history)?.with_bounds(posture.bounds()?);
        if let Some(change) = change {
            session.record(change.into()).await?;
        }
        let mut notices = damage_notices(&opened);
        notices.extend(place.notice());
        notices.extend(recover_merge(&session, &workspace).await);
        self.open_conversation(session, workspace, posture, &history, caller, notices).await
    }

    /// The state root of a Workspace.
    fn resolve_state(&self, workspace: &Path) -> StateLocation {
        state_dir::resolve_state(&self.config.home, workspace)
    }

    /// The Workspace of a Session: its child Workspace if it has one, or that of its Log.
    fn session_workspace(
        &self,
        workspace: Workspace,
        root: &StateRoot,
        id: &SessionId,
        history: &History,
    ) -> Result<Workspace, HarnessError> {
        let child_workspace = self.child_workspaces.find_for_session(root, id, history)?;
        let Some(child_workspace) = child_workspace else { return Ok(workspace) };
        Ok(Workspace::open(child_workspace.folder())?.with_hidden_folder(self.config.home.path()))
    }

    async fn open_conversation(
        &self,
        session: Session,
        workspace: Workspace,
        posture: Posture,
        history: &History,
        caller: CallerOptions,
        mut notices: Vec<String>,
    ) -> Result<Conversation, HarnessError> {
        let log_location = LogLocation { logs: session.state_root(), id: session.id() };
        let (folder, root) = (log_location.folder(), workspace.root());
        let (mcp_servers, taken) = self.session_mcp_servers(&folder, root, caller.mcp_servers);
        notices.extend(taken);
        let (settings, settings_notices) = self.turn_settings(
            log_location,
            workspace,
            posture,
            history,
            mcp_servers,
            caller.can_ask,
        );
        notices.extend(settings_notices);
        let settings = self.with_children(&session, settings, history).await?;
        Ok(Conversation::new(session, settings, notices))
    }

    /// The settings for the Turns of a Session, and notices for the user.
    fn turn_settings(
        &self,
        log_location: LogLocation<'_>,
        workspace: Workspace,
        posture: Posture,
        history: &History,
        mcp_servers: McpServers,
        can_ask: bool,
    ) -> (TurnSettings, Vec<String>) {
        let LogLocation { logs, id } = log_location;
        let project = AgentsMd::load(&AgentsMdSources {
            workspace: logs.workspace(),
            user_file: &self.config.home.agents_md(),
            limit: self.config.instructions_limit,
            secrets: &self.secrets,
        });
        let mut notices = self.notices.clone();
        notices.extend(project.notices);
        let skills = Skills::new(self.discovery_folders(logs.workspace()));
        let found = skills.read_all();
        let index = prompt::skill_index(&found, &self.secrets);
        let roles = prompt::role_index(
            &RoleCatalog::new(&self.discovery_folders(logs.workspace())).read_all(),
            &self.secrets,
        );
        let indexes = index.as_deref().into_iter().chain(roles.as_deref());
        let parts: Vec<&str> = project.text.as_deref().into_iter().chain(indexes).collect();
        let project = (!parts.is_empty()).then(|| Arc::from(parts.join("\n\n")));
        notices.extend(self.commands.sandbox().objections.iter().cloned());
        if self.config.sandbox.level == SandboxLevel::Off {
            notices.push("the sandbox is off: commands can do whatever you can do".to_owned());
        }
        let folder = log_location.folder();
        let resources = Resources::new(&folder.folder()).with_history(history);
        let mut tools = self.toolbox(&folder, history, resources.clone());
        if !found.skills.is_empty() {
            tools = tools.with_skills(&skills);
        }
        let sandbox_profile = Profile::for_mode(self.config.sandbox.level, &posture.mode);
        let (image_support, window) =
            image_support_and_window(&self.config, &self.credential, &posture.model);
        let settings = TurnSettings {
            mcp_servers,
            provider: Arc::clone(&self.provider),
            toolbox: tools.clone().for_role(posture.role),
            tools,
            approvals: self.approvals.clone(),
            role: posture.role,
            resources,
            image_support,
            window,
            pressure_gauge: Arc::default(),
            compaction: self.config.compaction,
            editor: None,
            tracker: self.config.undo.enabled.then(|| {
                TurnTracker::new(
                    workspace.clone(),
                    folder.clone(),
                    SurveyLimits::from_undo_settings(self.config.undo),
                )
            }),
            secrets: Arc::clone(&self.secrets),
            permission_state: PermissionState::new(posture.mode, sandbox_profile),
            can_ask,
            dry_run: self.config.dry_run,
            max_iterations: self.config.max_iterations,
            retry: self.config.retry,
            iteration_timeout: self.config.stream.total,
            tool_grace: self.config.grace.process + self.config.grace.turn / 5,
            output_limit: self.config.output_limit,
            output_folders: inspect::lineage_folders(&folder, history).into(),
            session_folder: folder,
            budget: Arc::clone(&self.budget),
            usage_total: UsageTotal::from_history(history, &self.config.prices),
            response_options: ResponseOptions {
                web_search: self.config.web_search,
                answer_schema: self.config.answer_schema.clone(),
            },
            prompt: PromptParts {
                contract: prompt::VERSION,
                instructions: prompt::INSTRUCTIONS.into(),
                project,
                cache_key: prompt::cache_key(
                    prompt::VERSION,
                    &posture.model,
                    &history.fork_root_id(id),
                ),
                shell: self.shell.clone(),
            },
            model: posture.model,
            effort: posture.effort,
            skills,
            workspace,
        };
        (settings, notices)
    }

    /// The folders that may hold Skills and roles of a Workspace.
    fn discovery_folders(&self, workspace: &Path) -> DiscoveryFolders {
        let home = self.config.home.clone();
        DiscoveryFolders { workspace: workspace.to_owned(), user: self.user_home(), home }
    }

    /// The user's home folder; `None` if it is unknown.
    fn user_home(&self) -> Option<PathBuf> {
        Some(self.user_home.clone()).filter(|home| home.parent().is_some())
    }

    /// The tools of a Session; all its Conversations in this process share its commands.
    fn toolbox(&self, folder: &SessionFolder, history: &History, resources: Resources) -> Toolbox {
        let mut known = self.backgrounds.lock();
        let background =
            known.get(folder).and_then(WeakBackgroundCommands::upgrade).unwrap_or_else(|| {
                known.retain(|_, weak| weak.upgrade().is_some());
                let background = BackgroundCommands::new(self.config.bash.max_background, history);
                known.insert(folder.clone(), background.downgrade());
                background
            });
        Toolbox::with_background(
            &self.config,
            self.commands.clone(),
            history,
            resources,
            background,
        )
    }

    /// The MCP servers of a Session: those of the settings, then those of the caller. All its
    /// Conversations in this process share them, as long as they ask for the same ones.
    fn session_mcp_servers(
        &self,
        folder: &SessionFolder,
        workspace: &Path,
        brought: Vec<McpServer>,
    ) -> (McpServers, Vec<String>) {
        // Entries that cannot be used were reported when the settings were read.
        let usable = self.config.mcp.servers.iter().filter(|server| server.problem().is_none());
        let mut servers: Vec<McpServer> = usable.cloned().collect();
        let taken = mcp::merge_servers(&mut servers, brought);
        if servers.is_empty() {
            return (McpServers::default(), Vec::new());
        }
        let ignored_notice = |name| format!("MCP server `{name}` is ignored: the name is taken");
        let notices = taken.into_iter().map(ignored_notice).collect();
        let mut known = self.mcp_servers.lock();
        let there = known.get(folder).and_then(WeakMcpServers::upgrade);
        if let Some(mcp_servers) = there.filter(|there| there.has_servers(&servers)) {
            return (mcp_servers, notices);
        }
        let mcp_servers = McpServers::start(servers, self.mcp_context(workspace));
        known.retain(|_, weak| weak.upgrade().is_some());
        known.extend(mcp_servers.downgrade().map(|weak| (folder.clone(), weak)));
        (mcp_servers, notices)
    }

    fn mcp_context(&self, workspace: &Path) -> McpContext {
        McpContext {
            commands: self.commands.clone(),
            http: self.http.clone(),
            workspace: workspace.to_owned(),
            home: self.user_home.clone(),
            secrets: Arc::clone(&self.secrets),
            limits: self.config.mcp.clone(),
        }
    }

    fn session_options(&self) -> SessionOptions {
        SessionOptions {
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
            blocking::run_blocking(move || inspect::remember_workspace(&home, &root)).await.ok();
        });
    }
}

/// The place of a Session's Log; a child may work in another Workspace.
#[derive(Debug, Clone, Copy)]
struct LogLocation<'a> {
    logs: &'a StateRoot,
    id: &'a SessionId,
}

impl LogLocation<'_> {
    fn folder(&self) -> SessionFolder {
        self.logs.session_folder(self.id)
    }
}

/// Options of a Conversation that the caller of `start` provides.
struct CallerOptions {
    can_ask: bool,
    mcp_servers: Vec<McpServer>,
}

/// Write bounds of a Session with this History.
pub fn recorded_bounds(
    history: &History,
    roles: &RoleCatalog,
) -> Result<WriteBounds, HarnessError> {
    Posture::from_history(history, roles).bounds()
}

/// Rolls back a merge that a dead process left unfinished; returns a notice.
async fn recover_merge(session: &Session, workspace: &Workspace) -> Option<String> {
    let folder = session.folder().clone();
    if !child_workspace::has_pending_merge(&folder) {
        return None;
    }
    let _alone = child_workspace::merge_lock().await;
    let workspace = workspace.clone();
    let taking = move || {
        child_workspace::recover_merge(&workspace, &ContentStore::for_session(&folder), &folder)
    };
    let trouble = |error| Some(format!("an interrupted merge cannot be rolled back: {error}"));
    match blocking::run_blocking(taking).await {
        Ok(Ok(recovered)) => recovered.map(|recovered| recovered.to_string()),
        Ok(Err(error)) => trouble(error.to_string()),
        Err(error) => trouble(error.to_string()),
    }
}

/// Notices about damage in the Log that was opened.
fn damage_notices(opened: &LogOpenReport) -> Vec<String> {
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
        let what = match &damage.kind {
            DamageKind::Unreadable { reason, .. } => format!("was skipped: {reason}"),
            DamageKind::BrokenProof => {
                "does not match its proof: it may have been changed".to_owned()
            }
            DamageKind::Unproven => "carries no proof".to_owned(),
            DamageKind::Blob { reason } | DamageKind::Payload { reason } => reason.clone(),
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
    ChildWorkspace(#[from] ChildWorkspaceError),
    /// The write bounds are invalid.
    #[error("write bounds: {0}")]
    Bounds(String),
}

impl Explain for HarnessError {
    fn explain(&self) -> Explanation {
        match self {
            HarnessError::Workspace(error) => error.explain(),
            HarnessError::Session(error) => error.explain(),
            HarnessError::ChildWorkspace(error) => error.explain(),
            HarnessError::Bounds(_) => Kind::InvalidArgs
                .with_next_action("write globs relative to the Workspace, such as 'src/**'"),
        }
    }
}
