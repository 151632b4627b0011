//! Checks whether the endpoints answer; run only with `--online`, and free of charge.

use std::time::Duration;

use http::HeaderMap;
use serde_json::json;

use super::{CheckStatus, DoctorCheck};
use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
use crate::host::http::{HttpError, HttpSettings};
use crate::model::credential::ChosenCredential;

/// Time limit for an endpoint to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a GET without credential to the model's endpoint, which costs nothing.
pub async fn check_endpoint(chosen: Option<&ChosenCredential>, http: HttpSettings) -> DoctorCheck {
    const ID: &str = "endpoint";
    let Some(chosen) = chosen else {
        return DoctorCheck::new(
            ID,
            CheckStatus::Warning,
            "not reached, because there is no credential",
        );
    };
    let credential = &chosen.credential;
    let client = http.client(credential.base_url().to_owned(), CONNECT_TIMEOUT);
    let details = json!({ "url": credential.base_url() });
    // Sent without the credential: only reachability is checked.
    let reached = tokio::time::timeout(CONNECT_TIMEOUT, client.get("", HeaderMap::new())).await;
    let reached = reached.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
        Err(HttpError::Broken(message))
    });
    match reached {
        Ok(_) => {
            let message = format!("{} answers", credential.base_url());
            DoctorCheck::new(ID, CheckStatus::Passed, message).with_details(details)
        }
        Err(error) => {
            let message = format!("{} does not answer: {error}", credential.base_url());
            DoctorCheck::new(ID, CheckStatus::Failed, message)
                .with_kind(Kind::Network)
                .with_details(details)
                .with_next_action("check the network, the proxy and OPENAI_BASE_URL")
        }
    }
}

pub async fn check_issuer(context: &CliContext) -> DoctorCheck {
    const ID: &str = "issuer";
    let issuer = match context.sign_in_issuer() {
        Ok(issuer) => issuer,
        Err(error) => return DoctorCheck::from_report(ID, &Report::describe(&error)),
    };
    match issuer.check_reachable(CONNECT_TIMEOUT).await {
        Ok(()) => DoctorCheck::new(ID, CheckStatus::Passed, format!("{} answers", issuer.base())),
        Err(error) => {
            let report = Report::describe(&error);
            let mut check = DoctorCheck::from_report(ID, &report);
            if context.environment.get("OPENAI_API_KEY").is_some() {
                check.status = CheckStatus::Warning;
            }
            check
        }
    }
}
