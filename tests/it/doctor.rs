//! `pixir doctor`: its checks and its report.

use std::path::Path;
use std::process::Command;

use pixir::scripted::{ModelScript, ScriptedIssuer, ScriptedServer};
use serde_json::Value;

use super::support::leaks;
use super::support::test_env::PIXIR;

fn doctor(home: &Path, args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, Value, String) {
    let work = home.join("work");
    std::fs::create_dir_all(&work).unwrap();
    let output = Command::new(PIXIR)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home)
        .envs(variables.iter().copied())
        .current_dir(work)
        .args(["doctor", "--json"])
        .args(args)
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    leaks::check_stream(&format!("{out}{err}"));
    leaks::check_folder(home, &leaks::planted_secrets(), &[]);
    let envelope: Value = serde_json::from_str(&out).unwrap();
    (output.status.code(), envelope, err)
}

fn status<'a>(envelope: &'a Value, id: &str) -> &'a str {
    let checks = envelope["output"]["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["id"] == id);
    found.unwrap_or_else(|| panic!("no {id} in {envelope}"))["status"].as_str().unwrap()
}

#[test]
fn a_machine_that_is_well() {
    let folder = tempfile::tempdir().unwrap();
    let (code, envelope, _) = doctor(folder.path(), &[], &[("OPENAI_API_KEY", "sk-planted-key")]);
    assert_eq!((code, &envelope["ok"]), (Some(0), &Value::Bool(true)), "{envelope}");
    for id in ["runtime", "workspace", "config", "credential", "log_folder", "containment"] {
        assert_eq!(status(&envelope, id), "passed", "{id}");
    }
    assert!(["passed", "warning"].contains(&status(&envelope, "sandbox")), "{envelope}");
    assert!(!folder.path().join("work/.pixir").exists(), "the check changes nothing");
    assert!(!folder.path().join(".pixir").exists(), "the check changes nothing");
}

#[test]
fn the_containment_of_commands_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let key = [("OPENAI_API_KEY", "sk-planted-key")];
    let (code, envelope, _) = doctor(folder.path(), &["--sandbox", "off"], &key);
    assert_eq!((code, status(&envelope, "sandbox")), (Some(0), "warning"), "{envelope}");
    let (code, envelope, _) = doctor(folder.path(), &["--sandbox", "required"], &key);
    let is_full = status(&envelope, "sandbox") == "passed";
    assert_eq!(code, Some(i32::from(!is_full)), "{envelope}");
}

#[test]
fn what_is_wrong_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(".pixir")).unwrap();
    std::fs::write(folder.path().join(".pixir/config.json"), "{\"modle\":1}").unwrap();
    std::fs::write(folder.path().join(".pixir/auth.json"), "{").unwrap();
    std::fs::create_dir_all(folder.path().join("work")).unwrap();
    std::fs::write(folder.path().join("work/.pixir"), "not a folder").unwrap();
    let (code, envelope, _) = doctor(folder.path(), &[], &[]);
    assert_eq!((code, &envelope["status"]), (Some(1), &Value::from("error")));
    for id in ["config", "credential"] {
        assert_eq!(status(&envelope, id), "failed", "{id}: {envelope}");
    }
    // Sessions are kept in the Home in this case.
    assert_eq!(status(&envelope, "log_folder"), "warning", "{envelope}");
    for check in envelope["output"]["checks"].as_array().unwrap() {
        let says_how = check["details"]["next_actions"].is_array();
        assert!(check["status"] != "failed" || says_how, "{check}");
    }
}

#[test]
fn a_server_that_needs_no_key_is_reported_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")];
    let (_, envelope, _) = doctor(folder.path(), &[], &variables);
    let checks = envelope["output"]["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["id"] == "credential").unwrap();
    assert_eq!(check["message"], "none, this server needs no key", "{check}");
}

#[tokio::test(flavor = "multi_thread")]
async fn online_means_that_the_server_answers() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = ScriptedIssuer::start().await.unwrap();
    let server = ScriptedServer::start(ModelScript::new([])).await.unwrap();
    let base_url = server.base_url();
    let issuer_url = issuer.base_url();
    let variables =
        [("OPENAI_BASE_URL", base_url.as_str()), ("PIXIR_AUTH_ISSUER", issuer_url.as_str())];
    let (code, envelope, _) = doctor(folder.path(), &["--online"], &variables);
    assert_eq!(code, Some(0), "{envelope}");
    assert_eq!(status(&envelope, "endpoint"), "passed");
    assert!(!envelope.to_string().contains("issuer"), "no sign-in is used there: {envelope}");
    assert_eq!(server.requests().len(), 0, "no request was sent");
    // Without a server and a key, a sign-in is missing.
    let (code, envelope, _) = doctor(folder.path(), &["--online"], &variables[1..]);
    assert_eq!((code, status(&envelope, "issuer")), (Some(1), "passed"), "{envelope}");
    drop((server, issuer));
    let (code, envelope, _) = doctor(folder.path(), &["--online"], &variables);
    assert_eq!((code, status(&envelope, "endpoint")), (Some(1), "failed"));
    let (_, envelope, _) = doctor(folder.path(), &["--online"], &variables[1..]);
    assert_eq!(status(&envelope, "issuer"), "failed");
}
