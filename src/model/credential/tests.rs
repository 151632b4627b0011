//! Tests of the choice of a credential, and of the keyring against the scripted issuer.

use std::time::Duration;

use serde_json::{Value, json};
use url::Url;

use super::*;
use crate::base::error::{Explain, Kind};
use crate::base::paths::Home;
use crate::host::http::HttpSettings;
use crate::testing::scripted;
use crate::testing::scripted::{IssuerEndpoint, IssuerFault};

fn from(pairs: &[(&str, &str)]) -> Result<Credential, CredentialError> {
    Credential::from_environment(|name| {
        pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

#[track_caller]
fn check_refused(pairs: &[(&str, &str)], kind: Kind) {
    assert_eq!(from(pairs).unwrap_err().kind(), kind, "{pairs:?}");
}

/// Whether the endpoint is reached without a proxy.
fn is_loopback(credential: &Credential) -> bool {
    let url = Url::parse(credential.base_url()).unwrap();
    crate::host::http::is_loopback(&url.host().unwrap())
}

#[test]
fn a_key_goes_to_its_own_endpoint_by_default() {
    let credential = from(&[("OPENAI_API_KEY", "sk-1"), ("OPENAI_PROJECT", "p")]).unwrap();
    assert_eq!(credential.base_url(), "https://api.openai.com/v1");
    assert_eq!(credential.project.as_deref(), Some("p"));
    assert!(!is_loopback(&credential));
}

#[test]
fn without_a_key_the_next_actions_name_three_ways_on() {
    for pairs in [&[][..], &[("OPENAI_API_KEY", "  ")]] {
        let error = from(pairs).unwrap_err();
        assert_eq!(error.kind(), Kind::NotAuthenticated);
        let actions = error.next_actions().join("\n");
        for word in ["pixir login", "OPENAI_API_KEY", "pixir demo"] {
            assert!(actions.contains(word), "{word}");
        }
    }
}

#[test]
fn a_local_server_needs_no_key() {
    for url in [
        "http://127.0.0.1:1/v1/",
        "http://localhost:11434/v1",
        "http://[::1]:8080",
        "http://127.9.9.9",
    ] {
        let credential = from(&[("OPENAI_BASE_URL", url)]).unwrap();
        assert!(is_loopback(&credential) && credential.key().is_none(), "{url}");
        assert!(!credential.base_url().ends_with('/'));
    }
}

#[test]
fn a_key_never_travels_in_clear_text() {
    for url in [
        "http://example.org/v1",
        "http://10.0.0.1/v1",
        "http://localhost.evil.org",
        "http://128.0.0.1",
    ] {
        check_refused(
            &[("OPENAI_API_KEY", "sk"), ("OPENAI_BASE_URL", url)],
            Kind::InsecureTransport,
        );
    }
}

/// Where plain http is accepted, by host, with and without a key. Nothing is sent to any of them.
#[test]
fn plain_http_is_a_table() {
    const KEY: (&str, &str) = ("OPENAI_API_KEY", "sk");
    for (host, with_key, without_key) in [
        ("127.0.0.1", true, true),
        ("[::ffff:127.0.0.1]", true, true),
        ("10.0.0.7:8000", false, true),
        ("172.16.0.1", false, true),
        ("172.31.255.255", false, true),
        ("192.168.1.20:11434", false, true),
        ("169.254.1.1", false, true),
        ("[fd00::1]:8080", false, true),
        ("[fe80::1]", false, true),
        ("[::ffff:192.168.1.20]", false, true),
        ("172.15.0.1", false, false),
        ("172.32.0.1", false, false),
        ("100.64.0.1", false, false),
        ("192.169.1.1", false, false),
        ("8.8.8.8", false, false),
        ("0.0.0.0", false, false),
        ("[2001:db8::1]", false, false),
        ("gpu-server:8000", false, false),
        ("192.168.1.20.evil.example", false, false),
    ] {
        let url = format!("http://{host}/v1");
        let named = ("OPENAI_BASE_URL", url.as_str());
        assert_eq!(from(&[KEY, named]).is_ok(), with_key, "with a key: {url}");
        assert_eq!(from(&[named]).is_ok(), without_key, "without a key: {url}");
        // Servers on other machines may be behind a proxy, and never receive tokens.
        if let Ok(credential) = from(&[named]) {
            assert_eq!(is_loopback(&credential), host.contains("127."), "{url}");
        }
    }
    assert!(from(&[("OPENAI_BASE_URL", "https://192.168.1.20/v1")]).is_ok());
    let refused = from(&[KEY, ("OPENAI_BASE_URL", "http://10.0.0.7/v1")]).unwrap_err();
    assert!(refused.next_actions()[0].contains("leave out the key"), "{refused:?}");
    let refused = from(&[("OPENAI_BASE_URL", "http://gpu-server/v1")]).unwrap_err();
    assert!(refused.next_actions()[1].contains("IP address"), "{refused:?}");
}

#[test]
fn odd_endpoints_are_refused() {
    for url in ["ftp://x/v1", "https://u:p@x/v1", "https://x/v1?a=b", "https://x/v1#f", "nonsense"]
    {
        check_refused(&[("OPENAI_API_KEY", "sk"), ("OPENAI_BASE_URL", url)], Kind::InvalidConfig);
    }
    check_refused(&[("OPENAI_BASE_URL", "https://example.org/v1")], Kind::NotAuthenticated);
}

#[test]
fn a_key_with_control_characters_is_refused_without_being_shown() {
    for key in ["sk-secret\n", "sk-secret\r\nx: y", "sk secret", "sk-secret\u{7f}", "sk-sécret"] {
        let error = from(&[("OPENAI_API_KEY", key)]).unwrap_err();
        assert!(matches!(error, CredentialError::NotHeaderText("OPENAI_API_KEY")), "{key:?}");
        assert!(!error.to_string().contains("secret"));
    }
}

#[test]
fn debug_output_hides_the_key() {
    let credential = from(&[("OPENAI_API_KEY", "sk-secret")]).unwrap();
    assert!(!format!("{credential:?}").contains("sk-secret"));
}

/// A home folder and a scripted issuer of one test.
struct CredentialTestEnv {
    folder: tempfile::TempDir,
    issuer: scripted::ScriptedIssuer,
}

impl CredentialTestEnv {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, issuer: scripted::ScriptedIssuer::start().await.unwrap() }
    }

    fn home(&self) -> Home {
        Home::new(self.folder.path().join("home"))
    }

    fn store(&self, auth: &Value) {
        std::fs::create_dir_all(self.home().path()).unwrap();
        std::fs::write(self.home().auth(), auth.to_string()).unwrap();
    }

    fn sign_in(&self, seconds: i64) {
        self.store(&self.issuer.sign_in(seconds));
    }

    fn stored(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.home().auth()).unwrap()).unwrap()
    }

    fn lookup(&self) -> impl Fn(&str) -> Option<String> + '_ {
        |name| match name {
            "PIXIR_AUTH_ISSUER" => Some(self.issuer.base_url()),
            "PIXIR_CHATGPT_BASE_URL" => Some("http://127.0.0.1:1/codex".to_owned()),
            _ => None,
        }
    }

    fn credential(&self) -> Credential {
        let circumstances = CredentialInputs {
            home: &self.home(),
            lookup: &self.lookup(),
            wanted: None,
            http: &HttpSettings::default(),
        };
        choose_credential(&circumstances).unwrap().credential
    }
}

fn bearer(authorization: &Authorization) -> String {
    authorization.bearer.as_ref().unwrap().expose_secret().to_owned()
}

#[tokio::test]
async fn the_choice_of_credential_is_a_table() {
    let test_env = CredentialTestEnv::new().await;
    let chatgpt = Some(CredentialKind::ChatGpt);
    let api_key = Some(CredentialKind::ApiKey);
    let url = "http://127.0.0.1:9/v1";
    // Requested kind, is stored, OPENAI_API_KEY, OPENAI_BASE_URL; expected credential or error.
    let table = [
        (None, false, None, None, "not_authenticated"),
        (None, false, Some("sk-1"), None, "api-key"),
        (None, true, None, None, "chatgpt"),
        (None, true, Some("sk-1"), None, "chatgpt"),
        (None, true, Some("sk-1"), Some(url), "api-key"),
        (None, true, None, Some(url), "api-key"),
        (None, true, None, Some("https://example.org/v1"), "not_authenticated"),
        (api_key, true, Some("sk-1"), None, "api-key"),
        (api_key, true, None, None, "not_authenticated"),
        (chatgpt, true, Some("sk-1"), None, "chatgpt"),
        (chatgpt, false, Some("sk-1"), None, "not_authenticated"),
        (chatgpt, true, Some("sk-1"), Some(url), "invalid_config"),
        (api_key, false, Some("sk-1"), Some(url), "api-key"),
    ];
    for (wanted, is_stored, key, base_url, expected) in table {
        if is_stored {
            test_env.sign_in(3600);
        } else {
            std::fs::remove_file(test_env.home().auth()).ok();
        }
        let lookup = |name: &str| match name {
            "OPENAI_API_KEY" => key.map(str::to_owned),
            "OPENAI_BASE_URL" => base_url.map(str::to_owned),
            _ => test_env.lookup()(name),
        };
        let found = match choose_credential(&CredentialInputs {
            home: &test_env.home(),
            lookup: &lookup,
            wanted,
            http: &HttpSettings::default(),
        }) {
            Ok(chosen) => chosen.credential.kind().name(),
            Err(error) => error.kind().name(),
        };
        assert_eq!(found, expected, "{wanted:?} {is_stored} {key:?} {base_url:?}");
    }
}

#[tokio::test]
async fn a_damaged_sign_in_is_reported_and_no_other_credential_is_used() {
    let test_env = CredentialTestEnv::new().await;
    test_env.store(&json!("damaged"));
    let lookup = |name: &str| (name == "OPENAI_API_KEY").then(|| "sk-1".to_owned());
    let asked = |wanted| {
        choose_credential(&CredentialInputs {
            home: &test_env.home(),
            lookup: &lookup,
            wanted,
            http: &HttpSettings::default(),
        })
    };
    assert!(matches!(asked(None), Err(CredentialError::Damaged { .. })));
    assert!(asked(Some(CredentialKind::ApiKey)).is_ok());
}

#[tokio::test]
async fn tokens_go_to_their_own_endpoint_or_to_this_machine() {
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(3600);
    let asked = |url: &str| {
        let lookup = |name: &str| (name == "PIXIR_CHATGPT_BASE_URL").then(|| url.to_owned());
        let home = test_env.home();
        choose_credential(&CredentialInputs {
            home: &home,
            lookup: &lookup,
            wanted: None,
            http: &HttpSettings::default(),
        })
        .map(|chosen| chosen.credential.base_url().to_owned())
    };
    assert_eq!(asked("").unwrap(), "https://chatgpt.com/backend-api/codex");
    assert_eq!(asked("http://127.0.0.1:1/x/").unwrap(), "http://127.0.0.1:1/x");
    for url in ["https://example.org", "http://example.org", "https://chatgpt.com.evil.org"] {
        assert!(matches!(asked(url), Err(CredentialError::Endpoint { .. })), "{url}");
    }
}

#[tokio::test]
async fn the_headers_of_each_route() {
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(3600);
    let names = |headers: &HeaderMap| {
        let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
        names.sort();
        names.join(" ")
    };
    let credential = test_env.credential();
    let authorization = credential.authorize().await.unwrap();
    let headers = credential.headers(&authorization, &"s".repeat(90)).unwrap();
    assert_eq!(
        names(&headers),
        "authorization chatgpt-account-id originator session-id user-agent x-client-request-id"
    );
    assert_eq!(headers["originator"], "pixir");
    assert_eq!(headers["session-id"].len(), 64);
    assert!(headers["user-agent"].to_str().unwrap().starts_with("pixir/"));
    assert!(
        !format!("{headers:?} {authorization:?} {credential:?}").contains(&bearer(&authorization))
    );
    assert_eq!(credential.policy(), FieldPolicy::ChatGpt);

    let credential = Credential::new(Some("sk-1"), "http://127.0.0.1:1").unwrap();
    let authorization = credential.authorize().await.unwrap();
    let headers = credential.headers(&authorization, "s").unwrap();
    assert_eq!(names(&headers), "authorization user-agent");
}

#[tokio::test]
async fn a_token_that_ends_soon_is_renewed_once_for_all_and_stored_first() {
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(100);
    test_env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Slow(Duration::from_millis(100)));
    let before = test_env.stored();
    let credential = test_env.credential();
    let secrets = Arc::new(Secrets::default());
    credential.register_secrets(&secrets);
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let credential = credential.clone();
            tokio::spawn(async move { bearer(&credential.authorize().await.unwrap()) })
        })
        .collect();
    let mut found = Vec::new();
    for task in tasks {
        found.push(task.await.unwrap());
    }
    found.dedup();
    let after = test_env.stored();
    assert_eq!(found, [after["access_token"].as_str().unwrap()]);
    assert_ne!(before["refresh_token"], after["refresh_token"]);
    assert_eq!((test_env.issuer.counts().refreshes, test_env.issuer.counts().reuses), (1, 0));
    for token in ["access_token", "refresh_token"] {
        let cleaned = secrets.redact(after[token].as_str().unwrap()).into_owned();
        assert!(cleaned.starts_with("[redacted:"), "{token}");
    }
}

#[tokio::test]
async fn a_failed_early_renewal_does_no_harm_and_a_late_one_says_why() {
    for (fault, kind, is_final) in [
        (IssuerFault::Answer(503, "busy".into()), Kind::Network, false),
        (IssuerFault::Answer(200, "<html>".into()), Kind::Network, false),
        (IssuerFault::Answer(200, "{}".into()), Kind::Network, false),
        (IssuerFault::code(400, "something_else"), Kind::Network, false),
        (IssuerFault::code(400, "invalid_grant"), Kind::AuthRefused, true),
        (IssuerFault::code(403, "refresh_token_expired"), Kind::AuthRefused, true),
        (IssuerFault::Answer(401, String::new()), Kind::AuthRefused, true),
    ] {
        let test_env = CredentialTestEnv::new().await;
        test_env.sign_in(100);
        let before = test_env.stored();
        test_env.issuer.fail(IssuerEndpoint::Refresh, fault.clone());
        let authorization = test_env.credential().authorize().await.unwrap();
        assert_eq!(bearer(&authorization), before["access_token"], "{fault:?}");

        test_env.sign_in(-10);
        let before = test_env.stored();
        test_env.issuer.fail(IssuerEndpoint::Refresh, fault.clone());
        let credential = test_env.credential();
        let error = credential.authorize().await.unwrap_err();
        assert_eq!((error.kind(), error.is_passing()), (kind, !is_final), "{fault:?}");
        assert_eq!(test_env.stored(), before, "nothing is thrown away");
        let asked = test_env.issuer.counts().requests;
        let again = credential.authorize().await;
        let more = test_env.issuer.counts().requests - asked;
        assert_eq!((again.is_err(), more), (is_final, usize::from(!is_final)), "{fault:?}");
    }
}

#[tokio::test]
async fn after_a_new_sign_in_a_dead_token_is_forgotten() {
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(-10);
    test_env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::code(401, "refresh_token_expired"));
    let credential = test_env.credential();
    credential.authorize().await.unwrap_err();
    test_env.sign_in(3600);
    assert_eq!(bearer(&credential.authorize().await.unwrap()), test_env.stored()["access_token"]);
}

#[tokio::test]
async fn a_refused_token_is_helped_twice_and_no_more() {
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(3600);
    let credential = test_env.credential();
    let first = credential.authorize().await.unwrap();
    // Another process has renewed in the meantime.
    test_env.sign_in(3600);
    let mut recovery = AuthRecovery::default();
    let second = credential.recover(&first, &mut recovery).await.unwrap().unwrap();
    assert_eq!(
        (bearer(&second), test_env.issuer.counts().refreshes),
        (test_env.stored()["access_token"].as_str().unwrap().to_owned(), 0)
    );
    let third = credential.recover(&second, &mut recovery).await.unwrap().unwrap();
    assert_eq!(test_env.issuer.counts().refreshes, 1);
    assert_ne!(bearer(&second), bearer(&third));
    assert!(credential.recover(&third, &mut recovery).await.unwrap().is_none());
    let key = Credential::new(Some("sk-1"), "http://127.0.0.1:1").unwrap();
    let failed = key.authorize().await.unwrap();
    assert!(key.recover(&failed, &mut AuthRecovery::default()).await.unwrap().is_none());
}

#[tokio::test]
async fn another_account_or_none_ends_the_run_not_the_sign_in() {
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(-10);
    let credential = test_env.credential();
    test_env.issuer.switch_account("somebody-else");
    test_env.sign_in(3600);
    let error = credential.authorize().await.unwrap_err();
    assert!(matches!(error, CredentialError::AccountChanged));
    assert!(test_env.home().auth().exists());
    std::fs::remove_file(test_env.home().auth()).unwrap();
    assert!(matches!(credential.authorize().await, Err(CredentialError::SignedOut)));
}

#[tokio::test]
async fn a_renewal_is_stored_after_its_caller_is_dropped() {
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(-10);
    let before = test_env.stored();
    test_env.issuer.fail(IssuerEndpoint::Refresh, IssuerFault::Slow(Duration::from_millis(150)));
    let credential = test_env.credential();
    let hasty = tokio::time::timeout(Duration::from_millis(50), credential.authorize()).await;
    assert!(hasty.is_err());
    assert_eq!(bearer(&credential.authorize().await.unwrap()), test_env.stored()["access_token"]);
    assert_ne!(test_env.stored(), before);
    assert_eq!(test_env.issuer.counts().refreshes, 1);
}

#[tokio::test]
async fn a_full_disk_is_found_before_the_token_is_spent() {
    use std::os::unix::fs::PermissionsExt;
    let test_env = CredentialTestEnv::new().await;
    test_env.sign_in(100);
    let credential = test_env.credential();
    // The lock exists already, and no other file can be created.
    std::fs::write(test_env.home().auth_lock(), "").unwrap();
    let folder = test_env.home().path().to_owned();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o500)).unwrap();
    let is_root = std::fs::write(folder.join("x"), "").is_ok();
    if !is_root {
        credential.authorize().await.unwrap();
        assert_eq!(test_env.issuer.counts().requests, 0);
    }
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test]
async fn a_code_is_asked_for_until_it_is_typed_or_will_not_be() {
    const PACE: PollTiming = PollTiming {
        min_interval: Duration::from_millis(5),
        slow_down_step: Duration::from_millis(60),
        deadline: Duration::from_secs(10),
    };
    let test_env = CredentialTestEnv::new().await;
    let issuer = Issuer::from_environment(&test_env.lookup(), &HttpSettings::default()).unwrap();
    for fault in [
        IssuerFault::Answer(403, String::new()),
        IssuerFault::code(400, "deviceauth_authorization_pending"),
        IssuerFault::code(400, "slow_down"),
        IssuerFault::Answer(502, "busy".into()),
    ] {
        test_env.issuer.fail(IssuerEndpoint::Poll, fault);
    }
    let started = std::time::Instant::now();
    let login = DeviceLogin::start(&issuer).await.unwrap();
    assert!(login.page_url().ends_with("/codex/device"));
    let tokens = login.finish(PACE).await.unwrap();
    assert_eq!(tokens.plan().as_deref(), Some("plus"));
    assert_eq!((test_env.issuer.counts().polls, test_env.issuer.counts().exchanges), (5, 1));
    assert!(started.elapsed() >= PACE.slow_down_step, "slow_down was heeded");
    for code in ["expired_token", "access_denied", "something_new"] {
        test_env.issuer.fail(IssuerEndpoint::Poll, IssuerFault::code(400, code));
        let error = DeviceLogin::start(&issuer).await.unwrap().finish(PACE).await.unwrap_err();
        assert!(matches!(error, CredentialError::Refused { .. }), "{code}: {error:?}");
    }
    test_env.issuer.fail(IssuerEndpoint::UserCode, IssuerFault::Answer(404, String::new()));
    assert!(matches!(DeviceLogin::start(&issuer).await, Err(CredentialError::NoDeviceLogin)));
    for _ in 0..100 {
        test_env.issuer.fail(IssuerEndpoint::Poll, IssuerFault::Answer(403, String::new()));
    }
    let late = PollTiming { deadline: Duration::from_millis(40), ..PACE };
    let error = DeviceLogin::start(&issuer).await.unwrap().finish(late).await.unwrap_err();
    assert!(matches!(error, CredentialError::TooLate { .. }));
}
