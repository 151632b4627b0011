//! Pages that cannot lie: the command reference is written here.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::Command;

fn page(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn describe(command: &mut Command, name: &str, page: &mut String) {
    let help = command.clone().term_width(100).render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(page, "\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end()).unwrap();
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
    let mut text =
        "# The command line\n\nWritten by a test from the program's own help.\n".to_owned();
    let mut command = pixir::command();
    command.build();
    describe(&mut command, "pixir", &mut text);
    let path = page("docs/cli.md");
    if fs::read_to_string(&path).unwrap_or_default() != text {
        fs::write(&path, text).unwrap();
        panic!("docs/cli.md was stale and has been rewritten: commit it");
    }
}
