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

use super::login::{NO_KEY, credential_json, token_lifetime};
use crate::agent::inspect::CheckStatus;
use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::model::credential::{ChosenCredential, unix_now};
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
struct DoctorCheck {
    id: &'static str,
    status: CheckStatus,
    /// The error kind; absent if nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    message: String,
    details: Value,
}

impl DoctorCheck {
    fn new(id: &'static str, status: CheckStatus, message: impl Into<String>) -> Self {
        Self { id, status, kind: None, message: message.into(), details: json!({}) }
    }

    /// A warning about a path.
    fn warning_at(id: &'static str, path: &Path, message: impl AsRef<str>) -> Self {
        let words = format!("{} {}", path.display(), message.as_ref());
        Self::new(id, CheckStatus::Warning, words)
            .with_details(json!({ "path": path.to_string_lossy() }))
    }

    fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = Some(kind.name().to_owned());
        self
    }

    fn into_failure(mut self) -> Self {
        self.status = CheckStatus::Failed;
        self
    }

    fn from_report(id: &'static str, report: &Report) -> Self {
        let details = if report.details.is_null() { json!({}) } else { report.details.clone() };
        let kind = Some(report.kind.clone());
        Self { id, status: CheckStatus::Failed, kind, message: report.message.clone(), details }
    }

    fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    fn with_next_action(mut self, action: &str) -> Self {
        self.details["next_actions"] = json!([action]);
        self
    }
}

pub fn doctor(args: &DoctorArgs, context: &CliContext) -> Result<Exit, Report> {
    let checks = in_runtime(async { Ok(run_checks(args.online, context).await) })?;
    let failed = checks.iter().filter(|check| check.status == CheckStatus::Failed);
    let failed: Vec<&str> = failed.map(|check| check.id).collect();
    let message = format!("failed: {}", failed.join(", "));
    let error = (!failed.is_empty()).then(|| Report::new(Kind::InvalidConfig, message));
    let envelope =
        context.success_envelope("doctor", json!({ "checks": checks }))?.with_error(error);
    Ok(context.print_envelope(&envelope, &checks.iter().map(check_text).collect::<String>()))
}

/// The status of a check as a word of fixed width.
pub fn health_word(health: CheckStatus) -> &'static str {
    match health {
        CheckStatus::Passed => "ok     ",
        CheckStatus::Warning => "warning",
        CheckStatus::Failed => "FAILED ",
    }
}

fn check_text(check: &DoctorCheck) -> String {
    let word = health_word(check.status);
    let mut text = format!("{word} {}: {}\n", check.id, check.message);
    for action in check.details["next_actions"].as_array().into_iter().flatten() {
        writeln!(text, "          try: {}", action.as_str().unwrap_or_default()).ok();
    }
    text
}

async fn run_checks(online: bool, context: &CliContext) -> Vec<DoctorCheck> {
    let mut checks = vec![runtime_check()];
    let workspace = context.admitted_workspace();
    let folder = workspace.as_deref().ok();
    checks.push(match &workspace {
        Ok(folder) => workspace::check_writable("workspace", folder),
        Err(report) => DoctorCheck::from_report("workspace", report),
    });
    let settings = context.load_settings(folder);
    checks.extend(settings::check_config(&settings));
    checks.extend(home::check_home(context));
    let config = match settings {
        Ok(loaded) => Some(loaded.config),
        Err(_) => context.home().ok().map(Config::new),
    };
    let Some(config) = config else { return checks };
    checks.extend(settings::check_settings(&config, context));
    checks.extend(settings::check_environment(context));
    let chosen = context.choose_credential(&config);
    checks.push(match &chosen {
        Ok(chosen) => credential_check(chosen, &config),
        Err(report) => DoctorCheck::from_report("credential", report),
    });
    if let Some(folder) = folder {
        checks.extend(workspace::check_workspace(folder, &config));
        checks.extend(commands::check_commands(folder, &config, context).await);
    }
    if online {
        checks.push(
            online::check_endpoint(chosen.as_ref().ok(), context.http_settings(&config)).await,
        );
        if uses_sign_in(&chosen, &config, context) {
            checks.push(online::check_issuer(context).await);
        }
    }
    checks
}

/// Whether a Turn uses a sign-in with ChatGPT, or would if there were one.
fn uses_sign_in(
    chosen: &Result<ChosenCredential, Report>,
    config: &Config,
    context: &CliContext,
) -> bool {
    if let Ok(chosen) = chosen {
        return chosen.credential.tokens().is_some();
    }
    let base_url = context.environment.text("OPENAI_BASE_URL");
    config.provider.is_none()
        && config.credential != Some(CredentialKind::ApiKey)
        && base_url.is_none_or(|value| value.trim().is_empty())
}

/// The findings, or one passed check if there are none.
fn or_passed(
    found: Vec<DoctorCheck>,
    id: &'static str,
    message: impl Into<String>,
) -> Vec<DoctorCheck> {
    if found.is_empty() { vec![DoctorCheck::new(id, CheckStatus::Passed, message)] } else { found }
}

fn runtime_check() -> DoctorCheck {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    let message = format!("pixir {version} on {os} {arch}");
    DoctorCheck::new("runtime", CheckStatus::Passed, message)
        .with_details(json!({"version": version, "os": os, "arch": arch}))
}

fn credential_check(chosen: &ChosenCredential, config: &Config) -> DoctorCheck {
    let ChosenCredential { credential, reason, .. } = chosen;
    let name = credential.kind().name();
    let details = credential_json(chosen);
    let Some(tokens) = credential.tokens() else {
        let message = match credential.key() {
            Some(_) => format!("{name}, because {reason}"),
            None => NO_KEY.to_owned(),
        };
        return DoctorCheck::new("credential", CheckStatus::Passed, message).with_details(details);
    };
    let message = format!("{name}, because {reason}; {}", token_lifetime(&tokens));
    if !tokens.is_alive(unix_now()) && tokens.refresh.is_none() {
        return DoctorCheck::new("credential", CheckStatus::Failed, message)
            .with_kind(Kind::NotAuthenticated)
            .with_details(details)
            .with_next_action("sign in again with `pixir login`");
    }
    let path = config.home.auth();
    if is_open_to_others(&path) {
        let message = format!("{message}; others can read {}", path.display());
        let mut details = details;
        details["path"] = json!(path.to_string_lossy());
        return DoctorCheck::new("credential", CheckStatus::Warning, message)
            .with_kind(Kind::UnsafeStatePath)
            .with_details(details)
            .with_next_action("chmod 600 that file");
    }
    DoctorCheck::new("credential", CheckStatus::Passed, message).with_details(details)
}

fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}
