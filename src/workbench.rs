//! The workbench: the tools without a Session around them, for tests and benches.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::Report;
use crate::history::History;
use crate::id::CallId;
use crate::paths::Home;
use crate::resource::Shelf;
use crate::sandbox::Profile;
use crate::secret::Secrets;
use crate::tool::{Commands, Containment, Desk, Host, Signals, ToolContext, Toolbox};
use crate::workspace::Workspace;

/// A Workspace, its tools, and a way to interrupt them.
pub struct Workbench {
    toolbox: Toolbox,
    workspace: Workspace,
    session_folder: PathBuf,
    secrets: Arc<Secrets>,
    cancel: CancellationToken,
    confinement: Profile,
}

/// What the workbench is made of.
pub struct Setup<'a> {
    /// The pixir program that supervises commands.
    pub own_binary: PathBuf,
    /// The Workspace; spilled output goes to `.session` in it.
    pub folder: &'a Path,
    /// The whole environment, of which commands see what is allowed.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether to do without namespaces.
    pub subreaper: bool,
    /// How long background processes may outlive the command.
    pub drain: Duration,
    /// How long a process may take from TERM to KILL.
    pub grace: Duration,
}

/// What a call answered.
#[derive(Debug)]
pub struct Answer {
    /// Whether it is good news.
    pub ok: bool,
    /// What the model reads.
    pub text: String,
    /// Facts.
    pub details: Value,
}

impl Workbench {
    /// Sets it up, with commands in the sandbox that is the default.
    pub fn new(setup: Setup<'_>) -> Result<Self, Report> {
        Self::adjusted(setup, |_| {})
    }

    /// Sets it up with other settings.
    pub fn adjusted(setup: Setup<'_>, adjust: impl FnOnce(&mut Config)) -> Result<Self, Report> {
        let mut config = Config::new(Home::new(setup.folder.join(".home")));
        adjust(&mut config);
        config.bash.drain = setup.drain;
        config.grace.process = setup.grace;
        let secrets = Arc::new(Secrets::from_environment(setup.environment.iter().cloned()));
        let containment = if setup.subreaper { Containment::Subreaper } else { Containment::Best };
        let Setup { own_binary, folder, environment, .. } = setup;
        let host = Host { own_binary, environment, containment };
        let workspace = Workspace::open(folder).map_err(|error| Report::from(&error))?;
        let session_folder = workspace.root().join(".session");
        let history = History::default();
        let shelf = Shelf::new(session_folder.clone());
        let commands = Commands::new(host, &config);
        let toolbox = Toolbox::built_in(&config, commands, &history, shelf);
        let cancel = CancellationToken::new();
        let confinement = Profile::of(config.sandbox.level, &config.permission_mode);
        Ok(Self { toolbox, workspace, session_folder, secrets, cancel, confinement })
    }

    /// Calls a tool as the Executor would, permission aside.
    pub async fn call(&self, name: &str, args: Value) -> Result<Answer, Report> {
        let report = |error| Report::from(&error);
        self.toolbox.validate(name, &args).map_err(report)?;
        let tool = self.toolbox.find(name).map_err(report)?;
        let context = ToolContext {
            call_id: CallId::new(format!("call-{:08x}", fastrand::u32(..))),
            workspace: self.workspace.clone(),
            cancel: self.cancel.child_token(),
            signals: Signals::nowhere(),
            secrets: self.secrets.clone(),
            session_folder: self.session_folder.clone(),
            output_limit: 16 * 1024,
            confinement: self.confinement,
            desk: Desk::default(),
            tracker: None,
        };
        let output = tool.run(args, context).await.map_err(report)?;
        Ok(Answer { ok: output.ok, text: output.text, details: output.details })
    }

    /// Interrupts every running call, and all later ones.
    pub fn interrupt(&self) {
        self.cancel.cancel();
    }
}
