//! The index of roles from files: whom a Session may delegate to, as a part of the project.
//!
//! It only routes, and names nobody whom the user has not trusted. Without such roles it is not there.

use crate::roster::Listed;
use crate::secret::Secrets;
use crate::tool::{first_chars, visible};

/// How many bytes the index may have.
const LIMIT: usize = 2000;
/// The longest description in it, in characters.
const LONGEST: usize = 200;

const HEAD: &str = "# Roles\n\nFor spawn_agent, besides worker, explorer and reviewer:\n\n";

/// The text of the index; `None` when there is nobody to name.
pub fn roles(listed: &Listed, secrets: &Secrets) -> Option<String> {
    let (mut text, mut left_out) = (String::new(), 0usize);
    for entry in listed.entries.iter().filter(|entry| entry.is_trusted) {
        let description = visible(&entry.written.custom.description);
        let description = secrets.clean(&description).into_owned();
        let line = format!("- {}: {}\n", entry.name(), first_chars(&description, LONGEST));
        if text.len() + line.len() > LIMIT {
            left_out += 1;
            continue;
        }
        text.push_str(&line);
    }
    if left_out > 0 {
        text.extend(["- and ", &left_out.to_string(), " more\n"]);
    }
    (!text.is_empty()).then(|| format!("{HEAD}{}", text.trim_end()))
}
