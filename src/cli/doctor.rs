//! `pixir doctor`: is everything in place for a Turn? Looks at this machine only, unless asked.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::HeaderMap;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::drive::in_runtime;
use super::exit::Exit;
use super::login::{describe, freshness};
use super::provider::fitting_model;
use super::{Context, say};
use crate::config::Config;
use crate::credential::{Chosen, now};
use crate::error::{Kind, Report};
use crate::event::PermissionMode;
use crate::history::History;
use crate::id::CallId;
use crate::network::{Endpoint, Network, NetworkError};
use crate::paths;
use crate::render::{Envelope, clean};
use crate::resource::Shelf;
use crate::sandbox::Profile;
use crate::secret::Secrets;
use crate::tool::{Commands, Containment, Desk, Host, Signals, ToolContext, Toolbox};
use crate::workspace::Workspace;

/// How long an endpoint may take to show that it is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// Check that everything is in place for a Turn
#[derive(Debug, Args)]
#[command(
    long_about = "Check that everything is in place for a Turn.\n\n\
        Looks at this machine only: version, settings, Workspace, credential, Log folder, and how commands are \
        contained and sandboxed. With --online the endpoints are reached too, without spending anything. The exit code is 1 \
        when a check fails.",
    after_long_help = "Examples:\n  pixir doctor\n  pixir doctor --online --json"
)]
pub struct DoctorArgs {
    /// Reach the model's endpoint and the sign-in service too
    #[arg(long)]
    online: bool,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    id: &'static str,
    status: Health,
    message: String,
    details: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Health {
    Passed,
    Warning,
    Failed,
}

impl Check {
    fn new(id: &'static str, status: Health, message: impl Into<String>) -> Self {
        Self { id, status, message: message.into(), details: json!({}) }
    }

    fn failed(id: &'static str, report: &Report) -> Self {
        let details = if report.details.is_null() { json!({}) } else { report.details.clone() };
        Self { id, status: Health::Failed, message: report.message.clone(), details }
    }

    fn with(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    fn next(mut self, action: &str) -> Self {
        self.details["next_actions"] = json!([action]);
        self
    }
}

pub fn doctor(args: &DoctorArgs, context: &Context) -> Result<Exit, Report> {
    let checks = in_runtime(async { Ok(examine(args.online, context).await) })?;
    let has_failed = checks.iter().any(|check| check.status == Health::Failed);
    if context.flags.json {
        let output = serde_json::to_value(&checks)
            .map_err(|error| Report::new(Kind::Internal, error.to_string()))?;
        let mut envelope =
            Envelope::success("doctor", json!({"checks": output}), context.started.elapsed());
        if has_failed {
            let failed: Vec<&str> = checks
                .iter()
                .filter(|check| check.status == Health::Failed)
                .map(|check| check.id)
                .collect();
            envelope.ok = false;
            envelope.status = "error";
            let message = format!("failed: {}", failed.join(", "));
            envelope.error = Some(Report::new(Kind::InvalidConfig, message));
        }
        say(&envelope.line());
    } else {
        say(&clean(&checks.iter().map(told).collect::<String>()));
    }
    Ok(if has_failed { Exit::Error } else { Exit::Answered })
}

fn told(check: &Check) -> String {
    let word = match check.status {
        Health::Passed => "ok     ",
        Health::Warning => "warning",
        Health::Failed => "FAILED ",
    };
    let mut text = format!("{word} {}: {}\n", check.id, check.message);
    for action in check.details["next_actions"].as_array().into_iter().flatten() {
        writeln!(text, "          try: {}", action.as_str().unwrap_or_default()).ok();
    }
    text
}

async fn examine(online: bool, context: &Context) -> Vec<Check> {
    let mut checks = vec![runtime()];
    let workspace = context.workspace();
    let folder = workspace.as_deref().ok();
    checks.push(match &workspace {
        Ok(folder) => writable("workspace", folder),
        Err(report) => Check::failed("workspace", report),
    });
    let settings = context.settings(folder);
    checks.push(match &settings {
        Ok(loaded) if loaded.notices.is_empty() => {
            let config = &loaded.config;
            let fitting = fitting_model(config, None);
            let model = fitting.as_ref().unwrap_or(&config.model);
            let at = config.provider.as_ref().map(|name| format!(" at provider `{name}`"));
            let message = format!("model {model}{}", at.unwrap_or_default());
            Check::new("config", Health::Passed, message)
        }
        Ok(loaded) => Check::new("config", Health::Warning, loaded.notices.join("; ")),
        Err(report) => Check::failed("config", report),
    });
    let config = match settings {
        Ok(loaded) => Some(loaded.config),
        Err(_) => context.home().ok().map(Config::new),
    };
    let Some(config) = config else { return checks };
    let chosen = context.chosen(&config);
    checks.push(match &chosen {
        Ok(chosen) => credential(chosen, &config),
        Err(report) => Check::failed("credential", report),
    });
    if let Some(folder) = folder {
        checks.push(log_folder(folder));
        checks.extend(commands(folder, &config, context).await);
    }
    if online {
        checks.push(endpoint(chosen.as_ref().ok(), context.network(&config)).await);
        checks.push(issuer(context).await);
    }
    checks
}

fn runtime() -> Check {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    let message = format!("pixir {version} on {os} {arch}");
    Check::new("runtime", Health::Passed, message)
        .with(json!({"version": version, "os": os, "arch": arch}))
}

fn writable(id: &'static str, folder: &Path) -> Check {
    let details = json!({ "path": folder });
    match rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Check::new(id, Health::Passed, format!("{} can be written", folder.display()))
            .with(details),
        Err(error) => {
            let message = format!("{} cannot be written: {error}", folder.display());
            Check::new(id, Health::Failed, message)
                .with(details)
                .next("make it writable for you, or name another directory with --cwd")
        }
    }
}

fn credential(chosen: &Chosen, config: &Config) -> Check {
    let Chosen { credential, reason, .. } = chosen;
    let name = credential.kind().name();
    let details = describe(chosen);
    let Some(tokens) = credential.tokens() else {
        let message = format!("{name}, because {reason}");
        return Check::new("credential", Health::Passed, message).with(details);
    };
    let message = format!("{name}, because {reason}; {}", freshness(&tokens));
    if !tokens.is_alive(now()) && tokens.refresh.is_none() {
        return Check::new("credential", Health::Failed, message)
            .with(details)
            .next("sign in again with `pixir login`");
    }
    let path = config.home.auth();
    if is_open_to_others(&path) {
        let message = format!("{message}; others can read {}", path.display());
        return Check::new("credential", Health::Warning, message)
            .with(details)
            .next("chmod 600 that file");
    }
    Check::new("credential", Health::Passed, message).with(details)
}

fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

fn log_folder(workspace: &Path) -> Check {
    let folder = paths::sessions(workspace);
    for part in [paths::state(workspace), folder.clone()] {
        match std::fs::symlink_metadata(&part) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Check::new("log_folder", Health::Passed, "made with the first Session");
            }
            Err(error) => {
                let message = format!("{} cannot be looked at: {error}", part.display());
                return Check::new("log_folder", Health::Failed, message);
            }
            Ok(found) if !found.is_dir() => {
                let message = format!("{} is not a folder of its own", part.display());
                return Check::new("log_folder", Health::Failed, message)
                    .next("move it away; Pixir's state goes through no link");
            }
            Ok(_) => {}
        }
    }
    writable("log_folder", &folder)
}

/// Runs a command that does nothing, and sees what held it.
async fn commands(folder: &Path, config: &Config, context: &Context) -> Vec<Check> {
    let facts = match contained(folder, config, context).await {
        Ok(facts) => facts,
        Err(report) if report.kind == Kind::SandboxUnavailable.name() => {
            return vec![Check::failed("sandbox", &report)];
        }
        Err(report) => return vec![Check::failed("containment", &report)],
    };
    let word = |name: &str| facts[name].as_str().unwrap_or("unknown").to_owned();
    let (containment, level) = (word("containment"), word("sandbox"));
    let message = match containment.as_str() {
        "namespace" => "commands run in a process namespace",
        _ => "commands are gathered by a subreaper; namespaces are not to be had here",
    };
    let containment =
        Check::new("containment", Health::Passed, message).with(json!({ "level": containment }));
    vec![containment, sandbox(&level).with(json!({ "level": level }))]
}

fn sandbox(level: &str) -> Check {
    match level {
        "full" => Check::new("sandbox", Health::Passed, "full: namespaces, Landlock and seccomp"),
        "partial" => {
            let message = "partial: Landlock and seccomp; without namespaces, changes of .pixir, \
                .git/hooks and .git/config are only put back afterwards, and modes and times of \
                files outside can be changed";
            Check::new("sandbox", Health::Warning, message)
        }
        _ => Check::new("sandbox", Health::Warning, "off: commands can do whatever you can do"),
    }
}

async fn contained(folder: &Path, config: &Config, context: &Context) -> Result<Value, Report> {
    let own_binary: PathBuf = std::env::current_exe()
        .map_err(|error| Report::new(Kind::Internal, format!("no own binary: {error}")))?;
    let host =
        Host { own_binary, environment: context.environment.all(), containment: Containment::Best };
    let history = History::default();
    let shelf = Shelf::new(std::env::temp_dir());
    let toolbox = Toolbox::built_in(config, Commands::new(host, config), &history, shelf);
    let bash = toolbox.find("bash").map_err(|error| Report::from(&error))?;
    let workspace = Workspace::open(folder).map_err(|error| Report::from(&error))?;
    let cx = ToolContext {
        call_id: CallId::new("doctor".to_owned()),
        session_folder: std::env::temp_dir(),
        workspace,
        cancel: CancellationToken::new(),
        signals: Signals::nowhere(),
        secrets: Arc::new(Secrets::default()),
        output_limit: config.output_limit,
        confinement: Profile::of(config.sandbox.level, &PermissionMode::Auto),
        desk: Desk::default(),
        tracker: None,
    };
    let output =
        bash.run(json!({"command": "true"}), cx).await.map_err(|error| Report::from(&error))?;
    if !output.ok {
        return Err(Report::new(Kind::CommandFailed, format!("`true` failed: {}", output.text)));
    }
    Ok(output.details)
}

/// Opens a connection and asks nothing that costs anything.
async fn endpoint(chosen: Option<&Chosen>, network: Network) -> Check {
    const ID: &str = "endpoint";
    let Some(chosen) = chosen else {
        return Check::new(ID, Health::Warning, "not reached, because there is no credential");
    };
    let credential = &chosen.credential;
    let client = network.client(Endpoint {
        base_url: credential.base_url().to_owned(),
        is_loopback: credential.is_loopback(),
        connect: PATIENCE,
    });
    let details = json!({ "url": credential.base_url() });
    // No secret goes along: whether somebody is there is all that is asked.
    let reached = tokio::time::timeout(PATIENCE, client.get("", HeaderMap::new())).await;
    let reached = reached.unwrap_or_else(|_| {
        let message = format!("silence for {} s", PATIENCE.as_secs());
        Err(NetworkError::Broken(message))
    });
    match reached {
        Ok(_) => {
            let message = format!("{} answers", credential.base_url());
            Check::new(ID, Health::Passed, message).with(details)
        }
        Err(error) => {
            let message = format!("{} does not answer: {error}", credential.base_url());
            Check::new(ID, Health::Failed, message)
                .with(details)
                .next("check the network, the proxy and OPENAI_BASE_URL")
        }
    }
}

async fn issuer(context: &Context) -> Check {
    const ID: &str = "issuer";
    let issuer = match context.issuer() {
        Ok(issuer) => issuer,
        Err(error) => return Check::failed(ID, &Report::from(&error)),
    };
    let needs_it = context.flags.credential != Some(super::Paying::ApiKey);
    match issuer.reach(PATIENCE).await {
        Ok(()) => Check::new(ID, Health::Passed, format!("{} answers", issuer.base())),
        Err(error) => {
            let report = Report::from(&error);
            let mut check = Check::failed(ID, &report);
            if !needs_it || context.environment.get("OPENAI_API_KEY").is_some() {
                check.status = Health::Warning;
            }
            check
        }
    }
}
