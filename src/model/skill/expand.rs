//! Expands the user's input before it is sent: `/name words` becomes the text of a prompt, or a Skill's
//! name with a `$` in front. Any other text is unchanged.

use std::path::Path;

use super::prompts::{FoundPrompts, parse_slash_command};
use super::{FileDiagnostic, FoundSkills, Skills, find_mentions};

/// The expanded input of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandedInput {
    /// The text to send.
    pub text: String,
    /// Notices for the user.
    pub notices: Vec<String>,
    /// The name after a leading slash, if no usable prompt or Skill has it.
    pub unknown_name: Option<String>,
}

/// A name that can be typed after a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlashName {
    /// The name.
    pub name: String,
    /// The description of the prompt or Skill.
    pub description: String,
    /// The arguments that may follow.
    pub hint: String,
}

/// The diagnostic of the Skill package in a folder of that name.
fn find_package_diagnostic<'f>(
    broken: &'f [FileDiagnostic],
    name: &str,
) -> Option<&'f FileDiagnostic> {
    let folder = |flaw: &'f FileDiagnostic| flaw.path.parent().and_then(Path::file_name);
    broken.iter().find(|flaw| folder(flaw) == Some(name.as_ref()))
}

fn describe_unusable(what: &str, flaw: &FileDiagnostic) -> String {
    format!("this {what} cannot be used, so its name stays plain text: {flaw}")
}

impl Skills {
    /// Expands a text. Folders are read only when it may contain a name.
    pub fn expand(&self, text: &str) -> ExpandedInput {
        let mut expanded =
            ExpandedInput { text: text.to_owned(), notices: Vec::new(), unknown_name: None };
        let named = parse_slash_command(text);
        if named.is_none() && find_mentions(text).is_empty() {
            return expanded;
        }
        let FoundSkills { skills, broken, .. } = self.read_all();
        let refused = |what: &str, name: &str| {
            format!(
                "{what} `{name}` of this project is not trusted, so it stays plain text; see `pixir trust`"
            )
        };
        if let Some((name, words)) = named {
            let FoundPrompts { prompts, broken: spoiled, .. } = self.read_prompts();
            let prompt = prompts.iter().find(|prompt| prompt.name == name);
            let skill = skills.iter().find(|skill| skill.name() == name);
            match (prompt, skill) {
                (Some(prompt), _) if prompt.is_trusted => expanded.text = prompt.expand(words),
                (_, Some(skill)) if skill.is_trusted => {
                    expanded.text = format!("${name} {words}");
                    expanded.text.truncate(expanded.text.trim_end().len());
                }
                (Some(_), _) => {
                    expanded.unknown_name = Some(name.to_owned());
                    expanded.notices.push(refused("the prompt", name));
                }
                (None, Some(_)) => {
                    expanded.unknown_name = Some(name.to_owned());
                    expanded.notices.push(refused("the skill", name));
                }
                (None, None) => {
                    expanded.unknown_name = Some(name.to_owned());
                    let is_meant =
                        |flaw: &&FileDiagnostic| flaw.path.file_stem() == Some(name.as_ref());
                    let prompt =
                        spoiled.iter().find(is_meant).map(|flaw| describe_unusable("prompt", flaw));
                    let skill = || {
                        find_package_diagnostic(&broken, name)
                            .map(|flaw| describe_unusable("skill", flaw))
                    };
                    expanded.notices.extend(prompt.or_else(skill));
                }
            }
        }
        for name in find_mentions(&expanded.text) {
            match skills.iter().find(|skill| skill.name() == name) {
                Some(skill) if skill.is_trusted => {}
                Some(_) => expanded.notices.push(refused("the skill", name)),
                None => {
                    let flaw = find_package_diagnostic(&broken, name);
                    expanded.notices.extend(flaw.map(|flaw| describe_unusable("skill", flaw)));
                }
            }
        }
        expanded
    }

    /// All names that can be typed after a slash: prompts first, then Skills.
    pub fn list_slash_names(&self) -> Vec<SlashName> {
        let prompts = self.read_prompts().prompts.into_iter().filter(|prompt| prompt.is_trusted);
        let mut named: Vec<SlashName> = prompts
            .map(|prompt| SlashName {
                name: prompt.name,
                description: prompt.description,
                hint: prompt.hint,
            })
            .collect();
        for skill in self.read_all().skills.iter().filter(|skill| skill.is_trusted) {
            if named.iter().any(|other| other.name == skill.name()) {
                continue;
            }
            named.push(SlashName {
                name: skill.name().to_owned(),
                description: skill.front_matter.description.clone(),
                hint: "what to do with it".to_owned(),
            });
        }
        named
    }
}
