//! A scenario: a home folder, a Workspace, a prompt, and the requests that Pixir makes for it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::measured_process::{self, Run};
use super::minimal_client;
use super::model::Model;
use super::table::median;

/// When Pixir forces its Log to the disk.
#[derive(Debug, Clone, Copy)]
pub enum Durability {
    None,
    Turn,
}

/// A scenario that is measured many times.
pub struct Scenario {
    folder: TempDir,
    arguments: Vec<String>,
    requests: usize,
    /// The role of the client that Pixir is compared with.
    baseline: &'static str,
}

impl Scenario {
    /// One prompt in a new Session. Pixir runs once, and its requests are kept for the minimal client.
    pub fn new(prompt: &str) -> Self {
        Self::unrecorded(prompt).record_requests()
    }

    /// One prompt that is compared with a client in this role.
    pub fn with_baseline(baseline: &'static str, prompt: &str) -> Self {
        Self { baseline, ..Self::unrecorded(prompt) }.record_requests()
    }

    fn unrecorded(prompt: &str) -> Self {
        let arguments = vec![prompt.to_owned()];
        Self {
            folder: create_bench_folder(),
            arguments,
            requests: 0,
            baseline: minimal_client::ROLE,
        }
    }

    /// One prompt in a Workspace with `files` more files, a hundred in each folder.
    pub fn among_files(prompt: &str, files: usize) -> Self {
        let scenario = Self::unrecorded(prompt);
        for number in 0..files {
            let folder = scenario.workspace().join(format!("folder-{}", number / 100));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(format!("file-{number}")), number.to_string()).unwrap();
        }
        scenario.record_requests()
    }

    /// One prompt in a Session that already has a Turn.
    pub fn resuming(first: &str, prompt: &str) -> Self {
        let mut scenario = Self::new(first);
        let logs = std::fs::read_dir(scenario.workspace().join(".pixir/sessions")).unwrap();
        let name = logs.map(|log| log.unwrap().file_name().into_string().unwrap()).next().unwrap();
        let id = name.trim_end_matches(".ndjson").to_owned();
        scenario.arguments = vec!["resume".to_owned(), id, prompt.to_owned()];
        scenario.record_requests()
    }

    fn record_requests(mut self) -> Self {
        let bodies = self.bodies();
        std::fs::remove_dir_all(&bodies).ok();
        std::fs::create_dir(&bodies).unwrap();
        let model = Model::start(Some(&bodies));
        measured_process::run(&mut self.pixir(&model, Durability::None));
        self.requests = std::fs::read_dir(bodies).unwrap().count();
        self
    }

    /// How many bytes of requests one run uploads over this transport.
    pub fn uploaded_bytes(&self, transport: &str) -> u64 {
        let bodies = self.bodies();
        std::fs::remove_dir_all(&bodies).unwrap();
        std::fs::create_dir(&bodies).unwrap();
        let model = Model::start(Some(&bodies));
        measured_process::run(
            self.pixir(&model, Durability::None).env("PIXIR_TRANSPORT", transport),
        );
        let files = std::fs::read_dir(bodies).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    /// Runs the minimal client, Pixir without syncing and Pixir with its defaults, alternating, `count` times
    /// each.
    pub fn run_alternating(&self, count: usize) -> [Vec<Run>; 3] {
        self.alternate_commands(count, |model| self.commands(model))
    }

    fn alternate_commands<const N: usize>(
        &self,
        count: usize,
        commands: impl Fn(&Model) -> [Command; N],
    ) -> [Vec<Run>; N] {
        let mut model = Model::start(None);
        let mut runs = std::array::from_fn(|_| Vec::new());
        for _ in 0..count {
            for (runs, command) in runs.iter_mut().zip(&mut commands(&model)) {
                let run = measured_process::run(command);
                let arrivals = model.arrivals(self.requests);
                let first_byte = arrivals.first().map(|first| first.saturating_sub(run.started));
                runs.push(Run { first_byte, ..run });
            }
        }
        runs
    }

    /// Peak memory of the commands of `run_alternating`, `count` runs each.
    pub fn peaks(&self, count: usize) -> [Vec<u64>; 3] {
        let model = Model::start(None);
        let commands = self.commands(&model);
        commands.map(|command| (0..count).map(|_| measured_process::peak(&command)).collect())
    }

    fn commands(&self, model: &Model) -> [Command; 3] {
        [
            self.baseline(model),
            self.pixir(model, Durability::None),
            self.pixir(model, Durability::Turn),
        ]
    }

    /// Runs two binaries without syncing, alternating, `count` times each.
    pub fn run_binaries_alternating(&self, binaries: [&Path; 2], count: usize) -> [Vec<Run>; 2] {
        self.alternate_commands(count, |model| self.commands_of(binaries, model))
    }

    /// Peak memory of two binaries, `count` runs each.
    pub fn peaks_of(&self, binaries: [&Path; 2], count: usize) -> [Vec<u64>; 2] {
        let model = Model::start(None);
        let commands = self.commands_of(binaries, &model);
        commands.map(|command| (0..count).map(|_| measured_process::peak(&command)).collect())
    }

    fn commands_of(&self, binaries: [&Path; 2], model: &Model) -> [Command; 2] {
        binaries.map(|binary| self.prepared(Command::new(binary), model, Durability::None))
    }

    fn pixir(&self, model: &Model, durability: Durability) -> Command {
        self.prepared(measured_process::pixir(), model, durability)
    }

    fn prepared(&self, mut command: Command, model: &Model, durability: Durability) -> Command {
        command
            .args(&self.arguments)
            .current_dir(self.workspace())
            .env("HOME", self.folder.path())
            .env("OPENAI_API_KEY", "sk-of-the-benchmark")
            .env("OPENAI_BASE_URL", &model.base_url)
            .env("PIXIR_DURABILITY", <&str>::from(durability));
        command
    }

    fn baseline(&self, model: &Model) -> Command {
        let mut command = measured_process::role(self.baseline);
        let address = model.base_url.trim_start_matches("http://").trim_end_matches("/v1");
        command.arg(address).arg(self.bodies()).current_dir(self.workspace());
        command
    }

    fn workspace(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn bodies(&self) -> PathBuf {
        self.folder.path().join("bodies")
    }
}

/// An empty home beside a Workspace that is its own git root, on the disk of the build.
fn create_bench_folder() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir_all(folder.path().join("work/.git")).unwrap();
    let lines = "one more line of a small file\n".repeat(60);
    std::fs::write(folder.path().join("work/file.txt"), lines).unwrap();
    let book = "one more line of a long book of code\n".repeat(6000);
    std::fs::write(folder.path().join("work/book.txt"), book).unwrap();
    folder
}

/// Current cost of syncing to the disk on this machine.
pub struct SyncCost {
    /// A small append to a file.
    pub append: Duration,
    /// A new file: its first bytes, and its name in the folder.
    pub new_file: Duration,
}

impl SyncCost {
    pub fn measured() -> Self {
        let folder = create_bench_folder();
        let directory = File::open(folder.path()).unwrap();
        let mut append = Vec::new();
        let mut new_file = Vec::new();
        for number in 0..60 {
            let mut file = File::create(folder.path().join(number.to_string())).unwrap();
            let mut sync = |times: &mut Vec<Duration>, name: Option<&File>| {
                file.write_all(&[b'x'; 400]).unwrap();
                let start = Instant::now();
                file.sync_data().unwrap();
                if let Some(directory) = name {
                    directory.sync_all().unwrap();
                }
                times.push(start.elapsed());
            };
            sync(&mut new_file, Some(&directory));
            sync(&mut append, None);
        }
        Self { append: median(&mut append), new_file: median(&mut new_file) }
    }
}
