//! `pixir config`: show settings and their origin, and change the user's own.

use std::fmt::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::base::error::Report;
use crate::base::paths;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{Context, bad_argument};
use crate::frontends::render::one_line;
use crate::settings::config;
use crate::settings::config::{Edit, Key, Loaded};

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
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
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

pub fn config(args: &ConfigArgs, context: &Context) -> Result<Exit, Report> {
    match args.action.as_ref().unwrap_or(&Action::List { origin: false }) {
        Action::List { origin } => list(*origin, context),
        Action::Get { key } => get(key, context),
        Action::Set { key, value } => {
            let value = known(key)?.value_of(value);
            change(key, &Edit::Set(value), context)
        }
        Action::Unset { key } => change(key, &Edit::Unset, context),
        Action::Path => path(context),
    }
}

/// Finds a setting by its name; the error suggests the nearest one.
fn known(name: &str) -> Result<&'static Key, Report> {
    Key::find(config::canonical(name)).ok_or_else(|| {
        let mut actions = vec!["list all of them with `pixir config list`".to_owned()];
        let mut message = format!("`{name}` is not a setting");
        if let Some(nearest) = Key::nearest(name) {
            message = format!("{message}, did you mean `{nearest}`?");
            actions.insert(0, format!("use `{nearest}`"));
        }
        bad_argument(message).with_details(json!({ "key": name })).with_next_actions(actions)
    })
}

fn loaded(context: &Context) -> Result<Loaded, Report> {
    let folder = context.folder().ok();
    let loaded = context.settings(folder.as_deref())?;
    for notice in &loaded.notices {
        context.notice(notice);
    }
    Ok(loaded)
}

fn fact(key: &Key, loaded: &Loaded) -> Value {
    json!({
        "key": key.name,
        "value": key.show(&loaded.config),
        "origin": loaded.origins.of(&key.name).facts(),
        "accepts": key.accepts(),
        "about": key.about,
        "variable": key.variable(),
        "in_workspace": key.in_workspace,
    })
}

fn list(origin: bool, context: &Context) -> Result<Exit, Report> {
    let loaded = loaded(context)?;
    let width = Key::shown().map(|key| key.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for key in Key::shown() {
        let value = one_line(&shown(&key.show(&loaded.config)), 100);
        let from = loaded.origins.of(&key.name);
        let from = if origin { format!("  ({}: {from})", from.layer()) } else { String::new() };
        let from = from.replace("(default: default)", "(default)");
        // Writing to a String cannot fail.
        writeln!(text, "{:width$}  {value}{from}", key.name).ok();
    }
    let facts: Vec<Value> = Key::shown().map(|key| fact(key, &loaded)).collect();
    context.told("config", &text, json!({ "settings": facts, "notices": loaded.notices }))
}

fn get(name: &str, context: &Context) -> Result<Exit, Report> {
    let key = known(name)?;
    let loaded = loaded(context)?;
    let value = key.show(&loaded.config);
    if value.is_null() {
        context.notice(&format!("`{}` is not set", key.name));
        return context.told("config", "", fact(key, &loaded));
    }
    context.told("config", &format!("{}\n", shown(&value)), fact(key, &loaded))
}

/// A value as a person would type it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn change(name: &str, edit: &Edit, context: &Context) -> Result<Exit, Report> {
    let home = context.home()?;
    let edited = config::change(&home, name, edit)?;
    if *edit == Edit::Unset && !edited.is_changed {
        // Nothing was removed: the name may be misspelled.
        known(name)?;
    }
    if let Some(mistake) = &edited.still_wrong {
        context.notice(&format!("still to be corrected: {mistake}"));
    }
    let file = edited.file.display();
    let what = match (edit, edited.is_changed) {
        (_, false) => format!("{file} needs no change\n"),
        (Edit::Set(value), true) => format!("{name} = {} in {file}\n", shown(value)),
        (Edit::Unset, true) => format!("{name} is no longer in {file}\n"),
    };
    overridden(name, context);
    let output = json!({
        "key": name,
        "file": edited.file.to_string_lossy(),
        "changed": edited.is_changed,
        "still_wrong": edited.still_wrong,
    });
    context.told("config", &what, output)
}

/// Prints a notice if a stronger layer overrides the setting that was just changed.
fn overridden(name: &str, context: &Context) {
    let Ok(loaded) = context.settings(context.folder().ok().as_deref()) else { return };
    let origin = loaded.origins.of(name);
    if matches!(origin.layer(), "workspace" | "environment" | "flag") {
        context.notice(&format!("overridden here by {origin}"));
    }
}

fn path(context: &Context) -> Result<Exit, Report> {
    let user = context.home()?.config();
    let workspace = context.folder().ok().map(|folder| paths::workspace_config(&folder));
    let place = |path: &Path| json!({ "path": path.to_string_lossy(), "exists": path.exists() });
    let output = json!({ "user": place(&user), "workspace": workspace.as_deref().map(place) });
    let mut text = format!("{}\n", user.display());
    if let Some(workspace) = workspace.filter(|path| path.exists()) {
        writeln!(text, "{}", workspace.display()).ok();
    }
    context.told("config", &text, output)
}
