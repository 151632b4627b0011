//! `pixir config`: the origin of settings, and changes that keep the rest of the file.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::support::leaks;
use super::support::sign_in_env::{RunOutput, run_command};
use super::support::test_env::PIXIR;

struct ConfigEnv {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl ConfigEnv {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home/.pixir", "work/.pixir"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        Self { folder, variables: Vec::new() }
    }
    fn file(&self) -> PathBuf {
        self.folder.path().join("home/.pixir/config.json")
    }
    fn user(self, text: &str) -> Self {
        fs::write(self.file(), text).unwrap();
        self
    }
    fn workspace(self, text: &str) -> Self {
        fs::write(self.folder.path().join("work/.pixir/config.json"), text).unwrap();
        self
    }
    fn run(&self, args: &[&str]) -> RunOutput {
        let run = run_command(
            Command::new(PIXIR)
                .arg("config")
                .args(args)
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap())
                .env("HOME", self.folder.path().join("home"))
                .envs(self.variables.iter().copied())
                .current_dir(self.folder.path().join("work")),
        );
        leaks::check_stream(&format!("{}{}", run.out, run.err));
        run
    }
    fn json(&self, args: &[&str]) -> Value {
        let run = self.run(&[args, &["--json"]].concat());
        serde_json::from_str(&run.out).expect(&run.out)
    }
    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }
}

#[test]
fn every_layer_is_named_as_the_origin_of_what_it_set() {
    let mut env = ConfigEnv::new()
        .user(r#"{"effort": "low", "model": "of-user", "retry": {"base_ms": 7}, "sandbox": "required"}"#)
        .workspace(r#"{"model": "of-workspace", "output_limit": 2048, "provider": "evil"}"#);
    env.variables = vec![("PIXIR_OUTPUT_LIMIT", "4096"), ("PIXIR_DURABILITY", "none")];
    let listed = env.json(&["list", "--durability", "x"]);
    assert_eq!(listed["ok"], false, "there is no such flag");
    let listed = env.json(&["list", "--max-iterations", "9"]);
    let of = |key: &str| -> (Value, String, String) {
        let settings = listed["output"]["settings"].as_array().unwrap();
        let found = settings.iter().find(|setting| setting["key"] == key).unwrap();
        let origin = &found["origin"];
        let place = ["file", "variable", "flag"].iter().find_map(|name| origin[name].as_str());
        let place = place.unwrap_or_default().rsplit('/').take(3).collect::<Vec<_>>();
        let place = place.into_iter().rev().collect::<Vec<_>>().join("/");
        (found["value"].clone(), origin["layer"].as_str().unwrap().to_owned(), place)
    };
    let set = |value: Value, layer: &str, place: &str| (value, layer.to_owned(), place.to_owned());
    assert_eq!(of("model"), set(json!("of-workspace"), "workspace", "work/.pixir/config.json"));
    assert_eq!(of("effort"), set(json!("low"), "user", "home/.pixir/config.json"));
    assert_eq!(of("retry.base_ms"), set(json!(7), "user", "home/.pixir/config.json"));
    assert_eq!(of("retry.cap_ms"), set(json!(8000), "default", ""));
    assert_eq!(of("output_limit"), set(json!(4096), "environment", "PIXIR_OUTPUT_LIMIT"));
    assert_eq!(of("max_iterations"), set(json!(9), "flag", "--max-iterations"));
    assert_eq!(of("sandbox.level"), set(json!("required"), "user", "home/.pixir/config.json"));
    assert_eq!(of("provider"), set(Value::Null, "default", ""), "the file is not trusted");
    let notices = listed["output"]["notices"].to_string();
    assert!(notices.contains("`provider` ignored"), "{notices}");
    let words = env.run(&["list", "--origin"]).out;
    assert!(
        words
            .lines()
            .any(|line| line.starts_with("retry.cap_ms") && line.ends_with("8000  (default)")),
        "{words}"
    );
    assert!(words.contains("(environment: PIXIR_DURABILITY)"), "{words}");
    assert_eq!(env.run(&["get", "effort"]).out, "low\n");
    assert_eq!(env.run(&["get", "sandbox"]).out, "required\n");
    assert_eq!(env.run(&["get", "bash.shell"]).out, "", "nothing is set");
}

#[test]
fn a_change_keeps_everything_else_in_the_file_and_its_order() {
    let env = ConfigEnv::new().user(
        r#"{"zeta": null, "model": "m", "retry": {"cap_ms": 9}, "prices": {"m": {"input": 1, "output": 2}}, "sandbox": "off"}"#,
    );
    fs::set_permissions(env.file(), fs::Permissions::from_mode(0o644)).unwrap();
    // The unknown key `zeta` was there before: it is reported and does not block the change.
    let run = env.run(&["set", "retry.base_ms", "5"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("still to be corrected") && run.err.contains("zeta"), "{}", run.err);
    env.run(&["set", "sandbox.network", "deny"]).assert_exit_code(0);
    env.run(&["set", "bash.env", "ONE,TWO"]).assert_exit_code(0);
    env.run(&["unset", "zeta"]).assert_exit_code(0);
    let value: Value = serde_json::from_str(&env.text()).unwrap();
    let expected = json!({
        "model": "m",
        "retry": {"cap_ms": 9, "base_ms": 5},
        "prices": {"m": {"input": 1, "output": 2}},
        "sandbox": {"level": "off", "network": "deny"},
        "bash": {"env": ["ONE", "TWO"]},
    });
    assert_eq!(value.to_string(), expected.to_string(), "the order is kept");
    let mode = fs::metadata(env.file()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let refused = env.run(&["unset", "retry.base_ms"]).assert_exit_code(2);
    assert!(refused.err.contains("must not be larger than retry.cap_ms"), "{}", refused.err);
    env.run(&["unset", "retry.cap_ms"]).assert_exit_code(0);
    env.run(&["unset", "retry.base_ms"]).assert_exit_code(0);
    env.run(&["set", "sandbox", "workspace"]).assert_exit_code(0);
    let value: Value = serde_json::from_str(&env.text()).unwrap();
    assert_eq!((value.get("retry"), &value["sandbox"]["level"]), (None, &json!("workspace")));
    let left: Vec<_> = fs::read_dir(env.file().parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file is left: {left:?}");
}

#[test]
fn what_does_not_fit_is_refused_with_what_would_and_changes_nothing() {
    let before = r#"{"model":"m","bash":{"timeout_ms":1000}}"#;
    let env = ConfigEnv::new().user(before);
    for (args, code, words) in [
        (vec!["set", "modle", "x"], 2, "did you mean `model`?"),
        (vec!["set", "base_ms", "5"], 2, "did you mean `retry.base_ms`?"),
        (vec!["get", "durabilty"], 2, "did you mean `durability`?"),
        (vec!["unset", "efort"], 2, "did you mean `effort`?"),
        (
            vec!["set", "retry.max_attempts", "many"],
            2,
            "must be a whole number from 1 to 100, not \"many\"",
        ),
        (vec!["set", "retry.max_attempts", "-1"], 2, "must be a whole number from 1 to 100"),
        (vec!["set", "durability", "always"], 2, "must be \"turn\", \"event\" or \"none\""),
        (vec!["set", "undo.enabled", "yes"], 2, "must be true or false"),
        (
            vec!["set", "sandbox.write", "relative"],
            2,
            "must be a list of paths that begin with / or ~/",
        ),
        (vec!["set", "sandbox.write", "[\"/ok\", "], 2, "must be a list of paths"),
        (vec!["set", "mcp_servers", "{"], 2, "mcp_servers"),
        (vec!["set", "model", "two words"], 2, "must be one word"),
        (vec!["set", "bash.max_timeout_ms", "10"], 2, "bash.timeout_ms"),
        (vec!["set", "provider", "nowhere"], 2, "names no server"),
        (vec!["set", "retry", "5"], 2, "is not a setting"),
        (vec!["set", "model"], 2, "VALUE"),
        (vec!["frobnicate"], 2, "frobnicate"),
    ] {
        let run = env.run(&args);
        assert_eq!(run.code, Some(code), "{args:?}: {}", run.err);
        assert!(run.err.contains(words), "{args:?}: {}", run.err);
        assert_eq!((run.out.as_str(), env.text().as_str()), ("", before), "{args:?}");
        assert!(!run.err.contains("remove"), "the file is not blamed: {}", run.err);
    }
}

#[test]
fn a_file_that_cannot_be_understood_is_left_alone() {
    for text in ["{", "[]", "\"x\"", "{\"model\":\"a\",\"model\":\"b\"}", "\0\0"] {
        let env = ConfigEnv::new().user(text);
        for args in [&["set", "effort", "low"][..], &["unset", "model"][..]] {
            let run = env.run(args);
            assert_eq!(run.code, Some(2), "{text}: {}", run.err);
            assert_eq!(env.text(), text);
        }
        assert_eq!(env.run(&["path"]).code, Some(0), "the path can always be printed");
    }
    let env = ConfigEnv::new();
    fs::create_dir(env.file()).unwrap();
    let envelope = env.json(&["set", "effort", "low"]);
    assert_eq!(envelope["error"]["kind"], "invalid_config", "{envelope}");
    let env = ConfigEnv::new();
    fs::write(env.file(), [b'{', b'"', 0xff, b'"', b':', b'1', b'}']).unwrap();
    assert_eq!(env.run(&["set", "effort", "low"]).code, Some(2));
}

#[test]
fn a_link_stays_a_link_and_a_home_that_is_not_there_is_made() {
    let env = ConfigEnv::new();
    let elsewhere = env.folder.path().join("dotfiles.json");
    fs::write(&elsewhere, "{}").unwrap();
    symlink(&elsewhere, env.file()).unwrap();
    assert_eq!(env.run(&["set", "effort", "high"]).code, Some(0));
    assert!(fs::symlink_metadata(env.file()).unwrap().file_type().is_symlink());
    assert!(fs::read_to_string(elsewhere).unwrap().contains("high"));
    let mut env = ConfigEnv::new();
    let made = env.folder.path().join("made/here");
    let made: &'static str = Box::leak(made.to_str().unwrap().to_owned().into_boxed_str());
    env.variables.push(("PIXIR_HOME", made));
    assert_eq!(env.run(&["set", "effort", "high"]).code, Some(0));
    let bits = fs::metadata(made).unwrap().permissions().mode() & 0o777;
    assert_eq!(bits, 0o700);
    assert!(Path::new(made).join("config.json").is_file());
}

#[test]
fn a_link_that_leads_nowhere_yet_is_written_through_or_refused() {
    let env = ConfigEnv::new();
    let folder = env.folder.path().join("dotfiles");
    fs::create_dir(&folder).unwrap();
    // A chain of two links, the second relative, as dotfile managers make it.
    symlink("pixir.json", folder.join("link.json")).unwrap();
    symlink(folder.join("link.json"), env.file()).unwrap();
    assert_eq!(env.run(&["set", "effort", "high"]).code, Some(0));
    for link in [env.file(), folder.join("link.json")] {
        assert!(fs::symlink_metadata(link).unwrap().file_type().is_symlink());
    }
    assert!(fs::read_to_string(folder.join("pixir.json")).unwrap().contains("high"));

    for target in ["no/such/folder/config.json", "config.json"] {
        let env = ConfigEnv::new();
        symlink(target, env.file()).unwrap();
        let refused = env.run(&["set", "effort", "high"]);
        assert!(refused.code.is_some_and(|code| code != 0), "{target}");
        assert_eq!(fs::read_link(env.file()).unwrap(), Path::new(target), "the link is as it was");
    }
}

#[test]
fn many_who_set_at_once_lose_nothing() {
    let env = ConfigEnv::new();
    let pairs = [
        ("effort", "low"),
        ("model", "m"),
        ("retry.base_ms", "3"),
        ("retry.cap_ms", "3000"),
        ("bash.drain_ms", "4"),
        ("stream.idle_ms", "5000"),
        ("grace.turn_ms", "6"),
        ("output_limit", "2000"),
    ];
    std::thread::scope(|scope| {
        for (key, value) in pairs {
            let env = &env;
            scope.spawn(move || assert_eq!(env.run(&["set", key, value]).code, Some(0)));
        }
    });
    for (key, value) in pairs {
        assert_eq!(env.run(&["get", key]).out, format!("{value}\n"), "{key}");
    }
}

#[test]
fn secrets_of_servers_are_never_shown() {
    let env = ConfigEnv::new().user(
        r#"{"mcp_servers": {"files": {"command": "x", "args": ["--token", "tok-very-secret-1"], "env": {"A_KEY": "tok-very-secret-2"}}},
            "providers": {"p": {"base_url": "https://me:tok-very-secret-3@host/v1?key=tok-very-secret-4"}}}"#,
    );
    for args in [&["list"][..], &["list", "--json"], &["get", "mcp_servers"], &["get", "providers"]]
    {
        let run = env.run(args);
        assert!(!format!("{}{}", run.out, run.err).contains("tok-very-secret"), "{}", run.out);
    }
    assert_eq!(env.run(&["get", "mcp_servers"]).out, "[\"files\"]\n");
    assert!(env.run(&["get", "providers"]).out.contains("https://host/v1\""));
}
