//! Checks whether the endpoints answer; run only with `--online`, and free of charge.

use std::time::Duration;

use http::HeaderMap;
use serde_json::json;

use super::{Check, Health};
use crate::base::error::{Kind, Report};
use crate::frontends::cli::Context;
use crate::host::http::{HttpError, HttpSettings};
use crate::model::credential::Chosen;

/// Time limit for an endpoint to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends a GET without credential to the model's endpoint, which costs nothing.
pub async fn endpoint(chosen: Option<&Chosen>, http: HttpSettings) -> Check {
    const ID: &str = "endpoint";
    let Some(chosen) = chosen else {
        return Check::new(ID, Health::Warning, "not reached, because there is no credential");
    };
    let credential = &chosen.credential;
    let client = http.client(credential.base_url().to_owned(), PATIENCE);
    let details = json!({ "url": credential.base_url() });
    // Sent without the credential: only reachability is checked.
    let reached = tokio::time::timeout(PATIENCE, client.get("", HeaderMap::new())).await;
    let reached = reached.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", PATIENCE.as_secs());
        Err(HttpError::Broken(message))
    });
    match reached {
        Ok(_) => {
            let message = format!("{} answers", credential.base_url());
            Check::new(ID, Health::Passed, message).with(details)
        }
        Err(error) => {
            let message = format!("{} does not answer: {error}", credential.base_url());
            Check::new(ID, Health::Failed, message)
                .kind(Kind::Network)
                .with(details)
                .next("check the network, the proxy and OPENAI_BASE_URL")
        }
    }
}

pub async fn issuer(context: &Context) -> Check {
    const ID: &str = "issuer";
    let issuer = match context.issuer() {
        Ok(issuer) => issuer,
        Err(error) => return Check::failed(ID, &Report::describe(&error)),
    };
    match issuer.reach(PATIENCE).await {
        Ok(()) => Check::new(ID, Health::Passed, format!("{} answers", issuer.base())),
        Err(error) => {
            let report = Report::describe(&error);
            let mut check = Check::failed(ID, &report);
            if context.environment.get("OPENAI_API_KEY").is_some() {
                check.status = Health::Warning;
            }
            check
        }
    }
}
