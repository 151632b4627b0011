//! `pixir config`: show settings and their origin, and change the user's own.

use std::fmt::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::base::error::Report;
use crate::base::paths;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::frontends::render::one_line;
use crate::settings::config;
use crate::settings::config::{LoadedConfig, SettingEdit, SettingKey};

/// Show settings and where they come from, or change yours
#[derive(Debug, Args)]
#[command(
    long_about = "Show settings and where they come from, or change yours.\n\n\
        Weakest first: the default, your config.json, the Workspace's .pixir/config.json (only what cannot widen \
        anything, unless you trust it), the environment, flags. `set` and `unset` change one key in your own \
        file; a change that would not load is refused. docs/config.md describes every setting.",
    after_long_help = "Examples:\n  pixir config list --origin\n  pixir config get model\n  \
        pixir config set bash.timeout_ms 300000\n  pixir config set sandbox.write '[\"~/build\", \"/var/build\"]'\n  \
        pixir config unset effort\n  pixir config path"
)]
pub struct ConfigArgs {
    #[command(subcommand)]
    action: Option<ConfigAction>,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Show every setting in effect here
    List {
        /// Show where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Show one setting in effect here
    Get {
        /// Name of the setting, such as `retry.base_ms`
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Change a setting in your own file
    Set {
        /// Name of the setting, such as `retry.base_ms`
        #[arg(value_name = "KEY")]
        key: String,
        /// Text, a number, true or false; lists as JSON or with commas, objects as JSON
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
    },
    /// Remove a setting from your own file
    Unset {
        /// Name of the setting, or an unknown key of the file
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Show the paths of the config files
    Path,
}

pub fn config(args: &ConfigArgs, context: &CliContext) -> Result<Exit, Report> {
    match args.action.as_ref().unwrap_or(&ConfigAction::List { origin: false }) {
        ConfigAction::List { origin } => list_settings(*origin, context),
        ConfigAction::Get { key } => print_setting(key, context),
        ConfigAction::Set { key, value } => {
            let value = find_key(key)?.parse_value(value);
            change_setting(key, &SettingEdit::Set(value), context)
        }
        ConfigAction::Unset { key } => change_setting(key, &SettingEdit::Unset, context),
        ConfigAction::Path => print_paths(context),
    }
}

/// Finds a setting by its name; the error suggests the nearest one.
fn find_key(name: &str) -> Result<&'static SettingKey, Report> {
    SettingKey::find(config::canonical_name(name)).ok_or_else(|| {
        let mut actions = vec!["list all of them with `pixir config list`".to_owned()];
        let mut message = format!("`{name}` is not a setting");
        if let Some(nearest) = SettingKey::nearest_name(name) {
            message = format!("{message}, did you mean `{nearest}`?");
            actions.insert(0, format!("use `{nearest}`"));
        }
        bad_argument(message).with_details(json!({ "key": name })).with_next_actions(actions)
    })
}

fn load_and_print_notices(context: &CliContext) -> Result<LoadedConfig, Report> {
    let folder = context.current_folder().ok();
    let loaded = context.load_settings(folder.as_deref())?;
    for notice in &loaded.notices {
        context.print_notice(notice);
    }
    Ok(loaded)
}

fn setting_json(key: &SettingKey, loaded: &LoadedConfig) -> Value {
    json!({
        "key": key.name,
        "value": key.read_from(&loaded.config),
        "origin": loaded.origins.get(&key.name).to_json(),
        "accepts": key.accepts(),
        "about": key.about,
        "variable": key.variable_name(),
        "in_workspace": key.in_workspace,
    })
}

fn list_settings(origin: bool, context: &CliContext) -> Result<Exit, Report> {
    let loaded = load_and_print_notices(context)?;
    let width = SettingKey::all_listed().map(|key| key.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for key in SettingKey::all_listed() {
        let value = one_line(&display_value(&key.read_from(&loaded.config)), 100);
        let from = loaded.origins.get(&key.name);
        let from = if origin { format!("  ({}: {from})", from.layer()) } else { String::new() };
        let from = from.replace("(default: default)", "(default)");
        // Writing to a String cannot fail.
        writeln!(text, "{:width$}  {value}{from}", key.name).ok();
    }
    let facts: Vec<Value> =
        SettingKey::all_listed().map(|key| setting_json(key, &loaded)).collect();
    context.print_result("config", &text, json!({ "settings": facts, "notices": loaded.notices }))
}

fn print_setting(name: &str, context: &CliContext) -> Result<Exit, Report> {
    let key = find_key(name)?;
    let loaded = load_and_print_notices(context)?;
    let value = key.read_from(&loaded.config);
    if value.is_null() {
        context.print_notice(&format!("`{}` is not set", key.name));
        return context.print_result("config", "", setting_json(key, &loaded));
    }
    context.print_result(
        "config",
        &format!("{}\n", display_value(&value)),
        setting_json(key, &loaded),
    )
}

/// A value as a person would type it.
fn display_value(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn change_setting(name: &str, edit: &SettingEdit, context: &CliContext) -> Result<Exit, Report> {
    let home = context.home()?;
    let edited = config::edit_setting(&home, name, edit)?;
    if *edit == SettingEdit::Unset && !edited.is_changed {
        // Nothing was removed: the name may be misspelled.
        find_key(name)?;
    }
    if let Some(mistake) = &edited.old_mistake {
        context.print_notice(&format!("still to be corrected: {mistake}"));
    }
    let file = edited.file.display();
    let what = match (edit, edited.is_changed) {
        (_, false) => format!("{file} needs no change\n"),
        (SettingEdit::Set(value), true) => format!("{name} = {} in {file}\n", display_value(value)),
        (SettingEdit::Unset, true) => format!("{name} is no longer in {file}\n"),
    };
    print_override_notice(name, context);
    let output = json!({
        "key": name,
        "file": edited.file.to_string_lossy(),
        "changed": edited.is_changed,
        "still_wrong": edited.old_mistake,
    });
    context.print_result("config", &what, output)
}

/// Prints a notice if a stronger layer overrides the setting that was just changed.
fn print_override_notice(name: &str, context: &CliContext) {
    let Ok(loaded) = context.load_settings(context.current_folder().ok().as_deref()) else {
        return;
    };
    let origin = loaded.origins.get(name);
    if matches!(origin.layer(), "workspace" | "environment" | "flag") {
        context.print_notice(&format!("overridden here by {origin}"));
    }
}

fn print_paths(context: &CliContext) -> Result<Exit, Report> {
    let user = context.home()?.config_file();
    let workspace =
        context.current_folder().ok().map(|folder| paths::workspace_config_file(&folder));
    let place = |path: &Path| json!({ "path": path.to_string_lossy(), "exists": path.exists() });
    let output = json!({ "user": place(&user), "workspace": workspace.as_deref().map(place) });
    let mut text = format!("{}\n", user.display());
    if let Some(workspace) = workspace.filter(|path| path.exists()) {
        writeln!(text, "{}", workspace.display()).ok();
    }
    context.print_result("config", &text, output)
}
