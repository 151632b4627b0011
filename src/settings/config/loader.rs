//! The config loader: resolves files, environment and flags in a fixed order, from one table of keys.
//!
//! A mistake in the user's file is an error that stops the run. A Workspace's file may set only the few keys that
//! cannot widen trust; everything else in it is ignored with a notice, and is never fatal.

use std::fmt;
use std::path::Path;

use super::keys::SettingKey;
use super::origin::{SettingOrigin, SettingOrigins};
use super::tree::{SettingLeaf, read_leaves};
use super::{Config, McpOrigin, McpServer, McpTransport, TrustRequest, mcp, read, trust_requests};
use crate::base::error::{Explain, Explanation, Kind};
use crate::base::paths;
use crate::base::paths::Home;
use crate::base::secret::is_provider_key;
use crate::record::event::PermissionMode;
use crate::settings::bounds::WriteGlobs;
use crate::settings::role::Role;

/// The sources of the settings of a run, weakest first.
pub struct ConfigSources<'a> {
    pub home: Home,
    /// The Workspace whose config file is read, if known.
    pub workspace: Option<&'a Path>,
    /// The Workspace's files that the user trusts, with the digest of the trusted content.
    pub trusted: &'a [TrustRequest],
    /// Looks up one environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    pub flags: ConfigFlags,
}

/// Settings from the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigFlags {
    pub model: Option<String>,
    pub effort: Option<String>,
    pub credential: Option<String>,
    pub max_iterations: Option<u32>,
    pub max_tokens_total: Option<u64>,
    /// A number of dollars, as typed.
    pub max_cost: Option<String>,
    pub max_requests: Option<u64>,
    pub timeout: Option<String>,
    pub web_search: bool,
    pub provider: Option<String>,
    pub permission_mode: Option<PermissionMode>,
    pub role: Option<&'static Role>,
    pub writes: WriteGlobs,
    pub sandbox: Option<String>,
    pub dry_run: bool,
}

/// Resolved settings, with notices for the user and the origin of each value.
#[derive(Debug)]
pub struct LoadedConfig {
    pub config: Config,
    pub notices: Vec<String>,
    pub origins: SettingOrigins,
}

/// Resolves the settings of one run: defaults, user's file, Workspace's file, environment, flags.
pub fn load_config(sources: ConfigSources<'_>) -> Result<LoadedConfig, ConfigError> {
    let ConfigSources { home, workspace, trusted, environment, flags } = sources;
    let mut loaded = LoadedConfig::new(home);
    loaded.apply_user_file()?;
    if let Some(workspace) = workspace {
        loaded.apply_workspace_file(workspace, trusted);
    }
    loaded.apply_environment(environment)?;
    expand_variables(&mut loaded.config.mcp.servers, "mcp_servers", environment);
    if let Some(workspace) = workspace {
        let known = loaded.config.mcp.servers.len();
        loaded.apply_mcp_json(workspace, trusted);
        let brought = loaded.config.mcp.servers.get_mut(known..).unwrap_or_default();
        expand_variables(brought, "mcpServers", environment);
    }
    loaded.notices.extend(loaded.config.mcp.servers.iter().filter_map(McpServer::problem));
    loaded.apply_flags(&flags)?;
    check_consistency(&loaded.config)?;
    let is_named = |key: &str| {
        matches!(loaded.origins.get(key), SettingOrigin::Variable(_) | SettingOrigin::Flag(_))
    };
    loaded.config.mode_named = is_named("permission_mode");
    loaded.config.model_named = is_named("model");
    loaded.config.dry_run = flags.dry_run;
    loaded.config.role = flags.role;
    loaded.config.writes = flags.writes;
    Ok(loaded)
}

impl LoadedConfig {
    /// The defaults.
    pub(super) fn new(home: Home) -> Self {
        Self { config: Config::new(home), notices: Vec::new(), origins: SettingOrigins::default() }
    }

    fn apply_user_file(&mut self) -> Result<(), ConfigError> {
        let path = self.config.home.config_file();
        match read::read_user_file(&path) {
            Ok(None) => Ok(()),
            Ok(Some(text)) => self.apply_user_text(&path, &text),
            Err(reason) => Err(ConfigError::for_file(&path, reason)),
        }
    }

    /// Applies the text of the user's file, or of a file that is about to replace it.
    pub(super) fn apply_user_text(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let source = SettingOrigin::User(path.to_owned());
        let mut problems = Vec::new();
        let leaves = read_leaves(text).map_err(|reason| ConfigError::for_file(path, reason))?;
        for leaf in &leaves {
            match apply_leaf(&mut self.config, leaf, &leaves) {
                Err(problem) => problems.push(problem),
                Ok(()) if leaf.value.is_null() => {}
                Ok(()) => self.origins.set(&leaf.path, source.clone()),
            }
        }
        problems.dedup();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { source, problems }) }
    }

    fn apply_workspace_file(&mut self, workspace: &Path, trusted: &[TrustRequest]) {
        let path = paths::workspace_config_file(workspace);
        let shown = path.display().to_string();
        let text = read::read_workspace_file(workspace);
        let Some((leaves, text)) = self.parse_or_notice(&shown, text, read_leaves) else { return };
        // The trust check uses the same text as the parser, so that no other content can slip in between.
        let is_trusted = trust_requests::is_trusted(trusted, &path, &text);
        let mut untrusted = Vec::new();
        for leaf in &leaves {
            if !is_trusted && trust_requests::needs_trust(leaf) {
                untrusted.push(format!("`{}`", leaf.path));
                continue;
            }
            match with_workspace_setting(&self.config, leaf, &leaves, is_trusted) {
                Ok(_) if leaf.value.is_null() => {}
                Ok(attempt) => {
                    self.origins.set(&leaf.path, SettingOrigin::Workspace(path.clone()));
                    if leaf.path == "mcp_servers" {
                        self.add_workspace_servers(attempt.mcp.servers, &shown);
                    } else {
                        self.config = attempt;
                    }
                }
                Err(reason) => self.notices.push(format!("{shown}: {reason}; it is ignored")),
            }
        }
        if !untrusted.is_empty() {
            let keys = untrusted.join(", ");
            self.notices.push(format!(
                "{shown}: {keys} ignored, because this Workspace is not trusted; see `pixir trust`"
            ));
        }
        self.notices.dedup();
    }

    /// Adds the servers of `.mcp.json`, if the user trusts its content.
    fn apply_mcp_json(&mut self, workspace: &Path, trusted: &[TrustRequest]) {
        let path = paths::workspace_mcp_file(workspace);
        let shown = path.display().to_string();
        let text = read::read_mcp_json(workspace);
        let Some((servers, text)) = self.parse_or_notice(&shown, text, mcp::parse_mcp_json) else {
            return;
        };
        if trust_requests::is_trusted(trusted, &path, &text) {
            self.add_workspace_servers(servers, &shown);
        } else if !servers.is_empty() {
            let words = "its MCP servers are ignored, because it is not trusted; see `pixir trust`";
            self.notices.push(format!("{shown}: {words}"));
        }
    }

    /// Parses a file of a Workspace; returns the result and the text. A file that cannot be read or parsed is ignored
    /// with a notice.
    fn parse_or_notice<T>(
        &mut self,
        shown: &str,
        text: Result<Option<String>, String>,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<(T, String)> {
        let found = text.and_then(|text| text.map(|text| Ok((read(&text)?, text))).transpose());
        found.unwrap_or_else(|reason| {
            self.notices.push(format!("{shown} is ignored: {reason}"));
            None
        })
    }

    /// Adds servers from a Workspace. They are never trusted, whatever they state, and cannot replace the user's servers
    /// of the same name.
    fn add_workspace_servers(&mut self, servers: Vec<McpServer>, shown: &str) {
        let origin = McpOrigin::Workspace;
        let as_untrusted = |server: McpServer| McpServer { origin, is_trusted: false, ..server };
        let servers = servers.into_iter().map(as_untrusted).collect();
        let taken = mcp::merge_servers(&mut self.config.mcp.servers, servers);
        let ignored_notice =
            |name| format!("{shown}: MCP server `{name}` is ignored: the name is taken");
        self.notices.extend(taken.into_iter().map(ignored_notice));
    }

    fn apply_environment(
        &mut self,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), ConfigError> {
        for key in SettingKey::all() {
            let name = key.variable_name();
            if let Some(text) = environment(&name).filter(|text| !text.is_empty()) {
                self.apply_typed(key, &text, SettingOrigin::Variable(name))?;
            }
        }
        Ok(())
    }

    fn apply_flags(&mut self, flags: &ConfigFlags) -> Result<(), ConfigError> {
        let given = [
            ("model", flags.model.clone()),
            ("effort", flags.effort.clone()),
            ("credential", flags.credential.clone()),
            ("max_iterations", flags.max_iterations.map(|most| most.to_string())),
            ("max_tokens_total", flags.max_tokens_total.map(|most| most.to_string())),
            ("max_cost", flags.max_cost.clone()),
            ("max_requests", flags.max_requests.map(|most| most.to_string())),
            ("timeout", flags.timeout.clone()),
            ("web_search", flags.web_search.then(|| true.to_string())),
            ("provider", flags.provider.clone()),
            ("permission_mode", flags.permission_mode.as_ref().map(ToString::to_string)),
            ("sandbox", flags.sandbox.clone()),
        ];
        for (name, text) in given {
            let (Some(text), Some(key)) = (text, SettingKey::find(name)) else { continue };
            let flag = format!("--{}", name.replace('_', "-"));
            self.apply_typed(key, &text, SettingOrigin::Flag(flag))?;
        }
        Ok(())
    }

    /// Applies a setting from the text of a variable or a flag.
    fn apply_typed(
        &mut self,
        key: &SettingKey,
        text: &str,
        source: SettingOrigin,
    ) -> Result<(), ConfigError> {
        if let Err(reason) = key.set(&mut self.config, &key.parse_value(text)) {
            let problems = vec![ConfigProblem { key: key.name.clone(), reason }];
            return Err(ConfigError { source, problems });
        }
        self.origins.set(&key.name, source);
        Ok(())
    }
}

/// The settings with one from a Workspace applied, if it is consistent with the others and widens nothing without
/// trust.
fn with_workspace_setting(
    config: &Config,
    leaf: &SettingLeaf,
    all: &[SettingLeaf],
    is_trusted: bool,
) -> Result<Config, String> {
    let mut attempt = config.clone();
    apply_leaf(&mut attempt, leaf, all).map_err(|problem| problem.to_string())?;
    check_consistency(&attempt).map_err(|error| error.to_string())?;
    if !is_trusted && attempt.sandbox.is_wider_than(&config.sandbox) {
        return Err(format!("`{}` would widen the sandbox", leaf.path));
    }
    if !is_trusted && raises_iterations(config.max_iterations, attempt.max_iterations) {
        return Err(format!("`{}` would raise the limit", leaf.path));
    }
    Ok(attempt)
}

/// Whether a Turn could make more model calls than before; `None` is no limit.
fn raises_iterations(before: Option<u32>, after: Option<u32>) -> bool {
    before.is_some_and(|before| after.is_none_or(|after| after > before))
}

/// Expands environment variables in the entries of servers; a server with a missing variable becomes broken.
fn expand_variables(
    servers: &mut [McpServer],
    table: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) {
    for server in servers {
        // A server from a Workspace never gets a Provider key, even if the Workspace is trusted.
        let is_guest = server.origin == McpOrigin::Workspace;
        let lookup = |name: &str| environment(name).filter(|_| !is_guest || !is_provider_key(name));
        if let Err(problem) = mcp::expand_server(server, &lookup) {
            let key = format!("{table}.{}", server.name);
            server.transport = McpTransport::Broken { key, problem };
        }
    }
}

/// Checks settings that depend on each other.
pub(super) fn check_consistency(config: &Config) -> Result<(), ConfigError> {
    let refuse = |key: &str, reason: &str| {
        let problem = ConfigProblem { key: key.into(), reason: reason.into() };
        Err(ConfigError { source: SettingOrigin::Default, problems: vec![problem] })
    };
    if config.bash.timeout > config.bash.max_timeout {
        return refuse("bash.timeout_ms", "must not be larger than bash.max_timeout_ms");
    }
    if let Some(name) = &config.provider
        && config.servers.find(name).is_none()
    {
        let known = match config.servers.names().as_slice() {
            [] => "there are none in `providers` of your config.json".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        return refuse("provider", &format!("names no server: {name:?}; {known}"));
    }
    if config.subagents.timeout > config.subagents.max_timeout {
        let reason = "must not be larger than subagents.max_timeout_ms";
        return refuse("subagents.timeout_ms", reason);
    }
    if config.retry.base > config.retry.cap {
        return refuse("retry.base_ms", "must not be larger than retry.cap_ms");
    }
    Ok(())
}

fn apply_leaf(
    config: &mut Config,
    leaf: &SettingLeaf,
    all: &[SettingLeaf],
) -> Result<(), ConfigProblem> {
    let problem = |reason: String| ConfigProblem { key: leaf.path.clone(), reason };
    let Some(key) = SettingKey::find(&leaf.path) else {
        return Err(problem(match SettingKey::nearest_name(&leaf.path) {
            Some(nearest) => format!("is not a setting, did you mean `{nearest}`?"),
            None => "is not a setting".to_owned(),
        }));
    };
    if all.iter().filter(|other| other.path == leaf.path).count() > 1 {
        return Err(problem("is given more than once".into()));
    }
    // `null` is how people comment out a line of JSON.
    if leaf.value.is_null() {
        return Ok(());
    }
    key.set(config, &leaf.value).map_err(problem)
}

/// A mistake in the value of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConfigProblem {
    /// A dotted key; empty for the file as a whole.
    key: String,
    reason: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            return f.write_str(&self.reason);
        }
        write!(f, "`{}` {}", self.key, self.reason)
    }
}

/// Invalid settings from one source, with all mistakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The source of the mistakes; `Default` when single values are valid but inconsistent with each other.
    source: SettingOrigin,
    problems: Vec<ConfigProblem>,
}

impl ConfigError {
    pub(super) fn for_file(path: &Path, reason: String) -> Self {
        let problem = ConfigProblem { key: String::new(), reason };
        Self { source: SettingOrigin::User(path.to_owned()), problems: vec![problem] }
    }

    /// Whether the error has a mistake that `other` does not have.
    pub(super) fn is_worse_than(&self, other: Option<&ConfigError>) -> bool {
        let is_old = |problem| other.is_some_and(|other| other.problems.contains(problem));
        !self.problems.iter().all(is_old)
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            SettingOrigin::User(_) | SettingOrigin::Workspace(_) => write!(f, "{}: ", self.source)?,
            SettingOrigin::Variable(name) => write!(f, "environment variable {name}: ")?,
            SettingOrigin::Flag(name) => write!(f, "flag {name}: ")?,
            SettingOrigin::Default => f.write_str("settings: ")?,
        }
        for (place, problem) in self.problems.iter().enumerate() {
            let comma = if place == 0 { "" } else { "; " };
            write!(f, "{comma}{problem}")?;
        }
        Ok(())
    }
}

impl Explain for ConfigError {
    fn explain(&self) -> Explanation {
        let keys = self.problems.iter().map(|problem| problem.key.as_str());
        let mut details = self.source.location();
        details["keys"] = keys.filter(|key| !key.is_empty()).collect::<Vec<_>>().into();
        let explained = Kind::InvalidConfig.with_details(details);
        match &self.source {
            SettingOrigin::User(_) | SettingOrigin::Workspace(_) => {
                explained.with_next_action(format!("correct or remove {}", self.source))
            }
            SettingOrigin::Variable(name) => {
                explained.with_next_action(format!("unset {name}, or give it a valid value"))
            }
            SettingOrigin::Default => explained.with_next_action(
                "see where each value comes from with `pixir config list --origin`",
            ),
            SettingOrigin::Flag(_) => explained,
        }
    }
}
