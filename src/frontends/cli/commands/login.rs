//! `pixir login`: sign in with ChatGPT, by browser or by code, and show the credential in use.
//!
//! Instructions go to stderr, also with `--quiet`: the sign-in cannot continue without them.

use std::pin::pin;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::base::error::{Kind, Report};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::terminal::keyboard::read_line;
use crate::frontends::render::{SignalCount, StdioOutput, clean};
use crate::frontends::signals::SignalListener;
use crate::model::credential::{
    BrowserLogin, ChosenCredential, CredentialError, CredentialKind, DEFAULT_PORTS, DeviceLogin,
    Issuer, PastedCode, PollTiming, SubscriptionTokens, TokenStore, unix_now,
};

/// Sign in with a ChatGPT subscription
#[derive(Debug, Default, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "pixir login [OPTIONS]\n       pixir login status [OPTIONS]",
    long_about = "Sign in with a ChatGPT subscription.\n\n\
        A browser opens and is redirected to this machine after the sign-in. Where the redirect does not arrive, as \
        over SSH, paste the address that the browser shows at the end. Where there is no browser, or with --device-code, you \
        type a short code on any other device.\n\n\
        The tokens are stored in ~/.pixir/auth.json, readable only by you. They are sent to OpenAI's own endpoints \
        and nowhere else. An API key needs no sign-in: set OPENAI_API_KEY.",
    after_long_help = "Examples:\n  pixir login\n  pixir login --device-code\n  pixir login status --json"
)]
pub struct LoginArgs {
    #[command(subcommand)]
    command: Option<LoginCommand>,
    /// Show a code to type on another device instead of opening a browser
    #[arg(long)]
    device_code: bool,
}

#[derive(Debug, Subcommand)]
enum LoginCommand {
    Status(LoginStatusArgs),
}

/// Show which credential would be used, and why
#[derive(Debug, Args)]
#[command(long_about = "Show which credential would be used, and why.\n\n\
        Looks at this machine only and shows no secret. The exit code is 4 when there is none.")]
pub struct LoginStatusArgs {}

pub fn login(args: &LoginArgs, context: &CliContext) -> Result<Exit, Report> {
    match &args.command {
        Some(LoginCommand::Status(_)) => print_status(context),
        None => in_runtime(sign_in(args.device_code, context)),
    }
}

async fn sign_in(by_code: bool, context: &CliContext) -> Result<Exit, Report> {
    let mut signals = SignalListener::listen();
    let issuer = context.sign_in_issuer()?;
    let store = TokenStore::new(&context.home()?);
    // Checked before the user signs in, not afterwards.
    store.check_writable()?;
    let flow = SignInFlow { context, issuer: &issuer };
    let obtained = tokio::select! {
        obtained = flow.obtain_tokens(by_code) => obtained?,
        _ = signals.next() => {
            return Err(Report::new(Kind::Interrupted, "the sign-in was cancelled"));
        }
    };
    store_tokens(&obtained, &store, context).await?;
    let mut facts = token_json(&obtained);
    facts["path"] = json!(store.path().to_string_lossy());
    let words = format!("Signed in with ChatGPT{}.\n", account_text(&obtained));
    let exit = context.print_result("login", &words, facts)?;
    for (name, words) in [
        ("OPENAI_BASE_URL", "OPENAI_BASE_URL is set: while it is, only the API key is used"),
        ("OPENAI_API_KEY", "OPENAI_API_KEY is set too; `--credential api-key` uses it"),
    ] {
        if context.environment.get(name).is_some_and(|value| !value.is_empty()) {
            context.print_notice(words);
        }
    }
    Ok(exit)
}

/// Signs in with a browser on this machine, without input from a terminal.
pub async fn sign_in_with_browser(context: &CliContext) -> Result<(), Report> {
    let issuer = context.sign_in_issuer()?;
    let store = TokenStore::new(&context.home()?);
    store.check_writable()?;
    let flow = SignInFlow { context, issuer: &issuer };
    let obtained = flow.obtain_unattended().await?;
    store_tokens(&obtained, &store, context).await
}

async fn store_tokens(
    obtained: &SubscriptionTokens,
    store: &TokenStore,
    context: &CliContext,
) -> Result<(), Report> {
    let (tokens, place) = (obtained.clone(), store.clone());
    let kept = tokio::task::spawn_blocking(move || write_tokens(&place, &tokens)).await;
    let aside =
        kept.map_err(|error| Report::new(Kind::Internal, format!("nothing was stored: {error}")))??;
    if let Some(path) = aside {
        context.print_notice(&format!("the damaged token file is kept as {}", path.display()));
    }
    Ok(())
}

/// Stores the tokens; a damaged file is moved aside, never deleted.
fn write_tokens(
    store: &TokenStore,
    tokens: &SubscriptionTokens,
) -> Result<Option<std::path::PathBuf>, CredentialError> {
    let lock = store.lock()?;
    let (before, aside) = match store.read() {
        Ok(before) => (before, None),
        Err(CredentialError::Damaged { .. }) => (None, Some(store.move_damaged_aside()?)),
        Err(error) => return Err(error),
    };
    store.write(tokens, before.as_ref())?;
    store.discard_drafts(&lock);
    Ok(aside)
}

/// One sign-in at an issuer.
struct SignInFlow<'a> {
    context: &'a CliContext,
    issuer: &'a Issuer,
}

/// Whether a browser can be opened here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BrowserAccess {
    /// A browser can be opened on this machine.
    Local,
    /// The user may open the page on another machine, and paste the address it ends up at.
    Remote,
    None,
}

impl SignInFlow<'_> {
    async fn obtain_tokens(&self, by_code: bool) -> Result<SubscriptionTokens, CredentialError> {
        let screen = browser_access(&|name| self.variable(name).is_some());
        if by_code || screen == BrowserAccess::None {
            if !by_code {
                self.context
                    .print_notice("there is no browser here, so you get a code to type elsewhere");
            }
            return self.obtain_by_device_code().await;
        }
        match BrowserLogin::start(self.issuer, &self.ports()).await {
            Ok(login) => self.obtain_by_browser(login, screen).await,
            Err(error @ CredentialError::NoPort) => {
                self.context.print_notice(&format!("{error}, so you get a code to type"));
                self.obtain_by_device_code().await
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the redirect of the browser only; nothing can be pasted.
    async fn obtain_unattended(&self) -> Result<SubscriptionTokens, CredentialError> {
        let login = BrowserLogin::start(self.issuer, &self.ports()).await?;
        let url = login.url().to_owned();
        print_instruction(&format!("Open this page in a browser:\n\n  {url}\n"));
        if browser_access(&|name| self.variable(name).is_some()) == BrowserAccess::Local {
            open_browser(url);
        }
        let timeout = self.deadline();
        match tokio::time::timeout(timeout, login.wait_for_code()).await {
            Ok(code) => login.finish(&code?).await,
            Err(_) => Err(CredentialError::TooLate { minutes: timeout.as_secs() / 60 }),
        }
    }

    async fn obtain_by_browser(
        &self,
        login: BrowserLogin<'_>,
        screen: BrowserAccess,
    ) -> Result<SubscriptionTokens, CredentialError> {
        let url = login.url().to_owned();
        let hint = match screen {
            BrowserAccess::Local => {
                "Your browser opens this page; if it does not, open it yourself:"
            }
            BrowserAccess::Remote | BrowserAccess::None => "Open this page in a browser:",
        };
        print_instruction(&format!(
            "{hint}\n\n  {url}\n\nIf the browser cannot come back to this machine, paste the address it \
             ends up at here.\n"
        ));
        if screen == BrowserAccess::Local {
            open_browser(url);
        }
        self.wait_for_code(&login).await
    }

    /// Waits for the redirect of the browser or a pasted address, whichever gives tokens first. A wrong paste does not
    /// end the wait.
    async fn wait_for_code(
        &self,
        login: &BrowserLogin<'_>,
    ) -> Result<SubscriptionTokens, CredentialError> {
        let timeout = self.deadline();
        let deadline = Instant::now() + timeout;
        let mut redirected = pin!(login.wait_for_code());
        let mut line = tokio::task::spawn_blocking(read_line);
        let mut is_listening = true;
        loop {
            tokio::select! {
                biased;
                code = &mut redirected => return login.finish(&code?).await,
                pasted = &mut line, if is_listening => match pasted.ok().flatten() {
                    None => is_listening = false,
                    Some(text) => {
                        line = tokio::task::spawn_blocking(read_line);
                        match login.parse_pasted(&text)? {
                            PastedCode::Code(code) => match login.finish(&code).await {
                                Err(CredentialError::Refused { message, .. }) => print_instruction(&format!(
                                    "that was refused ({message}); paste the whole address\n"
                                )),
                                finished => return finished,
                            },
                            PastedCode::Invalid(_) if text.is_empty() => {}
                            PastedCode::Invalid(why) => print_instruction(&format!("{why}\n")),
                        }
                    }
                },
                () = tokio::time::sleep_until(deadline) => {
                    return Err(CredentialError::TooLate { minutes: timeout.as_secs() / 60 });
                }
            }
        }
    }

    async fn obtain_by_device_code(&self) -> Result<SubscriptionTokens, CredentialError> {
        let login = DeviceLogin::start(self.issuer).await?;
        print_instruction(&format!(
            "Open this page on any device and type the code:\n\n  {}\n  {}\n\nThe code is good for 15 \
             minutes. Never type a code that another person gave you.\n",
            login.page_url(),
            login.user_code
        ));
        let mut pace = PollTiming { deadline: self.deadline(), ..PollTiming::default() };
        if let Some(least) = self.test_setting("PIXIR_LOGIN_PACE_MS") {
            pace.min_interval = Duration::from_millis(least);
            pace.slow_down_step = pace.min_interval * 5;
        }
        login.finish(pace).await
    }

    fn deadline(&self) -> Duration {
        let usual = PollTiming::default().deadline;
        self.test_setting("PIXIR_LOGIN_DEADLINE_MS").map_or(usual, Duration::from_millis)
    }

    /// The issuer allows two ports; tests, with their own issuer, may name others.
    fn ports(&self) -> Vec<u16> {
        let named = self.variable("PIXIR_LOGIN_PORTS").filter(|_| self.issuer.is_loopback());
        let Some(named) = named else { return DEFAULT_PORTS.to_vec() };
        named.split(',').filter_map(|port| port.trim().parse().ok()).collect()
    }

    fn test_setting(&self, name: &str) -> Option<u64> {
        self.variable(name).filter(|_| self.issuer.is_loopback())?.parse().ok()
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.context.environment.text(name).filter(|value| !value.is_empty())
    }
}

/// Opens a browser without waiting for it: some stay in the foreground until they are closed.
fn open_browser(url: String) {
    drop(tokio::task::spawn_blocking(move || {
        if webbrowser::open(&url).is_err() {
            tracing::debug!("no browser was opened");
        }
    }));
}

/// Prints an instruction on stderr, also with `--quiet`.
fn print_instruction(text: &str) {
    StdioOutput::stdio(SignalCount::default()).write_activity(clean(text).as_bytes());
}

fn browser_access(is_set: &dyn Fn(&str) -> bool) -> BrowserAccess {
    if is_set("PIXIR_NO_BROWSER") || is_set("SSH_CONNECTION") || is_set("SSH_TTY") {
        return BrowserAccess::Remote;
    }
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].into_iter().any(is_set);
    if has_display || cfg!(target_os = "macos") {
        BrowserAccess::Local
    } else {
        BrowserAccess::None
    }
}

fn print_status(context: &CliContext) -> Result<Exit, Report> {
    let config = context.load_settings(None)?.config;
    let chosen = context.choose_credential(&config);
    match chosen {
        Ok(chosen) => {
            context.print_result("login", &credential_text(&chosen), credential_json(&chosen))
        }
        Err(report) if context.flags.json => {
            let output = json!({ "credential": null, "reason": report.message });
            let exit = exit::exit_for_report(&report);
            context.print_envelope(
                &context.success_envelope("login", output)?.with_error(Some(report)),
                "",
            );
            Ok(exit)
        }
        Err(report) => Err(report),
    }
}

/// Text for a server that needs no key.
pub const NO_KEY: &str = "none, this server needs no key";

/// A credential as JSON, without its secret.
pub fn credential_json(chosen: &ChosenCredential) -> Value {
    let credential = &chosen.credential;
    let mut answer = match credential.tokens() {
        Some(tokens) => token_json(&tokens),
        None => json!({ "credential": CredentialKind::ApiKey.name() }),
    };
    if let Some(server) = &chosen.server {
        answer["provider"] = json!(server);
    }
    if credential.key().is_some() {
        answer["variable"] = json!(chosen.variable);
    }
    answer["reason"] = json!(chosen.reason);
    answer["endpoint"] = json!(credential.base_url());
    answer
}

fn credential_text(chosen: &ChosenCredential) -> String {
    let credential = &chosen.credential;
    let what = match credential.tokens() {
        Some(tokens) => format!("ChatGPT{}", account_text(&tokens)),
        None => match &chosen.variable {
            Some(variable) if credential.key().is_some() => format!("API key from {variable}"),
            _ => NO_KEY.to_owned(),
        },
    };
    let mut lines = vec![
        format!("credential: {what}"),
        format!("because:    {}", chosen.reason),
        format!("endpoint:   {}", credential.base_url()),
    ];
    if let Some(tokens) = credential.tokens() {
        lines.push(format!("account:    {}", tokens.account_id));
        lines.push(format!("token:      {}", token_lifetime(&tokens)));
    }
    lines.join("\n") + "\n"
}

/// How long the access token lasts, and what happens then.
pub fn token_lifetime(tokens: &SubscriptionTokens) -> String {
    let then = if tokens.refresh.is_some() {
        "renewed when needed"
    } else {
        "cannot be renewed, sign in again then"
    };
    match tokens.ends_at() {
        None => format!("no end is known, {then}"),
        Some(end) if end <= unix_now() => format!("ended at {}, {then}", display_time(end)),
        Some(end) => format!("good until {}, {then}", display_time(end)),
    }
}

fn token_json(tokens: &SubscriptionTokens) -> Value {
    json!({
        "credential": CredentialKind::ChatGpt.name(),
        "account_id": tokens.account_id,
        "email": tokens.email(),
        "plan": tokens.plan(),
        "expires_at": tokens.ends_at().map(display_time),
        "renewable": tokens.refresh.is_some(),
    })
}

/// Account and plan, such as ` as who@example.org (plus)`, as far as they are known.
fn account_text(tokens: &SubscriptionTokens) -> String {
    let email = tokens.email().map(|email| format!(" as {email}")).unwrap_or_default();
    let plan = tokens.plan().map(|plan| format!(" ({plan})")).unwrap_or_default();
    format!("{email}{plan}")
}

fn display_time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_opened_only_with_a_local_display() {
        for (set, expected) in [
            (&["DISPLAY"][..], BrowserAccess::Local),
            (&["WAYLAND_DISPLAY"], BrowserAccess::Local),
            (&["DISPLAY", "PIXIR_NO_BROWSER"], BrowserAccess::Remote),
            (&["DISPLAY", "SSH_CONNECTION"], BrowserAccess::Remote),
            (&["SSH_TTY"], BrowserAccess::Remote),
            (&[], BrowserAccess::None),
        ] {
            assert_eq!(browser_access(&|name| set.contains(&name)), expected, "{set:?}");
        }
    }
}
