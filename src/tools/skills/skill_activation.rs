//! The Event for the activation of a Skill, with its current text.

use crate::base::secret::Secrets;
use crate::model::skill::{AllowedTools, Skill};
use crate::record::event::{Extra, SkillActivation};

use crate::base::text::strip_invisible;

/// The maximum size of a Skill's text in the context, in bytes.
const MAX_SKILL_BYTES: usize = 64 * 1024;

/// The Event that records a Skill: bounded, without Secrets and without invisible characters.
pub fn skill_activation(skill: &Skill, activated_by: &str, secrets: &Secrets) -> SkillActivation {
    let text = strip_invisible(&skill.text);
    let text = secrets.redact(&text);
    let end = text.floor_char_boundary(MAX_SKILL_BYTES);
    let clean = |text: &str| secrets.redact(text).into_owned();
    SkillActivation {
        name: skill.name().to_owned(),
        description: clean(&strip_invisible(&skill.front_matter.description)),
        scope: skill.scope.name().to_owned(),
        path: skill.short_path(),
        folder: skill.folder.to_string_lossy().into_owned(),
        content_hash: skill.digest.clone(),
        content: text[..end].trim_end().to_owned(),
        cut_from: (end < text.len()).then_some(skill.text.len() as u64),
        repeated: false,
        allowed_tools: skill
            .front_matter
            .allowed_tools
            .as_ref()
            .map(AllowedTools::words)
            .unwrap_or_default(),
        activated_by: activated_by.to_owned(),
        extra: Extra::new(),
    }
}
