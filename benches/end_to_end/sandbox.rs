//! Cost of the sandbox: the same command with and without it, alternating, in one process.

use std::path::Path;
use std::time::{Duration, Instant};

use pixir::SandboxLevel;
use pixir::workbench::{Workbench, WorkbenchSetup};
use serde_json::json;
use tokio::runtime::Runtime;

use super::table::median;

/// How many commands of each kind are measured.
const COMMANDS: usize = 200;
/// How many first commands of a Session are measured; each starts a Supervisor.
const FIRSTS: usize = 20;

/// Medians without and with the sandbox.
pub struct Cost {
    /// A command after the first ones of its Session.
    pub next: [Duration; 2],
    /// The first command of a Session.
    pub first: [Duration; 2],
}

pub fn measure_sandbox() -> Cost {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir_all(folder.path().join(".git/hooks")).unwrap();
    std::fs::write(folder.path().join(".git/config"), "").unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let levels = [SandboxLevel::Off, SandboxLevel::Workspace];
    let benches = levels.map(|level| open_workbench(folder.path(), level));
    let mut next = [Vec::new(), Vec::new()];
    let mut first = [Vec::new(), Vec::new()];
    for round in 0..COMMANDS + 5 {
        for (times, bench) in next.iter_mut().zip(&benches) {
            let time = timed(&runtime, bench);
            // The first few create what later ones reuse.
            if round >= 5 {
                times.push(time);
            }
        }
    }
    for _ in 0..FIRSTS {
        for (times, level) in first.iter_mut().zip(levels) {
            times.push(timed(&runtime, &open_workbench(folder.path(), level)));
        }
    }
    Cost {
        next: next.map(|mut times| median(&mut times)),
        first: first.map(|mut times| median(&mut times)),
    }
}

fn open_workbench(folder: &Path, level: SandboxLevel) -> Workbench {
    let setup = WorkbenchSetup {
        own_binary: env!("CARGO_BIN_EXE_pixir").into(),
        folder,
        environment: ["PATH", "HOME"]
            .into_iter()
            .filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
            .collect(),
        subreaper: false,
        drain: Duration::from_millis(100),
        grace: Duration::from_millis(300),
    };
    Workbench::with_config(setup, |config| config.sandbox.level = level).unwrap()
}

fn timed(runtime: &Runtime, bench: &Workbench) -> Duration {
    let began = Instant::now();
    let answer = runtime.block_on(bench.call("bash", json!({"command": "true"}))).unwrap();
    let taken = began.elapsed();
    assert!(answer.ok, "{}", answer.text);
    taken
}
