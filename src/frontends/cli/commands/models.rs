//! `pixir models`: models with their context windows and efforts.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::base::error::{Kind, Report};
use crate::base::paths::quote_shell_word;
use crate::base::secret::Secrets;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::render::one_line;
use crate::frontends::signals::SignalListener;
use crate::model::credential::Credential;
use crate::model::provider::{ResponsesProvider, TransportOptions};
use crate::settings::config::models;
use crate::settings::config::models::{Model, ModelListing, UNKNOWN_WINDOW};
use crate::settings::config::{Config, StreamTimeouts};

/// How long an endpoint may take to list its models.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// List models, their context windows and efforts
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "pixir models [OPTIONS]\n       pixir models refresh [OPTIONS]",
    long_about = "List models, their context windows and efforts.\n\n\
        The list is what the endpoint said when `pixir models refresh` last asked it, or else a small \
        built-in table. A model that is not in it works too: a window of 128000 tokens is \
        assumed, and any effort is passed on.",
    after_long_help = "Examples:\n  pixir models\n  pixir models refresh\n  \
        pixir models refresh --provider ollama\n  pixir models --json | jq '.output.models[].name'"
)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: Option<ModelsCommand>,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// Ask the endpoint which models it has, and remember the answer
    Refresh,
}

pub fn models(args: &ModelsArgs, context: &CliContext) -> Result<Exit, Report> {
    let config = context.load_user_settings()?;
    let listing = match args.command {
        Some(ModelsCommand::Refresh) => Some(refresh_models(&config, context)?),
        // Listing needs no credential; without one no endpoint is known, and so no list of one.
        None => context.choose_credential(&config).ok().and_then(|chosen| {
            models::read_cached_listing(&config.home, chosen.credential.base_url())
        }),
    };
    let (source, fetched_at) = match &listing {
        Some(listing) => ("endpoint", Some(listing.fetched_at)),
        None if config.provider.is_some() => ("config", None),
        None => ("built_in", None),
    };
    let shown = shown_models(&config, listing);
    if let Some(notice) = listing_notice(source, &shown, &config) {
        context.print_notice(&notice);
    }
    let models: Vec<_> = shown.iter().map(|model| model_json(model, &config)).collect();
    let output = json!({
        "source": source, "fetched_at": fetched_at, "provider": config.provider,
        "default": config.model, "unknown_context_window": UNKNOWN_WINDOW, "models": models,
    });
    context.print_result("models", &models_table(&shown, &config), output)
}

/// A notice about the source of the list, and how to refresh it.
fn listing_notice(source: &str, shown: &[Model], config: &Config) -> Option<String> {
    match (source, &config.provider) {
        ("built_in", _) => {
            Some("this is the built-in table; `pixir models refresh` asks the endpoint".to_owned())
        }
        ("config", Some(name)) => {
            let refresh = format!("`pixir models refresh --provider {}`", quote_shell_word(name));
            Some(if shown.is_empty() {
                format!(
                    "provider `{name}` has not been asked yet, and the settings name none of its models: {refresh} asks it"
                )
            } else {
                format!(
                    "these are the models that the settings name for provider `{name}`; {refresh} asks it"
                )
            })
        }
        _ => None,
    }
}

fn refresh_models(config: &Config, context: &CliContext) -> Result<ModelListing, Report> {
    let credential = context.choose_credential(config)?.credential;
    let base_url = credential.base_url().to_owned();
    let limits = StreamTimeouts { idle: LIST_TIMEOUT, total: LIST_TIMEOUT, connect: LIST_TIMEOUT };
    let transport_options =
        TransportOptions::from_config(config, |name| context.environment.text(name));
    let provider = ResponsesProvider::new(credential.clone(), limits, transport_options);
    let models = in_runtime(async {
        let mut signals = SignalListener::listen();
        let asked = tokio::select! {
            asked = provider.list_models(env!("CARGO_PKG_VERSION")) => {
                asked.map_err(|error| without_echo(Report::describe(&error), &credential))
            }
            _ = signals.next() => Err(Report::new(Kind::Interrupted, "the request for the list was interrupted")),
        };
        // A token that is being renewed must not be lost with the process; a signal cuts it short.
        tokio::select! {
            _ = tokio::time::timeout(LIST_TIMEOUT, credential.wait_for_renewal()) => {}
            _ = signals.next() => {}
        }
        asked
    })?;
    let listing = ModelListing { fetched_at: jiff::Timestamp::now().as_second(), models };
    if let Err(error) = models::cache_listing(&config.home, &base_url, &listing) {
        context.print_notice(&format!("the list could not be remembered: {error}"));
    }
    Ok(listing)
}

/// The error without what the server may have echoed of the credential.
fn without_echo(mut error: Report, credential: &Credential) -> Report {
    let secrets = Arc::new(Secrets::default());
    credential.register_secrets(&secrets);
    error.message = secrets.redact_server_error(&error.message);
    secrets.redact_server_error_value(&mut error.details);
    error
}

/// What to show: the endpoint's list or the built-in one, and always the model that is in use.
fn shown_models(config: &Config, listing: Option<ModelListing>) -> Vec<Model> {
    let server = config.provider.as_deref().and_then(|name| config.servers.find(name));
    let mut shown = match (listing, server) {
        (Some(listing), _) => listing.models,
        (None, Some(server)) => server.models.iter().map(|name| Model::from_name(name)).collect(),
        (None, None) => models::built_in().collect(),
    };
    if server.is_none() && !shown.iter().any(|model| model.name == config.model) {
        shown.push(Model::from_name(&config.model));
    }
    shown.sort_by(|one, other| one.name.cmp(&other.name));
    shown
}

fn model_json(model: &Model, config: &Config) -> serde_json::Value {
    json!({
        "name": model.name,
        "context_window": model.window(),
        "context_window_known": model.context_window.is_some(),
        "efforts": model.efforts,
        "default_effort": model.default_effort,
        "default": model.name == config.model,
        "price_known": config.prices.get(&model.name).is_some(),
    })
}

fn models_table(models: &[Model], config: &Config) -> String {
    let name = |model: &Model| one_line(&model.name, 60);
    let widest = models.iter().map(|model| name(model).chars().count()).max().unwrap_or(0);
    let row = |model: &Model| {
        let mark = if model.name == config.model { "*" } else { " " };
        let window = match model.context_window {
            Some(window) => window.to_string(),
            None => format!("~{UNKNOWN_WINDOW}"),
        };
        let efforts = model.efforts.iter().map(|effort| {
            if Some(effort) == model.default_effort.as_ref() {
                format!("[{effort}]")
            } else {
                effort.clone()
            }
        });
        let efforts = efforts.collect::<Vec<_>>().join(" ");
        format!("{mark} {:<widest$}  {window:>8}  {efforts}", name(model)).trim_end().to_owned()
            + "\n"
    };
    models.iter().map(row).collect()
}
