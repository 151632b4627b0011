//! Finding a Session by its id, or by the beginning or the end of it.

use super::{CliContext, bad_argument};
use crate::agent::inspect;
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::frontends::cli::commands::resume::{find_last_session, unknown_session};
use crate::record::log;
use crate::record::state_dir::StateRoot;

/// The shortest part of an id that is looked up: fewer letters are more likely a word.
const SHORTEST_PART: usize = 4;

/// How many candidates an error names.
const MOST_NAMED: usize = 8;

impl CliContext {
    /// The Session that an argument names, and the state that holds its Log. An id counts before a part of
    /// one, and Sessions of this Workspace count before those of others.
    pub fn find_session(&self, text: &str) -> Result<(SessionId, StateRoot), Report> {
        let id = SessionId::parse(text)?;
        if let Some(root) = self.find_state_of_session(&id)? {
            return Ok((id, root));
        }
        if let Some(found) = unique_part(text, &self.state_roots(false)?)? {
            return Ok(found);
        }
        // `--cwd` says where to look.
        if self.flags.cwd.is_none() {
            let home = self.home()?;
            let known = inspect::state_roots(&home, &inspect::known_workspaces(&home));
            if let Some((id, root)) = unique_part(text, &known)? {
                self.print_notice(&format!("Session {id} is in {}", root.workspace().display()));
                return Ok((id, root));
            }
        }
        Err(unknown_session(&id))
    }

    /// The Session of this Workspace that was used last, and the state that holds its Log.
    pub fn last_session(&self) -> Result<(SessionId, StateRoot), Report> {
        let id = find_last_session(self)?;
        let root = self.current_state()?.root_for_session(&id);
        Ok((id, root))
    }

    /// The Session of an optional argument: the one that it names, else the last used one.
    pub fn find_session_or_last(&self, id: Option<&str>) -> Result<(SessionId, StateRoot), Report> {
        id.map_or_else(|| self.last_session(), |id| self.find_session(id))
    }
}

/// The only Session in this state whose id begins or ends with a text.
pub fn unique_part(
    text: &str,
    roots: &[StateRoot],
) -> Result<Option<(SessionId, StateRoot)>, Report> {
    let all =
        roots.iter().flat_map(|root| log::session_ids(root).into_iter().map(move |id| (id, root)));
    let is_meant =
        |(id, root): &(SessionId, &StateRoot)| is_part(text, id.as_str()) && root.has_log(id);
    let matching: Vec<_> = all.filter(is_meant).collect();
    match matching.as_slice() {
        [] => Ok(None),
        [(id, root)] => Ok(Some((id.clone(), (*root).clone()))),
        several => Err(ambiguous("Sessions", text, several.iter().map(|(id, _)| id.as_str()))),
    }
}

/// Whether an id begins or ends with a text that is long enough to be meant as a part of one.
pub fn is_part(text: &str, id: &str) -> bool {
    text.len() >= SHORTEST_PART && (id.starts_with(text) || id.ends_with(text))
}

/// Says which ids a part of an id could stand for.
pub fn ambiguous<'a>(
    what: &str,
    text: &str,
    candidates: impl ExactSizeIterator<Item = &'a str> + Clone,
) -> Report {
    let count = candidates.len();
    let mut named: Vec<&str> = candidates.clone().take(MOST_NAMED).collect();
    named.sort_unstable();
    let more = if count > MOST_NAMED { ", …" } else { "" };
    let message = format!("{count} {what} begin or end with `{text}`: {}{more}", named.join(", "));
    bad_argument(message)
        .with_details(serde_json::json!({ "candidates": candidates.collect::<Vec<_>>() }))
        .with_next_actions(vec!["give more of the id".into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_beginning_or_an_end_of_four_letters_or_more() {
        let id = "20260721T101112-abcdef";
        for (text, expected) in [
            ("2026", true),
            ("20260721T10", true),
            ("cdef", true),
            ("101112-abcdef", true),
            (id, true),
            ("def", false),
            ("202", false),
            ("0721T", false),
            ("", false),
        ] {
            assert_eq!(is_part(text, id), expected, "{text}");
        }
    }
}
