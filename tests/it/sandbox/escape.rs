//! Escape attempts: the whole table at every sandbox level; none may have an effect
//! outside.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

use pixir::SandboxLevel;
use pixir::workbench::Workbench;
use serde_json::json;

use super::attempts::{EscapeAttempt, ONLY_FULL, ONLY_FULL_READ_ONLY, SOCKETS, TABLE};
use super::escape_env::EscapeEnv;
use crate::support::drivers::assert_driver_passed;
use crate::support::torture::{SuiteSize, seed};

/// The variable that makes a test process a driver, and selects the containment.
const DRIVE: &str = "PIXIR_TEST_ESCAPE";
/// A user that owns nothing.
const NOBODY: u32 = 65534;
/// Time limit of one attempt in milliseconds.
const PATIENCE_MS: u64 = 10_000;

/// Sandbox level, and whether namespaces are available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Containment {
    sandbox_level: SandboxLevel,
    without_namespaces: bool,
}

/// Prints a line past the capture of test output.
pub fn print_note(what: &str) {
    std::io::stderr().write_all(format!("\n{what}\n").as_bytes()).unwrap();
}

/// Reports that a check is not possible here.
pub fn skip(why: &str) {
    print_note(&format!("skipped: {why}"));
}

/// One in this many attempts is made in a sample.
const SAMPLE: usize = 8;

/// All attempts: the table, and sockets once more with the network.
fn all_attempts() -> Vec<(String, EscapeAttempt, bool)> {
    let named = |part: &str, attempt: &EscapeAttempt| format!("{part}: {}", attempt.0);
    let table = TABLE.iter().flat_map(|(part, attempts)| {
        attempts.iter().map(move |attempt| (named(part, attempt), *attempt, false))
    });
    let online = SOCKETS.iter().map(|attempt| (named("with the network", attempt), *attempt, true));
    table.chain(online).collect()
}

/// The attempts of this run: all, or a seeded sample that differs between containments.
fn attempts(containment: Containment) -> Vec<(String, EscapeAttempt, bool)> {
    let mut attempts = all_attempts();
    if SuiteSize::from_environment() == SuiteSize::Full {
        return attempts;
    }
    let place = containments().iter().position(|(_, other)| *other == containment).unwrap_or(0);
    fastrand::Rng::with_seed(seed() + place as u64).shuffle(&mut attempts);
    attempts.truncate(attempts.len() / SAMPLE);
    attempts
}

/// Totals of all attempts.
#[derive(Default)]
struct EscapeTotals {
    tried: usize,
    /// Attempts with an effect, and the effect.
    effects: Vec<(String, &'static str, Vec<String>)>,
    level: BTreeSet<String>,
}

async fn attempt_all(
    containment: Containment,
    attempts: Vec<(String, EscapeAttempt, bool)>,
) -> EscapeTotals {
    let mut totals = EscapeTotals::default();
    let mut env = EscapeEnv::new(containment.sandbox_level);
    let mut bench = env.bench(containment.without_namespaces);
    for (name, (what, command), network) in attempts {
        let output =
            attempt(&bench, &env.fill_placeholders(command), network, &mut totals.level).await;
        totals.tried += 1;
        let effects = env.observed_effects(&output);
        if !effects.is_empty() {
            totals.effects.push((name.clone(), what, effects));
        }
        // An attempt may damage its Workspace, so the next one gets a new environment.
        let had_effect = totals.effects.last().is_some_and(|(last, ..)| *last == name);
        if had_effect || spoils_env(&name) {
            drop(bench);
            env = EscapeEnv::new(containment.sandbox_level);
            bench = env.bench(containment.without_namespaces);
        }
        let left = env.survivors();
        assert_eq!(left, Vec::<String>::new(), "{name}");
    }
    totals
}

/// Whether the attempt may make the Workspace unusable.
fn spoils_env(name: &str) -> bool {
    name.starts_with("git:") || name.starts_with("Pixir's state:")
}

async fn attempt(
    bench: &Workbench,
    command: &str,
    network: bool,
    levels: &mut BTreeSet<String>,
) -> String {
    let args = json!({"command": command, "timeout_ms": PATIENCE_MS, "network": network});
    match bench.call("bash", args).await {
        Ok(answer) => {
            levels.insert(answer.details["sandbox"].as_str().unwrap().to_owned());
            answer.text
        }
        Err(report) => panic!("{command}: {report:?}"),
    }
}

/// Makes the attempts; fails on every effect except for those that only namespaces prevent.
fn run_and_check(containment: Containment, who: &str) {
    let began = Instant::now();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let totals = runtime.block_on(attempt_all(containment, attempts(containment)));
    let is_partial = totals.level.contains("partial");
    let list = if containment.sandbox_level == SandboxLevel::ReadOnly {
        ONLY_FULL_READ_ONLY
    } else {
        ONLY_FULL
    };
    let is_known = |what: &str| is_partial && list.contains(&what);
    let (known, escaped): (Vec<_>, Vec<_>) =
        totals.effects.iter().partition(|(_, what, _)| is_known(what));
    let names = |list: &[&(String, &str, Vec<String>)]| {
        list.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>().join("; ")
    };
    print_note(&format!(
        "escape: {who}, {:?}, level {:?}: {} attempts, {} effects outside, {} that only `full` stops{}{} (seed={}, {:.1} s)",
        containment.sandbox_level,
        totals.level,
        totals.tried,
        escaped.len(),
        known.len(),
        if known.is_empty() { "" } else { ": " },
        names(&known),
        seed(),
        began.elapsed().as_secs_f32(),
    ));
    let described: Vec<String> =
        escaped.iter().map(|(name, _, effects)| format!("{name}: {effects:?}")).collect();
    assert!(described.is_empty(), "{who}: {described:#?}");
}

fn containments() -> [(&'static str, Containment); 4] {
    let containment =
        |sandbox_level, without_namespaces| Containment { sandbox_level, without_namespaces };
    [
        ("full", containment(SandboxLevel::Workspace, false)),
        ("full-read-only", containment(SandboxLevel::ReadOnly, false)),
        ("partial", containment(SandboxLevel::Workspace, true)),
        ("partial-read-only", containment(SandboxLevel::ReadOnly, true)),
    ]
}

#[test]
fn there_are_more_than_150_attempts_and_each_has_its_name() {
    let attempts = all_attempts();
    let names: BTreeSet<&String> = attempts.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), attempts.len(), "a name stands for one attempt");
    assert!(attempts.len() >= 150, "{}", attempts.len());
    for what in ONLY_FULL.iter().chain(ONLY_FULL_READ_ONLY) {
        assert!(attempts.iter().any(|(_, (own, _), _)| own == what), "{what}");
    }
}

/// Groups of the table whose effects stay in the environment even without a sandbox.
const HARMLESS: &[&str] =
    &["tools with output flags", "links and races", "credentials", "sockets with names"];

/// The control: without a sandbox the same commands have effects, and the environment observes them.
#[test]
fn the_environment_sees_what_gets_out_without_a_sandbox() {
    let containment = Containment { sandbox_level: SandboxLevel::Off, without_namespaces: false };
    let is_harmless = |name: &str| HARMLESS.iter().any(|part| name.starts_with(part));
    let mut chosen: Vec<_> =
        all_attempts().into_iter().filter(|(name, ..)| is_harmless(name)).collect();
    fastrand::Rng::with_seed(seed()).shuffle(&mut chosen);
    chosen.truncate(SuiteSize::from_environment().choose(20, chosen.len()));
    let tried = chosen.len();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let totals = runtime.block_on(attempt_all(containment, chosen));
    print_note(&format!(
        "escape: without a sandbox {} of {tried} have an effect",
        totals.effects.len()
    ));
    assert!(totals.effects.len() * 2 > tried, "{} of {tried}", totals.effects.len());
}

#[test]
fn nothing_gets_out() {
    run_and_check(containments()[0].1, "own user");
}

#[test]
fn nothing_gets_out_of_read_only_and_nothing_changes_inside() {
    run_and_check(containments()[1].1, "own user");
}

#[test]
fn what_gets_out_without_namespaces_is_known() {
    run_and_check(containments()[2].1, "own user");
}

#[test]
fn what_gets_out_of_read_only_without_namespaces_is_known() {
    run_and_check(containments()[3].1, "own user");
}

/// A driver: the process that the next test starts as another user.
#[test]
fn driver() {
    let Some(drive) = std::env::var_os(DRIVE) else { return };
    let containment = containments().into_iter().find(|(name, _)| drive == *name).unwrap();
    run_and_check(containment.1, "an ordinary user");
}

#[test]
fn nothing_gets_out_for_an_ordinary_user() {
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
    for (name, _) in containments() {
        let mut driver = Command::new(std::env::current_exe().unwrap());
        driver.args(["--exact", "sandbox::escape::driver", "--nocapture"]).env(DRIVE, name);
        driver.env("TMPDIR", folder.path()).env("HOME", folder.path());
        let driver = driver.current_dir(folder.path()).uid(NOBODY).gid(NOBODY);
        let output = driver.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_driver_passed(&output, name);
        let line = stderr.lines().find(|line| line.starts_with("escape:"));
        print_note(line.expect("the driver says what it did"));
    }
}
