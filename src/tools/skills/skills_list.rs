//! `skills_list` tool: lists the Skills.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::base::text::strip_invisible;
use crate::base::text::truncate_chars;
use crate::base::tool_error::ToolError;
use crate::model::skill::{FoundSkills, Skill, Skills};
use crate::tools::files::run_file_work;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The longest description in a list, in characters.
const MAX_DESCRIPTION_CHARS: usize = 300;

/// The `skills_list` tool.
#[derive(Debug)]
pub struct SkillsListTool(pub Skills);

/// The arguments of `skills_list`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Only those with this text in name or description.
    filter: Option<String>,
}

impl Tool for SkillsListTool {
    type Args = Args;
    const NAME: &'static str = "skills_list";
    const DESCRIPTION: &'static str =
        "Lists all skills by name, also those the user has not trusted.";

    fn plan(&self, _: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        Ok(CallPlan::new(CallEffect::Read, "list skills".to_owned()))
    }

    async fn run(&self, args: Args, _: ToolContext) -> Result<ToolOutput, ToolError> {
        let skills = self.0.clone();
        let filter = args.filter.unwrap_or_default().to_lowercase();
        let has = move |skill: &Skill| {
            let front = &skill.front_matter;
            format!("{} {}", front.name, front.description).to_lowercase().contains(&filter)
        };
        run_file_work(move || {
            let mut found = skills.read_all();
            found.skills.retain(|skill| has(skill));
            Ok(list_output(&found))
        })
        .await
    }
}

fn list_output(found: &FoundSkills) -> ToolOutput {
    let mut text = String::new();
    for skill in &found.skills {
        let description = truncate_chars(
            &strip_invisible(&skill.front_matter.description),
            MAX_DESCRIPTION_CHARS,
        );
        // Writing to a String cannot fail.
        writeln!(text, "- {}{}: {description}", skill.name(), trust_mark(skill)).ok();
    }
    for shadow in &found.shadowed {
        writeln!(text, "note: {shadow}").ok();
    }
    for flaw in &found.broken {
        writeln!(text, "broken: {flaw}").ok();
    }
    if text.is_empty() {
        text.push_str("there are no skills");
    }
    let skills: Vec<Value> = found
        .skills
        .iter()
        .map(|skill| {
            json!({
                "name": skill.name(),
                "scope": skill.scope.name(),
                "path": skill.short_path(),
                "sha256": skill.digest,
                "trusted": skill.is_trusted,
            })
        })
        .collect();
    let details = json!({ "skills": skills, "broken": found.broken.len() });
    ToolOutput::new(true, text.trim_end().to_owned(), details)
}

fn trust_mark(skill: &Skill) -> &'static str {
    match (skill.is_trusted, skill.front_matter.is_user_only) {
        (false, _) => " (of the project, not trusted by the user)",
        (true, true) => " (only the user may activate it)",
        (true, false) => "",
    }
}
