//! Hints: a command that failed because the sandbox hid a file is explained, to the model and to the user.

use std::fs;
use std::os::unix::fs::symlink;

use pixir::scripted::{ModelScript, Reply};
use pixir::workbench::ToolAnswer;
use serde_json::json;

use super::home::{HomeEnv, HomeEnvOptions, run, write};
use crate::support::BinaryEnv;
use crate::support::acp_client::AcpClient;

/// A command that prints the error of ssh without a key, and fails.
const NO_KEY: &str = "echo 'git@host.example: Permission denied (publickey).' >&2; false";

#[test]
fn relative_paths_and_links_to_hidden_files_are_explained() {
    run(async {
        for subreaper in [false, true] {
            let home = HomeEnv::new(&HomeEnvOptions { subreaper, ..HomeEnvOptions::default() });
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
        let home = HomeEnv::new(&HomeEnvOptions::default());
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

fn speaks_of_git(answer: &ToolAnswer) -> bool {
    answer.details["notice"].as_str().is_some_and(|notice| notice.contains("git settings"))
}

#[test]
fn git_settings_that_name_hidden_files_are_reported_once() {
    run(async {
        let home = HomeEnv::new(&HomeEnvOptions::default());
        write(&home.path("hooks/pre-commit"), "#!/bin/sh\nexit 1\n");
        write(&home.path("lists/ignore"), "*.o\n");
        write(
            &home.path(".gitconfig"),
            "[core]\n\thooksPath = ~/hooks\n\texcludesFile = \"~/lists/ignore\"\n[user]\n\tname = Ada\n",
        );
        let quiet = home.run("true").await;
        assert!(!speaks_of_git(&quiet), "no git ran: {}", quiet.details);
        let result = home.run("git init -q . && git status").await;
        assert!(result.ok, "{}", result.text);
        let notice = result.details["notice"].as_str().unwrap_or_default();
        let hooks = format!("core.hooksPath ({})", home.path("hooks").display());
        let list = format!("core.excludesFile ({})", home.path("lists/ignore").display());
        for words in [hooks.as_str(), list.as_str(), "without effect", "sandbox.read"] {
            assert!(notice.contains(words), "{words}: {notice}");
        }
        assert!(result.text.contains("without effect"), "the model knows too: {}", result.text);
        let again = home.run("git status").await;
        assert!(!speaks_of_git(&again), "once: {}", again.details);
        // Visible hooks and lists take effect.
        let read = &["~/hooks", "~/lists"];
        let home = HomeEnv::new(&HomeEnvOptions { read, ..HomeEnvOptions::default() });
        write(&home.path("hooks/pre-commit"), "#!/bin/sh\nexit 1\n");
        write(&home.path(".gitconfig"), "[core]\n\thooksPath = ~/hooks\n");
        let result = home.run("git init -q . && git status").await;
        assert!(!speaks_of_git(&result), "{}", result.details);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_sees_how_to_show_a_hidden_file() {
    let call = || Reply::calls("bash", json!({"command": "cat ~/letter.txt"}));
    let script = ModelScript::new([
        call(),
        Reply::says("hidden"),
        call(),
        Reply::says("hidden"),
        call(),
        Reply::says("hidden"),
    ]);
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let home = env.home();
    fs::write(home.join("letter.txt"), "private\n").unwrap();
    let line = format!("{} is hidden from commands", home.join("letter.txt").display());
    tokio::task::block_in_place(|| {
        let ended = env.run(&["read my letter"]);
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
        assert!(ended.stderr.contains("sandbox.read"), "{}", ended.stderr);
        for capabilities in [json!({}), json!({"_meta": {"terminal_output": true}})] {
            let mut client = AcpClient::start(&env, &["--auto"]);
            client.initialize(capabilities);
            let id = client.new_session(&env.workspace());
            client.run_prompt(&id, "read my letter").unwrap();
            let updates = client.updates();
            let end = updates.iter().rfind(|update| update["status"] == "failed").unwrap();
            let shown = end["content"].to_string();
            assert!(shown.contains(&line) && shown.contains("sandbox.read"), "{end}");
            assert!(client.close_and_wait().0.success());
        }
    });
}
