//! Undo and redo: conversation and files, through the binary.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::rendered_log;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::newest_log;
use crate::support::torture::{self, SuiteSize};

/// The mode and the content or link target of every path.
type UndoFileStates = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn file_states(folder: &Path) -> UndoFileStates {
    let mut snapshot = UndoFileStates::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".pixir") || path.ends_with(".git") {
                continue;
            }
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = if stat.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if stat.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let mode = if stat.is_symlink() { 0 } else { stat.mode() };
            snapshot.insert(path, (mode, content));
        }
    }
    snapshot
}

fn log_of(env: &TestEnv) -> String {
    rendered_log::render_log(&newest_log(&env.workspace()), &env.workspace())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_taken_back_with_its_files_and_brought_back() {
    let edit = json!({"path": "a.txt", "edits": [{"old_string": "one", "new_string": "1"}]});
    let mess =
        "rm b.txt; mkdir -p new/deep; echo hi > new/deep/c; chmod 755 run.sh; ln -sfn b.txt link";
    let env = TestEnv::with_replies([
        Reply::says("noted"),
        Reply::calls("edit", edit),
        Reply::calls("bash", json!({ "command": mess })),
        Reply::calls("write", json!({"path": "made/d.txt", "content": "d\n"})),
        Reply::says("changed everything"),
        Reply::says("as if nothing happened"),
    ])
    .await;
    env.write("a.txt", "one\ntwo\n");
    env.write("b.txt", "bee\r\n");
    env.write("run.sh", "#!/bin/sh\n");
    symlink("a.txt", env.workspace().join("link")).unwrap();
    let before = file_states(&env.workspace());

    env.run_pixir(&["remember this"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "change everything"]).assert_exit_code(0);
    let after = file_states(&env.workspace());
    assert_ne!(before, after);

    let looked = env.run_pixir(&["undo", "--dry-run"]).assert_exit_code(0);
    for line in ["takes back 1 Turn", "restore a.txt", "make    b.txt", "remove  new/deep/c"] {
        assert!(looked.out.contains(line), "{line}: {}", looked.out);
    }
    assert_eq!(file_states(&env.workspace()), after, "a preview changes nothing");

    env.run_pixir(&["undo", "--yes"]).assert_exit_code(1);
    assert_eq!(file_states(&env.workspace()), after, "what commands changed needs --force");
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!(file_states(&env.workspace()), before);
    let again = env.run_pixir(&["redo", "--yes", "--json"]).assert_exit_code(0);
    let again: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(again["output"]["direction"], "redo");
    assert_eq!(file_states(&env.workspace()), after);
    env.run_pixir(&["redo", "--yes"]).assert_exit_code(1);

    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "what did I say?"]).assert_exit_code(0);
    let requests = env.requests();
    let last = requests.last().unwrap();
    assert_eq!(last.user_texts(), ["remember this", "what did I say?"]);
    assert!(!last.body_text.contains("changed everything"));
    env.run_pixir(&["verify", newest_id(&env).as_str()]).assert_exit_code(0);
    insta::assert_snapshot!(log_of(&env));
}

fn newest_id(env: &TestEnv) -> String {
    newest_log(&env.workspace()).file_stem().unwrap().to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_changed_by_another_program_are_named_and_kept_without_force() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "echo theirs > a.txt; echo theirs > b.txt"})),
        Reply::says("done"),
    ])
    .await;
    env.write("a.txt", "a\n");
    env.write("b.txt", "b\n");
    env.run_pixir(&["change it"]).assert_exit_code(0);
    env.write("b.txt", "mine\n");
    let refused = env.run_pixir(&["undo", "--yes"]).assert_exit_code(1);
    assert!(refused.err.contains("b.txt was changed outside this session"), "{}", refused.err);
    assert!(refused.err.contains("--force"), "{}", refused.err);
    assert_eq!((env.read("a.txt"), env.read("b.txt")), ("theirs\n".into(), "mine\n".into()));
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!((env.read("a.txt"), env.read("b.txt")), ("a\n".into(), "b\n".into()));
    let log = fs::read_to_string(newest_log(&env.workspace())).unwrap();
    assert!(
        log.contains(r#""overwritten":[{"path":"b.txt""#),
        "the overwritten content is named by its hash"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_shown_what_will_happen_and_may_say_no() {
    let env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        Reply::says("done"),
    ])
    .await;
    env.run_pixir(&["change it"]).assert_exit_code(0);
    let mut terminal = TestTerminal::run(&env, &["undo"], &[]);
    terminal.wait_for_text("remove  a.txt");
    terminal.wait_for_text("Take this back?");
    terminal.type_keys("n\n");
    assert_eq!(terminal.wait_for_exit(), Some(3));
    assert_eq!(env.read("a.txt"), "new\n");
    let mut terminal = TestTerminal::run(&env, &["undo"], &[]);
    terminal.wait_for_text("Take this back?");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(!env.workspace().join("a.txt").exists());
    // No Turn is left to undo.
    let error = env.run_pixir(&["undo", "--yes", "--json"]).assert_exit_code(1);
    assert!(error.out.contains("no_turn"), "{}", error.out);
    env.run_pixir(&["undo", "--yes", "20200101T000000-000000"]).assert_exit_code(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_saved_while_the_question_is_open_is_not_lost() {
    let env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        Reply::says("done"),
    ])
    .await;
    env.run_pixir(&["change it"]).assert_exit_code(0);
    let mut terminal = TestTerminal::run(&env, &["undo"], &[]);
    terminal.wait_for_text("Take this back?");
    env.write("a.txt", "saved by a person\n");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(1));
    assert_eq!(env.read("a.txt"), "saved by a person\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_killed_is_taken_back_only_when_the_user_insists() {
    let env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "tool.txt", "content": "new\n"})),
        Reply::calls("bash", json!({"command": "echo two > a.txt; touch here; sleep 60"})),
    ])
    .await;
    env.write("a.txt", "one\n");
    let here = env.workspace().join("here");
    env.run_pixir_until_killed(&["change it"], || here.exists());
    env.write("mine.txt", "written by a person meanwhile\n");
    let before = file_states(&env.workspace());
    let refused = env.run_pixir(&["undo", "--yes"]).assert_exit_code(1);
    assert!(
        refused.err.contains("changed by a Turn that was cut off, or outside this session"),
        "{}",
        refused.err
    );
    assert!(refused.err.contains("mine.txt"), "{}", refused.err);
    assert_eq!(file_states(&env.workspace()), before, "nothing was touched");
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "one\n");
    assert!(!env.workspace().join("mine.txt").exists());
    assert!(!env.workspace().join("tool.txt").exists());
    // `redo` restores the undone changes.
    env.run_pixir(&["redo", "--yes"]).assert_exit_code(0);
    assert_eq!(file_states(&env.workspace()), before);
    // All changes are recorded; the author of those during a command is still not certain.
    let refused = env.run_pixir(&["undo", "--yes"]).assert_exit_code(1);
    assert!(refused.err.contains("changed while a command ran"), "{}", refused.err);
    assert!(!refused.err.contains("cut off"), "{}", refused.err);
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_is_named_before_anything_changes() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "rm gone; rm -r deep; echo new > a.txt"})),
        Reply::says("done"),
        Reply::calls("bash", json!({"command": "rm file; mkdir file; echo 1 > file/1"})),
        Reply::says("done"),
    ])
    .await;
    env.write("a.txt", "old\n");
    env.write("gone", "here\n");
    env.write("file", "a file\n");
    fs::create_dir(env.workspace().join("deep")).unwrap();
    env.write("deep/one", "1\n");
    env.run_pixir(&["change it"]).assert_exit_code(0);
    fs::create_dir(env.workspace().join("gone")).unwrap();
    env.write("gone/mine", "mine\n");
    env.write("deep", "now a file\n");
    let before = file_states(&env.workspace());
    let words = ["changed while a command ran", "other files are in the way: deep, gone"];
    for (args, words) in
        [&["undo", "--yes"][..], &["undo", "--yes", "--force"]].into_iter().zip(words)
    {
        let refused = env.run_pixir(args).assert_exit_code(1);
        assert!(refused.err.contains(words), "{}", refused.err);
        assert_eq!(file_states(&env.workspace()), before, "nothing was touched");
    }
    fs::remove_file(env.workspace().join("deep")).unwrap();
    fs::remove_dir_all(env.workspace().join("gone")).unwrap();
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!((env.read("gone"), env.read("deep/one")), ("here\n".into(), "1\n".into()));
    // A folder that the Turn itself made does not block undo.
    env.run_pixir(&["resume", "--last", "go on"]).assert_exit_code(0);
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!(env.read("file"), "a file\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_files_than_are_synced_one_by_one_come_back_too() {
    let command = "for n in $(seq 100); do echo new > f$n; done; rm f1; chmod 600 f2";
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({ "command": command })),
        Reply::says("done"),
    ])
    .await;
    for number in 1..=90 {
        env.write(&format!("f{number}"), format!("{number}\n"));
    }
    let before = file_states(&env.workspace());
    env.run_pixir(&["change it"]).assert_exit_code(0);
    let after = file_states(&env.workspace());
    let run = env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert!(run.out.contains("100 files changed"), "{}", run.out);
    assert_eq!(file_states(&env.workspace()), before);
    env.run_pixir(&["redo", "--yes"]).assert_exit_code(0);
    assert_eq!(file_states(&env.workspace()), after);
}

/// Replies for a Turn of random calls.
fn calls(random: &mut fastrand::Rng) -> Vec<Reply> {
    let name = |random: &mut fastrand::Rng| {
        let folder = ["", "a/", "a/b/", "c/"][random.usize(..4)];
        format!("{folder}{}", ["one", "two", "three.txt", ".hidden"][random.usize(..4)])
    };
    let mut replies = Vec::new();
    for step in 0..random.usize(1..6) {
        let file = name(random);
        replies.push(match random.u8(..6) {
            0 => Reply::calls("write", json!({"path": file, "content": format!("{step}\n")})),
            1 => Reply::calls(
                "write",
                json!({"path": "ignored.txt", "content": format!("{step}\n")}),
            ),
            2 => {
                let patch =
                    format!("*** Begin Patch\n*** Add File: {file}.added\n+{step}\n*** End Patch");
                Reply::calls("apply_patch", json!({ "patch": patch }))
            }
            _ => {
                let command = [
                    format!("rm -rf a; echo {step} > {file}.sh 2>/dev/null"),
                    format!("mkdir -p \"$(dirname {file})\"; printf '%s' {step} >> {file}"),
                    format!("chmod 640 {file}; mkdir -p made/by/hand"),
                    format!("rm -f {file}; mkdir -p \"$(dirname {file})\"; ln -s nowhere {file}"),
                    "mv c d 2>/dev/null || mkdir c".to_owned(),
                ][random.usize(..5)]
                .clone();
                Reply::calls("bash", json!({ "command": command }))
            }
        });
    }
    replies.push(Reply::says("done"));
    replies
}

#[tokio::test(flavor = "multi_thread")]
async fn random_workspaces_come_back_and_go_forward_again() {
    let started = Instant::now();
    let seed = torture::seed();
    let count = SuiteSize::from_environment().choose(20, 200);
    let mut changed = 0;
    for number in 0..count as u64 {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(number));
        let turns = random.usize(1..4);
        let replies: Vec<Reply> = (0..turns).flat_map(|_| calls(&mut random)).collect();
        let replies = Arc::new(Mutex::new(replies.into_iter()));
        let env = TestEnv::with_script(ModelScript::answering(move |_| {
            replies.lock().unwrap().next().unwrap_or_else(|| Reply::says("nothing left"))
        }))
        .await;
        env.write(".gitignore", "ignored*\n");
        for name in ["one", "two", "c/one", "a/b/two"] {
            if random.bool() {
                let path = env.workspace().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, format!("{name}\r\n")).unwrap();
                let mode = [0o644, 0o600, 0o755][random.usize(..3)];
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        let mut states = vec![file_states(&env.workspace())];
        for turn in 0..turns {
            let words =
                if turn == 0 { vec!["change it"] } else { vec!["resume", "--last", "go on"] };
            env.run_pixir(&words).assert_exit_code(0);
            states.push(file_states(&env.workspace()));
        }
        let undone = random.usize(1..=turns);
        changed += usize::from(states[turns - undone] != states[turns]);
        let run = env
            .run_pixir(&["undo", "--yes", "--force", "--turns", &undone.to_string()])
            .assert_exit_code(0);
        let place = format!("seed {seed}, number {number}, {undone} of {turns}: {}", run.out);
        assert_eq!(file_states(&env.workspace()), states[turns - undone], "undo, {place}");
        env.run_pixir(&["redo", "--yes"]).assert_exit_code(0);
        assert_eq!(file_states(&env.workspace()), states[turns], "redo, {place}");
    }
    assert!(changed * 2 > count, "only {changed} of {count} Workspaces were changed");
    let seconds = started.elapsed().as_secs_f64();
    torture::print_summary(&format!(
        "undo: {count} of 200 Workspaces came back exactly and went forward again, seed={seed}, {seconds:.1} s"
    ));
}
