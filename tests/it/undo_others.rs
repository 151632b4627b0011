//! Undo while a person and another Session work in the same files.

mod random;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pixir::scripted::{ModelScript, Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::leaks;
use crate::support::sign_in_env::run_command;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::{DEADLINE, log_files, newest_log};

/// A change from outside the Session whose Turn is undone.
#[derive(Debug, Clone)]
enum OutsideChange {
    Save(&'static str, String),
    Remove(&'static str),
    /// Another Session has a Turn with these calls.
    Session(Vec<(&'static str, Value)>),
    /// Another Session has a Turn with these calls in a folder of the Workspace.
    SessionIn(&'static str, Vec<(&'static str, Value)>),
}

/// One reply of the model, and changes from outside before it and while its command runs.
#[derive(Debug, Default)]
struct Step {
    before: Vec<OutsideChange>,
    call: Option<(&'static str, Value)>,
    during: Vec<OutsideChange>,
}

fn bash(command: &str) -> Step {
    Step { call: Some(("bash", json!({ "command": command }))), ..Step::default() }
}

fn write(path: &str, content: &str) -> Step {
    let call = Some(("write", json!({ "path": path, "content": content })));
    Step { call, ..Step::default() }
}

impl Step {
    fn after(self, before: OutsideChange) -> Self {
        Self { before: vec![before], ..self }
    }

    fn beside(self, during: OutsideChange) -> Self {
        Self { during: vec![during], ..self }
    }
}

fn save(path: &'static str, content: &str) -> OutsideChange {
    OutsideChange::Save(path, content.to_owned())
}

/// Last content of each file that others changed; `None` for a removed file.
type Contents = Arc<Mutex<BTreeMap<PathBuf, Option<String>>>>;

type Threads = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// A Workspace in which a Session, another one and a person work.
struct ThreeWriters {
    env: Arc<TestEnv>,
    /// The model of the other Session, which runs as long as this environment.
    _other: Arc<ScriptedServer>,
    threads: Threads,
    of_others: Contents,
}

/// The means of the first Session's model to make changes from outside.
struct OutsideChanges {
    env: Weak<TestEnv>,
    url: String,
    replies: Arc<Mutex<VecDeque<Reply>>>,
    of_others: Contents,
}

impl OutsideChanges {
    fn perform(&self, what: &OutsideChange) {
        let env = self.env.upgrade().unwrap();
        let before = files_in(&env);
        self.apply(what, &env);
        let after = files_in(&env);
        let mut of_others = self.of_others.lock().unwrap();
        for path in before.keys().chain(after.keys()) {
            if before.get(path) != after.get(path) {
                of_others.insert(path.clone(), after.get(path).cloned());
            }
        }
    }

    fn apply(&self, what: &OutsideChange, env: &TestEnv) {
        let place = |path: &str| env.workspace().join(path);
        match what {
            OutsideChange::Save(path, content) => {
                fs::create_dir_all(place(path).parent().unwrap()).unwrap();
                fs::write(place(path), content).unwrap();
            }
            OutsideChange::Remove(path) => drop(fs::remove_file(place(path))),
            OutsideChange::Session(calls) => self.session_in(env, &env.workspace(), calls),
            OutsideChange::SessionIn(folder, calls) => {
                fs::create_dir_all(place(folder)).unwrap();
                self.session_in(env, &place(folder), calls);
            }
        }
    }

    fn session_in(&self, env: &TestEnv, folder: &Path, calls: &[(&'static str, Value)]) {
        let calls = calls.iter().map(|(name, args)| Reply::calls(name, args.clone()));
        self.replies.lock().unwrap().extend(calls.chain([Reply::says("done")]));
        let mut command = env.command(&["second work"]);
        let run = run_command(command.env("OPENAI_BASE_URL", &self.url).current_dir(folder))
            .assert_exit_code(0);
        leaks::check_stream(&format!("{}{}", run.out, run.err));
    }
}

impl ThreeWriters {
    async fn new(steps: Vec<Step>) -> Self {
        let replies = Arc::new(Mutex::new(VecDeque::new()));
        let queue = Arc::clone(&replies);
        let other = ScriptedServer::start(ModelScript::answering(move |_| {
            queue.lock().unwrap().pop_front().unwrap_or_else(|| Reply::says("nothing left"))
        }));
        let other = Arc::new(other.await.unwrap());
        let actors: Arc<OnceLock<OutsideChanges>> = Arc::default();
        let threads: Threads = Arc::default();
        let steps = Mutex::new(steps.into_iter().enumerate());
        let script = {
            let actors = Arc::clone(&actors);
            let threads = Arc::clone(&threads);
            ModelScript::answering(move |_| {
                let next = steps.lock().unwrap().next();
                let Some((number, step)) = next else { return Reply::says("done") };
                // Blocking in place, so that the model of the other Session can answer.
                let act =
                    || step.before.iter().for_each(|what| actors.get().unwrap().perform(what));
                tokio::task::block_in_place(act);
                let Some((name, mut args)) = step.call else { return Reply::says("done") };
                if !step.during.is_empty() {
                    let command = args["command"].as_str().unwrap();
                    args["command"] = json!(format!(
                        "touch ignored.ready{number}; until [ -e ignored.go{number} ]; do sleep 0.02; done; {command}"
                    ));
                    let actors = Arc::clone(&actors);
                    let during = step.during;
                    let act = move || act_meanwhile(actors.get().unwrap(), number, &during);
                    threads.lock().unwrap().push(std::thread::spawn(act));
                }
                Reply::calls(name, args)
            })
        };
        let env = Arc::new(TestEnv::with_script(script).await);
        env.write(".gitignore", "ignored*\n");
        let url = other.base_url();
        let weak_env = Arc::downgrade(&env);
        let of_others: Contents = Arc::default();
        let kept = Arc::clone(&of_others);
        let all = OutsideChanges { env: weak_env, url, replies, of_others: kept };
        actors.set(all).ok().unwrap();
        Self { env, _other: other, threads, of_others }
    }

    /// Runs the Turn of the first Session, and gives its id.
    fn turn(&self) -> String {
        self.env.run_pixir(&["first work"]).assert_exit_code(0);
        for thread in self.threads.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
        self.session("first work")
    }

    /// The Session whose Log contains a text.
    fn session(&self, words: &str) -> String {
        let is_meant = |log: &PathBuf| fs::read_to_string(log).unwrap().contains(words);
        let log = log_files(&self.env.workspace()).into_iter().find(is_meant).unwrap();
        log.file_stem().unwrap().to_str().unwrap().to_owned()
    }

    fn files(&self) -> Files {
        files_in(&self.env)
    }

    fn refused(&self, id: &str) -> String {
        let before = self.files();
        let refused = self.env.run_pixir(&["undo", "--yes", id]).assert_exit_code(1);
        assert_eq!(self.files(), before, "nothing was touched");
        refused.err
    }
}

type Files = BTreeMap<PathBuf, String>;

/// Every file that is not ignored.
fn files_in(env: &TestEnv) -> Files {
    let root = env.workspace();
    let mut files = Files::new();
    let mut waiting = vec![root.clone()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                waiting.extend((name != ".pixir").then(|| entry.path()));
            } else if !name.starts_with("ignored") {
                let path = entry.path().strip_prefix(&root).unwrap().to_owned();
                files.insert(path, fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    files
}

/// Waits until the command of this number runs, makes the changes, and lets the command continue.
fn act_meanwhile(actors: &OutsideChanges, number: usize, during: &[OutsideChange]) {
    let workspace = actors.env.upgrade().unwrap().workspace();
    let started = Instant::now();
    while !workspace.join(format!("ignored.ready{number}")).exists() {
        assert!(started.elapsed() < DEADLINE, "the command never ran");
        std::thread::sleep(Duration::from_millis(10));
    }
    for what in during {
        actors.perform(what);
    }
    fs::write(workspace.join(format!("ignored.go{number}")), "").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_person_saves_between_two_commands_stays() {
    let writers = ThreeWriters::new(vec![
        bash("echo two > a.txt; mkdir new; echo new > new/made.txt"),
        bash("echo two > b.txt").after(save("mine.txt", "saved\n")),
        bash("rm c.txt").after(OutsideChange::Remove("old.txt")),
        write("tool.txt", "written\n").after(save("late.txt", "saved\n")),
    ])
    .await;
    for name in ["a.txt", "b.txt", "c.txt", "mine.txt", "old.txt"] {
        writers.env.write(name, "one\n");
    }
    let before = writers.files();
    let id = writers.turn();
    let after = writers.files();

    let refusal = writers.refused(&id);
    assert!(refusal.contains("changed while a command ran"), "{refusal}");
    assert!(refusal.contains("a.txt, b.txt, c.txt, new/made.txt"), "{refusal}");
    assert!(!refusal.contains("mine.txt") && refusal.contains("--force"), "{refusal}");
    let looked = writers.env.run_pixir(&["undo", &id, "--dry-run"]).assert_exit_code(0).out;
    assert!(looked.contains("because it changed between commands: mine.txt, old.txt"), "{looked}");
    assert!(
        looked.contains(" *restore a.txt") && looked.contains("  remove  tool.txt"),
        "{looked}"
    );

    writers.env.run_pixir(&["undo", "--yes", &id, "--force"]).assert_exit_code(0);
    let mut expected = before;
    expected.insert("mine.txt".into(), "saved\n".into());
    expected.insert("late.txt".into(), "saved\n".into());
    expected.remove(Path::new("old.txt"));
    assert_eq!(writers.files(), expected);
    assert!(!writers.env.workspace().join("new").exists());
    writers.env.run_pixir(&["redo", "--yes", &id]).assert_exit_code(0);
    assert_eq!(writers.files(), after);
    let log = fs::read_to_string(newest_log(&writers.env.workspace())).unwrap();
    assert!(log.contains(r#""overwritten":[]"#), "nothing from outside was overwritten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_another_session_writes_stays() {
    let theirs = |number: usize| {
        let made = format!("echo theirs > command{number}.txt; mkdir -p by{number}/other");
        OutsideChange::Session(vec![
            ("write", json!({"path": format!("tool{number}.txt"), "content": "theirs\n"})),
            ("bash", json!({ "command": made })),
        ])
    };
    let writers = ThreeWriters::new(vec![
        bash("echo two > a.txt"),
        bash("echo three >> a.txt").after(theirs(1)),
        bash("echo two > b.txt").beside(theirs(2)),
    ])
    .await;
    writers.env.write("a.txt", "one\n");
    let before = writers.files();
    let id = writers.turn();
    let after = writers.files();

    let refusal = writers.refused(&id);
    assert!(
        refusal.contains("a.txt, b.txt, command2.txt") && !refusal.contains("tool"),
        "{refusal}"
    );
    let looked =
        writers.env.run_pixir(&["undo", &id, "--dry-run", "--json"]).assert_exit_code(0).envelope();
    let claimed: BTreeSet<&str> = looked["output"]["claimed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|claimed| claimed["path"].as_str().unwrap())
        .collect();
    assert_eq!(claimed, BTreeSet::from(["tool2.txt"]));
    assert_eq!(looked["output"]["foreign"], json!(["command1.txt", "tool1.txt"]));
    // Commands of both Sessions ran during this change, so neither Record proves its author.
    let notes = looked["output"]["notes"].to_string();
    assert!(notes.contains("ran at the same time, and may have changed: command2.txt"), "{notes}");

    writers.env.run_pixir(&["undo", "--yes", &id, "--force"]).assert_exit_code(0);
    let mut expected = before;
    for name in ["tool1.txt", "tool2.txt", "command1.txt"] {
        expected.insert(name.into(), "theirs\n".into());
    }
    assert_eq!(writers.files(), expected);
    assert!(writers.env.workspace().join("by1/other").is_dir());
    assert!(!writers.env.workspace().join("by2").exists());
    writers.env.run_pixir(&["redo", "--yes", &id]).assert_exit_code(0);
    assert_eq!(writers.files(), after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_session_in_a_workspace_inside_writes_is_named() {
    let theirs = vec![("write", json!({"path": "tool.txt", "content": "theirs\n"}))];
    let inside = OutsideChange::SessionIn("inside", theirs);
    let writers = ThreeWriters::new(vec![bash("echo two > a.txt").beside(inside)]).await;
    writers.env.write("a.txt", "one\n");
    let id = writers.turn();
    let refusal = writers.refused(&id);
    assert!(
        refusal.contains("a.txt, inside/tool.txt were changed while a command ran"),
        "{refusal}"
    );
    // A command of this Session could have written the Record itself.
    let looked = writers.env.run_pixir(&["undo", &id, "--dry-run"]).assert_exit_code(0).out;
    assert!(
        looked.contains("ran at the same time, and may have changed: inside/tool.txt"),
        "{looked}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_person_saves_while_a_command_runs_is_not_lost_by_a_yes() {
    let writers = ThreeWriters::new(vec![
        write("tool.txt", "written\n"),
        bash("echo two > a.txt").beside(save("mine.txt", "saved\n")),
    ])
    .await;
    writers.env.write("mine.txt", "one\n");
    let id = writers.turn();
    let refusal = writers.refused(&id);
    assert!(
        refusal.contains(
            "a.txt, mine.txt were changed while a command ran, by it or by another program"
        ),
        "{refusal}"
    );
    let mut terminal = TestTerminal::run(&writers.env, &["undo", &id], &[]);
    terminal.wait_for_text("mine.txt");
    assert_eq!(terminal.wait_for_exit(), Some(1), "no question is asked");
    assert_eq!(writers.env.read("mine.txt"), "saved\n");
    // `--force` shows the file again, and redo brings it back.
    let mut terminal = TestTerminal::run(&writers.env, &["undo", &id, "--force"], &[]);
    terminal.wait_for_text(" *restore mine.txt");
    terminal.wait_for_text("Take this back?");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert_eq!(writers.env.read("mine.txt"), "one\n");
    writers.env.run_pixir(&["redo", "--yes", &id]).assert_exit_code(0);
    assert_eq!(writers.env.read("mine.txt"), "saved\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_a_person_saves_between_two_writes_of_a_turn_is_in_conflict() {
    let edit = |old: &str, new: &str| Step {
        call: Some((
            "edit",
            json!({"path": "a.txt", "edits": [{"old_string": old, "new_string": new}]}),
        )),
        ..Step::default()
    };
    let read = Step { call: Some(("read", json!({"path": "a.txt"}))), ..Step::default() };
    let writers = ThreeWriters::new(vec![
        edit("one", "two"),
        read.after(save("a.txt", "two, and what a person added\n")),
        edit("two", "three"),
        write("b.txt", "new\n"),
    ])
    .await;
    writers.env.write("a.txt", "one\n");
    let id = writers.turn();
    assert_eq!(writers.env.read("a.txt"), "three, and what a person added\n");
    let refusal = writers.refused(&id);
    assert!(refusal.contains("a.txt was changed outside this session"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_saved_after_a_background_command_ended_stays() {
    let start = json!({
        "command": "until [ -e ignored.go ]; do sleep 0.02; done; echo made > background.txt",
        "background": true,
    });
    let wait = json!({"id": "b1", "wait_ms": 60_000});
    let writers = ThreeWriters::new(vec![
        Step { call: Some(("bash", start)), ..Step::default() },
        write("tool.txt", "written\n"),
        Step { call: Some(("bash_output", wait)), ..Step::default() }.after(save("ignored.go", "")),
        bash("true").after(save("mine.txt", "saved\n")),
    ])
    .await;
    let id = writers.turn();
    let refusal = writers.refused(&id);
    assert!(refusal.contains("background.txt") && !refusal.contains("mine.txt"), "{refusal}");
    assert!(!refusal.contains("tool.txt"), "{refusal}");
    writers.env.run_pixir(&["undo", "--yes", &id, "--force"]).assert_exit_code(0);
    let left: Vec<PathBuf> = writers.files().into_keys().collect();
    assert_eq!(left, [Path::new(".gitignore"), Path::new("mine.txt")]);
}
