//! Random graphs under random faults, killed at random moments and resumed: the final files
//! are those of an undisturbed run.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::scripted_steps::{StepRequest, root_log, workflow_facts, workflow_spec};
use crate::subagents::scripted_family::check_family_logs;
use crate::support::BinaryEnv;
use crate::support::torture::{self, SuiteSize};

const READY: &str = "Done.\ncheckpoint_status: checkpoint_ready";
const FOLDERS: usize = 3;

/// The work of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepWork {
    /// Reads files and delivers a value.
    Read,
    /// Appends to a separate file in a folder that other steps may write too.
    Share(usize),
    /// Appends to a separate file in a child Workspace, which another step applies.
    Apart,
    Apply(usize),
    Review(usize),
}

impl StepWork {
    /// The write set of the step in the shared Workspace.
    fn writes(self) -> Option<String> {
        match self {
            StepWork::Share(folder) => Some(format!("d{folder}")),
            StepWork::Apply(_) => Some("apart".to_owned()),
            StepWork::Read | StepWork::Apart | StepWork::Review(_) => None,
        }
    }

    /// Whether the step must not run beside one that writes this folder.
    fn reads_folder(self, folder: &str) -> bool {
        match self {
            StepWork::Share(_) | StepWork::Apply(_) => self.writes().as_deref() == Some(folder),
            // These read all files, or have a copy of them.
            StepWork::Apart | StepWork::Review(_) => true,
            StepWork::Read => false,
        }
    }

    /// Whether two steps must not run at the same time.
    fn conflicts_with(self, other: StepWork) -> bool {
        self.writes().is_some_and(|folder| other.reads_folder(&folder))
            || other.writes().is_some_and(|folder| self.reads_folder(&folder))
    }
}

/// The fault at the first attempt of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepFault {
    None,
    Fails,
    Silent,
    Refused,
    Reset,
    Stalls,
    Crash,
}

#[derive(Debug, Clone)]
struct RandomStep {
    work: StepWork,
    fault: StepFault,
    before: Vec<usize>,
    retries: usize,
    /// Whether later steps run although it failed.
    goes_on: bool,
}

fn graph(random: &mut fastrand::Rng) -> Vec<RandomStep> {
    let mut nodes: Vec<RandomStep> = Vec::new();
    for _ in 0..random.usize(2..6) {
        let work = match random.u8(0..6) {
            0 | 1 => StepWork::Read,
            2 | 3 => StepWork::Share(random.usize(0..FOLDERS)),
            _ => StepWork::Apart,
        };
        let fault = match random.u8(0..16) {
            0 | 1 => StepFault::Fails,
            2 => StepFault::Silent,
            3 => StepFault::Refused,
            4 => StepFault::Reset,
            5 => StepFault::Stalls,
            6 => StepFault::Crash,
            _ => StepFault::None,
        };
        let before = (0..nodes.len()).filter(|_| random.u8(0..10) < 4).collect();
        let place = nodes.len();
        let retries = random.usize(0..2);
        let goes_on = random.u8(0..10) < 6;
        nodes.push(RandomStep { work, fault, before, retries, goes_on });
        if work == StepWork::Apart {
            let mut before = vec![place];
            if random.bool() {
                nodes.push(RandomStep {
                    work: StepWork::Review(place),
                    fault: StepFault::None,
                    before: vec![place],
                    retries: 0,
                    goes_on: false,
                });
                before.push(place + 1);
            }
            let work = StepWork::Apply(place);
            nodes.push(RandomStep {
                work,
                fault: StepFault::None,
                before,
                retries: 0,
                goes_on: false,
            });
        }
    }
    nodes
}

fn name(place: usize) -> String {
    format!("s{place}")
}

fn spec(nodes: &[RandomStep], random: &mut fastrand::Rng) -> Value {
    let step = |(place, node): (usize, &RandomStep)| {
        let before: Vec<String> = node.before.iter().map(|place| name(*place)).collect();
        let mut step = json!({
            "id": name(place), "depends_on": before, "retries": node.retries, "task": format!("do {place}"),
        });
        if node.goes_on {
            step["on_failure"] = json!("continue");
        }
        if node.fault == StepFault::Stalls {
            step["timeout_ms"] = json!(1500);
        }
        match node.work {
            StepWork::Read => {
                step["role"] = json!("explorer");
                step["read_set"] = json!(["nothing/**"]);
                step["output"] = json!({"type": "object", "required": ["value"], "properties": {"value": {"type": "string"}}});
            }
            StepWork::Share(folder) => {
                step["posture"] = json!("write");
                step["workspace"] = json!("shared");
                step["write_set"] = json!([format!("d{folder}/**")]);
                step["read_set"] = json!([format!("d{folder}/**")]);
                // Checks may leave files too.
                step["verify"] = json!([
                    format!("test \"$(cat d{folder}/s{place}.txt)\" = s{place}"),
                    format!("echo v{place} >> d{folder}/v{place}.txt"),
                ]);
            }
            StepWork::Apart => {
                step["posture"] = json!("write");
                step["workspace"] = json!("isolated");
                step["write_set"] = json!(["apart/**"]);
            }
            StepWork::Review(_) => step["role"] = json!("reviewer"),
            StepWork::Apply(source) => {
                step = json!({"id": name(place), "apply": name(source), "depends_on": before});
                let review =
                    node.before.iter().find(|own| matches!(nodes[**own].work, StepWork::Review(_)));
                if let Some(review) = review {
                    step["gate"] = json!(name(*review));
                }
            }
        }
        step
    };
    let steps: Vec<Value> = nodes.iter().enumerate().map(step).collect();
    let mut graph = workflow_spec(json!(steps));
    graph["limits"] = json!({"max_concurrency": random.usize(1..5)});
    graph
}

/// The expected files at the end.
fn expected(nodes: &[RandomStep]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::from([("apart/keep".to_owned(), "kept\n".to_owned())]);
    for folder in 0..FOLDERS {
        files.insert(format!("d{folder}/keep"), "kept\n".to_owned());
    }
    for (place, node) in nodes.iter().enumerate() {
        match node.work {
            StepWork::Share(folder) => {
                files.insert(format!("d{folder}/s{place}.txt"), format!("s{place}\n"));
                files.insert(format!("d{folder}/t{place}.txt"), format!("t{place}\n"));
                files.insert(format!("d{folder}/v{place}.txt"), format!("v{place}\n"));
            }
            StepWork::Apply(source) => {
                files.insert(format!("apart/s{source}.txt"), format!("apart {source}\n"));
            }
            StepWork::Read | StepWork::Apart | StepWork::Review(_) => {}
        }
    }
    files
}

fn tree(folder: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            let inside = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
            if inside == ".pixir" || inside == "flow.json" {
                continue;
            }
            if path.is_dir() {
                waiting.push(path);
            } else {
                files.insert(inside, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    files
}

/// Requests in order: number of the process, step, and Subagent.
type Asked = Arc<Mutex<Vec<(usize, usize, String)>>>;

fn script(nodes: Vec<RandomStep>, asked: Asked, epoch: Arc<Mutex<usize>>) -> ModelScript {
    let seen: Mutex<HashMap<String, Vec<String>>> = Mutex::default();
    ModelScript::answering(move |request| {
        let Some(step_request) = StepRequest::from_request(request) else {
            return Reply::status(400, "{}");
        };
        let place: usize = step_request.step()[1..].parse().unwrap();
        let attempt = {
            let mut seen = seen.lock().unwrap();
            let own = seen.entry(step_request.step().to_owned()).or_default();
            if !own.contains(&step_request.subagent) {
                own.push(step_request.subagent.clone());
            }
            own.iter().position(|own| *own == step_request.subagent).unwrap()
        };
        asked.lock().unwrap().push((*epoch.lock().unwrap(), place, step_request.subagent.clone()));
        let node = &nodes[place];
        let is_last = match node.work {
            StepWork::Share(_) => step_request.turn == 2,
            StepWork::Apart => step_request.turn == 1,
            _ => true,
        };
        if attempt == 0 && is_last {
            match node.fault {
                StepFault::Fails => return Reply::says("checkpoint_status: failed"),
                StepFault::Silent if node.work == StepWork::Apart => return Reply::says("Well."),
                StepFault::Refused => {
                    return Reply::status(400, r#"{"error": {"code": "no", "message": "no"}}"#);
                }
                StepFault::Reset => return Reply::says("half an answer").reset_at(40),
                StepFault::Stalls => return Reply::new().stalls(),
                StepFault::Crash => return Reply::new().garbage("data: {\n\n"),
                StepFault::None | StepFault::Silent => {}
            }
        }
        match (node.work, step_request.turn) {
            (StepWork::Read, _) => Reply::says(&json!({"value": name(place)}).to_string()),
            (StepWork::Share(folder), 0) => {
                let command = format!("echo s{place} >> d{folder}/s{place}.txt; sleep 0.02");
                Reply::calls("bash", json!({"command": command}))
            }
            (StepWork::Share(folder), 1) => {
                let path = format!("d{folder}/t{place}.txt");
                let content = format!("t{place}\n");
                Reply::calls("write", json!({"path": path, "content": content}))
            }
            (StepWork::Apart, 0) => {
                let command = format!("echo apart {place} >> apart/s{place}.txt");
                Reply::calls("bash", json!({"command": command}))
            }
            (StepWork::Review(_), _) => Reply::says(r#"{"verdict": "approve", "findings": []}"#),
            _ => Reply::says(READY),
        }
    })
}

/// Checks the Workflow Events of a run, also after kills.
fn check(log: &Path, nodes: &[RandomStep], context: &str) {
    let facts = workflow_facts(log);
    let mut open: Vec<usize> = Vec::new();
    let mut ready: Vec<usize> = Vec::new();
    let mut over: Vec<usize> = Vec::new();
    for fact in &facts {
        let place = fact["step_id"].as_str().map(|id| id[1..].parse::<usize>().unwrap());
        match (fact["kind"].as_str().unwrap(), place) {
            ("resumed", _) => {
                open.clear();
                let kept: Vec<String> = serde_json::from_value(fact["reused"].clone()).unwrap();
                ready.retain(|place| kept.contains(&name(*place)));
                assert_eq!(kept.len(), ready.len(), "{context}");
                over.clone_from(&ready);
            }
            ("step_scheduled", Some(place)) => {
                for before in &nodes[place].before {
                    let lets_on = nodes[*before].goes_on && over.contains(before);
                    assert!(
                        lets_on || ready.contains(before),
                        "{context}: s{place} before s{before}: {facts:#?}"
                    );
                }
                for other in &open {
                    let met = nodes[place].work.conflicts_with(nodes[*other].work);
                    assert!(!met, "{context}: s{place} beside s{other}");
                }
                open.push(place);
            }
            ("checkpoint_decided", Some(place)) => {
                let status = fact["checkpoint_status"].as_str().unwrap();
                let was_open = open.contains(&place);
                let never_began =
                    status == "held" || fact["checkpoint"]["reason"] == "not_taken_back";
                assert!(was_open != never_began, "{context}: s{place} is {status}");
                open.retain(|own| *own != place);
                assert!(!over.contains(&place), "{context}: s{place} decided again");
                over.push(place);
                if status == "checkpoint_ready" {
                    ready.push(place);
                }
            }
            ("finished", _) => {
                assert!(open.is_empty(), "{context}: finished before {open:?}");
                assert_eq!(over.len(), nodes.len(), "{context}: finished without an end of each");
            }
            _ => {}
        }
    }
    assert_eq!(ready.len(), nodes.len(), "{context}");
    assert_eq!(facts.last().unwrap()["kind"], "finished", "{context}");
}

/// Checks that requests of steps that must not run at the same time do not alternate.
fn check_turns(asked: &Asked, nodes: &[RandomStep], context: &str) {
    let asked = asked.lock().unwrap();
    for one in 0..nodes.len() {
        for two in one + 1..nodes.len() {
            if !nodes[one].work.conflicts_with(nodes[two].work) {
                continue;
            }
            let mut seen: Vec<&(usize, usize, String)> = Vec::new();
            for entry in asked.iter().filter(|entry| entry.1 == one || entry.1 == two) {
                let is_new = seen.last().is_none_or(|last| last.2 != entry.2);
                assert!(
                    !(is_new && seen.iter().any(|own| own.2 == entry.2)),
                    "{context}: s{one} and s{two} ran at the same time"
                );
                if is_new {
                    seen.push(entry);
                }
            }
        }
    }
}

/// Runs one random graph; gives the number of kills and of resumed runs.
async fn run_random_graph(seed: u64) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let nodes = graph(&mut random);
    let asked = Asked::default();
    let epoch = Arc::new(Mutex::new(0));
    let mark = BinaryEnv::new_mark();
    let env = BinaryEnv::new(mark, script(nodes.clone(), asked.clone(), epoch.clone())).await;
    let context = format!("seed {seed}");
    tokio::task::block_in_place(|| {
        for folder in 0..FOLDERS {
            std::fs::create_dir(env.workspace().join(format!("d{folder}"))).unwrap();
            std::fs::write(env.workspace().join(format!("d{folder}/keep")), "kept\n").unwrap();
        }
        std::fs::create_dir(env.workspace().join("apart")).unwrap();
        std::fs::write(env.workspace().join("apart/keep"), "kept\n").unwrap();
        let spec = spec(&nodes, &mut random).to_string();
        std::fs::write(env.workspace().join("flow.json"), spec).unwrap();
        let mut kills_left = if random.u8(0..10) < 7 { random.usize(1..3) } else { 0 };
        let mut killed = 0;
        let mut resumed = 0;
        for _ in 0..12 {
            *epoch.lock().unwrap() += 1;
            let listed = env.run(&["workflow", "status", "--json"]);
            let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
            let run = &listed["output"]["runs"][0];
            if run["status"] == "completed" {
                break;
            }
            let args = match run["workflow_id"].as_str() {
                None => vec!["workflow", "run", "flow.json", "--json"],
                Some(id) => vec!["workflow", "resume", id, "--json"],
            };
            resumed += usize::from(args[1] == "resume");
            let mut running = env.start(&args);
            if kills_left > 0 {
                kills_left -= 1;
                let until = asked.lock().unwrap().len() + random.usize(0..3 * nodes.len());
                let later = Duration::from_micros(random.u64(0..40_000));
                let is_over = |running: &mut crate::support::binary_env::RunningProcess| {
                    running.child.try_wait().unwrap().is_some()
                };
                while asked.lock().unwrap().len() < until && !is_over(&mut running) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(later);
                if !is_over(&mut running) {
                    running.signal(rustix::process::Signal::KILL);
                    killed += 1;
                }
            }
            let ended = running.end();
            let code = ended.status.code();
            assert!(matches!(code, None | Some(0 | 6)), "{context}: {ended:?}");
            env.assert_nothing_survives();
        }
        assert_eq!(tree(&env.workspace()), expected(&nodes), "{context}: {nodes:?}");
        check(&root_log(&env.workspace()), &nodes, &context);
        check_turns(&asked, &nodes, &context);
        check_family_logs(&env.workspace());
        (killed, resumed)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_happens_to_a_run_its_end_is_the_one_of_a_run_that_nothing_disturbed() {
    let count = SuiteSize::from_environment().choose(50, 500);
    let seed = torture::seed();
    let began = std::time::Instant::now();
    let mut killed = 0;
    let mut resumed = 0;
    for group in (seed..seed + count as u64).collect::<Vec<_>>().chunks(4) {
        let all = group.iter().map(|seed| tokio::spawn(run_random_graph(*seed)));
        for (ended, seed) in futures_util::future::join_all(all).await.into_iter().zip(group) {
            let (deaths, again) = ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            killed += deaths;
            resumed += again;
        }
    }
    assert!(killed * 4 > count, "{killed} kills in {count} graphs");
    assert!(resumed > 0, "no run was resumed");
    let took = began.elapsed().as_secs_f64();
    torture::print_summary(&format!(
        "workflows: {count} graphs from seed {seed}, {killed} kills, {resumed} resumes, {took:.1} s"
    ));
}
