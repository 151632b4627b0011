//! Files of the Home that are links, pipes, folders, or another user's: no command hangs,
//! nothing outside changes, credentials are kept, and the error names the file.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pixir::scripted::Reply;
use serde_json::Value;

use super::child_workspaces::FamilyEnv;
use super::support::TestEnv;
use super::support::leaks;
use super::support::sign_in_env::{RunOutput, SignInEnv};
use super::support::test_env::PIXIR;

/// Time limit that no command reaches on a busy machine.
const DEADLINE: Duration = Duration::from_secs(90);

/// The owner of files that belong to another user.
const ANOTHER_USER: u32 = 4_242;

/// Kinds of planted files in the Home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HomePlant {
    Link,
    DanglingLink,
    LinkToDevice,
    Pipe,
    Folder,
    Socket,
    OtherOwner,
    HardLink,
}

const PLANTS: [HomePlant; 8] = [
    HomePlant::Link,
    HomePlant::DanglingLink,
    HomePlant::LinkToDevice,
    HomePlant::Pipe,
    HomePlant::Folder,
    HomePlant::Socket,
    HomePlant::OtherOwner,
    HomePlant::HardLink,
];

impl HomePlant {
    /// Plants this kind at `path`; `text` is the content of a usable file, and `outside` a folder that must
    /// not change afterwards.
    fn put(self, path: &Path, text: &str, outside: &Path) {
        let target = outside.join("target");
        match self {
            HomePlant::Link => {
                write_private(&target, text);
                symlink(&target, path).unwrap();
            }
            HomePlant::DanglingLink => symlink(outside.join("absent"), path).unwrap(),
            HomePlant::LinkToDevice => symlink("/dev/zero", path).unwrap(),
            HomePlant::Pipe => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
            }
            HomePlant::Folder => fs::create_dir(path).unwrap(),
            HomePlant::Socket => drop(UnixListener::bind(path).unwrap()),
            HomePlant::OtherOwner => {
                write_private(path, text);
                chown(path, Some(ANOTHER_USER), None).unwrap();
            }
            HomePlant::HardLink => {
                write_private(&target, text);
                fs::hard_link(&target, path).unwrap();
            }
        }
    }

    /// Whether a state file of this name is refused. A hard link is a regular file of this user:
    /// it is read, and replaced without a change to its other name. A lock would be shared with it.
    fn is_refused(self, name: &str) -> bool {
        self != HomePlant::HardLink || name.contains(".lock")
    }

    /// Whether the user who runs the tests can plant this kind: only root can give files to another user.
    fn is_possible(self) -> bool {
        self != HomePlant::OtherOwner || rustix::process::geteuid().is_root()
    }
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Names, modes and contents of all files below a folder.
fn contents(folder: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(inside) = waiting.pop() {
        for entry in fs::read_dir(&inside).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mut bytes = Vec::new();
            if metadata.is_dir() {
                waiting.push(path.clone());
            } else if metadata.is_file() {
                File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            }
            found.push((path, metadata.mode(), bytes));
        }
    }
    found.sort();
    found
}

/// Waits for a run; one that hangs fails the test.
pub fn wait_with_deadline(mut child: Child, what: &str) -> RunOutput {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > DEADLINE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{what} hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    RunOutput::from_output(child.wait_with_output().unwrap())
}

/// A Home with one planted file, a Workspace, and a folder that must stay as it is.
struct PlantedHomeEnv {
    folder: tempfile::TempDir,
    outside: tempfile::TempDir,
    is_signed_in: bool,
}

impl PlantedHomeEnv {
    fn new(is_signed_in: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        for name in ["home/.pixir", "work/.pixir"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let place = Self { folder, outside, is_signed_in };
        fs::set_permissions(place.home(""), fs::Permissions::from_mode(0o700)).unwrap();
        place
    }
    fn home(&self, name: &str) -> PathBuf {
        self.folder.path().join("home/.pixir").join(name)
    }
    fn run(&self, args: &[&str]) -> RunOutput {
        let mut command = Command::new(PIXIR);
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.folder.path().join("home"))
            .current_dir(self.folder.path().join("work"))
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        if !self.is_signed_in {
            command.env("OPENAI_API_KEY", "sk-planted-key");
        }
        let run = wait_with_deadline(command.spawn().unwrap(), &format!("pixir {args:?}"));
        leaks::check_stream(&format!("{}{}", run.out, run.err));
        run
    }
}

/// One file of the Home and a command that must read or write it.
struct HomeFile {
    name: &'static str,
    /// Content of a usable file.
    text: &'static str,
    args: &'static [&'static str],
    /// The file is a cache, so that the command works without it.
    is_cache: bool,
}

/// An approval store with one approval; `@WORK` stands for the project.
const APPROVALS: &str = r#"{"version":1,"entries":[{"id":"0123456789ab","project":"@WORK",
    "tool":"bash","summary":"run ls","digest":"0","granted_at":"2026-01-01T00:00:00Z"}]}"#;
const TOKENS: &str = r#"{"access_token":"a","refresh_token":"r","account_id":"acct","obtained_at":1,"expires_at":2}"#;

const ROWS: &[HomeFile] = &[
    HomeFile { name: "auth.json", text: TOKENS, args: &["login", "status"], is_cache: false },
    HomeFile { name: "auth.json", text: TOKENS, args: &["hello", "there"], is_cache: false },
    HomeFile { name: "permissions.json", text: APPROVALS, args: &["permissions"], is_cache: false },
    HomeFile {
        name: "permissions.json",
        text: APPROVALS,
        args: &["permissions", "forget", "--all"],
        is_cache: false,
    },
    HomeFile {
        name: "permissions.lock",
        text: "",
        args: &["permissions", "forget", "--all"],
        is_cache: false,
    },
    HomeFile { name: "workspaces.json", text: "{}", args: &["sessions", "--all"], is_cache: true },
    HomeFile { name: "models.json", text: "{}", args: &["models"], is_cache: true },
];

#[test]
fn a_planted_file_of_the_home_is_refused_by_name_and_nothing_outside_changes() {
    let mut wrong = Vec::new();
    for row in ROWS {
        for plant in PLANTS.into_iter().filter(|plant| plant.is_possible()) {
            let place = PlantedHomeEnv::new(row.name == "auth.json");
            let work = place.folder.path().canonicalize().unwrap().join("work");
            let text = row.text.replace("@WORK", work.to_str().unwrap());
            if row.name == "permissions.lock" {
                let approvals = APPROVALS.replace("@WORK", work.to_str().unwrap());
                write_private(&place.home("permissions.json"), &approvals);
            }
            plant.put(&place.home(row.name), &text, place.outside.path());
            let before = contents(place.outside.path());
            let run = place.run(&[row.args, &["--json"]].concat());
            let name = format!("{} as {plant:?} for {:?}", row.name, row.args);
            if contents(place.outside.path()) != before {
                wrong.push(format!("{name}: a file outside was changed"));
            }
            if row.is_cache {
                if run.code != Some(0) {
                    wrong.push(format!("{name}: {:?} {}", run.code, run.out));
                }
                continue;
            }
            if plant.is_refused(row.name) {
                wrong.extend(refusal_flaw(&run, row.name).map(|flaw| format!("{name}: {flaw}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The output of a command that refuses a file, if it is incomplete; `None` when it is complete.
fn refusal_flaw(run: &RunOutput, name: &str) -> Option<String> {
    let Ok(envelope) = serde_json::from_str::<Value>(&run.out) else {
        return Some(format!("no JSON: {:?} {} {}", run.code, run.out, run.err));
    };
    let error = &envelope["error"];
    let is_complete = run.code != Some(0)
        && error["kind"] == "unsafe_state_path"
        && error.to_string().contains(name)
        && error["details"]["next_actions"].as_array().is_some_and(|next| !next.is_empty());
    (!is_complete).then(|| format!("{:?} {}", run.code, run.out))
}

/// The plants that a command refuses under this name.
fn refused(name: &str) -> Vec<HomePlant> {
    let is_refused = |plant: &HomePlant| plant.is_possible() && plant.is_refused(name);
    let plants: Vec<HomePlant> = PLANTS.into_iter().filter(is_refused).collect();
    assert!(!plants.is_empty(), "nothing is refused as {name}");
    plants
}

#[test]
fn the_doctor_names_every_planted_file_and_waits_for_none() {
    let mut wrong = Vec::new();
    let names = ["permissions.json", "grants.json", "trust.json", "models.json", "workspaces.json"];
    for name in names.into_iter().chain(["auth.json"]) {
        for plant in refused(name) {
            let place = PlantedHomeEnv::new(true);
            plant.put(&place.home(name), "{}", place.outside.path());
            let run = place.run(&["doctor", "--json", "--sandbox", "off"]);
            let envelope: Value = serde_json::from_str(&run.out).expect(&run.out);
            let checks = envelope["output"]["checks"].as_array().unwrap();
            let is_named = |check: &Value| {
                check["status"] != "passed" && check.to_string().contains(&format!("/{name}"))
            };
            if !checks.iter().any(is_named) {
                wrong.push(format!("{name} as {plant:?}: {checks:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_settings_may_be_a_link_and_are_never_a_pipe() {
    for plant in [HomePlant::Pipe, HomePlant::Folder, HomePlant::Socket, HomePlant::LinkToDevice] {
        for args in [&["config", "set", "effort", "high"][..], &["config", "list"]] {
            let place = PlantedHomeEnv::new(false);
            plant.put(&place.home("config.json"), "{}", place.outside.path());
            let run = place.run(&[args, &["--json"]].concat());
            let envelope: Value = serde_json::from_str(&run.out).expect(&run.out);
            assert_eq!(envelope["error"]["kind"], "invalid_config", "{plant:?} {args:?}");
            assert!(run.out.contains("config.json"), "{}", run.out);
        }
    }
    for (plant, target) in [(HomePlant::Link, "target"), (HomePlant::DanglingLink, "absent")] {
        let place = PlantedHomeEnv::new(false);
        plant.put(&place.home("config.json"), "{}", place.outside.path());
        let _ = place.run(&["config", "set", "effort", "high"]).assert_exit_code(0);
        let written = fs::read_to_string(place.outside.path().join(target)).unwrap();
        assert!(written.contains("high"), "{written}");
        assert!(fs::symlink_metadata(place.home("config.json")).unwrap().is_symlink());
    }
}

#[test]
fn a_home_that_is_a_link_is_used_like_any_other() {
    let place = PlantedHomeEnv::new(false);
    let elsewhere = place.folder.path().join("elsewhere");
    fs::rename(place.home(""), &elsewhere).unwrap();
    symlink(&elsewhere, place.folder.path().join("home/.pixir")).unwrap();
    let _ = place.run(&["config", "set", "effort", "high"]).assert_exit_code(0);
    write_private(&elsewhere.join("permissions.json"), r#"{"version":1,"entries":[]}"#);
    let _ = place.run(&["permissions", "--all"]).assert_exit_code(2);
    let _ = place.run(&["permissions", "list", "--all"]).assert_exit_code(0);
    assert!(fs::read_to_string(elsewhere.join("config.json")).unwrap().contains("high"));
}

fn unsafe_kind(run: &RunOutput) -> bool {
    run.code != Some(0) && run.err.contains("Pixir does not use it for its state")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_spends_nothing_where_its_lock_is_planted() {
    for plant in refused("auth.lock") {
        let sign_in_env = SignInEnv::new().await;
        sign_in_env.sign_in(-10);
        let before = fs::read(sign_in_env.auth_file()).unwrap();
        let outside = tempfile::tempdir().unwrap();
        plant.put(&sign_in_env.auth_file().with_file_name("auth.lock"), "", outside.path());
        let there = contents(outside.path());
        let run = wait_with_deadline(
            sign_in_env.command(&["hello", "there"]).spawn().unwrap(),
            "a renewal",
        );
        assert!(unsafe_kind(&run), "{plant:?}: {:?} {}", run.code, run.err);
        assert!(run.err.contains("auth.lock"), "{plant:?}: {}", run.err);
        assert_eq!(sign_in_env.issuer.counts().refreshes, 0, "{plant:?}");
        assert_eq!(fs::read(sign_in_env.auth_file()).unwrap(), before, "{plant:?}");
        assert_eq!(contents(outside.path()), there, "{plant:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_that_could_not_be_stored_is_refused_before_the_browser_opens() {
    for name in ["auth.json", "auth.lock"] {
        for plant in refused(name) {
            let sign_in_env = SignInEnv::new().await;
            fs::create_dir_all(sign_in_env.auth_file().parent().unwrap()).unwrap();
            let outside = tempfile::tempdir().unwrap();
            plant.put(&sign_in_env.auth_file().with_file_name(name), TOKENS, outside.path());
            let there = contents(outside.path());
            let login = sign_in_env.command(&["login", "--device-code"]).spawn().unwrap();
            let run = wait_with_deadline(login, "a sign-in");
            assert!(unsafe_kind(&run), "{name} as {plant:?}: {:?} {}", run.code, run.err);
            assert_eq!(sign_in_env.issuer.counts().requests, 0, "{name} as {plant:?}");
            assert_eq!(contents(outside.path()), there, "{name} as {plant:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_out_removes_a_link_and_keeps_what_it_leads_to() {
    let sign_in_env = SignInEnv::new().await;
    fs::create_dir_all(sign_in_env.auth_file().parent().unwrap()).unwrap();
    let outside = tempfile::tempdir().unwrap();
    HomePlant::Link.put(&sign_in_env.auth_file(), TOKENS, outside.path());
    let there = contents(outside.path());
    let _ = sign_in_env.run(&["logout"]).assert_exit_code(0);
    assert!(fs::symlink_metadata(sign_in_env.auth_file()).is_err());
    assert_eq!(contents(outside.path()), there);
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_caches_cost_no_turn_and_change_nothing_outside() {
    for plant in PLANTS.into_iter().filter(|plant| plant.is_possible()) {
        let sign_in_env = SignInEnv::new().await;
        sign_in_env.sign_in(3600);
        let outside = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for (name, outside) in ["workspaces.json", "models.json"].into_iter().zip(&outside) {
            plant.put(&sign_in_env.auth_file().with_file_name(name), "{}", outside.path());
        }
        let there = outside.each_ref().map(|folder| contents(folder.path()));
        let run =
            wait_with_deadline(sign_in_env.command(&["hello", "there"]).spawn().unwrap(), "a Turn")
                .assert_exit_code(0);
        assert_eq!(run.out, "hello from the plan\n", "{plant:?}");
        let refresh = sign_in_env.command(&["models", "refresh"]).spawn().unwrap();
        drop(wait_with_deadline(refresh, "a list of models"));
        assert_eq!(outside.each_ref().map(|folder| contents(folder.path())), there, "{plant:?}");
    }
}

/// A plausible registration of a child Workspace, of a child without a Log.
fn registration(child: &str, folder: &Path) -> String {
    let raw = |path: &Path| serde_json::json!(path.to_str().unwrap());
    serde_json::json!({
        "child": child, "parent": "20260721T101112-abcdef", "mode": "isolated",
        "logs": raw(folder), "workspace": raw(folder), "folder": raw(folder),
    })
    .to_string()
}

#[test]
fn planted_registrations_are_ignored_and_remove_nothing() {
    const CHILD: &str = "20260721T101112-fedcba";
    for plant in refused("lease.json") {
        let place = PlantedHomeEnv::new(false);
        fs::create_dir(place.home("workspaces")).unwrap();
        let text = registration(CHILD, place.outside.path());
        let path = place.home("workspaces").join(format!("{CHILD}.json"));
        plant.put(&path, &text, place.outside.path());
        let there = contents(place.outside.path());
        let _ = place.run(&["gc", "--apply"]).assert_exit_code(0);
        assert_eq!(contents(place.outside.path()), there, "{plant:?}");
        assert!(fs::symlink_metadata(&path).is_ok(), "{plant:?}");
    }
    // The folder of registrations is a link to a folder that other users made.
    let place = PlantedHomeEnv::new(false);
    let child_folder = place.outside.path().join(CHILD);
    fs::create_dir(&child_folder).unwrap();
    write_private(&child_folder.join("work"), "theirs");
    write_private(
        &place.outside.path().join(format!("{CHILD}.json")),
        &registration(CHILD, &child_folder),
    );
    symlink(place.outside.path(), place.home("workspaces")).unwrap();
    let there = contents(place.outside.path());
    let _ = place.run(&["gc", "--apply"]).assert_exit_code(0);
    assert_eq!(contents(place.outside.path()), there);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_not_made_behind_a_link() {
    let family = FamilyEnv::with_replies([]).await;
    let outside = tempfile::tempdir().unwrap();
    let child_workspaces = family.env.home().join(".pixir/workspaces");
    symlink(outside.path(), &child_workspaces).unwrap();
    let workspace = family.env.workspace();
    let made =
        family.child_factory.create_child(&workspace, &family.parent, "sub_1", "isolated").await;
    let report = made.unwrap_err();
    assert!(report.message.contains("a symbolic link"), "{}", report.message);
    assert_eq!(contents(outside.path()), Vec::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_home_itself_is_no_workspace_also_when_it_is_named() {
    let env = TestEnv::with_replies([Reply::says("done")]).await;
    env.run_pixir(&["hello"]).assert_exit_code(0);
    let own = env.home().join(".pixir");
    fs::create_dir_all(own.join("skills")).unwrap();
    for folder in [own.clone(), own.join("skills")] {
        let ran = env.run_pixir(&["--cwd", folder.to_str().unwrap(), "hello"]).assert_exit_code(2);
        assert!(ran.err.contains("cannot be a Workspace"), "{}", ran.err);
    }
    assert!(!own.join("sessions").exists() && !own.join(".pixir").exists());
}
