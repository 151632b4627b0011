//! Checks of the source tree: layers, module docs, file size, the presenters' allow-list and the dependency budget.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules by layer, the lowest first; a module may use only modules of lower layers.
const LAYERS: &[&[&str]] = &[
    &["error"],
    &["id", "files", "git_index", "git_objects"],
    &["disk", "secret", "paths", "http", "rpc", "tokens"],
    &["event", "state"],
    &["bounds", "ledger", "role"],
    &["config", "history", "trust", "workspace"],
    &["resource", "walk", "compaction", "skill"],
    &["log", "sandbox", "snapshot", "roster"],
    &["projection", "credential", "tool"],
    &["provider", "permission", "mcp", "annex"],
    &["prompt"],
    &["session"],
    &["turn", "rewind", "fork"],
    &["conversation"],
    &["subagent"],
    &["workflow"],
    &["harness"],
    &["acp", "render", "scripted"],
    &["cli"],
];

/// Modules that are front-ends.
const PRESENTERS: &[&str] = &["acp", "render", "scripted"];

/// The modules that a front-end may use.
const PRESENTERS_MAY_USE: &[&str] =
    &["id", "error", "rpc", "event", "config", "history", "projection", "conversation", "harness"];

/// The hard limit; 100 to 400 is the aim.
const LONGEST_FILE: usize = 600;

/// Packages in the normal and build tree on Linux; raised only on purpose.
const PACKAGE_BUDGET: usize = 260;

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

fn module_of(path: &Path) -> Option<String> {
    let inside = path.strip_prefix(root().join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    let room = first.trim_end_matches(".rs");
    // The workbench and the bench are entry points for tests and benchmarks, not modules of a layer.
    (!matches!(room, "bench" | "lib" | "main" | "workbench")).then(|| room.to_owned())
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

/// Every module that a piece of code names, grouped imports included.
fn modules_used(code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut used = BTreeSet::new();
    for (place, _) in code.match_indices("crate::") {
        let rest = &code[place + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            used.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut at_start = true;
        for (place, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => at_start = true,
                letter if at_start && !letter.is_whitespace() => {
                    used.insert(word(&group[place..]));
                    at_start = false;
                }
                _ => {}
            }
        }
    }
    used
}

fn layer_of(room: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&room))
}

#[test]
fn a_module_uses_only_lower_layers() {
    let mut problems = Vec::new();
    for path in rust_files("src") {
        let (Some(room), Some(code)) = (module_of(&path), code(&path)) else { continue };
        let Some(layer) = layer_of(&room) else {
            problems.push(format!("{} is in no floor's list", path.display()));
            continue;
        };
        for used in modules_used(&code) {
            let is_self = used == room;
            match layer_of(&used) {
                Some(other) if other < layer || is_self => {}
                None if used.chars().next().is_some_and(char::is_uppercase) => {}
                _ => problems.push(format!("{} uses {used}", path.display())),
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn presenters_know_only_conversation_and_events() {
    for path in rust_files("src") {
        let (Some(room), Some(code)) = (module_of(&path), code(&path)) else { continue };
        if !PRESENTERS.contains(&room.as_str()) {
            continue;
        }
        for used in modules_used(&code) {
            let is_allowed = used == room || PRESENTERS_MAY_USE.contains(&used.as_str());
            assert!(is_allowed, "{} uses {used}", path.display());
        }
    }
}

/// Threads do not grow with Sessions: blocking work goes through the pool. A person's keyboard,
/// a lock that another process holds and a request of an editor wait for something else.
#[test]
fn blocking_work_goes_through_the_blocking_module() {
    const MAY: &[&str] =
        &["acp/", "cli/", "credential/keyring.rs", "disk.rs", "scripted/", "workbench.rs"];
    for path in rust_files("src") {
        let inside = path.strip_prefix(root().join("src")).unwrap().to_str().unwrap();
        let Some(code) = code(&path) else { continue };
        let is_allowed = MAY.iter().any(|may| inside.starts_with(may));
        assert!(is_allowed || !code.contains("spawn_blocking"), "{inside} takes a thread");
    }
}

#[test]
fn the_checks_themselves_can_fail() {
    let used = modules_used("use crate::{turn::{self, X}, log};\nlet a = crate::cli::run();");
    assert_eq!(used.into_iter().collect::<Vec<_>>(), ["cli", "log", "turn"]);
    assert!(layer_of("turn") > layer_of("session"));
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
fn module_names_stand_in_the_glossary() {
    let glossary = fs::read_to_string(root().join("CONTEXT.md")).unwrap().to_lowercase();
    for room in LAYERS.iter().flat_map(|layer| layer.iter()) {
        assert!(glossary.contains(room.trim_end_matches('s')), "{room} is not in CONTEXT.md");
    }
    for word in ["utils", "common", "helpers", "manager", "misc"] {
        let offender =
            rust_files("src").into_iter().find(|path| path.ends_with(format!("{word}.rs")));
        assert_eq!(offender, None);
    }
}

#[test]
fn the_architecture_page_shows_these_layers() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let table =
        page.split("<!-- floors -->").nth(1).and_then(|rest| rest.split("<!-- /floors -->").next());
    let shown: Vec<&str> = table
        .expect("the page has a floor table")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("```"))
        .collect();
    let expected: Vec<String> = LAYERS.iter().map(|layer| layer.join(" ")).collect();
    assert_eq!(shown, expected);
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
