//! Commands with process trees of every shape, ended in every way: no process survives.
//!
//! A case is a shape and a way to end. Survivors are found by a mark in the environment or the command
//! line of every process.

mod shapes;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::workbench::{Workbench, WorkbenchSetup};
use pixir::{Conversation, UserInput, verify_log};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::binary_env::RunningProcess;
use crate::support::marked_processes::{assert_gone, find_marked_processes, new_mark};
use crate::support::test_env::{DEADLINE, send_and_finish, wait_for_turn_end};
use crate::support::torture::{self, SuiteSize};
use crate::support::{BinaryEnv, TestEnv};
use shapes::{CommandShape, SHAPES, command};

/// Cases that run at the same time.
const AT_ONCE: usize = 4;

/// The way in which a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandEnd {
    /// The shell of the command exits.
    Normal,
    Timeout,
    Interrupt,
    /// Pixir gets SIGTERM.
    Term,
    /// Pixir gets SIGKILL.
    Kill,
    /// The model calls `bash_stop`.
    Stop,
    /// The Session of a background command ends.
    SessionEnd,
}

/// Name of the suite that runs without namespaces.
const WITHOUT_NAMESPACES: &str = "without namespaces";

const FOREGROUND: [CommandEnd; 5] = [
    CommandEnd::Normal,
    CommandEnd::Timeout,
    CommandEnd::Interrupt,
    CommandEnd::Term,
    CommandEnd::Kill,
];
const BACKGROUND: [CommandEnd; 6] = [
    CommandEnd::Normal,
    CommandEnd::Stop,
    CommandEnd::Interrupt,
    CommandEnd::SessionEnd,
    CommandEnd::Term,
    CommandEnd::Kill,
];

/// One shape and one way to end it.
#[derive(Clone)]
struct ShapeCase {
    shape: &'static CommandShape,
    end: CommandEnd,
    mark: String,
    python: Arc<str>,
}

impl ShapeCase {
    fn name(&self) -> String {
        format!("{} by {:?}", self.shape.name, self.end)
    }

    fn command(&self) -> String {
        command(self.shape, &self.mark, self.end != CommandEnd::Normal, &self.python)
    }

    /// Waits until all processes of the shape run, without blocking the runtime.
    async fn wait_until_up(&self, workspace: &Path) {
        let end = Instant::now() + DEADLINE;
        while !workspace.join("up").exists()
            || find_marked_processes(&self.mark).len() < self.shape.least
        {
            assert!(
                Instant::now() < end,
                "{} never came up: {:?}",
                self.name(),
                find_marked_processes(&self.mark)
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that no process is left right after the result of the call.
    #[track_caller]
    fn assert_gone_now(&self) {
        assert_eq!(find_marked_processes(&self.mark), Vec::<String>::new(), "{}", self.name());
    }

    /// Checks that the command got as far as starting its processes.
    #[track_caller]
    fn assert_was_up(&self, workspace: &Path) {
        assert!(workspace.join("up").exists(), "{} never came up", self.name());
    }

    #[track_caller]
    fn assert_gone(&self) {
        block_in_place(|| assert_gone(&self.mark, &self.name()));
    }
}

/// Path of the Python interpreter itself, not of a wrapper script.
fn python() -> Option<String> {
    let asked = std::process::Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .ok()?;
    let path = String::from_utf8(asked.stdout).ok()?.trim().to_owned();
    (asked.status.success() && !path.is_empty()).then_some(path)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// Every shape that this machine can make, with every way to end; a seeded sample unless `size` is full.
fn shape_cases(
    what: &str,
    ends: &[CommandEnd],
    size: SuiteSize,
    seed: u64,
) -> (Vec<ShapeCase>, usize) {
    let python: Arc<str> = python().unwrap_or_default().into();
    let is_possible = |shape: &&CommandShape| {
        let is_there = |program: &&str| match *program {
            "python3" => !python.is_empty(),
            program => is_installed(program),
        };
        // Without namespaces a command gets no terminal, because it could read the user's input.
        let has_terminals = what != WITHOUT_NAMESPACES || shape.name != "terminal of its own";
        shape.needs.iter().all(is_there) && has_terminals
    };
    let mut all: Vec<ShapeCase> = SHAPES
        .iter()
        .filter(is_possible)
        .flat_map(|shape| ends.iter().map(move |end| (shape, *end)))
        .map(|(shape, end)| ShapeCase { shape, end, mark: new_mark(), python: Arc::clone(&python) })
        .collect();
    let count = all.len();
    fastrand::Rng::with_seed(seed).shuffle(&mut all);
    all.truncate(size.choose(count.div_ceil(10).max(ends.len()), count));
    (all, count)
}

async fn run_all<F>(what: &str, ends: &[CommandEnd], run: impl Fn(ShapeCase) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let size = SuiteSize::from_environment();
    let seed = torture::seed();
    let began = Instant::now();
    let (cases, all) = shape_cases(what, ends, size, seed);
    assert!(!cases.is_empty(), "{what}: no shape can be made here");
    for several in cases.chunks(AT_ONCE) {
        let tasks: Vec<_> = several.iter().map(|case| tokio::spawn(run(case.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    torture::print_summary(&format!(
        "command shapes, {what}: {} of {all} cases ({} shapes, {} ends), 0 survivors, seed={seed}, {:.1} s",
        cases.len(),
        all / ends.len(),
        ends.len(),
        began.elapsed().as_secs_f64(),
    ));
}

fn results(conversation: &Conversation) -> Vec<Value> {
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["type"] == "tool_result")
        .map(|event| event["data"].clone())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_process_survives_in_the_foreground() {
    assert!(SHAPES.len() >= 20);
    run_all("foreground", &FOREGROUND, |case| async move {
        match case.end {
            CommandEnd::Term | CommandEnd::Kill => {
                signalled(&case, json!({"command": case.command()}), NamespaceMode::Namespace)
                    .await;
            }
            CommandEnd::Timeout => timed_out(&case).await,
            _ => in_a_turn(&case).await,
        }
    })
    .await;
}

async fn in_a_turn(case: &ShapeCase) {
    let arguments = json!({"command": case.command(), "timeout_ms": 60_000});
    let env = TestEnv::with_replies([Reply::calls("bash", arguments), Reply::says("ok")]).await;
    let conversation = env.start().await;
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    if case.end == CommandEnd::Interrupt {
        case.wait_until_up(&env.workspace()).await;
        conversation.interrupt().await.unwrap();
        wait_for_turn_end(&conversation).await;
        case.assert_gone();
        assert_eq!(results(&conversation).len(), 1, "{}", case.name());
        return;
    }
    wait_for_turn_end(&conversation).await;
    case.assert_gone_now();
    case.assert_was_up(&env.workspace());
    assert_eq!(results(&conversation)[0]["details"]["exit_code"], 0, "{}", case.name());
}

/// Runs a case with a time limit; a limit that ends before the shape is up is raised.
async fn timed_out(case: &ShapeCase) {
    for timeout_ms in [800, 3_000, 12_000, 50_000] {
        let arguments = json!({"command": case.command(), "timeout_ms": timeout_ms});
        let env = TestEnv::with_replies([Reply::calls("bash", arguments), Reply::says("ok")]).await;
        let (conversation, _) = env.run_turn("go").await;
        case.assert_gone_now();
        let details = &results(&conversation)[0]["details"];
        assert_eq!(details["timed_out"], true, "{}: {details}", case.name());
        if env.workspace().join("up").exists() {
            return;
        }
    }
    panic!("{} never came up", case.name());
}

/// Whether the binary may make namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamespaceMode {
    /// With the namespaces of this machine.
    Namespace,
    /// Without the right to make namespaces.
    Subreaper,
}

impl NamespaceMode {
    fn start(self, binary_env: &BinaryEnv) -> RunningProcess {
        if self == NamespaceMode::Namespace {
            return binary_env.start(&["begin now"]);
        }
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
        command.arg(binary_env.program()).arg("begin now");
        binary_env.configure_command(&mut command);
        RunningProcess::start(&mut command)
    }

    /// Whether root can start a process without the right to make namespaces.
    fn is_possible() -> bool {
        rustix::process::geteuid().is_root() && is_installed("setpriv")
    }
}

/// Sends a signal to the binary while the shape is up.
async fn signalled(case: &ShapeCase, arguments: Value, namespaces: NamespaceMode) {
    let script =
        ModelScript::answering(move |request: &ReceivedRequest| match request.outputs().len() {
            0 => Reply::calls("bash", arguments.clone()),
            _ => Reply::new().text("And so on").stalls(),
        });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let running = namespaces.start(&binary_env);
    case.wait_until_up(&binary_env.workspace()).await;
    let supervisors = binary_env.survivors();
    let is_without = supervisors.iter().any(|line| line.contains("__supervise subreaper"));
    assert_eq!(
        is_without,
        namespaces == NamespaceMode::Subreaper,
        "{}: {supervisors:?}",
        case.name()
    );
    block_in_place(|| {
        running.signal(if case.end == CommandEnd::Term { Signal::TERM } else { Signal::KILL });
        let ended = running.end();
        case.assert_gone();
        binary_env.assert_nothing_survives();
        if case.end == CommandEnd::Term {
            ended.expect_code(130);
        }
        let (id, _) = binary_env.session().unwrap();
        let verified = verify_log(&binary_env.workspace(), &id).unwrap();
        assert!(verified.ok, "{}: {:?}", case.name(), verified.breaks);
        assert_eq!(verified.open_turn.is_none(), case.end == CommandEnd::Term, "{}", case.name());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_process_survives_in_the_background() {
    run_all("background", &BACKGROUND, |case| async move {
        let arguments = json!({"command": case.command(), "background": true});
        match case.end {
            CommandEnd::Term | CommandEnd::Kill => {
                signalled(&case, arguments, NamespaceMode::Namespace).await;
            }
            _ => in_a_session(&case, arguments).await,
        }
    })
    .await;
}

async fn in_a_session(case: &ShapeCase, arguments: Value) {
    let wait = || Reply::calls("bash_output", json!({"id": "b1", "wait_ms": 20_000}));
    let end = case.end;
    let script = ModelScript::answering(move |request: &ReceivedRequest| {
        let ended = request.outputs().last().is_some_and(|output| output.contains("[b1 ended"));
        let is_told_to_stop = request.user_texts().last() == Some(&"stop it");
        match (request.outputs().len(), end) {
            (0, _) if is_told_to_stop => Reply::calls("bash_stop", json!({"id": "b1"})),
            (0, _) => Reply::calls("bash", arguments.clone()),
            (_, CommandEnd::Normal) if !ended => wait(),
            (_, CommandEnd::Interrupt) => Reply::new().text("And so on").stalls(),
            _ => Reply::says("ok"),
        }
    });
    let env = TestEnv::with_script(script).await;
    let conversation = env.start().await;
    if end == CommandEnd::Interrupt {
        conversation.send(UserInput { text: "go".into() }).await.unwrap();
        case.wait_until_up(&env.workspace()).await;
        conversation.interrupt().await.unwrap();
        wait_for_turn_end(&conversation).await;
        return case.assert_gone();
    }
    send_and_finish(&conversation, "go").await;
    if end == CommandEnd::Normal {
        case.assert_was_up(&env.workspace());
        return case.assert_gone_now();
    }
    case.wait_until_up(&env.workspace()).await;
    if end == CommandEnd::Stop {
        send_and_finish(&conversation, "stop it").await;
        case.assert_gone_now();
        assert_eq!(results(&conversation)[1]["details"]["running"], false, "{}", case.name());
        return;
    }
    drop(conversation);
    case.assert_gone();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_process_survives_without_namespaces() {
    // Only root can start the binary without namespaces; for other users, signals are tested above.
    let ends = if NamespaceMode::is_possible() { &FOREGROUND[..] } else { &FOREGROUND[..3] };
    run_all(WITHOUT_NAMESPACES, ends, |case| async move {
        match case.end {
            CommandEnd::Term | CommandEnd::Kill => {
                signalled(&case, json!({"command": case.command()}), NamespaceMode::Subreaper)
                    .await;
            }
            _ => on_the_bench(&case).await,
        }
    })
    .await;
}

async fn on_the_bench(case: &ShapeCase) {
    let folder = tempfile::tempdir().unwrap();
    let bench = Workbench::new(WorkbenchSetup {
        own_binary: env!("CARGO_BIN_EXE_pixir").into(),
        folder: folder.path(),
        environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
        subreaper: true,
        drain: Duration::from_millis(100),
        grace: Duration::from_millis(300),
    })
    .unwrap();
    let timeout_ms = if case.end == CommandEnd::Timeout { 3_000 } else { 60_000 };
    let arguments = json!({"command": case.command(), "timeout_ms": timeout_ms});
    let interrupt = async {
        if case.end == CommandEnd::Interrupt {
            case.wait_until_up(folder.path()).await;
            bench.interrupt();
        }
    };
    let (answer, ()) = tokio::join!(bench.call("bash", arguments), interrupt);
    let answer = answer.unwrap();
    // A time limit may come before the shape is up.
    if case.end != CommandEnd::Timeout {
        case.assert_was_up(folder.path());
    }
    assert_eq!(answer.details["containment"], "subreaper");
    assert_eq!(answer.details["survivors"], json!([]), "{}", case.name());
    case.assert_gone_now();
}
