//! Tests with every kind of entry in the place of a state file or folder, at every position.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;

/// A kind of entry that an attacker can put under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlantedEntry {
    LinkToFile,
    LinkToFolder,
    DanglingLink,
    Fifo,
    Socket,
    Device,
    OtherKind,
    OtherOwner,
}

const ALL: [PlantedEntry; 8] = [
    PlantedEntry::LinkToFile,
    PlantedEntry::LinkToFolder,
    PlantedEntry::DanglingLink,
    PlantedEntry::Fifo,
    PlantedEntry::Socket,
    PlantedEntry::Device,
    PlantedEntry::OtherKind,
    PlantedEntry::OtherOwner,
];

struct StateFilesFixture {
    folder: TempDir,
}

impl StateFilesFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/file"), "precious").unwrap();
        Self { folder }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// All files outside, with their text.
    fn outside(&self) -> Vec<(PathBuf, String)> {
        let mut found: Vec<_> = fs::read_dir(self.folder.path().join("outside"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
            .collect();
        found.sort();
        found
    }

    /// Plants an entry; false where that needs rights that this user does not have.
    fn plant(&self, what: PlantedEntry, at: &Path, is_folder: bool) -> bool {
        let is_root = rustix::process::geteuid().is_root();
        let outside = self.folder.path().join("outside");
        match what {
            PlantedEntry::LinkToFile => symlink(outside.join("file"), at).unwrap(),
            PlantedEntry::LinkToFolder => symlink(outside, at).unwrap(),
            PlantedEntry::DanglingLink => symlink(outside.join("new"), at).unwrap(),
            PlantedEntry::Fifo => {
                mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
            }
            PlantedEntry::Socket => drop(UnixListener::bind(at).unwrap()),
            PlantedEntry::Device => {
                // The device number of /dev/null.
                let null = rustix::fs::makedev(1, 3);
                let mode = Mode::from_raw_mode(0o600);
                return is_root && mknodat(CWD, at, FileType::CharacterDevice, mode, null).is_ok();
            }
            PlantedEntry::OtherKind if is_folder => fs::write(at, "a file").unwrap(),
            PlantedEntry::OtherKind => fs::create_dir(at).unwrap(),
            PlantedEntry::OtherOwner if !is_root => return false,
            PlantedEntry::OtherOwner => {
                if is_folder {
                    fs::create_dir(at).unwrap();
                } else {
                    fs::write(at, "theirs").unwrap();
                }
                std::os::unix::fs::chown(at, Some(12_345), None).unwrap();
            }
        }
        true
    }
}

fn expected_entry(what: PlantedEntry, is_folder: bool) -> UnsafeEntry {
    match what {
        PlantedEntry::LinkToFile | PlantedEntry::LinkToFolder | PlantedEntry::DanglingLink => {
            UnsafeEntry::Link
        }
        PlantedEntry::Fifo => UnsafeEntry::Fifo,
        PlantedEntry::Socket => UnsafeEntry::Socket,
        PlantedEntry::Device => UnsafeEntry::Device,
        PlantedEntry::OtherKind if is_folder => UnsafeEntry::File,
        PlantedEntry::OtherKind => UnsafeEntry::Folder,
        PlantedEntry::OtherOwner => UnsafeEntry::OtherOwner,
    }
}

fn unsafe_entry_of<T: std::fmt::Debug>(result: Result<T, StateError>) -> UnsafeEntry {
    match result.unwrap_err() {
        StateError::Unsafe { found, .. } => found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_that_stands_in_the_place_of_a_folder_is_entered() {
    for what in ALL {
        for position in 0..3 {
            let place = StateFilesFixture::new();
            let parts = ["a", "b", "c"];
            let above: PathBuf = parts[..position].iter().collect();
            fs::create_dir_all(place.root().join(&above)).unwrap();
            let at = place.root().join(above).join(parts[position]);
            if !place.plant(what, &at, true) {
                continue;
            }
            let before = place.outside();
            let folder = StatePath::root(place.root()).join("a/b/c");
            let named = format!("{what:?} at {position}");
            assert_eq!(unsafe_entry_of(folder.open()), expected_entry(what, true), "{named}");
            assert_eq!(unsafe_entry_of(folder.create()), expected_entry(what, true), "{named}");
            assert_eq!(folder.open().unwrap_err().path(), at, "{named}");
            assert_eq!(place.outside(), before, "{named}");
        }
    }
}

#[test]
fn nothing_that_stands_in_the_place_of_a_file_is_opened_and_a_replacement_takes_its_name() {
    for what in ALL {
        let place = StateFilesFixture::new();
        let at = place.root().join("file");
        if !place.plant(what, &at, false) {
            continue;
        }
        let before = place.outside();
        let root = StateDir::open_root(&place.root()).unwrap();
        let wanted = expected_entry(what, false);
        assert_eq!(unsafe_entry_of(root.open_file("file")), wanted, "{what:?}");
        assert_eq!(unsafe_entry_of(root.read("file", 10)), wanted, "{what:?}");
        assert_eq!(unsafe_entry_of(root.open_append("file")), wanted, "{what:?}");
        assert_eq!(unsafe_entry_of(root.open_lock("file")), wanted, "{what:?}");
        let taken = root.create_new("file").unwrap_err();
        assert_eq!(taken.io_kind(), std::io::ErrorKind::AlreadyExists, "{what:?}");
        let replaced = root.replace("file", b"new", WriteDurability::Synced);
        if what == PlantedEntry::OtherKind {
            assert_eq!(replaced.unwrap_err().io_kind(), std::io::ErrorKind::IsADirectory);
        } else {
            replaced.unwrap();
            assert_eq!(root.read("file", 10).unwrap().unwrap(), b"new", "{what:?}");
            assert!(fs::symlink_metadata(&at).unwrap().is_file(), "{what:?}");
        }
        assert_eq!(place.outside(), before, "{what:?}");
        assert_eq!(root.names().unwrap(), ["file"], "no draft stays");
    }
}

#[test]
fn whatever_stands_in_a_tree_is_removed_as_what_it_is() {
    let place = StateFilesFixture::new();
    let tree = place.root().join("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    for (number, what) in ALL.into_iter().enumerate() {
        place.plant(what, &tree.join(format!("deep/file-{number}")), false);
        place.plant(what, &tree.join(format!("deep/er/folder-{number}")), true);
    }
    let before = place.outside();
    let root = StateDir::open_root(&place.root()).unwrap();
    assert!(root.remove_tree("tree").unwrap());
    assert!(!root.remove_tree("tree").unwrap());
    assert_eq!(place.outside(), before);
    symlink(place.folder.path().join("outside"), &tree).unwrap();
    assert!(root.remove_tree("tree").unwrap(), "the link itself goes");
    assert_eq!(place.outside(), before);
}

#[test]
fn a_tree_is_removed_however_deep_it_is_and_whatever_is_closed() {
    use std::os::unix::fs::PermissionsExt;
    let place = StateFilesFixture::new();
    let root = StateDir::open_root(&place.root()).unwrap();
    let mut deep = root.create_dir("tree").unwrap();
    for _ in 0..1_000 {
        deep = deep.create_dir("d").unwrap();
    }
    symlink(place.folder.path().join("outside"), place.root().join("tree/link")).unwrap();
    fs::create_dir_all(place.root().join("tree/closed/in")).unwrap();
    fs::write(place.root().join("tree/closed/in/file"), "12345").unwrap();
    let link = fs::symlink_metadata(place.root().join("tree/link")).unwrap();
    assert_eq!(root.tree_bytes("tree"), 5 + link.len());
    for name in ["tree/closed/in", "tree/closed"] {
        fs::set_permissions(place.root().join(name), fs::Permissions::from_mode(0o0)).unwrap();
    }
    let before = place.outside();
    assert!(root.remove_tree("tree").unwrap());
    assert!(root.names().unwrap().is_empty());
    assert_eq!(place.outside(), before);
}

#[test]
fn a_file_with_a_second_name_is_read_and_replaced_but_never_written() {
    let place = StateFilesFixture::new();
    let outside = place.folder.path().join("outside/file");
    fs::hard_link(&outside, place.root().join("file")).unwrap();
    let root = StateDir::open_root(&place.root()).unwrap();
    assert_eq!(root.read("file", 100).unwrap().unwrap(), b"precious");
    assert_eq!(unsafe_entry_of(root.open_append("file")), UnsafeEntry::HardLink);
    assert_eq!(unsafe_entry_of(root.open_lock("file")), UnsafeEntry::HardLink);
    root.replace("file", b"new", WriteDurability::Lazy).unwrap();
    assert_eq!(fs::read_to_string(outside).unwrap(), "precious");
    assert!(root.open_append("file").unwrap().is_some());
}

#[test]
fn names_do_not_leave_their_folder() {
    let place = StateFilesFixture::new();
    let root = StateDir::open_root(&place.root()).unwrap();
    for name in ["", ".", "..", "../outside", "a/b", "/etc"] {
        assert_eq!(unsafe_entry_of(root.open_dir(name)), UnsafeEntry::Name, "{name:?}");
        assert_eq!(unsafe_entry_of(root.open_file(name)), UnsafeEntry::Name, "{name:?}");
        assert_eq!(unsafe_entry_of(root.create_new(name)), UnsafeEntry::Name, "{name:?}");
        assert_eq!(unsafe_entry_of(root.remove_tree(name)), UnsafeEntry::Name, "{name:?}");
        assert_eq!(unsafe_entry_of(root.rename(name, &root, "x")), UnsafeEntry::Name, "{name:?}");
        assert_eq!(
            unsafe_entry_of(root.replace(name, b"", WriteDurability::Lazy)),
            UnsafeEntry::Name,
            "{name:?}"
        );
    }
    for below in ["../outside", "a/../../outside", "/etc"] {
        let folder = StatePath::root(place.root()).join(below);
        if below == "/etc" {
            assert!(folder.open().is_err(), "an absolute path is no way below a root");
        } else {
            assert!(folder.create().is_err(), "{below}");
        }
    }
}

#[test]
fn what_is_made_is_for_one_pair_of_eyes_and_what_is_missing_is_none() {
    let place = StateFilesFixture::new();
    let folder = StatePath::root(place.root()).join("a/b");
    assert!(folder.open().unwrap().is_none());
    let dir = folder.create().unwrap();
    assert!(dir.open_file("x").unwrap().is_none() && dir.read("x", 1).unwrap().is_none());
    assert!(dir.open_append("x").unwrap().is_none() && dir.stat("x").unwrap().is_none());
    assert!(!dir.remove_file("x").unwrap() && dir.open_dir("x").unwrap().is_none());
    dir.create_new("x").unwrap().write_all(b"12345").unwrap();
    dir.replace("y", b"1", WriteDurability::Synced).unwrap();
    dir.open_lock("lock").unwrap().lock().unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.path().to_owned()), 0o700);
    for name in ["x", "y", "lock"] {
        assert_eq!(mode(dir.path().join(name)), 0o600, "{name}");
    }
    assert!(matches!(dir.read("x", 4), Err(StateError::TooLarge { limit: 4, .. })));
    assert_eq!(dir.read("x", 5).unwrap().unwrap(), b"12345");
    let entry = dir.stat("x").unwrap().unwrap();
    let facts = fs::metadata(dir.path().join("x")).unwrap();
    assert_eq!((entry.bytes, entry.inode, entry.device), (5, facts.ino(), facts.dev()));
    dir.rename("x", &dir, "z").unwrap();
    let mut names: Vec<_> = dir.entries().unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, ["lock", "y", "z"]);
}

#[test]
fn a_replacement_that_fails_leaves_the_old_file_and_no_draft() {
    let place = StateFilesFixture::new();
    let root = StateDir::open_root(&place.root()).unwrap();
    root.replace("file", b"old", WriteDurability::Lazy).unwrap();
    let broken = |_: &mut File| Err::<(), _>(std::io::Error::other("broken"));
    assert!(root.replace_with("file", WriteDurability::Synced, broken).is_err());
    assert_eq!(root.read("file", 10).unwrap().unwrap(), b"old");
    assert_eq!(root.names().unwrap(), ["file"]);
}

#[test]
fn a_component_that_is_swapped_with_a_link_meanwhile_leads_nowhere() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let rounds = if std::env::var("PIXIR_TORTURE").is_ok_and(|value| value == "full") {
        200_000
    } else {
        3_000
    };
    let place = StateFilesFixture::new();
    let before = place.outside();
    let inner = place.root().join("a/b");
    fs::create_dir_all(&inner).unwrap();
    let aside = place.root().join("a/aside");
    let outside = place.folder.path().join("outside");
    let is_done = AtomicBool::new(false);
    let (mut written, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                fs::rename(&inner, &aside).unwrap();
                symlink(&outside, &inner).unwrap();
                std::thread::yield_now();
                fs::remove_file(&inner).unwrap();
                fs::rename(&aside, &inner).unwrap();
                std::thread::yield_now();
            }
        });
        let folder = StatePath::root(place.root()).join("a/b");
        for number in 0..rounds {
            let name = format!("file-{}", number % 7);
            let wrote = folder.open().and_then(|dir| {
                let Some(dir) = dir else { return Ok(()) };
                dir.replace(&name, b"state", WriteDurability::Lazy)?;
                dir.create_dir("inner")?.replace("file", b"state", WriteDurability::Lazy)?;
                dir.remove_tree("inner")?;
                dir.remove_file("file-3").map(drop)
            });
            match wrote {
                Ok(()) => written += 1,
                Err(_) => refused += 1,
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(place.outside(), before, "{written} written, {refused} refused");
    assert!(written > 0 && refused > 0, "{written} written, {refused} refused");
}

#[test]
fn a_file_without_the_right_to_read_it_becomes_readable_and_links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().mode() & 0o7777;
    for name in ["own", "target"] {
        fs::write(folder.path().join(name), "text").unwrap();
        let none = fs::Permissions::from_mode(0o000);
        fs::set_permissions(folder.path().join(name), none).unwrap();
    }
    symlink("target", folder.path().join("link")).unwrap();
    let dir = StateDir::open_root(folder.path()).unwrap();
    dir.make_readable("own").unwrap();
    assert_eq!(mode("own"), 0o400);
    assert!(dir.make_readable("link").is_err() && dir.make_readable("missing").is_err());
    assert_eq!(mode("target"), 0);
}
