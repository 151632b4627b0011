//! Hostile checkouts: something is planted at every path that Pixir touches below a Workspace. Nothing
//! outside changes, nothing hangs, and nothing is believed.
//!
//! The paths come from a record of Pixir's own system calls, so a path that a later version touches is
//! covered without being listed here.

mod judge;
mod model;
mod plant;
mod scene;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pixir::scripted::Server;

use crate::support::house::PIXIR;
use crate::support::leaks;
use crate::support::torture::{self, Size};
use judge::{Before, Fault, Finding};
use plant::Kind;
use scene::{Probe, Scene};

/// What one command touched: every pattern with the paths that have it.
type Touched = BTreeMap<String, BTreeSet<PathBuf>>;

/// Something planted at all paths of a pattern, and commands that touch them.
#[derive(Debug, Clone)]
struct Cell {
    pattern: String,
    kind: Kind,
    probes: Vec<usize>,
}

/// What is wrong after a command, by its number.
type Judged = Vec<(usize, Vec<Finding>)>;

/// A scene that is copied for every cell, the commands, and what they touch.
struct Suite {
    folder: tempfile::TempDir,
    template: Scene,
    probes: Vec<Probe>,
    /// For every pattern, the paths at which something can be planted.
    places: BTreeMap<String, BTreeSet<PathBuf>>,
    /// For every command, the patterns that it touches.
    touched: Vec<BTreeSet<String>>,
    copies: AtomicUsize,
}

impl Suite {
    /// Makes the scene and records what every command touches in it.
    fn record(servers: &[Server]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("template");
        fs::create_dir(&root).unwrap();
        let (template, ids) = Scene::full(root, &servers[0]);
        let probes = scene::probes(&ids);
        let (places, touched, copies) = (BTreeMap::new(), Vec::new(), AtomicUsize::new(0));
        let mut suite = Self { folder, template, probes, places, touched, copies };
        // Commands that leave the Sessions as they are share a scene.
        let (calm, rough): (Vec<usize>, Vec<usize>) =
            (0..suite.probes.len()).partition(|number| suite.probes[*number].is_calm);
        let calm = calm.chunks(calm.len().div_ceil(servers.len())).map(<[usize]>::to_vec);
        let groups: Vec<Vec<usize>> =
            calm.chain(rough.into_iter().map(|number| vec![number])).collect();
        let records =
            share(servers, groups.len(), |server, group| suite.trace(server, &groups[group]));
        suite.keep(records.into_iter().flatten().collect());
        suite
    }

    fn copy(&self) -> Scene {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        self.template
            .copy(self.folder.path().canonicalize().unwrap().join(format!("copy-{number}")))
    }

    /// Runs commands where nothing is planted, and gives what they touched.
    fn trace(&self, server: &Server, numbers: &[usize]) -> Vec<(usize, Touched)> {
        let scene = self.copy();
        let mut traced = Vec::new();
        for number in numbers {
            let probe = &self.probes[*number];
            let before = Before::of(&scene, Kind::Garbage, &[]);
            let records = tempfile::tempdir().unwrap();
            let record = records.path().join("trace");
            let ended = scene.run(&trace::prefix(&record), &probe.words(), server);
            let wrong = before.findings(&scene, Kind::Garbage, &[], &ended, server);
            assert!(wrong.is_empty(), "{}, where nothing is planted: {wrong:#?}", probe.name);
            let code = Some(probe.code);
            assert_eq!(
                ended.code, code,
                "{}, where nothing is planted: {}",
                probe.name, ended.output
            );
            let mut touched = Touched::new();
            for path in trace::touched(&record, Path::new(PIXIR), &scene.work()) {
                touched.entry(trace::pattern(&path)).or_default().insert(path);
            }
            traced.push((*number, touched));
        }
        scene.remove();
        traced
    }

    /// Keeps the paths that can be foreseen: those that are there, those without a variable part, and
    /// contents that more than one command touched.
    fn keep(&mut self, mut records: Vec<(usize, Touched)>) {
        records.sort_by_key(|(number, _)| *number);
        let records: Vec<Touched> = records.into_iter().map(|(_, touched)| touched).collect();
        let mut count: BTreeMap<&PathBuf, usize> = BTreeMap::new();
        for path in records.iter().flat_map(BTreeMap::values).flatten() {
            *count.entry(path).or_default() += 1;
        }
        for (pattern, paths) in records.iter().flatten() {
            let is_random = pattern.contains("<session>") || pattern.contains("<hex>");
            let is_foreseen = |path: &&PathBuf| {
                self.template.work().join(path).symlink_metadata().is_ok()
                    || path.to_str() == Some(pattern)
                    || (count[path] > 1 && !is_random)
            };
            let places = self.places.entry(pattern.clone()).or_default();
            places.extend(paths.iter().filter(is_foreseen).cloned());
        }
        self.touched = records.iter().map(|touched| touched.keys().cloned().collect()).collect();
    }

    /// Every pattern with every kind, each with some of the commands that touch it. Which ones differs
    /// from kind to kind, so that all have their turn.
    fn cells(&self, seed: u64, most: usize) -> Vec<Cell> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut cells = Vec::new();
        for (pattern, _) in self.places.iter().filter(|(_, places)| !places.is_empty()) {
            let all = self.touched.iter().enumerate();
            let all = all.filter(|(_, touched)| touched.contains(pattern)).map(|(probe, _)| probe);
            let mut turns: Vec<usize> = all.collect();
            random.shuffle(&mut turns);
            for kind in Kind::ALL.into_iter().filter(|kind| kind.is_possible()) {
                let mut probes: Vec<usize> = turns.iter().copied().take(most).collect();
                // In the order of the list, whose end leaves little for others.
                probes.sort_unstable();
                cells.push(Cell { pattern: pattern.clone(), kind, probes });
                let length = turns.len();
                turns.rotate_left(most % length);
            }
        }
        cells
    }

    fn name(&self, cell: &Cell, probe: usize) -> String {
        format!("{}|{:?}|{}", cell.pattern, cell.kind, self.probes[probe].name)
    }

    /// Whether the user asked for it: a file that the command line names is read wherever it leads, and a Session
    /// that is deleted goes with all that lies beside it.
    fn is_asked_for(&self, cell: &Cell, probe: usize, finding: &Finding) -> bool {
        let probe = &self.probes[probe];
        match finding.fault {
            Fault::Read => probe.args.contains(&cell.pattern),
            Fault::Believed => probe.name == "delete" && cell.kind == Kind::OtherOwner,
            _ => false,
        }
    }

    /// Plants, runs and judges one command after the other.
    fn judge(&self, cell: &Cell, server: &Server) -> Judged {
        let paths: Vec<PathBuf> = self.places[&cell.pattern].iter().cloned().collect();
        let mut judged = Judged::new();
        let mut waiting = cell.probes.iter().copied().peekable();
        while waiting.peek().is_some() {
            let scene = self.copy();
            let is_planted = plant::plant(&scene, &paths, cell.kind);
            let planted = judge::identity(&scene, &paths);
            // A scene is used until a command has taken away what was planted.
            while is_planted && planted == judge::identity(&scene, &paths) {
                let Some(probe) = waiting.next() else { break };
                let before = Before::of(&scene, cell.kind, &paths);
                let ended = scene.run(&[], &self.probes[probe].words(), server);
                let mut findings = before.findings(&scene, cell.kind, &paths, &ended, server);
                let is_clean = findings.is_empty();
                findings.retain(|finding| !self.is_asked_for(cell, probe, finding));
                judged.push((probe, findings));
                if !is_clean {
                    break;
                }
            }
            scene.remove();
            if !is_planted {
                break;
            }
        }
        judged
    }
}

/// Does pieces of work on as many threads as there are servers, and gives the results in order.
fn share<T: Send>(
    servers: &[Server],
    count: usize,
    work: impl Fn(&Server, usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::default();
    std::thread::scope(|scope| {
        for server in servers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let result = work(server, number);
                    done.lock().unwrap().push((number, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

async fn servers() -> Vec<Server> {
    leaks::watch();
    let mut servers = Vec::new();
    for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(4) {
        servers.push(Server::start(model::script()).await.unwrap());
    }
    servers
}

/// Paths that Pixir touches for sure; where one is missing, the record is not what it should be.
const KNOWN: &[&str] = &[
    ".git",
    ".git/HEAD",
    ".mcp.json",
    ".pixir",
    ".pixir/config.json",
    ".pixir/sessions",
    ".pixir/sessions/<session>",
    ".pixir/sessions/<session>.ndjson",
    ".pixir/sessions/<session>/blobs/<digest>",
    ".pixir/sessions/<session>/resources/<digest>",
    ".pixir/sessions/<session>/snapshots/<n>.ndjson",
    ".pixir/skills/tidy/SKILL.md",
    ".pixir/snapshots",
    ".pixir/snapshots/<xx>",
    ".pixir/snapshots/<xx>/<digest>",
    ".pixir/snapshots/last",
    "AGENTS.md",
    "src/lib.rs",
];

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_planted_nothing_outside_changes_nothing_hangs_and_nothing_is_believed() {
    if !trace::is_possible() {
        torture::say("hostile checkout: SKIPPED, strace cannot run here");
        return;
    }
    let servers = servers().await;
    let seed = torture::seed();
    let (summary, problems) =
        tokio::task::spawn_blocking(move || run(&servers, seed)).await.unwrap();
    torture::say(&summary);
    let shown = problems.join("\n");
    assert!(
        problems.is_empty(),
        "{} problems; repeat one with PIXIR_CELL='…':\n{shown}",
        problems.len()
    );
}

/// Runs the cells; gives a summary and what is wrong, by cell.
fn run(servers: &[Server], seed: u64) -> (String, Vec<String>) {
    let suite = Suite::record(servers);
    for known in KNOWN {
        let is_planted = suite.places.get(*known).is_some_and(|places| !places.is_empty());
        assert!(is_planted, "{known} is not among {:#?}", suite.places.keys());
    }
    assert!(suite.places.len() >= 80, "{:#?}", suite.places.keys());
    let size = Size::asked();
    let mut cells = suite.cells(seed, size.of(2, 4));
    if let Ok(wanted) = std::env::var("PIXIR_CELL") {
        cells = suite.cells(seed, usize::MAX);
        for cell in &mut cells {
            let own = cell.clone();
            cell.probes.retain(|probe| suite.name(&own, *probe).contains(&wanted));
        }
    } else {
        fastrand::Rng::with_seed(seed).shuffle(&mut cells);
        cells.truncate(size.of(40, usize::MAX));
    }
    let judged = share(servers, cells.len(), |server, number| suite.judge(&cells[number], server));
    let judged = cells.iter().zip(&judged);
    let judged: Vec<(&Cell, usize, &Vec<Finding>)> = judged
        .flat_map(|(cell, all)| all.iter().map(move |(probe, findings)| (cell, *probe, findings)))
        .collect();
    let has = |findings: &[Finding], fault| findings.iter().any(|finding| finding.fault == fault);
    let count = |fault| judged.iter().filter(|(_, _, findings)| has(findings, fault)).count();
    let summary = format!(
        "hostile checkout: {} paths, {} cells, {} effects outside, {} hangs, {} believed, {} deaths, seed={seed}",
        suite.places.len(),
        judged.len(),
        count(Fault::Outside),
        count(Fault::Hang),
        count(Fault::Believed) + count(Fault::Read),
        count(Fault::Death),
    );
    let problems = judged.iter().flat_map(|(cell, probe, findings)| {
        let name = suite.name(cell, *probe);
        findings.iter().map(move |finding| format!("{name}: {:?}: {}", finding.fault, finding.text))
    });
    (summary, problems.collect())
}

/// The judge can accuse: whatever a bad program does through what is planted is found.
#[tokio::test(flavor = "multi_thread")]
async fn the_judge_accuses_a_program_that_follows_what_is_planted() {
    let server = Server::start(model::script()).await.unwrap();
    let accused = |kind: Kind, path: &str, script: &str| -> Vec<Fault> {
        let folder = tempfile::tempdir().unwrap();
        let scene = Scene::bare(folder.path().canonicalize().unwrap());
        let paths = [PathBuf::from(path)];
        assert!(plant::plant(&scene, &paths, kind), "{kind:?} at {path}");
        let before = Before::of(&scene, kind, &paths);
        let program = ["sh", "-c", script, "sh"].map(str::to_owned);
        let ended = scene.run_program(&program, &[path], &server, Duration::from_secs(10));
        let findings = before.findings(&scene, kind, &paths, &ended, &server);
        let mut faults: Vec<Fault> = findings.into_iter().map(|finding| finding.fault).collect();
        faults.dedup();
        faults
    };
    let last = ".pixir/snapshots/last";
    assert_eq!(accused(Kind::LinkToFile, last, "true"), []);
    assert_eq!(accused(Kind::LinkToFile, last, "echo x > $1"), [Fault::Outside]);
    assert_eq!(accused(Kind::LinkToFile, last, "chmod 600 $1"), [Fault::Outside]);
    assert_eq!(accused(Kind::LinkToFile, last, "touch $1"), [Fault::Outside]);
    assert_eq!(accused(Kind::LinkToFile, last, "mv $1 x; echo x > $1"), []);
    assert_eq!(accused(Kind::LinkToFile, last, "cat $1 > copy"), [Fault::Read]);
    assert_eq!(accused(Kind::LinkToFile, last, "cat $1"), [Fault::Read]);
    assert_eq!(accused(Kind::LinkToNothing, last, "echo x > $1"), [Fault::Outside]);
    assert_eq!(accused(Kind::LinkToFolder, ".pixir/snapshots", "echo x > $1/y"), [Fault::Outside]);
    assert_eq!(accused(Kind::LinkToOriginal, "src", "rm $1/lib.rs"), [Fault::Outside]);
    assert_eq!(accused(Kind::LinkToHome, last, "echo x >> $1"), [Fault::Outside]);
    let hooks = "mkdir -p .git/hooks; echo x > $1";
    assert_eq!(accused(Kind::LinkToGitHooks, last, hooks), [Fault::Outside]);
    assert_eq!(accused(Kind::HardLink, last, "echo x >> $1"), [Fault::Outside]);
    assert_eq!(accused(Kind::HardLink, last, "cat $1; rm $1"), []);
    assert_eq!(accused(Kind::HardLink, "src/lib.rs", "echo x >> $1"), []);
    assert_eq!(accused(Kind::HardLink, "src/lib.rs", "echo x > ../elsewhere"), [Fault::Outside]);
    assert_eq!(accused(Kind::Fifo, last, "cat $1"), [Fault::Hang]);
    assert_eq!(
        accused(Kind::Claims, ".pixir/config.json", "touch believed.txt"),
        [Fault::Believed]
    );
    assert_eq!(accused(Kind::Garbage, last, "kill -ABRT $$"), [Fault::Death]);
    assert_eq!(accused(Kind::Garbage, last, "exit 101"), [Fault::Death]);
    assert_eq!(accused(Kind::Swapped, last, "echo x > ../beside"), [Fault::Outside]);
}
