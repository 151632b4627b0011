//! The quickstart page: every command of `docs/quickstart.md` that needs neither an account nor a
//! network is run as it is written, in an empty home; the others are only parsed.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::leaks;
use crate::support::sign_in_env::run_command;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::PIXIR;

/// A fenced block of the page.
struct PageSnippet {
    /// The words after the language: the requirements of the block.
    needs: String,
    text: String,
}

fn pieces(page: &str) -> Vec<PageSnippet> {
    let mut found = Vec::new();
    let mut open: Option<PageSnippet> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                let (name, needs) = language.split_once(' ').unwrap_or((language, ""));
                assert_eq!(name, "sh", "every piece of this page is a command");
                open = Some(PageSnippet { needs: needs.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(piece)) => {
                piece.text.push_str(line);
                piece.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    found
}

/// The blocks of the page.
fn page() -> Vec<PageSnippet> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/quickstart.md");
    pieces(&fs::read_to_string(path).unwrap())
}

/// The commands of the page as one script, with a mark before each block.
fn script(pieces: &[PageSnippet]) -> String {
    // A line that begins with `!` must fail, which `set -e` does not check.
    let line = |line: &str| match line.strip_prefix("! ") {
        Some(rest) => format!("if {rest}; then echo 'this should fail: {rest}' >&2; exit 1; fi\n"),
        None => format!("{line}\n"),
    };
    let mut text = "set -eu\n".to_owned();
    for (place, piece) in pieces.iter().enumerate() {
        writeln!(text, "echo '== piece {place}'").unwrap();
        text.extend(piece.text.lines().map(line));
    }
    text
}

/// A shell in an empty home and an empty folder, with the built binary on the PATH.
fn shell(folder: &Path) -> Command {
    for name in ["home", "tmp", "work", "bin"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(PIXIR, folder.join("bin/pixir")).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let path = [folder.join("bin").as_os_str(), &path].join(std::ffi::OsStr::new(":"));
    let mut command = Command::new("sh");
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", folder.join("home"))
        .env("TMPDIR", folder.join("tmp"))
        .current_dir(folder.join("work"));
    command
}

/// Runs a script in a new shell.
fn typed(script: &str) -> crate::support::sign_in_env::RunOutput {
    let folder = tempfile::tempdir().unwrap();
    let run = run_command(
        shell(folder.path())
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    leaks::check_folder(folder.path(), &leaks::planted_secrets(), &[]);
    run
}

#[test]
fn what_the_quickstart_promises_happens() {
    let pieces: Vec<PageSnippet> =
        page().into_iter().filter(|piece| piece.needs.is_empty()).collect();
    assert!(pieces.len() >= 8, "only {} blocks can be run", pieces.len());
    let run = typed(&script(&pieces)).assert_exit_code(0);
    for words in [
        "all 4 checks passed",
        "a check failed",
        "1 earlier turn",
        "4 of 4 steps ready",
        "3 of 3 steps ready",
        "6 of 6 steps ready",
        "compare",
        "protocolVersion",
    ] {
        assert!(run.out.contains(words), "{words}\n{}\n{}", run.out, run.err);
    }
}

/// A question would discard the pasted lines after it, because earlier input is no answer.
#[test]
fn the_blocks_of_a_session_and_its_undo_work_when_they_are_pasted_into_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let is_meant = |piece: &PageSnippet| {
        piece.needs.is_empty()
            && ["mkdir sums", "pixir resume", "pixir undo"].iter().any(|it| piece.text.contains(it))
    };
    let pasted: String = page().into_iter().filter(is_meant).map(|piece| piece.text).collect();
    let mut terminal =
        TestTerminal::start(shell(folder.path()).env("TERM", "xterm").env("PS1", "$ "));
    terminal.wait_for_text("$ ");
    terminal.type_keys(&format!("{pasted}echo all \"done\"\nexit\n"));
    terminal.wait_for_text("all done");
    terminal.wait_for_exit();
    let screen = terminal.screen();
    assert!(screen.contains("takes back 2 Turns"), "{screen}");
    assert!(screen.contains("brings back 2 Turns"), "{screen}");
    assert_eq!(screen.matches("1 file changed").count(), 2, "{screen}");
    let mended = fs::read_to_string(folder.path().join("work/sums/total.sh")).unwrap();
    assert!(!mended.contains("total=$number\n"), "{mended}");
    leaks::check_folder(folder.path(), &leaks::planted_secrets(), &[]);
}

#[test]
fn a_promise_that_is_not_kept_is_noticed() {
    let broken = |text: &str| {
        let piece = PageSnippet { needs: String::new(), text: text.to_owned() };
        typed(&script(&[piece])).code
    };
    assert_eq!(broken("pixir --version\n"), Some(0));
    assert_eq!(broken("pixir sessoins\n"), Some(2));
    assert_eq!(broken("pixir verify --last\npixir --version\n"), Some(2));
    assert_eq!(broken("! pixir --version\n"), Some(1));
    assert_eq!(broken("! pixir sessoins\n"), Some(0));
}

/// Only known requirements exclude a block from the run.
#[test]
fn what_is_not_run_says_why() {
    for piece in page() {
        assert!(
            ["", "account", "build"].contains(&piece.needs.as_str()),
            "`{}` is no reason not to run:\n{}",
            piece.needs,
            piece.text
        );
    }
}
