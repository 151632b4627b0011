//! `pixir doctor`: checks of everything that a Turn needs; uses the network only with `--online`.

mod commands;
mod home;
mod online;
mod settings;
mod workspace;

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::login::{NO_KEY, describe, freshness};
use crate::agent::inspect::Health;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::model::credential::{Chosen, now};
use crate::settings::config::{Config, CredentialKind};

/// Check that everything is in place for a Turn
#[derive(Debug, Args)]
#[command(
    long_about = "Check that everything is in place for a Turn.\n\n\
        Looks at this machine only, and changes nothing: settings by key, Workspace, git, Log folder and Logs, credential, \
        your Pixir folder, terminal, disk, MCP servers (none is started), leftovers, and how commands are contained and \
        sandboxed. With --online the endpoints are reached too, without spending anything. The exit code is 1 when a check \
        fails; warnings do not stop a Turn.",
    after_long_help = "Examples:\n  pixir doctor\n  pixir doctor --online --json"
)]
pub struct DoctorArgs {
    /// Reach the model's endpoint and, where a sign-in with ChatGPT is used, the sign-in service too
    #[arg(long)]
    online: bool,
}

/// One check and its result.
#[derive(Debug, Serialize)]
struct Check {
    id: &'static str,
    status: Health,
    /// The error kind; absent if nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    message: String,
    details: Value,
}

impl Check {
    fn new(id: &'static str, status: Health, message: impl Into<String>) -> Self {
        Self { id, status, kind: None, message: message.into(), details: json!({}) }
    }

    /// A warning about a path.
    fn at(id: &'static str, path: &Path, message: impl AsRef<str>) -> Self {
        let words = format!("{} {}", path.display(), message.as_ref());
        Self::new(id, Health::Warning, words).with(json!({ "path": path.to_string_lossy() }))
    }

    fn kind(mut self, kind: Kind) -> Self {
        self.kind = Some(kind.name().to_owned());
        self
    }

    fn failing(mut self) -> Self {
        self.status = Health::Failed;
        self
    }

    fn failed(id: &'static str, report: &Report) -> Self {
        let details = if report.details.is_null() { json!({}) } else { report.details.clone() };
        let kind = Some(report.kind.clone());
        Self { id, status: Health::Failed, kind, message: report.message.clone(), details }
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
    let failed = checks.iter().filter(|check| check.status == Health::Failed);
    let failed: Vec<&str> = failed.map(|check| check.id).collect();
    let message = format!("failed: {}", failed.join(", "));
    let error = (!failed.is_empty()).then(|| Report::new(Kind::InvalidConfig, message));
    let envelope = context.envelope("doctor", json!({ "checks": checks }))?.failing(error);
    Ok(context.answer(&envelope, &checks.iter().map(told).collect::<String>()))
}

/// The status of a check as a word of fixed width.
pub fn health_word(health: Health) -> &'static str {
    match health {
        Health::Passed => "ok     ",
        Health::Warning => "warning",
        Health::Failed => "FAILED ",
    }
}

fn told(check: &Check) -> String {
    let word = health_word(check.status);
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
        Ok(folder) => workspace::writable("workspace", folder),
        Err(report) => Check::failed("workspace", report),
    });
    let settings = context.settings(folder);
    checks.extend(settings::config(&settings));
    checks.extend(home::home(context));
    let config = match settings {
        Ok(loaded) => Some(loaded.config),
        Err(_) => context.home().ok().map(Config::new),
    };
    let Some(config) = config else { return checks };
    checks.extend(settings::pieces(&config, context));
    checks.extend(settings::environment(context));
    let chosen = context.chosen(&config);
    checks.push(match &chosen {
        Ok(chosen) => credential(chosen, &config),
        Err(report) => Check::failed("credential", report),
    });
    if let Some(folder) = folder {
        checks.extend(workspace::workspace(folder, &config));
        checks.extend(commands::commands(folder, &config, context).await);
    }
    if online {
        checks.push(online::endpoint(chosen.as_ref().ok(), context.http_settings(&config)).await);
        if uses_sign_in(&chosen, &config, context) {
            checks.push(online::issuer(context).await);
        }
    }
    checks
}

/// Whether a Turn uses a sign-in with ChatGPT, or would if there were one.
fn uses_sign_in(chosen: &Result<Chosen, Report>, config: &Config, context: &Context) -> bool {
    if let Ok(chosen) = chosen {
        return chosen.credential.tokens().is_some();
    }
    let base_url = context.environment.text("OPENAI_BASE_URL");
    config.provider.is_none()
        && config.credential != Some(CredentialKind::ApiKey)
        && base_url.is_none_or(|value| value.trim().is_empty())
}

/// The findings, or one passed check if there are none.
fn or_well(found: Vec<Check>, id: &'static str, message: impl Into<String>) -> Vec<Check> {
    if found.is_empty() { vec![Check::new(id, Health::Passed, message)] } else { found }
}

fn runtime() -> Check {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    let message = format!("pixir {version} on {os} {arch}");
    Check::new("runtime", Health::Passed, message)
        .with(json!({"version": version, "os": os, "arch": arch}))
}

fn credential(chosen: &Chosen, config: &Config) -> Check {
    let Chosen { credential, reason, .. } = chosen;
    let name = credential.kind().name();
    let details = describe(chosen);
    let Some(tokens) = credential.tokens() else {
        let message = match credential.key() {
            Some(_) => format!("{name}, because {reason}"),
            None => NO_KEY.to_owned(),
        };
        return Check::new("credential", Health::Passed, message).with(details);
    };
    let message = format!("{name}, because {reason}; {}", freshness(&tokens));
    if !tokens.is_alive(now()) && tokens.refresh.is_none() {
        return Check::new("credential", Health::Failed, message)
            .kind(Kind::NotAuthenticated)
            .with(details)
            .next("sign in again with `pixir login`");
    }
    let path = config.home.auth();
    if is_open_to_others(&path) {
        let message = format!("{message}; others can read {}", path.display());
        let mut details = details;
        details["path"] = json!(path.to_string_lossy());
        return Check::new("credential", Health::Warning, message)
            .kind(Kind::UnsafeStatePath)
            .with(details)
            .next("chmod 600 that file");
    }
    Check::new("credential", Health::Passed, message).with(details)
}

fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}
