//! The index of roles from files: whom a Session may delegate to, as a part of the project.
//!
//! It only routes, and names nobody whom the user has not trusted. Without such roles it is not there.

use super::index_lines;
use crate::roster::Listed;
use crate::secret::Secrets;

/// How many bytes the index may have.
const LIMIT: usize = 2000;
/// The longest description in it, in characters.
const LONGEST: usize = 200;

const HEAD: &str = "# Roles\n\nFor spawn_agent, besides worker, explorer and reviewer:\n\n";

/// The text of the index; `None` when there is nobody to name.
pub fn roles(listed: &Listed, secrets: &Secrets) -> Option<String> {
    let trusted = listed.entries.iter().filter(|entry| entry.is_trusted);
    let named = trusted.map(|entry| (entry.name(), entry.written.custom.description.as_str()));
    let (mut text, left_out) = index_lines(named, (LIMIT, LONGEST), secrets);
    if left_out > 0 {
        text.extend(["- and ", &left_out.to_string(), " more\n"]);
    }
    (!text.is_empty()).then(|| format!("{HEAD}{}", text.trim_end()))
}
