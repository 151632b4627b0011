//! Tests of the config loader, as tables: layers, trust and error messages.

use std::time::Duration;

use super::loader::ConfigError;
use super::*;
use crate::base::error::{Explain, Kind};

struct ConfigTestEnv {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
    flags: ConfigFlags,
    trusted: Vec<TrustRequest>,
}

impl ConfigTestEnv {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("home")).unwrap();
        std::fs::create_dir_all(folder.path().join("work/.pixir")).unwrap();
        Self { folder, variables: Vec::new(), flags: ConfigFlags::default(), trusted: Vec::new() }
    }
    fn user(self, text: &str) -> Self {
        std::fs::write(self.folder.path().join("home/config.json"), text).unwrap();
        self
    }
    fn workspace(self, text: &str) -> Self {
        std::fs::write(self.folder.path().join("work/.pixir/config.json"), text).unwrap();
        self
    }
    fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }
    fn load(&self) -> Result<LoadedConfig, ConfigError> {
        let lookup = |name: &str| {
            let found = self.variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        load_config(ConfigSources {
            home: Home::new(self.folder.path().join("home")),
            workspace: Some(&self.folder.path().join("work")),
            trusted: &self.trusted,
            environment: &lookup,
            flags: self.flags.clone(),
        })
    }
    /// The error without the temporary folder's name.
    fn mistake(&self) -> String {
        let error = self.load().unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidConfig);
        error.to_string().replace(&self.folder.path().display().to_string(), "")
    }
    fn notices(&self) -> Vec<String> {
        let here = self.folder.path().display().to_string();
        self.load().unwrap().notices.iter().map(|notice| notice.replace(&here, "")).collect()
    }
}

#[test]
fn each_source_overrides_the_one_before() {
    let mut test_env = ConfigTestEnv::new();
    assert_eq!(test_env.load().unwrap().config.model, DEFAULT_MODEL);
    test_env = test_env.user(r#"{"model": "from-user", "effort": "low"}"#);
    assert_eq!(test_env.load().unwrap().config.model, "from-user");
    test_env = test_env.workspace(r#"{"model": "from-workspace"}"#);
    assert_eq!(test_env.load().unwrap().config.model, "from-workspace");
    test_env = test_env.variable("PIXIR_MODEL", "from-environment");
    assert_eq!(test_env.load().unwrap().config.model, "from-environment");
    test_env.flags.model = Some("from-flag".into());
    let config = test_env.load().unwrap().config;
    assert_eq!((config.model.as_str(), config.effort.as_deref()), ("from-flag", Some("low")));
}

#[test]
fn every_key_can_be_set_in_the_users_file() {
    let text = r#"{
        "model": "m", "effort": "high", "max_iterations": 7, "durability": "event",
        "retry": {"max_attempts": 2, "base_ms": 1, "cap_ms": 2, "retry_after_cap_ms": 3},
        "stream": {"idle_ms": 4, "total_ms": 5, "connect_ms": 6},
        "bash": {"timeout_ms": 7, "max_timeout_ms": 8, "max_commands": 5, "max_background": 0, "drain_ms": 9, "env": ["A_B"], "shell": "/bin/sh"},
        "grace": {"turn_ms": 10, "process_ms": 11},
        "output_limit": 2048, "instructions_limit": 0,
        "transport": "websocket", "tls": {"extra_roots": ["/etc/own.pem"]}
    }"#;
    let config = ConfigTestEnv::new().user(text).load().unwrap().config;
    let ms = Duration::from_millis;
    assert_eq!(config.max_iterations, Some(7));
    assert_eq!(config.durability, LogDurability::Event);
    let retry = RetryPolicy { max_attempts: 2, base: ms(1), cap: ms(2), retry_after_cap: ms(3) };
    assert_eq!(config.retry, retry);
    assert_eq!(config.stream, StreamTimeouts { idle: ms(4), total: ms(5), connect: ms(6) });
    let bash = BashLimits {
        timeout: ms(7),
        max_timeout: ms(8),
        max_commands: 5,
        max_background: 0,
        drain: ms(9),
        env: vec!["A_B".into()],
        shell: Some("/bin/sh".into()),
    };
    assert_eq!(config.bash, bash);
    assert_eq!(config.grace, GracePeriods { turn: ms(10), process: ms(11) });
    assert_eq!((config.output_limit, config.instructions_limit), (2048, 0));
    assert_eq!(config.transport, Some(TransportSetting::WebSocket));
    assert_eq!(config.extra_roots, [PathBuf::from("/etc/own.pem")]);
}

#[test]
fn a_mistake_in_the_users_file_names_key_and_file() {
    let table = [
        (r#"{"modle": "x"}"#, "`modle` is not a setting, did you mean `model`?"),
        (
            r#"{"retry": {"max_atempts": 1}}"#,
            "`retry.max_atempts` is not a setting, did you mean `retry.max_attempts`?",
        ),
        (r#"{"timeout_ms": 1}"#, "`timeout_ms` is not a setting, did you mean `bash.timeout_ms`?"),
        (r#"{"zzz": 1}"#, "`zzz` is not a setting"),
        (r#"{"model": 5}"#, "`model` must be one word of text, not 5"),
        (r#"{"model": ""}"#, "`model` must be one word of text, not \"\""),
        (
            r#"{"retry": {"max_attempts": 0}}"#,
            "`retry.max_attempts` must be a whole number from 1 to 100, not 0",
        ),
        (r#"{"retry": 3}"#, "`retry` must be an object of settings"),
        (
            r#"{"durability": "often"}"#,
            "`durability` must be \"turn\", \"event\" or \"none\", not \"often\"",
        ),
        (r#"{"model": "a", "model": "b"}"#, "`model` is given more than once"),
        (
            r#"{"bash": {"env": ["A=B"]}}"#,
            "`bash.env` must be a list of environment variable names, not a list",
        ),
        (r#"{"bash": {"shell": "sh"}}"#, "`bash.shell` must be an absolute path, not \"sh\""),
        (
            r#"{"transport": "pigeon"}"#,
            "`transport` must be \"auto\", \"websocket\" or \"sse\", not \"pigeon\"",
        ),
        (
            r#"{"tls": {"extra_roots": ["own.pem"]}}"#,
            "`tls.extra_roots` must be a list of absolute paths, not a list",
        ),
        ("{\n oops", "it is not a JSON object: line 2, column 2"),
        ("[1]", "it is not a JSON object: line 1, column 0"),
    ];
    for (text, expected) in table {
        let mistake = ConfigTestEnv::new().user(text).mistake();
        assert_eq!(mistake, format!("/home/config.json: {expected}"), "{text}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let mistake = ConfigTestEnv::new().user(r#"{"effort": 1, "modle": "x"}"#).mistake();
    assert!(mistake.contains("`effort`") && mistake.contains("`modle`"), "{mistake}");
}

#[test]
fn a_workspace_cannot_widen_trust_and_cannot_break_a_run() {
    let test_env = ConfigTestEnv::new().workspace(
        r#"{"bash": {"env": ["SECRET"], "timeout_ms": 5}, "durability": "none", "x": 1}"#,
    );
    let config = test_env.load().unwrap().config;
    assert_eq!(config.bash.env, Vec::<String>::new());
    assert_eq!(config.bash.timeout, Duration::from_millis(5));
    assert_eq!(config.durability, LogDurability::Turn);
    let notices = test_env.notices();
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[0].contains("`x` is not a setting"));
    let words = "`bash.env`, `durability` ignored, because this Workspace is not trusted";
    assert!(notices[1].contains(words), "{notices:?}");

    let wires = r#"{"transport": "sse", "tls": {"extra_roots": ["/own.pem"]}}"#;
    let test_env = ConfigTestEnv::new().workspace(wires);
    let config = test_env.load().unwrap().config;
    assert_eq!(
        (config.transport, config.extra_roots.len(), test_env.notices().len()),
        (None, 0, 1)
    );

    let broken = ConfigTestEnv::new().workspace("{").notices();
    assert!(broken[0].contains("work/.pixir/config.json is ignored"), "{broken:?}");
    let too_long = ConfigTestEnv::new().workspace(r#"{"bash": {"timeout_ms": 900000}}"#);
    assert_eq!(too_long.load().unwrap().config.bash.timeout, Duration::from_mins(2));
    assert!(too_long.notices()[0].contains("bash.max_timeout_ms"));
}

#[test]
fn the_environment_sets_numbers_and_lists_and_is_named_when_wrong() {
    let test_env = ConfigTestEnv::new()
        .variable("PIXIR_RETRY_MAX_ATTEMPTS", "2")
        .variable("PIXIR_BASH_ENV", "A, B")
        .variable("PIXIR_EFFORT", "");
    let config = test_env.load().unwrap().config;
    assert_eq!(config.retry.max_attempts, 2);
    assert_eq!(config.bash.env, ["A", "B"]);
    assert_eq!(config.effort, None);
    let mistake = ConfigTestEnv::new().variable("PIXIR_MAX_ITERATIONS", "many").mistake();
    assert_eq!(
        mistake,
        "environment variable PIXIR_MAX_ITERATIONS: `max_iterations` must be a whole number \
         from 0 to 1000000, not \"many\""
    );
}

#[test]
fn a_bad_flag_is_named() {
    let mut test_env = ConfigTestEnv::new();
    test_env.flags.model = Some("two words".into());
    assert!(test_env.mistake().starts_with("flag --model: `model` must be one word"));
}

#[test]
fn odd_files_are_refused_without_waiting_for_them() {
    let test_env = ConfigTestEnv::new();
    std::fs::create_dir(test_env.folder.path().join("home/config.json")).unwrap();
    assert!(test_env.mistake().contains("not a regular file"));
    let test_env = ConfigTestEnv::new();
    let elsewhere = test_env.folder.path().join("elsewhere.json");
    std::fs::write(&elsewhere, r#"{"model": "linked"}"#).unwrap();
    let link = test_env.folder.path().join("work/.pixir/config.json");
    std::os::unix::fs::symlink(&elsewhere, link).unwrap();
    assert!(test_env.notices()[0].contains("symbolic link"));
    std::os::unix::fs::symlink(&elsewhere, test_env.folder.path().join("home/config.json"))
        .unwrap();
    assert_eq!(test_env.load().unwrap().config.model, "linked");
    let huge = ConfigTestEnv::new().user(&format!("{{\"model\": \"{}\"}}", "x".repeat(1_100_000)));
    assert!(huge.mistake().contains("larger than 1 MiB"));
}

#[test]
fn budgets_prices_and_servers_come_from_the_users_own_sources() {
    let text = r#"{"max_tokens_total": 5, "max_cost": 1.5, "max_requests": 3, "timeout": "10m",
        "web_search": true, "provider": "a", "providers": {"a": {"base_url": "http://127.0.0.1"}},
        "prices": {"m": {"input": 1, "output": 2}}}"#;
    let mut test_env = ConfigTestEnv::new().user(text);
    let config = test_env.load().unwrap().config;
    let budget = BudgetLimits {
        max_tokens_total: Some(5),
        max_cost: Some(1.5),
        max_requests: Some(3),
        timeout: Some(Duration::from_mins(10)),
    };
    assert_eq!(config.budget, budget);
    assert!(config.web_search && config.prices.get("m").is_some());
    assert_eq!(config.provider.as_deref(), Some("a"));
    test_env = test_env.variable("PIXIR_MAX_COST", "0.25").variable("PIXIR_WEB_SEARCH", "0");
    test_env.flags.timeout = Some("90".to_owned());
    let config = test_env.load().unwrap().config;
    assert_eq!(config.budget.max_cost, Some(0.25));
    assert_eq!(config.budget.timeout, Some(Duration::from_secs(90)));
    assert!(!config.web_search);
}

#[test]
fn a_mistake_in_a_budget_or_server_is_named() {
    for (text, expected) in [
        (r#"{"timeout": "soon"}"#, "`timeout` must be a duration such as 90s, 10m or 1h30m"),
        (r#"{"max_cost": 0}"#, "`max_cost` must be an amount of dollars above 0, not 0"),
        (r#"{"max_requests": 0}"#, "`max_requests` must be a whole number from 1"),
        (r#"{"web_search": "yes"}"#, "`web_search` must be true or false"),
        (r#"{"prices": 3}"#, "`prices` must be an object of prices by model, not 3"),
        (r#"{"providers": []}"#, "`providers` must be an object of servers by name, not a list"),
        (r#"{"prices": {"m": {}}}"#, "`prices` must have dollars per million tokens for `m`"),
        (r#"{"providers": {"a": {}}}"#, "`providers` has a mistake in server `a`"),
        (r#"{"provider": "a"}"#, "`provider` names no server: \"a\"; there are none"),
    ] {
        let mistake = ConfigTestEnv::new().user(text).mistake();
        assert!(mistake.contains(expected), "{mistake}");
    }
}

#[test]
fn a_workspace_may_narrow_the_sandbox_and_never_widen_it() {
    let sandbox = |user: &str, workspace: &str| {
        let test_env = ConfigTestEnv::new().user(user).workspace(workspace);
        (test_env.load().unwrap().config.sandbox, test_env.notices().len())
    };
    let (kept, notices) = sandbox("{}", r#"{"sandbox": "off"}"#);
    assert_eq!((kept.level, notices), (SandboxLevel::Workspace, 1));
    let (kept, notices) = sandbox("{}", r#"{"sandbox": "read-only"}"#);
    assert_eq!((kept.level, notices), (SandboxLevel::ReadOnly, 0));
    let (kept, notices) = sandbox(r#"{"sandbox": "required"}"#, r#"{"sandbox": "read-only"}"#);
    assert_eq!((kept.level, notices), (SandboxLevel::Required, 1), "the floor stays");
    let wide = r#"{"sandbox": {"network": "allow", "write": ["/etc"], "read": ["~"], "max_processes": 9999,
        "caches": ["/srv"], "max_cache_bytes": 99000000000}}"#;
    let (kept, notices) = sandbox("{}", wide);
    assert_eq!((kept, notices), (SandboxSettings::default(), 6));
    for key in ["open_files", "process_bytes", "shared_memory_bytes", "memory_bytes"] {
        let set = |value: u64| format!(r#"{{"sandbox": {{"max_{key}": {value}}}}}"#);
        let (kept, notices) = sandbox(&set(1 << 30), &set(1 << 31));
        assert_eq!((kept, notices), (sandbox(&set(1 << 30), "{}").0, 1), "{key}");
        assert_eq!(sandbox(&set(1 << 31), &set(1 << 30)), sandbox(&set(1 << 30), "{}"), "{key}");
    }
    let narrow = r#"{"sandbox": {"network": "deny", "write": [], "hide": ["~/x"], "caches": []}}"#;
    let (kept, notices) = sandbox(r#"{"sandbox": {"hide": ["~/y"]}}"#, narrow);
    assert_eq!((kept.network, kept.write.len(), notices), (NetworkRule::Deny, 0, 0));
    assert_eq!(kept.caches.len(), 0);
    assert_eq!(kept.hide.len(), 2, "what the user hides stays hidden");
    let mut test_env = ConfigTestEnv::new().user(r#"{"sandbox": "off"}"#);
    test_env.flags.sandbox = Some("required".into());
    assert_eq!(test_env.load().unwrap().config.sandbox.level, SandboxLevel::Required);
    test_env.flags.sandbox = Some("loose".into());
    assert!(test_env.mistake().contains("--sandbox"), "{}", test_env.mistake());
    assert!(
        ConfigTestEnv::new()
            .user(r#"{"sandbox": {"write": ["../x"]}}"#)
            .mistake()
            .contains("sandbox.write")
    );
}

#[test]
fn a_workspace_that_is_trusted_as_it_is_may_set_what_a_user_may() {
    let text = r#"{"permission_mode": "ask", "bash": {"env": ["SECRET"]}, "model": "m"}"#;
    let mut test_env = ConfigTestEnv::new().workspace(text);
    let wanted =
        trust_requests(&test_env.folder.path().join("work"), &test_env.load().unwrap().config)
            .remove(0);
    let keys: Vec<&str> = wanted.settings.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["permission_mode", "bash.env"], "the model needs no trust");
    test_env.trusted = vec![wanted];
    let loaded = test_env.load().unwrap();
    assert_eq!(loaded.config.permission_mode, PermissionMode::Ask);
    assert_eq!(loaded.config.bash.env, ["SECRET"]);
    assert_eq!(loaded.notices, Vec::<String>::new());
    let lax = ConfigTestEnv::new().workspace(r#"{"sandbox": "off"}"#);
    let config = Config::new(Home::new("/nowhere"));
    let asked = super::trust_requests(&lax.folder.path().join("work"), &config).remove(0);
    assert_eq!(asked.settings, [("sandbox".to_owned(), "\"off\"".to_owned())]);
    let strict = ConfigTestEnv::new().workspace(r#"{"sandbox": "read-only"}"#);
    assert_eq!(super::trust_requests(&strict.folder.path().join("work"), &config), Vec::new());
    // Trust does not extend to changed content.
    let test_env = test_env.workspace(&text.replace("ask", "auto"));
    assert_eq!(test_env.load().unwrap().config.bash.env, Vec::<String>::new());
    assert_eq!(test_env.notices().len(), 1);
}

#[test]
fn the_servers_of_a_workspace_count_when_their_file_is_trusted() {
    let shared = r#"{"mcpServers": {"tools": {"command": "x", "env": {"A": "${WORD}"}},
        "mine": {"command": "y"}, "lost": {"command": "${NOWHERE}"},
        "thief": {"url": "https://x", "headers": {"A": "${OPENAI_API_KEY}"}}}}"#;
    let user =
        r#"{"mcp_servers": {"mine": {"command": "z", "trusted": true}}, "mcp": {"wait_ms": 7}}"#;
    let mut test_env = ConfigTestEnv::new().user(user).variable("WORD", "said");
    test_env = test_env.variable("OPENAI_API_KEY", "sk-1");
    let work = test_env.folder.path().join("work");
    std::fs::write(work.join(".mcp.json"), shared).unwrap();
    let loaded = test_env.load().unwrap();
    assert_eq!(loaded.config.mcp.servers.len(), 1, "nothing of an untrusted Workspace");
    assert_eq!(loaded.config.mcp.wait, Duration::from_millis(7));
    assert!(loaded.notices[0].contains("not trusted"), "{:?}", loaded.notices);
    test_env.trusted = trust_requests(&work, &loaded.config);
    assert_eq!(test_env.trusted[0].settings.len(), 4);
    let LoadedConfig { config, notices, .. } = test_env.load().unwrap();
    let usable: Vec<_> = config.mcp.servers.iter().filter(|one| one.problem().is_none()).collect();
    let [mine, tools] = usable.as_slice() else { panic!("{:?}", config.mcp) };
    assert!(mine.is_trusted && mine.origin == McpOrigin::User);
    assert_eq!(tools.private_values(), [("A".to_owned(), "said".to_owned())]);
    assert!(!tools.is_trusted && tools.origin == McpOrigin::Workspace);
    assert!(notices.iter().any(|notice| notice.contains("name is taken")), "{notices:?}");
    for name in ["NOWHERE", "OPENAI_API_KEY"] {
        let words = format!("{name} is not set, or may not be passed to this server");
        assert!(notices.iter().any(|notice| notice.contains(&words)), "{notices:?}");
    }
    std::fs::write(work.join(".mcp.json"), shared.replace("\"x\"", "\"other\"")).unwrap();
    assert_eq!(test_env.load().unwrap().config.mcp.servers.len(), 1, "other content, other file");
    // Servers in a Workspace's settings need the same trust, and cannot declare themselves trusted.
    let text = r#"{"mcp_servers": {"guest": {"command": "x", "trusted": true}}}"#;
    let mut test_env = ConfigTestEnv::new().workspace(text);
    assert!(test_env.notices()[0].contains("`mcp_servers` ignored"));
    test_env.trusted =
        trust_requests(&test_env.folder.path().join("work"), &test_env.load().unwrap().config);
    let servers = test_env.load().unwrap().config.mcp.servers;
    assert!(!servers[0].is_trusted && servers[0].origin == McpOrigin::Workspace);
}

#[test]
fn a_mode_is_one_of_three_and_a_flag_names_it() {
    let mode = |test_env: &ConfigTestEnv| test_env.load().unwrap().config.permission_mode;
    let test_env = ConfigTestEnv::new().user(r#"{"permission_mode": "ask"}"#);
    assert_eq!(mode(&test_env), PermissionMode::Ask);
    assert!(!test_env.load().unwrap().config.mode_named);
    let mut test_env = test_env.variable("PIXIR_PERMISSION_MODE", "auto");
    assert!(test_env.load().unwrap().config.mode_named);
    test_env.flags.permission_mode = Some(PermissionMode::ReadOnly);
    assert_eq!(mode(&test_env), PermissionMode::ReadOnly);
    let mistake = ConfigTestEnv::new().user(r#"{"permission_mode": "yolo"}"#).mistake();
    assert!(mistake.contains("must be \"auto\", \"ask\" or \"read_only\""), "{mistake}");
}
