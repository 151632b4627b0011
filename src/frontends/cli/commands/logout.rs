//! `pixir logout`: delete the stored tokens, and revoke them at the issuer.

use clap::Args;
use serde_json::json;

use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::model::credential::{CredentialError, TokenStore};

/// Sign out of ChatGPT on this machine
#[derive(Debug, Args)]
#[command(long_about = "Sign out of ChatGPT on this machine.\n\n\
        The stored tokens are deleted, whatever happens next; then the issuer is asked to revoke them, \
        for at most ten seconds. An API key in the environment is not touched.")]
pub struct LogoutArgs {}

pub fn logout(_: &LogoutArgs, context: &CliContext) -> Result<Exit, Report> {
    let (was_signed_in, revoked) = in_runtime(sign_out(context))?;
    let words = if was_signed_in { "Signed out.\n" } else { "You were not signed in.\n" };
    let output = json!({ "was_signed_in": was_signed_in, "revoked": revoked });
    let exit = context.print_result("logout", words, output)?;
    if context.environment.get("OPENAI_API_KEY").is_some_and(|key| !key.is_empty()) {
        context.print_notice("OPENAI_API_KEY is still set, and will be used");
    }
    Ok(exit)
}

/// Deletes the tokens. Returns whether there were any, and whether the issuer has revoked them.
pub async fn sign_out(context: &CliContext) -> Result<(bool, bool), Report> {
    let store = TokenStore::new(&context.home()?);
    let forgotten = tokio::task::spawn_blocking(move || delete_tokens(&store)).await;
    let (was_signed_in, tokens) = forgotten
        .map_err(|error| Report::new(Kind::Internal, format!("not signed out: {error}")))??;
    let Some(tokens) = tokens else { return Ok((was_signed_in, false)) };
    let revoked = match context.sign_in_issuer() {
        Ok(issuer) => issuer.revoke_tokens(&tokens).await.is_ok(),
        Err(_) => false,
    };
    if !revoked {
        context.print_notice(
            "the tokens could not be revoked at the sign-in service; they expire by themselves",
        );
    }
    Ok((was_signed_in, revoked))
}

type DeletedTokens = (bool, Option<crate::model::credential::SubscriptionTokens>);

/// Deletes the stored tokens and returns them; called before they are revoked, so that a kill leaves none behind.
fn delete_tokens(store: &TokenStore) -> Result<DeletedTokens, CredentialError> {
    // Without the folder there is nothing to lock, and it is not created.
    let folder = store.path().parent();
    let lock = folder.filter(|folder| folder.exists()).map(|_| store.lock());
    // A file that cannot be understood is deleted too, because that was asked for.
    let tokens = store.read().ok().flatten().map(|stored| stored.tokens);
    // Temporary files of a killed renewal are deleted too.
    if let Some(Ok(lock)) = &lock {
        store.discard_drafts(lock);
    }
    let was_signed_in = store.clear()?;
    match lock {
        // Temporary files of a killed renewal may still be there.
        Some(Err(error @ CredentialError::Unsafe(_))) => Err(error),
        _ => Ok((was_signed_in, tokens)),
    }
}
