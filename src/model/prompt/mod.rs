//! The prompt contract: the parts of the prompt, from the most stable to the least.
//!
//! 1. The instructions: the same bytes for all users, under a version name.
//! 2. The project: the AGENTS.md chain and the indexes of Skills and roles, the same bytes for a Session
//!    (`project`, `skills`, `roles`).
//! 3. Late context: workspace, day, branch, mode; sent with the user message at which it changed
//!    (`context`).
//!
//! A Provider caches by prefix, so parts that change come after parts that do not.

mod agents_md;
mod context;
mod role_index;
mod skill_index;

pub use agents_md::{AgentsMd, AgentsMdSources};
pub use context::{LateContext, git_branch};
pub use role_index::role_index;
pub use skill_index::skill_index;

use crate::base::id::sha256;
use crate::base::secret::Secrets;
use crate::base::text::{strip_invisible, truncate_chars};

/// The name of the instructions below and of the order of the parts; a test pins it to the bytes.
pub const VERSION: &str = "pxr4";

/// The byte-stable instructions.
pub const INSTRUCTIONS: &str = include_str!("instructions.md");

/// How many characters of a model's name go into a cache key.
const MODEL_LIMIT: usize = 24;

/// The Provider's cache key: one per contract, model and Session family, of at most 64 characters.
///
/// A fork shares its prefix with its root, so `family` is the root's id; it is hashed, because old
/// ids may contain anything.
pub fn cache_key(version: &str, model: &str, family: &str) -> String {
    let model: String = model
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' })
        .take(MODEL_LIMIT)
        .collect();
    format!("{version}:{model}:{}", &sha256(family.as_bytes())[..24])
}

/// Lines of `name: description` up to `limit` bytes, and how many were left out. Secrets in
/// descriptions are redacted, and characters beyond `longest` are cut.
fn index_lines<'a>(
    named: impl Iterator<Item = (&'a str, &'a str)>,
    (limit, longest): (usize, usize),
    secrets: &Secrets,
) -> (String, usize) {
    let (mut text, mut left_out) = (String::new(), 0);
    for (name, description) in named {
        let description = strip_invisible(description);
        let description = secrets.redact(&description).into_owned();
        let line = format!("- {name}: {}\n", truncate_chars(&description, longest));
        if text.len() + line.len() > limit {
            left_out += 1;
        } else {
            text.push_str(&line);
        }
    }
    (text, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other bytes are another contract: bump `VERSION`, add its line, and keep the old ones.
    const PINNED: &[(&str, &str)] = &[
        ("pxr1", "4a5b98940b432169948bef821401bdb95430f4bbe55a2900ab64aa277ccbce63"),
        ("pxr2", "ee9861070bd8416be8767bf0060021c5204be585eb714e9081541040036a284b"),
        ("pxr3", "ee9861070bd8416be8767bf0060021c5204be585eb714e9081541040036a284b"),
        ("pxr4", "be59f505c262e7b12d34e66da2aafd3b27ce040eeeebaeb62e4caafb0fd767b7"),
    ];

    #[test]
    fn the_version_names_exactly_these_bytes() {
        let digest = sha256(INSTRUCTIONS.as_bytes());
        let pinned = PINNED.iter().find(|(version, _)| *version == VERSION);
        assert_eq!(pinned, Some(&(VERSION, digest.as_str())), "bump VERSION when the bytes change");
        assert_eq!(PINNED.last().map(|(version, _)| *version), Some(VERSION));
    }

    #[test]
    fn the_instructions_are_short_and_plain() {
        assert!(INSTRUCTIONS.len() < 2048, "{}", INSTRUCTIONS.len());
        assert!(INSTRUCTIONS.is_ascii());
    }

    #[test]
    fn a_cache_key_fits_the_wire_and_stays_in_the_family() {
        let (family, other) = ("20261116T101112-abcdef", "20261116T101112-abcdee");
        for model in ["gpt-5.5", "vendor/some model:70b-with-a-very-long-name-indeed", "é", ""] {
            let key = cache_key(VERSION, model, family);
            assert!(key.len() <= 64, "{key}");
            assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || ".:_-".contains(c)), "{key}");
            assert_eq!(key, cache_key(VERSION, model, family));
            assert_ne!(key, cache_key(VERSION, model, other));
        }
    }
}
