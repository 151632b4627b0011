//! The command line: the real binary, a cleared environment, exit codes.

/// The picture of a run in the README.
mod demo_picture;

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pixir::scripted::Reply;
use serde_json::Value;

use super::support::leaks;
use super::support::test_env::{DEADLINE, PIXIR, TestEnv};

/// Exit code and output of a run.
struct CliOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

impl CliOutput {
    #[track_caller]
    fn assert_exit_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    fn envelope(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "one line: {}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}

/// `pixir` in the Workspace, with nothing of this machine's environment.
fn pixir(env: &TestEnv, args: &[&str]) -> Command {
    let mut command = command_without_env(&env.home(), args);
    command
        .current_dir(env.workspace())
        .env("OPENAI_BASE_URL", env.server.base_url())
        .env("OPENAI_API_KEY", "sk-test-of-test-env")
        .env("PIXIR_DURABILITY", "none")
        .env("PIXIR_RETRY_BASE_MS", "1");
    command
}

fn command_without_env(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(PIXIR);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[must_use = "a run is looked at, or its exit code is"]
fn ran(command: &mut Command) -> CliOutput {
    finish(command.spawn().unwrap())
}

#[must_use = "a run is looked at, or its exit code is"]
fn finish(child: Child) -> CliOutput {
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    leaks::check_stream(&out);
    leaks::check_stream(&err);
    CliOutput { code: output.status.code(), out, err }
}

/// Runs with something on stdin.
#[must_use = "a run is looked at, or its exit code is"]
fn run_with_input(command: &mut Command, input: &[u8]) -> CliOutput {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // A run that refuses its arguments does not read stdin.
    child.stdin.take().unwrap().write_all(input).ok();
    finish(child)
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

async fn wait_for_requests(env: &TestEnv, requests: usize) {
    let start = Instant::now();
    while env.requests().len() < requests {
        assert!(start.elapsed() < DEADLINE, "the model was never asked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn only_log(env: &TestEnv) -> std::path::PathBuf {
    let folder = std::fs::read_dir(env.workspace().join(".pixir/sessions")).unwrap();
    let mut logs: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "ndjson"));
    assert_eq!(logs.len(), 1);
    logs.remove(0)
}

fn only_id(env: &TestEnv) -> String {
    only_log(env).file_stem().unwrap().to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn stdout_is_the_answer_alone() {
    let env = TestEnv::with_replies([
        Reply::new().commentary("Looking.").call("bash", serde_json::json!({"command": "exit 3"})),
        Reply::says("It \u{1b}[31mworks\u{1b}[0m."),
    ])
    .await;
    let run = ran(&mut pixir(&env, &["does", "it", "work?"])).assert_exit_code(0);
    assert_eq!(run.out, "It works.\n");
    let id = only_id(&env);
    assert!(run.err.starts_with("Looking.\nbash exit 3: exit 3\nresume: "), "{}", run.err);
    assert!(run.err.trim_end().ends_with(&format!("resume {id}")), "{}", run.err);
    assert_eq!(env.requests()[0].user_texts(), ["does it work?"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_means_quiet() {
    let env = TestEnv::with_replies([Reply::says("yes")]).await;
    let run = ran(&mut pixir(&env, &["--quiet", "is it?"])).assert_exit_code(0);
    assert_eq!((run.out.as_str(), run.err.as_str()), ("yes\n", ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_one_envelope_and_events_are_the_stream() {
    let env = TestEnv::with_replies([Reply::says("one").usage(10, 4, 2), Reply::says("two")]).await;
    let envelope = ran(&mut pixir(&env, &["first one", "--json"])).assert_exit_code(0).envelope();
    assert_eq!(envelope["ok"], true);
    assert_eq!(envelope["status"], "completed");
    assert_eq!(envelope["kind"], "turn");
    assert_eq!(envelope["output"], "one");
    assert_eq!(envelope["usage"]["input_tokens"], 10);
    let id = only_id(&env);
    assert_eq!(envelope["session_id"], id);
    assert!(envelope["resume_command"].as_str().unwrap().ends_with(&format!("resume {id}")));
    assert!(envelope["error"].is_null() && envelope["duration_ms"].is_u64());

    let run = ran(&mut pixir(&env, &["--events", "resume", &id, "second"])).assert_exit_code(0);
    let events: Vec<Value> =
        run.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types.first(), Some(&"user_message"));
    assert!(types.contains(&"text_delta") && types.contains(&"assistant_message"), "{types:?}");
    assert_eq!(events.last().unwrap()["data"]["status"], "done");
    assert!(events.iter().all(|event| event["session_id"] == id.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_is_whole_or_says_that_it_is_not() {
    let env = TestEnv::with_replies([Reply::new().deltas(20_000, "x ")]).await;
    let run = ran(&mut pixir(&env, &["--events", "say", "much"])).assert_exit_code(0);
    let deltas: String = run
        .out
        .lines()
        .filter(|line| line.contains(r#""type":"text_delta""#))
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["data"]["chunk"].clone())
        .filter_map(|chunk| chunk.as_str().map(str::to_owned))
        .collect();
    let is_whole = deltas == "x ".repeat(20_000);
    assert!(is_whole || run.err.contains("live Events were dropped"), "{}", deltas.len());
    let answer = run.out.lines().find(|line| line.contains(r#""type":"assistant_message""#));
    let answer: Value = serde_json::from_str(answer.unwrap()).unwrap();
    assert_eq!(answer["data"]["text"], "x ".repeat(20_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_credential_the_first_run_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let run = ran(command_without_env(folder.path(), &["hello there"]).current_dir(&work))
        .assert_exit_code(4);
    for words in ["pixir login", "OPENAI_API_KEY", "pixir demo"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    assert_eq!(run.out, "");
    let run =
        ran(command_without_env(folder.path(), &["hello there", "--json"]).current_dir(&work))
            .assert_exit_code(4);
    let envelope = run.envelope();
    assert_eq!(envelope["error"]["kind"], "not_authenticated");
    assert!(envelope.get("session_id").is_none());
    assert!(!work.join(".pixir").exists(), "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slip_of_the_finger_costs_nothing() {
    let env = TestEnv::with_replies([]).await;
    for (args, words) in [
        (&["sesions"][..], "did you mean `sessions`"),
        (&["delegate"], "--spec"),
        (&["--frobnicate", "x"], "`--`"),
        (&["--max-iterations", "none", "x"], "max-iterations"),
        (&["resume"], "there are no Sessions in"),
        (&["resume", "20200101T000000-abcdef", "x"], "there is no Session"),
        (&["resume", "../../etc/passwd", "x"], "not a Session id"),
        (&["--cwd", "/does/not/exist", "x y"], "does not exist"),
    ] {
        let run = ran(&mut pixir(&env, args)).assert_exit_code(2);
        assert!(run.err.contains(words), "{args:?}: {}", run.err);
        assert_eq!(run.out, "", "{args:?}");
    }
    let run = ran(&mut pixir(&env, &["sesions", "--json"])).assert_exit_code(2);
    assert_eq!(run.envelope()["error"]["kind"], "invalid_args");
    assert_eq!(env.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_is_the_prompt_or_is_appended_to_it() {
    let env = TestEnv::with_replies((0..5).map(|_| Reply::says("ok"))).await;
    run_with_input(&mut pixir(&env, &[]), b"all of it\n").assert_exit_code(0);
    run_with_input(&mut pixir(&env, &["review"]), b"the diff\n").assert_exit_code(0);
    run_with_input(&mut pixir(&env, &["bytes", "-"]), b"caf\xff").assert_exit_code(0);
    let last = run_with_input(&mut pixir(&env, &["no", "more"]), b"").assert_exit_code(0);
    assert!(!last.err.contains("silent"), "{}", last.err);
    run_with_input(&mut pixir(&env, &[]), b" \n").assert_exit_code(2);
    ran(&mut pixir(&env, &[])).assert_exit_code(2);
    run_with_input(&mut pixir(&env, &["x", "y"]), &vec![b'a'; 9 << 20]).assert_exit_code(2);
    let texts: Vec<String> =
        env.requests().iter().map(|request| request.user_texts()[0].to_owned()).collect();
    assert_eq!(texts, ["all of it", "review\n\nthe diff", "bytes\n\ncaf\u{fffd}", "no more"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_but_silent_pipe_does_not_hang_a_run_with_a_prompt() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    let mut child = pixir(&env, &["quick", "one"]).stdin(Stdio::piped()).spawn().unwrap();
    let pipe = child.stdin.take();
    let run = finish(child).assert_exit_code(0);
    assert!(run.err.contains("open but silent"), "{}", run.err);
    drop(pipe);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_signal_stops_the_turn_and_leaves_evidence() {
    for name in ["INT", "TERM", "HUP"] {
        let env =
            TestEnv::with_replies([Reply::new().text("half of ").stalls(), Reply::says("whole")])
                .await;
        let child = pixir(&env, &["go on", "--json"]).spawn().unwrap();
        wait_for_requests(&env, 1).await;
        signal(&child, name);
        let run = finish(child).assert_exit_code(130);
        assert_eq!(run.envelope()["status"], "interrupted", "{name}");
        let log = std::fs::read_to_string(only_log(&env)).unwrap();
        let last = log.lines().last().unwrap();
        assert!(last.contains("turn_failed") && last.contains("interrupted"), "{name}: {last}");
        ran(&mut pixir(&env, &["resume", "--last", "again"])).assert_exit_code(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_ends_the_run_quietly() {
    let env = TestEnv::with_replies([Reply::new().text("half").stalls()]).await;
    let mut child = pixir(&env, &["go on"]).spawn().unwrap();
    wait_for_requests(&env, 1).await;
    drop(child.stdout.take());
    let run = finish(child).assert_exit_code(130);
    assert_eq!(run.err, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_written_is_an_error() {
    let env = TestEnv::with_replies([Reply::says("lost"), Reply::says("lost")]).await;
    for args in [&["hello", "there"][..], &["hello", "there", "--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let run = ran(pixir(&env, args).stdout(full)).assert_exit_code(1);
        assert!(run.err.contains("stdout cannot be written"), "{}", run.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_open_elsewhere_is_busy_and_says_where() {
    let env = TestEnv::with_replies([Reply::new().text("half").stalls()]).await;
    let child = pixir(&env, &["go on"]).spawn().unwrap();
    wait_for_requests(&env, 1).await;
    let id = only_id(&env);
    let pid = child.id();
    let run = ran(&mut pixir(&env, &["resume", &id, "me too"])).assert_exit_code(5);
    assert!(run.err.contains(&pid.to_string()), "{}", run.err);
    ran(&mut pixir(&env, &["sessions", "delete", &id])).assert_exit_code(5);
    let listed = ran(&mut pixir(&env, &["sessions"])).assert_exit_code(0);
    assert!(listed.out.contains(&format!("running ({pid})")), "{}", listed.out);
    signal(&child, "INT");
    finish(child).assert_exit_code(130);
    let listed = ran(&mut pixir(&env, &["sessions"])).assert_exit_code(0);
    assert!(listed.out.contains("interrupted") && listed.out.contains("go on"), "{}", listed.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_found_from_elsewhere_and_deleted_by_name() {
    let env = TestEnv::with_replies([Reply::says("one"), Reply::says("two")]).await;
    ran(&mut pixir(&env, &["first", "prompt"])).assert_exit_code(0);
    let id = only_id(&env);
    let elsewhere = env.home().join("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    let run =
        ran(pixir(&env, &["resume", &id, "more"]).current_dir(&elsewhere)).assert_exit_code(0);
    assert_eq!(run.out, "two\n");
    assert!(run.err.contains(env.workspace().to_str().unwrap()), "{}", run.err);
    let all = ran(pixir(&env, &["sessions", "--all", "--json"]).current_dir(&elsewhere))
        .assert_exit_code(0);
    let listed = &all.envelope()["output"][0];
    assert_eq!((&listed["title"], &listed["turns"]), (&"first prompt".into(), &2.into()));
    assert_eq!(listed["status"], "answered");
    let here =
        ran(pixir(&env, &["sessions", "--json"]).current_dir(&elsewhere)).assert_exit_code(0);
    assert_eq!(here.envelope()["output"], serde_json::json!([]));
    let gone = ran(&mut pixir(&env, &["sessions", "delete", &id])).assert_exit_code(0);
    assert!(gone.out.contains(&id), "{}", gone.out);
    ran(&mut pixir(&env, &["resume", &id, "more"])).assert_exit_code(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_log_is_found_and_repaired_as_a_copy() {
    let env = TestEnv::with_replies([Reply::says("the truth"), Reply::says("on")]).await;
    ran(&mut pixir(&env, &["what", "is"])).assert_exit_code(0);
    let log = only_log(&env);
    let id = only_id(&env);
    ran(&mut pixir(&env, &["verify", &id])).assert_exit_code(0);
    let forged = std::fs::read_to_string(&log).unwrap().replace("the truth", "the fruit");
    std::fs::write(&log, &forged).unwrap();
    let run = ran(&mut pixir(&env, &["verify", &id])).assert_exit_code(1);
    assert!(run.out.contains("line 4, offset") && run.out.contains("broken_proof"), "{}", run.out);
    let all = ran(&mut pixir(&env, &["verify", "--all", "--json"])).assert_exit_code(1).envelope();
    assert_eq!((&all["ok"], &all["error"]["kind"]), (&false.into(), &"log_damaged".into()));
    let repaired = ran(&mut pixir(&env, &["repair", &id, "--json"])).assert_exit_code(0).envelope();
    let copy = repaired["session_id"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), forged, "the original is untouched");
    ran(&mut pixir(&env, &["verify", copy])).assert_exit_code(0);
    ran(&mut pixir(&env, &["resume", copy, "go on"])).assert_exit_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_setting_is_named_and_a_workspace_cannot_break_a_run() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    let config = env.home().join(".pixir/config.json");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, r#"{"retry": {"max_atempts": 3}}"#).unwrap();
    let run = ran(&mut pixir(&env, &["hello there"])).assert_exit_code(2);
    for words in ["retry.max_atempts", "retry.max_attempts", config.to_str().unwrap()] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    std::fs::write(&config, r#"{"model": "of-the-user"}"#).unwrap();
    std::fs::create_dir_all(env.workspace().join(".pixir")).unwrap();
    env.write(".pixir/config.json", r#"{"model": "of-the-work", "bash": {"env": ["X"]}}"#);
    let run = ran(&mut pixir(&env, &["hello there"])).assert_exit_code(0);
    assert!(run.err.contains("`bash.env` ignored"), "{}", run.err);
    assert_eq!(env.requests()[0].body["model"], "of-the-work");
}

#[tokio::test(flavor = "multi_thread")]
async fn endings_have_their_exit_codes() {
    let refused = r#"{"error":{"code":"invalid_api_key","message":"no"}}"#;
    for (reply, code) in [
        (Reply::status(401, refused), 4),
        (Reply::new().incomplete("max_output_tokens"), 6),
        (Reply::new().refusal("I will not."), 6),
        (Reply::status(400, r#"{"error":{"message":"bad"}}"#), 1),
    ] {
        let env = TestEnv::with_replies([reply]).await;
        let run = ran(&mut pixir(&env, &["hello there"])).assert_exit_code(code);
        assert_eq!(run.out, "", "no answer, no stdout");
        assert!(run.err.contains("error: "), "{}", run.err);
    }
    let env =
        TestEnv::with_replies([Reply::new().text("half").incomplete("max_output_tokens")]).await;
    let run = ran(&mut pixir(&env, &["hello there", "--json"])).assert_exit_code(6);
    let envelope = run.envelope();
    assert_eq!((&envelope["ok"], &envelope["status"]), (&false.into(), &"incomplete".into()));
    assert!(run.err.contains("the answer was cut: max_output_tokens"), "{}", run.err);
    ran(&mut pixir(&env, &["--cwd", "/proc", "hello there"])).assert_exit_code(7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_takes_no_more_ends_the_run_with_its_own_code() {
    let env = TestEnv::with_replies([Reply::says("never asked")]).await;
    // The limit fits the first line of the Log only: later writes fail as on a full disk.
    let script = format!("trap '' XFSZ; ulimit -f 1; exec {PIXIR} hello there");
    let command = pixir(&env, &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env_clear().envs(
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))),
    );
    let run = ran(shell
        .current_dir(env.workspace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped()))
    .assert_exit_code(7);
    assert!(run.err.contains("cannot be written"), "{}", run.err);
    assert_eq!(env.requests().len(), 0, "no request is sent");
}

#[test]
fn a_demo_of_a_workflow_says_where_its_folder_is_or_leaves_none() {
    let home = tempfile::tempdir().unwrap();
    let folders = || -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_str().unwrap().contains("pixir-demo-")).collect()
    };
    let demo = |args: &[&str]| {
        let mut command = command_without_env(home.path(), args);
        ran(command.env("TMPDIR", home.path()).current_dir(home.path())).assert_exit_code(0)
    };
    let run = demo(&["demo", "migrate"]);
    let [folder] = &folders()[..] else { panic!("{:?}", folders()) };
    assert!(run.err.contains(&format!("rm -r {}", folder.display())), "{}", run.err);
    std::fs::remove_dir_all(folder).unwrap();
    let run = demo(&["demo", "migrate", "--quiet"]);
    assert_eq!((run.err.as_str(), folders()), ("", Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_works_with_nothing_and_can_be_resumed() {
    let home = tempfile::tempdir().unwrap();
    let run = ran(command_without_env(home.path(), &["demo"]).current_dir(home.path()))
        .assert_exit_code(0);
    for words in ["2 of 4 checks failed", "all 4 checks passed", "+    total=", " holds: "] {
        assert!(run.out.contains(words), "{words}: {}", run.out);
    }
    let resume = run.out.lines().find(|line| line.contains(" resume ")).unwrap();
    let again = Command::new("sh")
        .args(["-c", resume])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let answer = String::from_utf8(again.stdout).unwrap();
    assert!(again.status.success() && answer.contains("1 earlier turn"), "{answer}");
    let (_, place) = resume.split_once("--cwd ").unwrap();
    std::fs::remove_dir_all(place.split(' ').next().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tracing_is_off_unless_asked_for_and_never_on_stdout() {
    let env = TestEnv::with_replies([Reply::says("ok"), Reply::says("ok")]).await;
    let run =
        ran(pixir(&env, &["-q", "hello there"]).env("PIXIR_LOG", "debug")).assert_exit_code(0);
    assert_eq!(run.out, "ok\n");
    let file = env.workspace().join("trace.log");
    let path = file.to_str().unwrap();
    let run = ran(&mut pixir(&env, &["-q", "hello there", "--log-file", path])).assert_exit_code(0);
    assert_eq!((run.out.as_str(), run.err.as_str()), ("ok\n", ""));
    assert!(file.exists());
    ran(pixir(&env, &["hello there"]).env("PIXIR_LOG", "no=such=level")).assert_exit_code(2);
}

#[test]
fn help_version_and_completions_need_nothing() {
    let home = tempfile::tempdir().unwrap();
    for args in
        [&["--help"][..], &["-h"], &["--version"], &["help", "resume"], &["completions", "bash"]]
    {
        let run = ran(&mut command_without_env(home.path(), args)).assert_exit_code(0);
        assert!(!run.out.is_empty() && run.err.is_empty(), "{args:?}");
    }
}
