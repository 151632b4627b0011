//! Tests of undo and redo: random Workspaces with random changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::record::TurnRecord;
use super::restore::CurrentFiles;
use super::*;
use crate::base::files::StatePath;
use crate::base::id::SessionId;
use crate::host::workspace::Workspace;
use crate::record::state_dir::{SessionFolder, StateRoot};

struct RandomWorkspace {
    folder: TempDir,
    workspace: Workspace,
    tracker: TurnTracker,
    random: fastrand::Rng,
}

/// The state that must be restored, by path: mode with file type, and bytes or link target.
type WorkspaceTree = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn session_folder(workspace: &Path) -> SessionFolder {
    StateRoot::in_workspace(workspace).session_folder(&SessionId::parse("s").unwrap())
}

impl RandomWorkspace {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".gitignore"), "ignored*\n").unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        let tracker = TurnTracker::new(workspace.clone(), session_folder(folder.path()), limits());
        Self { folder, workspace, tracker, random: fastrand::Rng::with_seed(seed) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read_workspace_tree(&self) -> WorkspaceTree {
        let mut tree = WorkspaceTree::new();
        let mut waiting = vec![self.folder.path().to_owned()];
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.ends_with(".pixir") {
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
                tree.insert(path, (mode, content));
            }
        }
        tree
    }

    fn name(&mut self) -> PathBuf {
        let folders = ["", "a/", "a/b/", "c/"];
        let names = ["one", "two", "three.txt", ".hidden", "w\u{e4}re"];
        let folder = folders[self.random.usize(..folders.len())];
        PathBuf::from(format!("{folder}{}", names[self.random.usize(..names.len())]))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.random.usize(..200);
        (0..length).map(|_| self.random.u8(..)).collect()
    }

    /// Changes files as a command does, without the tracker.
    fn command(&mut self) {
        let name = self.name();
        let path = self.path(name.to_str().unwrap());
        let exists = fs::symlink_metadata(&path).is_ok();
        match self.random.u8(..8) {
            0 if exists => drop(fs::remove_file(&path)),
            1 => {
                fs::create_dir_all(path.parent().unwrap()).ok();
                fs::remove_file(&path).ok();
                symlink("somewhere/else", &path).ok();
            }
            2 if exists => {
                let mode = [0o600, 0o755, 0o640][self.random.usize(..3)];
                if !path.is_symlink() {
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                }
            }
            3 => drop(fs::remove_dir_all(self.path("a"))),
            4 => drop(fs::create_dir_all(self.path("made/by/command"))),
            5 if exists && !path.is_symlink() => {
                // Size and time stay the same, as with some tools.
                let old = fs::read(&path).unwrap();
                let new: Vec<u8> = old.iter().rev().copied().collect();
                let times = fs::metadata(&path).unwrap().modified().unwrap();
                fs::write(&path, new).unwrap();
                fs::File::options().write(true).open(&path).unwrap().set_modified(times).unwrap();
            }
            _ => {
                fs::create_dir_all(path.parent().unwrap()).ok();
                if !path.is_symlink() {
                    let bytes = self.bytes();
                    fs::write(&path, bytes).ok();
                }
            }
        }
    }

    /// Changes files as a file tool does.
    fn tool(&mut self) {
        let name = if self.random.u8(..5) == 0 { "ignored.txt".into() } else { self.name() };
        let path = self.path(name.to_str().unwrap());
        if path.is_symlink() || path.parent().is_some_and(Path::is_file) {
            return;
        }
        let old = fs::read(&path).ok();
        let mode = |path: &Path| fs::metadata(path).map_or(0, |stat| stat.mode());
        let found = old.as_deref().map(|old| (old, mode(&path)));
        self.tracker.before_write(&name, found).unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = self.bytes();
        fs::write(&path, &new).unwrap();
        self.tracker.after_write(&name, Some((&new, mode(&path)))).unwrap();
    }

    /// Runs a closure as a command.
    fn run(&mut self, command: impl FnOnce(&mut Self)) {
        let running = self.tracker.command_started();
        self.tracker.before_command().unwrap();
        command(self);
        drop(running);
        self.tracker.after_command().unwrap();
    }

    /// A Turn of tools and commands.
    fn turn(&mut self, seq: u64) {
        self.tracker.begin_turn(seq);
        for _ in 0..self.random.usize(1..8) {
            if self.random.bool() {
                self.tool();
            } else {
                self.run(|workspace_fixture| {
                    for _ in 0..workspace_fixture.random.usize(1..4) {
                        workspace_fixture.command();
                    }
                });
            }
        }
        self.tracker.end_turn().unwrap();
    }

    fn plan(&self, turns: &[u64], direction: Direction) -> RestorePlan {
        let folder = session_folder(self.folder.path());
        let records: Vec<TurnRecord> =
            turns.iter().map(|turn| TurnRecord::read(&folder, *turn).unwrap()).collect();
        let store = self.store();
        let here = CurrentFiles { workspace: &self.workspace, store: &store, limits: limits() };
        RestorePlan::for_records(&records, direction, &here, &OtherSessions::default()).unwrap()
    }

    fn store(&self) -> ContentStore {
        ContentStore::new(StateRoot::in_workspace(self.workspace.root()).snapshots())
    }

    fn apply_plan(&self, plan: RestorePlan) {
        let is_of_command =
            |conflict: &RestoreConflict| conflict.reason == RestoreConflictReason::WhileCommandRan;
        assert!(plan.conflicts.iter().all(is_of_command), "unexpected conflicts: {plan:?}");
        let restored = restore(&plan.with_conflicts_forced(), &self.workspace, &self.store());
        assert_eq!(restored.failed, []);
    }
}

/// The files of a plan that need force, and the reasons.
fn reasons(plan: &RestorePlan) -> Vec<(&str, RestoreConflictReason)> {
    let named = |conflict: &RestoreConflict| conflict.reason;
    let conflicts = plan.conflicts.iter();
    conflicts.map(|one| (one.change.path.to_str().unwrap(), named(one))).collect()
}

fn limits() -> SurveyLimits {
    SurveyLimits {
        time: Duration::from_mins(10),
        ..SurveyLimits::from_undo_settings(crate::settings::config::UndoLimits::default())
    }
}

#[test]
fn random_workspaces_come_back_exactly_and_go_forward_again() {
    for seed in 4711..4711 + 24 {
        let mut workspace_fixture = RandomWorkspace::new(seed);
        for _ in 0..workspace_fixture.random.usize(..12) {
            workspace_fixture.command();
        }
        let turns: Vec<u64> =
            (0..workspace_fixture.random.u64(1..4)).map(|turn| turn * 10 + 1).collect();
        let mut trees = vec![workspace_fixture.read_workspace_tree()];
        for turn in &turns {
            workspace_fixture.turn(*turn);
            trees.push(workspace_fixture.read_workspace_tree());
        }
        let undone = workspace_fixture.random.usize(1..=turns.len());
        let back = &turns[turns.len() - undone..];
        workspace_fixture.apply_plan(workspace_fixture.plan(back, Direction::Back));
        assert_eq!(
            workspace_fixture.read_workspace_tree(),
            trees[turns.len() - undone],
            "seed {seed}, back {back:?}"
        );
        let forward = workspace_fixture.plan(back, Direction::Forward);
        assert_eq!(forward.conflicts, [], "what was taken back comes back without force");
        workspace_fixture.apply_plan(forward);
        assert_eq!(
            workspace_fixture.read_workspace_tree(),
            trees[turns.len()],
            "seed {seed}, forward {back:?}"
        );
    }
}

#[test]
fn files_changed_by_another_program_are_named_and_kept() {
    let mut workspace_fixture = RandomWorkspace::new(1);
    fs::write(workspace_fixture.path("mine"), "one\n").unwrap();
    fs::write(workspace_fixture.path("theirs"), "one\n").unwrap();
    workspace_fixture.tracker.begin_turn(1);
    workspace_fixture.run(|workspace_fixture| {
        fs::write(workspace_fixture.path("mine"), "two\n").unwrap();
        fs::write(workspace_fixture.path("theirs"), "two\n").unwrap();
    });
    workspace_fixture.tracker.end_turn().unwrap();
    fs::write(workspace_fixture.path("theirs"), "three\n").unwrap();
    let plan = workspace_fixture.plan(&[1], Direction::Back);
    assert_eq!(
        reasons(&plan),
        [
            ("mine", RestoreConflictReason::WhileCommandRan),
            ("theirs", RestoreConflictReason::ChangedSince)
        ]
    );
    assert_eq!(plan.changes, []);
    let restored = restore(
        &plan.with_conflicts_forced(),
        &workspace_fixture.workspace,
        &workspace_fixture.store(),
    );
    assert_eq!(restored, RestoreOutcome { files: 2, failed: Vec::new() });
    assert_eq!(fs::read_to_string(workspace_fixture.path("theirs")).unwrap(), "one\n");
}

#[test]
fn a_workspace_over_the_limit_is_reported_as_not_covered() {
    let workspace_fixture = RandomWorkspace::new(1);
    let small = SurveyLimits { total: 10, ..limits() };
    let folder = session_folder(workspace_fixture.folder.path());
    let tracker = TurnTracker::new(workspace_fixture.workspace.clone(), folder, small);
    fs::write(workspace_fixture.path("large"), "more than ten bytes").unwrap();
    tracker.begin_turn(1);
    tracker.before_command().unwrap();
    fs::write(workspace_fixture.path("large"), "changed, and not covered").unwrap();
    assert!(tracker.end_turn().unwrap().is_some());
    let plan = workspace_fixture.plan(&[1], Direction::Back);
    assert_eq!(plan.changes, []);
    assert!(plan.notes.iter().any(|note| note.contains("not covered")), "{:?}", plan.notes);
}

#[test]
fn what_changes_between_two_commands_is_not_the_turns() {
    let mut workspace_fixture = RandomWorkspace::new(1);
    for name in ["mine", "saved", "both"] {
        fs::write(workspace_fixture.path(name), "one\n").unwrap();
    }
    workspace_fixture.tracker.begin_turn(1);
    workspace_fixture.run(|workspace_fixture| {
        fs::write(workspace_fixture.path("mine"), "two\n").unwrap();
        fs::write(workspace_fixture.path("both"), "two\n").unwrap();
    });
    fs::write(workspace_fixture.path("saved"), "by a person\n").unwrap();
    fs::write(workspace_fixture.path("both"), "by a person\n").unwrap();
    fs::create_dir(workspace_fixture.path("folder")).unwrap();
    workspace_fixture
        .run(|workspace_fixture| fs::write(workspace_fixture.path("both"), "three\n").unwrap());
    fs::write(workspace_fixture.path("later"), "by a person\n").unwrap();
    workspace_fixture.tracker.end_turn().unwrap();
    let plan = workspace_fixture.plan(&[1], Direction::Back);
    assert_eq!(
        reasons(&plan),
        [
            ("both", RestoreConflictReason::ChangedBetween),
            ("mine", RestoreConflictReason::WhileCommandRan)
        ]
    );
    assert_eq!(plan.foreign, [Path::new("saved")]);
    assert_eq!((&plan.changes[..], &plan.remove_folders[..]), (&[][..], &[][..]));
}

#[test]
fn what_changes_while_a_background_command_runs_needs_force_until_it_ends() {
    let mut workspace_fixture = RandomWorkspace::new(1);
    fs::write(workspace_fixture.path("tool"), "one\n").unwrap();
    workspace_fixture.tracker.begin_turn(1);
    let background = workspace_fixture.tracker.command_started();
    workspace_fixture.run(|_| {});
    fs::write(workspace_fixture.path("by_background"), "1\n").unwrap();
    let mode = fs::metadata(workspace_fixture.path("tool")).unwrap().mode();
    workspace_fixture.tracker.before_write(Path::new("tool"), Some((b"one\n", mode))).unwrap();
    fs::write(workspace_fixture.path("tool"), "two\n").unwrap();
    workspace_fixture.tracker.after_write(Path::new("tool"), Some((b"two\n", mode))).unwrap();
    // A file tool writes a file that the background command created.
    let its_mode = fs::metadata(workspace_fixture.path("by_background")).unwrap().mode();
    workspace_fixture
        .tracker
        .before_write(Path::new("by_background"), Some((b"1\n", its_mode)))
        .unwrap();
    fs::write(workspace_fixture.path("by_background"), "2\n").unwrap();
    workspace_fixture
        .tracker
        .after_write(Path::new("by_background"), Some((b"2\n", its_mode)))
        .unwrap();
    fs::write(workspace_fixture.path("late"), "1\n").unwrap();
    drop(background);
    workspace_fixture.tracker.after_command().unwrap();
    fs::write(workspace_fixture.path("saved"), "by a person\n").unwrap();
    workspace_fixture.run(|_| {});
    workspace_fixture.tracker.end_turn().unwrap();
    let plan = workspace_fixture.plan(&[1], Direction::Back);
    assert_eq!(reasons(&plan), [("late", RestoreConflictReason::WhileCommandRan)]);
    let certain: Vec<&Path> = plan.changes.iter().map(|change| change.path.as_path()).collect();
    assert_eq!(certain, [Path::new("by_background"), Path::new("tool")]);
    assert_eq!(plan.changes[0].to, None, "it was not there before the Turn");
    assert_eq!(plan.foreign, [Path::new("saved")]);
}

#[test]
fn what_a_command_changes_without_a_report_is_found_when_the_turn_ends() {
    let mut workspace_fixture = RandomWorkspace::new(1);
    fs::write(workspace_fixture.path("mine"), "one\n").unwrap();
    fs::create_dir(workspace_fixture.path("ignored")).unwrap();
    workspace_fixture.tracker.begin_turn(1);
    workspace_fixture.run(|_| {});
    // The second hard link is in a folder that no survey covers.
    workspace_fixture.run(|workspace_fixture| {
        fs::hard_link(workspace_fixture.path("mine"), workspace_fixture.path("ignored/mine"))
            .unwrap();
        fs::write(workspace_fixture.path("ignored/mine"), "two\n").unwrap();
    });
    // A person saves something before the Turn ends.
    fs::write(workspace_fixture.path("saved"), "by a person\n").unwrap();
    workspace_fixture.tracker.end_turn().unwrap();
    let plan = workspace_fixture.plan(&[1], Direction::Back);
    assert_eq!(reasons(&plan), [("mine", RestoreConflictReason::WhileCommandRan)]);
    assert_eq!(plan.foreign, [Path::new("saved")]);
}

#[test]
fn what_a_command_changes_without_a_report_is_found_before_the_next_change() {
    for by_tool in [true, false] {
        let mut workspace_fixture = RandomWorkspace::new(1);
        fs::write(workspace_fixture.path("mine"), "one\n").unwrap();
        fs::create_dir(workspace_fixture.path("ignored")).unwrap();
        workspace_fixture.tracker.begin_turn(1);
        workspace_fixture.run(|_| {});
        workspace_fixture.run(|workspace_fixture| {
            fs::hard_link(workspace_fixture.path("mine"), workspace_fixture.path("ignored/mine"))
                .unwrap();
            fs::write(workspace_fixture.path("ignored/mine"), "two\n").unwrap();
            fs::remove_file(workspace_fixture.path("ignored/mine")).unwrap();
        });
        let mode = fs::metadata(workspace_fixture.path("mine")).unwrap().mode();
        if by_tool {
            workspace_fixture
                .tracker
                .before_write(Path::new("mine"), Some((b"two\n", mode)))
                .unwrap();
            fs::write(workspace_fixture.path("mine"), "three\n").unwrap();
            workspace_fixture
                .tracker
                .after_write(Path::new("mine"), Some((b"three\n", mode)))
                .unwrap();
        } else {
            fs::write(workspace_fixture.path("saved"), "by a person\n").unwrap();
            workspace_fixture.run(|_| {});
        }
        workspace_fixture.tracker.end_turn().unwrap();
        let plan = workspace_fixture.plan(&[1], Direction::Back);
        assert_eq!(reasons(&plan), [("mine", RestoreConflictReason::WhileCommandRan)], "{by_tool}");
        assert_eq!(plan.foreign.is_empty(), by_tool);
    }
}

#[test]
fn files_that_only_became_visible_are_never_removed() {
    type FileAction = fn(&RandomWorkspace);
    let actions: [(&str, FileAction); 3] = [
        ("no longer ignored", |workspace_fixture| {
            fs::write(workspace_fixture.path(".gitignore"), "").unwrap();
        }),
        ("another repository", |workspace_fixture| {
            fs::create_dir(workspace_fixture.path("sub/.git")).unwrap();
        }),
        ("moved", |workspace_fixture| {
            fs::rename(workspace_fixture.path("sub/ignored"), workspace_fixture.path("sub/shown"))
                .unwrap();
        }),
    ];
    for (name, action) in actions {
        let mut workspace_fixture = RandomWorkspace::new(1);
        fs::create_dir_all(workspace_fixture.path("sub")).unwrap();
        fs::create_dir_all(workspace_fixture.path(".git")).unwrap();
        fs::write(workspace_fixture.path("sub/ignored"), "mine\n").unwrap();
        fs::write(workspace_fixture.path("sub/known"), "one\n").unwrap();
        std::thread::sleep(Duration::from_millis(60));
        workspace_fixture.tracker.begin_turn(1);
        workspace_fixture.run(|workspace_fixture| {
            action(workspace_fixture);
            fs::write(workspace_fixture.path("made"), "").unwrap();
            fs::rename(workspace_fixture.path("sub/known"), workspace_fixture.path("sub/renamed"))
                .unwrap();
        });
        workspace_fixture.tracker.end_turn().unwrap();
        let plan = workspace_fixture.plan(&[1], Direction::Back);
        let changed: Vec<&str> = reasons(&plan).into_iter().map(|(path, _)| path).collect();
        assert!(
            changed.contains(&"made") && changed.contains(&"sub/renamed"),
            "{name}: {changed:?}"
        );
        let is_named = |path: &str| changed.contains(&path);
        assert!(!is_named("sub/ignored") && !is_named("sub/shown"), "{name}: {changed:?}");
        assert!(plan.notes.iter().any(|note| note.contains("existed before")), "{name}");
    }
}

#[test]
fn what_another_session_changed_meanwhile_is_its_own() {
    let mut workspace_fixture = RandomWorkspace::new(1);
    for name in ["mine", "by_tool", "by_command", "earlier"] {
        fs::write(workspace_fixture.path(name), "one\n").unwrap();
    }
    let root = StateRoot::in_workspace(workspace_fixture.workspace.root());
    let folder = root.session_folder(&SessionId::parse("other").unwrap());
    let other = TurnTracker::new(workspace_fixture.workspace.clone(), folder, limits());
    let write = |workspace_fixture: &RandomWorkspace, name: &str| {
        let mode = fs::metadata(workspace_fixture.path(name)).unwrap().mode();
        other.before_write(Path::new(name), Some((b"one\n", mode))).unwrap();
        fs::write(workspace_fixture.path(name), "theirs\n").unwrap();
        other.after_write(Path::new(name), Some((b"theirs\n", mode))).unwrap();
    };
    other.begin_turn(7);
    write(&workspace_fixture, "earlier");
    workspace_fixture.tracker.begin_turn(1);
    workspace_fixture.run(|workspace_fixture| {
        fs::write(workspace_fixture.path("mine"), "two\n").unwrap();
        // The other Session wrote this file earlier, and now this one does.
        fs::write(workspace_fixture.path("earlier"), "two\n").unwrap();
        write(workspace_fixture, "by_tool");
        let running = other.command_started();
        other.before_command().unwrap();
        fs::write(workspace_fixture.path("by_command"), "theirs\n").unwrap();
        fs::create_dir(workspace_fixture.path("their_folder")).unwrap();
        drop(running);
        other.after_command().unwrap();
    });
    workspace_fixture.tracker.end_turn().unwrap();
    other.end_turn().unwrap();
    let own = session_folder(workspace_fixture.workspace.root());
    let record = [TurnRecord::read(&own, 1).unwrap()];
    let store = workspace_fixture.store();
    let others = OtherSessions::read(&own, std::slice::from_ref(&root), &record);
    let here =
        CurrentFiles { workspace: &workspace_fixture.workspace, store: &store, limits: limits() };
    let plan = RestorePlan::for_records(&record, Direction::Back, &here, &others).unwrap();
    assert_eq!(
        reasons(&plan),
        ["by_command", "earlier", "mine"]
            .map(|name| (name, RestoreConflictReason::WhileCommandRan))
    );
    let claimed: Vec<_> = plan.claimed.iter().map(|(path, id)| (path.as_path(), &**id)).collect();
    assert_eq!(claimed, [(Path::new("by_tool"), "other")]);
    // Commands of both Sessions ran, so neither Record proves which one changed the folder.
    assert_eq!(plan.command_folders, [Path::new("their_folder")]);
    for (path, expected) in [("by_command", 1), ("their_folder", 1), ("mine", 0), ("by_tool", 0)] {
        assert_eq!(others.sessions_sharing(Path::new(path)).count(), expected, "{path}");
    }
    // The copy of the Record in a fork claims nothing.
    let fork = workspace_fixture.path(".pixir/sessions/fork/snapshots");
    fs::create_dir_all(&fork).unwrap();
    fs::copy(own.path().join("snapshots/1.ndjson"), fork.join("5.ndjson")).unwrap();
    let again = OtherSessions::read(&own, std::slice::from_ref(&root), &record);
    assert_eq!(RestorePlan::for_records(&record, Direction::Back, &here, &again).unwrap(), plan);
}

#[test]
fn what_sessions_of_other_workspaces_and_roots_changed_is_their_own() {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("own");
    fs::create_dir_all(folder.join("sub")).unwrap();
    let workspace = Workspace::open(&folder).unwrap();
    let own = session_folder(&folder);
    let tracker = TurnTracker::new(workspace.clone(), own.clone(), limits());
    // The Workspace, the state folder and the written file of each other Session.
    let cases = [
        (folder.join("sub"), StatePath::root(&folder).join("sub/.pixir"), "x"),
        (top.path().to_owned(), StatePath::root(top.path()).join(".pixir"), "own/y"),
        (folder.clone(), StatePath::root(top.path()).join("home"), "z"),
    ];
    let mut roots = vec![own.root().clone()];
    tracker.begin_turn(1);
    let running = tracker.command_started();
    tracker.before_command().unwrap();
    fs::write(folder.join("mine"), "two\n").unwrap();
    for (number, (folder, state, name)) in cases.into_iter().enumerate() {
        let root = StateRoot::in_state_folder(&folder, state);
        root.create_sessions().unwrap();
        let id = SessionId::parse(&format!("other{number}")).unwrap();
        let workspace = Workspace::open(&folder).unwrap();
        let other = TurnTracker::new(workspace, root.session_folder(&id), limits());
        other.begin_turn(1);
        other.before_write(Path::new(name), None).unwrap();
        fs::write(folder.join(name), "theirs\n").unwrap();
        let mode = fs::metadata(folder.join(name)).unwrap().mode();
        other.after_write(Path::new(name), Some((b"theirs\n", mode))).unwrap();
        other.end_turn().unwrap();
        roots.push(root);
    }
    drop(running);
    tracker.after_command().unwrap();
    tracker.end_turn().unwrap();
    let record = [TurnRecord::read(&own, 1).unwrap()];
    let others = OtherSessions::read(&own, &roots, &record);
    let store = ContentStore::for_session(&own);
    let here = CurrentFiles { workspace: &workspace, store: &store, limits: limits() };
    let plan = RestorePlan::for_records(&record, Direction::Back, &here, &others).unwrap();
    // A command of this Workspace may have written to a folder inside it.
    assert_eq!(
        reasons(&plan),
        ["mine", "sub/x"].map(|name| (name, RestoreConflictReason::WhileCommandRan))
    );
    assert_eq!(others.sessions_sharing(Path::new("sub/x")).collect::<Vec<_>>(), ["other0"]);
    let claimed: Vec<&Path> = plan.claimed.iter().map(|(path, _)| path.as_path()).collect();
    assert_eq!(claimed, ["y", "z"].map(Path::new));
}

#[test]
fn an_old_record_means_what_it_meant() {
    let workspace_fixture = RandomWorkspace::new(1);
    let (mine, store) = (workspace_fixture.path("mine"), workspace_fixture.store());
    fs::write(&mine, "one\n").unwrap();
    let manifest = |workspace_fixture: &RandomWorkspace| {
        let survey =
            Survey { workspace: &workspace_fixture.workspace, store: &store, limits: limits() };
        survey.run(None).unwrap().save(&store).unwrap().0
    };
    let before = manifest(&workspace_fixture);
    fs::write(&mine, "two\n").unwrap();
    fs::write(workspace_fixture.path("made"), "made\n").unwrap();
    let after = manifest(&workspace_fixture);
    let text = format!(
        "{{\"surveyed\":{{\"when\":\"before\",\"manifest\":\"{before}\"}}}}\n\
         {{\"surveyed\":{{\"when\":\"after\",\"manifest\":\"{after}\"}}}}\n\"ended\"\n"
    );
    let folder = workspace_fixture.path(".pixir/sessions/s/snapshots");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("1.ndjson"), text).unwrap();
    let plan = workspace_fixture.plan(&[1], Direction::Back);
    assert_eq!((plan.changes.len(), &plan.conflicts[..]), (2, &[][..]));
    // Checks that belong to the Turn run after its end.
    let survey =
        Survey { workspace: &workspace_fixture.workspace, store: &store, limits: limits() };
    let own = session_folder(workspace_fixture.workspace.root());
    let mut record = TurnRecord::reopen(&own, 1, &survey).unwrap();
    fs::write(workspace_fixture.path("checked"), "1\n").unwrap();
    record.close(&own, &survey).unwrap();
    let plan = workspace_fixture.plan(&[1], Direction::Back);
    assert_eq!(reasons(&plan), [("checked", RestoreConflictReason::WhileCommandRan)]);
    assert_eq!(plan.changes.len(), 2);
}
