//! Undo in large Workspaces and in git repositories, whatever commands do to the repository meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::newest_log;
use crate::support::torture::{self, SuiteSize};

/// The mode and the content or target of every path.
pub type GitFileStates = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// All files of a Workspace, without the folders of Pixir and of git.
pub fn files(folder: &Path) -> GitFileStates {
    let mut files = GitFileStates::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // A submodule has a file of that name.
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
            files.insert(path, (mode, content));
        }
    }
    files
}

pub fn git(folder: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(["-c", "user.name=a", "-c", "user.email=a@b.c"]);
    command.args(["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"]).args(args);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes this many files and commits them on two branches.
pub fn repository(folder: &Path, count: usize) {
    git(folder, &["init", "-q"]);
    fs::write(folder.join(".gitignore"), "ignored*\n.pixir\n").unwrap();
    write_files(folder, count);
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "one"]);
    git(folder, &["checkout", "-qb", "other"]);
    for number in (0..count).step_by(3) {
        fs::write(folder.join(file_name(number)), format!("other {number}\n")).unwrap();
    }
    git(folder, &["commit", "-qam", "two"]);
    git(folder, &["checkout", "-q", "main"]);
}

pub fn file_name(number: usize) -> String {
    format!("{}/file{number}", ["a", "a/b", "c"][number % 3])
}

pub fn write_files(folder: &Path, count: usize) {
    for number in 0..count {
        let path = folder.join(file_name(number));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("content {number}\n").repeat(number % 20 + 1)).unwrap();
    }
}

/// Sizes in the snapshot store: copied bytes, and bytes of hard links to git objects.
fn stored_bytes(env: &TestEnv) -> (u64, u64) {
    let mut copied = 0;
    let mut pinned = 0;
    let mut waiting = vec![env.workspace().join(".pixir/snapshots")];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let stat = entry.metadata().unwrap();
            if stat.is_dir() {
                waiting.push(entry.path());
            } else if entry.path().components().any(|part| part.as_os_str() == "git") {
                pinned += stat.len();
            } else {
                copied += stat.len();
            }
        }
    }
    (copied, pinned)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_git_holds_are_not_copied_and_come_back_after_git_is_removed() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "true"})),
        Reply::calls("bash", json!({"command": "rm -rf .git a c"})),
        Reply::says("all gone"),
    ])
    .await;
    repository(&env.workspace(), 900);
    git(&env.workspace(), &["gc", "-q"]);
    env.write("untracked", "not in git\n");
    let before = files(&env.workspace());
    env.run_pixir(&["remove it"]).assert_exit_code(0);
    let after = files(&env.workspace());
    // Files of `.git` that the sandbox protects stay.
    assert!(after.len() < 5 && !env.workspace().join(".git/objects").exists());
    let (copied, pinned) = stored_bytes(&env);
    let contents: usize = before.values().map(|(_, content)| content.len()).sum();
    assert!(copied < contents as u64 / 2, "{copied} of {contents} bytes were copied");
    assert!(pinned > 0);
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!(files(&env.workspace()), before);
    env.run_pixir(&["redo", "--yes"]).assert_exit_code(0);
    assert_eq!(files(&env.workspace()), after);
    let log = fs::read_to_string(newest_log(&env.workspace())).unwrap();
    assert_eq!(log.matches("history_rewound").count(), 2, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_git_that_a_command_overwrote_are_a_refusal_and_nothing_changes() {
    let damage =
        "chmod -R u+w .git/objects; for f in .git/objects/pack/*.pack; do : > $f; done; rm -rf a";
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": damage})),
        Reply::says("done"),
    ])
    .await;
    repository(&env.workspace(), 200);
    git(&env.workspace(), &["gc", "-q"]);
    env.run_pixir(&["damage it"]).assert_exit_code(0);
    let after = files(&env.workspace());
    let refused = env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(1);
    assert!(refused.err.contains("a/"), "{}", refused.err);
    assert_eq!(files(&env.workspace()), after, "no file was restored in part");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_files_than_the_setting_allows_leave_only_file_tools_to_undo_and_that_is_said_once() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "echo x > c/file2"})),
        Reply::calls("write", json!({"path": "a/file0", "content": "new\n"})),
        Reply::says("done"),
        Reply::calls("bash", json!({"command": "true"})),
        Reply::says("done again"),
    ])
    .await;
    write_files(&env.workspace(), 100);
    let config = env.home().join(".pixir");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.json"), r#"{"undo": {"max_files": 99}}"#).unwrap();
    let first = env.run_pixir(&["change it", "--json"]).assert_exit_code(0);
    assert!(first.err.contains("undo covers only what file tools change"), "{}", first.err);
    assert!(first.err.contains("undo.max_files"), "{}", first.err);
    let undone = env.run_pixir(&["undo", "--yes"]).assert_exit_code(0);
    assert!(undone.out.contains("not covered"), "{}{}", undone.out, undone.err);
    assert_eq!(env.read("a/file0"), "content 0\n");
    assert_eq!(env.read("c/file2"), "x\n");
    let value: Value = serde_json::from_str(&first.out).unwrap();
    assert_eq!(value["ok"], true);
}

/// Replies for a Turn of random git commands.
fn commands(random: &mut fastrand::Rng) -> Vec<Reply> {
    let mut replies = Vec::new();
    for step in 0..random.usize(1..4) {
        let file = file_name(random.usize(..120));
        let command = match random.u8(..14) {
            0 => "git gc -q --prune=now".to_owned(),
            1 => "git checkout -q other".to_owned(),
            2 => "git checkout -q main".to_owned(),
            3 => "rm -rf .git".to_owned(),
            4 => "git add -A; git -c user.name=a -c user.email=a@b.c commit -qm more".to_owned(),
            5 => "git stash -q; git stash pop -q".to_owned(),
            6 => "git sparse-checkout set --no-cone c".to_owned(),
            7 => "rm -rf a".to_owned(),
            8 => "git repack -adq; git prune".to_owned(),
            9 => "mv c d; mkdir -p sub; echo more > sub/more".to_owned(),
            10 => format!("chmod 755 {file}; echo {step} >> {file}"),
            11 => {
                format!("echo {step} > untracked{step}; echo {step} > ignored{step}; rm -f {file}")
            }
            12 => format!("ln -sfn nowhere {file}"),
            _ => format!("git rm -qr --cached . ; printf '%s' {step} > {file}"),
        };
        let command = format!("{{ {command}; }} > /dev/null 2>&1; true");
        replies.push(Reply::calls("bash", json!({ "command": command })));
    }
    replies.push(Reply::says("done"));
    replies
}

/// Makes a random Workspace: with or without git, as a sparse checkout, with a submodule, untracked or ignored files.
fn random_workspace(env: &TestEnv, random: &mut fastrand::Rng) -> &'static str {
    let folder = env.workspace();
    let kind = ["none", "packed", "loose", "sparse", "submodule"][random.usize(..5)];
    match kind {
        "none" => write_files(&folder, 120),
        _ => repository(&folder, 120),
    }
    match kind {
        "packed" => git(&folder, &["gc", "-q"]),
        "sparse" => git(&folder, &["sparse-checkout", "set", "--no-cone", "a", "/.gitignore"]),
        "submodule" => {
            let inner = env.home().join("inner");
            fs::create_dir_all(&inner).unwrap();
            repository(&inner, 80);
            let inner = inner.to_str().unwrap().to_owned();
            git(&folder, &["submodule", "--quiet", "add", &inner, "sub"]);
            git(&folder, &["commit", "-qm", "submodule"]);
        }
        _ => {}
    }
    if random.bool() {
        env.write("untracked", "untracked\n");
        env.write("ignored", "ignored\n");
    }
    kind
}

/// Writes limits that some of the Workspaces exceed, and others only after some Turns.
fn set_random_limits(env: &TestEnv, random: &mut fastrand::Rng) {
    let (max_files, max_bytes) = (random.usize(10..150), random.usize(2_000..60_000));
    let folder = env.home().join(".pixir");
    fs::create_dir_all(&folder).unwrap();
    let settings = json!({"undo": {"max_files": max_files, "max_bytes": max_bytes}});
    fs::write(folder.join("config.json"), settings.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn random_repositories_come_back_exactly_or_are_refused_with_the_reason() {
    let started = Instant::now();
    let seed = torture::seed();
    let count = SuiteSize::from_environment().choose(12, 300);
    let mut refusals = 0;
    let mut changed = 0;
    let mut uncovered = 0;
    for number in 0..count as u64 {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(number));
        let turns = random.usize(1..4);
        let replies: Vec<Reply> = (0..turns).flat_map(|_| commands(&mut random)).collect();
        let replies = Arc::new(Mutex::new(replies.into_iter()));
        let env = TestEnv::with_script(ModelScript::answering(move |_| {
            replies.lock().unwrap().next().unwrap_or_else(|| Reply::says("nothing left"))
        }))
        .await;
        let kind = random_workspace(&env, &mut random);
        let is_limited = random.u8(..3) == 0;
        if is_limited {
            set_random_limits(&env, &mut random);
        }
        // Ignored files are not recorded for undo.
        let covered = |mut all: GitFileStates| {
            all.retain(|path, _| {
                !path.file_name().unwrap().to_str().unwrap().starts_with("ignored")
            });
            all
        };
        let mut states = vec![covered(files(&env.workspace()))];
        for turn in 0..turns {
            let first = vec!["change it"];
            let words = if turn == 0 { first } else { vec!["resume", "--last", "go on"] };
            env.run_pixir(&words).assert_exit_code(0);
            states.push(covered(files(&env.workspace())));
        }
        let undone = random.usize(1..=turns);
        changed += usize::from(states[turns - undone] != states[turns]);
        let limits = if is_limited { ", with limits" } else { "" };
        let place = format!("seed {seed}, number {number}, {kind}{limits}, {undone} of {turns}");
        let all = files(&env.workspace());
        let ran = env.run_pixir(&["undo", "--yes", "--force", "--turns", &undone.to_string()]);
        if ran.code != Some(0) {
            assert!(!ran.err.trim().is_empty(), "{place}");
            assert_eq!(files(&env.workspace()), all, "refused, {place}: {}", ran.err);
            refusals += 1;
            continue;
        }
        let now = covered(files(&env.workspace()));
        // Beyond the limits a change may stay, but not without a word.
        let is_told = ["not covered", "no longer known"].iter().any(|note| ran.out.contains(note));
        if is_limited && is_told {
            uncovered += 1;
            continue;
        }
        assert_eq!(now, states[turns - undone], "undo, {place}: {}", ran.out);
        env.run_pixir(&["redo", "--yes"]).assert_exit_code(0);
        assert_eq!(covered(files(&env.workspace())), states[turns], "redo, {place}");
    }
    let exact = count - refusals - uncovered;
    assert!(changed > 0 && exact > 0, "{changed} changed, {exact} exact of {count}");
    let seconds = started.elapsed().as_secs_f64();
    torture::print_summary(&format!(
        "undo in git: {exact} of {count} repositories came back exactly, {refusals} refused with the reason, {uncovered} \
         beyond their limits, seed={seed}, {seconds:.1} s"
    ));
}
