//! Hostile checkouts: files are planted at every path that Pixir touches below a Workspace. Nothing
//! outside changes, no command hangs, and planted state is not used.
//!
//! The paths come from recorded system calls of Pixir, so a path that a later version touches is
//! covered without being listed here.

mod checkout;
mod checks;
mod model;
mod plant;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pixir::scripted::ScriptedServer;

use crate::support::leaks;
use crate::support::test_env::PIXIR;
use crate::support::torture::{self, SuiteSize};
use checkout::{HostileCheckout, ProbeCommand};
use checks::{Finding, FindingKind, StateBefore};
use plant::PlantKind;

/// Paths touched by one command, by pattern.
type TouchedPaths = BTreeMap<String, BTreeSet<PathBuf>>;

/// One kind of planted file at all paths of a pattern, and commands that touch them.
#[derive(Debug, Clone)]
struct PlantCase {
    pattern: String,
    kind: PlantKind,
    probes: Vec<usize>,
}

/// Findings by number of the command.
type CaseFindings = Vec<(usize, Vec<Finding>)>;

/// An environment that is copied for every case, the commands, and the paths that they touch.
struct HostileSuite {
    folder: tempfile::TempDir,
    template: HostileCheckout,
    probes: Vec<ProbeCommand>,
    /// Paths at which files can be planted, by pattern.
    places: BTreeMap<String, BTreeSet<PathBuf>>,
    /// Touched patterns of every command.
    touched: Vec<BTreeSet<String>>,
    copies: AtomicUsize,
}

impl HostileSuite {
    /// Makes the environment and records the paths that every command touches in it.
    fn record(servers: &[ScriptedServer]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("template");
        fs::create_dir(&root).unwrap();
        let (template, ids) = HostileCheckout::full(root, &servers[0]);
        let probes = checkout::probes(&ids);
        let places = BTreeMap::new();
        let touched = Vec::new();
        let copies = AtomicUsize::new(0);
        let mut suite = Self { folder, template, probes, places, touched, copies };
        // Commands that leave the Sessions unchanged share an environment.
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

    fn copy(&self) -> HostileCheckout {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        self.template
            .copy(self.folder.path().canonicalize().unwrap().join(format!("copy-{number}")))
    }

    /// Runs commands where nothing is planted; gives the touched paths.
    fn trace(&self, server: &ScriptedServer, numbers: &[usize]) -> Vec<(usize, TouchedPaths)> {
        let env = self.copy();
        let mut traced = Vec::new();
        for number in numbers {
            let probe = &self.probes[*number];
            let before = StateBefore::capture(&env, PlantKind::Garbage, &[]);
            let records = tempfile::tempdir().unwrap();
            let record = records.path().join("trace");
            let ended = env.run(&trace::prefix(&record), &probe.words(), server);
            let wrong = before.findings(&env, PlantKind::Garbage, &[], &ended, server);
            assert!(wrong.is_empty(), "{}, where nothing is planted: {wrong:#?}", probe.name);
            let code = Some(probe.code);
            assert_eq!(
                ended.code, code,
                "{}, where nothing is planted: {}",
                probe.name, ended.output
            );
            let mut touched = TouchedPaths::new();
            for path in trace::touched(&record, Path::new(PIXIR), &env.work()) {
                touched.entry(trace::pattern(&path)).or_default().insert(path);
            }
            traced.push((*number, touched));
        }
        env.remove();
        traced
    }

    /// Keeps the predictable paths: those that exist, those without a variable part, and
    /// contents that more than one command touched.
    fn keep(&mut self, mut records: Vec<(usize, TouchedPaths)>) {
        records.sort_by_key(|(number, _)| *number);
        let records: Vec<TouchedPaths> = records.into_iter().map(|(_, touched)| touched).collect();
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

    /// Every pattern with every kind, each with some of the commands that touch it. The selection differs
    /// between kinds, so that every command is used.
    fn plant_cases(&self, seed: u64, most: usize) -> Vec<PlantCase> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut cases = Vec::new();
        for (pattern, _) in self.places.iter().filter(|(_, places)| !places.is_empty()) {
            let all = self.touched.iter().enumerate();
            let all = all.filter(|(_, touched)| touched.contains(pattern)).map(|(probe, _)| probe);
            let mut turns: Vec<usize> = all.collect();
            random.shuffle(&mut turns);
            for kind in PlantKind::ALL.into_iter().filter(|kind| kind.is_possible()) {
                let mut probes: Vec<usize> = turns.iter().copied().take(most).collect();
                // In the order of the list, because the last commands remove what the others need.
                probes.sort_unstable();
                cases.push(PlantCase { pattern: pattern.clone(), kind, probes });
                let length = turns.len();
                turns.rotate_left(most % length);
            }
        }
        cases
    }

    fn name(&self, case: &PlantCase, probe: usize) -> String {
        format!("{}|{:?}|{}", case.pattern, case.kind, self.probes[probe].name)
    }

    /// Whether the user asked for the effect: a file named on the command line is read wherever it leads, and a
    /// Session is deleted with all files beside it.
    fn is_asked_for(&self, case: &PlantCase, probe: usize, finding: &Finding) -> bool {
        let probe = &self.probes[probe];
        match finding.fault {
            FindingKind::Read => probe.args.contains(&case.pattern),
            FindingKind::PlantedStateUsed => {
                probe.name == "delete" && case.kind == PlantKind::OtherOwner
            }
            _ => false,
        }
    }

    /// Plants, runs and checks one command after the other.
    fn run_and_check(&self, case: &PlantCase, server: &ScriptedServer) -> CaseFindings {
        let paths: Vec<PathBuf> = self.places[&case.pattern].iter().cloned().collect();
        let mut checked = CaseFindings::new();
        let mut waiting = case.probes.iter().copied().peekable();
        while waiting.peek().is_some() {
            let env = self.copy();
            let is_planted = plant::plant(&env, &paths, case.kind);
            let planted = checks::identity(&env, &paths);
            // An environment is used until a command has removed the planted file.
            while is_planted && planted == checks::identity(&env, &paths) {
                let Some(probe) = waiting.next() else { break };
                let before = StateBefore::capture(&env, case.kind, &paths);
                let ended = env.run(&[], &self.probes[probe].words(), server);
                let mut findings = before.findings(&env, case.kind, &paths, &ended, server);
                let is_clean = findings.is_empty();
                findings.retain(|finding| !self.is_asked_for(case, probe, finding));
                checked.push((probe, findings));
                if !is_clean {
                    break;
                }
            }
            env.remove();
            if !is_planted {
                break;
            }
        }
        checked
    }
}

/// Runs `count` jobs on one thread per server; gives the results in order.
fn share<T: Send>(
    servers: &[ScriptedServer],
    count: usize,
    work: impl Fn(&ScriptedServer, usize) -> T + Sync,
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

async fn servers() -> Vec<ScriptedServer> {
    leaks::start_process_scan();
    let mut servers = Vec::new();
    for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(4) {
        servers.push(ScriptedServer::start(model::script()).await.unwrap());
    }
    servers
}

/// Paths that Pixir certainly touches; a missing one means that the recording is incomplete.
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
        torture::print_summary("hostile checkout: SKIPPED, strace cannot run here");
        return;
    }
    let servers = servers().await;
    let seed = torture::seed();
    let (summary, problems) =
        tokio::task::spawn_blocking(move || run(&servers, seed)).await.unwrap();
    torture::print_summary(&summary);
    let shown = problems.join("\n");
    assert!(
        problems.is_empty(),
        "{} problems; repeat one with PIXIR_CELL='…':\n{shown}",
        problems.len()
    );
}

/// Runs the cases; gives a summary and the findings by case.
fn run(servers: &[ScriptedServer], seed: u64) -> (String, Vec<String>) {
    let suite = HostileSuite::record(servers);
    for known in KNOWN {
        let is_planted = suite.places.get(*known).is_some_and(|places| !places.is_empty());
        assert!(is_planted, "{known} is not among {:#?}", suite.places.keys());
    }
    assert!(suite.places.len() >= 80, "{:#?}", suite.places.keys());
    let size = SuiteSize::from_environment();
    let mut cases = suite.plant_cases(seed, size.choose(2, 4));
    if let Ok(wanted) = std::env::var("PIXIR_CELL") {
        cases = suite.plant_cases(seed, usize::MAX);
        for case in &mut cases {
            let own = case.clone();
            case.probes.retain(|probe| suite.name(&own, *probe).contains(&wanted));
        }
    } else {
        fastrand::Rng::with_seed(seed).shuffle(&mut cases);
        cases.truncate(size.choose(40, usize::MAX));
    }
    let checked =
        share(servers, cases.len(), |server, number| suite.run_and_check(&cases[number], server));
    let checked = cases.iter().zip(&checked);
    let checked: Vec<(&PlantCase, usize, &Vec<Finding>)> = checked
        .flat_map(|(case, all)| all.iter().map(move |(probe, findings)| (case, *probe, findings)))
        .collect();
    let has = |findings: &[Finding], fault| findings.iter().any(|finding| finding.fault == fault);
    let count = |fault| checked.iter().filter(|(_, _, findings)| has(findings, fault)).count();
    let summary = format!(
        "hostile checkout: {} paths, {} cells, {} effects outside, {} hangs, {} believed, {} deaths, seed={seed}",
        suite.places.len(),
        checked.len(),
        count(FindingKind::Outside),
        count(FindingKind::Hang),
        count(FindingKind::PlantedStateUsed) + count(FindingKind::Read),
        count(FindingKind::Crash),
    );
    let problems = checked.iter().flat_map(|(case, probe, findings)| {
        let name = suite.name(case, *probe);
        findings.iter().map(move |finding| format!("{name}: {:?}: {}", finding.fault, finding.text))
    });
    (summary, problems.collect())
}

/// The checks report every effect of a bad program on planted files.
#[tokio::test(flavor = "multi_thread")]
async fn the_checks_report_a_program_that_follows_what_is_planted() {
    let server = ScriptedServer::start(model::script()).await.unwrap();
    let accused = |kind: PlantKind, path: &str, script: &str| -> Vec<FindingKind> {
        let folder = tempfile::tempdir().unwrap();
        let env = HostileCheckout::bare(folder.path().canonicalize().unwrap());
        let paths = [PathBuf::from(path)];
        assert!(plant::plant(&env, &paths, kind), "{kind:?} at {path}");
        let before = StateBefore::capture(&env, kind, &paths);
        let program = ["sh", "-c", script, "sh"].map(str::to_owned);
        let ended = env.run_program(&program, &[path], &server, Duration::from_secs(10));
        let findings = before.findings(&env, kind, &paths, &ended, &server);
        let mut faults: Vec<FindingKind> =
            findings.into_iter().map(|finding| finding.fault).collect();
        faults.dedup();
        faults
    };
    let last = ".pixir/snapshots/last";
    assert_eq!(accused(PlantKind::LinkToFile, last, "true"), []);
    assert_eq!(accused(PlantKind::LinkToFile, last, "echo x > $1"), [FindingKind::Outside]);
    assert_eq!(accused(PlantKind::LinkToFile, last, "chmod 600 $1"), [FindingKind::Outside]);
    assert_eq!(accused(PlantKind::LinkToFile, last, "touch $1"), [FindingKind::Outside]);
    assert_eq!(accused(PlantKind::LinkToFile, last, "mv $1 x; echo x > $1"), []);
    assert_eq!(accused(PlantKind::LinkToFile, last, "cat $1 > copy"), [FindingKind::Read]);
    assert_eq!(accused(PlantKind::LinkToFile, last, "cat $1"), [FindingKind::Read]);
    assert_eq!(accused(PlantKind::LinkToNothing, last, "echo x > $1"), [FindingKind::Outside]);
    assert_eq!(
        accused(PlantKind::LinkToFolder, ".pixir/snapshots", "echo x > $1/y"),
        [FindingKind::Outside]
    );
    assert_eq!(accused(PlantKind::LinkToOriginal, "src", "rm $1/lib.rs"), [FindingKind::Outside]);
    assert_eq!(accused(PlantKind::LinkToHome, last, "echo x >> $1"), [FindingKind::Outside]);
    let hooks = "mkdir -p .git/hooks; echo x > $1";
    assert_eq!(accused(PlantKind::LinkToGitHooks, last, hooks), [FindingKind::Outside]);
    assert_eq!(accused(PlantKind::HardLink, last, "echo x >> $1"), [FindingKind::Outside]);
    assert_eq!(accused(PlantKind::HardLink, last, "cat $1; rm $1"), []);
    assert_eq!(accused(PlantKind::HardLink, "src/lib.rs", "echo x >> $1"), []);
    assert_eq!(
        accused(PlantKind::HardLink, "src/lib.rs", "echo x > ../elsewhere"),
        [FindingKind::Outside]
    );
    assert_eq!(accused(PlantKind::Fifo, last, "cat $1"), [FindingKind::Hang]);
    assert_eq!(
        accused(PlantKind::Claims, ".pixir/config.json", "touch believed.txt"),
        [FindingKind::PlantedStateUsed]
    );
    assert_eq!(accused(PlantKind::Garbage, last, "kill -ABRT $$"), [FindingKind::Crash]);
    assert_eq!(accused(PlantKind::Garbage, last, "exit 101"), [FindingKind::Crash]);
    assert_eq!(accused(PlantKind::Swapped, last, "echo x > ../beside"), [FindingKind::Outside]);
}
