//! `pixir agents`: list and show roles, check role files, and show the Subagents of a Session.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};

use super::skills::missing_path;
use crate::base::error::Report;
use crate::frontends::cli::commands::agents_status;
use crate::frontends::cli::commands::agents_status::AgentsStatusArgs;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::frontends::render::{clean, one_line};
use crate::model::roles::{RoleFile, RoleOrigin, examine_role_files};
use crate::model::skill::FileDiagnostic;
use crate::model::tool_spec::is_built_in;
use crate::record::event::{PermissionMode, split_mcp_name};
use crate::settings::role::Role;

/// Show roles, check role files, or show Subagents
#[derive(Debug, Args)]
#[command(
    long_about = "Show roles, check role files, or show Subagents.\n\n\
        A role defines a kind of Session: instructions, tools, model, effort and permission limit. Some \
        are built in; others are TOML files in .pixir/agents and .codex/agents of the project, and in \
        ~/.pixir/agents and ~/.codex/agents. Choose one with --role. Roles of a project take effect once you \
        trust them (see `pixir trust`). A role can only narrow permissions.",
    after_long_help = "Examples:\n  pixir agents\n  pixir agents show scribe\n  \
        pixir agents validate .pixir/agents --json\n  pixir --role scribe \"document the parser\""
)]
pub struct AgentsArgs {
    #[command(subcommand)]
    action: Option<AgentsAction>,
}

#[derive(Debug, Subcommand)]
enum AgentsAction {
    /// List the roles that can be chosen here
    List,
    /// Show a role with its instructions
    Show {
        /// Name of the role
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Check role files and report errors with path and line
    Validate {
        /// A file, or a folder of files; without it, all role files found here
        #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
        path: Option<PathBuf>,
    },
    Status(AgentsStatusArgs),
}

pub fn agents(args: &AgentsArgs, context: &CliContext) -> Result<Exit, Report> {
    match args.action.as_ref().unwrap_or(&AgentsAction::List) {
        AgentsAction::List => list_roles(context),
        AgentsAction::Show { name } => show_role(name, context),
        AgentsAction::Validate { path } => validate_role_files(path.as_deref(), context),
        AgentsAction::Status(args) => agents_status::agents_status(args, context),
    }
}

/// Built-in roles that no role file replaces.
fn unreplaced_built_in_roles(entries: &[RoleFile]) -> impl Iterator<Item = &'static Role> + '_ {
    let is_replaced = |name: &str| entries.iter().any(|entry| entry.name() == name);
    Role::names().into_iter().filter(move |name| !is_replaced(name)).filter_map(Role::find)
}

fn list_roles(context: &CliContext) -> Result<Exit, Report> {
    let listed = context.roles(&context.current_folder()?)?.read_all();
    for flaw in &listed.broken {
        context.print_notice(&format!("not used: {flaw}"));
    }
    for shadowed in &listed.shadowed {
        context.print_notice(shadowed);
    }
    let mut output: Vec<Value> =
        unreplaced_built_in_roles(&listed.entries).map(built_in_role_json).collect();
    output.extend(listed.entries.iter().map(role_entry_json));
    let mut text = String::new();
    for role in &output {
        let word = |key: &str| role[key].as_str().unwrap_or_default();
        let trust = if role["trusted"] == true { "" } else { ", not trusted" };
        let (name, words) = (word("name"), one_line(word("description"), 100));
        // Writing to a String cannot fail.
        writeln!(text, "{name:12}  {words}  ({}{trust})", word("origin")).ok();
    }
    let output = json!({
        "roles": output,
        "shadowed": listed.shadowed,
        "broken": listed.broken,
    });
    context.print_result("agents", &text, output)
}

fn show_role(name: &str, context: &CliContext) -> Result<Exit, Report> {
    let roles = context.roles(&context.current_folder()?)?;
    let listed = roles.read_all();
    let found = listed.entries.iter().find(|entry| entry.name() == name);
    let (mut output, instructions) = if let Some(found) = found {
        for flaw in role_warnings(found) {
            context.print_notice(&flaw.to_string());
        }
        (role_entry_json(found), found.definition.instructions.clone())
    } else {
        let role = roles.find(name)?;
        (built_in_role_json(role), role.instructions.to_owned())
    };
    output["instructions"] = json!(instructions);
    let mut text = String::new();
    for key in ["name", "description", "origin", "path", "model", "effort", "permission_mode"] {
        if let Some(value) = output[key].as_str() {
            writeln!(text, "{key:17}{}", one_line(value, 500)).ok();
        }
    }
    if let Some(tools) = output["tools"].as_array() {
        let names: Vec<&str> = tools.iter().filter_map(Value::as_str).collect();
        writeln!(text, "{:17}{}", "tools", one_line(&names.join(", "), 500)).ok();
    }
    if output["trusted"] != true {
        writeln!(text, "{:17}no, see `pixir trust`", "trusted").ok();
    }
    if !instructions.is_empty() {
        text.extend(["\n", clean(&instructions).trim_end(), "\n"]);
    }
    context.print_result("agents", &text, output)
}

fn validate_role_files(path: Option<&Path>, context: &CliContext) -> Result<Exit, Report> {
    let listed = match path {
        Some(path) if path.exists() => examine_role_files(path),
        Some(path) => return Err(missing_path(path)),
        None => context.roles(&context.current_folder()?)?.read_all(),
    };
    if let Some(path) = path.filter(|_| listed.all.is_empty() && listed.broken.is_empty()) {
        let message = format!("there is no role in {}", path.display());
        let next = "name a TOML file, or a folder of such files".to_owned();
        return Err(bad_argument(message).with_next_actions(vec![next]));
    }
    let warnings: Vec<FileDiagnostic> = listed.all.iter().flat_map(role_warnings).collect();
    let entries: Vec<Value> = listed.all.iter().map(role_entry_json).collect();
    context.print_validation("agents", "role", &entries, &listed.broken, &warnings)
}

/// Warnings about a role: those of its file, and unknown tools in its list.
fn role_warnings(entry: &RoleFile) -> Vec<FileDiagnostic> {
    let mut warnings = entry.warnings.clone();
    let named = entry.definition.custom.tools.iter().flatten();
    for name in named.filter(|name| split_mcp_name(name).is_none() && !is_built_in(name)) {
        let message = format!("there is no tool `{}`", one_line(name, 60));
        warnings.push(FileDiagnostic { path: entry.path.clone(), line: entry.tools_line, message });
    }
    warnings
}

fn built_in_role_json(role: &'static Role) -> Value {
    let first = role.instructions.split(['.', ';']).next().unwrap_or_default();
    let description = if first.is_empty() { "Works on what it is asked" } else { first };
    json!({
        "name": role.name,
        "description": description,
        "origin": RoleOrigin::BuiltIn.name(),
        "permission_mode": role.limit_mode(&PermissionMode::Auto).to_string(),
        "withheld_tools": role.withheld_tools(),
        "trusted": true,
    })
}

fn role_entry_json(entry: &RoleFile) -> Value {
    let written = &entry.definition;
    json!({
        "name": written.name,
        "description": written.custom.description,
        "origin": entry.origin.name(),
        "path": entry.path.to_string_lossy(),
        "sha256": entry.digest,
        "permission_mode": written.ceiling.to_string(),
        "model": written.custom.model,
        "effort": written.custom.effort,
        "tools": written.custom.tools,
        "trusted": entry.is_trusted,
    })
}
