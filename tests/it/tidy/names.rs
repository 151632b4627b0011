//! Names and words: a type's name is its own, and comments use plain words.

use std::collections::BTreeMap;
use std::path::Path;

use super::{code, root, rust_files};

/// Names that several modules may use for a private type, by convention.
const CONVENTIONAL: &[&str] =
    &["Actor", "Args", "Error", "Inbox", "Inner", "Reply", "Shared", "State", "Wake"];

/// The most definitions, in percent, whose name another type has as well.
const MOST_SHARED: usize = 5;

/// Words that leave open who or what is meant.
const VAGUE: &[&str] = &["nobody", "somebody", "whoever", "anew"];

/// The most occurrences of such words in the comments of `src`.
const MOST_VAGUE: usize = 59;

/// The names of the types that a piece of code defines.
fn types_in(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in code.lines() {
        let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
        if !matches!(words.next(), Some("struct" | "enum" | "union" | "trait")) {
            continue;
        }
        let Some(rest) = words.next() else { continue };
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        found.push(&rest[..end]);
    }
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn types_have_names_of_their_own() {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in rust_files("src") {
        let Some(code) = code(&path) else { continue };
        for name in types_in(&code) {
            if !CONVENTIONAL.contains(&name) {
                definitions.entry(name.to_owned()).or_default().push(relative(&path));
            }
        }
    }
    let all: usize = definitions.values().map(Vec::len).sum();
    assert!(all > 1000, "the types were found");
    definitions.retain(|_, places| places.len() > 1);
    let shared: usize = definitions.values().map(Vec::len).sum();
    assert!(shared * 100 <= all * MOST_SHARED, "{shared} of {all}: {definitions:#?}");
}

#[test]
fn comments_name_who_and_what_is_meant() {
    let mut places = Vec::new();
    for path in rust_files("src") {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let comment = comment.to_lowercase();
            let words = comment.split(|c: char| !c.is_alphanumeric());
            let vague = words.filter(|word| VAGUE.contains(word)).count();
            places.extend((0..vague).map(|_| format!("{}:{}", relative(&path), number + 1)));
        }
    }
    assert!(places.len() <= MOST_VAGUE, "{}: {places:#?}", places.len());
}

#[test]
fn types_are_found_in_code() {
    let code = "pub struct A {\n}\n    pub(crate) enum B<T> {\nstruct C;\nlet structure = 1;";
    assert_eq!(types_in(code), ["A", "B", "C"]);
}
