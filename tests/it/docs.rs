//! Documentation pages, checked against the program; `docs/cli.md` and `docs/config.md` are generated here.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::{Arg, Command};

fn page(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The heading of the flags that every command has.
const COMMON: &str = "Common options";

/// The help of a command. Flags that it shares with others are only named, except for those of every command.
fn describe(command: &mut Command, name: &str, page: &mut String) {
    let is_shared = |flag: &Arg| flag.get_help_heading().is_some();
    let own = command.clone().mut_args(|flag| {
        let is_hidden = is_shared(&flag);
        flag.hide(is_hidden)
    });
    let help = own.term_width(100).render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(page, "\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end()).unwrap();
    let shared = command.get_arguments().filter(|flag| is_shared(flag));
    let shared = shared.filter(|flag| flag.get_help_heading() != Some(COMMON));
    let shared: Vec<String> =
        shared.map(|flag| format!("`--{}`", flag.get_long().unwrap())).collect();
    if name != "pixir" && !shared.is_empty() {
        write!(page, "\nShared options: {}\n", shared.join(", ")).unwrap();
    }
    let inner: Vec<String> = command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
        .map(|inner| inner.get_name().to_owned())
        .collect();
    for inner in inner {
        if let Some(found) = command.find_subcommand_mut(&inner) {
            describe(found, &format!("{name} {inner}"), page);
        }
    }
}

#[test]
fn the_command_reference_is_true() {
    let mut text = "# The command line\n\nWritten by a test from the program's own help. The options that commands \
        share are described [once](#options).\n"
        .to_owned();
    let mut command = pixir::command_grammar().term_width(100);
    command.build();
    describe(&mut command, "pixir", &mut text);
    let options = pixir::options_text();
    let options: Vec<&str> = options.lines().map(str::trim_end).collect();
    write!(text, "\n## Options\n\n```text\n{}\n```\n", options.join("\n").trim_end()).unwrap();
    assert_generated("docs/cli.md", &text);
}

#[test]
fn the_reference_of_settings_is_true() {
    assert_generated("docs/config.md", &pixir::settings_reference());
}

fn assert_generated(name: &str, text: &str) {
    let path = page(name);
    if fs::read_to_string(&path).unwrap_or_default() != text {
        fs::write(&path, text).unwrap();
        panic!("{name} was stale and has been rewritten: commit it");
    }
}

/// The fenced blocks of a page in a language.
fn snippets(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let fences = page.split(&fence).skip(1);
    fences.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Command lines in a JSON value: each `command` with its arguments.
fn starts(value: &serde_json::Value, found: &mut Vec<Vec<String>>) {
    if let Some(command) = value["command"].as_str() {
        let args = value["args"].as_array().into_iter().flatten();
        let args = args.map(|arg| arg.as_str().unwrap().to_owned());
        found.push(std::iter::once(command.to_owned()).chain(args).collect());
    }
    if let Some(fields) = value.as_object() {
        fields.values().for_each(|field| starts(field, found));
    }
}

#[test]
fn the_settings_of_editors_can_be_copied() {
    let editors = fs::read_to_string(page("docs/editors.md")).unwrap();
    let settings = snippets(&editors, "json");
    assert_eq!(settings.len(), 3, "Zed, JetBrains, acpx");
    let readme = fs::read_to_string(page("README.md")).unwrap();
    assert!(readme.contains("docs/editors.md"));
    for text in settings.iter().chain(&snippets(&readme, "json")) {
        let value: serde_json::Value = serde_json::from_str(text).expect(text);
        let is_for_editors = text.contains("agent_servers") || text.contains("\"agents\"");
        if !is_for_editors {
            continue;
        }
        let mut found = Vec::new();
        starts(&value, &mut found);
        assert_eq!(found, [["pixir", "acp"]], "{text}");
        pixir::command_grammar().try_get_matches_from(&found[0]).expect("Pixir takes it");
    }
    // Blocks in other languages start the same program, and their brackets are balanced.
    for (language, count) in [("lua", 2), ("elisp", 1)] {
        let pieces = snippets(&editors, language);
        assert_eq!(pieces.len(), count, "{language}");
        for piece in pieces {
            assert!(piece.contains("\"pixir\"") && piece.contains("\"acp\""), "{piece}");
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                assert_eq!(piece.matches(open).count(), piece.matches(close).count(), "{piece}");
            }
        }
    }
}

#[test]
fn the_client_that_is_documented_is_the_one_that_is_driven() {
    let script = fs::read_to_string(page(".ci/run")).unwrap();
    let pinned = script.split("acpx@").nth(1).unwrap();
    let pinned = pinned.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap();
    let editors = fs::read_to_string(page("docs/editors.md")).unwrap();
    let named: Vec<&str> = editors
        .split("acpx@")
        .skip(1)
        .map(|rest| rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap())
        .collect();
    assert!(!named.is_empty() && named.iter().all(|name| *name == pinned), "{named:?}, {pinned}");
}
