//! Names of MCP tools for the model: letters, digits, `_` and `-`, at most 64.

use std::collections::HashSet;

use crate::base::id::sha256;

/// The longest name that Providers accept.
const LONGEST: usize = 64;
/// The longest part for the server.
const LONGEST_SERVER: usize = 24;
/// Hash digits that distinguish names that would otherwise be equal.
const DIGITS: usize = 6;

/// The part of tool names for a server, distinct from `taken`.
pub fn server_slug(name: &str, taken: &HashSet<String>) -> String {
    unique_name(("", &collapse_underscores(&sanitised(name))), name, LONGEST_SERVER, taken)
}

/// Collapses `_`, so that `__` occurs only between server and tool: else two servers could have one
/// name for two tools, and a Provider refuses such a list.
fn collapse_underscores(plain: &str) -> String {
    let words: Vec<&str> = plain.split('_').filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "unnamed".to_owned() } else { words.join("_") }
}

/// The full name of a tool, distinct from `taken`.
pub fn tool_name(server: &str, name: &str, taken: &HashSet<String>) -> String {
    unique_name((&format!("mcp__{server}__"), &sanitised(name)), name, LONGEST, taken)
}

/// The plain name if it fits and is free; else one with a hash suffix. `front` is kept in any case.
fn unique_name(
    (front, rest): (&str, &str),
    name: &str,
    longest: usize,
    taken: &HashSet<String>,
) -> String {
    let plain = format!("{front}{rest}");
    if plain.len() <= longest && !taken.contains(&plain) {
        return plain;
    }
    let room = longest - front.len();
    let marked = (0..=taken.len())
        .map(|attempt| format!("{front}{}", with_hash_suffix(rest, name, attempt, room)));
    marked.into_iter().find(|name| !taken.contains(name)).unwrap_or_default()
}

fn sanitised(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' })
        .collect();
    if plain.is_empty() { "unnamed".to_owned() } else { plain }
}

fn with_hash_suffix(plain: &str, name: &str, attempt: usize, longest: usize) -> String {
    let digest = sha256(format!("{attempt} {name}").as_bytes());
    let mark = &digest[..DIGITS];
    let room = longest - DIGITS - 1;
    let kept = plain[..plain.len().min(room)].trim_end_matches('_');
    format!("{kept}_{mark}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_say_where_a_tool_comes_from() {
        let none = HashSet::new();
        assert_eq!(tool_name("git", "log", &none), "mcp__git__log");
        assert_eq!(server_slug("My Server (π)", &none), "My_Server");
        assert_eq!(
            (server_slug("_a__b_", &none), server_slug("__", &none)),
            ("a_b".into(), "unnamed".into())
        );
        assert_eq!(tool_name("git", "a.b/c", &none), "mcp__git__a_b_c");
        let taken = HashSet::from(["mcp__git__a_b".to_owned()]);
        let other = tool_name("git", "a.b", &taken);
        assert!(other.starts_with("mcp__git__a_b_") && other.len() == 20, "{other}");
        let (one, two) = ("x".repeat(100), format!("{}y", "x".repeat(99)));
        assert_ne!(tool_name("s", &one, &none), tool_name("s", &two, &none));
    }

    proptest! {
        #[test]
        fn every_name_fits_the_wire(server in "\\PC{0,80}", tool in "\\PC{0,200}") {
            let none = HashSet::new();
            let slug = server_slug(&server, &none);
            prop_assert!((1..=LONGEST_SERVER).contains(&slug.len()));
            prop_assert!(!slug.contains("__") && !slug.ends_with('_'), "{slug}");
            let other = server_slug(&server, &HashSet::from([slug.clone()]));
            prop_assert!(other != slug && !other.contains("__"), "{other}");
            let name = tool_name(&slug, &tool, &none);
            let server_part = crate::record::event::split_mcp_name(&name).map(|(server, _)| server);
            prop_assert_eq!(server_part, Some(slug.as_str()));
            prop_assert!(name.len() <= LONGEST);
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)));
            let again = tool_name(&slug, &tool, &HashSet::from([name.clone()]));
            prop_assert!(again != name && again.len() <= LONGEST);
        }
    }
}
