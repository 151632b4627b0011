//! Named providers: the credential for a server that the user's settings name, and for no other.

use crate::base::error::{Kind, Report};
use crate::frontends::cli::setup::Environment;
use crate::model::credential::{ChosenCredential, Credential, FieldPolicy};
use crate::settings::config::{Config, ProviderServer, ServerPolicy};

/// The credential for the server that the settings name, if they name one.
pub fn named_server_credential(
    config: &Config,
    environment: &Environment,
) -> Result<Option<ChosenCredential>, Report> {
    let Some(name) = &config.provider else { return Ok(None) };
    // The loader has refused names that do not exist.
    let Some(server) = config.servers.find(name) else { return Ok(None) };
    let variable = server.key_env.as_deref();
    let key = variable
        .and_then(|variable| environment.text(variable))
        .filter(|key| !key.trim().is_empty());
    let credential = Credential::new(key.as_deref(), &server.base_url)
        .map_err(|error| named_server_report(&Report::describe(&error), name, server))?;
    let policy = match server.policy {
        ServerPolicy::Portable => FieldPolicy::Portable,
        ServerPolicy::OpenAi => FieldPolicy::OpenAi,
    };
    Ok(Some(ChosenCredential {
        credential: credential.with_policy(policy),
        reason: format!("provider `{name}` is chosen, and it gets no other key").into(),
        variable: server.key_env.clone(),
        server: Some(name.clone()),
    }))
}

/// An error about a credential, worded for a named provider.
fn named_server_report(report: &Report, name: &str, server: &ProviderServer) -> Report {
    let variable = server.key_env.as_deref();
    if report.kind == Kind::NotAuthenticated.name() {
        let (message, action) = match variable {
            Some(variable) => (
                format!("provider `{name}` has no key: {variable} is not set, or is no key"),
                format!("set {variable}, without quotes, blanks or line breaks"),
            ),
            None => (
                format!("provider `{name}` is not on this machine and has no key"),
                format!("name the variable that holds it as `providers.{name}.key_env`"),
            ),
        };
        return Report::new(Kind::NotAuthenticated, message).with_next_actions(vec![action]);
    }
    let message = report.message.replace("OPENAI_BASE_URL", "its base_url");
    let actions = report.next_actions();
    let actions = actions.iter().map(|action| action.replace("OPENAI_BASE_URL", "its base_url"));
    Report { message: format!("provider `{name}`: {message}"), ..report.clone() }
        .with_next_actions(actions.collect())
}

/// The server's first model, if the server does not list the one that would be used.
pub fn fitting_model(config: &Config, stored: Option<&str>) -> Option<String> {
    let server = config.servers.find(config.provider.as_deref()?)?;
    let current = stored.unwrap_or(&config.model);
    let has_it = server.models.iter().any(|model| model == current);
    if config.model_named || has_it { None } else { server.models.first().cloned() }
}
