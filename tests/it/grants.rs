//! Lasting grants: the options that a prefix covers, and the binding of a grant to a script's content.

use pixir::scripted::{ModelScript, Reply};
use pixir::{PermissionAnswer, PermissionMode, PermissionRequest};
use serde_json::json;

use crate::permissions::{running, turn_with};
use crate::support::TestEnv;

#[tokio::test]
async fn a_prefix_does_not_cover_options_that_write_or_start_programs() {
    let commands = [
        "git log",
        "git log -3",
        "git log --output=stolen",
        "git log --outp=stolen",
        "git log -3 --ext-diff",
    ];
    let env = TestEnv::with_script(running(&commands)).await.in_ask_mode();
    let conversation = env.start().await;
    let mut first = true;
    let questions = turn_with(&conversation, "go", |_| {
        let answer = if std::mem::take(&mut first) {
            PermissionAnswer::Prefix
        } else {
            PermissionAnswer::No
        };
        answer.into()
    })
    .await;
    let asked: Vec<&str> =
        questions.iter().map(|asked| asked.command.as_ref().unwrap().text.as_str()).collect();
    assert_eq!(asked, [commands[0], commands[2], commands[3], commands[4]]);
    assert!(!env.workspace().join("stolen").exists());
}

#[tokio::test]
async fn a_prefix_covers_no_other_command_and_no_option_that_is_not_known() {
    for (granted, other) in [
        ("git reflog show", "git reflog expire --all"),
        ("git stash list", "git stash clear"),
        ("git worktree list", "git worktree add stolen"),
        ("git bundle verify a", "git bundle create stolen HEAD"),
        ("go env", "go env -w GOFLAGS=-toolexec=x"),
        ("go test", "go test -test.outputdir=stolen"),
        ("shuf a", "shuf -o stolen a"),
        ("iconv a", "iconv -o stolen a"),
        ("xxd a", "xxd -r a stolen"),
        ("cargo test", "cargo +nightly test"),
        ("pytest -q", "pytest -p stolen"),
        ("pytest -q", "pytest @a"),
        ("just build", "just build deploy"),
        ("mvn test", "mvn test exec:exec"),
        ("dotnet build", "dotnet build /p:CustomBeforeMicrosoftCommonTargets=a"),
    ] {
        let env = TestEnv::with_script(running(&[granted, other])).await.in_ask_mode();
        for file in ["a", "justfile", "pom.xml"] {
            env.write(file, "a\n");
        }
        let conversation = env.start().await;
        let questions = turn_with(&conversation, "go", |request| {
            let is_first = request.command.as_ref().unwrap().text == granted;
            if is_first { PermissionAnswer::Prefix.into() } else { PermissionAnswer::No.into() }
        })
        .await;
        assert!(questions[0].prefix.is_some(), "{granted} can be allowed for good");
        assert_eq!(questions.len(), 2, "{granted} does not cover {other}");
        assert_eq!(questions[1].prefix, None, "{other} cannot be allowed for good");
        assert!(!env.workspace().join("stolen").exists(), "{other}");
    }
}

/// Runs a command that is granted by `answer`, changes a file, and counts the questions about the same command,
/// first with the file unchanged and then changed.
async fn asked_again(command: &str, file: &str, answer: PermissionAnswer) -> (usize, usize) {
    let env = TestEnv::with_script(running(&[command])).await.in_ask_mode();
    if let Some(folder) = std::path::Path::new(file).parent() {
        std::fs::create_dir_all(env.workspace().join(folder)).unwrap();
    }
    env.write(file, "exit 0\n");
    let conversation = env.start().await;
    assert_eq!(turn_with(&conversation, "go", |_| answer.into()).await.len(), 1, "{command}");
    let same = turn_with(&conversation, "again", |_| PermissionAnswer::No.into()).await.len();
    env.write(file, "exit 0 # changed\n");
    let changed = turn_with(&conversation, "changed", |_| PermissionAnswer::No.into()).await.len();
    (same, changed)
}

#[tokio::test]
async fn a_grant_for_a_script_covers_its_content() {
    for (command, file) in [
        ("sh run.sh", "run.sh"),
        ("./run.sh", "run.sh"),
        ("python3 tools/build.py --fast", "tools/build.py"),
        ("cd tools && node x.js", "tools/x.js"),
        ("cd . && cd . && cd . && cd . && cd tools && sh x.sh", "tools/x.sh"),
        ("cd tools && sh y.sh 2>&1 | tail -5", "tools/y.sh"),
        ("make -C tools", "tools/Makefile"),
        ("python3 -mtools.build", "tools/build.py"),
        ("env CI=1 bash -e run.sh > log", "run.sh"),
        ("sh -c './run.sh'", "run.sh"),
        ("python3 -m tools.build", "tools/build.py"),
        ("make test", "Makefile"),
        ("npm test", "package.json"),
    ] {
        for answer in [PermissionAnswer::Session, PermissionAnswer::Project] {
            assert_eq!(asked_again(command, file, answer).await, (0, 1), "{command} {answer:?}");
        }
    }
    // A file that a command only reads is not a script.
    let data = asked_again("cp data.txt copy.txt", "data.txt", PermissionAnswer::Session).await;
    assert_eq!(data, (0, 0));
}

#[tokio::test]
async fn a_script_with_an_odd_name_is_bound_to_its_content() {
    for (command, file) in [
        ("sh 'my run.sh'", "my run.sh"),
        ("sh \"my run.sh\"", "my run.sh"),
        ("sh a,b.sh", "a,b.sh"),
        ("sh a=b.sh", "a=b.sh"),
        ("sh 'a$b.sh'", "a$b.sh"),
        ("sh 'a*.sh'", "a*.sh"),
        ("sh 'a\\b.sh'", "a\\b.sh"),
        ("sh \"a'b.sh\"", "a'b.sh"),
        ("sh 'a;b.sh'", "a;b.sh"),
        ("uv run x.py", "x.py"),
        ("go run main.go", "main.go"),
        ("bats x.bats", "x.bats"),
        ("poetry run python x.py", "x.py"),
    ] {
        assert_eq!(
            asked_again(command, file, PermissionAnswer::Project).await,
            (0, 1),
            "{command}"
        );
    }
    // Input of a test runner or compiler is edited all the time, so the grant is not bound to it.
    let data = asked_again("pytest tests/x.py", "tests/x.py", PermissionAnswer::Session).await;
    assert_eq!(data, (0, 0));
}

#[tokio::test]
async fn a_script_that_cannot_be_bound_is_allowed_once_only() {
    let commands = [
        "sh my\\ run.sh",
        "sh $SCRIPT",
        "sh *.sh",
        "sh missing.sh",
        "sh outside.sh",
        "cat run.sh | sh",
        "cd $X && sh run.sh",
        "./missing",
        "unheard-of \"$(cat run.sh)\"",
        "PATH=. run.sh",
        "BASH_ENV=run.sh bash -c true",
        "builtin source ./run.sh",
        "hash -p ./run.sh ls; ls",
        "tar -I ./run.sh -cf x.tar data",
        "sed '1e sh run.sh' data",
        "awk 'BEGIN{system(\"sh run.sh\")}'",
        "make -Csub",
        "env --chdir=sub sh run.sh",
        "cp data run.sh && sh run.sh",
        "unheard-of run.sh",
    ];
    let env = TestEnv::with_script(running(&commands)).await.in_ask_mode();
    env.write("run.sh", "exit 0\n");
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::symlink(outside.path(), env.workspace().join("outside.sh")).unwrap();
    let conversation = env.start().await;
    for _ in 0..2 {
        // An answer that was not offered grants nothing.
        let questions = turn_with(&conversation, "go", |_| PermissionAnswer::Project.into()).await;
        let asked: Vec<&str> =
            questions.iter().map(|asked| asked.command.as_ref().unwrap().text.as_str()).collect();
        assert_eq!(asked, commands);
        for question in questions {
            assert_eq!(
                question.answers,
                [PermissionAnswer::Once, PermissionAnswer::No],
                "{:?}",
                question.command
            );
        }
    }
}

#[tokio::test]
async fn a_script_that_changes_while_its_question_is_open_does_not_run() {
    let env = TestEnv::with_script(running(&["sh run.sh"])).await.in_ask_mode();
    env.write("run.sh", "touch good\n");
    let conversation = env.start().await;
    let questions = turn_with(&conversation, "go", |_| {
        env.write("run.sh", "touch evil\n");
        PermissionAnswer::Once.into()
    })
    .await;
    assert_eq!(questions.len(), 1);
    assert!(!env.workspace().join("evil").exists() && !env.workspace().join("good").exists());
    assert!(env.transcript(&conversation).contains("tool_result error file_changed"));
}

#[tokio::test]
async fn a_stored_grant_for_a_script_without_its_content_is_asked_again() {
    use std::fmt::Write;

    use sha2::Digest;

    let env = TestEnv::with_script(running(&["sh run.sh", "touch plain"])).await.in_ask_mode();
    env.write("run.sh", "touch made\n");
    let project = env.workspace().canonicalize().unwrap();
    // An approval in the format of earlier versions: tool, arguments, paths and directory.
    let stored = |command: &str| {
        let bound = format!(
            r#"{{"args":{{"command":"{command}"}},"directory":"{}","paths":[],"tool":"bash"}}"#,
            project.display()
        );
        let mut digest = String::new();
        for byte in sha2::Sha256::digest(bound) {
            write!(digest, "{byte:02x}").unwrap();
        }
        json!({
            "id": command, "project": project, "tool": "bash", "summary": command,
            "digest": digest, "granted_at": "2026-01-01T00:00:00Z",
        })
    };
    std::fs::create_dir_all(env.home()).unwrap();
    let entries = [stored("sh run.sh"), stored("touch plain")];
    let approvals = json!({"version": 1, "entries": entries});
    std::fs::write(env.home().join("permissions.json"), approvals.to_string()).unwrap();
    let conversation = env.start().await;
    let questions = turn_with(&conversation, "go", |_| PermissionAnswer::No.into()).await;
    let asked: Vec<&str> =
        questions.iter().map(|asked| asked.command.as_ref().unwrap().text.as_str()).collect();
    assert_eq!(asked, ["sh run.sh"], "other grants of earlier versions hold");
    assert!(env.workspace().join("plain").exists());
}

#[tokio::test]
async fn edits_are_allowed_for_a_session_and_commands_are_not() {
    let calls = [
        ("write", json!({"path": "a.txt", "content": "one\n"})),
        ("edit", json!({"path": "a.txt", "edits": [{"old_string": "one", "new_string": "two"}]})),
        ("bash", json!({"command": "touch made"})),
        (
            "apply_patch",
            json!({"patch": "*** Begin Patch\n*** Add File: b.txt\n+new\n*** End Patch"}),
        ),
    ];
    let env = TestEnv::with_script(ModelScript::answering(move |request| {
        match calls.get(request.outputs().len()) {
            Some((name, args)) => Reply::calls(name, args.clone()),
            None => Reply::says("done"),
        }
    }))
    .await
    .in_ask_mode();
    let conversation = env.start().await;
    let answer = |request: &PermissionRequest| match request.tool.as_str() {
        "bash" => PermissionAnswer::No.into(),
        _ => PermissionAnswer::SessionEdits.into(),
    };
    let questions = turn_with(&conversation, "go", answer).await;
    let tools: Vec<&str> = questions.iter().map(|asked| asked.tool.as_str()).collect();
    assert_eq!(tools, ["write", "bash"]);
    let all = [
        PermissionAnswer::Once,
        PermissionAnswer::Session,
        PermissionAnswer::SessionEdits,
        PermissionAnswer::Project,
        PermissionAnswer::No,
    ];
    assert_eq!(questions[0].answers, all);
    assert!(
        !questions[1].answers.contains(&PermissionAnswer::SessionEdits),
        "a command is no edit"
    );
    assert_eq!((env.read("a.txt"), env.read("b.txt")), ("two\n".into(), "new\n".into()));
    let log = env.transcript(&conversation);
    assert_eq!(log.matches("permission_decision allow ask by session_edits").count(), 2, "{log}");
    // The grant does not extend to another Session, or to a stricter mode.
    let other = env.start().await;
    let questions = turn_with(&other, "go", |_| PermissionAnswer::No.into()).await;
    assert_eq!(questions[0].tool, "write");
    let strict = pixir::SettingsChange {
        mode: Some(PermissionMode::ReadOnly),
        ..pixir::SettingsChange::default()
    };
    let harness = env.harness();
    let conversation = harness.change_settings(&conversation, strict).await.unwrap();
    env.write("a.txt", "one\n");
    assert!(turn_with(&conversation, "again", |_| PermissionAnswer::Once.into()).await.is_empty());
    assert_eq!(env.read("a.txt"), "one\n");
}
