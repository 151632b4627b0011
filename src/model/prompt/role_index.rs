//! The index of roles from files that a Session may delegate to, as a part of the project message.
//!
//! It lists only names and descriptions, and only of trusted roles. Without any there is no index.

use super::index_lines;
use crate::base::secret::Secrets;
use crate::model::roles::FoundRoles;

/// How many bytes the index may have.
const LIMIT: usize = 2000;
/// The longest description in it, in characters.
const LONGEST: usize = 200;

const HEAD: &str = "# Roles\n\nFor spawn_agent, besides worker, explorer and reviewer:\n\n";

/// The text of the index; `None` if there is no trusted role.
pub fn role_index(listed: &FoundRoles, secrets: &Secrets) -> Option<String> {
    let trusted = listed.entries.iter().filter(|entry| entry.is_trusted);
    let named = trusted.map(|entry| (entry.name(), entry.definition.custom.description.as_str()));
    let (mut text, left_out) = index_lines(named, (LIMIT, LONGEST), secrets);
    if left_out > 0 {
        text.extend(["- and ", &left_out.to_string(), " more\n"]);
    }
    (!text.is_empty()).then(|| format!("{HEAD}{}", text.trim_end()))
}
