//! Commands of README.md and of the quickstart: each fenced `pixir …` line parses.

use super::{ParsedArguments, parse_arguments};

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

/// How many commands of a page there are, all of which parse.
fn commands(page: &str) -> usize {
    let mut fenced = false;
    let mut found = 0;
    for line in page.lines() {
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
        let parsed = parse_arguments(&words(line).into_iter().map(Into::into).collect::<Vec<_>>());
        assert!(!matches!(parsed, ParsedArguments::Invalid { .. }), "{line}: {parsed:?}");
        found += 1;
    }
    found
}

#[test]
fn the_commands_of_the_readme_parse() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let readme = page("README.md");
    for (name, least) in [("README.md", 5), ("docs/quickstart.md", 20)] {
        let found = commands(&page(name));
        assert!(found >= least, "only {found} commands were found in {name}");
    }
    for command in ["cargo run -- demo", "cargo test"] {
        assert!(readme.contains(command), "README promises {command}");
    }
}
