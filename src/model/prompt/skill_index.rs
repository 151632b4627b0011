//! The index of Skills: names and when to use them, as a part of the project message, stable for a
//! Session.
//!
//! The text of a Skill is read when it is activated; an untrusted one is not even described here,
//! because the index has the weight of a developer message.

use super::index_lines;
use crate::base::secret::Secrets;
use crate::model::skill::FoundSkills;

/// How many bytes the index may have.
const LIMIT: usize = 8000;
/// The longest description in it, in characters.
const LONGEST: usize = 400;

const HEAD: &str = "# Skills\n\nInstructions for special tasks, kept until they are needed. When a task fits \
    one, activate it with skill_view before you begin. The list is for you; do not recite it.\n\n";

/// The text of the index; `None` if there is no Skill.
pub fn skill_index(found: &FoundSkills, secrets: &Secrets) -> Option<String> {
    let strange = found.skills.iter().filter(|skill| !skill.is_trusted).count();
    let named =
        found.skills.iter().filter(|skill| skill.is_trusted && !skill.front_matter.is_user_only);
    let named = named.map(|skill| (skill.name(), skill.front_matter.description.as_str()));
    let (mut text, left_out) = index_lines(named, (LIMIT, LONGEST), secrets);
    if left_out > 0 {
        text.extend(["- and ", &left_out.to_string(), " more: see skills_list\n"]);
    }
    if strange > 0 {
        let words = " of the project that the user has not trusted: see skills_list\n";
        text.extend(["- ", &strange.to_string(), words]);
    }
    (!text.is_empty()).then(|| format!("{HEAD}{}", text.trim_end()))
}
