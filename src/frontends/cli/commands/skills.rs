//! `pixir skills`: list, show and check Skills.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};

use super::workflow;
use crate::base::error::{Kind, Report, counted};
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::frontends::render::{clean, one_line};
use crate::model::skill::{
    AllowedTools, FileDiagnostic, FoundSkills, MAIN_FILE, Skill, WorkflowTemplate, examine_skills,
};

/// Show or check skills
#[derive(Debug, Args)]
#[command(
    long_about = "Show or check skills.\n\n\
        A skill is a folder with a SKILL.md, in the public Agent Skills format. They are looked for in \
        .agents/skills, .pixir/skills and .claude/skills of the project, from the git root down to the \
        Workspace, and in ~/.agents/skills and ~/.pixir/skills. Name one with $NAME, or begin a prompt \
        with /NAME. Those of a project are plain text until you trust them (see `pixir trust`).",
    after_long_help = "Examples:\n  pixir skills\n  pixir skills show release-notes\n  \
        pixir skills validate .agents/skills --json"
)]
pub struct SkillsArgs {
    #[command(subcommand)]
    action: Option<SkillsAction>,
}

#[derive(Debug, Subcommand)]
enum SkillsAction {
    /// List the skills that can be used here
    List,
    /// Show a skill with its files
    Show {
        /// Name of the skill
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Check skills and report errors with path and line
    Validate {
        /// A skill, or a folder of skills; without it, all skills found here
        #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
        path: Option<PathBuf>,
    },
}

pub fn skills(args: &SkillsArgs, context: &CliContext) -> Result<Exit, Report> {
    match args.action.as_ref().unwrap_or(&SkillsAction::List) {
        SkillsAction::List => list_skills(context),
        SkillsAction::Show { name } => show_skill(name, context),
        SkillsAction::Validate { path } => validate_skills(path.as_deref(), context),
    }
}

fn list_skills(context: &CliContext) -> Result<Exit, Report> {
    let skills = context.skills(&context.current_folder()?)?;
    let (found, prompts) = (skills.read_all(), skills.read_prompts());
    for flaw in found.broken.iter().chain(&prompts.broken) {
        context.print_notice(&format!("not used: {flaw}"));
    }
    for shadow in &found.shadowed {
        context.print_notice(&shadow.to_string());
    }
    if found.skills.is_empty() && prompts.prompts.is_empty() {
        context.print_notice("there are no skills; see `pixir skills --help`");
    }
    let width = found.skills.iter().map(|skill| skill.name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for skill in &found.skills {
        let (name, scope) = (skill.name(), skill.scope.name());
        let trust = if skill.is_trusted { "" } else { ", not trusted" };
        let words = one_line(&skill.front_matter.description, 100);
        // Writing to a String cannot fail.
        writeln!(text, "{name:width$}  {words}  ({scope}{trust})").ok();
    }
    for prompt in &prompts.prompts {
        let (name, scope) = (&prompt.name, prompt.scope.name());
        let trust = if prompt.is_trusted { "" } else { ", not trusted" };
        writeln!(text, "/{name}  {}  (prompt, {scope}{trust})", one_line(&prompt.description, 100))
            .ok();
    }
    let output = json!({
        "skills": found.skills.iter().map(|skill| skill_json(skill)).collect::<Vec<_>>(),
        "prompts": prompts.prompts.iter().map(|prompt| json!({
            "name": prompt.name,
            "description": prompt.description,
            "scope": prompt.scope.name(),
            "path": prompt.path.to_string_lossy(),
            "trusted": prompt.is_trusted,
        })).collect::<Vec<_>>(),
        "shadowed": found.shadowed,
        "broken": found.broken.iter().chain(&prompts.broken).collect::<Vec<_>>(),
    });
    context.print_result("skills", &text, output)
}

fn show_skill(name: &str, context: &CliContext) -> Result<Exit, Report> {
    let found = context.skills(&context.current_folder()?)?.read_all();
    let Some(skill) = found.skills.iter().find(|skill| skill.name() == name) else {
        let names: Vec<&str> = found.skills.iter().map(|skill| skill.name()).collect();
        let next = match names.as_slice() {
            [] => "there are none; see `pixir skills --help`".to_owned(),
            names => format!("use one of: {}", names.join(", ")),
        };
        return Err(bad_argument(format!("there is no skill `{}`", one_line(name, 64)))
            .with_next_actions(vec![next]));
    };
    let (files, more) = skill.list_package_files();
    let (templates, flaws) = skill.read_templates();
    for flaw in skill.warnings.iter().chain(&flaws) {
        context.print_notice(&flaw.to_string());
    }
    let mut output = skill_json(skill);
    output["content"] = json!(&*skill.text);
    output["files"] = files.iter().map(|file| file.to_string_lossy()).collect();
    output["files_left_out"] = json!(more);
    output["workflow_templates"] = json!(templates);
    output["problems"] = json!(skill.warnings.iter().chain(&flaws).collect::<Vec<_>>());
    context.print_result("skills", &skill_text(skill, &files, &templates), output)
}

fn skill_text(skill: &Skill, files: &[PathBuf], templates: &[WorkflowTemplate]) -> String {
    let front = &skill.front_matter;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            writeln!(text, "{name:15}{}", one_line(value, 500)).ok();
        }
    };
    line("name", skill.name());
    line("description", &front.description);
    line("path", &skill.path.to_string_lossy());
    line("sha256", &skill.digest);
    line("trusted", if skill.is_trusted { "yes" } else { "no, see `pixir trust`" });
    line("license", front.license.as_deref().unwrap_or_default());
    line("compatibility", front.compatibility.as_deref().unwrap_or_default());
    let allowed = front.allowed_tools.as_ref().map(AllowedTools::words).unwrap_or_default();
    line("allowed tools", &allowed.join(", "));
    line("activated by", if front.is_user_only { "you alone" } else { "" });
    for (key, value) in &front.metadata {
        line("metadata", &format!("{key}: {value}"));
    }
    for source in &front.sources {
        line("context", &format!("{}: {}", source.id, source.kind));
    }
    for file in files {
        line("file", &file.to_string_lossy());
    }
    for template in templates {
        let parameters: Vec<String> = template
            .parameters
            .iter()
            .map(|own| {
                let mark = if own.is_required { "" } else { "?" };
                format!("{}{mark}: {}", own.name, own.kind.name())
            })
            .collect();
        line("workflow", &format!("{} ({})", template.full_id, parameters.join(", ")));
    }
    text.extend(["\n", clean(&skill.text).trim_end(), "\n"]);
    text
}

fn validate_skills(path: Option<&Path>, context: &CliContext) -> Result<Exit, Report> {
    let mut broken_prompts = Vec::new();
    let (folder, found) = match path {
        // Roles that templates name are looked up in the working directory.
        Some(path) if path.exists() => {
            (context.current_folder().unwrap_or_else(|_| path.to_owned()), examine_skills(path))
        }
        Some(path) => return Err(missing_path(path)),
        None => {
            let folder = context.current_folder()?;
            let skills = context.skills(&folder)?;
            broken_prompts = skills.read_prompts().broken;
            (folder, skills.read_all())
        }
    };
    let FoundSkills { all, mut broken, .. } = found;
    if let Some(path) = path.filter(|_| all.is_empty() && broken.is_empty()) {
        let message = format!("there is no skill in {}", path.display());
        let next = format!("name a folder with a {MAIN_FILE}, or a folder of such folders");
        return Err(bad_argument(message).with_next_actions(vec![next]));
    }
    broken.extend(broken_prompts);
    let warnings: Vec<FileDiagnostic> =
        all.iter().flat_map(|skill| skill.warnings.clone()).collect();
    broken.extend(workflow::broken_templates(&all, &folder, context)?);
    let entries: Vec<Value> = all.iter().map(|skill| skill_json(skill)).collect();
    context.print_validation("skills", "skill", &entries, &broken, &warnings)
}

/// The error for a path that does not exist.
pub fn missing_path(path: &Path) -> Report {
    bad_argument(format!("there is no {}", path.display())).with_next_actions(vec![
        "check the path; without one, all that is found here is checked".to_owned(),
    ])
}

impl CliContext {
    /// Prints the result of a validation; a file that cannot be used makes it an error. `kind` is that of the
    /// envelope, `noun` the singular of what was checked.
    pub fn print_validation(
        &self,
        kind: &'static str,
        noun: &str,
        all: &[Value],
        broken: &[FileDiagnostic],
        warnings: &[FileDiagnostic],
    ) -> Result<Exit, Report> {
        let mut text = String::new();
        for (word, flaws) in [("error", broken), ("warning", warnings)] {
            for flaw in flaws {
                // Writing to a String cannot fail.
                writeln!(text, "{word}: {}", one_line(&flaw.to_string(), 500)).ok();
            }
        }
        let counts = [(all.len(), noun), (broken.len(), "error"), (warnings.len(), "warning")];
        writeln!(text, "{}", counts.map(|(count, noun)| counted(count, noun)).join(", ")).ok();
        let plural = format!("{noun}s");
        let output = json!({ plural: all, "errors": broken, "warnings": warnings });
        let message = format!("{} cannot be used as they are", broken.len());
        let error = (!broken.is_empty()).then(|| Report::new(Kind::InvalidSkill, message));
        Ok(self.print_envelope(&self.success_envelope(kind, output)?.with_error(error), &text))
    }
}

fn skill_json(skill: &Skill) -> Value {
    let front = &skill.front_matter;
    json!({
        "name": skill.name(),
        "description": front.description,
        "scope": skill.scope.name(),
        "path": skill.path.to_string_lossy(),
        "sha256": skill.digest,
        "trusted": skill.is_trusted,
        "license": front.license,
        "compatibility": front.compatibility,
        "metadata": front.metadata.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "allowed_tools": front.allowed_tools.as_ref().map(AllowedTools::words),
        "disable_model_invocation": front.is_user_only,
        "context": front.sources.iter().map(|source| json!({
            "id": source.id,
            "kind": source.kind.name(),
            "request": source.kind.to_string(),
        })).collect::<Vec<_>>(),
    })
}
