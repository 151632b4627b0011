//! `pixir trust` and `pixir untrust`: trust in settings, MCP servers, Skills and roles of a Workspace.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::base::error::{Kind, Report};
use crate::base::paths;
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::terminal::keyboard::says_yes;
use crate::frontends::render::on_one_line;
use crate::settings::config;
use crate::settings::config::Wanted;
use crate::settings::trust::Trust;

/// Trust the settings, MCP servers, skills and roles of this Workspace
#[derive(Debug, Args)]
#[command(long_about = "Trust the settings, MCP servers, skills and roles of this Workspace.\n\n\
        A Workspace may have a .pixir/config.json. A few of its keys always count; those that could \
        widen permissions, or change endpoint, credential or sandbox, count only when you trust the \
        file. It may also have an .mcp.json with MCP servers, none of which is started or called \
        before you trust that file. Its skills, prompts and roles are untrusted text until you trust \
        each. Trust covers this path and this content: a changed file is \
        asked about again. It can only be given on a terminal, not by a flag.")]
pub struct TrustArgs {}

/// Revoke trust in the files of this Workspace
#[derive(Debug, Args)]
pub struct UntrustArgs {}

pub fn trust(_: &TrustArgs, context: &Context) -> Result<Exit, Report> {
    let folder = context.folder()?;
    let file = paths::workspace_config(&folder);
    let mut all = config::wanted(&folder, &context.user_settings()?);
    all.extend(context.strangers(&folder)?);
    if all.is_empty() {
        let words = format!("nothing in {} needs trust\n", folder.display());
        let file = file.to_string_lossy();
        let output = json!({ "file": file, "wanted": [], "trusted": false, "files": [] });
        return context.told("trust", &words, output);
    }
    let trust = Trust::new(&context.home()?);
    let (mut words, mut files) = (String::new(), Vec::new());
    for wanted in &all {
        let is_trusted = settled(wanted, &trust, context)?;
        let word = if is_trusted { "trusted" } else { "not trusted" };
        words.extend([&wanted.file.to_string_lossy(), " is ", word, "\n"]);
        let listed = listed(wanted);
        let file = wanted.file.to_string_lossy();
        files.push(json!({ "file": file, "wanted": listed, "trusted": is_trusted }));
    }
    let is_trusted = files.iter().all(|file| file["trusted"] == true);
    let output = json!({
        "file": file.to_string_lossy(),
        "wanted": all.iter().flat_map(listed).collect::<Vec<_>>(),
        "trusted": is_trusted,
        "files": files,
    });
    context.told("trust", &words, output)
}

/// Whether the user trusts a file; asks unless they do already.
fn settled(wanted: &Wanted, trust: &Trust, context: &Context) -> Result<bool, Report> {
    let before = trust.of(&wanted.file, &wanted.digest)?;
    if before == Some(true) {
        return Ok(true);
    }
    if !context.can_ask() {
        return Err(Report::new(Kind::PermissionDenied, "trust is given on a terminal")
            .with_next_actions(vec!["run `pixir trust` in a terminal".to_owned()]));
    }
    let trusted = asked(wanted);
    trust.say(&wanted.file, &wanted.digest, trusted)?;
    Ok(trusted)
}

pub fn untrust(_: &UntrustArgs, context: &Context) -> Result<Exit, Report> {
    let folder = context.folder()?;
    let trust = Trust::new(&context.home()?);
    let (mut told, mut is_any) = (String::new(), false);
    let file = paths::workspace_config(&folder);
    let (skills, roster) = (context.skills(&folder)?, context.roster(&folder)?);
    let words = trust.words().into_iter().map(|word| word.file);
    let strange: Vec<PathBuf> =
        words.filter(|file| skills.may_hold(file) || roster.may_hold(file)).collect();
    let servers = paths::workspace_servers(&folder);
    for file in [&file, &servers].into_iter().chain(&strange) {
        let was_trusted = trust.forget(file)?;
        is_any |= was_trusted;
        if was_trusted {
            told.extend([&file.to_string_lossy(), " is no longer trusted\n"]);
        }
    }
    if !is_any {
        told = format!("{} was not trusted\n", file.display());
    }
    let output = json!({ "file": file.to_string_lossy(), "was_trusted": is_any });
    context.told("untrust", &told, output)
}

impl Context {
    /// The files of the Workspace that the user trusts with their current content. An unreadable trust file trusts
    /// nothing.
    pub fn trusted(&self, workspace: &Path) -> Vec<Wanted> {
        let (Ok(config), Ok(home)) = (self.user_settings(), self.home()) else { return Vec::new() };
        let mut all = config::wanted(workspace, &config);
        let trust = Trust::new(&home);
        all.retain(|wanted| {
            let word = trust.of(&wanted.file, &wanted.digest);
            let word = word.inspect_err(|error| tracing::warn!(%error, "nothing is trusted"));
            word.is_ok_and(|word| word == Some(true))
        });
        all
    }

    /// Skills, prompts and roles of the project, which are text until the user trusts them.
    fn strangers(&self, folder: &Path) -> Result<Vec<Wanted>, Report> {
        let skills = self.skills(folder)?;
        let mut wanted = Vec::new();
        for skill in skills.all().all.iter().filter(|skill| skill.is_strange) {
            let mut settings = vec![
                ("skill".to_owned(), skill.name().to_owned()),
                ("description".to_owned(), skill.front.description.clone()),
                ("instructions".to_owned(), format!("{} bytes of text", skill.text.len())),
            ];
            for source in &skill.front.sources {
                settings.push((format!("context.{}", source.id), source.what.to_string()));
            }
            let (file, digest) = (skill.path.clone(), skill.digest.clone());
            wanted.push(Wanted { file, digest, settings });
        }
        for prompt in skills.prompts().all.iter().filter(|prompt| prompt.is_strange) {
            let settings = vec![
                ("prompt".to_owned(), format!("/{}", prompt.name)),
                ("description".to_owned(), prompt.description.clone()),
            ];
            let (file, digest) = (prompt.path.clone(), prompt.digest.clone());
            wanted.push(Wanted { file, digest, settings });
        }
        for entry in self.roster(folder)?.all().all.iter().filter(|entry| entry.is_strange) {
            let custom = &entry.written.custom;
            let mut settings = vec![
                ("role".to_owned(), entry.name().to_owned()),
                ("description".to_owned(), custom.description.clone()),
                ("developer_instructions".to_owned(), entry.written.instructions.clone()),
            ];
            settings.extend(custom.model.clone().map(|model| ("model".to_owned(), model)));
            let (file, digest) = (entry.path.clone(), entry.digest.clone());
            wanted.push(Wanted { file, digest, settings });
        }
        Ok(wanted)
    }

    /// Asks once about each file that needs trust, if a person can answer.
    pub fn ask_for_trust(&self, workspace: &Path) -> Result<(), Report> {
        if !self.can_ask() {
            return Ok(());
        }
        let all = config::wanted(workspace, &self.user_settings()?);
        let trust = Trust::new(&self.home()?);
        for wanted in all {
            // An unreadable trust file is reported where it is used.
            let Ok(None) = trust.of(&wanted.file, &wanted.digest) else { continue };
            let trusted = asked(&wanted);
            trust.say(&wanted.file, &wanted.digest, trusted)?;
        }
        Ok(())
    }
}

/// Shows what a file would change, and asks; any answer but yes is a no.
fn asked(wanted: &Wanted) -> bool {
    let mut text = format!(
        "\n? {} wants settings that only you may allow:\n",
        on_one_line(&wanted.file.to_string_lossy())
    );
    for (name, value) in &wanted.settings {
        text.extend(["  ", &on_one_line(name), " = ", &on_one_line(value), "\n"]);
    }
    text.push_str("  Trust this file as it is now? [y] yes  [n] no\n  › ");
    says_yes(&text)
}

fn listed(wanted: &Wanted) -> Vec<Value> {
    let setting = |(name, value): &(String, String)| json!({ "key": name, "value": value });
    wanted.settings.iter().map(setting).collect()
}
