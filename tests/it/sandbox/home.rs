//! The home folder in the sandbox: commands see tool chains, caches and settings without secrets only.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pixir::SandboxLevel;
use pixir::workbench::{CREDENTIALS, CredentialPlace, ToolAnswer, Workbench, WorkbenchSetup};
use serde_json::json;

use super::escape::{print_note, skip};
use super::home_attempts::READ_ATTEMPTS;
use crate::support::drivers::assert_driver_passed;
use crate::support::test_env::DEADLINE;

/// The variable that makes a test process a driver, and selects the sandbox level.
const DRIVE: &str = "PIXIR_TEST_HOME";
/// A user that owns nothing.
const NOBODY: u32 = 65534;
/// The beginning of every planted secret; a number and a full stop follow.
const SECRET: &str = "s3cr3t-of-the-home-";
/// PATH for commands, without folders in another home, because those would be shown.
const PROGRAMS: &str = "/usr/local/bin:/usr/bin:/bin";
/// One in this many files of the table is read in every way.
const SAMPLE: usize = 12;

/// A home with credentials, a Workspace, and its tools.
pub struct HomeEnv {
    _folder: tempfile::TempDir,
    root: PathBuf,
    bench: Workbench,
}

/// Options of a `HomeEnv`.
pub struct HomeEnvOptions<'a> {
    pub subreaper: bool,
    pub level: SandboxLevel,
    /// Relative to the folder of the test.
    pub workspace: &'a str,
    pub read: &'a [&'a str],
    pub write: &'a [&'a str],
}

impl Default for HomeEnvOptions<'_> {
    fn default() -> Self {
        let level = SandboxLevel::Workspace;
        Self { subreaper: false, level, workspace: "home/projects/work", read: &[], write: &[] }
    }
}

/// Path of a credential of the table, below the home.
fn credential_file(place: &CredentialPlace) -> PathBuf {
    Path::new(place.path).join(place.file).components().collect()
}

pub fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl HomeEnv {
    pub fn new(options: &HomeEnvOptions<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let home = root.join("home");
        let workspace = root.join(options.workspace);
        for folder in [&workspace, &root.join("temp"), &home.join(".cache")] {
            fs::create_dir_all(folder).unwrap();
        }
        let mut list = String::new();
        let mut sample = String::new();
        for (number, place) in CREDENTIALS.iter().enumerate() {
            let file = credential_file(place);
            write(&home.join(&file), &format!("{SECRET}{number}.\n"));
            let line = format!("{}\n", file.display());
            list.push_str(&line);
            if number % SAMPLE == 0 {
                sample.push_str(&line);
            }
        }
        for (name, text) in [
            (".gitconfig", "[user]\n\tname = Ada\n\temail = ada@host.example\n"),
            (".local/bin/tool", "#!/bin/sh\necho tool runs\n"),
            ("documents/letter", "private\n"),
        ] {
            write(&home.join(name), text);
        }
        let tool = home.join(".local/bin/tool");
        fs::set_permissions(tool, fs::Permissions::from_mode(0o755)).unwrap();
        write(&workspace.join("list"), &list);
        write(&workspace.join("sample"), &sample);
        let mut path = home.join(".local/bin").into_os_string();
        path.push(":");
        path.push(PROGRAMS);
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &workspace,
            environment: vec![
                ("PATH".into(), path),
                ("HOME".into(), home.clone().into()),
                ("TMPDIR".into(), root.join("temp").into()),
            ],
            subreaper: options.subreaper,
            drain: Duration::from_millis(20),
            grace: Duration::from_millis(50),
        };
        let bench = Workbench::with_config(setup, |config| {
            config.home = pixir::Home::new(home.join(".pixir"));
            config.sandbox.level = options.level;
            config.sandbox.read = options.read.iter().map(PathBuf::from).collect();
            config.sandbox.write = options.write.iter().map(PathBuf::from).collect();
        });
        Self { _folder: folder, root, bench: bench.unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join("home").join(name)
    }

    pub async fn run(&self, command: &str) -> ToolAnswer {
        let args = json!({ "command": command, "timeout_ms": 120_000 });
        self.bench.call("bash", args).await.unwrap()
    }

    /// Runs a command that writes what it reads to `got`, and gives the numbers of the secrets in it.
    async fn secrets(&self, workspace: &str, command: &str) -> BTreeSet<usize> {
        let got = self.root.join(workspace).join("got");
        fs::write(&got, "").unwrap();
        let answer = self.run(command).await;
        let mut text = String::from_utf8_lossy(&fs::read(&got).unwrap()).into_owned();
        text.push_str(&answer.text);
        let numbers = text.split(SECRET).skip(1);
        numbers.filter_map(|rest| rest.split('.').next()?.parse().ok()).collect()
    }
}

/// A command that reads every file of the table.
const READ_ALL: &str = "while read -r f; do cat \"$HOME/$f\"; done < list >> got 2> errors";

fn named(numbers: &BTreeSet<usize>) -> Vec<&'static str> {
    numbers.iter().map(|number| CREDENTIALS[*number].path).collect()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_mins(5), future).await.expect("in time")
    })
}

/// Whether the sandbox level is the one that a test needs; reports a skip if not.
fn is_level(answer: &ToolAnswer, subreaper: bool) -> bool {
    let expected = if subreaper { "partial" } else { "full" };
    let level = answer.details["sandbox"].as_str().unwrap();
    if level != expected {
        skip(&format!("home: the level here is {level}"));
    }
    level == expected
}

#[test]
fn the_table_has_more_than_103_places_and_each_stands_once() {
    let paths: BTreeSet<&str> = CREDENTIALS.iter().map(|place| place.path).collect();
    assert_eq!(paths.len(), CREDENTIALS.len());
    assert!(paths.len() >= 103, "{}", paths.len());
    for place in CREDENTIALS {
        let is_relative = Path::new(place.path).is_relative() && !place.path.ends_with('/');
        assert!(is_relative && !place.source.is_empty(), "{place:?}");
    }
    assert!(READ_ATTEMPTS.len() >= 20, "{}", READ_ATTEMPTS.len());
}

/// The control: without a sandbox every file of the table can be read.
#[test]
fn without_a_sandbox_all_credentials_are_read() {
    run(async {
        let home =
            HomeEnv::new(&HomeEnvOptions { level: SandboxLevel::Off, ..HomeEnvOptions::default() });
        let read = home.secrets("home/projects/work", READ_ALL).await;
        assert_eq!(read.len(), CREDENTIALS.len());
    });
}

async fn no_credential_is_read(subreaper: bool) {
    for level in [SandboxLevel::Workspace, SandboxLevel::ReadOnly] {
        let home = HomeEnv::new(&HomeEnvOptions { subreaper, level, ..HomeEnvOptions::default() });
        // Read-only commands cannot write the file `got`.
        let all = match level {
            SandboxLevel::ReadOnly => {
                "while read -r f; do cat \"$HOME/$f\"; done < list 2> /dev/null"
            }
            _ => READ_ALL,
        };
        let read = home.secrets("home/projects/work", all).await;
        let count = read.len();
        let of = CREDENTIALS.len();
        print_note(&format!(
            "home: {level:?}, subreaper {subreaper}: {count} of {of} credentials read"
        ));
        assert_eq!(named(&read), Vec::<&str>::new(), "{level:?}");
        let answer = home.run("cat $HOME/documents/letter").await;
        assert!(!answer.ok && !answer.text.contains("private"), "{}", answer.text);
        let answer = home.run("tool && git config user.name && cat ~/.gitconfig").await;
        assert!(answer.ok && answer.text.contains("tool runs"), "{}", answer.text);
        if is_level(&answer, false) {
            let answer = home.run("ls -A ~").await;
            assert!(answer.text.lines().any(|line| line == ".cache"), "{}", answer.text);
            assert!(!answer.text.contains("documents"), "{}", answer.text);
        }
    }
}

async fn no_way_leads_there(subreaper: bool) {
    let home = HomeEnv::new(&HomeEnvOptions { subreaper, ..HomeEnvOptions::default() });
    for (name, command) in READ_ATTEMPTS {
        let read = home.secrets("home/projects/work", command).await;
        assert_eq!(named(&read), Vec::<&str>::new(), "{name}");
    }
    // Files that an attempt left behind show nothing to a later command either.
    let read = home.secrets("home/projects/work", READ_ALL).await;
    assert_eq!(named(&read), Vec::<&str>::new());
}

#[test]
fn no_credential_of_the_table_can_be_read() {
    run(no_credential_is_read(false));
}

#[test]
fn no_credential_of_the_table_can_be_read_without_namespaces() {
    run(no_credential_is_read(true));
}

#[test]
fn no_way_leads_to_a_credential() {
    run(no_way_leads_there(false));
}

#[test]
fn no_way_leads_to_a_credential_without_namespaces() {
    run(no_way_leads_there(true));
}

/// If the home is the Workspace, or is visible as a whole, only the credentials of the table are hidden.
#[test]
fn a_home_that_is_seen_whole_shows_no_credentials() {
    run(async {
        for subreaper in [false, true] {
            for (workspace, read) in [("home", &[][..]), ("home/projects/work", &["~"][..])] {
                let options =
                    HomeEnvOptions { subreaper, workspace, read, ..HomeEnvOptions::default() };
                let home = HomeEnv::new(&options);
                let found = home.secrets(workspace, READ_ALL).await;
                assert_eq!(named(&found), Vec::<&str>::new(), "{workspace}, {subreaper}");
                let answer = home.run("cat ~/documents/letter").await;
                assert!(answer.ok && answer.text.contains("private"), "{}", answer.text);
            }
        }
    });
}

async fn what_comes_later_is_hidden(subreaper: bool) {
    let home = HomeEnv::new(&HomeEnvOptions { subreaper, ..HomeEnvOptions::default() });
    let read = "cat ~/.npmrc ~/later ~/.newtool/token ~/.cargo/credentials.toml; echo went on";
    fs::remove_file(home.path(".npmrc")).unwrap();
    let answer = home.run(read).await;
    is_level(&answer, subreaper);
    for name in [".npmrc", "later", ".newtool/token"] {
        write(&home.path(name), &format!("{SECRET}0.\n"));
    }
    let answer = home.run(read).await;
    assert!(answer.text.contains("went on") && !answer.text.contains(SECRET), "{}", answer.text);
    // Credentials that are created while a command runs.
    for name in [".npmrc", "later"] {
        fs::remove_file(home.path(name)).unwrap();
    }
    let ready = home.path("projects/work").join("ready");
    let command = format!("touch ready; while [ ! -e go ]; do sleep 0.01; done; {read}");
    let change = async {
        until("the command is ready", || ready.exists()).await;
        for name in [".npmrc", "later", ".cargo/credentials.toml"] {
            let other = home.path("projects/other");
            write(&other, &format!("{SECRET}0.\n"));
            fs::rename(other, home.path(name)).unwrap();
        }
        fs::write(home.path("projects/work").join("go"), "").unwrap();
    };
    let (answer, ()) = tokio::join!(home.run(&command), change);
    assert!(answer.text.contains("went on") && !answer.text.contains(SECRET), "{}", answer.text);
}

#[test]
fn what_comes_to_be_in_the_home_later_is_hidden() {
    run(what_comes_later_is_hidden(false));
}

#[test]
fn what_comes_to_be_in_the_home_later_is_hidden_without_namespaces() {
    run(what_comes_later_is_hidden(true));
}

#[test]
fn settings_that_are_replaced_or_made_are_seen_by_the_next_command() {
    run(async {
        for subreaper in [false, true] {
            let home = HomeEnv::new(&HomeEnvOptions { subreaper, ..HomeEnvOptions::default() });
            assert!(home.run("git config user.name").await.text.contains("Ada"));
            write(&home.path("new"), "[user]\n\tname = Grace\n[include]\n\tpath = ~/work.cfg\n");
            fs::rename(home.path("new"), home.path(".gitconfig")).unwrap();
            let answer = home.run("git config user.name").await;
            assert!(answer.ok && answer.text.contains("Grace"), "{}", answer.text);
            write(&home.path("work.cfg"), "[user]\n\temail = grace@host.example\n");
            let answer = home.run("git config user.email").await;
            assert!(answer.ok && answer.text.contains("grace@"), "{}", answer.text);
            write(&home.path(".tool-versions"), "node 20\n");
            assert!(home.run("grep node ~/.tool-versions").await.ok);
        }
    });
}

#[test]
fn links_of_dot_files_work_and_show_nothing_else() {
    run(async {
        for subreaper in [false, true] {
            let home = HomeEnv::new(&HomeEnvOptions { subreaper, ..HomeEnvOptions::default() });
            write(&home.path("dotfiles/gitconfig"), "[user]\n\tname = Linked\n");
            write(&home.path("dotfiles/token"), &format!("{SECRET}0.\n"));
            write(&home.path("dotfiles/config/git/ignore"), "*.o\n");
            write(&home.path("dotfiles/config/other/token"), &format!("{SECRET}0.\n"));
            fs::remove_file(home.path(".gitconfig")).unwrap();
            symlink("dotfiles/gitconfig", home.path(".gitconfig")).unwrap();
            fs::rename(home.path(".config"), home.path("old-config")).unwrap();
            symlink("dotfiles/config", home.path(".config")).unwrap();
            // A link to a credential, and one to the whole home.
            symlink(".netrc", home.path(".ripgreprc")).unwrap();
            symlink(home.path(""), home.path("sdk")).unwrap();
            let answer = home.run("git config user.name && cat ~/.config/git/ignore").await;
            assert!(answer.ok && answer.text.contains("Linked"), "{}", answer.text);
            let read =
                "cat ~/dotfiles/token ~/.config/other/token ~/.ripgreprc ~/sdk/.npmrc ~/sdk/later";
            write(&home.path("later"), &format!("{SECRET}0.\n"));
            let answer = home.run(read).await;
            assert!(!answer.ok && !answer.text.contains(SECRET), "{}", answer.text);
        }
    });
}

#[test]
fn a_link_that_a_command_made_widens_nothing() {
    run(async {
        for subreaper in [false, true] {
            let read = &["~/.cache/made", "~/.cache/deep/made"];
            let writable = &["~/.cache"];
            let home = HomeEnv::new(&HomeEnvOptions {
                subreaper,
                read,
                write: writable,
                ..HomeEnvOptions::default()
            });
            let made = home.run("ln -s ~/documents ~/.cache/made && ln -s ~ ~/.cache/deep").await;
            assert!(made.ok, "{}", made.text);
            write(&home.path("made/letter"), "private\n");
            for _ in 0..2 {
                let read = "cat ~/.cache/made/letter ~/.cache/deep/made/letter ~/documents/letter";
                let answer = home.run(read).await;
                assert!(!answer.ok && !answer.text.contains("private"), "{}", answer.text);
            }
        }
    });
}

#[test]
fn sandbox_read_shows_a_folder_without_the_credentials_in_it() {
    run(async {
        for subreaper in [false, true] {
            let read =
                &["~/.config", "~/documents", "~/.m2/settings.xml", "~/.ssh/config", "~/.pixir"];
            let home =
                HomeEnv::new(&HomeEnvOptions { subreaper, read, ..HomeEnvOptions::default() });
            write(&home.path(".config/tool/settings"), "plain\n");
            write(&home.path(".ssh/config"), "Host example\n");
            write(&home.path(".pixir/auth.json"), &format!("{SECRET}0.\n"));
            let answer = home
                .run("cat ~/.config/tool/settings ~/documents/letter ~/.m2/settings.xml ~/.ssh/config")
                .await;
            assert!(answer.ok, "{}", answer.text);
            assert!(answer.text.contains(SECRET), "named exactly: {}", answer.text);
            let read = "cat ~/.config/gh/hosts.yml ~/.ssh/id_ed25519 ~/.npmrc ~/.pixir/auth.json";
            let answer = home.run(read).await;
            assert!(!answer.ok && !answer.text.contains(SECRET), "{}", answer.text);
        }
    });
}

#[test]
fn the_repository_around_the_workspace_can_be_read() {
    run(async {
        for subreaper in [false, true] {
            let workspace = "home/mono/crates/a";
            let home =
                HomeEnv::new(&HomeEnvOptions { subreaper, workspace, ..HomeEnvOptions::default() });
            write(&home.path("mono/Cargo.toml"), "[workspace]\n");
            write(&home.path("beside/secret"), "private\n");
            assert!(!home.run("cat ../../Cargo.toml").await.ok, "not a repository yet");
            fs::create_dir(home.path("mono/.git")).unwrap();
            let answer = home.run("cat ../../Cargo.toml && ls ../..").await;
            assert!(answer.ok && answer.text.contains("[workspace]"), "{}", answer.text);
            let answer = home.run("echo x >> ../../Cargo.toml").await;
            assert!(!answer.ok, "{}", answer.text);
            let answer = home.run("cat ../../../beside/secret").await;
            assert!(!answer.ok && !answer.text.contains("private"), "{}", answer.text);
            // A home that is a repository itself is not shown as a whole.
            fs::create_dir(home.path(".git")).unwrap();
            fs::remove_dir(home.path("mono/.git")).unwrap();
            let answer = home.run("cat ~/documents/letter ../../Cargo.toml").await;
            assert!(!answer.ok && !answer.text.contains("private"), "{}", answer.text);
        }
    });
}

#[test]
fn a_refused_path_is_reported_with_the_setting_that_would_show_it() {
    run(async {
        for subreaper in [false, true] {
            let home = HomeEnv::new(&HomeEnvOptions { subreaper, ..HomeEnvOptions::default() });
            let line = |path: &str, why: &str| {
                format!("[sandbox: {} is hidden from commands{why}]", home.path(path).display())
            };
            let shown = "; the user can show it with sandbox.read";
            let kept = ", because it holds credentials; only the user can use it, or show it by \
                naming it in sandbox.read";
            let answer = home.run("cat ~/documents/letter").await;
            let expected = line("documents/letter", shown);
            assert!(answer.text.contains(&expected), "{}", answer.text);
            let answer = home.run("cat ~/.npmrc").await;
            assert!(answer.text.contains(&line(".npmrc", kept)), "{}", answer.text);
            let answer = home.run("echo '~/documents/letter: not found'; false").await;
            assert!(answer.text.contains(&expected), "{}", answer.text);
            let answer = home.run("cat ~/nothing/there ~/.gitconfig/x").await;
            assert!(!answer.text.contains("hidden from commands"), "{}", answer.text);
        }
    });
}

#[test]
fn homes_of_other_users_are_hidden() {
    run(async {
        let home = HomeEnv::new(&HomeEnvOptions::default());
        let list = |folders: &str| format!("ls -A {folders} 2>/dev/null | grep -v ':$' | grep .");
        let control = home.run(&list("/usr")).await;
        assert!(control.ok, "{}", control.text);
        let answer = home.run(&list("/root /home")).await;
        if is_level(&answer, false) && !std::env::temp_dir().starts_with("/home") {
            assert!(!answer.ok, "{}", answer.text);
        }
    });
}

/// A driver: the process that the next test starts as another user.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let subreaper = drive == "partial";
    run(async {
        no_credential_is_read(subreaper).await;
        no_way_leads_there(subreaper).await;
        what_comes_later_is_hidden(subreaper).await;
    });
}

#[test]
fn an_ordinary_users_home_is_hidden_as_well() {
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
    for level in ["full", "partial"] {
        let mut driver = Command::new(std::env::current_exe().unwrap());
        driver.args(["--exact", "sandbox::home::driver", "--nocapture"]);
        driver.env(DRIVE, level).env("TMPDIR", folder.path()).env("HOME", folder.path());
        driver.env("PATH", PROGRAMS);
        let output = driver.current_dir(folder.path()).uid(NOBODY).gid(NOBODY).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_driver_passed(&output, level);
        stderr.lines().filter(|line| line.starts_with("home:")).for_each(print_note);
    }
}
