//! Package caches: commands write through private layers, which are not visible outside.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pixir::SandboxLevel;
use pixir::workbench::{ToolAnswer, Workbench, WorkbenchSetup};
use rustix::fs::FlockOperation;
use serde_json::json;

use super::escape::skip;
use crate::support::drivers::assert_driver_passed;

/// The variable that makes a test process a driver, and selects its part.
const DRIVE: &str = "PIXIR_TEST_CACHES";
/// The variable that names the folder in which a driver works.
const FOLDER: &str = "PIXIR_TEST_CACHES_FOLDER";
/// A user that owns nothing.
const NOBODY: u32 = 65534;
/// Time limit of waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// Folders of a home in which package managers keep what they downloaded.
const CACHES: &[&str] = &[".cache", ".cargo", ".npm"];

/// A home with caches, and a Workspace.
struct CacheEnv {
    root: PathBuf,
    _folder: Option<tempfile::TempDir>,
}

impl CacheEnv {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { root: create_cache_env(folder.path()), _folder: Some(folder) }
    }

    fn bench(&self, subreaper: bool) -> Workbench {
        self.bench_with(subreaper, |_| {})
    }

    fn bench_with(&self, subreaper: bool, adjust: impl FnOnce(&mut pixir::Config)) -> Workbench {
        let home = self.root.join("home");
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &self.root.join("work"),
            environment: vec![
                ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
                ("HOME".into(), home.clone().into()),
                ("TMPDIR".into(), self.root.join("temp").into()),
            ],
            subreaper,
            drain: Duration::from_millis(50),
            grace: Duration::from_millis(100),
        };
        Workbench::with_config(setup, |config| {
            config.home = pixir::Home::new(home.join(".pixir"));
            adjust(config);
        })
        .unwrap()
    }

    /// The caches as seen from outside.
    fn caches(&self) -> BTreeMap<PathBuf, String> {
        let mut seen = BTreeMap::new();
        for name in CACHES {
            read_tree(&self.root.join("home").join(name), &mut seen);
        }
        seen
    }

    fn slots(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("home/.pixir/caches")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// Waits until the supervisor has released the slot, after the end of Pixir. While its exclusive lock becomes a
/// shared one, the kernel may grant the lock to others, so the work folders, which are removed with the mounts,
/// must be gone too.
fn wait_until_free(slot: &Path) {
    let folder = fs::File::open(slot).unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let is_locked =
            rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_locked && !has_work_folders(slot) {
            return;
        }
        rustix::fs::flock(&folder, FlockOperation::Unlock).unwrap();
        assert!(Instant::now() < end, "the slot was not given back");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn has_work_folders(slot: &Path) -> bool {
    fs::read_dir(slot).unwrap().any(|cache| cache.unwrap().path().join("work").exists())
}

fn create_cache_env(folder: &Path) -> PathBuf {
    let root = folder.canonicalize().unwrap();
    for (name, text) in [
        ("home/.cache/tool/old", "old\n"),
        ("home/.cache/tool/gone", "gone\n"),
        ("home/.cargo/registry/src/index/dep-1.0.0/build.rs", "fn main() {}\n"),
        ("home/.cargo/registry/cache/index/dep-1.0.0.crate", "crate\n"),
        ("home/.cargo/git/db/repo/HEAD", "ref: refs/heads/main\n"),
        ("home/.cargo/config.toml", ""),
        ("home/.npm/_cacache/content-v2/ab", "content\n"),
        ("work/f", "mine\n"),
        ("temp/x", ""),
    ] {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), text).unwrap();
    }
    root
}

fn read_tree(path: &Path, seen: &mut BTreeMap<PathBuf, String>) {
    let found = fs::symlink_metadata(path).unwrap();
    let content = if found.is_file() { fs::read_to_string(path).unwrap() } else { String::new() };
    let times = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
    let state = format!("{:o} {}:{} {times:?} {content}", found.mode(), found.uid(), found.gid());
    seen.insert(path.to_owned(), state);
    if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            read_tree(&entry.unwrap().path(), seen);
        }
    }
}

async fn bash(bench: &Workbench, command: &str) -> ToolAnswer {
    bench.call("bash", json!({ "command": command, "timeout_ms": 30_000 })).await.unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE * 6, future).await.expect("in time") })
}

/// Commands that change caches in every way.
const CHANGE: &str = "set -e; cd ~
echo planted > .cache/planted
echo 'fn main() { evil() }' > .cargo/registry/src/index/dep-1.0.0/build.rs
echo other > .npm/_cacache/content-v2/ab
mkdir -p .cargo/git/checkouts/new && echo x > .cargo/git/checkouts/new/x
rm .cache/tool/gone
mv .cache/tool/old .cache/tool/renamed
mv .cache/tool .cache/moved
chmod 000 .cargo/registry/cache/index/dep-1.0.0.crate
touch -d 2001-01-01 .npm/_cacache
ln .cache/planted .cache/hard
mkdir -p .cache/closed/in && chmod 000 .cache/closed";

/// Commands that check all changes of `CHANGE`.
const FIND: &str = "set -e; cd ~
grep -q planted .cache/planted
grep -q evil .cargo/registry/src/index/dep-1.0.0/build.rs
grep -q other .npm/_cacache/content-v2/ab
test -f .cargo/git/checkouts/new/x
test ! -e .cache/tool
grep -q old .cache/moved/renamed
test ! -e .cache/moved/gone
stat -c %a .cargo/registry/cache/index/dep-1.0.0.crate | grep -qx 0
stat -c %a .cache/closed | grep -qx 0";

/// Layers are seen by later commands and not outside; for any user.
fn check_layers() {
    let place = CacheEnv::new();
    let before = place.caches();
    run(async {
        let bench = place.bench(false);
        let changed = bash(&bench, CHANGE).await;
        if changed.details["sandbox"] != "full" {
            return skip("caches: there are no namespaces here");
        }
        assert!(changed.ok, "{}", changed.text);
        assert_eq!(changed.details["notice"], json!(null), "{}", changed.details);
        assert_eq!(place.caches(), before, "nothing is seen outside");
        let found = bash(&bench, FIND).await;
        assert!(found.ok, "the next command: {}", found.text);
        // Another sandbox spec needs another supervisor.
        let args = json!({ "command": FIND, "network": true });
        let found = bench.call("bash", args).await.unwrap();
        assert!(found.ok, "a command with the network: {}", found.text);
        let found = bash(&bench, FIND).await;
        assert!(found.ok, "and one without: {}", found.text);
        bench.close().await;
        assert_eq!(place.slots().len(), 1, "{:?}", place.slots());
        let found = bash(&place.bench(false), FIND).await;
        assert!(found.ok, "the next Session: {}", found.text);
        assert_eq!(place.caches(), before, "nothing is seen outside");
    });
}

/// Runs one part of the driver as an ordinary user.
fn drive_as_ordinary_user(check: &str) {
    if !rustix::process::geteuid().is_root() {
        return skip("caches: these tests already run as an ordinary user");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let can_run = Command::new(env!("CARGO_BIN_EXE_pixir")).arg("--version").uid(NOBODY).output();
    if !can_run.is_ok_and(|output| output.status.success()) {
        return skip("caches: another user cannot run the program where it was built");
    }
    let mut driver = driver_of(check, folder.path());
    driver.env("TMPDIR", folder.path()).uid(NOBODY).gid(NOBODY);
    let output = driver.current_dir(folder.path()).output().unwrap();
    assert_driver_passed(&output, check);
}

fn driver_of(check: &str, folder: &Path) -> Command {
    let mut driver = Command::new(std::env::current_exe().unwrap());
    driver.args(["--exact", "sandbox::caches::driver", "--nocapture"]);
    driver.env(DRIVE, check).env(FOLDER, folder);
    driver
}

/// A driver: the process that other tests start.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    match drive.to_str().unwrap() {
        "layers" => check_layers(),
        "private" => check_private_folders(),
        "concurrent" => check_concurrent_commands(),
        "replaced" => check_replaced_caches(),
        "killed" => write_until_killed(),
        other => panic!("{other}"),
    }
}

#[test]
fn what_a_command_writes_into_a_cache_is_seen_by_later_commands_and_not_outside() {
    check_layers();
}

#[test]
fn the_same_holds_for_an_ordinary_user() {
    for check in ["layers", "private", "concurrent"] {
        drive_as_ordinary_user(check);
    }
}

fn check_private_folders() {
    let place = CacheEnv::new();
    let before = place.caches();
    run(async {
        let bench = place.bench(true);
        let write = "set -e; cd ~; test -n \"$XDG_CACHE_HOME\"
            echo mine > \"$XDG_CACHE_HOME/planted\"; echo mine > \"$npm_config_cache/planted\"
            grep -q 'fn main' \"$CARGO_HOME\"/registry/src/index/dep-1.0.0/build.rs
            grep -q crate \"$CARGO_HOME\"/registry/cache/index/dep-1.0.0.crate
            test -f \"$CARGO_HOME/config.toml\"
            echo new > \"$CARGO_HOME\"/registry/cache/index/new-1.0.0.crate";
        let written = bash(&bench, write).await;
        assert_eq!(written.details["sandbox"], "partial");
        assert!(written.ok, "{}", written.text);
        let notice = written.details["notice"].as_str().unwrap();
        assert!(notice.contains("the first build downloads again"), "{notice}");
        for attempt in [
            "echo evil > ~/.cache/planted",
            "echo evil > ~/.cargo/registry/src/index/dep-1.0.0/build.rs",
            "echo evil > \"$CARGO_HOME\"/registry/src/index/dep-1.0.0/build.rs",
            "echo evil > ~/.npm/_cacache/content-v2/ab",
            "rm ~/.cache/tool/gone",
            "echo evil > \"$XDG_CACHE_HOME/../../lock\"; mv \"$XDG_CACHE_HOME\" \"$XDG_CACHE_HOME.x\"",
        ] {
            assert!(!bash(&bench, attempt).await.ok, "{attempt}");
        }
        assert_eq!(place.caches(), before, "nothing is seen outside");
        bench.close().await;
        let read = "grep -q mine \"$XDG_CACHE_HOME/planted\" && grep -q mine \"$npm_config_cache/planted\" \
            && grep -q new \"$CARGO_HOME\"/registry/cache/index/new-1.0.0.crate";
        let bench = place.bench(true);
        let found = bash(&bench, read).await;
        assert!(found.ok, "the next Session: {}", found.text);
        assert_eq!(bash(&bench, "true").await.details["notice"], json!(null), "shown once");
    });
}

#[test]
fn without_namespaces_variables_lead_to_private_folders_and_that_is_reported() {
    check_private_folders();
}

/// Pixir's home is on a file system that no upper layer can be on.
fn check_replaced_caches() {
    let root = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let place = CacheEnv { root: create_cache_env(&root), _folder: None };
    let before = place.caches();
    run(async {
        let bench = place.bench(false);
        let written =
            bash(&bench, "test ! -e ~/.cache/tool && echo x > ~/.cache/x && ls -A ~/.npm/_cacache")
                .await;
        assert_eq!(written.details["sandbox"], "full");
        assert!(written.ok && !written.text.contains("content"), "{}", written.text);
        let notice = written.details["notice"].as_str().unwrap();
        assert!(notice.contains("the first build downloads again"), "{notice}");
        assert!(bash(&bench, "grep -q x ~/.cache/x").await.ok);
        bench.close().await;
        assert!(bash(&place.bench(false), "grep -q x ~/.cache/x").await.ok, "the next Session");
        assert_eq!(place.caches(), before, "nothing is seen outside");
    });
}

#[test]
fn without_an_overlay_private_folders_take_the_place_of_caches() {
    if !rustix::process::geteuid().is_root() {
        return skip("caches: only root can mount what has no overlays");
    }
    let overlay =
        "mkdir a b c && mount -t overlay -o lowerdir=a,upperdir=b,workdir=c x home/.pixir";
    for mount in ["mount -t ramfs x home/.pixir", overlay] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("home/.pixir")).unwrap();
        let driver = driver_of("replaced", folder.path());
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
        unshare.arg(driver.get_program()).args(driver.get_args()).current_dir(folder.path());
        unshare.env(DRIVE, "replaced").env(FOLDER, folder.path());
        let output = unshare.output().unwrap();
        assert_driver_passed(&output, mount);
    }
}

fn check_concurrent_commands() {
    let place = CacheEnv::new();
    run(async {
        let bench = place.bench(false);
        let command = |own: &str, other: &str| {
            format!(
                "echo {own} > ~/.cache/{own}; touch {own}-is-ready
                 while ! test -e {other}-is-ready; do sleep 0.02; done; ls ~/.cache"
            )
        };
        let one = command("one", "two");
        let other = command("two", "one");
        let (one, other) = tokio::join!(bash(&bench, &one), bash(&bench, &other));
        if one.details["sandbox"] != "full" {
            return skip("caches: there are no namespaces here");
        }
        assert!(one.text.contains("one") && !one.text.contains("two"), "{}", one.text);
        assert!(other.text.contains("two") && !other.text.contains("one"), "{}", other.text);
        assert_eq!(place.slots().len(), 2);
    });
}

#[test]
fn commands_at_the_same_time_do_not_see_what_the_others_write() {
    check_concurrent_commands();
}

#[test]
fn what_is_added_to_a_cache_outside_is_seen_by_the_next_command() {
    let place = CacheEnv::new();
    run(async {
        let bench = place.bench(false);
        let missed = bash(&bench, "ls -R ~/.cache ~/.cargo/registry; cat ~/.cache/tool/new").await;
        assert!(!missed.ok, "{}", missed.text);
        fs::write(place.root.join("home/.cache/tool/new"), "added\n").unwrap();
        fs::write(place.root.join("home/.cache/tool/old"), "changed outside\n").unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            let found =
                bash(&bench, "cat ~/.cache/tool/new ~/.cache/tool/old; ls ~/.cache/tool").await;
            if found.text.contains("added\nchanged outside\ngone\nnew\nold") {
                return;
            }
            assert!(Instant::now() < end, "{}", found.text);
        }
    });
}

/// Runs a command that never ends, in a process that will be killed.
fn write_until_killed() {
    let root = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let place = CacheEnv { root, _folder: None };
    run(async {
        let bench = place.bench(false);
        bash(&bench, "echo kept > ~/.cache/kept; touch ready; sleep 1000").await;
    });
}

#[test]
fn after_pixir_was_killed_its_slot_is_free_and_used_again() {
    let place = CacheEnv::new();
    let mut driver = driver_of("killed", &place.root);
    let mut driver = driver.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while !place.root.join("work/ready").exists() {
        assert!(Instant::now() < end, "the command began");
        std::thread::sleep(Duration::from_millis(10));
    }
    let slot = place.slots().remove(0);
    let lock = fs::File::open(&slot).unwrap();
    let is_locked = || rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err();
    assert!(is_locked(), "a command uses it");
    // SIGKILL, so that the process cannot clean up.
    driver.kill().unwrap();
    driver.wait().unwrap();
    while is_locked() {
        assert!(Instant::now() < end, "the slot is free");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(lock);
    run(async {
        let found = bash(&place.bench(false), "cat ~/.cache/kept").await;
        assert!(found.text.contains("kept"), "{}", found.text);
    });
    assert_eq!(place.slots(), [slot]);
}

#[test]
fn a_slot_that_is_not_a_folder_of_the_users_own_is_not_used() {
    let place = CacheEnv::new();
    let caches = place.root.join("home/.pixir/caches");
    fs::create_dir_all(&caches).unwrap();
    fs::create_dir_all(place.root.join("elsewhere/private")).unwrap();
    symlink(place.root.join("elsewhere"), caches.join("aaaaaaaaaaaaaaaa")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        caches.join("bbbbbbbbbbbbbbbb"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    fs::create_dir(caches.join("cccccccccccccccc")).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(caches.join("cccccccccccccccc"), Some(NOBODY), None).unwrap();
    } else {
        skip("caches: only root can make a folder of another user");
        fs::remove_dir(caches.join("cccccccccccccccc")).unwrap();
    }
    for subreaper in [false, true] {
        run(async {
            let bench = place.bench(subreaper);
            let written = bash(&bench, "echo x > ${XDG_CACHE_HOME:-$HOME/.cache}/x").await;
            assert!(written.ok, "{}", written.text);
            bench.close().await;
        });
    }
    let empty =
        |path: PathBuf| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    assert!(empty(place.root.join("elsewhere/private")));
    assert!(!caches.join("cccccccccccccccc").exists() || empty(caches.join("cccccccccccccccc")));
    let new = place.slots().into_iter().filter(|slot| slot.is_dir() && !slot.is_symlink());
    assert_eq!(new.filter(|slot| !slot.ends_with("cccccccccccccccc")).count(), 1);
    // The same for the parent folder of the slots.
    fs::rename(&caches, place.root.join("moved")).unwrap();
    symlink(place.root.join("elsewhere"), &caches).unwrap();
    run(async {
        let answer = bash(&place.bench(false), "echo x > ~/.cache/x").await;
        assert!(!answer.ok, "{}", answer.text);
        let notice = answer.details["notice"].as_str().unwrap();
        assert!(notice.contains("package caches are read-only"), "{notice}");
    });
    assert!(empty(place.root.join("elsewhere/private")));
}

#[test]
fn what_the_user_lets_commands_write_is_written_and_read_only_writes_nothing() {
    let place = CacheEnv::new();
    run(async {
        for subreaper in [false, true] {
            let bench = place.bench_with(subreaper, |config| {
                config.sandbox.write = vec!["~/.cache".into()];
            });
            let name = format!("real-{subreaper}");
            assert!(bash(&bench, &format!("echo x > ~/.cache/{name}")).await.ok);
            assert!(place.root.join("home/.cache").join(name).exists());
            let bench = place.bench_with(subreaper, |config| {
                config.sandbox.level = SandboxLevel::ReadOnly;
            });
            let before = place.caches();
            assert!(!bash(&bench, "echo x > ~/.cache/none").await.ok);
            assert!(bash(&bench, "grep -q old ~/.cache/tool/old").await.ok);
            assert_eq!(place.caches(), before);
        }
    });
}

#[test]
fn caches_that_are_missing_or_links_have_layers_too() {
    let place = CacheEnv::new();
    let home = place.root.join("home");
    fs::remove_dir_all(home.join(".npm")).unwrap();
    fs::create_dir(place.root.join("data")).unwrap();
    fs::rename(home.join(".cache"), place.root.join("data/cache")).unwrap();
    symlink(place.root.join("data/cache"), home.join(".cache")).unwrap();
    run(async {
        let bench = place.bench(false);
        let command =
            "grep -q old ~/.cache/tool/old && echo x > ~/.cache/x && echo x > ~/.npm/_cacache/x";
        let written = bash(&bench, command).await;
        assert!(written.ok, "{}", written.text);
        assert!(bash(&bench, "cat ~/.cache/x ~/.npm/_cacache/x").await.ok);
    });
    assert!(!place.root.join("data/cache/x").exists());
    assert!(fs::read_dir(home.join(".npm/_cacache")).unwrap().next().is_none());
}

/// The supervisor of this slot was killed, so its mounts are left.
#[test]
fn a_slot_that_was_not_unmounted_is_not_used_again_and_old_ones_are_removed() {
    let place = CacheEnv::new();
    run(async {
        let bench = place.bench(false);
        assert!(
            bash(&bench, "echo x > ~/.cache/x; mkdir -p ~/.cache/c/d; chmod 0 ~/.cache/c").await.ok
        );
        bench.close().await;
        let slot = place.slots().remove(0);
        wait_until_free(&slot);
        let first = fs::read_dir(&slot).unwrap().next().unwrap().unwrap().path();
        fs::create_dir_all(first.join("work/work")).unwrap();
        fs::set_permissions(first.join("work/work"), fs::Permissions::from_mode(0o0)).unwrap();
        let bench = place.bench(false);
        assert!(!bash(&bench, "test -e ~/.cache/x").await.ok);
        let end = Instant::now() + PATIENCE;
        while slot.exists() {
            assert!(Instant::now() < end, "it is removed when a Session begins");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bench.close().await;
    });
}

#[test]
fn gc_removes_slots_that_no_command_uses() {
    let place = CacheEnv::new();
    let gc = |args: &[&str]| {
        let mut gc = Command::new(env!("CARGO_BIN_EXE_pixir"));
        gc.arg("gc").args(args).arg("--json").current_dir(place.root.join("work"));
        gc.env_clear().env("HOME", place.root.join("home")).env("PATH", "/usr/bin:/bin");
        let output = gc.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let age = |slot: &Path| {
        let old = std::time::SystemTime::now() - Duration::from_hours(2);
        fs::File::open(slot).unwrap().set_modified(old).unwrap();
    };
    run(async {
        let bench = place.bench(false);
        let fill = "head -c 50000 /dev/zero > ~/.cache/x; mkdir -p ~/.cache/c/d; chmod 0 ~/.cache/c; rm ~/.cache/tool/old";
        assert!(bash(&bench, fill).await.ok);
        let slot = place.slots().remove(0);
        age(&slot);
        assert!(!gc(&["--apply"]).contains("package_cache"), "a supervisor uses it");
        bench.close().await;
        wait_until_free(&slot);
        assert!(!gc(&[]).contains("package_cache"), "it was used less than an hour ago");
        age(&slot);
        let listed = gc(&[]);
        assert!(listed.contains("package_cache") && slot.exists(), "{listed}");
        assert!(listed.contains("\"bytes\":5"), "{listed}");
        let listed = gc(&["--apply"]);
        assert!(!slot.exists(), "{listed}");
    });
    assert_eq!(fs::read_to_string(place.root.join("home/.cache/tool/old")).unwrap(), "old\n");
}
