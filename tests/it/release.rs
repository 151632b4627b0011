//! Releases: the package contains the required files and nothing else, and every item of the
//! checklist is an executable command.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The files of the package, as cargo lists them.
fn packaged() -> BTreeSet<String> {
    let listed = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(listed.status.success(), "{errors}");
    String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_package_has_what_it_needs_and_nothing_else() {
    let files = packaged();
    for wanted in [
        "Cargo.toml",
        "Cargo.lock",
        "LICENSE",
        "README.md",
        "CONTEXT.md",
        "docs/changelog.md",
        "docs/quickstart.md",
        "docs/delegate.schema.json",
        "docs/workflow.schema.json",
        "examples/smoke.rs",
        "examples/workflows/migrate.json",
        "src/main.rs",
    ] {
        assert!(files.contains(wanted), "{wanted} is missing");
    }
    // Cargo adds the first three by itself.
    let may_begin = [
        "Cargo.",
        ".cargo_vcs_info.json",
        "LICENSE",
        "README.md",
        "CONTEXT.md",
        "docs/",
        "examples/",
        "src/",
    ];
    for file in &files {
        assert!(may_begin.iter().any(|start| file.starts_with(start)), "{file} is not expected");
    }
    // Every page linked from a packaged page is packaged.
    let is_page = |path: &str| Path::new(path).extension().is_some_and(|end| end == "md");
    let mut links = 0;
    for path in files.iter().filter(|path| is_page(path)) {
        let folder = Path::new(path).parent().unwrap();
        for link in page(path).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let link = link.split('#').next().unwrap();
            if link.contains("://") || !is_page(link) {
                continue;
            }
            let target = folder.join(link).to_string_lossy().into_owned();
            assert!(files.contains(&target), "{path} leads to {link}");
            links += 1;
        }
    }
    assert!(links > 0, "no page leads to another one");
    let weight: u64 = files
        .iter()
        .filter_map(|file| fs::metadata(root().join(file)).ok())
        .map(|own| own.len())
        .sum();
    assert!(weight < 10_000_000, "crates.io accepts up to 10 MB; the package has {weight} bytes");
}

#[test]
fn the_version_is_the_same_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    let changelog = page("docs/changelog.md");
    let heading = changelog.lines().find(|line| line.starts_with("## [")).unwrap();
    assert!(heading.contains(version), "{heading} is not about {version}");
    assert!(page("docs/release.md").contains(&format!("git tag --annotate v{version} ")));
}

#[test]
fn every_item_of_the_checklist_can_be_done() {
    let text = page("docs/release.md");
    let manifest = page("Cargo.toml");
    let smoke = page("examples/smoke.rs");
    let script = page(".ci/run");
    let main = page("tests/it/main.rs");
    let mut is_fenced = false;
    let mut count = 0;
    for line in text.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        if !is_fenced {
            continue;
        }
        count += 1;
        let words: Vec<&str> = line.split(' ').skip_while(|word| word.contains('=')).collect();
        match words[..] {
            [".ci/run"] => assert!(root().join(".ci/run").is_file()),
            ["git", verb, ..] => {
                assert!(["log", "diff", "status", "tag"].contains(&verb), "{line}");
            }
            ["cargo", "bench", "--bench", name] => {
                assert!(manifest.contains(&format!("[[bench]]\nname = \"{name}\"")), "{line}");
            }
            ["cargo", "build", "--profile", name] => {
                assert!(manifest.contains(&format!("[profile.{name}]")), "{line}");
            }
            ["cargo", "run", "--example", "smoke", "--", name] => {
                assert!(smoke.contains(&format!("name: \"{name}\"")), "{line}");
            }
            ["cargo", "test", "--test", "it", "--", ref names @ ..] => {
                for name in names {
                    let room = name.split("::").next().unwrap();
                    assert!(main.contains(&format!("\nmod {room};")), "{line}");
                }
            }
            ["cargo", "test"]
            | ["cargo", "run", "--quiet", "--", "--version"]
            | ["cargo", "package" | "install" | "publish", ..] => {}
            [pixir, ref rest @ ..] if pixir.ends_with("/pixir") => {
                let parsed =
                    pixir::command_grammar().try_get_matches_from(["pixir"].iter().chain(rest));
                assert!(parsed.is_ok(), "{line}");
            }
            _ => panic!("an unknown command: {line}"),
        }
    }
    assert!(count > 20, "{count}");
    // Every benchmark is on the checklist and the benchmark page.
    for bench in manifest.split("[[bench]]\nname = \"").skip(1) {
        let name = bench.split('"').next().unwrap();
        assert!(text.contains(&format!("cargo bench --bench {name}\n")), "{name}");
        assert!(page("docs/benchmarks.md").contains(&format!("--bench {name} ")), "{name}");
    }
    // Every quoted path exists.
    for quoted in text.split('`').skip(1).step_by(2) {
        let is_path = quoted.starts_with("docs/") || quoted.starts_with("tests/");
        assert!(!is_path || root().join(quoted).exists(), "{quoted} does not exist");
    }
    // CI rehearses every smoke test of the checklist.
    let rehearsed = script.lines().find(|line| line.starts_with("for smoke in")).unwrap();
    for name in smoke.split("name: \"").skip(1).filter_map(|rest| rest.split('"').next()) {
        let is_smoke = text.contains(&format!("smoke -- {name}\n"));
        assert!(!is_smoke || rehearsed.contains(name), "{name} is not rehearsed");
    }
    for name in rehearsed.split_whitespace().skip(3).map(|name| name.trim_end_matches(';')) {
        assert!(
            name == "do" || text.contains(&format!("smoke -- {name}\n")),
            "{name} is not on the list"
        );
    }
}

#[test]
fn that_nothing_is_reported_is_said_where_people_look() {
    let readme = page("README.md");
    assert!(readme.contains("docs/privacy.md") && readme.contains("no telemetry"));
    assert!(readme.contains("docs/quickstart.md"));
    assert!(page("docs/privacy.md").contains("tests/it/telemetry.rs"));
    // No telemetry crate is linked.
    let lock = page("Cargo.lock");
    for name in ["sentry", "opentelemetry", "posthog-rs", "segment", "bugsnag", "self_update"] {
        assert!(!lock.contains(&format!("name = \"{name}\"")), "{name}");
    }
}
