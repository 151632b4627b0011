//! What a person typed, made into what is sent: `/name words` is a prompt's text, or a Skill's name
//! with a `$` in front. Any other text stays as it is.

use super::prompts::slash;
use super::{Skills, mentions};

/// What became of a text that a person typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expanded {
    /// What is to be sent.
    pub text: String,
    /// What the person should know about it.
    pub notices: Vec<String>,
}

/// Something that can be typed behind a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The word behind the slash.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What may follow it.
    pub hint: String,
}

impl Skills {
    /// Expands a text. The disk is looked at only when something in it could be a name.
    pub fn expand(&self, text: &str) -> Expanded {
        let mut expanded = Expanded { text: text.to_owned(), notices: Vec::new() };
        let named = slash(text);
        if named.is_none() && mentions(text).is_empty() {
            return expanded;
        }
        let skills = self.all().skills;
        let refused = |what: &str, name: &str| {
            format!(
                "{what} `{name}` of this project is not trusted, so it stays plain text; see `pixir trust`"
            )
        };
        if let Some((name, words)) = named {
            let prompts = self.prompts().prompts;
            let prompt = prompts.iter().find(|prompt| prompt.name == name);
            let skill = skills.iter().find(|skill| skill.name() == name);
            match (prompt, skill) {
                (Some(prompt), _) if prompt.is_trusted => expanded.text = prompt.expand(words),
                (_, Some(skill)) if skill.is_trusted => {
                    expanded.text = format!("${name} {words}");
                    expanded.text.truncate(expanded.text.trim_end().len());
                }
                (Some(_), _) => expanded.notices.push(refused("the prompt", name)),
                (None, Some(_)) => expanded.notices.push(refused("the skill", name)),
                (None, None) => {}
            }
        }
        for name in mentions(&expanded.text) {
            if skills.iter().any(|skill| skill.name() == name && !skill.is_trusted) {
                expanded.notices.push(refused("the skill", name));
            }
        }
        expanded
    }

    /// Everything that can be typed behind a slash, by name: prompts first, then Skills.
    pub fn named(&self) -> Vec<Named> {
        let prompts = self.prompts().prompts.into_iter().filter(|prompt| prompt.is_trusted);
        let mut named: Vec<Named> = prompts
            .map(|prompt| Named {
                name: prompt.name,
                description: prompt.description,
                hint: prompt.hint,
            })
            .collect();
        for skill in self.all().skills.iter().filter(|skill| skill.is_trusted) {
            if named.iter().any(|other| other.name == skill.name()) {
                continue;
            }
            named.push(Named {
                name: skill.name().to_owned(),
                description: skill.front.description.clone(),
                hint: "what to do with it".to_owned(),
            });
        }
        named
    }
}
