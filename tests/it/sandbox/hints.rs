//! Hints: a command that failed because the sandbox hid a file is explained, to the model and to the user.

use std::fs;
use std::os::unix::fs::symlink;

use pixir::scripted::{Reply, Script};
use pixir::workbench::Answer;
use serde_json::json;

use super::home::{Options, UserHome, run, write};
use crate::support::Stage;
use crate::support::editor::Editor;

/// Says what ssh says without a key, and fails.
const NO_KEY: &str = "echo 'git@host.example: Permission denied (publickey).' >&2; false";

#[test]
fn relative_paths_and_links_to_hidden_files_are_explained() {
    run(async {
        for subreaper in [false, true] {
            let home = UserHome::new(&Options { subreaper, ..Options::default() });
            write(&home.path("projects/beside/data"), "private\n");
            symlink(home.path("documents"), home.path("projects/work").join("docs")).unwrap();
            symlink("../../documents/letter", home.path("projects/work").join("letter")).unwrap();
            for (command, path) in [
                ("cat ../beside/data", "projects/beside/data"),
                ("cat ./../beside/data", "projects/beside/data"),
                ("cat docs/letter", "documents/letter"),
                ("cat letter", "documents/letter"),
                ("cat < letter", "documents/letter"),
            ] {
                let answer = home.run(command).await;
                let line = format!("{} is hidden from commands", home.path(path).display());
                assert!(answer.text.contains(&line), "{command}: {}", answer.text);
                let notice = answer.details["notice"].as_str().unwrap_or_default();
                assert!(notice.contains(&line) && notice.contains("sandbox.read"), "{notice}");
            }
            for command in ["cat ../nothing", "cat nothing", "cat list; false", "false"] {
                let answer = home.run(command).await;
                assert!(!answer.text.contains("is hidden"), "{command}: {}", answer.text);
            }
        }
    });
}

#[test]
fn ssh_keys_are_named_when_ssh_finds_none() {
    run(async {
        let home = UserHome::new(&Options::default());
        let answer = home.run(NO_KEY).await;
        for words in [".ssh is hidden from commands", "sandbox.read", "id_ed25519", "known_hosts"] {
            assert!(answer.text.contains(words), "{words}: {}", answer.text);
            assert!(
                answer.details["notice"].as_str().unwrap().contains(words),
                "{}",
                answer.details
            );
        }
        let answer = home.run("echo 'publickey is a word'; false").await;
        assert!(!answer.text.contains(".ssh"), "{}", answer.text);
        fs::remove_dir_all(home.path(".ssh")).unwrap();
        let answer = home.run(NO_KEY).await;
        assert!(!answer.text.contains(".ssh"), "there are none: {}", answer.text);
    });
}

fn speaks_of_git(answer: &Answer) -> bool {
    answer.details["notice"].as_str().is_some_and(|notice| notice.contains("git settings"))
}

#[test]
fn git_settings_that_name_hidden_files_are_told_once() {
    run(async {
        let home = UserHome::new(&Options::default());
        write(&home.path("hooks/pre-commit"), "#!/bin/sh\nexit 1\n");
        write(&home.path("lists/ignore"), "*.o\n");
        write(
            &home.path(".gitconfig"),
            "[core]\n\thooksPath = ~/hooks\n\texcludesFile = \"~/lists/ignore\"\n[user]\n\tname = Ada\n",
        );
        let quiet = home.run("true").await;
        assert!(!speaks_of_git(&quiet), "no git ran: {}", quiet.details);
        let told = home.run("git init -q . && git status").await;
        assert!(told.ok, "{}", told.text);
        let notice = told.details["notice"].as_str().unwrap_or_default();
        let hooks = format!("core.hooksPath ({})", home.path("hooks").display());
        let list = format!("core.excludesFile ({})", home.path("lists/ignore").display());
        for words in [hooks.as_str(), list.as_str(), "without effect", "sandbox.read"] {
            assert!(notice.contains(words), "{words}: {notice}");
        }
        assert!(told.text.contains("without effect"), "the model knows too: {}", told.text);
        let again = home.run("git status").await;
        assert!(!speaks_of_git(&again), "once: {}", again.details);
        // What is shown has its effect.
        let read = &["~/hooks", "~/lists"];
        let home = UserHome::new(&Options { read, ..Options::default() });
        write(&home.path("hooks/pre-commit"), "#!/bin/sh\nexit 1\n");
        write(&home.path(".gitconfig"), "[core]\n\thooksPath = ~/hooks\n");
        let told = home.run("git init -q . && git status").await;
        assert!(!speaks_of_git(&told), "{}", told.details);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_sees_how_to_show_a_hidden_file() {
    let call = || Reply::calls("bash", json!({"command": "cat ~/letter.txt"}));
    let script = Script::new([
        call(),
        Reply::says("hidden"),
        call(),
        Reply::says("hidden"),
        call(),
        Reply::says("hidden"),
    ]);
    let stage = Stage::new(Stage::mark(), script).await;
    let home = stage.home();
    fs::write(home.join("letter.txt"), "private\n").unwrap();
    let line = format!("{} is hidden from commands", home.join("letter.txt").display());
    tokio::task::block_in_place(|| {
        let ended = stage.run(&["read my letter"]);
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
        assert!(ended.stderr.contains("sandbox.read"), "{}", ended.stderr);
        for capabilities in [json!({}), json!({"_meta": {"terminal_output": true}})] {
            let mut editor = Editor::start(&stage, &["--auto"]);
            editor.initialize(capabilities);
            let id = editor.session(&stage.workspace());
            editor.turn(&id, "read my letter").unwrap();
            let updates = editor.updates();
            let end = updates.iter().rfind(|update| update["status"] == "failed").unwrap();
            let shown = end["content"].to_string();
            assert!(shown.contains(&line) && shown.contains("sandbox.read"), "{end}");
            assert!(editor.end().0.success());
        }
    });
}
