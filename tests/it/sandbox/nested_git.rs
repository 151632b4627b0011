//! Escapes through the user's next git command: repositories below the Workspace that a command made or changed
//! must not make git start a program outside the sandbox.
//!
//! Each attempt is a command, or several that run one after the other, and a probe: what the user, or
//! their shell's prompt, runs afterwards outside the sandbox. The program that git would start leaves a
//! canary. `@EVIL` is that program, `@CACHE` a folder of the home that commands may write.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pixir::SandboxLevel;
use pixir::workbench::{Workbench, WorkbenchSetup};
use serde_json::json;

use super::escape::{print_note, skip};
use super::nested_attempts::{HOOKS, INCLUDED, LINKED, NestedAttempt, PLACES, SETTINGS, THEN};
use super::user_attempts::OF_THE_USER;
use crate::support::drivers::assert_driver_passed;
use crate::support::torture::{SuiteSize, seed};

/// The variable that makes a test process a driver, and selects the sandbox level.
const DRIVE: &str = "PIXIR_TEST_NESTED";
/// A user that owns nothing.
const NOBODY: u32 = 65534;
/// Number of attempts in a sample.
const SAMPLE: usize = 8;
/// Time limit of one attempt in milliseconds.
const PATIENCE_MS: u64 = 60_000;

/// A Workspace with repositories in it, and a place outside for the canary.
struct NestedGitEnv {
    _folder: tempfile::TempDir,
    root: PathBuf,
}

/// The user's repository: a submodule, a vendored repository, included settings.
const SET_UP: &str = "set -e
git init -q -b master up && git -C up commit -q --allow-empty -m a
git init -q -b master work && cd work
printf '#!/bin/sh\\ntouch @CANARY\\n' > evil && chmod +x evil
git -c protocol.file.allow=always submodule --quiet add ../up sub
git init -q -b master vendor && git -C vendor commit -q --allow-empty -m a
mkdir -p vendor/.git/hooks && printf '#!/bin/sh\\n' > vendor/.git/hooks/commit-msg && chmod +x vendor/.git/hooks/commit-msg
git -C vendor config include.path ../shared.cfg && printf '[user]\\n' > vendor/shared.cfg
git -c advice.addEmbeddedRepo=false add vendor
mkdir conf && printf '[include]\\n\\tpath = more\\n' > conf/git && printf '[pull]\\n\\tff = only\\n' > conf/more
printf '[pull]\\n\\trebase = true\\n' > .gitconfig
git config --add include.path ../.gitconfig
git config --add include.path ../conf/git
git config --add include.path ../.gitconfig.local
git add evil && git commit -qm first
";

impl NestedGitEnv {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["home/.cache", "outside", "temp"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let config = "[user]\n\tname = A\n\temail = a@b.c\n[init]\n\tdefaultBranch = master\n";
        fs::write(root.join("home/.gitconfig"), config).unwrap();
        let env = Self { _folder: folder, root };
        let set_up = env.user("", SET_UP);
        assert!(set_up.0, "{}", set_up.1);
        env
    }

    fn place(&self, name: &str) -> String {
        self.root.join(name).to_string_lossy().into_owned()
    }

    fn with_placeholders(&self, text: &str) -> String {
        text.replace("@EVIL", &self.place("work/evil"))
            .replace("@CANARY", &self.place("outside/canary"))
            .replace("@CACHE", &self.place("home/.cache"))
            .replace("@WORK", &self.place("work"))
    }

    /// Runs a script as the user, outside the sandbox.
    fn user(&self, folder: &str, script: &str) -> (bool, String) {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &self.with_placeholders(script)])
            .current_dir(self.root.join(folder))
            .env_clear();
        shell.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.root.join("home"));
        let output = shell.stdin(std::process::Stdio::null()).output().unwrap();
        let stderr = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&stderr).into_owned())
    }

    fn bench(&self, sandbox_level: SandboxLevel, subreaper: bool) -> Workbench {
        let home = self.root.join("home");
        let setup = WorkbenchSetup {
            own_binary: env!("CARGO_BIN_EXE_pixir").into(),
            folder: &self.root.join("work"),
            environment: vec![
                ("PATH".into(), std::env::var_os("PATH").unwrap()),
                ("HOME".into(), home.clone().into()),
                ("TMPDIR".into(), self.root.join("temp").into()),
            ],
            subreaper,
            drain: Duration::from_millis(20),
            grace: Duration::from_millis(50),
        };
        let adjust = |config: &mut pixir::Config| {
            config.home = pixir::Home::new(home.join(".pixir"));
            config.sandbox.level = sandbox_level;
        };
        Workbench::with_config(setup, adjust).unwrap()
    }

    fn has_canary(&self) -> bool {
        self.root.join("outside/canary").exists()
    }
}

/// Makes one attempt and lets the user run the probe; gives whether a program was started outside.
async fn escapes(attempt: &NestedAttempt, sandbox_level: SandboxLevel, subreaper: bool) -> bool {
    let (_, commands, probe) = attempt;
    let env = NestedGitEnv::new();
    let bench = env.bench(sandbox_level, subreaper);
    for command in commands.split(THEN) {
        if let Some(script) = command.strip_prefix("user: ") {
            env.user("work", script);
            continue;
        }
        let args = json!({"command": env.with_placeholders(command), "timeout_ms": PATIENCE_MS});
        let answer = bench.call("bash", args).await.unwrap();
        if sandbox_level != SandboxLevel::Off {
            assert_ne!(answer.details["sandbox"], "off", "{}", attempt.0);
            assert!(!env.has_canary(), "{}: during the attempt", attempt.0);
        }
    }
    // Without a sandbox, the command itself may have started the program.
    fs::remove_file(env.root.join("outside/canary")).ok();
    env.user("work", probe);
    env.has_canary()
}

fn all_attempts() -> Vec<NestedAttempt> {
    [SETTINGS, HOOKS, PLACES, INCLUDED, LINKED, OF_THE_USER].concat()
}

fn chosen(salt: u64) -> Vec<NestedAttempt> {
    let mut attempts = all_attempts();
    if SuiteSize::from_environment() != SuiteSize::Full {
        fastrand::Rng::with_seed(seed() + salt).shuffle(&mut attempts);
        attempts.truncate(SAMPLE);
    }
    attempts
}

fn run_and_check(sandbox_level: SandboxLevel, subreaper: bool, who: &str) -> Vec<&'static str> {
    run_each(&chosen(u64::from(subreaper)), sandbox_level, subreaper, who)
}

fn run_each(
    attempts: &[NestedAttempt],
    sandbox_level: SandboxLevel,
    subreaper: bool,
    who: &str,
) -> Vec<&'static str> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut escaped = Vec::new();
    for attempt in attempts {
        if runtime.block_on(escapes(attempt, sandbox_level, subreaper)) {
            escaped.push(attempt.0);
        }
    }
    print_note(&format!(
        "nested git: {who}, {sandbox_level:?}, without namespaces {subreaper}: {} attempts, {} started a program \
         outside (seed={})",
        attempts.len(),
        escaped.len(),
        seed(),
    ));
    escaped
}

#[test]
fn there_are_more_than_60_attempts_and_each_has_its_name() {
    let attempts = all_attempts();
    let names: std::collections::BTreeSet<&str> = attempts.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names.len(), attempts.len(), "a name stands for one attempt");
    assert!(attempts.len() >= 60, "{}", attempts.len());
}

/// The control: without a sandbox, each attempt starts the program.
#[test]
fn without_a_sandbox_each_attempt_starts_a_program() {
    let attempts = chosen(0);
    let escaped = run_and_check(SandboxLevel::Off, false, "own user");
    let kept: Vec<&str> =
        attempts.iter().map(|(name, ..)| *name).filter(|name| !escaped.contains(name)).collect();
    assert_eq!(kept, Vec::<&str>::new(), "no effect without a sandbox");
}

#[test]
fn git_starts_nothing_that_a_command_named() {
    assert_eq!(run_and_check(SandboxLevel::Workspace, false, "own user"), Vec::<&str>::new());
}

#[test]
fn git_starts_nothing_that_a_command_named_without_namespaces() {
    assert_eq!(run_and_check(SandboxLevel::Workspace, true, "own user"), Vec::<&str>::new());
}

/// All attempts with links, because each takes another path through the code.
#[test]
fn git_starts_nothing_that_a_command_named_behind_a_link() {
    let escaped = run_each(LINKED, SandboxLevel::Workspace, false, "own user, links");
    assert_eq!(escaped, Vec::<&str>::new());
}

#[test]
fn git_starts_nothing_behind_a_link_without_namespaces() {
    let escaped = run_each(LINKED, SandboxLevel::Workspace, true, "own user, links");
    assert_eq!(escaped, Vec::<&str>::new());
}

/// All attempts through settings outside of repositories.
#[test]
fn git_starts_nothing_that_a_command_named_for_the_users_own_settings() {
    for subreaper in [false, true] {
        let who = "own user, user's settings";
        let escaped = run_each(OF_THE_USER, SandboxLevel::Workspace, subreaper, who);
        assert_eq!(escaped, Vec::<&str>::new(), "without namespaces: {subreaper}");
    }
}

/// A driver: the process that the next test starts as another user.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let subreaper = drive == "partial";
    let escaped = run_and_check(SandboxLevel::Workspace, subreaper, "an ordinary user");
    assert_eq!(escaped, Vec::<&str>::new());
}

#[test]
fn git_starts_nothing_that_a_command_of_an_ordinary_user_named() {
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
        driver.args(["--exact", "sandbox::nested_git::driver", "--nocapture"]).env(DRIVE, name);
        driver.env("TMPDIR", folder.path()).env("HOME", folder.path());
        let driver = driver.current_dir(folder.path()).uid(NOBODY).gid(NOBODY);
        let output = driver.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_driver_passed(&output, name);
        let line = stderr.lines().find(|line| line.starts_with("nested git:"));
        print_note(line.expect("the driver says what it did"));
    }
}

/// Ordinary git commands work, and files written by git itself stay.
#[tokio::test(flavor = "multi_thread")]
async fn what_git_makes_itself_stays_as_it_is() {
    for subreaper in [false, true] {
        let env = NestedGitEnv::new();
        let bench = env.bench(SandboxLevel::Workspace, subreaper);
        for command in [
            "git init -q lib",
            "git clone -q vendor clone",
            "git clone -q --bare vendor bare.git",
            "git worktree add -q wt",
            "git submodule status sub && git status",
            "git -C clone checkout -q -b work && git -C clone commit -q --allow-empty -m x",
            "git -C clone config user.name 'A # B'",
            "git -C clone remote add other https://host.example/x.git",
            "git -C vendor checkout -q -b other && git -C vendor branch -u master",
            "git -C wt commit -q --allow-empty -m x && git -C wt status",
            "git -C clone sparse-checkout set a && git -C clone status",
            "rm -rf lib wt bare.git",
            "mv clone moved && git -C moved status",
        ] {
            let answer = bench.call("bash", json!({ "command": command })).await.unwrap();
            assert!(answer.ok, "{command}: {}", answer.text);
            assert_eq!(answer.details.get("neutralised"), None, "{command}: {}", answer.text);
            assert_eq!(answer.details.get("mended"), None, "{command}: {}", answer.text);
        }
        let (ok, output) = env.user("work", "git -C moved config user.name; git status");
        assert!(ok && output.contains("A # B"), "{output}");
        assert_eq!(find_aside(&env.root.join("work")), Vec::<PathBuf>::new());
    }
}

/// Paths below a folder that were renamed to make them harmless.
fn find_aside(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().ends_with(".untamed") {
            found.push(entry.path());
        } else if entry.file_type().unwrap().is_dir() {
            found.extend(find_aside(&entry.path()));
        }
    }
    found
}

/// The user's own settings in a nested repository stay, also after a command changes the file.
#[tokio::test(flavor = "multi_thread")]
async fn the_users_own_settings_and_hooks_of_a_nested_repository_stay() {
    for subreaper in [false, true] {
        let env = NestedGitEnv::new();
        let (ok, output) =
            env.user("work/vendor", "git config core.pager less; git config alias.st '!true'");
        assert!(ok, "{output}");
        let bench = env.bench(SandboxLevel::Workspace, subreaper);
        let change = "cd vendor; git config user.name B; git config core.editor @EVIL; \
                      echo evil >> .git/hooks/commit-msg; cp @EVIL .git/hooks/post-commit";
        let args = json!({ "command": env.with_placeholders(change) });
        let answer = bench.call("bash", args).await.unwrap();
        let neutralised = answer.details["neutralised"].to_string();
        for name in ["config", "commit-msg", "post-commit"] {
            assert!(neutralised.contains(name), "{name}: {neutralised}");
        }
        assert!(
            answer.text.contains("git would run programs outside the sandbox"),
            "{}",
            answer.text
        );
        assert!(answer.details["notice"].as_str().unwrap().contains("*.untamed"));
        let config = fs::read_to_string(env.root.join("work/vendor/.git/config")).unwrap();
        for kept in ["pager = less", "st = !true", "name = B", "path = ../shared.cfg"] {
            assert!(config.contains(kept), "{kept}: {config}");
        }
        assert!(!config.contains("editor"), "{config}");
        let hooks = env.root.join("work/vendor/.git/hooks");
        assert_eq!(fs::read_to_string(hooks.join("commit-msg")).unwrap(), "#!/bin/sh\n");
        assert!(hooks.join("commit-msg").metadata().unwrap().permissions().mode() & 0o100 != 0);
        assert!(!hooks.join("post-commit").exists() && hooks.join("post-commit.untamed").exists());
        // Changes by the user between two commands stay.
        env.user(
            "work/vendor",
            "git config core.editor vi; cp .git/hooks/commit-msg .git/hooks/pre-push",
        );
        let answer = bench
            .call("bash", json!({"command": "git -C vendor config user.name C"}))
            .await
            .unwrap();
        assert_eq!(answer.details.get("neutralised"), None, "{}", answer.text);
        let config = fs::read_to_string(env.root.join("work/vendor/.git/config")).unwrap();
        assert!(config.contains("editor = vi") && config.contains("name = C"), "{config}");
        assert!(hooks.join("pre-push").exists());
    }
}
