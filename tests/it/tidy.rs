//! Checks of the source tree: layers, names, module docs, file size and the dependency budget.

mod layers;
mod names;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The hard limit; 100 to 400 is the aim.
const LONGEST_FILE: usize = 600;

/// The most entries of a folder in `src`.
const MOST_ENTRIES: usize = 40;

/// Packages in the normal and build tree on Linux; raised only on purpose.
const PACKAGE_BUDGET: usize = 270;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root().join(folder)];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

/// The code of a file without its unit tests, which may look anywhere.
fn code(path: &Path) -> Option<String> {
    let name = path.file_stem().unwrap().to_str().unwrap();
    if name == "tests" || path.iter().any(|part| part == "tests") {
        return None;
    }
    let text = fs::read_to_string(path).unwrap();
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines();
    Some(lines.filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n"))
}

/// The number of threads does not grow with Sessions: blocking work goes through the pool. Exceptions are input of
/// a user, locks of other processes, and requests of an editor, which wait without work.
#[test]
fn blocking_work_goes_through_the_blocking_module() {
    const MAY: &[&str] =
        &["base/blocking.rs", "frontends/", "model/credential/keyring.rs", "testing/"];
    for path in rust_files("src") {
        let inside = path.strip_prefix(root().join("src")).unwrap().to_str().unwrap();
        let Some(code) = code(&path) else { continue };
        let is_allowed = MAY.iter().any(|may| inside.starts_with(may));
        assert!(is_allowed || !code.contains("spawn_blocking"), "{inside} uses spawn_blocking");
    }
}

#[test]
fn every_file_has_a_module_doc_and_is_not_too_long() {
    for folder in ["src", "tests", "benches", "examples"] {
        for path in rust_files(folder) {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("//! "), "{} has no module doc", path.display());
            let lines = text.lines().count();
            assert!(lines <= LONGEST_FILE, "{} has {lines} lines", path.display());
        }
    }
}

#[test]
fn no_folder_has_more_entries_than_fit_on_a_screen() {
    let files = rust_files("src");
    let folders: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    for folder in folders {
        let entries = fs::read_dir(folder).unwrap().count();
        assert!(entries <= MOST_ENTRIES, "{} has {entries} entries", folder.display());
    }
}

#[test]
fn no_file_has_a_name_that_says_nothing() {
    for word in ["utils", "common", "helpers", "manager", "misc"] {
        let has_name = |path: &PathBuf| {
            let module = path.with_extension("");
            module.ends_with(word) || module.parent().is_some_and(|folder| folder.ends_with(word))
        };
        assert_eq!(rust_files("src").into_iter().find(has_name), None);
    }
}

#[test]
fn the_top_level_holds_what_belongs_there() {
    let allowed = [
        "Cargo.toml",
        "Cargo.lock",
        "src",
        "tests",
        "benches",
        "docs",
        "examples",
        "README.md",
        "CONTEXT.md",
        "AGENTS.md",
        "LICENSE",
        "target",
        "proptest-regressions",
    ];
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with('.') || allowed.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn the_dependency_budget_holds() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "-e", "normal,build", "--prefix", "none"])
        .args(["--target", "x86_64-unknown-linux-gnu", "--format", "{p}"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8(tree.stdout).unwrap();
    let packages: BTreeSet<&str> = text
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .collect();
    assert!(packages.len() > 50, "the tree was read");
    assert!(packages.len() <= PACKAGE_BUDGET, "{} packages", packages.len());
}
