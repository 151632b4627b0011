//! The config loader: files, environment and flags, in one order, from one table of keys.
//!
//! The user's file is law: a mistake in it stops the run and is named. A Workspace's file is a
//! guest: it may set the few keys that cannot widen trust, and whatever else it says is ignored
//! with a notice, never fatal.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::keys::{KEYS, Key, Shape};
use super::origin::{Origin, Origins};
use super::tree::{Leaf, leaves};
use super::{Config, McpOrigin, McpServer, McpTransport, Wanted, mcp, read, wanted};
use crate::bounds::WriteGlobs;
use crate::error::{Explain, Kind};
use crate::event::PermissionMode;
use crate::paths::{self, Home};
use crate::role::Role;
use crate::secret::is_provider_key;

/// Where the settings of a run come from, weakest first.
pub struct Sources<'a> {
    pub home: Home,
    /// Whose config file is asked, if a Workspace is known.
    pub workspace: Option<&'a Path>,
    /// The Workspace's files that the user trusts, with the content that is meant.
    pub trusted: &'a [Wanted],
    /// Looks up one environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    pub flags: Flags,
}

/// What the command line may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    pub model: Option<String>,
    pub effort: Option<String>,
    pub credential: Option<String>,
    pub max_iterations: Option<u32>,
    pub max_tokens_total: Option<u64>,
    /// As it was typed: a number of dollars.
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

/// Settings, and what the user should know about how they came about.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    pub notices: Vec<String>,
    pub origins: Origins,
}

/// Resolves the settings of one run: defaults, user's file, Workspace's file, environment, flags.
pub fn load(sources: Sources<'_>) -> Result<Loaded, ConfigError> {
    let Sources { home, workspace, trusted, environment, flags } = sources;
    let mut config = Config::new(home.clone());
    let mut notices = Vec::new();
    let mut origins = Origins::default();
    apply_user_file(&mut config, &home.config(), &mut origins)?;
    if let Some(workspace) = workspace {
        notices = apply_workspace_file(&mut config, workspace, trusted, &mut origins);
    }
    apply_environment(&mut config, environment, &mut origins)?;
    fill_in(&mut config.mcp.servers, "mcp_servers", environment);
    if let Some(workspace) = workspace {
        let known = config.mcp.servers.len();
        notices.extend(apply_shared_file(&mut config, workspace, trusted));
        let brought = config.mcp.servers.get_mut(known..).unwrap_or_default();
        fill_in(brought, "mcpServers", environment);
    }
    notices.extend(config.mcp.servers.iter().filter_map(McpServer::problem));
    apply_flags(&mut config, &flags, &mut origins)?;
    check_together(&config)?;
    config.dry_run = flags.dry_run;
    config.role = flags.role;
    config.writes = flags.writes;
    let names_mode = environment("PIXIR_PERMISSION_MODE").is_some_and(|mode| !mode.is_empty());
    config.mode_named = flags.permission_mode.is_some() || names_mode;
    let names_model = environment("PIXIR_MODEL").is_some_and(|name| !name.is_empty());
    config.model_named = flags.model.is_some() || names_model;
    Ok(Loaded { config, notices, origins })
}

fn apply_user_file(
    config: &mut Config,
    path: &Path,
    origins: &mut Origins,
) -> Result<(), ConfigError> {
    match read::user_file(path) {
        Ok(None) => Ok(()),
        Ok(Some(text)) => apply_user_text(config, path, &text, origins),
        Err(reason) => Err(ConfigError::of_file(path, reason)),
    }
}

/// The text of the user's file, or of what is about to become it.
pub(super) fn apply_user_text(
    config: &mut Config,
    path: &Path,
    text: &str,
    origins: &mut Origins,
) -> Result<(), ConfigError> {
    let source = Source::File(path.to_owned());
    let mut problems = Vec::new();
    let leaves = leaves(text).map_err(|reason| ConfigError::of_file(path, reason))?;
    for leaf in &leaves {
        match apply_leaf(config, leaf, &leaves) {
            Err(problem) => problems.push(problem),
            Ok(()) if leaf.value.is_null() => {}
            Ok(()) => origins.set(&leaf.path, Origin::User(path.to_owned())),
        }
    }
    problems.dedup();
    if problems.is_empty() { Ok(()) } else { Err(ConfigError { source, problems }) }
}

fn apply_workspace_file(
    config: &mut Config,
    workspace: &Path,
    trusted: &[Wanted],
    origins: &mut Origins,
) -> Vec<String> {
    let path = paths::workspace_config(workspace);
    let shown = path.display();
    let text = match read::workspace_file(workspace) {
        Ok(None) => return Vec::new(),
        Ok(Some(text)) => text,
        Err(reason) => return vec![format!("{shown} is ignored: {reason}")],
    };
    let leaves = match leaves(&text) {
        Ok(leaves) => leaves,
        Err(reason) => return vec![format!("{shown} is ignored: {reason}")],
    };
    let mut notices = Vec::new();
    // The very bytes that are used are the ones that must be trusted.
    let is_trusted = wanted::is_trusted(trusted, &path, &text);
    let mut untrusted = Vec::new();
    for leaf in &leaves {
        if !is_trusted && wanted::wants_trust(leaf) {
            untrusted.push(format!("`{}`", leaf.path));
            continue;
        }
        // Applied to a copy, so that a value that does not fit the others leaves no trace.
        let mut attempt = config.clone();
        let outcome = apply_leaf(&mut attempt, leaf, &leaves)
            .map_err(|problem| problem.to_string())
            .and_then(|()| check_together(&attempt).map_err(|error| error.to_string()))
            .and_then(|()| {
                let is_wider = attempt.sandbox.is_wider_than(&config.sandbox);
                let refusal = || format!("`{}` would widen the sandbox", leaf.path);
                if is_wider && !is_trusted { Err(refusal()) } else { Ok(()) }
            })
            .and_then(|()| {
                let raised = raises_iterations(config.max_iterations, attempt.max_iterations);
                let refusal = || format!("`{}` would raise the limit", leaf.path);
                if raised && !is_trusted { Err(refusal()) } else { Ok(()) }
            });
        match outcome {
            Ok(()) if leaf.value.is_null() => {}
            Ok(()) if leaf.path == "mcp_servers" => {
                origins.set(&leaf.path, Origin::Workspace(path.clone()));
                notices.extend(adopt(config, attempt.mcp.servers, &shown.to_string()));
            }
            Ok(()) => {
                *config = attempt;
                origins.set(&leaf.path, Origin::Workspace(path.clone()));
            }
            Err(reason) => notices.push(format!("{shown}: {reason}; it is ignored")),
        }
    }
    if !untrusted.is_empty() {
        let keys = untrusted.join(", ");
        notices.push(format!(
            "{shown}: {keys} ignored, because this Workspace is not trusted; see `pixir trust`"
        ));
    }
    notices.dedup();
    notices
}

/// Whether a Turn could make more calls of the model than before; `None` is no limit.
fn raises_iterations(before: Option<u32>, after: Option<u32>) -> bool {
    before.is_some_and(|before| after.is_none_or(|after| after > before))
}

/// The servers of an `.mcp.json`, if the user trusts it as it is.
fn apply_shared_file(config: &mut Config, workspace: &Path, trusted: &[Wanted]) -> Vec<String> {
    let path = paths::workspace_servers(workspace);
    let shown = path.display().to_string();
    let text = match read::shared_file(workspace) {
        Ok(None) => return Vec::new(),
        Ok(Some(text)) => text,
        Err(reason) => return vec![format!("{shown} is ignored: {reason}")],
    };
    let servers = match mcp::read_shared(&text) {
        Ok(servers) => servers,
        Err(reason) => return vec![format!("{shown} is ignored: {reason}")],
    };
    if !wanted::is_trusted(trusted, &path, &text) {
        let is_empty = servers.is_empty();
        let words = "its MCP servers are ignored, because it is not trusted; see `pixir trust`";
        return if is_empty { Vec::new() } else { vec![format!("{shown}: {words}")] };
    }
    adopt(config, servers, &shown)
}

/// Takes servers that a Workspace brings; what they say of themselves is not believed, and the
/// names of the user's own stay theirs.
fn adopt(config: &mut Config, servers: Vec<McpServer>, shown: &str) -> Vec<String> {
    let stranger =
        |server: McpServer| McpServer { origin: McpOrigin::Workspace, is_trusted: false, ..server };
    let taken = mcp::join(&mut config.mcp.servers, servers.into_iter().map(stranger).collect());
    let told = |name| format!("{shown}: MCP server `{name}` is ignored: the name is taken");
    taken.into_iter().map(told).collect()
}

/// Puts values of the environment into the entries of servers; one that lacks its value is broken.
fn fill_in(servers: &mut [McpServer], table: &str, environment: &dyn Fn(&str) -> Option<String>) {
    for server in servers {
        // Trust in a repository is not the wish to give it the key that pays for the model.
        let is_guest = server.origin == McpOrigin::Workspace;
        let lookup = |name: &str| environment(name).filter(|_| !is_guest || !is_provider_key(name));
        if let Err(problem) = mcp::expand(server, &lookup) {
            let key = format!("{table}.{}", server.name);
            server.transport = McpTransport::Broken { key, problem };
        }
    }
}

fn apply_environment(
    config: &mut Config,
    environment: &dyn Fn(&str) -> Option<String>,
    origins: &mut Origins,
) -> Result<(), ConfigError> {
    for key in KEYS {
        let name = key.variable();
        let Some(text) = environment(&name).filter(|text| !text.is_empty()) else { continue };
        let value = key.shape.value_of(&text);
        (key.set)(config, &value).map_err(|reason| ConfigError {
            source: Source::Variable(name.clone()),
            problems: vec![Problem { key: key.name.into(), reason, nearest: None }],
        })?;
        origins.set(key.name, Origin::Variable(name));
    }
    Ok(())
}

fn apply_flags(
    config: &mut Config,
    flags: &Flags,
    origins: &mut Origins,
) -> Result<(), ConfigError> {
    let given = [
        ("model", flags.model.clone().map(Value::from)),
        ("effort", flags.effort.clone().map(Value::from)),
        ("credential", flags.credential.clone().map(Value::from)),
        ("max_iterations", flags.max_iterations.map(Value::from)),
        ("max_tokens_total", flags.max_tokens_total.map(Value::from)),
        ("max_cost", flags.max_cost.as_deref().map(|text| Shape::Decimal.value_of(text))),
        ("max_requests", flags.max_requests.map(Value::from)),
        ("timeout", flags.timeout.clone().map(Value::from)),
        ("web_search", flags.web_search.then_some(Value::from(true))),
        ("provider", flags.provider.clone().map(Value::from)),
        ("permission_mode", flags.permission_mode.as_ref().map(|mode| mode.as_str().into())),
        ("sandbox", flags.sandbox.clone().map(Value::from)),
    ];
    for (name, value) in given {
        let (Some(value), Some(key)) = (value, Key::find(name)) else { continue };
        let flag = format!("--{}", name.replace('_', "-"));
        (key.set)(config, &value).map_err(|reason| ConfigError {
            source: Source::Flag(flag.clone()),
            problems: vec![Problem { key: name.into(), reason, nearest: None }],
        })?;
        origins.set(name, Origin::Flag(flag));
    }
    Ok(())
}

/// What single keys cannot know of each other.
pub(super) fn check_together(config: &Config) -> Result<(), ConfigError> {
    let refuse = |key: &str, reason: &str| {
        Err(ConfigError {
            source: Source::Together,
            problems: vec![Problem { key: key.into(), reason: reason.into(), nearest: None }],
        })
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

fn apply_leaf(config: &mut Config, leaf: &Leaf, all: &[Leaf]) -> Result<(), Problem> {
    let problem = |reason: String| Problem { key: leaf.path.clone(), reason, nearest: None };
    let Some(key) = Key::find(&leaf.path) else {
        let nearest = Key::nearest(&leaf.path).map(str::to_owned);
        return Err(Problem { nearest, ..problem("is not a setting".into()) });
    };
    if all.iter().filter(|other| other.path == leaf.path).count() > 1 {
        return Err(problem("is given more than once".into()));
    }
    // `null` is how a person comments out a line of JSON.
    if leaf.value.is_null() {
        return Ok(());
    }
    (key.set)(config, &leaf.value).map_err(problem)
}

/// One thing that is wrong with one key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    /// Dotted; empty when the file as a whole is meant.
    key: String,
    reason: String,
    nearest: Option<String>,
}

impl Problem {
    fn whole(reason: String) -> Self {
        Self { key: String::new(), reason, nearest: None }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            return f.write_str(&self.reason);
        }
        write!(f, "`{}` {}", self.key, self.reason)?;
        match &self.nearest {
            Some(nearest) => write!(f, ", did you mean `{nearest}`?"),
            None => Ok(()),
        }
    }
}

/// Who said something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    File(PathBuf),
    Variable(String),
    Flag(String),
    /// Each value is fine, the whole is not.
    Together,
}

/// Settings that cannot be used, with every mistake named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    source: Source,
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn of_file(path: &Path, reason: String) -> Self {
        Self { source: Source::File(path.to_owned()), problems: vec![Problem::whole(reason)] }
    }

    /// Whether it names a mistake that another one does not.
    pub(super) fn is_worse_than(&self, other: Option<&ConfigError>) -> bool {
        let is_old = |problem| other.is_some_and(|other| other.problems.contains(problem));
        !self.problems.iter().all(is_old)
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::File(path) => write!(f, "{}: ", path.display())?,
            Source::Variable(name) => write!(f, "environment variable {name}: ")?,
            Source::Flag(name) => write!(f, "flag {name}: ")?,
            Source::Together => f.write_str("settings: ")?,
        }
        for (place, problem) in self.problems.iter().enumerate() {
            let comma = if place == 0 { "" } else { "; " };
            write!(f, "{comma}{problem}")?;
        }
        Ok(())
    }
}

impl Explain for ConfigError {
    fn kind(&self) -> Kind {
        Kind::InvalidConfig
    }
    fn details(&self) -> Value {
        let keys: Vec<&str> = self
            .problems
            .iter()
            .map(|problem| problem.key.as_str())
            .filter(|key| !key.is_empty())
            .collect();
        match &self.source {
            Source::File(path) => {
                serde_json::json!({ "file": path.display().to_string(), "keys": keys })
            }
            Source::Variable(name) => serde_json::json!({ "variable": name, "keys": keys }),
            Source::Flag(name) => serde_json::json!({ "flag": name, "keys": keys }),
            Source::Together => serde_json::json!({ "keys": keys }),
        }
    }
    fn next_actions(&self) -> Vec<String> {
        match &self.source {
            Source::File(path) => vec![format!("correct or remove {}", path.display())],
            Source::Variable(name) => vec![format!("unset {name}, or give it a valid value")],
            Source::Together => vec!["see who set what with `pixir config list --origin`".into()],
            Source::Flag(_) => Vec::new(),
        }
    }
}
