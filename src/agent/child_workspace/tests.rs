//! Child Workspaces and merges with real files.

mod unrecorded;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::base::error::Explain;
use crate::host::process::{Containment, HostEnvironment};
use crate::host::snapshot::FolderChange;

struct ChildWorkspaceFixture {
    folder: TempDir,
    child_workspaces: ChildWorkspaces,
    workspace: Workspace,
    parent: SessionId,
}

/// Every file and link, by its mode and content; folders too.
type FileTree = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn read_file_tree(folder: &Path) -> FileTree {
    let mut tree = FileTree::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(inside) = waiting.pop() {
        for entry in fs::read_dir(inside).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".pixir") {
                continue;
            }
            let stat = fs::symlink_metadata(&path).unwrap();
            let (mode, content) = if stat.is_symlink() {
                (0, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes())
            } else if stat.is_dir() {
                waiting.push(path.clone());
                (stat.mode(), Vec::new())
            } else {
                (stat.mode(), fs::read(&path).unwrap())
            };
            tree.insert(path.strip_prefix(folder).unwrap().to_owned(), (mode, content));
        }
    }
    tree
}

impl ChildWorkspaceFixture {
    fn new() -> Self {
        Self::with_config(|_| {})
    }

    fn with_config(adjust: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        let mut config = Config::new(Home::new(folder.path().join("home")));
        config.durability = LogDurability::None;
        adjust(&mut config);
        let host = HostEnvironment {
            own_binary: "/nowhere".into(),
            environment: Vec::new(),
            containment: Containment::Best,
        };
        let child_workspaces = ChildWorkspaces::new(&config, CommandRunner::new(host, &config));
        let workspace = Workspace::open(&folder.path().join("work")).unwrap();
        Self { folder, child_workspaces, workspace, parent: SessionId::mint() }
    }

    fn home(&self) -> Home {
        Home::new(self.folder.path().join("home"))
    }

    fn work(&self) -> PathBuf {
        self.workspace.root().to_owned()
    }

    fn request(&self) -> ChildWorkspaceRequest {
        ChildWorkspaceRequest {
            child: SessionId::mint(),
            parent: self.parent.clone(),
            subagent: None,
            logs: StateRoot::in_workspace(self.work()),
            workspace: self.workspace.clone(),
            mode: ChildWorkspaceMode::Isolated,
        }
    }

    fn create_child_workspace(&self) -> ChildWorkspace {
        self.child_workspaces.child_workspace(
            self.child_workspaces.create_copy(&self.request(), Instant::now()).unwrap(),
        )
    }

    fn plan_merge(&self, child_workspace: &ChildWorkspace) -> MergePlan {
        let changes = child_workspace.find_changes(&self.workspace).unwrap();
        child_workspace.plan_merge(&changes, &self.workspace, &|_| false).unwrap()
    }

    fn apply_merge(
        &self,
        child_workspace: &ChildWorkspace,
    ) -> Result<MergeTransaction, ChildWorkspaceError> {
        let changes = child_workspace.find_changes(&self.workspace).unwrap();
        let done = child_workspace.apply_merge(
            &self.plan_merge(child_workspace),
            &changes,
            &self.workspace,
            None,
            &CancellationToken::new(),
        )?;
        let transaction = done.transaction.clone();
        done.mark_recorded();
        Ok(transaction)
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_copy_has_what_is_not_ignored_with_modes_links_and_folders() {
    let fixture = ChildWorkspaceFixture::new();
    let work = fixture.work();
    for folder in ["src/deep", "empty", "target", ".git", ".pixir/sessions", "locked"] {
        fs::create_dir_all(work.join(folder)).unwrap();
    }
    for (path, text) in [
        (".gitignore", "target/\n*.log\n"),
        ("src/deep/a.rs", "fn a() {}\r\n"),
        ("run.sh", "#!/bin/sh\n"),
        ("none", ""),
        ("target/big", "built"),
        ("x.log", "noise"),
        (".git/HEAD", "ref"),
        (".pixir/config.json", "{}"),
        ("locked/in", "x"),
        (".hidden", "seen"),
    ] {
        fs::write(work.join(path), text).unwrap();
    }
    set_mode(&work.join("run.sh"), 0o755);
    set_mode(&work.join("none"), 0o400);
    set_mode(&work.join("locked"), 0o555);
    symlink("../outside", work.join("src/link")).unwrap();
    let child_workspace = fixture.create_child_workspace();
    let mut expected = read_file_tree(&work);
    expected.retain(|path, _| !["target", ".git", "x.log"].iter().any(|it| path.starts_with(it)));
    assert_eq!(read_file_tree(child_workspace.folder()), expected);
    assert_eq!(fs::metadata(child_workspace.folder()).unwrap().mode() & 0o777, 0o700);
    assert!(child_workspace.find_changes(&fixture.workspace).unwrap().is_empty());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let closed = runtime.block_on(fixture.child_workspaces.close(&child_workspace)).unwrap();
    assert_eq!(closed, CloseOutcome::Removed { branch: None });
    assert!(!child_workspace.folder().exists());
    assert!(
        fixture
            .child_workspaces
            .find(&StateRoot::in_workspace(&work), child_workspace.child())
            .unwrap()
            .is_none()
    );
    set_mode(&work.join("locked"), 0o755);
}

#[test]
fn what_is_too_much_is_refused_and_leaves_nothing() {
    for (adjust, setting) in [
        ((|config: &mut Config| config.workspaces.most_files = 2) as fn(&mut Config), "max_files"),
        (|config| config.workspaces.largest_sum = 20, "max_bytes"),
        (|config| config.workspaces.largest_file = 9, "max_file_bytes"),
    ] {
        let fixture = ChildWorkspaceFixture::with_config(adjust);
        for name in ["a", "b", "c"] {
            fs::write(fixture.work().join(name), "ten bytes!").unwrap();
        }
        let error =
            fixture.child_workspaces.create_copy(&fixture.request(), Instant::now()).unwrap_err();
        assert_eq!(error.details()["setting"], format!("workspaces.{setting}"), "{error}");
        assert!(!error.next_actions().is_empty());
        assert_eq!(fs::read_dir(fixture.home().child_workspaces()).map_or(0, Iterator::count), 0);
    }
}

#[test]
fn what_was_never_finished_is_known_and_cleared_away() {
    let fixture = ChildWorkspaceFixture::new();
    fs::write(fixture.work().join("a"), "a").unwrap();
    let wanted = fixture.request();
    let folder = fixture.home().child_workspaces().join(wanted.child.as_str());
    let making = new_registration(&wanted, folder.clone()).create(&fixture.home()).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("half"), "of it").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(matches!(
        fixture.child_workspaces.find(&StateRoot::in_workspace(fixture.work()), &wanted.child),
        Err(ChildWorkspaceError::Unfinished { is_being_made: true })
    ));
    assert_eq!(
        runtime.block_on(fixture.child_workspaces.remove_ownerless()).len(),
        0,
        "being created"
    );
    drop(making);
    assert!(
        fixture
            .child_workspaces
            .find(&StateRoot::in_workspace(fixture.work()), &wanted.child)
            .is_err()
    );
    let whole = fixture.create_child_workspace();
    let collected = runtime.block_on(fixture.child_workspaces.remove_ownerless());
    assert!(
        matches!(&collected[..], [(id, Ok(CloseOutcome::Removed { .. }))] if *id == wanted.child)
    );
    assert!(!folder.exists());
    assert!(whole.folder().exists(), "it is young: its child may be starting");
}

#[test]
fn children_of_one_moment_share_what_they_begin_with() {
    let fixture = ChildWorkspaceFixture::new();
    for number in 0..20 {
        fs::write(fixture.work().join(format!("{number}.txt")), format!("{number}\n")).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let began = std::time::Instant::now();
    let child_workspaces = runtime.block_on(async {
        let makes: Vec<_> = (0..50)
            .map(|_| {
                let (child_workspaces, wanted) =
                    (fixture.child_workspaces.clone(), fixture.request());
                tokio::spawn(async move { child_workspaces.create(wanted).await.unwrap() })
            })
            .collect();
        let mut made = Vec::new();
        for make in makes {
            made.push(make.await.unwrap());
        }
        made
    });
    let timing = format!("\n50 copies of 20 files: {:?}\n", began.elapsed());
    std::io::Write::write_all(&mut std::io::stderr(), timing.as_bytes()).unwrap();
    let expected = read_file_tree(&fixture.work());
    let bases: std::collections::BTreeSet<String> = child_workspaces
        .iter()
        .map(|child_workspace| child_workspace.registration.base.unwrap().to_string())
        .collect();
    assert!(bases.len() < 50, "surveys are shared: {}", bases.len());
    assert!(
        child_workspaces
            .iter()
            .all(|child_workspace| read_file_tree(child_workspace.folder()) == expected)
    );
}

#[test]
fn what_is_ignored_by_now_is_not_taken_for_removed() {
    let fixture = ChildWorkspaceFixture::new();
    fs::write(fixture.work().join("a.txt"), "a").unwrap();
    fs::write(fixture.work().join("b.txt"), "b").unwrap();
    let child_workspace = fixture.create_child_workspace();
    fs::write(child_workspace.folder().join(".gitignore"), "*.txt\n").unwrap();
    fs::write(child_workspace.folder().join("b.txt"), "other").unwrap();
    fixture.apply_merge(&child_workspace).unwrap();
    assert_eq!(fs::read_to_string(fixture.work().join("a.txt")).unwrap(), "a");
    assert_eq!(fs::read_to_string(fixture.work().join("b.txt")).unwrap(), "other");
}

/// The state of one path on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileVersion {
    Nothing,
    File(&'static str, u32),
    Link(&'static str),
}

const TEXTS: [&str; 6] =
    ["1\n2\n3\n", "one\n2\n3\n", "1\n2\nthree\n", "1\ntwo\n3\n", "\0binary", "\0other"];

impl FileVersion {
    fn random(random: &mut fastrand::Rng) -> Self {
        match random.u8(..10) {
            0 | 1 => FileVersion::Nothing,
            2 => FileVersion::Link(["a", "b"][random.usize(..2)]),
            _ => FileVersion::File(
                TEXTS[random.usize(..TEXTS.len())],
                [0o644, 0o755, 0o600][random.usize(..3)],
            ),
        }
    }

    fn put(&self, path: &Path) {
        fs::remove_file(path).ok();
        match self {
            FileVersion::Nothing => {}
            FileVersion::File(text, mode) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
                set_mode(path, *mode);
            }
            FileVersion::Link(to) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                symlink(to, path).unwrap();
            }
        }
    }
}

/// The expected merge of three states, by cases; `None` is a conflict.
fn oracle(base: &FileVersion, child: &FileVersion, parent: &FileVersion) -> Option<(Vec<u8>, u32)> {
    let flat = |thing: &FileVersion| match thing {
        FileVersion::Nothing => (b"nothing".to_vec(), 0),
        FileVersion::File(text, mode) => (text.as_bytes().to_vec(), *mode),
        FileVersion::Link(to) => ([b"link ", to.as_bytes()].concat(), 0),
    };
    if child == base || child == parent {
        return Some(flat(parent));
    }
    if parent == base {
        return Some(flat(child));
    }
    let (FileVersion::File(b, bm), FileVersion::File(c, cm), FileVersion::File(p, pm)) =
        (base, child, parent)
    else {
        return None;
    };
    let mode = match (cm == bm, pm == bm, cm == pm) {
        (true, _, _) => pm,
        (_, true, _) | (_, _, true) => cm,
        _ => return None,
    };
    let text = if c == b || c == p {
        (*p).to_owned()
    } else if p == b {
        (*c).to_owned()
    } else if [b, c, p].iter().any(|text| text.contains('\0')) {
        return None;
    } else {
        // By line: every text here has three different lines, and a line that both kept divides the
        // changes.
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (b, c, p) = (lines(b), lines(c), lines(p));
        let mut merged = Vec::new();
        let mut from = 0;
        for at in 0..=b.len() {
            let is_kept = at < b.len() && b[at] == c[at] && b[at] == p[at];
            if at < b.len() && !is_kept {
                continue;
            }
            let (base, child, parent) = (&b[from..at], &c[from..at], &p[from..at]);
            if child == base || child == parent {
                merged.extend_from_slice(parent);
            } else if parent == base {
                merged.extend_from_slice(child);
            } else {
                return None;
            }
            merged.extend(b.get(at).cloned());
            from = at + 1;
        }
        merged.join("\n") + "\n"
    };
    Some((text.into_bytes(), *mode))
}

fn changed_alike(base: &FileVersion, child: &FileVersion, parent: &FileVersion) -> bool {
    let (FileVersion::File(b, _), FileVersion::File(c, _), FileVersion::File(p, _)) =
        (base, child, parent)
    else {
        return false;
    };
    let mut lines = b.lines().zip(c.lines()).zip(p.lines());
    c != p && lines.any(|((b, c), p)| c == p && c != b)
}

#[test]
fn any_three_states_come_to_what_the_long_way_says_or_nothing_is_touched() {
    let seed =
        std::env::var_os("PIXIR_SEED").and_then(|seed| seed.to_str()?.parse().ok()).unwrap_or(4711);
    let rounds = if std::env::var_os("PIXIR_TORTURE").is_some() { 2000 } else { 200 };
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut done, mut refused) = (0, 0);
    for round in 0..rounds {
        let fixture = ChildWorkspaceFixture::new();
        let names = ["a", "d/b", "d/e/c"];
        let mut states = Vec::new();
        for name in &names[..random.usize(1..=3)] {
            let base = FileVersion::random(&mut random);
            let mut other =
                || if random.bool() { base.clone() } else { FileVersion::random(&mut random) };
            let (child, parent) = (other(), other());
            base.put(&fixture.work().join(name));
            states.push((*name, base, child, parent));
        }
        // The oracle has no answer where both changed a line in the same way.
        if states.iter().any(|(_, base, child, parent)| changed_alike(base, child, parent)) {
            continue;
        }
        let child_workspace = fixture.create_child_workspace();
        for (name, _, child, parent) in &states {
            child.put(&child_workspace.folder().join(name));
            parent.put(&fixture.work().join(name));
        }
        let before = read_file_tree(&fixture.work());
        let expected: Vec<_> = states
            .iter()
            .map(|(name, base, child, parent)| (*name, oracle(base, child, parent)))
            .collect();
        let plan = fixture.plan_merge(&child_workspace);
        let conflicts: Vec<&Path> = plan.conflicts.iter().map(|it| it.path.as_path()).collect();
        for (name, wanted) in &expected {
            let is_conflict = conflicts.contains(&Path::new(name));
            assert_eq!(is_conflict, wanted.is_none(), "{seed} {round} {name}: {states:?} {plan:?}");
        }
        let merged = fixture.apply_merge(&child_workspace);
        if expected.iter().any(|(_, wanted)| wanted.is_none()) {
            assert!(matches!(merged, Err(ChildWorkspaceError::Conflicts(_))), "{seed} {round}");
            assert_eq!(
                read_file_tree(&fixture.work()),
                before,
                "{seed} {round}: nothing was touched"
            );
            refused += 1;
            continue;
        }
        let transaction = merged.unwrap();
        let now = read_file_tree(&fixture.work());
        for (name, wanted) in &expected {
            let found = match now.get(Path::new(name)) {
                None => (b"nothing".to_vec(), 0),
                Some((0, target)) => ([b"link ", &target[..]].concat(), 0),
                Some((mode, text)) => (text.clone(), mode & 0o777),
            };
            assert_eq!(Some(&found), wanted.as_ref(), "{seed} {round} {name}: {states:?}");
        }
        let child_workspace = fixture
            .child_workspaces
            .find(&StateRoot::in_workspace(fixture.work()), child_workspace.child())
            .unwrap()
            .unwrap();
        assert!(
            fixture.plan_merge(&child_workspace).is_up_to_date(),
            "{seed} {round}: it is all there"
        );
        let (store, folder) = (child_workspace.store(), child_workspace.parent_folder());
        transaction
            .inverse()
            .apply(&fixture.workspace, &store, &folder, None, &CancellationToken::new())
            .unwrap()
            .mark_recorded();
        let mut back = read_file_tree(&fixture.work());
        let mut before = before;
        // A folder that lost its last file may go with it.
        for tree in [&mut back, &mut before] {
            tree.retain(|path, _| !fixture.work().join(path).is_dir() || path.starts_with("x"));
        }
        assert_eq!(back, before, "{seed} {round}: rolled back");
        done += 1;
    }
    assert!(done > rounds / 20 && refused > rounds / 20, "{done} {refused}");
}

#[test]
fn folders_come_and_go_with_their_modes() {
    let fixture = ChildWorkspaceFixture::new();
    for folder in ["gone/inner", "kept", "mode"] {
        fs::create_dir_all(fixture.work().join(folder)).unwrap();
    }
    let child_workspace = fixture.create_child_workspace();
    let inside = child_workspace.folder().to_owned();
    fs::remove_dir_all(inside.join("gone")).unwrap();
    fs::create_dir_all(inside.join("new/deep")).unwrap();
    fs::write(inside.join("new/deep/file"), "x").unwrap();
    set_mode(&inside.join("new/deep"), 0o555);
    set_mode(&inside.join("mode"), 0o750);
    fs::write(fixture.work().join("kept/mine"), "y").unwrap();
    let transaction = fixture.apply_merge(&child_workspace).unwrap();
    let now = read_file_tree(&fixture.work());
    assert!(!now.contains_key(Path::new("gone")));
    assert_eq!(now[Path::new("new/deep")].0 & 0o777, 0o555);
    assert_eq!(now[Path::new("mode")].0 & 0o777, 0o750);
    assert_eq!(now[Path::new("new/deep/file")].1, b"x");
    transaction
        .inverse()
        .apply(
            &fixture.workspace,
            &child_workspace.store(),
            &child_workspace.parent_folder(),
            None,
            &CancellationToken::new(),
        )
        .unwrap()
        .mark_recorded();
    let back = read_file_tree(&fixture.work());
    assert!(back.contains_key(Path::new("gone/inner")) && !back.contains_key(Path::new("new")));
    set_mode(&inside.join("new/deep"), 0o755);
}

#[test]
fn a_folder_that_becomes_writable_does_so_before_its_files_change() {
    let fixture = ChildWorkspaceFixture::new();
    fs::create_dir(fixture.work().join("ro")).unwrap();
    fs::write(fixture.work().join("ro/a"), "old\n").unwrap();
    set_mode(&fixture.work().join("ro"), 0o555);
    let child_workspace = fixture.create_child_workspace();
    for (mode, text) in [(0o755, "new\n"), (0o577, "newer\n")] {
        set_mode(&child_workspace.folder().join("ro"), 0o755);
        fs::write(child_workspace.folder().join("ro/a"), text).unwrap();
        set_mode(&child_workspace.folder().join("ro"), mode);
        let transaction = MergeTransaction::from_merge(
            &fixture.plan_merge(&child_workspace),
            child_workspace.child(),
            &fixture.workspace,
        );
        let mut now = 0o555;
        let mut back = 0;
        for step in transaction.steps.iter().chain(&transaction.inverse().steps) {
            match step {
                merge_transaction::MergeStep::Folder(FolderChange { from, to, .. }) => {
                    assert_eq!(*from, Some(now), "each step begins where the last one ended");
                    now = to.unwrap();
                    back += usize::from(now == mode);
                }
                merge_transaction::MergeStep::File(_) => {
                    assert_eq!(now & 0o700, 0o700, "{:?}", transaction.steps);
                }
            }
        }
        assert_eq!((now, back), (0o555, 1));
    }
    set_mode(&fixture.work().join("ro"), 0o755);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a real repository is made")]
fn what_is_tracked_belongs_to_a_copy_and_comes_back_also_where_it_is_ignored() {
    let fixture = ChildWorkspaceFixture::new();
    let work = fixture.work();
    fs::create_dir_all(work.join("dist/js")).unwrap();
    for (path, text) in [
        (".gitignore", "dist/\n*.log\n"),
        ("a.rs", "a\n"),
        ("dist/js/app.js", "built\n"),
        ("dist/junk", "noise"),
        ("kept.log", "kept\n"),
        ("gone.log", "gone\n"),
        ("x.log", "noise"),
    ] {
        fs::write(work.join(path), text).unwrap();
    }
    let git = |words: &[&str]| {
        let ran = std::process::Command::new("git").current_dir(&work).args(words).output();
        assert!(ran.unwrap().status.success(), "{words:?}");
    };
    git(&["init", "-q"]);
    git(&["add", "-f", ".gitignore", "a.rs", "dist/js/app.js", "kept.log", "gone.log"]);
    fs::remove_file(work.join("gone.log")).unwrap();
    let child_workspace = fixture.create_child_workspace();
    let mut expected = read_file_tree(&work);
    let noise = [".git", "dist/junk", "x.log"];
    expected.retain(|path, _| !noise.iter().any(|it| path.starts_with(it)));
    assert_eq!(read_file_tree(child_workspace.folder()), expected);
    assert!(child_workspace.find_changes(&fixture.workspace).unwrap().is_empty());

    fs::write(child_workspace.folder().join("dist/js/app.js"), "built again\n").unwrap();
    fs::remove_file(child_workspace.folder().join("kept.log")).unwrap();
    fs::write(child_workspace.folder().join("y.log"), "noise of the child").unwrap();
    assert_eq!(
        child_workspace.find_changes(&fixture.workspace).unwrap().format_list(),
        "M dist/js/app.js\nD kept.log\n"
    );
    fixture.apply_merge(&child_workspace).unwrap();
    assert_eq!(fs::read_to_string(work.join("dist/js/app.js")).unwrap(), "built again\n");
    assert!(!work.join("kept.log").exists() && work.join("x.log").exists());
}
