//! `pixir agents`: list and show roles, check role files, and show the Subagents of a Session.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};

use super::skills::missing;
use crate::base::error::Report;
use crate::frontends::cli::commands::agents_status;
use crate::frontends::cli::commands::agents_status::StatusArgs;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{Context, bad_argument};
use crate::frontends::render::{clean, one_line};
use crate::model::roles::{Entry, Origin, examine};
use crate::model::skill::Flaw;
use crate::model::tool_spec::is_built_in;
use crate::record::event::{PermissionMode, guest};
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
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
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
    Status(StatusArgs),
}

pub fn agents(args: &AgentsArgs, context: &Context) -> Result<Exit, Report> {
    match args.action.as_ref().unwrap_or(&Action::List) {
        Action::List => list(context),
        Action::Show { name } => show(name, context),
        Action::Validate { path } => validate(path.as_deref(), context),
        Action::Status(args) => agents_status::status(args, context),
    }
}

/// Built-in roles that no role file replaces.
fn built_in(entries: &[Entry]) -> impl Iterator<Item = &'static Role> + '_ {
    let is_replaced = |name: &str| entries.iter().any(|entry| entry.name() == name);
    Role::names().into_iter().filter(move |name| !is_replaced(name)).filter_map(Role::find)
}

fn list(context: &Context) -> Result<Exit, Report> {
    let listed = context.roster(&context.folder()?)?.all();
    for flaw in &listed.broken {
        context.notice(&format!("not used: {flaw}"));
    }
    for shadowed in &listed.shadowed {
        context.notice(shadowed);
    }
    let mut output: Vec<Value> = built_in(&listed.entries).map(plain).collect();
    output.extend(listed.entries.iter().map(entry));
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
    context.told("agents", &text, output)
}

fn show(name: &str, context: &Context) -> Result<Exit, Report> {
    let roster = context.roster(&context.folder()?)?;
    let listed = roster.all();
    let found = listed.entries.iter().find(|entry| entry.name() == name);
    let (mut output, instructions) = if let Some(found) = found {
        for flaw in oddities(found) {
            context.notice(&flaw.to_string());
        }
        (entry(found), found.written.instructions.clone())
    } else {
        let role = roster.find(name)?;
        (plain(role), role.instructions.to_owned())
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
    context.told("agents", &text, output)
}

fn validate(path: Option<&Path>, context: &Context) -> Result<Exit, Report> {
    let listed = match path {
        Some(path) if path.exists() => examine(path),
        Some(path) => return Err(missing(path)),
        None => context.roster(&context.folder()?)?.all(),
    };
    if let Some(path) = path.filter(|_| listed.all.is_empty() && listed.broken.is_empty()) {
        let message = format!("there is no role in {}", path.display());
        let next = "name a TOML file, or a folder of such files".to_owned();
        return Err(bad_argument(message).with_next_actions(vec![next]));
    }
    let odd: Vec<Flaw> = listed.all.iter().flat_map(oddities).collect();
    let entries: Vec<Value> = listed.all.iter().map(entry).collect();
    context.judged("agents", "role", &entries, &listed.broken, &odd)
}

/// Warnings about a role: those of its file, and unknown tools in its list.
fn oddities(entry: &Entry) -> Vec<Flaw> {
    let mut odd = entry.odd.clone();
    let named = entry.written.custom.tools.iter().flatten();
    for name in named.filter(|name| guest(name).is_none() && !is_built_in(name)) {
        let message = format!("there is no tool `{}`", one_line(name, 60));
        odd.push(Flaw { path: entry.path.clone(), line: entry.tools_line, message });
    }
    odd
}

fn plain(role: &'static Role) -> Value {
    let first = role.instructions.split(['.', ';']).next().unwrap_or_default();
    let description = if first.is_empty() { "Works on what it is asked" } else { first };
    json!({
        "name": role.name,
        "description": description,
        "origin": Origin::BuiltIn.name(),
        "permission_mode": role.limit(&PermissionMode::Auto).to_string(),
        "withheld_tools": role.withheld(),
        "trusted": true,
    })
}

fn entry(entry: &Entry) -> Value {
    let written = &entry.written;
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
