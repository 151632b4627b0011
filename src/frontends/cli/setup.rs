//! Setup of a command: reads the environment once, and makes settings, a Workspace and a credential of it.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use super::{CliContext, Colour, CredentialChoice, bad_argument};
use crate::agent::harness::HarnessOptions;
use crate::agent::inspect;
use crate::agent::turn;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::base::link_escape::escape_by_link;
use crate::base::paths::{Home, STATE_FOLDER, quote_shell_word};
use crate::frontends::cli::flags::applies_to_line;
use crate::frontends::cli::named_server;
use crate::frontends::cli::terminal::keyboard::read_from_terminal;
use crate::frontends::cli::terminal::stdin;
use crate::frontends::render::{
    OutputMode, SignalCount, StdioOutput, Surface, ViewStyle, clean, is_ascii_needed,
};
use crate::host::http::HttpSettings;
use crate::host::process::{Containment, HostEnvironment};
use crate::host::workspace::{Workspace, WorkspaceChoice, WorkspaceError};
use crate::model::credential;
use crate::model::credential::{
    ChosenCredential, Credential, CredentialError, CredentialInputs, CredentialKind, FieldPolicy,
    Issuer,
};
use crate::model::roles::RoleCatalog;
use crate::model::skill::{DiscoveryFolders, Skills};
use crate::record::resource;
use crate::record::resource::{Attachment, AttachmentProblem};
use crate::record::state_dir;
use crate::record::state_dir::{StateLocation, StateRoot};
use crate::settings::bounds::{WriteBounds, WriteGlobs};
use crate::settings::config;
use crate::settings::config::{AnswerSchema, Config, ConfigSources, LoadedConfig};
use crate::settings::role::Role;
use crate::testing::scripted::{DEMO_MODEL, ScriptedServer, demo_model};

/// The environment of this process, as it was when Pixir started.
#[derive(Debug, Clone)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// Reads the environment of this process; nothing else in Pixir does.
    pub fn from_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// All variables, for commands to inherit.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        self.0.clone()
    }

    /// One variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_os_str())
    }

    /// One variable, if it is UTF-8.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(OsStr::to_str).map(str::to_owned)
    }
}

/// Settings and model access for a Turn.
pub struct TurnSetup {
    pub loaded: LoadedConfig,
    pub access: ModelAccess,
}

/// The model to use: that of a Provider, or the embedded one.
pub enum ModelAccess {
    /// A Provider, with its credential.
    Provider(Credential),
    /// The embedded model.
    Demo,
}

impl ModelAccess {
    /// The credential to use. Starts the server of the embedded model, which runs until it is dropped.
    pub async fn connect(self) -> Result<(Credential, Option<ScriptedServer>), Report> {
        match self {
            ModelAccess::Provider(credential) => Ok((credential, None)),
            ModelAccess::Demo => {
                let failed = |error: String| {
                    Report::new(Kind::Internal, format!("the embedded model: {error}"))
                };
                let server = ScriptedServer::start(demo_model())
                    .await
                    .map_err(|error| failed(error.to_string()))?;
                let credential = Credential::new(None, &server.base_url())
                    .map_err(|error| failed(error.to_string()))?;
                Ok((credential, Some(server)))
            }
        }
    }
}

impl CliContext {
    /// Pixir's home folder.
    pub fn home(&self) -> Result<Home, Report> {
        if let Some(named) = self.environment.get("PIXIR_HOME").filter(|path| !path.is_empty()) {
            let folder =
                std::path::absolute(named).map_err(|error| no_home_error(&error.to_string()))?;
            return Ok(Home::new(folder));
        }
        let user = user_home().ok_or_else(|| no_home_error("HOME is not set"))?;
        Ok(Home::new(user.join(STATE_FOLDER)))
    }

    /// The working directory (`--cwd` or the current one), unchecked, for commands that only read Sessions.
    pub fn current_folder(&self) -> Result<PathBuf, Report> {
        self.open_workspace().map(|workspace| workspace.root().to_owned())
    }

    /// The working directory, checked as a Workspace for a Turn.
    pub fn admitted_workspace(&self) -> Result<PathBuf, Report> {
        let workspace = self.open_workspace()?;
        let choice = if self.flags.cwd.is_some() {
            WorkspaceChoice::Named
        } else {
            WorkspaceChoice::Current
        };
        Workspace::refuse_wide(workspace.root(), user_home().as_deref(), choice)?;
        Workspace::refuse_home(workspace.root(), self.home()?.path())?;
        Ok(workspace.root().to_owned())
    }

    /// Whether a client may work in a directory: `--cwd` names the one that would be refused.
    pub fn admit_for_client(&self, directory: &Path) -> Result<(), Report> {
        Workspace::refuse_home(directory, self.home()?.path())?;
        let is_named = self
            .flags
            .cwd
            .as_ref()
            .is_some_and(|named| named.canonicalize().is_ok_and(|named| named == directory));
        let choice = if is_named { WorkspaceChoice::Named } else { WorkspaceChoice::Current };
        Workspace::refuse_wide(directory, user_home().as_deref(), choice).map_err(|error| {
            let message = Report::describe(&error).message;
            let named = format!(
                "start it as `pixir acp --cwd {}`",
                quote_shell_word(&directory.to_string_lossy())
            );
            let actions = vec!["open a project folder".to_owned(), format!("or {named}")];
            Report::new(Kind::WorkspaceRefused, message).with_next_actions(actions)
        })
    }

    fn open_workspace(&self) -> Result<Workspace, Report> {
        let path = match &self.flags.cwd {
            Some(path) => path.clone(),
            None => std::env::current_dir().map_err(|error| {
                bad_argument(format!("the current directory cannot be used: {error}"))
            })?,
        };
        Workspace::open(&path).map_err(|error| match &error {
            WorkspaceError::Read { source, .. } => {
                bad_argument(format!("{} cannot be a Workspace: {source}", path.display()))
            }
            _ => Report::describe(&error),
        })
    }

    /// The working directory, after all other known Workspaces if `all`.
    pub fn workspaces(&self, all: bool) -> Result<Vec<PathBuf>, Report> {
        let here = self.current_folder()?;
        let mut workspaces = Vec::new();
        if all {
            workspaces = inspect::known_workspaces(&self.home()?);
            workspaces.retain(|other| *other != here);
        }
        workspaces.push(here);
        Ok(workspaces)
    }

    /// The state of the working directory.
    pub fn current_state(&self) -> Result<StateLocation, Report> {
        Ok(state_dir::resolve_state(&self.home()?, &self.current_folder()?))
    }

    /// The state roots with Sessions: of the working directory, after those of all other known Workspaces if `all`.
    pub fn state_roots(&self, all: bool) -> Result<Vec<StateRoot>, Report> {
        Ok(inspect::state_roots(&self.home()?, &self.workspaces(all)?))
    }

    /// The state root with the Log of a Session: of the working directory, or of any known Workspace unless `--cwd`
    /// is given.
    pub fn find_state_of_session(&self, id: &SessionId) -> Result<Option<StateRoot>, Report> {
        let root = self.current_state()?.root_for_session(id);
        if root.has_log(id) {
            return Ok(Some(root));
        }
        if self.flags.cwd.is_some() {
            return Ok(None);
        }
        let home = self.home()?;
        let known = inspect::state_roots(&home, &inspect::known_workspaces(&home));
        let elsewhere = known.into_iter().find(|root| root.has_log(id));
        if let Some(root) = &elsewhere {
            self.print_notice(&format!("Session {id} is in {}", root.workspace().display()));
        }
        Ok(elsewhere)
    }

    /// Settings and model access for a Turn, after asking for trust. `stored_model` is the model of a resumed Session.
    pub fn prepare_turn(
        &self,
        workspace: &Path,
        stored_model: Option<&str>,
    ) -> Result<TurnSetup, Report> {
        self.ask_for_trust(workspace)?;
        self.prepare_turn_without_asking(workspace, stored_model)
    }

    /// Like `prepare_turn`, without asking for trust.
    pub fn prepare_turn_without_asking(
        &self,
        workspace: &Path,
        stored_model: Option<&str>,
    ) -> Result<TurnSetup, Report> {
        let mut loaded = self.load_settings(Some(workspace))?;
        let config = &mut loaded.config;
        config.answer_schema = self.read_answer_schema(workspace)?;
        if let Some(model) = named_server::fitting_model(config, stored_model) {
            config.model = model;
            config.model_named = true;
        }
        let model = match stored_model {
            Some(stored) if !config.model_named => stored,
            _ => &config.model,
        };
        if config.budget.max_cost.is_some() && config.prices.get(model).is_none() {
            return Err(turn::missing_price_report(model, "--max-cost"));
        }
        if model == DEMO_MODEL {
            return Ok(TurnSetup { loaded, access: ModelAccess::Demo });
        }
        let credential = self.choose_credential(config)?.credential;
        if config.web_search && credential.policy() == FieldPolicy::Portable {
            if self.flags.web_search {
                return Err(bad_argument("this provider cannot search the web by itself")
                    .with_next_actions(vec!["leave out --web-search, or --provider".into()]));
            }
            let words = "`web_search` of the config is ignored: this provider does not support it";
            loaded.notices.push(words.to_owned());
            loaded.config.web_search = false;
        }
        Ok(TurnSetup { loaded, access: ModelAccess::Provider(credential) })
    }

    /// The options of a Harness with these settings and this credential.
    pub fn harness_options(
        &self,
        config: Config,
        credential: Credential,
    ) -> Result<HarnessOptions, Report> {
        let HostEnvironment { own_binary, environment, .. } = self.process_host()?;
        Ok(HarnessOptions { config, credential, environment, own_binary })
    }

    /// What commands inherit from this process.
    pub fn process_host(&self) -> Result<HostEnvironment, Report> {
        let own_binary = std::env::current_exe()
            .map_err(|error| Report::new(Kind::Internal, format!("no own binary: {error}")))?;
        let environment = self.environment.variables();
        Ok(HostEnvironment { own_binary, environment, containment: Containment::Best })
    }

    /// The folders of Skills, prompts and roles for a Workspace.
    fn skill_places(&self, workspace: &Path) -> Result<DiscoveryFolders, Report> {
        let user = self.environment.get("HOME").map(PathBuf::from);
        let user = user.filter(|home| home.is_absolute() && home.parent().is_some());
        Ok(DiscoveryFolders { workspace: workspace.to_owned(), user, home: self.home()? })
    }

    /// The Skills and prompts of a Workspace.
    pub fn skills(&self, workspace: &Path) -> Result<Skills, Report> {
        self.skill_places(workspace).map(Skills::new)
    }

    /// The roles of a Workspace.
    pub fn roles(&self, workspace: &Path) -> Result<RoleCatalog, Report> {
        self.skill_places(workspace).map(|places| RoleCatalog::new(&places))
    }

    /// The user's own settings, for commands that need no Workspace.
    pub fn load_user_settings(&self) -> Result<Config, Report> {
        self.load_settings(None).map(|loaded| loaded.config)
    }

    /// The credential for these settings, and why: that of a named provider, or the one that `credential` chooses.
    pub fn choose_credential(&self, config: &Config) -> Result<ChosenCredential, Report> {
        if let Some(chosen) = named_server::named_server_credential(config, &self.environment)? {
            return Ok(chosen);
        }
        credential::choose_credential(&CredentialInputs {
            home: &config.home,
            lookup: &|name| self.environment.text(name),
            wanted: config.credential,
            http: &self.http_settings(config),
        })
        .map_err(Report::from)
    }

    /// Reads the file of `--output-schema`. A file without a valid schema is refused before anything happens.
    fn read_answer_schema(&self, workspace: &Path) -> Result<Option<AnswerSchema>, Report> {
        let Some(path) = &self.flags.output_schema else { return Ok(None) };
        let refuse =
            |reason: String| bad_argument(format!("--output-schema {}: {reason}", path.display()));
        let is_file = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?.is_file();
        if !is_file {
            return Err(refuse("it is not a file".to_owned()));
        }
        // The model is shown the schema.
        if let Some(target) = escape_by_link(workspace, path) {
            let flaw = AttachmentProblem::LeadsOutside(target);
            let message = format!("--output-schema {}: {flaw}", path.display());
            return Err(Report::new(Kind::OutsideWorkspace, message)
                .with_next_actions(vec![flaw.next_action()]));
        }
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        AnswerSchema::parse(&text).map(Some).map_err(refuse)
    }

    /// Reads the files of `--attach`. An unusable file is refused before anything happens.
    pub fn read_attachments(&self, workspace: &Path) -> Result<Vec<Attachment>, Report> {
        resource::read_attachments(&self.flags.attach, workspace).map_err(Report::from)
    }

    /// Loads the settings of this run.
    pub fn load_settings(&self, workspace: Option<&Path>) -> Result<LoadedConfig, Report> {
        let lookup = |name: &str| self.environment.text(name);
        let trusted = workspace.map(|workspace| self.trusted(workspace)).unwrap_or_default();
        let sources = ConfigSources {
            home: self.home()?,
            workspace,
            trusted: &trusted,
            environment: &lookup,
            flags: config::ConfigFlags {
                model: self.flags.model.clone(),
                effort: self.flags.effort.clone(),
                credential: self.flags.credential.map(|paying| {
                    let kind = match paying {
                        CredentialChoice::ChatGpt => CredentialKind::ChatGpt,
                        CredentialChoice::ApiKey => CredentialKind::ApiKey,
                    };
                    kind.name().to_owned()
                }),
                max_iterations: self.flags.max_iterations,
                max_tokens_total: self.flags.max_tokens_total,
                max_cost: self.flags.max_cost.clone(),
                max_requests: self.flags.max_requests,
                timeout: self.flags.timeout.clone(),
                web_search: self.flags.web_search,
                provider: self.flags.provider.clone(),
                permission_mode: self.flags.permission_mode(),
                role: self.find_role(workspace)?,
                writes: self.write_globs()?,
                sandbox: self.flags.sandbox.clone(),
                dry_run: self.flags.dry_run,
            },
        };
        let mut loaded = config::load_config(sources)?;
        // Model and effort of a role file override settings, and yield to flags.
        let wants = loaded.config.role.and_then(|role| role.custom.as_ref());
        if let Some(model) = wants.and_then(|role| role.model.clone())
            && self.flags.model.is_none()
        {
            loaded.config.model = model;
            loaded.config.model_named = true;
        }
        if let Some(effort) = wants.and_then(|role| role.effort.clone())
            && self.flags.effort.is_none()
        {
            loaded.config.effort = Some(effort);
        }
        // `--credential` overrides a provider that a setting names.
        if self.flags.credential.is_some() && self.flags.provider.is_none() {
            loaded.config.provider = None;
        }
        Ok(loaded)
    }

    /// Proxy and TLS settings for HTTP.
    pub fn http_settings(&self, config: &Config) -> HttpSettings {
        let variables = HttpSettings::from_environment(|name| self.environment.text(name));
        variables.with_extra_certificates(config.extra_roots.clone())
    }

    /// The sign-in service that issues tokens.
    pub fn sign_in_issuer(&self) -> Result<Issuer, CredentialError> {
        // Unreadable settings are reported by `run` and `doctor`; signing out works anyway.
        let config = self.load_user_settings().or_else(|_| self.home().map(Config::new));
        let http = config.map(|config| self.http_settings(&config)).unwrap_or_default();
        Issuer::from_environment(&|name| self.environment.text(name), &http)
    }

    /// The write globs of the flags. An invalid one is refused before any request is sent.
    fn write_globs(&self) -> Result<WriteGlobs, Report> {
        let allow = self.flags.allow_write.clone();
        let globs = WriteGlobs { allow, deny: self.flags.deny_write.clone() };
        WriteBounds::none()
            .add_globs(&globs)
            .map_err(|reason| bad_argument(format!("write bounds: {reason}")))?;
        Ok(globs)
    }

    /// The role of `--role`. Role files are read only for a given name, and only with a Workspace; without one the
    /// name is checked later.
    fn find_role(&self, workspace: Option<&Path>) -> Result<Option<&'static Role>, Report> {
        let Some(name) = &self.flags.role else { return Ok(None) };
        let Some(workspace) = workspace else { return Ok(Role::find(name)) };
        let found = self.roles(workspace)?.find(name);
        found.map(Some).map_err(Report::from)
    }

    /// Whether a person can be asked: stdin and stderr are terminals.
    pub fn can_ask(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stderr().is_terminal() && !self.flags.events
    }

    /// Whether a person can answer questions during a run. If the prompt came from a pipe or a file, stdin is
    /// replaced by the controlling terminal.
    pub fn can_ask_in_run(&self) -> bool {
        let is_seen = std::io::stderr().is_terminal() && !self.flags.events;
        if is_seen
            && !std::io::stdin().is_terminal()
            && let Err(error) = read_from_terminal()
        {
            tracing::debug!(%error, "there is no controlling terminal to ask on");
        }
        self.can_ask()
    }

    /// Whether all output except answers must be plain ASCII.
    pub fn is_ascii(&self) -> bool {
        let variable = |name: &str| self.environment.text(name).filter(|value| !value.is_empty());
        is_ascii_needed(variable, std::io::stderr().is_terminal())
    }

    /// The display mode of a Turn.
    pub fn display_mode(&self) -> OutputMode {
        let surface = |is_terminal| if is_terminal { Surface::Terminal } else { Surface::Plain };
        let is_dumb = self.environment.get("TERM").is_some_and(|term| term == "dumb");
        let is_plain = is_dumb || self.is_ascii();
        let activity_is_live = std::io::stderr().is_terminal() && !is_plain;
        let style = ViewStyle {
            answer: surface(std::io::stdout().is_terminal()),
            activity: surface(activity_is_live),
            colour: match self.flags.color {
                Colour::Always => true,
                Colour::Never => false,
                Colour::Auto => {
                    let no_colour =
                        self.environment.get("NO_COLOR").is_some_and(|value| !value.is_empty());
                    activity_is_live && !no_colour
                }
            },
            quiet: self.flags.quiet,
            verbose: self.flags.verbose,
        };
        if self.flags.events {
            OutputMode::Events
        } else if self.flags.json {
            OutputMode::Json(style)
        } else {
            OutputMode::Text(style)
        }
    }

    /// Whether a chat can be shown: stdin, stdout and stderr are a terminal that moves its cursor and shows more than
    /// ASCII.
    pub fn has_chat_terminal(&self) -> bool {
        let is_dumb = self.environment.get("TERM").is_some_and(|term| term == "dumb");
        self.can_ask() && std::io::stdout().is_terminal() && !(is_dumb || self.is_ascii())
    }

    /// Whether the terminal wraps lines again when its width changes; xterm, GNU screen and the console do not.
    pub fn terminal_reflows(&self) -> bool {
        let term = self.environment.text("TERM").unwrap_or_default();
        let is_screen = term.starts_with("screen") && self.environment.get("TMUX").is_none();
        !(is_screen || term == "linux" || self.environment.get("XTERM_VERSION").is_some())
    }

    /// The user's own editor, as a command for the shell.
    pub fn external_editor(&self) -> Option<String> {
        let variable = |name: &str| self.environment.text(name).filter(|value| !value.is_empty());
        variable("VISUAL").or_else(|| variable("EDITOR"))
    }

    /// Prints a notice on stderr outside a Turn, unless `--quiet`.
    pub fn print_notice(&self, text: &str) {
        if self.flags.quiet {
            return;
        }
        let line = format!("{}\n", clean(text));
        StdioOutput::stdio(SignalCount::default()).write_activity(line.as_bytes());
    }

    /// The command line that resumes a Session.
    pub fn resume_command(&self, id: &SessionId, workspace: &Path) -> String {
        self.command_in_workspace(&format!("resume {id}"), workspace)
    }

    /// A command line of this program for a Workspace, with `--cwd` where needed and `--provider` where it applies.
    pub fn command_in_workspace(&self, words: &str, workspace: &Path) -> String {
        let mut command = format!("{} {words}", self.program_name());
        if let Some(provider) = &self.flags.provider
            && applies_to_line("provider", words)
        {
            command = format!("{command} --provider {}", quote_shell_word(provider));
        }
        let is_here = std::env::current_dir()
            .and_then(|here| here.canonicalize())
            .is_ok_and(|here| here == workspace);
        if is_here {
            return command;
        }
        format!("{command} --cwd {}", quote_shell_word(&workspace.to_string_lossy()))
    }

    /// This program as a command line calls it: by name if PATH finds it, else by path.
    pub fn program_name(&self) -> String {
        let Ok(own) = std::env::current_exe() else { return "pixir".to_owned() };
        let search = self.environment.get("PATH").unwrap_or_default();
        let is_found = std::env::split_paths(search)
            .map(|folder| folder.join("pixir"))
            .find_map(|candidate| candidate.canonicalize().ok())
            .is_some_and(|found| own.canonicalize().is_ok_and(|own| own == found));
        if is_found { "pixir".to_owned() } else { quote_shell_word(&own.to_string_lossy()) }
    }

    /// Refuses `--json` in line mode: one envelope needs one Turn.
    pub fn refuse_json_in_line_mode(&self) -> Result<(), Report> {
        if self.flags.json { Err(stdin::no_prompt()) } else { Ok(()) }
    }
}

/// A folder for a person, with `~` for the user's home.
pub fn display_folder(folder: &Path) -> String {
    match user_home().and_then(|home| folder.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(inside) if inside.as_os_str().is_empty() => "~".to_owned(),
        Some(inside) => format!("~/{}", inside.display()),
        None => folder.display().to_string(),
    }
}

fn user_home() -> Option<PathBuf> {
    dirs::home_dir().filter(|home| home.is_absolute())
}

fn no_home_error(reason: &str) -> Report {
    Report::new(Kind::InvalidConfig, format!("Pixir's home folder cannot be determined: {reason}"))
        .with_next_actions(vec!["set HOME or PIXIR_HOME".into()])
}
