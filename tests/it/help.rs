//! Help of the program, its commands and topics, and the refusal of flags without effect.

use super::support::TestEnv;

/// The lines that a command prints on stdout, which are all that it prints.
fn lines(env: &TestEnv, args: &[&str]) -> Vec<String> {
    let run = env.run_pixir(args).assert_exit_code(0);
    assert_eq!(run.err, "", "{args:?}");
    run.out.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_help_of_the_program_fits_one_screen() {
    let env = TestEnv::with_replies([]).await;
    let shown = lines(&env, &["--help"]);
    assert!(shown.len() <= 40, "{} lines", shown.len());
    for line in &shown {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for heading in ["Run:", "Sessions:", "Evidence:", "Setup:", "Options:"] {
        assert!(shown.iter().any(|line| line == heading), "{heading}: {shown:#?}");
    }
    assert!(shown.last().unwrap().contains("options, prompts, sandbox"), "{shown:#?}");
    for same in [&["-h"][..], &["help"], &["fix it", "--help"]] {
        assert_eq!(lines(&env, same), shown, "{same:?}");
    }
    assert!(env.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_a_short_help_and_a_long_one() {
    let env = TestEnv::with_replies([]).await;
    let short = lines(&env, &["login", "-h"]);
    assert!(short.len() < 15 && !short.iter().any(|line| line.contains("--model")), "{short:#?}");
    let long = lines(&env, &["login", "--help"]).join("\n");
    assert!(long.contains("Common options:") && long.contains("--log-file"), "{long}");
    assert!(!long.contains("--model") && !long.contains("--sandbox"), "{long}");
    assert_eq!(lines(&env, &["help", "login"]).join("\n"), long);
    let status = lines(&env, &["help", "login", "status"]).join("\n");
    assert!(status.contains("--credential") && !status.contains("--effort"), "{status}");
    let resume = lines(&env, &["resume", "--help"]).join("\n");
    for flag in ["--model", "--sandbox", "--max-cost", "--attach", "--events", "--cwd"] {
        assert!(resume.contains(flag), "{flag}: {resume}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_plain_text_and_an_unknown_one_is_refused() {
    let env = TestEnv::with_replies([]).await;
    let table = [
        ("options", "--max-requests"),
        ("prompts", "--attach shot.png"),
        ("sandbox", "network"),
        ("output", "  124   timed out"),
        ("environment", "PIXIR_MODEL"),
        ("limits", "doom loop"),
    ];
    for (topic, words) in table {
        let text = lines(&env, &["help", topic]).join("\n");
        assert!(text.contains(words) && !text.contains("]("), "{topic}: {text}");
    }
    let refused = env.run_pixir(&["help", "nonsense"]).assert_exit_code(2);
    for words in ["options, prompts, sandbox, output", "pixir -- 'help nonsense'"] {
        assert!(refused.err.contains(words), "{words}: {}", refused.err);
    }
    let envelope = env.run_pixir(&["help", "nonsense", "--json"]).assert_exit_code(2).envelope();
    assert_eq!(envelope["error"]["kind"], "invalid_args");
    assert!(env.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_without_effect_is_refused_and_shared_ones_stand_on_both_sides() {
    let env = TestEnv::with_replies([]).await;
    for args in [&["--model", "m", "sessions"][..], &["sessions", "--model", "m"]] {
        let refused = env.run_pixir(args).assert_exit_code(2);
        for words in ["--model has no effect on `pixir sessions`", "a run", "pixir help options"] {
            assert!(refused.err.contains(words), "{words}: {}", refused.err);
        }
        assert_eq!(refused.out, "");
    }
    let workspace = env.workspace();
    let folder = workspace.to_str().unwrap();
    for args in [
        &["--cwd", folder, "--json", "--quiet", "sessions"][..],
        &["sessions", "--cwd", folder, "--json", "--quiet"],
        &["--color", "never", "sessions", "--json"],
    ] {
        let listed = env.run_pixir(args).assert_exit_code(0).envelope();
        assert_eq!(listed["output"], serde_json::json!([]), "{args:?}");
    }
    assert!(env.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_offer_commands_and_the_flags_that_apply_to_them() {
    let env = TestEnv::with_replies([]).await;
    let script = lines(&env, &["completions", "fish"]);
    let offers = |command: &str, flag: &str| {
        script.iter().any(|line| {
            line.contains(&format!("__fish_pixir_using_subcommand {command}\""))
                && line.contains(&format!("-l {flag} "))
        })
    };
    assert!(script.iter().any(|line| line.contains("-a \"sessions\"")), "{}", script.len());
    assert!(offers("resume", "model") && offers("doctor", "json"));
    assert!(!offers("doctor", "attach") && !offers("usage", "model"));
}
