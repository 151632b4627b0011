//! Common faults, planted one at a time: `pixir doctor` names each of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::support::leaks;
use super::support::test_env::PIXIR;

const KEY: (&str, &str) = ("OPENAI_API_KEY", "sk-planted-key");
const ID: &str = "20260721T101112-abcdef";

/// One planted fault and the finding that `pixir doctor` must report.
struct DoctorFault {
    name: &'static str,
    /// Breaks something in a sound environment.
    plant: fn(&DoctorEnv),
    /// Additional environment variables; an empty value removes one.
    variables: &'static [(&'static str, &'static str)],
    check: &'static str,
    kind: &'static str,
    /// A key, path or variable that the message or the details must name.
    names: &'static str,
    code: i32,
}

/// A home and a Workspace without faults.
struct DoctorEnv {
    folder: tempfile::TempDir,
}

impl DoctorEnv {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        for folder in [place.home(), place.work(".pixir/sessions"), place.work(".git")] {
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
        place.write_work(".git/HEAD", "ref: refs/heads/main\n");
        place.write_work(".pixir/.gitignore", "/sessions/\n");
        place.write_home("config.json", "{}");
        place.log("{\"id\":\"0000000000000000\",\"session_id\":\"x\",\"seq\":0,\"ts\":\"2026-07-21T10:11:12.000000Z\",\"type\":\"session_started\",\"data\":{}}\n");
        place
    }
    fn home(&self) -> PathBuf {
        self.folder.path().join("home/.pixir")
    }
    fn work(&self, name: &str) -> PathBuf {
        self.folder.path().join("work").join(name)
    }
    fn write_home(&self, name: &str, text: &str) {
        fs::write(self.home().join(name), text).unwrap();
        fs::set_permissions(self.home().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    fn write_work(&self, name: &str, text: &str) {
        fs::write(self.work(name), text).unwrap();
    }
    fn config(&self, settings: &Value) {
        self.write_home("config.json", &settings.to_string());
    }
    fn log(&self, text: &str) {
        self.write_work(&format!(".pixir/sessions/{ID}.ndjson"), text);
    }
    fn doctor(&self, variables: &[(&str, &str)]) -> (Option<i32>, Value) {
        let mut command = Command::new(PIXIR);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.folder.path().join("home"))
            .env("TERM", "xterm")
            .env(KEY.0, KEY.1)
            .current_dir(self.work(""))
            .args(["doctor", "--json", "--sandbox", "off"]);
        for (name, value) in variables {
            if value.is_empty() {
                command.env_remove(name);
            } else {
                command.env(name, value);
            }
        }
        let output = command.output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        leaks::check_stream(&out);
        (output.status.code(), serde_json::from_str(&out).expect(&out))
    }
}

fn aged(path: &Path) {
    let long_ago = SystemTime::now() - Duration::from_secs(100_000);
    fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
}

/// Checks that did not pass, except for the sandbox, which this test switches off.
fn findings(envelope: &Value) -> Vec<Value> {
    let checks = envelope["output"]["checks"].as_array().unwrap();
    let is_wrong = |check: &&Value| check["status"] != "passed" && check["id"] != "sandbox";
    checks.iter().filter(is_wrong).cloned().collect()
}

const NONE: &[(&str, &str)] = &[];

fn faults() -> Vec<DoctorFault> {
    let fault = |name, plant, check, kind, names, code| DoctorFault {
        name,
        plant,
        variables: NONE,
        check,
        kind,
        names,
        code,
    };
    let with = |variables, fault: DoctorFault| DoctorFault { variables, ..fault };
    vec![
        fault(
            "an unknown key",
            |p| p.config(&json!({"modle": "x"})),
            "config",
            "invalid_config",
            "did you mean `model`?",
            1,
        ),
        fault(
            "a key in the wrong group",
            |p| p.config(&json!({"bash": {"base_ms": 1}})),
            "config",
            "invalid_config",
            "retry.base_ms",
            1,
        ),
        fault(
            "a value of the wrong type",
            |p| p.config(&json!({"retry": {"base_ms": "soon"}})),
            "config",
            "invalid_config",
            "retry.base_ms",
            1,
        ),
        fault(
            "settings that contradict each other",
            |p| p.config(&json!({"bash": {"timeout_ms": 9, "max_timeout_ms": 8}})),
            "config",
            "invalid_config",
            "bash.timeout_ms",
            1,
        ),
        fault(
            "settings that are no JSON",
            |p| p.write_home("config.json", "{\"model\":"),
            "config",
            "invalid_config",
            "config.json",
            1,
        ),
        fault(
            "settings that are a folder",
            |p| {
                fs::remove_file(p.home().join("config.json")).unwrap();
                fs::create_dir(p.home().join("config.json")).unwrap();
            },
            "config",
            "invalid_config",
            "config.json",
            1,
        ),
        fault(
            "a key that is given twice",
            |p| p.write_home("config.json", r#"{"model":"a","model":"b"}"#),
            "config",
            "invalid_config",
            "model",
            1,
        ),
        fault(
            "a provider that nobody named",
            |p| p.config(&json!({"provider": "nowhere"})),
            "config",
            "invalid_config",
            "provider",
            1,
        ),
        with(
            &[("PIXIR_DURABILITY", "often")],
            fault(
                "a variable with a bad value",
                |_| {},
                "config",
                "invalid_config",
                "PIXIR_DURABILITY",
                1,
            ),
        ),
        with(
            &[("PIXIR_MODLE", "x")],
            fault(
                "a variable that nothing reads",
                |_| {},
                "environment",
                "invalid_config",
                "PIXIR_MODLE",
                0,
            ),
        ),
        with(
            &[("PATH", "/nowhere/at/all")],
            fault("a PATH without a folder", |_| {}, "environment", "command_failed", "PATH", 0),
        ),
        with(
            &[("LANG", "de_DE.ISO-8859-1")],
            fault(
                "a terminal of another alphabet",
                |_| {},
                "terminal",
                "invalid_config",
                "LANG",
                0,
            ),
        ),
        fault(
            "a Workspace that wants more than it may have",
            |p| p.write_work(".pixir/config.json", r#"{"provider":"evil"}"#),
            "config",
            "invalid_config",
            "provider",
            0,
        ),
        fault(
            "a Workspace whose settings are broken",
            |p| p.write_work(".pixir/config.json", "{"),
            "config",
            "invalid_config",
            ".pixir/config.json",
            0,
        ),
        fault(
            "MCP servers of a stranger",
            |p| p.write_work(".mcp.json", r#"{"mcpServers":{"x":{"command":"true"}}}"#),
            "config",
            "invalid_config",
            ".mcp.json",
            0,
        ),
        fault(
            "an MCP server that is not installed",
            |p| p.config(&json!({"mcp_servers": {"files": {"command": "no-such-program-here"}}})),
            "mcp",
            "mcp_server_failed",
            "no-such-program-here",
            0,
        ),
        fault(
            "a certificate that is not there",
            |p| p.config(&json!({"tls": {"extra_roots": ["/nowhere/root.pem"]}})),
            "setting",
            "invalid_config",
            "tls.extra_roots",
            1,
        ),
        fault(
            "a shell that is no program",
            |p| {
                p.write_work("notes.txt", "x");
                p.config(&json!({"bash": {"shell": p.work("notes.txt")}}));
            },
            "setting",
            "invalid_config",
            "bash.shell",
            1,
        ),
        fault(
            "an effort that the model does not know",
            |p| p.config(&json!({"effort": "heroic"})),
            "setting",
            "invalid_config",
            "effort",
            0,
        ),
        fault(
            "a limit of cost without a price",
            |p| p.config(&json!({"max_cost": 1})),
            "setting",
            "invalid_config",
            "max_cost",
            1,
        ),
        with(
            &[("OPENAI_API_KEY", "")],
            fault("nobody signed in", |_| {}, "credential", "not_authenticated", "", 1),
        ),
        with(
            &[("OPENAI_API_KEY", "")],
            fault(
                "tokens that cannot be read",
                |p| p.write_home("auth.json", "{"),
                "credential",
                "",
                "auth.json",
                1,
            ),
        ),
        with(
            &[("OPENAI_BASE_URL", "http://example.com/v1")],
            fault(
                "an endpoint without protection",
                |_| {},
                "credential",
                "insecure_transport",
                "OPENAI_BASE_URL",
                1,
            ),
        ),
        fault(
            "a home that others can look into",
            |p| fs::set_permissions(p.home(), fs::Permissions::from_mode(0o755)).unwrap(),
            "home",
            "unsafe_state_path",
            ".pixir",
            0,
        ),
        fault(
            "a home that others can write",
            |p| fs::set_permissions(p.home(), fs::Permissions::from_mode(0o777)).unwrap(),
            "home",
            "unsafe_state_path",
            ".pixir",
            1,
        ),
        fault(
            "a home that is a file",
            |p| {
                fs::remove_dir_all(p.home()).unwrap();
                fs::write(p.home(), "x").unwrap();
            },
            "home",
            "unsafe_state_path",
            ".pixir",
            1,
        ),
        fault(
            "a home that is a dangling link",
            |p| {
                fs::remove_dir_all(p.home()).unwrap();
                symlink("/nowhere/at/all", p.home()).unwrap();
            },
            "home",
            "unsafe_state_path",
            ".pixir",
            1,
        ),
        fault(
            "grants that cannot be understood",
            |p| p.write_home("permissions.json", "{"),
            "home",
            "invalid_config",
            "permissions.json",
            1,
        ),
        fault(
            "a broken list of Workspaces",
            |p| p.write_home("workspaces.json", "[1"),
            "home",
            "invalid_config",
            "workspaces.json",
            0,
        ),
        fault(
            "a draft in the home",
            |p| p.write_home(".config.0123456789abcdef", "x"),
            "leftovers",
            "unsafe_state_path",
            ".config.0123456789abcdef",
            0,
        ),
        fault(
            "state that is a file",
            |p| {
                fs::remove_dir_all(p.work(".pixir")).unwrap();
                fs::write(p.work(".pixir"), "x").unwrap();
            },
            "log_folder",
            "unsafe_state_path",
            ".pixir",
            0,
        ),
        fault(
            "Logs behind a link",
            |p| {
                fs::remove_dir_all(p.work(".pixir/sessions")).unwrap();
                symlink("/tmp", p.work(".pixir/sessions")).unwrap();
            },
            "log_folder",
            "unsafe_state_path",
            "sessions",
            0,
        ),
        fault(
            "Logs that others can look into",
            |p| {
                fs::set_permissions(p.work(".pixir/sessions"), fs::Permissions::from_mode(0o755))
                    .unwrap();
            },
            "log_folder",
            "unsafe_state_path",
            "sessions",
            0,
        ),
        fault("a torn Log", |p| p.log("{\"id\":\"0\",\"se"), "logs", "log_damaged", ID, 0),
        fault("an empty Log", |p| p.log(""), "logs", "log_damaged", ID, 0),
        fault(
            "an unfinished Turn",
            |p| {
                p.log("{\"id\":\"0\",\"session_id\":\"x\",\"seq\":0,\"ts\":\"x\",\"type\":\"user_message\",\"data\":{\"text\":\"x\"}}\n");
            },
            "logs",
            "log_damaged",
            ID,
            0,
        ),
        fault(
            "a Log that is a link",
            |p| {
                fs::remove_file(p.work(&format!(".pixir/sessions/{ID}.ndjson"))).unwrap();
                symlink("/etc/hostname", p.work(&format!(".pixir/sessions/{ID}.ndjson"))).unwrap();
            },
            "logs",
            "unsafe_state_path",
            ID,
            0,
        ),
        fault(
            "a fork that was cut",
            |p| {
                let left = p.work(&format!(".pixir/sessions/.fork-{ID}"));
                fs::create_dir(&left).unwrap();
                aged(&left);
            },
            "leftovers",
            "unsafe_state_path",
            ".fork-",
            0,
        ),
        fault(
            "a repository without a HEAD",
            |p| fs::remove_file(p.work(".git/HEAD")).unwrap(),
            "git",
            "not_found",
            ".git",
            0,
        ),
        fault(
            "a worktree whose repository is gone",
            |p| {
                fs::remove_dir_all(p.work(".git")).unwrap();
                p.write_work(".git", "gitdir: /nowhere/at/all\n");
            },
            "git",
            "not_found",
            ".git",
            0,
        ),
        fault(
            "Logs that git would commit",
            |p| fs::remove_file(p.work(".pixir/.gitignore")).unwrap(),
            "git",
            "invalid_config",
            ".gitignore",
            0,
        ),
        fault(
            "skills that are a file",
            |p| p.write_work(".pixir/skills", "x"),
            "folders",
            "read_failed",
            "skills",
            0,
        ),
        fault(
            "agents behind a dangling link",
            |p| symlink("/nowhere/at/all", p.home().join("agents")).unwrap(),
            "folders",
            "read_failed",
            "agents",
            0,
        ),
        fault(
            "instructions that are no text",
            |p| fs::write(p.work("AGENTS.md"), [0xff, 0xfe, 0x00, 0x01]).unwrap(),
            "instructions",
            "read_failed",
            "AGENTS.md",
            0,
        ),
    ]
}

#[test]
fn every_planted_fault_is_named_with_its_place_and_what_to_do() {
    let faults = faults();
    assert!(faults.len() >= 25, "{}", faults.len());
    let mut missed = Vec::new();
    std::thread::scope(|scope| {
        let (one, other) = faults.split_at(faults.len() / 2);
        let halves = [one, other].map(|half| {
            scope.spawn(move || half.iter().filter_map(examined).collect::<Vec<String>>())
        });
        for half in halves {
            missed.extend(half.join().unwrap());
        }
    });
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), faults.len(), missed.join("\n"));
}

/// The missing part of the report on a fault; `None` when it is complete.
fn examined(fault: &DoctorFault) -> Option<String> {
    let place = DoctorEnv::new();
    (fault.plant)(&place);
    let (code, envelope) = place.doctor(fault.variables);
    let found = findings(&envelope);
    let is_it = |check: &&Value| {
        let text = check.to_string();
        check["id"] == fault.check
            && text.contains(fault.names)
            && (fault.kind.is_empty() || check["kind"] == fault.kind)
            && check["kind"].is_string()
            && check["details"]["next_actions"].as_array().is_some_and(|next| !next.is_empty())
    };
    let is_named = found.iter().any(|check| is_it(&check));
    let is_right = is_named && code == Some(fault.code);
    (!is_right).then(|| format!("{}: {code:?} {found:?}", fault.name))
}

#[test]
fn a_place_that_is_well_has_none_of_them() {
    let place = DoctorEnv::new();
    let (code, envelope) = place.doctor(&[]);
    assert_eq!(findings(&envelope), Vec::<Value>::new());
    assert_eq!(code, Some(0));
}
