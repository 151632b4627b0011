//! `pixir trust` and `pixir untrust`: may the files of this Workspace do more than strangers may?

use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use super::exit::Exit;
use super::keyboard::{forget_typed, read_line};
use super::{Context, say};
use crate::config::{self, Wanted};
use crate::error::{Kind, Report};
use crate::paths;
use crate::render::{Envelope, Paper, Signalled, clean, on_one_line};
use crate::trust::Trust;

/// Let the settings of this Workspace do more than a stranger's may
#[derive(Debug, Args)]
#[command(long_about = "Let the settings of this Workspace do more than a stranger's may.\n\n\
        A Workspace may bring a .pixir/config.json. A few of its keys always count; those that could \
        widen permissions, or change endpoint, credential or sandbox, count only when you trust the \
        file. Trust is for this path and this content: a file that changed is asked about again. It \
        is given by a person on a terminal, and by no flag.")]
pub struct TrustArgs {}

/// Take back the trust in the settings of this Workspace
#[derive(Debug, Args)]
pub struct UntrustArgs {}

pub fn trust(_: &TrustArgs, context: &Context) -> Result<Exit, Report> {
    let folder = context.folder()?;
    let file = paths::workspace_config(&folder);
    let Some(wanted) = config::wanted(&folder, &context.user_settings()?) else {
        let words = format!("nothing in {} wants trust\n", folder.display());
        return Ok(context.told(
            "trust",
            &words,
            json!({ "file": file, "wanted": [], "trusted": false }),
        ));
    };
    let trust = Trust::new(&context.home()?);
    let before = trust.of(&wanted.file, &wanted.digest).map_err(|error| Report::from(&error))?;
    let trusted = match before {
        Some(true) => true,
        _ if !context.can_ask() => {
            return Err(Report::new(Kind::PermissionDenied, "trust is given on a terminal")
                .with_next_actions(vec!["run `pixir trust` in a terminal".to_owned()]));
        }
        _ => {
            let trusted = asked(&wanted);
            trust
                .say(&wanted.file, &wanted.digest, trusted)
                .map_err(|error| Report::from(&error))?;
            trusted
        }
    };
    let word = if trusted { "trusted" } else { "not trusted" };
    let words = format!("{} is {word}\n", clean(&wanted.file.to_string_lossy()));
    let output = json!({ "file": file, "wanted": listed(&wanted), "trusted": trusted });
    Ok(context.told("trust", &words, output))
}

pub fn untrust(_: &UntrustArgs, context: &Context) -> Result<Exit, Report> {
    let file = paths::workspace_config(&context.folder()?);
    let trust = Trust::new(&context.home()?);
    let was_trusted = trust.forget(&file).map_err(|error| Report::from(&error))?;
    let word = if was_trusted { "is no longer trusted" } else { "was not trusted" };
    let words = format!("{} {word}\n", clean(&file.to_string_lossy()));
    Ok(context.told("untrust", &words, json!({ "file": file, "was_trusted": was_trusted })))
}

impl Context {
    /// The digest of the Workspace's settings, if the user trusts them as they are. A Ledger that
    /// cannot be read trusts nothing.
    pub fn trusted(&self, workspace: &Path) -> Option<String> {
        let wanted = config::wanted(workspace, &self.user_settings().ok()?)?;
        let trust = Trust::new(&self.home().ok()?);
        let word = trust
            .of(&wanted.file, &wanted.digest)
            .inspect_err(|error| tracing::warn!(%error, "nothing is trusted"));
        word.ok().flatten().filter(|trusted| *trusted).map(|_| wanted.digest)
    }

    /// Asks once about settings that want trust, where somebody can answer.
    pub fn ask_for_trust(&self, workspace: &Path) -> Result<(), Report> {
        if !self.can_ask() {
            return Ok(());
        }
        let Some(wanted) = config::wanted(workspace, &self.user_settings()?) else { return Ok(()) };
        let trust = Trust::new(&self.home()?);
        // A Ledger that cannot be read is told where it is used.
        let Ok(None) = trust.of(&wanted.file, &wanted.digest) else { return Ok(()) };
        let trusted = asked(&wanted);
        trust.say(&wanted.file, &wanted.digest, trusted).map_err(|error| Report::from(&error))
    }

    /// Says something on stdout, as words or as an envelope.
    pub fn told(&self, kind: &'static str, words: &str, output: Value) -> Exit {
        if self.flags.json {
            say(&Envelope::success(kind, output, self.started.elapsed()).line());
        } else {
            say(words);
        }
        Exit::Answered
    }
}

/// Shows what is wanted, and asks; anything but a yes is a no.
fn asked(wanted: &Wanted) -> bool {
    let mut text = format!(
        "\n? {} wants settings that only you may allow:\n",
        on_one_line(&wanted.file.to_string_lossy())
    );
    for (name, value) in &wanted.settings {
        text.extend(["  ", &on_one_line(name), " = ", &on_one_line(value), "\n"]);
    }
    text.push_str("  Trust this file as it is now? [y] yes  [n] no\n  › ");
    forget_typed();
    Paper::standard(Signalled::default()).activity(text.as_bytes());
    let answer = read_line().unwrap_or_default().to_lowercase();
    matches!(answer.as_str(), "y" | "yes")
}

fn listed(wanted: &Wanted) -> Vec<Value> {
    let setting = |(name, value): &(String, String)| json!({ "key": name, "value": value });
    wanted.settings.iter().map(setting).collect()
}
