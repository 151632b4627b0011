//! Child Workspaces: changes of a child, their merge, and its undo.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pixir::scripted::{ModelScript, Reply};
use pixir::workbench::ChildWorkspaceBench;
use pixir::{Config, Home, LogDurability};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::{PIXIR, log_files, newest_log};
use crate::support::{leaks, rendered_log, syscall_tracer};

pub type FileStates = BTreeMap<PathBuf, (u32, Vec<u8>)>;

pub fn file_states(folder: &Path) -> FileStates {
    let mut snapshot = FileStates::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(inside) = waiting.pop() {
        for entry in fs::read_dir(inside).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".pixir") || path.ends_with(".git") {
                continue;
            }
            // The file may be removed during the scan.
            let Ok(stat) = fs::symlink_metadata(&path) else { continue };
            let content = if stat.is_symlink() {
                fs::read_link(&path).map(|to| to.into_os_string().into_encoded_bytes())
            } else if stat.is_dir() {
                waiting.push(path.clone());
                Ok(Vec::new())
            } else {
                fs::read(&path)
            };
            let mode = if stat.is_symlink() { 0 } else { stat.mode() };
            snapshot.insert(path, (mode, content.unwrap_or_default()));
        }
    }
    snapshot
}

/// A test environment with a parent Session and its children.
pub struct FamilyEnv {
    pub env: TestEnv,
    pub child_factory: ChildWorkspaceBench,
    pub parent: String,
}

impl FamilyEnv {
    /// Runs one Turn of the parent; these replies are for the Turns after it.
    pub async fn with_replies(replies: impl IntoIterator<Item = Reply>) -> Self {
        let env = TestEnv::with_replies([Reply::says("hello")].into_iter().chain(replies)).await;
        Self::from_env(env, |_| {})
    }

    pub fn from_env(env: TestEnv, adjust: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(Home::new(env.home().join(".pixir")));
        config.durability = LogDurability::None;
        adjust(&mut config);
        let environment = vec![
            (OsString::from("PATH"), std::env::var_os("PATH").unwrap()),
            (OsString::from("HOME"), env.home().into()),
        ];
        let child_factory = ChildWorkspaceBench::new(&config, PIXIR.into(), environment);
        env.run_pixir(&["hello", "there"]).assert_exit_code(0);
        let parent = id_of(&newest_log(&env.workspace()));
        Self { env, child_factory, parent }
    }

    pub async fn child(&self, mode: &str) -> (String, PathBuf) {
        let workspace = self.env.workspace();
        self.child_factory.create_child(&workspace, &self.parent, "sub_1", mode).await.unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.env.run_pixir(&[args, &["--json"]].concat()).out).unwrap()
    }

    /// Merge Events in the parent's Log: event, child and files.
    pub fn merges(&self) -> Vec<(String, String, Vec<String>)> {
        let log = self.env.workspace().join(format!(".pixir/sessions/{}.ndjson", self.parent));
        let text = fs::read_to_string(log).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        events
            .filter(|event| event["type"] == "subagent_event")
            .map(|event| {
                let data = &event["data"];
                let files = data["files"].as_array().unwrap().iter().map(word).collect();
                assert_eq!(data["record"].as_str().map(str::len), Some(64));
                (word(&data["event"]), word(&data["child_session_id"]), files)
            })
            .collect()
    }

    pub fn log(&self) -> String {
        let log = self.env.workspace().join(format!(".pixir/sessions/{}.ndjson", self.parent));
        rendered_log::render_log(&log, &self.env.workspace())
    }
}

pub fn id_of(log: &Path) -> String {
    log.file_stem().unwrap().to_str().unwrap().to_owned()
}

pub fn git(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("HOME", folder).env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@x");
    }
    let output = command.arg("-C").arg(folder).args(args).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "git {args:?}: {text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn two_children_that_change_different_files_are_merged_one_after_the_other() {
    let family = FamilyEnv::with_replies([
        Reply::calls(
            "edit",
            json!({"path": "a.txt", "edits": [{"old_string": "a", "new_string": "A"}]}),
        ),
        Reply::calls("bash", json!({"command": "pwd; echo new > made.txt; rm gone.txt; ls -a"})),
        Reply::says("did a"),
        Reply::calls("write", json!({"path": "b.txt", "content": "B\n"})),
        Reply::says("did b"),
    ])
    .await;
    let env = &family.env;
    for name in ["a.txt", "b.txt", "gone.txt"] {
        env.write(name, format!("{}\n", &name[..1]));
    }
    let (one, folder) = family.child("isolated").await;
    let (other, _) = family.child("isolated").await;
    assert_eq!(folder, env.home().join(".pixir/workspaces").join(&one));
    env.run_pixir(&["resume", &one, "change a"]).assert_exit_code(0);
    env.run_pixir(&["resume", &other, "change b"]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "a\n", "the parent's files are not the child's");

    let changes = env.run_pixir(&["changes", &one]).assert_exit_code(0);
    assert_eq!(changes.out, "M a.txt\nD gone.txt\nA made.txt\n");
    let diff = env.run_pixir(&["changes", &one, "--diff"]).assert_exit_code(0);
    assert!(diff.out.contains("-a\n+A\n"), "{}", diff.out);
    let listed = env.run_pixir(&["changes"]).assert_exit_code(0).out;
    assert!(listed.contains(&one) && listed.contains(&other), "{listed}");

    let before = file_states(&env.workspace());
    let looked = env.run_pixir(&["merge", &one, "--dry-run"]).assert_exit_code(0);
    assert!(
        looked.out.contains("change a.txt") && looked.out.contains("dry run"),
        "{}",
        looked.out
    );
    assert_eq!(file_states(&env.workspace()), before);
    env.run_pixir(&["merge", "--yes", &one]).assert_exit_code(0);
    // The tool name `merge_child` is a command here, never a prompt.
    env.run_pixir(&["merge_child", "--yes", &other]).assert_exit_code(0);
    assert_eq!((env.read("a.txt"), env.read("b.txt")), ("A\n".into(), "B\n".into()));
    assert_eq!(env.read("made.txt"), "new\n");
    assert!(!env.workspace().join("gone.txt").exists());
    let again = env.run_pixir(&["merge", "--yes", &one]).assert_exit_code(0);
    assert!(again.out.contains("nothing to merge"), "{}", again.out);

    // The merges are undone in any order, because they have no file in common.
    env.run_pixir(&["merge", "--yes", &one, "--undo"]).assert_exit_code(0);
    assert_eq!((env.read("a.txt"), env.read("b.txt")), ("a\n".into(), "B\n".into()));
    assert_eq!(env.read("gone.txt"), "g\n");
    env.run_pixir(&["merge", "--yes", &one, "--undo"]).assert_exit_code(2);
    env.run_pixir(&["verify", &family.parent]).assert_exit_code(0);

    assert_eq!(family.child_factory.close(&env.workspace(), &other).await.unwrap(), "removed");
    let kept = family.child_factory.close(&env.workspace(), &one).await.unwrap();
    assert_eq!(kept, "kept with 3 changes", "what was taken back is nowhere else");
    let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let of_one = files(&["gone.txt", "a.txt", "made.txt"]);
    let expected = [
        ("merged".to_owned(), one.clone(), of_one.clone()),
        ("merged".to_owned(), other, files(&["b.txt"])),
        ("merge_taken_back".to_owned(), one, of_one),
    ];
    assert_eq!(family.merges(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_is_named_and_nothing_is_written() {
    let family = FamilyEnv::with_replies([]).await;
    let env = &family.env;
    for (name, text) in [
        ("lines", "1\n2\n3\n"),
        ("apart", "1\r\n2\r\n3\r\n"),
        ("removed", "x\n"),
        ("missed", "x\n"),
        ("binary", "\0one"),
        ("mode", "x\n"),
        ("link", "x\n"),
    ] {
        env.write(name, text);
    }
    let (child, folder) = family.child("isolated").await;
    let here = env.workspace();
    let there = folder;
    fs::write(here.join("lines"), "1\nours\n3\n").unwrap();
    fs::write(there.join("lines"), "1\ntheirs\n3\n").unwrap();
    fs::write(here.join("apart"), "ours\r\n2\r\n3\r\n").unwrap();
    fs::write(there.join("apart"), "1\r\n2\r\ntheirs\r\n").unwrap();
    fs::write(here.join("removed"), "changed\n").unwrap();
    fs::remove_file(there.join("removed")).unwrap();
    fs::remove_file(here.join("missed")).unwrap();
    fs::write(there.join("missed"), "changed\n").unwrap();
    fs::write(here.join("binary"), "\0two").unwrap();
    fs::write(there.join("binary"), "\0three").unwrap();
    fs::set_permissions(here.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(there.join("mode"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(here.join("link"), "changed\n").unwrap();
    fs::remove_file(there.join("link")).unwrap();
    symlink("lines", there.join("link")).unwrap();
    fs::write(there.join("free"), "only the child\n").unwrap();
    let before = file_states(&here);
    let looked = family.json(&["merge", &child, "--dry-run"]);
    let kinds: BTreeMap<&str, &str> = looked["output"]["conflicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["path"].as_str().unwrap(), it["kind"].as_str().unwrap()))
        .collect();
    let expected = [
        ("binary", "binary"),
        ("lines", "overlap"),
        ("link", "kinds"),
        ("missed", "removed_by_parent"),
        ("mode", "modes"),
        ("removed", "removed_by_child"),
    ];
    assert_eq!(kinds, BTreeMap::from(expected));
    let refused = env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(1);
    assert!(refused.err.contains("nothing was merged: "), "{}", refused.err);
    assert!(refused.err.contains("line 2"), "{}", refused.err);
    assert!(refused.err.contains("pixir changes"), "a next action: {}", refused.err);
    assert_eq!(file_states(&here), before, "nothing was touched");
    // The user resolves the conflicts in the child's Workspace, and the rest is merged.
    for name in ["lines", "removed", "binary", "link"] {
        fs::remove_file(there.join(name)).ok();
        fs::copy(here.join(name), there.join(name)).unwrap();
    }
    fs::remove_file(there.join("missed")).unwrap();
    fs::set_permissions(there.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(env.read("apart"), "ours\r\n2\r\ntheirs\r\n", "endings are kept");
    assert_eq!(env.read("free"), "only the child\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_merges_its_child_and_the_turn_is_taken_back() {
    let family = FamilyEnv::with_replies([
        Reply::calls("merge_child", json!({"id": "sub_1", "dry_run": true})),
        Reply::calls("merge_child", json!({"id": "sub_1"})),
        Reply::says("merged"),
    ])
    .await;
    let env = &family.env;
    env.write("a.txt", "a\n");
    env.write("run.sh", "#!/bin/sh\n");
    let (_, folder) = family.child("isolated").await;
    fs::write(folder.join("a.txt"), "A\n").unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    fs::create_dir(folder.join("deep")).unwrap();
    fs::write(folder.join("deep/new"), "new\n").unwrap();
    symlink("a.txt", folder.join("link")).unwrap();
    fs::set_permissions(folder.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let before = file_states(&env.workspace());
    env.run_pixir(&["resume", &family.parent, "merge it"]).assert_exit_code(0);
    let after = file_states(&env.workspace());
    let inside = |path: &str| env.workspace().join(path);
    assert_eq!(after[&inside("run.sh")].0 & 0o777, 0o755);
    assert_eq!(after[&inside("link")].1, b"a.txt");
    assert!(after.contains_key(&inside("empty")));
    env.run_pixir(&["undo", "--yes", &family.parent]).assert_exit_code(0);
    assert_eq!(file_states(&env.workspace()), before);
    env.run_pixir(&["redo", "--yes", &family.parent]).assert_exit_code(0);
    assert_eq!(file_states(&env.workspace()), after);
    insta::assert_snapshot!(family.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_keeps_to_the_bounds_of_the_parent_and_waits_for_the_child() {
    let env = TestEnv::with_replies([Reply::says("hello")]).await;
    env.write("open.txt", "x\n");
    env.write("shut.txt", "x\n");
    env.run_pixir(&["--deny-write", "shut*", "hello", "there"]).assert_exit_code(0);
    let parent = id_of(&newest_log(&env.workspace()));
    let family = FamilyEnv { parent, ..FamilyEnv::from_env_without_parent(env) };
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("open.txt"), "y\n").unwrap();
    fs::write(folder.join("shut.txt"), "y\n").unwrap();
    let refused = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(1);
    assert!(refused.err.contains("shut.txt"), "{}", refused.err);
    assert_eq!(family.env.read("open.txt"), "x\n");
    fs::write(folder.join("shut.txt"), "x\n").unwrap();
    // The locked Log of the child means that the child is running.
    let log = family.env.workspace().join(format!(".pixir/sessions/{child}.ndjson"));
    let held = fs::File::open(&log).unwrap();
    held.lock().unwrap();
    let refused = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(1);
    assert!(refused.err.contains("still running"), "{}", refused.err);
    // Unlocked, not dropped: a process that another test starts at this moment inherits the file.
    held.unlock().unwrap();
    family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(family.env.read("open.txt"), "y\n");
    // Not every Session is a child with a Workspace of its own.
    family.env.run_pixir(&["merge", "--yes", &family.parent]).assert_exit_code(2);
    family.env.run_pixir(&["changes", "20200101T000000-000000"]).assert_exit_code(2);
    family.env.run_pixir(&["changes", "../x"]).assert_exit_code(2);
}

impl FamilyEnv {
    fn from_env_without_parent(env: TestEnv) -> Self {
        let config = Config::new(Home::new(env.home().join(".pixir")));
        let environment = vec![
            (OsString::from("PATH"), std::env::var_os("PATH").unwrap()),
            (OsString::from("HOME"), env.home().into()),
        ];
        let child_factory = ChildWorkspaceBench::new(&config, PIXIR.into(), environment);
        Self { env, child_factory, parent: String::new() }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_in_a_worktree_commits_on_its_own_branch() {
    let commit =
        "git add -A && git -c user.name=C -c user.email=c@x commit -qm child && git status --short";
    let poke = "echo x > \"$(git rev-parse --git-common-dir)/hooks/post-commit\"; \
        git config core.editor evil; true";
    let family = FamilyEnv::with_replies([
        Reply::calls("write", json!({"path": "a.txt", "content": "from the child\n"})),
        Reply::calls("bash", json!({ "command": commit })),
        Reply::calls("bash", json!({ "command": poke })),
        Reply::calls("write", json!({"path": "dirty.txt", "content": "not committed\n"})),
        Reply::says("done"),
    ])
    .await;
    let env = &family.env;
    let here = env.workspace();
    env.write("a.txt", "committed\n");
    env.write("mine.txt", "committed\n");
    env.write(".gitignore", ".pixir\ntarget\n");
    git(&here, &["init", "-q", "-b", "main"]);
    git(&here, &["add", "-A"]);
    git(&here, &["commit", "-qm", "first"]);
    fs::write(here.join(".git/hooks/post-checkout"), "#!/bin/sh\ntouch $HOME/hooked\n").unwrap();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(here.join(".git/hooks/post-checkout"), mode).unwrap();
    // Uncommitted changes of the parent stay outside the child's worktree.
    env.write("mine.txt", "changed since\n");
    let config = fs::read(here.join(".git/config")).unwrap();

    let (child, folder) = family.child("worktree").await;
    assert!(!env.home().join("hooked").exists(), "no hook ran");
    assert_eq!(fs::read_to_string(folder.join("mine.txt")).unwrap(), "committed\n");
    let branch = format!("pixir/{child}");
    let listed = git(&here, &["worktree", "list", "--porcelain"]);
    assert!(listed.contains(&format!("branch refs/heads/{branch}")), "{listed}");
    assert!(listed.contains("locked in use by the Pixir child Session"), "{listed}");

    env.run_pixir(&["resume", &child, "commit something"]).assert_exit_code(0);
    assert_eq!(git(&here, &["log", "--format=%s", &branch]), "child\nfirst\n");
    assert_eq!(git(&here, &["log", "--format=%s", "main"]), "first\n");
    assert_eq!(fs::read(here.join(".git/config")).unwrap(), config, "settings are not the child's");
    assert!(!here.join(".git/hooks/post-commit").exists());

    // A dirty child Workspace is not deleted.
    let kept = family.child_factory.close(&here, &child).await.unwrap();
    assert_eq!(kept, "kept with 2 changes");
    let changes = env.run_pixir(&["changes", &child]).assert_exit_code(0);
    assert_eq!(changes.out, "M a.txt\nA dirty.txt\n");
    env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "from the child\n");
    assert_eq!(env.read("mine.txt"), "changed since\n");
    assert_eq!(env.read("dirty.txt"), "not committed\n");
    let closed = family.child_factory.close(&here, &child).await.unwrap();
    assert_eq!(closed, format!("removed, {branch} stays"));
    assert!(!folder.exists());
    assert_eq!(git(&here, &["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);

    // A child without changes leaves no folder.
    let (idle, folder) = family.child("worktree").await;
    assert_eq!(family.child_factory.close(&here, &idle).await.unwrap(), "removed");
    assert!(!folder.exists());
    let branches = git(&here, &["branch", "--list", "pixir/*"]);
    assert!(branches.contains(&child) && !branches.contains(&idle), "{branches}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_repository_or_with_too_many_files_the_error_says_what_to_do() {
    let env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("hello"))).await;
    let family = FamilyEnv::from_env(env, |config| config.workspaces.most_files = 3);
    let here = family.env.workspace();
    let report = family
        .child_factory
        .create_child(&here, &family.parent, "sub_1", "worktree")
        .await
        .unwrap_err();
    assert!(report.message.contains("not in a git repository"), "{report:?}");
    git(&here, &["init", "-q"]);
    let report = family
        .child_factory
        .create_child(&here, &family.parent, "sub_1", "worktree")
        .await
        .unwrap_err();
    assert!(report.message.contains("no commit"), "{report:?}");
    for name in ["1", "2", "3", "4"] {
        family.env.write(name, "x");
    }
    let report = family
        .child_factory
        .create_child(&here, &family.parent, "sub_1", "isolated")
        .await
        .unwrap_err();
    assert!(report.message.contains("too many: 4, limit 3"), "{report:?}");
    let left = fs::read_dir(family.env.home().join(".pixir/workspaces"));
    assert_eq!(left.map_or(0, Iterator::count), 0, "no child Workspace is left");
    assert_eq!(log_files(&here).len(), 1, "and no Log was begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_workspace_whose_session_was_deleted_is_collected_unless_it_is_dirty() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a.txt", "x\n");
    family.env.write(".gitignore", ".pixir\n");
    git(&here, &["init", "-q", "-b", "main"]);
    git(&here, &["add", "-A"]);
    git(&here, &["commit", "-qm", "first"]);
    let (copy, copied) = family.child("isolated").await;
    let (clean, _) = family.child("worktree").await;
    let (dirty, tree) = family.child("worktree").await;
    let (_, living) = family.child("isolated").await;
    fs::write(tree.join("a.txt"), "y\n").unwrap();
    fs::write(copied.join("a.txt"), "y\n").unwrap();
    for child in [&copy, &clean, &dirty] {
        fs::remove_file(here.join(format!(".pixir/sessions/{child}.ndjson"))).unwrap();
    }
    assert_eq!(family.child_factory.remove_ownerless().await.len(), 0, "all are too young");
    let registrations = family.env.home().join(".pixir/workspaces");
    for child in [&copy, &clean, &dirty] {
        let registration = fs::File::open(registrations.join(format!("{child}.json"))).unwrap();
        let past = std::time::SystemTime::now() - std::time::Duration::from_hours(2);
        registration.set_modified(past).unwrap();
    }
    let collected: BTreeMap<String, Result<String, String>> = family
        .child_factory
        .remove_ownerless()
        .await
        .into_iter()
        .map(|(child, closed)| (child, closed.map_err(|report| report.message)))
        .collect();
    assert_eq!(collected[&copy].as_deref(), Ok("removed"));
    assert_eq!(collected[&clean].as_deref(), Ok("removed"));
    let error = collected[&dirty].as_ref().unwrap_err();
    assert!(error.contains("not committed"), "{error}");
    assert_eq!(fs::read_to_string(tree.join("a.txt")).unwrap(), "y\n", "never dirty-deleted");
    assert!(living.exists() && !copied.exists());
    // `pixir gc` also keeps the snapshots of living children.
    let looked = family.env.run_pixir(&["gc", "--json"]).assert_exit_code(0);
    let looked: Value = serde_json::from_str(&looked.out).unwrap();
    let kinds: Vec<&Value> = looked["output"]["plans"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|plan| plan["waste"].as_array().unwrap())
        .filter(|garbage| garbage["session_id"] == json!(dirty))
        .map(|garbage| &garbage["kind"])
        .collect();
    assert_eq!(kinds, ["annex"]);
    let refused = family.env.run_pixir(&["gc", "--apply"]).assert_exit_code(1);
    assert!(refused.out.contains("not committed"), "{}", refused.out);
    assert!(tree.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_child_began_with_is_not_garbage() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    family.env.write("a.txt", "1\n2\n3\n");
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a.txt"), "1\n2\ntheirs\n").unwrap();
    family.env.write("a.txt", "ours\n2\n3\n");
    let past = std::time::SystemTime::now() - std::time::Duration::from_hours(3);
    let mut waiting = vec![here.join(".pixir/snapshots")];
    while let Some(inside) = waiting.pop() {
        for entry in fs::read_dir(inside).unwrap().flatten() {
            if entry.path().is_dir() {
                waiting.push(entry.path());
            } else {
                fs::File::open(entry.path()).unwrap().set_modified(past).unwrap();
            }
        }
    }
    family.env.run_pixir(&["gc", "--apply"]).assert_exit_code(0);
    family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
    assert_eq!(family.env.read("a.txt"), "ours\n2\ntheirs\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_merge_it_is_taken_back_and_can_be_done_again() {
    let family = FamilyEnv::with_replies([]).await;
    let here = family.env.workspace();
    for name in ["a", "b", "c", "gone"] {
        family.env.write(name, "old\n");
    }
    let (child, folder) = family.child("isolated").await;
    for name in ["a", "b", "c", "made"] {
        fs::write(folder.join(name), "new\n").unwrap();
    }
    fs::remove_file(folder.join("gone")).unwrap();
    let before = file_states(&here);
    let mut states = 0;
    loop {
        // The process is killed at the nth change of the Workspace.
        let mut last = before.clone();
        let mut seen = 0;
        let is_here = || {
            let now = file_states(&here);
            seen += usize::from(now != last);
            last = now;
            seen > states
        };
        let program = [PIXIR, "merge", "--yes", &child];
        if !syscall_tracer::kill_when(
            &program,
            |command| family.env.configure_command(command),
            is_here,
        ) {
            break;
        }
        states += 1;
        let again = family.env.run_pixir(&["merge", "--yes", &child]).assert_exit_code(0);
        let journal = format!(".pixir/sessions/{}/snapshots/merge.json", family.parent);
        assert!(!here.join(journal).exists(), "state {states}");
        // After its last step the merge is complete; before that, the next run rolls it back.
        assert!(again.err.contains("was interrupted and rolled back"), "{}", again.err);
        assert_eq!(again.out.lines().last(), Some("merged"), "state {states}: {}", again.out);
        assert_eq!(
            (family.env.read("made"), family.env.read("c")),
            ("new\n".into(), "new\n".into())
        );
        assert!(!here.join("gone").exists());
        for name in ["a", "b", "c", "gone"] {
            family.env.write(name, "old\n");
        }
        fs::remove_file(here.join("made")).unwrap();
        assert_eq!(file_states(&here), before, "state {states}: no temporary file is left");
    }
    assert!(states >= 5, "the merge was killed in {states} states");
    assert_eq!(family.env.read("a"), "new\n");
    leaks::scan_process_arguments();
}
