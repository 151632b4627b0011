//! Tests of path confinement, and of links, modes and attributes on writes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;
use tempfile::TempDir;

use super::*;

struct WorkspaceFixture {
    outer: TempDir,
    workspace: Workspace,
}

impl WorkspaceFixture {
    fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir(outer.path().join("ws")).unwrap();
        fs::write(outer.path().join("outside.txt"), "outside").unwrap();
        let workspace = Workspace::open(&outer.path().join("ws")).unwrap();
        Self { outer, workspace }
    }
    fn path(&self, relative: &str) -> PathBuf {
        self.workspace.root().join(relative)
    }
    fn outside(&self) -> PathBuf {
        self.outer.path().canonicalize().unwrap().join("outside.txt")
    }
    fn read(&self, path: impl AsRef<Path>) -> Result<String, Kind> {
        let mut text = String::new();
        let mut opened = self.workspace.open_file(path.as_ref()).map_err(|error| error.kind())?;
        io::Read::read_to_string(&mut opened.file, &mut text).unwrap();
        Ok(text)
    }
    fn write(&self, path: impl AsRef<Path>, content: &str) -> Result<(), Kind> {
        let target = self.workspace.open_target(path.as_ref()).map_err(|error| error.kind())?;
        target.replace(content.as_bytes()).map(drop).map_err(|error| error.kind())
    }
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.workspace.root())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn files_inside_open_by_every_spelling() {
    let place = WorkspaceFixture::new();
    fs::create_dir(place.path("dir")).unwrap();
    fs::write(place.path("dir/a.txt"), "inside").unwrap();
    symlink("dir/a.txt", place.path("relative-link")).unwrap();
    symlink(place.path("dir/a.txt"), place.path("absolute-link")).unwrap();
    symlink(place.path("dir"), place.path("dir-link")).unwrap();
    let spellings = ["dir/a.txt", "./dir/../dir/a.txt", "relative-link", "absolute-link"];
    for path in spellings.into_iter().chain(["dir-link/a.txt"]) {
        assert_eq!(place.read(path), Ok("inside".into()), "{path}");
    }
    assert_eq!(place.read(place.path("dir/a.txt")), Ok("inside".into()));
}

#[test]
fn the_root_may_be_spelled_through_a_link() {
    let place = WorkspaceFixture::new();
    fs::write(place.path("a.txt"), "inside").unwrap();
    let alias = place.outer.path().join("alias");
    symlink(place.workspace.root(), &alias).unwrap();
    let workspace = Workspace::open(&alias).unwrap();
    assert!(workspace.open_file(&alias.join("a.txt")).is_ok());
    assert!(workspace.open_file(&place.path("a.txt")).is_ok());
}

#[test]
fn nothing_outside_can_be_read_or_written() {
    let place = WorkspaceFixture::new();
    symlink("../outside.txt", place.path("link")).unwrap();
    symlink(place.outside(), place.path("absolute")).unwrap();
    symlink("..", place.path("up")).unwrap();
    symlink("/proc/self/root", place.path("magic")).unwrap();
    let absolute = place.outside();
    let ways = ["../outside.txt", "link", "absolute", "up/outside.txt", "dir/../../outside.txt"];
    for path in ways.iter().map(Path::new).chain([absolute.as_path(), Path::new("/etc/passwd")]) {
        if path != Path::new("dir/../../outside.txt") {
            assert_eq!(place.read(path), Err(Kind::OutsideWorkspace), "{}", path.display());
        }
        assert!(place.write(path, "escaped").is_err(), "{}", path.display());
        assert!(place.workspace.check_writable(path).is_err(), "{}", path.display());
    }
    assert!(place.read("magic/etc/passwd").is_err());
    assert!(place.write("up/new/file.txt", "escaped").is_err());
    assert_eq!(fs::read_to_string(place.outside()).unwrap(), "outside");
    assert!(!place.outer.path().join("new").exists());
}

#[test]
fn pixirs_own_state_is_readable_but_never_writable() {
    let place = WorkspaceFixture::new();
    fs::create_dir_all(place.path(".pixir/sessions")).unwrap();
    fs::create_dir_all(place.path("sub/.PIXIR")).unwrap();
    fs::write(place.path(".pixir/config.json"), "{}").unwrap();
    symlink(".pixir", place.path("state")).unwrap();
    symlink(".pixir/config.json", place.path("settings")).unwrap();
    assert_eq!(place.read(".pixir/config.json"), Ok("{}".into()));
    let ways = [
        ".pixir/config.json",
        ".pixir/new",
        ".Pixir/new",
        "sub/.PIXIR/new",
        "other/.pixir/new",
        "state/config.json",
        "state/new",
        "state/deep/new",
        "settings",
    ];
    for path in ways {
        assert_eq!(place.write(path, "changed"), Err(Kind::ProtectedPath), "{path}");
        let checked = place.workspace.check_writable(Path::new(path)).unwrap_err();
        assert_eq!(checked.kind(), Kind::ProtectedPath, "{path}");
    }
    assert_eq!(fs::read_to_string(place.path(".pixir/config.json")).unwrap(), "{}");
    assert!(!place.path(".pixir/new").exists() && !place.path("other").exists());
}

#[test]
fn what_git_runs_is_never_written() {
    let place = WorkspaceFixture::new();
    fs::create_dir_all(place.path(".git/hooks")).unwrap();
    fs::create_dir_all(place.path("sub")).unwrap();
    fs::write(place.path(".git/config"), "[core]").unwrap();
    fs::write(place.path("sub/.git"), "gitdir: x").unwrap();
    symlink(".git", place.path("g")).unwrap();
    symlink("sub/.git", place.path("pointer")).unwrap();
    assert_eq!(place.read(".git/config"), Ok("[core]".into()));
    for path in [
        ".git/config",
        ".git/hooks/pre-commit",
        ".GIT/config",
        "g/hooks/pre-commit",
        "g/config",
        "sub/.git",
        "pointer",
        "new/.git/config",
    ] {
        assert_eq!(place.write(path, "evil"), Err(Kind::ProtectedPath), "{path}");
        let checked = place.workspace.check_writable(Path::new(path)).unwrap_err();
        assert_eq!(checked.kind(), Kind::ProtectedPath, "{path}");
    }
    assert_eq!(place.write(".gitignore", "x"), Ok(()));
}

#[test]
fn odd_files_are_refused_and_never_block() {
    let place = WorkspaceFixture::new();
    fs::create_dir(place.path("folder")).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, place.path("pipe"), FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    for path in ["folder", "pipe", "socket", "."] {
        assert_eq!(place.read(path), Err(Kind::InvalidArgs), "{path}");
        assert_eq!(place.write(path, "x"), Err(Kind::InvalidArgs), "{path}");
    }
    assert_eq!(place.read("missing"), Err(Kind::NotFound));
}

#[test]
fn writing_makes_missing_folders_and_leaves_no_temporary() {
    let place = WorkspaceFixture::new();
    assert_eq!(place.write("a/b/c.txt", "new"), Ok(()));
    assert_eq!(fs::read_to_string(place.path("a/b/c.txt")).unwrap(), "new");
    assert_eq!(place.write("a/b/c.txt", "newer"), Ok(()));
    assert_eq!(place.names(), ["a"]);
    assert_eq!(fs::read_dir(place.path("a/b")).unwrap().count(), 1);
}

#[test]
fn a_link_to_nowhere_is_not_replaced() {
    let place = WorkspaceFixture::new();
    symlink("nowhere", place.path("link")).unwrap();
    assert_eq!(place.write("link", "x"), Err(Kind::InvalidArgs));
    assert!(place.path("link").is_symlink());
}

#[test]
fn mode_links_and_attributes_survive_a_write() {
    let place = WorkspaceFixture::new();
    fs::write(place.path("a"), "old").unwrap();
    fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o751)).unwrap();
    let attribute =
        rustix::fs::setxattr(place.path("a"), "user.note", b"kept", XattrFlags::empty());
    symlink("a", place.path("link")).unwrap();
    assert_eq!(place.write("link", "new"), Ok(()));
    assert!(place.path("link").is_symlink());
    assert_eq!(fs::read_to_string(place.path("a")).unwrap(), "new");
    assert_eq!(fs::metadata(place.path("a")).unwrap().mode() & 0o7777, 0o751);
    // Not every file system the tests run on has user attributes.
    if attribute.is_ok() {
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(place.path("a"), "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"kept");
    }
}

#[test]
fn a_hard_link_stays_linked() {
    let place = WorkspaceFixture::new();
    fs::write(place.path("a"), "a long old text").unwrap();
    fs::hard_link(place.path("a"), place.path("b")).unwrap();
    assert_eq!(place.write("a", "new"), Ok(()));
    assert_eq!(fs::read_to_string(place.path("b")).unwrap(), "new");
}

#[test]
fn a_file_replaced_meanwhile_is_not_overwritten() {
    let place = WorkspaceFixture::new();
    fs::write(place.path("a"), "old").unwrap();
    let target = place.workspace.open_target(Path::new("a")).unwrap();
    fs::rename(place.path("a"), place.path("kept")).unwrap();
    fs::write(place.path("a"), "theirs").unwrap();
    assert_eq!(target.replace(b"ours").unwrap_err().kind(), Kind::FileChanged);
    let target = place.workspace.open_target(Path::new("fresh")).unwrap();
    fs::write(place.path("fresh"), "theirs").unwrap();
    assert_eq!(target.replace(b"ours").unwrap_err().kind(), Kind::FileChanged);
    assert_eq!(fs::read_to_string(place.path("a")).unwrap(), "theirs");
    assert_eq!(fs::read_to_string(place.path("fresh")).unwrap(), "theirs");
    assert_eq!(place.names(), ["a", "fresh", "kept"]);
}

#[test]
fn a_batch_puts_back_what_it_did_when_a_file_was_replaced_meanwhile() {
    let place = WorkspaceFixture::new();
    for name in ["a", "b", "gone", "moved"] {
        fs::write(place.path(name), name).unwrap();
    }
    fs::hard_link(place.path("b"), place.path("other")).unwrap();
    fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o4751)).unwrap();
    let inode = |name: &str| fs::metadata(place.path(name)).unwrap().ino();
    let inodes = ["a", "b", "gone", "moved"].map(inode);
    let target = |name: &str| place.workspace.open_target(Path::new(name)).unwrap();
    let itself = |name: &str| place.workspace.open_target_no_follow(Path::new(name)).unwrap();
    let put =
        |name: &str| BatchStep::Write { target: target(name), content: b"new".into(), like: None };
    let steps = vec![
        put("x/y/new"),
        put("a"),
        put("b"),
        BatchStep::Rename { from: itself("moved"), to: target("z/moved") },
        BatchStep::Remove(itself("gone")),
        BatchStep::Remove(itself("other")),
    ];
    // The last step fails after all others were applied.
    fs::remove_file(place.path("other")).unwrap();
    fs::write(place.path("other"), "theirs").unwrap();
    let broken = commit_batch(steps).unwrap_err();
    assert_eq!((broken.failed_step, broken.error.kind()), (5, Kind::FileChanged));
    assert_eq!(broken.rollbacks[..5], [const { StepRollback::Undone }; 5]);
    assert_eq!(broken.rollbacks[5], StepRollback::Untouched);
    assert_eq!(place.names(), ["a", "b", "gone", "moved", "other"]);
    assert_eq!(["a", "b", "gone", "moved"].map(inode), inodes);
    assert_eq!(fs::metadata(place.path("a")).unwrap().mode() & 0o7777, 0o4751);
    for (name, text) in [("a", "a"), ("b", "b"), ("gone", "gone"), ("other", "theirs")] {
        assert_eq!(fs::read_to_string(place.path(name)).unwrap(), text);
    }
}

#[test]
fn wide_directories_are_refused_unless_named() {
    let outer = tempfile::tempdir().unwrap();
    let home = outer.path().join("users/me");
    fs::create_dir_all(home.join("project")).unwrap();
    for wide in [Path::new("/"), outer.path(), &outer.path().join("users"), &home] {
        let error =
            Workspace::refuse_wide(wide, Some(&home), WorkspaceChoice::Current).unwrap_err();
        assert_eq!(error.kind(), Kind::WorkspaceRefused);
        assert!(error.next_actions()[0].contains("--cwd"));
        assert!(Workspace::refuse_wide(wide, Some(&home), WorkspaceChoice::Named).is_ok());
    }
    let project = home.join("project");
    assert!(Workspace::refuse_wide(&project, Some(&home), WorkspaceChoice::Current).is_ok());
    assert!(Workspace::refuse_wide(Path::new("/"), None, WorkspaceChoice::Current).is_err());
}

/// One thread swaps a folder for a link to the outside while another reads and writes through it.
#[test]
fn a_race_never_escapes() {
    let place = WorkspaceFixture::new();
    let secret = place.outer.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("f"), "outside").unwrap();
    fs::create_dir(place.path("real")).unwrap();
    fs::write(place.path("real/f"), "inside").unwrap();
    symlink("../secret", place.path("evil")).unwrap();
    symlink("real", place.path("door")).unwrap();
    let done = AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for aim in ["evil", "real"] {
                    symlink(aim, place.path("next")).unwrap();
                    fs::rename(place.path("next"), place.path("door")).unwrap();
                }
            }
        });
        let end = Instant::now() + Duration::from_millis(1500);
        let mut opened = 0;
        while Instant::now() < end {
            if let Ok(text) = place.read("door/f") {
                assert_ne!(text, "outside");
                opened += 1;
            }
            place.write("door/f", "inside").ok();
            place.write("door/new", "inside").ok();
        }
        done.store(true, Ordering::Relaxed);
        opened
    });
    assert!(opened > 0);
    assert_eq!(fs::read_to_string(secret.join("f")).unwrap(), "outside");
    assert_eq!(fs::read_dir(&secret).unwrap().count(), 1);
}

/// One entry of an access list, as the kernel stores it.
fn access_list_entry(tag: u16, rights: u16, id: u32) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
}

#[test]
fn a_folder_that_widens_access_does_not_widen_a_rewritten_file() {
    let place = WorkspaceFixture::new();
    fs::write(place.path("private"), "old").unwrap();
    fs::set_permissions(place.path("private"), fs::Permissions::from_mode(0o640)).unwrap();
    let no_id = u32::MAX;
    let list = [
        2_u32.to_le_bytes().to_vec(),
        access_list_entry(0x01, 7, no_id),
        access_list_entry(0x02, 6, 12345),
        access_list_entry(0x04, 5, no_id),
        access_list_entry(0x10, 7, no_id),
        access_list_entry(0x20, 5, no_id),
    ];
    let default = "system.posix_acl_default";
    let root = place.workspace.root();
    if rustix::fs::setxattr(root, default, &list.concat(), XattrFlags::empty()).is_err() {
        io::Write::write_all(&mut io::stderr(), b"skipped: this file system has no access lists\n")
            .unwrap();
        return;
    }
    assert_eq!(place.write("private", "new"), Ok(()));
    let mut value = [0; 256];
    let access = rustix::fs::getxattr(place.path("private"), "system.posix_acl_access", &mut value);
    assert_eq!(access, Err(Errno::NODATA));
    assert_eq!(fs::metadata(place.path("private")).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn a_temporary_that_cannot_be_removed_is_reported() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let place = WorkspaceFixture::new();
    fs::write(place.path("a"), "old").unwrap();
    let root = File::open(place.workspace.root()).unwrap();
    let flags = ioctl_getflags(&root).unwrap_or(IFlags::empty());
    if ioctl_setflags(&root, flags | IFlags::APPEND).is_err() {
        io::Write::write_all(
            &mut io::stderr(),
            b"skipped: this user or file system cannot make a folder append-only\n",
        )
        .unwrap();
        return;
    }
    let target = place.workspace.open_target(Path::new("a")).unwrap();
    let error = target.replace(b"new").unwrap_err();
    ioctl_setflags(&root, flags).unwrap();
    assert_eq!(error.kind(), Kind::WriteFailed);
    let left = place.names().into_iter().find(|name| name.ends_with(".pixir-new")).unwrap();
    assert!(error.to_string().contains(&left), "{error}");
    assert_eq!(fs::read_to_string(place.path("a")).unwrap(), "old");
}

#[test]
fn an_extra_root_is_reached_by_absolute_path_and_confined_like_the_workspace() {
    let mut place = WorkspaceFixture::new();
    let beside = place.outer.path().canonicalize().unwrap().join("beside");
    fs::create_dir_all(beside.join("sub/.pixir")).unwrap();
    fs::write(beside.join("sub/a.txt"), "a").unwrap();
    fs::write(place.path("a.txt"), "workspace").unwrap();
    symlink("/etc", beside.join("away")).unwrap();
    symlink(place.outside(), beside.join("out.txt")).unwrap();
    symlink(beside.join("sub"), place.path("in")).unwrap();
    let file = beside.join("sub/a.txt");
    assert_eq!(place.read(&file), Err(Kind::OutsideWorkspace));
    let extra_roots =
        || vec![Workspace::open(&beside).unwrap(), Workspace::open(&beside.join("sub")).unwrap()];
    place.workspace = place.workspace.with_extra_roots(extra_roots());
    assert_eq!(place.workspace.extra_roots(), std::slice::from_ref(&beside));
    assert_eq!(place.read(&file).as_deref(), Ok("a"));
    assert_eq!(place.read("a.txt").as_deref(), Ok("workspace"));
    // The absolute path distinguishes the file from files of the Workspace.
    assert_eq!(place.workspace.open_file(&file).unwrap().path, file);
    assert_eq!(place.workspace.resolve(&file), file);
    assert_eq!(place.workspace.resolve_missing(&beside.join("new")), beside.join("new"));
    assert_eq!(place.write(&file, "b"), Ok(()));
    assert_eq!(place.write(beside.join("new/deep.txt"), "c"), Ok(()));
    assert_eq!(fs::read_to_string(beside.join("new/deep.txt")).unwrap(), "c");
    for odd in ["../outside.txt", "sub/../../outside.txt", "away/passwd", "out.txt"] {
        let path = beside.join(odd);
        assert_eq!(place.read(&path), Err(Kind::OutsideWorkspace), "{odd}");
        assert!(place.write(&path, "x").is_err(), "{odd}");
    }
    assert_eq!(place.write(beside.join(".pixir/x"), "x"), Err(Kind::ProtectedPath));
    assert_eq!(place.write(beside.join("sub/.pixir/x"), "x"), Err(Kind::ProtectedPath));
    // A link in the Workspace to an extra root is still not followed.
    assert_eq!(place.read("in/a.txt"), Err(Kind::OutsideWorkspace));
    // Write bounds name paths of the Workspace only: with them no extra root is written.
    let mut bounds = WriteBounds::none();
    let globs = crate::settings::bounds::WriteGlobs { allow: vec!["**".into()], deny: Vec::new() };
    bounds.add_globs(&globs).unwrap();
    place.workspace = place.workspace.with_bounds(bounds);
    assert_eq!(place.write(&file, "x"), Err(Kind::PermissionDenied));
    assert_eq!(place.read(&file).as_deref(), Ok("b"));
}
