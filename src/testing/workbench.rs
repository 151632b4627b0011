//! The workbench: tools without a Session, for tests and benchmarks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::agent::child_workspace::{
    ChildWorkspaceError, ChildWorkspaceMode, ChildWorkspaceRequest, ChildWorkspaces, CloseOutcome,
};
use crate::agent::workflow;
use crate::agent::workflow::{SpecContext, Workflow};
use crate::base::error::{Kind, Report};
use crate::base::files::StatePath;
use crate::base::id::{CallId, SessionId};
use crate::base::paths::Home;
use crate::base::secret::Secrets;
use crate::host::process::{
    CommandRunner, Containment, HostEnvironment, ServiceEvent, ServiceProgram, StartedService,
};
use crate::host::sandbox::Profile;
pub use crate::host::sandbox::{CREDENTIALS, CredentialPlace};
use crate::host::workspace::Workspace;
use crate::record::event::SessionStarted;
use crate::record::event::ToolEvents;
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::resource::Resources;
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::config::{Config, SubagentLimits};
use crate::tools::tool::{EditorBridge, ToolContext};
use crate::tools::toolbox::Toolbox;

/// A Workspace with its tools, and a way to interrupt them.
pub struct Workbench {
    toolbox: Toolbox,
    commands: CommandRunner,
    workspace: Workspace,
    session_folder: SessionFolder,
    secrets: Arc<Secrets>,
    cancel: CancellationToken,
    sandbox_profile: Profile,
}

/// The settings of a workbench.
pub struct WorkbenchSetup<'a> {
    /// The pixir binary that supervises commands.
    pub own_binary: PathBuf,
    /// The Workspace; spilled output goes to its folder `.session`.
    pub folder: &'a Path,
    /// The whole environment; commands see the allowed part.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether commands run without namespaces.
    pub subreaper: bool,
    /// How long background processes may run after the command.
    pub drain: Duration,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// The result of a tool call.
#[derive(Debug)]
pub struct ToolAnswer {
    /// Whether the result is a success.
    pub ok: bool,
    /// The text for the model.
    pub text: String,
    /// Structured details.
    pub details: Value,
}

impl Workbench {
    /// A workbench with commands in the default sandbox.
    pub fn new(setup: WorkbenchSetup<'_>) -> Result<Self, Report> {
        Self::with_config(setup, |_| {})
    }

    /// A workbench with other settings.
    pub fn with_config(
        setup: WorkbenchSetup<'_>,
        adjust: impl FnOnce(&mut Config),
    ) -> Result<Self, Report> {
        let mut config = Config::new(Home::new(setup.folder.join(".home")));
        adjust(&mut config);
        if config.home.path().starts_with(setup.folder) {
            // Private cache layers would be in the Workspace.
            config.sandbox.caches = Vec::new();
        }
        config.bash.drain = setup.drain;
        config.grace.process = setup.grace;
        let secrets = Arc::new(Secrets::from_environment(setup.environment.iter().cloned()));
        let containment = if setup.subreaper { Containment::Subreaper } else { Containment::Best };
        let WorkbenchSetup { own_binary, folder, environment, .. } = setup;
        let host = HostEnvironment { own_binary, environment, containment };
        let workspace = Workspace::open(folder)?;
        let state = StatePath::root(workspace.root()).join(".session");
        let root = StateRoot::in_state_folder(workspace.root(), state);
        let session_folder = root.session_folder(&SessionId::mint());
        let history = History::default();
        let resources = Resources::new(&session_folder.folder());
        let commands = CommandRunner::new(host, &config);
        let toolbox = Toolbox::built_in(&config, commands.clone(), &history, resources);
        let cancel = CancellationToken::new();
        let sandbox_profile = Profile::for_mode(config.sandbox.level, &config.permission_mode);
        Ok(Self { toolbox, commands, workspace, session_folder, secrets, cancel, sandbox_profile })
    }

    /// Calls a tool as the Executor does, without a permission check.
    pub async fn call(&self, name: &str, args: Value) -> Result<ToolAnswer, Report> {
        self.toolbox.validate(name, &args)?;
        let tool = self.toolbox.find_tool(name)?;
        let context = ToolContext {
            call_id: CallId::new(format!("call-{:08x}", fastrand::u32(..))),
            workspace: self.workspace.clone(),
            cancel: self.cancel.child_token(),
            events: ToolEvents::discard(),
            secrets: self.secrets.clone(),
            session_folder: self.session_folder.clone(),
            output_folders: [self.session_folder.clone()].into(),
            output_limit: 16 * 1024,
            sandbox_profile: self.sandbox_profile,
            editor: EditorBridge::default(),
            tracker: None,
        };
        let output = tool.run(args, context).await?;
        Ok(ToolAnswer { ok: output.ok, text: output.text, details: output.details })
    }

    /// Starts a service, writes `words` to it, and returns its first output on stdout and stderr. Dropping
    /// the handles ends it.
    pub async fn exchange_with_service(
        &self,
        script: &str,
        words: &str,
    ) -> Result<(String, String), Report> {
        let program = ServiceProgram {
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            directory: self.workspace.root().to_owned(),
            environment: Vec::new(),
        };
        let started = self.commands.start_service(&program).await;
        let StartedService { mut service, mut stdin, stderr: mut errors } = started?;
        let lost = |error: std::io::Error| Report::new(Kind::Internal, error.to_string());
        stdin.write_all(words.as_bytes()).await.map_err(lost)?;
        let mut output = BytesMut::new();
        if let ServiceEvent::Ended(ending) = service.next_event(&mut output).await {
            return Err(Report::new(Kind::CommandFailed, format!("the service ended: {ending:?}")));
        }
        let mut aside = vec![0; 1024];
        let count = errors.read(&mut aside).await.map_err(lost)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&output), text(&aside[..count])))
    }

    /// Ends the spare command supervisor and waits until it has ended.
    pub async fn close(&self) {
        self.commands.close().await;
    }

    /// Interrupts every running call, and all later ones.
    pub fn interrupt(&self) {
        self.cancel.cancel();
    }
}

/// Child Workspaces without Subagents, for tests.
pub struct ChildWorkspaceBench(ChildWorkspaces);

impl ChildWorkspaceBench {
    /// Child Workspaces with these settings.
    pub fn new(
        config: &Config,
        own_binary: PathBuf,
        environment: Vec<(OsString, OsString)>,
    ) -> Self {
        let host = HostEnvironment { own_binary, environment, containment: Containment::Best };
        Self(ChildWorkspaces::new(config, CommandRunner::new(host, config)))
    }

    /// Creates a child of a Session: its Workspace, `isolated` or `worktree`, and its Log. Returns its id
    /// and folder.
    pub async fn create_child(
        &self,
        workspace: &Path,
        parent: &str,
        name: &str,
        mode: &str,
    ) -> Result<(String, PathBuf), Report> {
        let parent = SessionId::parse(parent)?;
        let workspace = Workspace::open(workspace)?;
        let wanted = ChildWorkspaceRequest {
            child: SessionId::mint(),
            parent: parent.clone(),
            subagent: Some(name.to_owned()),
            logs: StateRoot::in_workspace(workspace.root()),
            mode: if mode == "worktree" {
                ChildWorkspaceMode::Worktree
            } else {
                ChildWorkspaceMode::Isolated
            },
            workspace: workspace.clone(),
        };
        let child_workspace = self.0.create(wanted).await?;
        let first: SessionStarted = serde_json::from_value(serde_json::json!({
            "pixir_version": env!("CARGO_PKG_VERSION"),
            "log_version": crate::record::event::LOG_VERSION,
            "workspace": child_workspace.folder().to_string_lossy(),
            "role": "build",
            "parent_session_id": parent,
            "subagent_id": name,
        }))
        .map_err(|error| Report::new(Kind::Internal, error.to_string()))?;
        let log = Log::create(StateRoot::in_workspace(workspace.root()), child_workspace.child());
        let appended = log.and_then(|mut log| log.append(first.into()));
        appended?;
        Ok((child_workspace.child().to_string(), child_workspace.folder().to_owned()))
    }

    /// Closes the Workspace of a child and describes the outcome.
    pub async fn close(&self, workspace: &Path, child: &str) -> Result<String, Report> {
        let child = SessionId::parse(child)?;
        let workspace = Workspace::open(workspace)?;
        let found = self.0.find(&StateRoot::in_workspace(workspace.root()), &child);
        let child_workspace =
            found.and_then(|it| it.ok_or(ChildWorkspaceError::NoChildWorkspace(child.to_string())));
        let child_workspace = child_workspace?;
        self.0
            .close(&child_workspace)
            .await
            .map(|closed| describe_outcome(&closed))
            .map_err(Report::from)
    }

    /// Removes ownerless child Workspaces and describes each outcome.
    pub async fn remove_ownerless(&self) -> Vec<(String, Result<String, Report>)> {
        let collected = self.0.remove_ownerless().await.into_iter();
        let one = |(child, closed): (SessionId, Result<CloseOutcome, ChildWorkspaceError>)| {
            let closed = closed.map(|closed| describe_outcome(&closed)).map_err(Report::from);
            (child.to_string(), closed)
        };
        collected.map(one).collect()
    }
}

fn describe_outcome(closed: &CloseOutcome) -> String {
    match closed {
        CloseOutcome::Removed { branch: None } => "removed".to_owned(),
        CloseOutcome::Removed { branch: Some(branch) } => format!("removed, {branch} stays"),
        CloseOutcome::Kept { changes } => format!("kept with {changes} changes"),
    }
}

/// Reads a Workflow with built-in roles and default limits, and returns its complete form.
pub fn expand_workflow(text: &[u8], arguments: Map<String, Value>) -> Result<Value, Report> {
    let workflow = read_workflow(text, arguments)?;
    Ok(serde_json::to_value(&workflow).unwrap_or_default())
}

/// The ids of the steps of a Workflow, wave by wave.
pub fn workflow_waves(text: &[u8], arguments: Map<String, Value>) -> Result<Value, Report> {
    let workflow = read_workflow(text, arguments)?;
    let id = |place: usize| Value::from(workflow.steps[place].id.as_str());
    let waves = workflow::plan_waves(&workflow).into_iter();
    Ok(waves.map(|wave| wave.into_iter().map(id).collect::<Value>()).collect())
}

fn read_workflow(text: &[u8], arguments: Map<String, Value>) -> Result<Workflow, Report> {
    let mut spec_context = SpecContext::with_built_in_roles(SubagentLimits::default());
    spec_context.arguments = arguments;
    Workflow::read(text, &spec_context).map_err(Report::from)
}
