//! Children in Workspaces of their own: what they change, how it is merged, and how that goes back.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pixir::scripted::{Reply, Script};
use pixir::workbench::Nursery;
use pixir::{Config, Durability, Home};
use serde_json::{Value, json};

use crate::support::House;
use crate::support::house::{PIXIR, logs, newest_log};
use crate::support::{leaks, tracer, transcript};

pub type Picture = BTreeMap<PathBuf, (u32, Vec<u8>)>;

pub fn picture(folder: &Path) -> Picture {
    let mut picture = Picture::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(inside) = waiting.pop() {
        for entry in fs::read_dir(inside).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".pixir") || path.ends_with(".git") {
                continue;
            }
            // It may vanish while somebody writes.
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
            picture.insert(path, (mode, content.unwrap_or_default()));
        }
    }
    picture
}

/// A test environment with a parent Session and its children.
pub struct Family {
    pub house: House,
    pub nursery: Nursery,
    pub parent: String,
}

impl Family {
    /// The parent has said one thing; these replies are for what comes.
    pub async fn with(replies: impl IntoIterator<Item = Reply>) -> Self {
        let house = House::with([Reply::says("hello")].into_iter().chain(replies)).await;
        Self::in_house(house, |_| {})
    }

    pub fn in_house(house: House, adjust: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(Home::new(house.home().join(".pixir")));
        config.durability = Durability::None;
        adjust(&mut config);
        let environment = vec![
            (OsString::from("PATH"), std::env::var_os("PATH").unwrap()),
            (OsString::from("HOME"), house.home().into()),
        ];
        let nursery = Nursery::new(&config, PIXIR.into(), environment);
        house.pixir(&["hello", "there"]).exits(0);
        let parent = id_of(&newest_log(&house.workspace()));
        Self { house, nursery, parent }
    }

    pub async fn child(&self, mode: &str) -> (String, PathBuf) {
        let workspace = self.house.workspace();
        self.nursery.child(&workspace, &self.parent, "sub_1", mode).await.unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.house.pixir(&[args, &["--json"]].concat()).out).unwrap()
    }

    /// What the parent's Log tells of its children: what happened, to whom, which files.
    pub fn merges(&self) -> Vec<(String, String, Vec<String>)> {
        let log = self.house.workspace().join(format!(".pixir/sessions/{}.ndjson", self.parent));
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
        let log = self.house.workspace().join(format!(".pixir/sessions/{}.ndjson", self.parent));
        transcript::of(&log, &self.house.workspace())
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
    let family = Family::with([
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
    let house = &family.house;
    for name in ["a.txt", "b.txt", "gone.txt"] {
        house.write(name, format!("{}\n", &name[..1]));
    }
    let (one, folder) = family.child("isolated").await;
    let (other, _) = family.child("isolated").await;
    assert_eq!(folder, house.home().join(".pixir/workspaces").join(&one));
    house.pixir(&["resume", &one, "change a"]).exits(0);
    house.pixir(&["resume", &other, "change b"]).exits(0);
    assert_eq!(house.read("a.txt"), "a\n", "the parent's files are not the child's");

    let changes = house.pixir(&["changes", &one]).exits(0);
    assert_eq!(changes.out, "M a.txt\nD gone.txt\nA made.txt\n");
    let diff = house.pixir(&["changes", &one, "--diff"]).exits(0);
    assert!(diff.out.contains("-a\n+A\n"), "{}", diff.out);
    let listed = house.pixir(&["changes"]).exits(0).out;
    assert!(listed.contains(&one) && listed.contains(&other), "{listed}");

    let before = picture(&house.workspace());
    let looked = house.pixir(&["merge", &one, "--dry-run"]).exits(0);
    assert!(
        looked.out.contains("change a.txt") && looked.out.contains("dry run"),
        "{}",
        looked.out
    );
    assert_eq!(picture(&house.workspace()), before);
    house.pixir(&["merge", "--yes", &one]).exits(0);
    // By the name that the model knows it under: never a prompt.
    house.pixir(&["merge_child", "--yes", &other]).exits(0);
    assert_eq!((house.read("a.txt"), house.read("b.txt")), ("A\n".into(), "B\n".into()));
    assert_eq!(house.read("made.txt"), "new\n");
    assert!(!house.workspace().join("gone.txt").exists());
    let again = house.pixir(&["merge", "--yes", &one]).exits(0);
    assert!(again.out.contains("nothing to merge"), "{}", again.out);

    // Back again, the last one first or not: they have nothing in common.
    house.pixir(&["merge", "--yes", &one, "--undo"]).exits(0);
    assert_eq!((house.read("a.txt"), house.read("b.txt")), ("a\n".into(), "B\n".into()));
    assert_eq!(house.read("gone.txt"), "g\n");
    house.pixir(&["merge", "--yes", &one, "--undo"]).exits(2);
    house.pixir(&["verify", &family.parent]).exits(0);

    assert_eq!(family.nursery.close(&house.workspace(), &other).await.unwrap(), "removed");
    let kept = family.nursery.close(&house.workspace(), &one).await.unwrap();
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
    let family = Family::with([]).await;
    let house = &family.house;
    for (name, text) in [
        ("lines", "1\n2\n3\n"),
        ("apart", "1\r\n2\r\n3\r\n"),
        ("removed", "x\n"),
        ("missed", "x\n"),
        ("binary", "\0one"),
        ("mode", "x\n"),
        ("link", "x\n"),
    ] {
        house.write(name, text);
    }
    let (child, folder) = family.child("isolated").await;
    let (here, there) = (house.workspace(), folder);
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
    let before = picture(&here);
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
    let refused = house.pixir(&["merge", "--yes", &child]).exits(1);
    assert!(refused.err.contains("nothing was merged: "), "{}", refused.err);
    assert!(refused.err.contains("line 2"), "{}", refused.err);
    assert!(refused.err.contains("pixir changes"), "a way on: {}", refused.err);
    assert_eq!(picture(&here), before, "nothing was touched");
    // The human settles them in the child's Workspace, and the rest comes over.
    for name in ["lines", "removed", "binary", "link"] {
        fs::remove_file(there.join(name)).ok();
        fs::copy(here.join(name), there.join(name)).unwrap();
    }
    fs::remove_file(there.join("missed")).unwrap();
    fs::set_permissions(there.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(house.read("apart"), "ours\r\n2\r\ntheirs\r\n", "endings are kept");
    assert_eq!(house.read("free"), "only the child\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_merges_its_child_and_the_turn_is_taken_back() {
    let family = Family::with([
        Reply::calls("merge_child", json!({"id": "sub_1", "dry_run": true})),
        Reply::calls("merge_child", json!({"id": "sub_1"})),
        Reply::says("merged"),
    ])
    .await;
    let house = &family.house;
    house.write("a.txt", "a\n");
    house.write("run.sh", "#!/bin/sh\n");
    let (_, folder) = family.child("isolated").await;
    fs::write(folder.join("a.txt"), "A\n").unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    fs::create_dir(folder.join("deep")).unwrap();
    fs::write(folder.join("deep/new"), "new\n").unwrap();
    symlink("a.txt", folder.join("link")).unwrap();
    fs::set_permissions(folder.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let before = picture(&house.workspace());
    house.pixir(&["resume", &family.parent, "merge it"]).exits(0);
    let after = picture(&house.workspace());
    let inside = |path: &str| house.workspace().join(path);
    assert_eq!(after[&inside("run.sh")].0 & 0o777, 0o755);
    assert_eq!(after[&inside("link")].1, b"a.txt");
    assert!(after.contains_key(&inside("empty")));
    house.pixir(&["undo", "--yes", &family.parent]).exits(0);
    assert_eq!(picture(&house.workspace()), before);
    house.pixir(&["redo", "--yes", &family.parent]).exits(0);
    assert_eq!(picture(&house.workspace()), after);
    insta::assert_snapshot!(family.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_keeps_to_the_bounds_of_the_parent_and_waits_for_the_child() {
    let house = House::with([Reply::says("hello")]).await;
    house.write("open.txt", "x\n");
    house.write("shut.txt", "x\n");
    house.pixir(&["--deny-write", "shut*", "hello", "there"]).exits(0);
    let parent = id_of(&newest_log(&house.workspace()));
    let family = Family { parent, ..Family::in_house_without_parent(house) };
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("open.txt"), "y\n").unwrap();
    fs::write(folder.join("shut.txt"), "y\n").unwrap();
    let refused = family.house.pixir(&["merge", "--yes", &child]).exits(1);
    assert!(refused.err.contains("shut.txt"), "{}", refused.err);
    assert_eq!(family.house.read("open.txt"), "x\n");
    fs::write(folder.join("shut.txt"), "x\n").unwrap();
    // Somebody holds the child's Log: it is at work.
    let log = family.house.workspace().join(format!(".pixir/sessions/{child}.ndjson"));
    let held = fs::File::open(&log).unwrap();
    held.lock().unwrap();
    let refused = family.house.pixir(&["merge", "--yes", &child]).exits(1);
    assert!(refused.err.contains("still at work"), "{}", refused.err);
    // Not dropped: a process that another story starts at this moment has it open too.
    held.unlock().unwrap();
    family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(family.house.read("open.txt"), "y\n");
    // Not every Session is a child with a Workspace of its own.
    family.house.pixir(&["merge", "--yes", &family.parent]).exits(2);
    family.house.pixir(&["changes", "20200101T000000-000000"]).exits(2);
    family.house.pixir(&["changes", "../x"]).exits(2);
}

impl Family {
    fn in_house_without_parent(house: House) -> Self {
        let config = Config::new(Home::new(house.home().join(".pixir")));
        let environment = vec![
            (OsString::from("PATH"), std::env::var_os("PATH").unwrap()),
            (OsString::from("HOME"), house.home().into()),
        ];
        let nursery = Nursery::new(&config, PIXIR.into(), environment);
        Self { house, nursery, parent: String::new() }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_in_a_worktree_commits_on_its_own_branch() {
    let commit =
        "git add -A && git -c user.name=C -c user.email=c@x commit -qm child && git status --short";
    let poke = "echo x > \"$(git rev-parse --git-common-dir)/hooks/post-commit\"; \
        git config core.editor evil; true";
    let family = Family::with([
        Reply::calls("write", json!({"path": "a.txt", "content": "from the child\n"})),
        Reply::calls("bash", json!({ "command": commit })),
        Reply::calls("bash", json!({ "command": poke })),
        Reply::calls("write", json!({"path": "dirty.txt", "content": "not committed\n"})),
        Reply::says("done"),
    ])
    .await;
    let house = &family.house;
    let here = house.workspace();
    house.write("a.txt", "committed\n");
    house.write("mine.txt", "committed\n");
    house.write(".gitignore", ".pixir\ntarget\n");
    git(&here, &["init", "-q", "-b", "main"]);
    git(&here, &["add", "-A"]);
    git(&here, &["commit", "-qm", "first"]);
    fs::write(here.join(".git/hooks/post-checkout"), "#!/bin/sh\ntouch $HOME/hooked\n").unwrap();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(here.join(".git/hooks/post-checkout"), mode).unwrap();
    // The parent's own work is not committed, and stays its own.
    house.write("mine.txt", "changed since\n");
    let config = fs::read(here.join(".git/config")).unwrap();

    let (child, folder) = family.child("worktree").await;
    assert!(!house.home().join("hooked").exists(), "no hook ran");
    assert_eq!(fs::read_to_string(folder.join("mine.txt")).unwrap(), "committed\n");
    let branch = format!("pixir/{child}");
    let listed = git(&here, &["worktree", "list", "--porcelain"]);
    assert!(listed.contains(&format!("branch refs/heads/{branch}")), "{listed}");
    assert!(listed.contains("locked a child of Pixir works here"), "{listed}");

    house.pixir(&["resume", &child, "commit something"]).exits(0);
    assert_eq!(git(&here, &["log", "--format=%s", &branch]), "child\nfirst\n");
    assert_eq!(git(&here, &["log", "--format=%s", "main"]), "first\n");
    assert_eq!(fs::read(here.join(".git/config")).unwrap(), config, "settings are not the child's");
    assert!(!here.join(".git/hooks/post-commit").exists());

    // It is dirty: nobody deletes it.
    let kept = family.nursery.close(&here, &child).await.unwrap();
    assert_eq!(kept, "kept with 2 changes");
    let changes = house.pixir(&["changes", &child]).exits(0);
    assert_eq!(changes.out, "M a.txt\nA dirty.txt\n");
    house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(house.read("a.txt"), "from the child\n");
    assert_eq!(house.read("mine.txt"), "changed since\n");
    assert_eq!(house.read("dirty.txt"), "not committed\n");
    let closed = family.nursery.close(&here, &child).await.unwrap();
    assert_eq!(closed, format!("removed, {branch} stays"));
    assert!(!folder.exists());
    assert_eq!(git(&here, &["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);

    // One that did nothing leaves nothing.
    let (idle, folder) = family.child("worktree").await;
    assert_eq!(family.nursery.close(&here, &idle).await.unwrap(), "removed");
    assert!(!folder.exists());
    let branches = git(&here, &["branch", "--list", "pixir/*"]);
    assert!(branches.contains(&child) && !branches.contains(&idle), "{branches}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_repository_or_with_too_many_files_a_child_is_told_what_to_do() {
    let house = House::scripted(Script::answering(|_| Reply::says("hello"))).await;
    let family = Family::in_house(house, |config| config.workspaces.most_files = 3);
    let here = family.house.workspace();
    let report =
        family.nursery.child(&here, &family.parent, "sub_1", "worktree").await.unwrap_err();
    assert!(report.message.contains("not in a git repository"), "{report:?}");
    git(&here, &["init", "-q"]);
    let report =
        family.nursery.child(&here, &family.parent, "sub_1", "worktree").await.unwrap_err();
    assert!(report.message.contains("no commit"), "{report:?}");
    for name in ["1", "2", "3", "4"] {
        family.house.write(name, "x");
    }
    let report =
        family.nursery.child(&here, &family.parent, "sub_1", "isolated").await.unwrap_err();
    assert!(report.message.contains("too many: 4 of 3"), "{report:?}");
    let left = fs::read_dir(family.house.home().join(".pixir/workspaces"));
    assert_eq!(left.map_or(0, Iterator::count), 0, "nothing is left of them");
    assert_eq!(logs(&here).len(), 1, "and no Log was begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_annex_whose_session_was_deleted_is_collected_unless_it_is_dirty() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a.txt", "x\n");
    family.house.write(".gitignore", ".pixir\n");
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
    assert_eq!(family.nursery.collect().await.len(), 0, "they are young");
    let leases = family.house.home().join(".pixir/workspaces");
    for child in [&copy, &clean, &dirty] {
        let lease = fs::File::open(leases.join(format!("{child}.json"))).unwrap();
        let past = std::time::SystemTime::now() - std::time::Duration::from_hours(2);
        lease.set_modified(past).unwrap();
    }
    let collected: BTreeMap<String, Result<String, String>> = family
        .nursery
        .collect()
        .await
        .into_iter()
        .map(|(child, closed)| (child, closed.map_err(|report| report.message)))
        .collect();
    assert_eq!(collected[&copy].as_deref(), Ok("removed"));
    assert_eq!(collected[&clean].as_deref(), Ok("removed"));
    let said = collected[&dirty].as_ref().unwrap_err();
    assert!(said.contains("not committed"), "{said}");
    assert_eq!(fs::read_to_string(tree.join("a.txt")).unwrap(), "y\n", "never dirty-deleted");
    assert!(living.exists() && !copied.exists());
    // The same through the command, and what living children began with is spared.
    let looked = family.house.pixir(&["gc", "--json"]).exits(0);
    let looked: Value = serde_json::from_str(&looked.out).unwrap();
    let kinds: Vec<&Value> = looked["output"]["plans"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|plan| plan["waste"].as_array().unwrap())
        .filter(|waste| waste["session_id"] == json!(dirty))
        .map(|waste| &waste["kind"])
        .collect();
    assert_eq!(kinds, ["annex"]);
    let refused = family.house.pixir(&["gc", "--apply"]).exits(1);
    assert!(refused.out.contains("not committed"), "{}", refused.out);
    assert!(tree.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_child_began_with_is_not_garbage() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    family.house.write("a.txt", "1\n2\n3\n");
    let (child, folder) = family.child("isolated").await;
    fs::write(folder.join("a.txt"), "1\n2\ntheirs\n").unwrap();
    family.house.write("a.txt", "ours\n2\n3\n");
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
    family.house.pixir(&["gc", "--apply"]).exits(0);
    family.house.pixir(&["merge", "--yes", &child]).exits(0);
    assert_eq!(family.house.read("a.txt"), "ours\n2\ntheirs\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_merge_it_is_taken_back_and_can_be_done_again() {
    let family = Family::with([]).await;
    let here = family.house.workspace();
    for name in ["a", "b", "c", "gone"] {
        family.house.write(name, "old\n");
    }
    let (child, folder) = family.child("isolated").await;
    for name in ["a", "b", "c", "made"] {
        fs::write(folder.join(name), "new\n").unwrap();
    }
    fs::remove_file(folder.join("gone")).unwrap();
    let before = picture(&here);
    let mut states = 0;
    loop {
        // The nth time that the Workspace looks different is the last that this process sees.
        let (mut last, mut seen) = (before.clone(), 0);
        let is_here = || {
            let now = picture(&here);
            seen += usize::from(now != last);
            last = now;
            seen > states
        };
        let program = [PIXIR, "merge", "--yes", &child];
        if !tracer::kill_when(&program, |command| family.house.dress(command), is_here) {
            break;
        }
        states += 1;
        let again = family.house.pixir(&["merge", "--yes", &child]).exits(0);
        let journal = format!(".pixir/sessions/{}/snapshots/merge.json", family.parent);
        assert!(!here.join(journal).exists(), "state {states}");
        // Killed after its last step, there may be nothing more to do; before, it begins anew.
        assert!(again.err.contains("was interrupted and rolled back"), "{}", again.err);
        assert_eq!(again.out.lines().last(), Some("merged"), "state {states}: {}", again.out);
        assert_eq!(
            (family.house.read("made"), family.house.read("c")),
            ("new\n".into(), "new\n".into())
        );
        assert!(!here.join("gone").exists());
        for name in ["a", "b", "c", "gone"] {
            family.house.write(name, "old\n");
        }
        fs::remove_file(here.join("made")).unwrap();
        assert_eq!(picture(&here), before, "state {states}: nothing is left lying about");
    }
    assert!(states >= 5, "it was killed in {states} states");
    assert_eq!(family.house.read("a"), "new\n");
    leaks::look();
}
