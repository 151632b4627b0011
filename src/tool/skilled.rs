//! The fact that a Skill became active, with its text as it is now.

use crate::event::{Extra, SkillActivation};
use crate::secret::Secrets;
use crate::skill::{AllowedTools, Skill};

use super::is_hidden;

/// How much of a Skill's text goes into the context, in bytes.
const LONGEST: usize = 64 * 1024;

/// A Skill as it is recorded and replayed: bounded, without Secrets, and without characters that
/// nobody sees.
pub fn activation(skill: &Skill, activated_by: &str, secrets: &Secrets) -> SkillActivation {
    let text = visible(&skill.text);
    let text = secrets.clean(&text);
    let end = text.floor_char_boundary(LONGEST);
    let clean = |text: &str| secrets.clean(text).into_owned();
    SkillActivation {
        name: skill.name().to_owned(),
        description: clean(&visible(&skill.front.description)),
        scope: skill.scope.name().to_owned(),
        path: skill.short_path(),
        folder: skill.folder.to_string_lossy().into_owned(),
        content_hash: skill.digest.clone(),
        content: text[..end].trim_end().to_owned(),
        cut_from: (end < text.len()).then_some(skill.text.len() as u64),
        repeated: false,
        allowed_tools: skill
            .front
            .allowed_tools
            .as_ref()
            .map(AllowedTools::words)
            .unwrap_or_default(),
        activated_by: activated_by.to_owned(),
        extra: Extra::new(),
    }
}

/// A text without characters that a reader cannot see.
pub fn visible(text: &str) -> String {
    text.chars().filter(|letter| !is_hidden(*letter)).collect()
}
