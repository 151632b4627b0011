//! Layers: a group of modules uses lower groups only, a module only modules listed before it in its group, and the
//! front-ends only what is offered to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{code, root, rust_files};

/// The groups, the lowest first, each with its modules in the order in which they may use each other.
const GROUPS: &[(&str, &str)] = &[
    (
        "base",
        "names error tool_error id link_escape files git_index paths locked_file blocking secret tokens text",
    ),
    ("record", "state_dir event history resource compaction log"),
    ("settings", "role bounds config trust"),
    ("host", "git_objects workspace walk snapshot sandbox process rpc http"),
    ("model", "tool_spec credential skill roles prompt provider"),
    ("tools", "tool permission plan files search shell skills toolbox mcp"),
    (
        "agent",
        "session turn rewind conversation child_workspace fork subagent workflow inspect harness",
    ),
    ("testing", "scripted workbench bench"),
    ("frontends", "render signals relay commands acp chat cli"),
];

/// Front-ends that show or drive Sessions and nothing else.
const PRESENTERS: &[&str] = &["frontends::acp", "frontends::chat", "frontends::render"];

/// What front-ends share with each other.
const SHARED: &[&str] =
    &["frontends::commands", "frontends::relay", "frontends::render", "frontends::signals"];

/// The modules that these front-ends may use.
const OFFERED: &[&str] = &[
    "agent::conversation",
    "agent::harness",
    "agent::inspect",
    "base::error",
    "base::id",
    "host::rpc",
    "record::event",
    "record::history",
    "settings::config",
];

/// Items that the offered modules of `agent` re-export from modules that are not offered.
const HANDED_ON: &[&str] = &[
    "agent::subagent::SubagentRecord",
    "agent::subagent::SubagentStatus",
    "agent::subagent::SubagentView",
    "agent::workflow::StepState",
    "agent::workflow::WatchedRun",
    "agent::workflow::WatchedStep",
    "model::skill::ExpandedInput",
    "model::skill::SlashName",
    "record::resource::Attachment",
    "record::state_dir::StateRoot",
    "tools::tool::Editor",
];

/// The module of a file, as `group::module`; none for the files that only list modules.
fn module_of(path: &Path) -> Option<String> {
    let inside = path.strip_prefix(root().join("src")).unwrap().with_extension("");
    let parts: Vec<&str> = inside.iter().map(|part| part.to_str().unwrap()).collect();
    match parts[..] {
        [group, module, ..] if module != "mod" => Some(format!("{group}::{module}")),
        _ => None,
    }
}

/// Every path below `crate` that a piece of code names, cut to `depth` words; imports are expanded.
fn paths_used(code: &str, depth: usize) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (place, _) in code.match_indices("crate::") {
        let mut rest = &code[place + "crate::".len()..];
        expand(&mut rest, Vec::new(), depth, &mut used);
    }
    used
}

/// Reads one path or one tree of an import, and leaves in `rest` what follows it.
fn expand(rest: &mut &str, mut path: Vec<String>, depth: usize, used: &mut BTreeSet<String>) {
    if let Some(group) = rest.strip_prefix('{') {
        *rest = group.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            expand(rest, path.clone(), depth, used);
            // After a path that was cut, its group still follows.
            skip_to_separator(rest);
            *rest = rest.trim_start_matches(',').trim_start();
        }
        *rest = rest.strip_prefix('}').unwrap_or(rest);
        return;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    path.push(rest[..end].to_owned());
    *rest = &rest[end..];
    match rest.strip_prefix("::") {
        Some(behind) if path.len() < depth => {
            *rest = behind;
            expand(rest, path, depth, used);
        }
        _ => {
            used.insert(path.join("::"));
        }
    }
}

/// Skips the rest of one entry of a group: up to the comma or brace that ends it.
fn skip_to_separator(rest: &mut &str) {
    let mut open = 0;
    for (place, letter) in rest.char_indices() {
        match letter {
            '{' => open += 1,
            '}' if open > 0 => open -= 1,
            ',' | '}' if open == 0 => {
                *rest = &rest[place..];
                return;
            }
            _ => {}
        }
    }
    *rest = "";
}

/// The place of a module in the order of all modules.
fn position(module: &str) -> Option<usize> {
    let mut all = GROUPS.iter().flat_map(|(group, modules)| {
        modules.split(' ').map(move |module| format!("{group}::{module}"))
    });
    all.position(|known| known == module)
}

#[test]
fn a_module_uses_only_modules_before_it() {
    let mut problems = Vec::new();
    for path in rust_files("src") {
        let (Some(module), Some(code)) = (module_of(&path), code(&path)) else { continue };
        let Some(own) = position(&module) else {
            problems.push(format!("{} is in no group's list", path.display()));
            continue;
        };
        for used in paths_used(&code, 2) {
            match position(&used) {
                Some(other) if other <= own => {}
                // An item of the facade, such as `crate::Report`.
                None if used.starts_with(char::is_uppercase) => {}
                _ => problems.push(format!("{} uses {used}", path.display())),
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_acp_server_and_the_renderer_know_only_what_is_offered_to_front_ends() {
    for path in rust_files("src") {
        let (Some(module), Some(code)) = (module_of(&path), code(&path)) else { continue };
        if !PRESENTERS.contains(&module.as_str()) {
            continue;
        }
        for used in paths_used(&code, 2) {
            let is_allowed = used == module
                || OFFERED.contains(&used.as_str())
                || SHARED.contains(&used.as_str());
            assert!(is_allowed, "{} uses {used}", path.display());
        }
    }
}

#[test]
fn the_services_for_front_ends_hand_on_only_listed_items_of_other_modules() {
    let mut problems = Vec::new();
    for path in rust_files("src") {
        let (Some(module), Some(code)) = (module_of(&path), code(&path)) else { continue };
        if !OFFERED.contains(&module.as_str()) || !module.starts_with("agent::") {
            continue;
        }
        for import in code.split("pub use crate::").skip(1) {
            let import = format!("crate::{}", import.split(';').next().unwrap());
            for item in paths_used(&import, 9) {
                let from = item.split("::").take(2).collect::<Vec<_>>().join("::");
                let is_listed = from == module
                    || OFFERED.contains(&from.as_str())
                    || HANDED_ON.contains(&item.as_str());
                if !is_listed {
                    problems.push(format!("{} hands on {item}", path.display()));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_architecture_page_shows_these_groups() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let table = page.split("<!-- groups -->").nth(1);
    let table = table.and_then(|rest| rest.split("<!-- /groups -->").next());
    let shown: Vec<&str> = table
        .expect("the page has a table of groups")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("```"))
        .collect();
    let expected: Vec<String> =
        GROUPS.iter().map(|(group, modules)| format!("{group}: {modules}")).collect();
    assert_eq!(shown, expected);
}

#[test]
fn paths_are_read_from_grouped_imports() {
    let code = "use crate::{agent::turn::{self, X}, record::log};\nlet a = crate::frontends::cli::run();\n\
        use crate::base::{error::Report, id::{CallId, EventId}, paths};";
    let used: Vec<String> = paths_used(code, 2).into_iter().collect();
    let expected =
        ["agent::turn", "base::error", "base::id", "base::paths", "frontends::cli", "record::log"];
    assert_eq!(used, expected);
    let items: Vec<String> = paths_used("crate::agent::turn::{A, b::C}", 9).into_iter().collect();
    assert_eq!(items, ["agent::turn::A", "agent::turn::b::C"]);
    assert!(position("agent::turn") > position("agent::session"));
}
