//! Random Workspaces with random changes, undone and redone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::record::Record;
use super::restore::Here;
use super::*;
use crate::base::files::StateFolder;
use crate::base::id::SessionId;
use crate::host::workspace::Workspace;
use crate::record::state_dir::{SessionFolder, StateRoot};

struct Yard {
    folder: TempDir,
    workspace: Workspace,
    tracker: Tracker,
    random: fastrand::Rng,
}

/// Everything that must be restored: kind, mode, bytes or target.
type Picture = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn session_folder(workspace: &Path) -> SessionFolder {
    StateRoot::in_workspace(workspace).session_folder(&SessionId::parse("s").unwrap())
}

impl Yard {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".gitignore"), "ignored*\n").unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        let tracker = Tracker::new(workspace.clone(), session_folder(folder.path()), limits());
        Self { folder, workspace, tracker, random: fastrand::Rng::with_seed(seed) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn picture(&self) -> Picture {
        let mut picture = Picture::new();
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
                picture.insert(path, (mode, content));
            }
        }
        picture
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
                // The same size and time, as some tools leave it.
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
        self.tracker.begin(seq);
        for _ in 0..self.random.usize(1..8) {
            if self.random.bool() {
                self.tool();
            } else {
                self.run(|yard| {
                    for _ in 0..yard.random.usize(1..4) {
                        yard.command();
                    }
                });
            }
        }
        self.tracker.end().unwrap();
    }

    fn plan(&self, turns: &[u64], direction: Direction) -> Plan {
        let folder = session_folder(self.folder.path());
        let records: Vec<Record> =
            turns.iter().map(|turn| Record::read(&folder, *turn).unwrap()).collect();
        let store = self.store();
        let here = Here { workspace: &self.workspace, store: &store, limits: limits() };
        Plan::of(&records, direction, &here, &OtherSessions::default()).unwrap()
    }

    fn store(&self) -> Store {
        Store::new(StateRoot::in_workspace(self.workspace.root()).snapshots())
    }

    fn carry_out(&self, plan: Plan) {
        let is_of_command = |conflict: &Conflict| conflict.reason == Reason::WhileCommandRan;
        assert!(plan.conflicts.iter().all(is_of_command), "nobody else was here: {plan:?}");
        let restored = restore(&plan.forced(), &self.workspace, &self.store());
        assert_eq!(restored.failed, []);
    }
}

/// The files of a plan that need force, and why.
fn reasons(plan: &Plan) -> Vec<(&str, Reason)> {
    let named = |conflict: &Conflict| conflict.reason;
    let conflicts = plan.conflicts.iter();
    conflicts.map(|one| (one.change.path.to_str().unwrap(), named(one))).collect()
}

fn limits() -> Limits {
    Limits { time: Duration::from_mins(10), ..Limits::of(crate::settings::config::Undo::default()) }
}

#[test]
fn random_workspaces_come_back_exactly_and_go_forward_again() {
    for seed in 4711..4711 + 24 {
        let mut yard = Yard::new(seed);
        for _ in 0..yard.random.usize(..12) {
            yard.command();
        }
        let turns: Vec<u64> = (0..yard.random.u64(1..4)).map(|turn| turn * 10 + 1).collect();
        let mut pictures = vec![yard.picture()];
        for turn in &turns {
            yard.turn(*turn);
            pictures.push(yard.picture());
        }
        let undone = yard.random.usize(1..=turns.len());
        let back = &turns[turns.len() - undone..];
        yard.carry_out(yard.plan(back, Direction::Back));
        assert_eq!(yard.picture(), pictures[turns.len() - undone], "seed {seed}, back {back:?}");
        let forward = yard.plan(back, Direction::Forward);
        assert_eq!(forward.conflicts, [], "what was taken back comes back without force");
        yard.carry_out(forward);
        assert_eq!(yard.picture(), pictures[turns.len()], "seed {seed}, forward {back:?}");
    }
}

#[test]
fn what_somebody_else_changed_is_named_and_kept() {
    let mut yard = Yard::new(1);
    fs::write(yard.path("mine"), "one\n").unwrap();
    fs::write(yard.path("theirs"), "one\n").unwrap();
    yard.tracker.begin(1);
    yard.run(|yard| {
        fs::write(yard.path("mine"), "two\n").unwrap();
        fs::write(yard.path("theirs"), "two\n").unwrap();
    });
    yard.tracker.end().unwrap();
    fs::write(yard.path("theirs"), "three\n").unwrap();
    let plan = yard.plan(&[1], Direction::Back);
    assert_eq!(
        reasons(&plan),
        [("mine", Reason::WhileCommandRan), ("theirs", Reason::ChangedSince)]
    );
    assert_eq!(plan.changes, []);
    let restored = restore(&plan.forced(), &yard.workspace, &yard.store());
    assert_eq!(restored, Restored { files: 2, failed: Vec::new() });
    assert_eq!(fs::read_to_string(yard.path("theirs")).unwrap(), "one\n");
}

#[test]
fn what_is_too_much_is_said() {
    let yard = Yard::new(1);
    let small = Limits { total: 10, ..limits() };
    let folder = session_folder(yard.folder.path());
    let tracker = Tracker::new(yard.workspace.clone(), folder, small);
    fs::write(yard.path("large"), "more than ten bytes").unwrap();
    tracker.begin(1);
    tracker.before_command().unwrap();
    fs::write(yard.path("large"), "changed, and not covered").unwrap();
    assert!(tracker.end().unwrap().is_some());
    let plan = yard.plan(&[1], Direction::Back);
    assert_eq!(plan.changes, []);
    assert!(plan.notes.iter().any(|note| note.contains("not covered")), "{:?}", plan.notes);
}

#[test]
fn what_changes_between_two_commands_is_not_the_turns() {
    let mut yard = Yard::new(1);
    for name in ["mine", "saved", "both"] {
        fs::write(yard.path(name), "one\n").unwrap();
    }
    yard.tracker.begin(1);
    yard.run(|yard| {
        fs::write(yard.path("mine"), "two\n").unwrap();
        fs::write(yard.path("both"), "two\n").unwrap();
    });
    fs::write(yard.path("saved"), "by a person\n").unwrap();
    fs::write(yard.path("both"), "by a person\n").unwrap();
    fs::create_dir(yard.path("folder")).unwrap();
    yard.run(|yard| fs::write(yard.path("both"), "three\n").unwrap());
    fs::write(yard.path("later"), "by a person\n").unwrap();
    yard.tracker.end().unwrap();
    let plan = yard.plan(&[1], Direction::Back);
    assert_eq!(
        reasons(&plan),
        [("both", Reason::ChangedBetween), ("mine", Reason::WhileCommandRan)]
    );
    assert_eq!(plan.foreign, [Path::new("saved")]);
    assert_eq!((&plan.changes[..], &plan.remove[..]), (&[][..], &[][..]));
}

#[test]
fn what_changes_while_a_background_command_runs_needs_force_until_it_ends() {
    let mut yard = Yard::new(1);
    fs::write(yard.path("tool"), "one\n").unwrap();
    yard.tracker.begin(1);
    let background = yard.tracker.command_started();
    yard.run(|_| {});
    fs::write(yard.path("by_background"), "1\n").unwrap();
    let mode = fs::metadata(yard.path("tool")).unwrap().mode();
    yard.tracker.before_write(Path::new("tool"), Some((b"one\n", mode))).unwrap();
    fs::write(yard.path("tool"), "two\n").unwrap();
    yard.tracker.after_write(Path::new("tool"), Some((b"two\n", mode))).unwrap();
    // A file tool writes what the command in the background made.
    let its_mode = fs::metadata(yard.path("by_background")).unwrap().mode();
    yard.tracker.before_write(Path::new("by_background"), Some((b"1\n", its_mode))).unwrap();
    fs::write(yard.path("by_background"), "2\n").unwrap();
    yard.tracker.after_write(Path::new("by_background"), Some((b"2\n", its_mode))).unwrap();
    fs::write(yard.path("late"), "1\n").unwrap();
    drop(background);
    yard.tracker.after_command().unwrap();
    fs::write(yard.path("saved"), "by a person\n").unwrap();
    yard.run(|_| {});
    yard.tracker.end().unwrap();
    let plan = yard.plan(&[1], Direction::Back);
    assert_eq!(reasons(&plan), [("late", Reason::WhileCommandRan)]);
    let certain: Vec<&Path> = plan.changes.iter().map(|change| change.path.as_path()).collect();
    assert_eq!(certain, [Path::new("by_background"), Path::new("tool")]);
    assert_eq!(plan.changes[0].to, None, "it was not there before the Turn");
    assert_eq!(plan.foreign, [Path::new("saved")]);
}

#[test]
fn what_a_command_changes_without_a_report_is_found_when_the_turn_ends() {
    let mut yard = Yard::new(1);
    fs::write(yard.path("mine"), "one\n").unwrap();
    fs::create_dir(yard.path("ignored")).unwrap();
    yard.tracker.begin(1);
    yard.run(|_| {});
    // The second hard link is in a folder that no survey covers.
    yard.run(|yard| {
        fs::hard_link(yard.path("mine"), yard.path("ignored/mine")).unwrap();
        fs::write(yard.path("ignored/mine"), "two\n").unwrap();
    });
    // A person saves something before the Turn ends.
    fs::write(yard.path("saved"), "by a person\n").unwrap();
    yard.tracker.end().unwrap();
    let plan = yard.plan(&[1], Direction::Back);
    assert_eq!(reasons(&plan), [("mine", Reason::WhileCommandRan)]);
    assert_eq!(plan.foreign, [Path::new("saved")]);
}

#[test]
fn what_a_command_changes_without_a_report_is_found_before_the_next_change() {
    for by_tool in [true, false] {
        let mut yard = Yard::new(1);
        fs::write(yard.path("mine"), "one\n").unwrap();
        fs::create_dir(yard.path("ignored")).unwrap();
        yard.tracker.begin(1);
        yard.run(|_| {});
        yard.run(|yard| {
            fs::hard_link(yard.path("mine"), yard.path("ignored/mine")).unwrap();
            fs::write(yard.path("ignored/mine"), "two\n").unwrap();
            fs::remove_file(yard.path("ignored/mine")).unwrap();
        });
        let mode = fs::metadata(yard.path("mine")).unwrap().mode();
        if by_tool {
            yard.tracker.before_write(Path::new("mine"), Some((b"two\n", mode))).unwrap();
            fs::write(yard.path("mine"), "three\n").unwrap();
            yard.tracker.after_write(Path::new("mine"), Some((b"three\n", mode))).unwrap();
        } else {
            fs::write(yard.path("saved"), "by a person\n").unwrap();
            yard.run(|_| {});
        }
        yard.tracker.end().unwrap();
        let plan = yard.plan(&[1], Direction::Back);
        assert_eq!(reasons(&plan), [("mine", Reason::WhileCommandRan)], "{by_tool}");
        assert_eq!(plan.foreign.is_empty(), by_tool);
    }
}

#[test]
fn what_only_came_into_sight_is_never_removed() {
    type Deed = fn(&Yard);
    let deeds: [(&str, Deed); 3] = [
        ("ignored no more", |yard| fs::write(yard.path(".gitignore"), "").unwrap()),
        ("another repository", |yard| fs::create_dir(yard.path("sub/.git")).unwrap()),
        ("moved", |yard| fs::rename(yard.path("sub/ignored"), yard.path("sub/shown")).unwrap()),
    ];
    for (name, deed) in deeds {
        let mut yard = Yard::new(1);
        fs::create_dir_all(yard.path("sub")).unwrap();
        fs::create_dir_all(yard.path(".git")).unwrap();
        fs::write(yard.path("sub/ignored"), "mine\n").unwrap();
        fs::write(yard.path("sub/known"), "one\n").unwrap();
        std::thread::sleep(Duration::from_millis(60));
        yard.tracker.begin(1);
        yard.run(|yard| {
            deed(yard);
            fs::write(yard.path("made"), "").unwrap();
            fs::rename(yard.path("sub/known"), yard.path("sub/renamed")).unwrap();
        });
        yard.tracker.end().unwrap();
        let plan = yard.plan(&[1], Direction::Back);
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
    let mut yard = Yard::new(1);
    for name in ["mine", "by_tool", "by_command", "earlier"] {
        fs::write(yard.path(name), "one\n").unwrap();
    }
    let root = StateRoot::in_workspace(yard.workspace.root());
    let folder = root.session_folder(&SessionId::parse("other").unwrap());
    let other = Tracker::new(yard.workspace.clone(), folder, limits());
    let write = |yard: &Yard, name: &str| {
        let mode = fs::metadata(yard.path(name)).unwrap().mode();
        other.before_write(Path::new(name), Some((b"one\n", mode))).unwrap();
        fs::write(yard.path(name), "theirs\n").unwrap();
        other.after_write(Path::new(name), Some((b"theirs\n", mode))).unwrap();
    };
    other.begin(7);
    write(&yard, "earlier");
    yard.tracker.begin(1);
    yard.run(|yard| {
        fs::write(yard.path("mine"), "two\n").unwrap();
        // Written earlier by the other Session, and now by this one.
        fs::write(yard.path("earlier"), "two\n").unwrap();
        write(yard, "by_tool");
        let running = other.command_started();
        other.before_command().unwrap();
        fs::write(yard.path("by_command"), "theirs\n").unwrap();
        fs::create_dir(yard.path("their_folder")).unwrap();
        drop(running);
        other.after_command().unwrap();
    });
    yard.tracker.end().unwrap();
    other.end().unwrap();
    let own = session_folder(yard.workspace.root());
    let record = [Record::read(&own, 1).unwrap()];
    let store = yard.store();
    let others = OtherSessions::read(&own, std::slice::from_ref(&root), &record);
    let here = Here { workspace: &yard.workspace, store: &store, limits: limits() };
    let plan = Plan::of(&record, Direction::Back, &here, &others).unwrap();
    assert_eq!(
        reasons(&plan),
        ["by_command", "earlier", "mine"].map(|name| (name, Reason::WhileCommandRan))
    );
    let claimed: Vec<_> = plan.claimed.iter().map(|(path, id)| (path.as_path(), &**id)).collect();
    assert_eq!(claimed, [(Path::new("by_tool"), "other")]);
    // Commands of both ran: neither Record proves whose it is.
    assert_eq!(plan.command_folders, [Path::new("their_folder")]);
    for (path, expected) in [("by_command", 1), ("their_folder", 1), ("mine", 0), ("by_tool", 0)] {
        assert_eq!(others.sharing(Path::new(path)).count(), expected, "{path}");
    }
    // The copy of the Record in a fork claims nothing.
    let fork = yard.path(".pixir/sessions/fork/snapshots");
    fs::create_dir_all(&fork).unwrap();
    fs::copy(own.path().join("snapshots/1.ndjson"), fork.join("5.ndjson")).unwrap();
    let again = OtherSessions::read(&own, std::slice::from_ref(&root), &record);
    assert_eq!(Plan::of(&record, Direction::Back, &here, &again).unwrap(), plan);
}

#[test]
fn what_sessions_of_other_workspaces_and_roots_changed_is_their_own() {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("own");
    fs::create_dir_all(folder.join("sub")).unwrap();
    let workspace = Workspace::open(&folder).unwrap();
    let own = session_folder(&folder);
    let tracker = Tracker::new(workspace.clone(), own.clone(), limits());
    // Where each of the others works, where its state is, and how it names the file that it writes.
    let cases = [
        (folder.join("sub"), StateFolder::root(&folder).join("sub/.pixir"), "x"),
        (top.path().to_owned(), StateFolder::root(top.path()).join(".pixir"), "own/y"),
        (folder.clone(), StateFolder::root(top.path()).join("home"), "z"),
    ];
    let mut roots = vec![own.root().clone()];
    tracker.begin(1);
    let running = tracker.command_started();
    tracker.before_command().unwrap();
    fs::write(folder.join("mine"), "two\n").unwrap();
    for (number, (folder, state, name)) in cases.into_iter().enumerate() {
        let root = StateRoot::at(&folder, state);
        root.create_sessions().unwrap();
        let id = SessionId::parse(&format!("other{number}")).unwrap();
        let workspace = Workspace::open(&folder).unwrap();
        let other = Tracker::new(workspace, root.session_folder(&id), limits());
        other.begin(1);
        other.before_write(Path::new(name), None).unwrap();
        fs::write(folder.join(name), "theirs\n").unwrap();
        let mode = fs::metadata(folder.join(name)).unwrap().mode();
        other.after_write(Path::new(name), Some((b"theirs\n", mode))).unwrap();
        other.end().unwrap();
        roots.push(root);
    }
    drop(running);
    tracker.after_command().unwrap();
    tracker.end().unwrap();
    let record = [Record::read(&own, 1).unwrap()];
    let others = OtherSessions::read(&own, &roots, &record);
    let store = Store::beside(&own);
    let here = Here { workspace: &workspace, store: &store, limits: limits() };
    let plan = Plan::of(&record, Direction::Back, &here, &others).unwrap();
    // A folder inside may have been written by a command of this Workspace.
    assert_eq!(reasons(&plan), ["mine", "sub/x"].map(|name| (name, Reason::WhileCommandRan)));
    assert_eq!(others.sharing(Path::new("sub/x")).collect::<Vec<_>>(), ["other0"]);
    let claimed: Vec<&Path> = plan.claimed.iter().map(|(path, _)| path.as_path()).collect();
    assert_eq!(claimed, ["y", "z"].map(Path::new));
}

#[test]
fn an_old_record_means_what_it_meant() {
    let yard = Yard::new(1);
    let (mine, store) = (yard.path("mine"), yard.store());
    fs::write(&mine, "one\n").unwrap();
    let manifest = |yard: &Yard| {
        let survey = Survey { workspace: &yard.workspace, store: &store, limits: limits() };
        survey.take(None).unwrap().keep(&store).unwrap().0
    };
    let before = manifest(&yard);
    fs::write(&mine, "two\n").unwrap();
    fs::write(yard.path("made"), "made\n").unwrap();
    let after = manifest(&yard);
    let text = format!(
        "{{\"surveyed\":{{\"when\":\"before\",\"manifest\":\"{before}\"}}}}\n\
         {{\"surveyed\":{{\"when\":\"after\",\"manifest\":\"{after}\"}}}}\n\"ended\"\n"
    );
    let folder = yard.path(".pixir/sessions/s/snapshots");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("1.ndjson"), text).unwrap();
    let plan = yard.plan(&[1], Direction::Back);
    assert_eq!((plan.changes.len(), &plan.conflicts[..]), (2, &[][..]));
    // Checks that belong to the Turn run after its end.
    let survey = Survey { workspace: &yard.workspace, store: &store, limits: limits() };
    let own = session_folder(yard.workspace.root());
    let mut record = Record::reopen(&own, 1, &survey).unwrap();
    fs::write(yard.path("checked"), "1\n").unwrap();
    record.close(&own, &survey).unwrap();
    let plan = yard.plan(&[1], Direction::Back);
    assert_eq!(reasons(&plan), [("checked", Reason::WhileCommandRan)]);
    assert_eq!(plan.changes.len(), 2);
}
