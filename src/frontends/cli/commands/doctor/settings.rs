//! Checks of settings: whether they load, and whether the files and programs that they name exist.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{CheckStatus, DoctorCheck, or_passed};
use crate::base::error::{Kind, Report, counted};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::named_server::fitting_model;
use crate::settings::config::models::Model;
use crate::settings::config::{Config, LoadedConfig, McpTransport, SettingKey};

/// Variables of Pixir that are no settings.
const NON_SETTING_VARIABLES: &[&str] = &[
    "PIXIR_HOME",
    "PIXIR_LOG",
    "PIXIR_AUTH_ISSUER",
    "PIXIR_CHATGPT_BASE_URL",
    "PIXIR_LOGIN_DEADLINE_MS",
    "PIXIR_LOGIN_PACE_MS",
    "PIXIR_LOGIN_PORTS",
    "PIXIR_NO_BROWSER",
];

/// Whether the settings load, and what in them is ignored.
pub fn check_config(settings: &Result<LoadedConfig, Report>) -> Vec<DoctorCheck> {
    const ID: &str = "config";
    match settings {
        Err(report) => vec![DoctorCheck::from_report(ID, report)],
        Ok(loaded) => {
            let ignored = loaded.notices.iter().map(|notice| {
                DoctorCheck::new(ID, CheckStatus::Warning, notice)
                    .with_kind(Kind::InvalidConfig)
                    .with_next_action("correct that file, or see `pixir config list --origin`")
            });
            let config = &loaded.config;
            let fitting = fitting_model(config, None);
            let model = fitting.as_ref().unwrap_or(&config.model);
            let at = config.provider.as_ref().map(|name| format!(" at provider `{name}`"));
            let message = format!("model {model}{}", at.unwrap_or_default());
            or_passed(ignored.collect(), ID, message)
        }
    }
}

/// Checks of single settings: certificates, shell, effort, prices and MCP servers.
pub fn check_settings(config: &Config, context: &CliContext) -> Vec<DoctorCheck> {
    let mut found = Vec::new();
    let wrong = |key: &str, message: String| {
        let check = DoctorCheck::new("setting", CheckStatus::Warning, format!("`{key}` {message}"));
        check.with_kind(Kind::InvalidConfig).with_details(json!({ "key": key }))
    };
    for root in &config.extra_roots {
        let is_certificate =
            fs::read_to_string(root).is_ok_and(|text| text.contains("-----BEGIN CERTIFICATE-----"));
        if !is_certificate {
            let message = format!("names no certificate: {}", root.display());
            let check = wrong("tls.extra_roots", message).into_failure();
            found.push(check.with_next_action(
                "name PEM files, or take it out with `pixir config unset tls.extra_roots`",
            ));
        }
    }
    if let Some(shell) = &config.bash.shell
        && !is_program(shell)
    {
        let message = format!("is no program: {}", shell.display());
        let check = wrong("bash.shell", message).into_failure();
        found.push(
            check.with_next_action(
                "name a shell, or take it out with `pixir config unset bash.shell`",
            ),
        );
    }
    let model = Model::from_name(&config.model);
    if let Some(effort) = config
        .effort
        .as_ref()
        .filter(|effort| !model.efforts.is_empty() && !model.efforts.contains(effort))
    {
        let message = format!("is {effort:?}, which {} does not know", config.model);
        found.push(
            wrong("effort", message)
                .with_next_action(&format!("use one of: {}", model.efforts.join(", "))),
        );
    }
    if config.budget.max_cost.is_some() && config.prices.get(&config.model).is_none() {
        let message = format!("needs a price of {}, and `prices` has none", config.model);
        found.push(
            wrong("max_cost", message).into_failure().with_next_action("add the model to `prices`"),
        );
    }
    let names_something = !config.extra_roots.is_empty() || config.bash.shell.is_some();
    let message = if names_something {
        "the files and programs that settings name are there"
    } else {
        "no setting names a file or program"
    };
    let mut checks = or_passed(found, "setting", message);
    checks.extend(check_mcp_servers(config, context));
    checks
}

/// MCP servers that cannot start; none is started.
fn check_mcp_servers(config: &Config, context: &CliContext) -> Vec<DoctorCheck> {
    const ID: &str = "mcp";
    let mut found = Vec::new();
    for server in &config.mcp.servers {
        let name = &server.name;
        let problem = match &server.transport {
            McpTransport::Stdio { command, .. } if !is_found(command, context) => {
                Some(format!("`{command}` is not found"))
            }
            McpTransport::Http { url, .. } => match url::Url::parse(url) {
                Ok(url) if matches!(url.scheme(), "http" | "https") => None,
                _ => Some("its address is no http or https address".to_owned()),
            },
            McpTransport::Broken { problem, .. } => Some(problem.clone()),
            McpTransport::Stdio { .. } => None,
        };
        if let Some(problem) = problem {
            found.push(
                DoctorCheck::new(
                    ID,
                    CheckStatus::Warning,
                    format!("MCP server `{name}`: {problem}"),
                )
                .with_kind(Kind::McpServerFailed)
                .with_details(json!({ "key": format!("mcp_servers.{name}"), "server": name }))
                .with_next_action(
                    "install it, give its whole path, or take it out of the settings",
                ),
            );
        }
    }
    let message = match config.mcp.servers.len() {
        0 => "no MCP servers".to_owned(),
        count => format!("{}; `pixir mcp test NAME` starts one", counted(count, "server")),
    };
    or_passed(found, ID, message)
}

/// Whether a command is a program: by its path, or by its name on PATH.
fn is_found(command: &str, context: &CliContext) -> bool {
    if command.contains('/') {
        return is_program(Path::new(command));
    }
    let search = context.environment.get("PATH").unwrap_or_default();
    std::env::split_paths(search).any(|folder| is_program(&folder.join(command)))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Checks of the environment: misspelled `PIXIR_` variables, PATH and the terminal.
pub fn check_environment(context: &CliContext) -> Vec<DoctorCheck> {
    let mut found = Vec::new();
    for (name, _) in context.environment.variables() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("PIXIR_")) else { continue };
        let is_setting = SettingKey::all().iter().any(|key| key.variable_name() == name);
        if is_setting || NON_SETTING_VARIABLES.contains(&name) {
            continue;
        }
        let known = SettingKey::all_listed().map(SettingKey::variable_name);
        let known = known.chain(NON_SETTING_VARIABLES.iter().map(|name| (*name).to_owned()));
        let likeness = |other: &String| strsim::jaro_winkler(name, other);
        let nearest = known.max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
        let next = match nearest.filter(|nearest| likeness(nearest) > 0.85) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("unset {name}"),
        };
        found.push(
            DoctorCheck::new("environment", CheckStatus::Warning, format!("nothing reads {name}"))
                .with_kind(Kind::InvalidConfig)
                .with_details(json!({ "variable": name, "key": name }))
                .with_next_action(&next),
        );
    }
    let path = context.environment.get("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        std::env::split_paths(path).filter(|folder| folder.is_dir()).collect();
    if folders.is_empty() {
        let message = "PATH names no folder: commands find no programs";
        found.push(
            DoctorCheck::new("environment", CheckStatus::Warning, message)
                .with_kind(Kind::CommandFailed)
                .with_details(json!({ "variable": "PATH", "key": "PATH" }))
                .with_next_action("set PATH"),
        );
    }
    let own = context.environment.variables().into_iter();
    let own = own.filter(|(name, _)| name.to_str().is_some_and(|name| name.starts_with("PIXIR_")));
    let message = match own.count() {
        0 => "no PIXIR_ variable is set".to_owned(),
        1 => "the one PIXIR_ variable is known".to_owned(),
        count => format!("all {count} PIXIR_ variables are known"),
    };
    let mut checks = or_passed(found, "environment", message);
    checks.push(check_terminal(context));
    checks
}

fn check_terminal(context: &CliContext) -> DoctorCheck {
    const ID: &str = "terminal";
    let text = |name: &str| context.environment.text(name).filter(|value| !value.is_empty());
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| Some((name, text(name)?)));
    let is_odd = |value: &str| {
        let value = value.to_lowercase();
        !(value.contains("utf-8")
            || value.contains("utf8")
            || matches!(value.as_str(), "c" | "posix"))
    };
    if let Some((name, value)) = locale.filter(|(_, value)| is_odd(value)) {
        let message =
            format!("{name} is {value:?}: Pixir writes UTF-8, which your terminal may not show");
        return DoctorCheck::new(ID, CheckStatus::Warning, message)
            .with_kind(Kind::InvalidConfig)
            .with_details(json!({ "variable": name, "key": name }))
            .with_next_action("choose a UTF-8 locale, such as C.UTF-8");
    }
    let term = text("TERM").unwrap_or_else(|| "not set".to_owned());
    let plain =
        if matches!(term.as_str(), "dumb" | "not set") { ": plain lines, no status" } else { "" };
    let plain = if context.is_ascii() { ": plain ASCII, no status" } else { plain };
    DoctorCheck::new(ID, CheckStatus::Passed, format!("TERM is {term}{plain}"))
}
