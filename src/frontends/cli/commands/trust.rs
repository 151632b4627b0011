//! `pixir trust` and `pixir untrust`: trust in settings, MCP servers, Skills and roles of a Workspace.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::base::error::{Kind, Report};
use crate::base::paths;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::terminal::keyboard::ask_yes_no;
use crate::frontends::render::on_one_line;
use crate::settings::config;
use crate::settings::config::TrustRequest;
use crate::settings::trust::TrustStore;

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

pub fn trust(_: &TrustArgs, context: &CliContext) -> Result<Exit, Report> {
    let folder = context.current_folder()?;
    let file = paths::workspace_config_file(&folder);
    let mut all = config::trust_requests(&folder, &context.load_user_settings()?);
    all.extend(context.untrusted_files(&folder)?);
    if all.is_empty() {
        let words = format!("nothing in {} needs trust\n", folder.display());
        let file = file.to_string_lossy();
        let output = json!({ "file": file, "wanted": [], "trusted": false, "files": [] });
        return context.print_result("trust", &words, output);
    }
    let trust = TrustStore::new(&context.home()?);
    let (mut words, mut files) = (String::new(), Vec::new());
    for wanted in &all {
        let is_trusted = decide_trust(wanted, &trust, context)?;
        let word = if is_trusted { "trusted" } else { "not trusted" };
        words.extend([&wanted.file.to_string_lossy(), " is ", word, "\n"]);
        let listed = wanted_settings_json(wanted);
        let file = wanted.file.to_string_lossy();
        files.push(json!({ "file": file, "wanted": listed, "trusted": is_trusted }));
    }
    let is_trusted = files.iter().all(|file| file["trusted"] == true);
    let output = json!({
        "file": file.to_string_lossy(),
        "wanted": all.iter().flat_map(wanted_settings_json).collect::<Vec<_>>(),
        "trusted": is_trusted,
        "files": files,
    });
    context.print_result("trust", &words, output)
}

/// Whether the user trusts a file; asks unless they do already.
fn decide_trust(
    wanted: &TrustRequest,
    trust: &TrustStore,
    context: &CliContext,
) -> Result<bool, Report> {
    let before = trust.find_decision(&wanted.file, &wanted.digest)?;
    if before == Some(true) {
        return Ok(true);
    }
    if !context.can_ask() {
        return Err(Report::new(Kind::PermissionDenied, "trust is given on a terminal")
            .with_next_actions(vec!["run `pixir trust` in a terminal".to_owned()]));
    }
    let trusted = ask_trust(wanted);
    trust.record_decision(&wanted.file, &wanted.digest, trusted)?;
    Ok(trusted)
}

pub fn untrust(_: &UntrustArgs, context: &CliContext) -> Result<Exit, Report> {
    let folder = context.current_folder()?;
    let trust = TrustStore::new(&context.home()?);
    let (mut text, mut is_any) = (String::new(), false);
    let file = paths::workspace_config_file(&folder);
    let (skills, roles) = (context.skills(&folder)?, context.roles(&folder)?);
    let words = trust.read_decisions().into_iter().map(|word| word.file);
    let strange: Vec<PathBuf> =
        words.filter(|file| skills.may_contain(file) || roles.may_contain(file)).collect();
    let servers = paths::workspace_mcp_file(&folder);
    for file in [&file, &servers].into_iter().chain(&strange) {
        let was_trusted = trust.remove_decision(file)?;
        is_any |= was_trusted;
        if was_trusted {
            text.extend([&file.to_string_lossy(), " is no longer trusted\n"]);
        }
    }
    if !is_any {
        text = format!("{} was not trusted\n", file.display());
    }
    let output = json!({ "file": file.to_string_lossy(), "was_trusted": is_any });
    context.print_result("untrust", &text, output)
}

impl CliContext {
    /// The files of the Workspace that the user trusts with their current content. An unreadable trust file trusts
    /// nothing.
    pub fn trusted(&self, workspace: &Path) -> Vec<TrustRequest> {
        let (Ok(config), Ok(home)) = (self.load_user_settings(), self.home()) else {
            return Vec::new();
        };
        let mut all = config::trust_requests(workspace, &config);
        let trust = TrustStore::new(&home);
        all.retain(|wanted| {
            let word = trust.find_decision(&wanted.file, &wanted.digest);
            let word = word.inspect_err(|error| tracing::warn!(%error, "nothing is trusted"));
            word.is_ok_and(|word| word == Some(true))
        });
        all
    }

    /// Skills, prompts and roles of the project, which are text until the user trusts them.
    fn untrusted_files(&self, folder: &Path) -> Result<Vec<TrustRequest>, Report> {
        let skills = self.skills(folder)?;
        let mut wanted = Vec::new();
        for skill in skills.read_all().all.iter().filter(|skill| skill.is_foreign) {
            let mut settings = vec![
                ("skill".to_owned(), skill.name().to_owned()),
                ("description".to_owned(), skill.front_matter.description.clone()),
                ("instructions".to_owned(), format!("{} bytes of text", skill.text.len())),
            ];
            for source in &skill.front_matter.sources {
                settings.push((format!("context.{}", source.id), source.kind.to_string()));
            }
            let (file, digest) = (skill.path.clone(), skill.digest.clone());
            wanted.push(TrustRequest { file, digest, settings });
        }
        for prompt in skills.read_prompts().all.iter().filter(|prompt| prompt.is_foreign) {
            let settings = vec![
                ("prompt".to_owned(), format!("/{}", prompt.name)),
                ("description".to_owned(), prompt.description.clone()),
            ];
            let (file, digest) = (prompt.path.clone(), prompt.digest.clone());
            wanted.push(TrustRequest { file, digest, settings });
        }
        for entry in self.roles(folder)?.read_all().all.iter().filter(|entry| entry.is_foreign) {
            let custom = &entry.definition.custom;
            let mut settings = vec![
                ("role".to_owned(), entry.name().to_owned()),
                ("description".to_owned(), custom.description.clone()),
                ("developer_instructions".to_owned(), entry.definition.instructions.clone()),
            ];
            settings.extend(custom.model.clone().map(|model| ("model".to_owned(), model)));
            let (file, digest) = (entry.path.clone(), entry.digest.clone());
            wanted.push(TrustRequest { file, digest, settings });
        }
        Ok(wanted)
    }

    /// Asks once about each file that needs trust, if a person can answer.
    pub fn ask_for_trust(&self, workspace: &Path) -> Result<(), Report> {
        if !self.can_ask() {
            return Ok(());
        }
        let all = config::trust_requests(workspace, &self.load_user_settings()?);
        let trust = TrustStore::new(&self.home()?);
        for wanted in all {
            // An unreadable trust file is reported where it is used.
            let Ok(None) = trust.find_decision(&wanted.file, &wanted.digest) else { continue };
            let trusted = ask_trust(&wanted);
            trust.record_decision(&wanted.file, &wanted.digest, trusted)?;
        }
        Ok(())
    }
}

/// Shows what a file would change, and asks; any answer but yes is a no.
fn ask_trust(wanted: &TrustRequest) -> bool {
    let mut text = format!(
        "\n? {} wants settings that only you may allow:\n",
        on_one_line(&wanted.file.to_string_lossy())
    );
    for (name, value) in &wanted.settings {
        text.extend(["  ", &on_one_line(name), " = ", &on_one_line(value), "\n"]);
    }
    text.push_str("  Trust this file as it is now? [y] yes  [n] no\n  › ");
    ask_yes_no(&text)
}

fn wanted_settings_json(wanted: &TrustRequest) -> Vec<Value> {
    let setting = |(name, value): &(String, String)| json!({ "key": name, "value": value });
    wanted.settings.iter().map(setting).collect()
}
