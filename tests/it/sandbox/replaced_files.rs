//! Covers of replaced files: files that the user replaces or moves aside, while a command runs or between two
//! commands, do not become readable or writable for commands.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pixir::workbench::{ToolAnswer, Workbench, WorkbenchSetup};
use serde_json::json;

use super::escape::{print_note, skip};
use crate::support::test_env::DEADLINE;

/// The variable that makes a test process a driver, and selects the sandbox level.
const DRIVE: &str = "PIXIR_TEST_COVERS";
/// A user that owns nothing.
const NOBODY: u32 = 65534;
/// Content that no command may read.
const SECRET: &str = "s3cr3t-of-the-covers";
/// Settings that no command may write.
const EVIL: &str = "[core]\n\tfsmonitor = evil\n";

/// A home, a Workspace with a repository, and its tools.
struct CoverEnv {
    _folder: tempfile::TempDir,
    root: PathBuf,
    bench: Workbench,
}

impl CoverEnv {
    fn new(subreaper: bool) -> Self {
        Self::made_in(tempfile::tempdir().unwrap(), subreaper, "work", "home")
    }

    /// Outside the temp folders, where a command sees the machine's own files.
    fn outside_temp(workspace: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self::made_in(folder, false, workspace, "home")
    }

    fn made_in(folder: tempfile::TempDir, subreaper: bool, workspace: &str, home: &str) -> Self {
        let home = folder.path().canonicalize().unwrap().join(home);
        Self::with_settings(folder, subreaper, workspace, &home, |_| {})
    }

    fn with_settings(
        folder: tempfile::TempDir,
        subreaper: bool,
        workspace: &str,
        home: &Path,
        adjust: impl FnOnce(&mut pixir::Config),
    ) -> Self {
        let root = folder.path().canonicalize().unwrap();
        for (name, text) in [
            ("home/.netrc", SECRET),
            ("home/.aws/credentials", SECRET),
            ("work/.git/HEAD", "ref: refs/heads/main\n"),
            ("work/.git/config", "[core]\n\trepositoryformatversion = 0\n"),
            ("work/.git/hooks/x.sample", "true\n"),
            ("work/.git/objects/x", ""),
            ("work/.git/refs/x", ""),
            ("work/part/x", ""),
            ("temp/x", ""),
        ] {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), text).unwrap();
        }
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &root.join(workspace),
            environment: vec![
                ("PATH".into(), std::env::var_os("PATH").unwrap()),
                ("HOME".into(), home.into()),
                ("TMPDIR".into(), root.join("temp").into()),
            ],
            subreaper,
            drain: Duration::from_millis(20),
            grace: Duration::from_millis(50),
        };
        let state = pixir::Home::new(root.join("home/.pixir"));
        let adjust = |config: &mut pixir::Config| {
            config.home = state;
            // The whole home is visible, so that the covers of credentials are tested.
            config.sandbox.read = vec!["~".into()];
            adjust(config);
        };
        let bench = Workbench::with_config(setup, adjust).unwrap();
        Self { _folder: folder, root, bench }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Replaces a file as git and most programs do: a new file and a rename.
    fn replace(&self, name: &str, text: &str) {
        let other = self.path(&format!("{name}.lock"));
        fs::write(&other, text).unwrap();
        fs::rename(other, self.path(name)).unwrap();
    }

    /// Moves a folder aside and makes a new one with the same files.
    fn make_again(&self, name: &str, file: &str, text: &str) {
        fs::rename(self.path(name), self.path(&format!("{name}.old"))).unwrap();
        fs::create_dir(self.path(name)).unwrap();
        fs::write(self.path(name).join(file), text).unwrap();
    }

    async fn run(&self, command: &str) -> ToolAnswer {
        self.bench.call("bash", json!({ "command": command })).await.unwrap()
    }

    /// Runs a command; calls `act` outside once the command is ready.
    async fn run_meanwhile(&self, command: &str, act: impl FnOnce()) -> ToolAnswer {
        let ready = async {
            until("the command is ready", || self.path("work/ready").exists()).await;
            act();
        };
        let command = format!("touch ready; {command}");
        let args = json!({ "command": command, "timeout_ms": 60_000 });
        let (answer, ()) = tokio::join!(self.bench.call("bash", args), ready);
        fs::remove_file(self.path("work/ready")).unwrap();
        answer.unwrap()
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_full(answer: &ToolAnswer) -> bool {
    answer.details["sandbox"] == "full"
}

#[track_caller]
fn was_stopped(answer: &ToolAnswer, path: &Path) {
    assert!(!answer.ok, "{}", answer.text);
    assert_eq!(answer.details["timed_out"], false, "{}", answer.text);
    assert_eq!(answer.details["uncovered"], json!([path]), "{}", answer.text);
    assert!(answer.text.contains("stopped by the sandbox"), "{}", answer.text);
    assert!(answer.text.contains("run the command again"), "{}", answer.text);
    let notice = answer.details["notice"].as_str().unwrap();
    assert!(notice.contains("no longer covered"), "{notice}");
}

/// The user's `git config`, in the middle of a command that waits for it.
async fn settings_replaced_in_the_middle(place: &CoverEnv) {
    let evil = "while [ ! -e go ]; do printf '[core]\\n\\tfsmonitor = evil\\n' >> .git/config; \
        sleep 0.01; done 2> /dev/null";
    let mine = "[core]\n\trepositoryformatversion = 0\n[user]\n\tname = Ada\n";
    let answer = place
        .run_meanwhile(evil, || {
            place.replace("work/.git/config", mine);
            if place.bench_is_partial() {
                fs::write(place.path("work/go"), "").unwrap();
            }
        })
        .await;
    assert!(!place.read("work/.git/config").contains("evil"), "{}", answer.text);
    if is_full(&answer) {
        was_stopped(&answer, &place.path("work/.git/config"));
        assert!(place.read("work/.git/config").contains("name = Ada"), "the user's file stays");
    }
    fs::remove_file(place.path("work/go")).ok();
}

/// A credential that is rotated by rename, in the middle of a command that waits to read it: files
/// outside the Workspace are covered by name, so the command continues and reads nothing.
async fn credential_rotated_in_the_middle(place: &CoverEnv) {
    let read = "while [ ! -e go ]; do sleep 0.01; done; cat $HOME/.netrc";
    let answer = place
        .run_meanwhile(read, || {
            place.replace("home/.netrc", SECRET);
            fs::write(place.path("work/go"), "").unwrap();
        })
        .await;
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    fs::remove_file(place.path("work/go")).ok();
}

/// A folder of credentials that is moved aside and made again, in the middle of a command.
async fn folder_made_again_in_the_middle(place: &CoverEnv) {
    let read = "while [ ! -e go ]; do sleep 0.01; done; cat $HOME/.aws/credentials";
    let answer = place
        .run_meanwhile(read, || {
            place.make_again("home/.aws", "credentials", SECRET);
            fs::write(place.path("work/go"), "").unwrap();
        })
        .await;
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    fs::remove_file(place.path("work/go")).ok();
    fs::remove_dir_all(place.path("home/.aws.old")).unwrap();
}

/// Credentials that are created while a command runs, one of them in a new folder.
async fn credentials_made_in_the_middle(place: &CoverEnv) {
    let names = [".pgpass", ".kube/config", ".config/gh/hosts.yml", ".claude/.credentials.json"];
    let read = format!(
        "while [ ! -e go ]; do sleep 0.01; done; cd $HOME; cat {}; ls -laR . ; echo went on",
        names.join(" ")
    );
    let make = || {
        for name in names {
            let path = place.path("home").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, SECRET).unwrap();
        }
        fs::write(place.path("work/go"), "").unwrap();
    };
    let answer = place.run_meanwhile(&read, make).await;
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    assert!(answer.text.contains("went on"), "{}", answer.text);
    fs::remove_file(place.path("work/go")).unwrap();
    // The next command sees new folders, and not the hidden files in them.
    fs::write(place.path("home/.config/other"), "plain\n").unwrap();
    let answer = place.run("cd $HOME; cat .config/other .config/gh/hosts.yml .pgpass").await;
    assert!(answer.text.contains("plain") && !answer.text.contains(SECRET), "{}", answer.text);
    for name in [".pgpass", ".kube", ".config", ".claude"] {
        let path = place.path("home").join(name);
        fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).unwrap();
    }
}

/// A link to credentials that is replaced while a command runs.
async fn link_replaced_in_the_middle(place: &CoverEnv) {
    fs::create_dir(place.path("home/keys")).unwrap();
    fs::write(place.path("home/keys/id"), SECRET).unwrap();
    symlink("keys", place.path("home/.ssh")).unwrap();
    symlink("keys/id", place.path("home/.git-credentials")).unwrap();
    let read = "while [ ! -e go ]; do sleep 0.01; done; cd $HOME; \
        cat keys/id .ssh/id .git-credentials; ls -la . keys .ssh";
    let replace = || {
        for name in ["home/.ssh", "home/.git-credentials"] {
            fs::remove_file(place.path(name)).unwrap();
        }
        fs::create_dir(place.path("home/.ssh")).unwrap();
        fs::write(place.path("home/.ssh/id"), SECRET).unwrap();
        fs::write(place.path("home/.git-credentials"), SECRET).unwrap();
        fs::write(place.path("work/go"), "").unwrap();
    };
    let answer = place.run_meanwhile(read, replace).await;
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    fs::remove_file(place.path("work/go")).unwrap();
    fs::remove_file(place.path("home/.git-credentials")).unwrap();
    for name in ["home/keys", "home/.ssh"] {
        fs::remove_dir_all(place.path(name)).unwrap();
    }
}

/// A command that reads all the time while a folder is moved aside and made again.
async fn folder_made_again_under_the_eyes(place: &CoverEnv) {
    let read = "end=50; while [ $end -gt 0 ]; do [ -e go ] && end=$((end-1)); ls -la $HOME > /dev/null; \
        cat $HOME/.aws/credentials; done 2> /dev/null; echo went on";
    let answer = place
        .run_meanwhile(read, || {
            place.make_again("home/.aws", "credentials", SECRET);
            fs::write(place.path("work/go"), "").unwrap();
        })
        .await;
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    assert!(answer.text.contains("went on"), "nothing lost its cover: {}", answer.text);
    fs::remove_file(place.path("work/go")).unwrap();
    fs::remove_dir_all(place.path("home/.aws.old")).unwrap();
}

async fn hidden_by_name(place: &CoverEnv) {
    credentials_made_in_the_middle(place).await;
    link_replaced_in_the_middle(place).await;
    folder_made_again_under_the_eyes(place).await;
}

/// Folders that are moved aside and made again between two commands.
async fn folders_made_again_between_commands(place: &CoverEnv) {
    assert!(place.run("true").await.ok);
    place.make_again("home/.aws", "credentials", SECRET);
    let answer = place.run("cat $HOME/.aws/credentials").await;
    assert!(!answer.text.contains(SECRET) && !answer.ok, "{}", answer.text);
    place.make_again("work/.git/hooks", "y.sample", "true\n");
    place.run("echo evil > .git/hooks/pre-commit").await;
    assert!(!place.path("work/.git/hooks/pre-commit").exists());
    assert_eq!(place.read("work/.git/hooks/y.sample"), "true\n");
    fs::remove_dir_all(place.path("work/.git/hooks.old")).unwrap();
    // The same for the whole repository.
    fs::rename(place.path("work/.git"), place.path("git.old")).unwrap();
    for name in ["hooks", "objects", "refs"] {
        fs::create_dir_all(place.path("work/.git").join(name)).unwrap();
    }
    fs::write(place.path("work/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(place.path("work/.git/config"), "[core]\n").unwrap();
    place.run("printf '[core]\\n\\tfsmonitor = evil\\n' >> .git/config; echo evil > .git/hooks/pre-commit").await;
    assert_eq!(place.read("work/.git/config"), "[core]\n");
    assert!(!place.path("work/.git/hooks/pre-commit").exists());
}

/// A file that is replaced between two commands is covered for the next one, which is not stopped.
async fn files_replaced_between_commands(place: &CoverEnv) {
    place.replace("home/.netrc", SECRET);
    place.replace("work/.git/config", EVIL);
    let answer = place.run("cat $HOME/.netrc; echo '[x]' >> .git/config; echo went on").await;
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    assert!(answer.text.contains("went on"), "{}", answer.text);
    assert_eq!(answer.details.get("uncovered"), None, "{}", answer.text);
    assert_eq!(place.read("work/.git/config"), EVIL, "it is the user's");
    place.replace("work/.git/config", "[core]\n");
}

/// A file of the Workspace that the user's own settings include, replaced in the middle of a command.
async fn included_settings_replaced_in_the_middle(place: &CoverEnv) {
    let include = format!("[include]\n\tpath = {}\n", place.path("work/team.cfg").display());
    fs::write(place.path("home/.gitconfig"), include).unwrap();
    fs::write(place.path("work/team.cfg"), "[user]\n").unwrap();
    let evil = "while [ ! -e go ]; do printf '[core]\\n\\tfsmonitor = evil\\n' >> team.cfg; \
        sleep 0.01; done 2> /dev/null";
    let answer = place
        .run_meanwhile(evil, || {
            place.replace("work/team.cfg", "[user]\n\tname = Ada\n");
            if place.bench_is_partial() {
                fs::write(place.path("work/go"), "").unwrap();
            }
        })
        .await;
    assert!(!place.read("work/team.cfg").contains("evil"), "{}", answer.text);
    if is_full(&answer) {
        was_stopped(&answer, &place.path("work/team.cfg"));
        assert!(place.read("work/team.cfg").contains("name = Ada"), "the user's file stays");
    }
    fs::remove_file(place.path("work/go")).ok();
    fs::remove_file(place.path("home/.gitconfig")).unwrap();
}

/// A link on the way to credentials that is pointed elsewhere, as programs do that rotate them.
async fn link_on_the_way_pointed_elsewhere(place: &CoverEnv) {
    for version in ["..v1", "..v2"] {
        fs::create_dir_all(place.path("home/data").join(version)).unwrap();
        fs::write(place.path("home/data").join(version).join("pass"), SECRET).unwrap();
    }
    symlink("..v1", place.path("home/data/..data")).unwrap();
    symlink("data/..data/pass", place.path("home/.pgpass")).unwrap();
    let point_elsewhere = |version: &str| {
        symlink(version, place.path("home/data/..new")).unwrap();
        fs::rename(place.path("home/data/..new"), place.path("home/data/..data")).unwrap();
    };
    let slow = "sleep 5; cat $HOME/data/..v2/pass $HOME/data/..data/pass";
    let answer = place.run_meanwhile(slow, || point_elsewhere("..v2")).await;
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    was_stopped(&answer, &place.path("home/data/..v2/pass"));
    let read = "cd $HOME; cat .pgpass data/..data/pass data/..v1/pass data/..v2/pass; echo went on";
    let answer = place.run(read).await;
    assert!(!answer.text.contains(SECRET), "the file stays hidden: {}", answer.text);
    assert!(answer.text.contains("went on"), "{}", answer.text);
    fs::remove_file(place.path("home/.pgpass")).unwrap();
    fs::remove_dir_all(place.path("home/data")).unwrap();
}

impl CoverEnv {
    fn bench_is_partial(&self) -> bool {
        self.path("partial").exists()
    }
}

async fn everything(subreaper: bool) {
    let place = CoverEnv::new(subreaper);
    if subreaper || !is_full(&place.run("true").await) {
        fs::write(place.path("partial"), "").unwrap();
    }
    settings_replaced_in_the_middle(&place).await;
    included_settings_replaced_in_the_middle(&place).await;
    link_on_the_way_pointed_elsewhere(&place).await;
    credential_rotated_in_the_middle(&place).await;
    folder_made_again_in_the_middle(&place).await;
    hidden_by_name(&place).await;
    files_replaced_between_commands(&place).await;
    folders_made_again_between_commands(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replaced_outside_stays_covered_or_the_command_is_stopped() {
    everything(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replaced_outside_stays_covered_without_namespaces() {
    everything(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_command_is_stopped_when_its_cover_falls_off() {
    let place = CoverEnv::new(false);
    let args = json!({"command": "touch ready; sleep 600", "background": true});
    let answer = place.bench.call("bash", args).await.unwrap();
    let id = answer.details["background"].clone();
    until("it has begun", || place.path("work/ready").exists()).await;
    place.replace("work/.git/config", "[user]\n\tname = Ada\n");
    let args = json!({"id": id, "wait_ms": 30_000});
    let answer = place.bench.call("bash_output", args).await.unwrap();
    if answer.details["sandbox"] == "partial" {
        skip("namespaces are not allowed here");
        return;
    }
    assert!(answer.text.contains("stopped by the sandbox"), "{}", answer.text);
    assert!(answer.text.contains("no longer covered"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_file_that_goes_away_stops_nothing() {
    let place = CoverEnv::new(false);
    let wait = "while [ ! -e go ]; do sleep 0.01; done; sleep 1; echo went on";
    let gone = || {
        fs::remove_file(place.path("home/.netrc")).unwrap();
        fs::write(place.path("work/go"), "").unwrap();
    };
    let answer = place.run_meanwhile(wait, gone).await;
    assert!(answer.ok && answer.text.contains("went on"), "{}", answer.text);
    assert_eq!(answer.details.get("uncovered"), None, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_that_are_replaced_outside_the_temp_folders_are_noticed() {
    let place = CoverEnv::outside_temp("work");
    assert!(place.run("true").await.ok);
    place.make_again("home/.aws", "credentials", SECRET);
    let answer = place.run("ls -la $HOME > /dev/null; cat $HOME/.aws/credentials").await;
    assert!(!answer.text.contains(SECRET) && !answer.ok, "{}", answer.text);
    // For the Workspace itself, the command works in the new folder of that name.
    place.make_again("work", "file", "the new one\n");
    let answer = place.run("cat file && echo made > made").await;
    assert!(answer.text.contains("the new one"), "{}", answer.text);
    assert!(place.path("work/made").exists() && !place.path("work.old/made").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_hidden_by_name_outside_the_temp_folders() {
    hidden_by_name(&CoverEnv::outside_temp("work")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_on_the_way_to_credentials_are_watched_outside_the_temp_folders() {
    link_on_the_way_pointed_elsewhere(&CoverEnv::outside_temp("work")).await;
}

/// A read-only Workspace is visible as it is, with a home inside it.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_made_in_a_home_inside_a_read_only_workspace_stop_the_command() {
    for subreaper in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().canonicalize().unwrap().join("work/home");
        let place = CoverEnv::with_settings(folder, subreaper, "work", &home, |config| {
            config.sandbox.level = pixir::SandboxLevel::ReadOnly;
        });
        fs::create_dir_all(place.path("work/home/.config")).unwrap();
        let args = json!({"command": "echo rea''dy; sleep 20", "background": true});
        let answer = place.bench.call("bash", args).await.unwrap();
        let id = answer.details["background"].clone();
        let args = json!({"id": id, "wait_ms": 30_000});
        let mut text = answer.text;
        while !text.contains("ready") {
            text = place.bench.call("bash_output", json!({"id": id})).await.unwrap().text;
        }
        fs::create_dir(place.path("work/home/.config/gh")).unwrap();
        let answer = place.bench.call("bash_output", args).await.unwrap();
        assert!(answer.text.contains("stopped by the sandbox"), "{}", answer.text);
        assert!(answer.text.contains(".config/gh"), "{}", answer.text);
    }
}

/// A home behind a link in the temp folder, in whose place commands see a private temp folder.
#[tokio::test(flavor = "multi_thread")]
async fn a_home_behind_a_link_in_a_temp_folder_is_there() {
    let links = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let home = links.path().canonicalize().unwrap().join("deep/home");
    fs::create_dir(home.parent().unwrap()).unwrap();
    symlink(folder.path().join("home"), &home).unwrap();
    let place = CoverEnv::with_settings(folder, false, "work", &home, |_| {});
    fs::write(place.path("home/plain"), "plain\n").unwrap();
    let answer = place.run("cd && cat plain $HOME/plain && readlink $HOME; cat .netrc").await;
    assert_eq!(answer.text.matches("plain\n").count(), 2, "{}", answer.text);
    assert!(!answer.text.contains(SECRET), "{}", answer.text);
    // A link that a command makes in its private temp folder does not replace the user's.
    place.run("rm -f $HOME; ln -sfn /etc $HOME").await;
    assert!(place.run("cat $HOME/plain").await.ok);
    assert!(home.is_symlink());
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_with_hidden_names_keep_their_times_and_modes() {
    for place in [CoverEnv::new(false), CoverEnv::outside_temp("work")] {
        fs::create_dir_all(place.path("home/.config/gh")).unwrap();
        // Missing cache folders would be made in the home.
        for cache in [".cache", ".cargo/git", ".cargo/registry", ".npm/_cacache", ".pixir/caches"] {
            fs::create_dir_all(place.path("home").join(cache)).unwrap();
        }
        let then = std::time::UNIX_EPOCH + Duration::from_secs(1_500_000_007);
        for name in ["home/.config", "home"] {
            let folder = fs::File::open(place.path(name)).unwrap();
            folder.set_permissions(fs::Permissions::from_mode(0o750)).unwrap();
            folder.set_modified(then).unwrap();
        }
        let answer = place.run("stat -c '%Y %a' $HOME $HOME/.config").await;
        assert_eq!(answer.text.matches("1500000007 750").count(), 2, "{}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn git_finds_the_repository_around_a_workspace() {
    let place = CoverEnv::outside_temp("work/part");
    let answer = place.run("git rev-parse --show-toplevel").await;
    assert!(answer.ok && answer.text.contains("work"), "{}", answer.text);
}

/// A driver: the process that the next test starts as another user.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(everything(drive == "partial"));
    print_note("covers: an ordinary user");
}

#[test]
fn what_is_replaced_outside_stays_covered_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        skip("these tests already run as an ordinary user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let can_run = Command::new(env!("CARGO_BIN_EXE_pixir")).arg("--version").uid(NOBODY).output();
    if !can_run.is_ok_and(|output| output.status.success()) {
        skip("another user cannot run the program where it was built");
        return;
    }
    for name in ["full", "partial"] {
        let mut driver = Command::new(std::env::current_exe().unwrap());
        driver.args(["--exact", "sandbox::replaced_files::driver", "--nocapture"]).env(DRIVE, name);
        driver.env("TMPDIR", folder.path()).env("HOME", folder.path());
        let driver = driver.current_dir(folder.path()).uid(NOBODY).gid(NOBODY);
        let output = driver.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stderr}");
        assert!(stderr.contains("covers: an ordinary user"), "{name}: it did not run: {stderr}");
    }
}
