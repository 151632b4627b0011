//! README's commands are commands: each fenced `pixir …` line is parsed.

use super::arguments::{Parsed, parse};

/// Splits a shell line well enough for a README: quotes, no escapes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => quote = Some(letter),
            (' ', None) if word.is_empty() => {}
            (' ', None) => words.push(std::mem::take(&mut word)),
            (letter, _) => word.push(letter),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[test]
fn the_commands_of_the_readme_parse() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let mut fenced = false;
    let mut found = 0;
    for line in readme.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default();
        let Some(start) = line.find("pixir ").filter(|start| {
            fenced
                && (*start == 0 || line[..*start].ends_with("| ") || line[..*start].contains('='))
        }) else {
            continue;
        };
        let line = line[start..].split([';', '|', '>', '<', '&']).next().unwrap().trim();
        let parsed = parse(words(line).into_iter().map(Into::into).collect());
        assert!(!matches!(parsed, Parsed::Refused { .. }), "{line}: {parsed:?}");
        found += 1;
    }
    assert!(found >= 5, "only {found} commands were found");
    for command in ["cargo run -- demo", "cargo test"] {
        assert!(readme.contains(command), "README promises {command}");
    }
}
