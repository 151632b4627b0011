//! The index of Skills: names and when to use them, as a part of the project, stable for a Session.
//!
//! It only routes. What a Skill says is read when it is activated; one that the user has not trusted
//! is not even described here, because these words have the weight of a developer's.

use crate::secret::Secrets;
use crate::skill::Found;
use crate::tool::{first_chars, visible};

/// How many bytes the index may have.
const LIMIT: usize = 8000;
/// The longest description in it, in characters.
const LONGEST: usize = 400;

const HEAD: &str = "# Skills\n\nInstructions for special tasks, kept until they are needed. When a task fits \
    one, activate it with skill_view before you begin. The list is for you; do not recite it.\n\n";

/// The text of the index; `None` when there is nothing to route to.
pub fn index(found: &Found, secrets: &Secrets) -> Option<String> {
    let (mut text, mut left_out, mut strange) = (String::new(), 0usize, 0usize);
    for skill in &found.skills {
        if !skill.is_trusted {
            strange += 1;
            continue;
        }
        if skill.front.is_for_people {
            continue;
        }
        let description = visible(&skill.front.description);
        let description = secrets.clean(&description).into_owned();
        let line = format!("- {}: {}\n", skill.name(), first_chars(&description, LONGEST));
        if text.len() + line.len() > LIMIT {
            left_out += 1;
            continue;
        }
        text.push_str(&line);
    }
    if left_out > 0 {
        text.extend(["- and ", &left_out.to_string(), " more: see skills_list\n"]);
    }
    if strange > 0 {
        let words = " of the project that the user has not trusted: see skills_list\n";
        text.extend(["- ", &strange.to_string(), words]);
    }
    (!text.is_empty()).then(|| format!("{HEAD}{}", text.trim_end()))
}
