//! `pixir login`: sign in with ChatGPT, by browser or by code, and show the credential in use.
//!
//! Instructions go to stderr, also with `--quiet`: the sign-in cannot continue without them.

use std::pin::pin;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::base::error::{Kind, Report};
use crate::frontends::cli::Context;
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::terminal::keyboard::read_line;
use crate::frontends::cli::terminal::signals::Signals;
use crate::frontends::render::{Paper, Signalled, clean};
use crate::model::credential::{
    BrowserLogin, Chosen, CredentialError, CredentialKind, DEFAULT_PORTS, DeviceLogin, Issuer,
    Pace, Pasted, Store, Tokens, now,
};

/// Sign in with a ChatGPT subscription
#[derive(Debug, Default, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "pixir login [FLAGS]\n       pixir login status [FLAGS]",
    long_about = "Sign in with a ChatGPT subscription.\n\n\
        A browser opens, and comes back to this machine when you have signed in. Where it cannot come back, as \
        over SSH, paste the address it ends up at. Where there is no browser, or with --device-code, you \
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
    Status(StatusArgs),
}

/// Show which credential would be used, and why
#[derive(Debug, Args)]
#[command(long_about = "Show which credential would be used, and why.\n\n\
        Looks at this machine only and shows no secret. The exit code is 4 when there is none.")]
pub struct StatusArgs {}

pub fn login(args: &LoginArgs, context: &Context) -> Result<Exit, Report> {
    match &args.command {
        Some(LoginCommand::Status(_)) => status(context),
        None => in_runtime(sign_in(args.device_code, context)),
    }
}

async fn sign_in(by_code: bool, context: &Context) -> Result<Exit, Report> {
    let mut signals = Signals::listen();
    let issuer = context.issuer()?;
    let store = Store::new(&context.home()?);
    // Checked before the user signs in, not afterwards.
    store.check_writable()?;
    let counter = Counter { context, issuer: &issuer };
    let obtained = tokio::select! {
        obtained = counter.obtain(by_code) => obtained?,
        _ = signals.next() => {
            return Err(Report::new(Kind::Interrupted, "the sign-in was cancelled"));
        }
    };
    store_all(&obtained, &store, context).await?;
    let mut facts = facts(&obtained);
    facts["path"] = json!(store.path().to_string_lossy());
    let words = format!("Signed in with ChatGPT{}.\n", who(&obtained));
    let exit = context.told("login", &words, facts)?;
    for (name, words) in [
        ("OPENAI_BASE_URL", "OPENAI_BASE_URL is set: while it is, only the API key is used"),
        ("OPENAI_API_KEY", "OPENAI_API_KEY is set too; `--credential api-key` uses it"),
    ] {
        if context.environment.get(name).is_some_and(|value| !value.is_empty()) {
            context.notice(words);
        }
    }
    Ok(exit)
}

/// Signs in with a browser on this machine, without input from a terminal.
pub async fn in_browser(context: &Context) -> Result<(), Report> {
    let issuer = context.issuer()?;
    let store = Store::new(&context.home()?);
    store.check_writable()?;
    let counter = Counter { context, issuer: &issuer };
    let obtained = counter.unattended().await?;
    store_all(&obtained, &store, context).await
}

async fn store_all(obtained: &Tokens, store: &Store, context: &Context) -> Result<(), Report> {
    let (tokens, place) = (obtained.clone(), store.clone());
    let kept = tokio::task::spawn_blocking(move || keep(&place, &tokens)).await;
    let aside =
        kept.map_err(|error| Report::new(Kind::Internal, format!("nothing was stored: {error}")))??;
    if let Some(path) = aside {
        context.notice(&format!("the damaged token file is kept as {}", path.display()));
    }
    Ok(())
}

/// Stores the tokens; a damaged file is moved aside, never deleted.
fn keep(store: &Store, tokens: &Tokens) -> Result<Option<std::path::PathBuf>, CredentialError> {
    let lock = store.lock()?;
    let (before, aside) = match store.read() {
        Ok(before) => (before, None),
        Err(CredentialError::Damaged { .. }) => (None, Some(store.put_aside()?)),
        Err(error) => return Err(error),
    };
    store.write(tokens, before.as_ref())?;
    store.discard_drafts(&lock);
    Ok(aside)
}

/// One sign-in at an issuer.
struct Counter<'a> {
    context: &'a Context,
    issuer: &'a Issuer,
}

/// Whether a browser can be opened here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Screen {
    /// A browser can be opened on this machine.
    Here,
    /// The user may open the page on another machine, and paste the address it ends up at.
    Elsewhere,
    None,
}

impl Counter<'_> {
    async fn obtain(&self, by_code: bool) -> Result<Tokens, CredentialError> {
        let screen = screen(&|name| self.set(name).is_some());
        if by_code || screen == Screen::None {
            if !by_code {
                self.context
                    .notice("there is no browser here, so you get a code to type elsewhere");
            }
            return self.by_code().await;
        }
        match BrowserLogin::start(self.issuer, &self.ports()).await {
            Ok(login) => self.by_browser(login, screen).await,
            Err(error @ CredentialError::NoPort) => {
                self.context.notice(&format!("{error}, so you get a code to type"));
                self.by_code().await
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the redirect of the browser only; nothing can be pasted.
    async fn unattended(&self) -> Result<Tokens, CredentialError> {
        let login = BrowserLogin::start(self.issuer, &self.ports()).await?;
        let url = login.url().to_owned();
        show(&format!("Open this page in a browser:\n\n  {url}\n"));
        if screen(&|name| self.set(name).is_some()) == Screen::Here {
            open_browser(url);
        }
        let patience = self.deadline();
        match tokio::time::timeout(patience, login.redirected()).await {
            Ok(code) => login.finish(&code?).await,
            Err(_) => Err(CredentialError::TooLate { minutes: patience.as_secs() / 60 }),
        }
    }

    async fn by_browser(
        &self,
        login: BrowserLogin<'_>,
        screen: Screen,
    ) -> Result<Tokens, CredentialError> {
        let url = login.url().to_owned();
        let hint = match screen {
            Screen::Here => "Your browser opens this page; if it does not, open it yourself:",
            Screen::Elsewhere | Screen::None => "Open this page in a browser:",
        };
        show(&format!(
            "{hint}\n\n  {url}\n\nIf the browser cannot come back to this machine, paste the address it \
             ends up at here.\n"
        ));
        if screen == Screen::Here {
            open_browser(url);
        }
        self.wait(&login).await
    }

    /// Waits for the redirect of the browser or a pasted address, whichever gives tokens first. A wrong paste does not
    /// end the wait.
    async fn wait(&self, login: &BrowserLogin<'_>) -> Result<Tokens, CredentialError> {
        let patience = self.deadline();
        let deadline = Instant::now() + patience;
        let mut redirected = pin!(login.redirected());
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
                        match login.pasted(&text)? {
                            Pasted::Code(code) => match login.finish(&code).await {
                                Err(CredentialError::Refused { message, .. }) => show(&format!(
                                    "that was refused ({message}); paste the whole address\n"
                                )),
                                finished => return finished,
                            },
                            Pasted::Useless(_) if text.is_empty() => {}
                            Pasted::Useless(why) => show(&format!("{why}\n")),
                        }
                    }
                },
                () = tokio::time::sleep_until(deadline) => {
                    return Err(CredentialError::TooLate { minutes: patience.as_secs() / 60 });
                }
            }
        }
    }

    async fn by_code(&self) -> Result<Tokens, CredentialError> {
        let login = DeviceLogin::start(self.issuer).await?;
        show(&format!(
            "Open this page on any device and type the code:\n\n  {}\n  {}\n\nThe code is good for 15 \
             minutes. Never type a code that another person gave you.\n",
            login.page(),
            login.user_code
        ));
        let mut pace = Pace { deadline: self.deadline(), ..Pace::default() };
        if let Some(least) = self.test_setting("PIXIR_LOGIN_PACE_MS") {
            pace.least = Duration::from_millis(least);
            pace.step = pace.least * 5;
        }
        login.finish(pace).await
    }

    fn deadline(&self) -> Duration {
        let usual = Pace::default().deadline;
        self.test_setting("PIXIR_LOGIN_DEADLINE_MS").map_or(usual, Duration::from_millis)
    }

    /// The issuer allows two ports; tests, with their own issuer, may name others.
    fn ports(&self) -> Vec<u16> {
        let named = self.set("PIXIR_LOGIN_PORTS").filter(|_| self.issuer.is_loopback());
        let Some(named) = named else { return DEFAULT_PORTS.to_vec() };
        named.split(',').filter_map(|port| port.trim().parse().ok()).collect()
    }

    fn test_setting(&self, name: &str) -> Option<u64> {
        self.set(name).filter(|_| self.issuer.is_loopback())?.parse().ok()
    }

    fn set(&self, name: &str) -> Option<String> {
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
fn show(text: &str) {
    Paper::standard(Signalled::default()).activity(clean(text).as_bytes());
}

fn screen(is_set: &dyn Fn(&str) -> bool) -> Screen {
    if is_set("PIXIR_NO_BROWSER") || is_set("SSH_CONNECTION") || is_set("SSH_TTY") {
        return Screen::Elsewhere;
    }
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].into_iter().any(is_set);
    if has_display || cfg!(target_os = "macos") { Screen::Here } else { Screen::None }
}

fn status(context: &Context) -> Result<Exit, Report> {
    let config = context.settings(None)?.config;
    let chosen = context.chosen(&config);
    match chosen {
        Ok(chosen) => context.told("login", &told(&chosen), describe(&chosen)),
        Err(report) if context.flags.json => {
            let output = json!({ "credential": null, "reason": report.message });
            let exit = exit::of_report(&report);
            context.answer(&context.envelope("login", output)?.failing(Some(report)), "");
            Ok(exit)
        }
        Err(report) => Err(report),
    }
}

/// Text for a server that needs no key.
pub const NO_KEY: &str = "none, this server needs no key";

/// A credential as JSON, without its secret.
pub fn describe(chosen: &Chosen) -> Value {
    let credential = &chosen.credential;
    let mut answer = match credential.tokens() {
        Some(tokens) => facts(&tokens),
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

fn told(chosen: &Chosen) -> String {
    let credential = &chosen.credential;
    let what = match credential.tokens() {
        Some(tokens) => format!("ChatGPT{}", who(&tokens)),
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
        lines.push(format!("token:      {}", freshness(&tokens)));
    }
    lines.join("\n") + "\n"
}

/// How long the access token lasts, and what happens then.
pub fn freshness(tokens: &Tokens) -> String {
    let then = if tokens.refresh.is_some() {
        "renewed when needed"
    } else {
        "cannot be renewed, sign in again then"
    };
    match tokens.ends_at() {
        None => format!("no end is known, {then}"),
        Some(end) if end <= now() => format!("ended at {}, {then}", time(end)),
        Some(end) => format!("good until {}, {then}", time(end)),
    }
}

fn facts(tokens: &Tokens) -> Value {
    json!({
        "credential": CredentialKind::ChatGpt.name(),
        "account_id": tokens.account_id,
        "email": tokens.email(),
        "plan": tokens.plan(),
        "expires_at": tokens.ends_at().map(time),
        "renewable": tokens.refresh.is_some(),
    })
}

/// ` as who@example.org (plus)`, as far as it is known.
fn who(tokens: &Tokens) -> String {
    let email = tokens.email().map(|email| format!(" as {email}")).unwrap_or_default();
    let plan = tokens.plan().map(|plan| format!(" ({plan})")).unwrap_or_default();
    format!("{email}{plan}")
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_opened_only_where_somebody_sees_it() {
        for (set, expected) in [
            (&["DISPLAY"][..], Screen::Here),
            (&["WAYLAND_DISPLAY"], Screen::Here),
            (&["DISPLAY", "PIXIR_NO_BROWSER"], Screen::Elsewhere),
            (&["DISPLAY", "SSH_CONNECTION"], Screen::Elsewhere),
            (&["SSH_TTY"], Screen::Elsewhere),
            (&[], Screen::None),
        ] {
            assert_eq!(screen(&|name| set.contains(&name)), expected, "{set:?}");
        }
    }
}
