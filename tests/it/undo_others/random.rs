//! Random Turns beside the changes of a person and another Session.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Files, OutsideChange, Step, ThreeWriters, bash, write};
use crate::support::torture::{self, SuiteSize};

/// The author of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Author {
    Turn,
    /// A person, or the other Session, between two commands.
    Between,
    /// A person while a command ran.
    PersonMeanwhile,
    /// A file tool of the other Session while a command ran.
    SessionToolMeanwhile,
    /// A command of the other Session while a command ran.
    SessionCommandMeanwhile,
}

/// A random Turn with changes by others, and the authors of each path.
struct RandomPlan {
    rng: fastrand::Rng,
    authors: BTreeMap<&'static str, BTreeSet<Author>>,
    sessions: usize,
}

impl RandomPlan {
    fn pick(&mut self, own: &[&'static str], author: Author) -> &'static str {
        let shared = ["both.txt", "d/both.txt"];
        let path = match self.rng.u8(..4) {
            0 => shared[self.rng.usize(..shared.len())],
            _ => own[self.rng.usize(..own.len())],
        };
        self.authors.entry(path).or_default().insert(author);
        path
    }

    fn outside(&mut self, is_meanwhile: bool) -> OutsideChange {
        let number = self.rng.u32(..);
        if self.sessions < 2 && self.rng.u8(..3) == 0 {
            self.sessions += 1;
            let author = |meanwhile| if is_meanwhile { meanwhile } else { Author::Between };
            let own = ["s1.txt", "s2.txt", "d/s3.txt"];
            let tool = self.pick(&own, author(Author::SessionToolMeanwhile));
            let command = self.pick(&own, author(Author::SessionCommandMeanwhile));
            let command = format!("mkdir -p d; echo session {number} >> {command}");
            let content = format!("session {number}\n");
            let tool = ("write", json!({"path": tool, "content": content}));
            return OutsideChange::Session(vec![tool, ("bash", json!({ "command": command }))]);
        }
        let author = if is_meanwhile { Author::PersonMeanwhile } else { Author::Between };
        let path = self.pick(&["u1.txt", "u2.txt", "d/u3.txt"], author);
        match self.rng.u8(..4) {
            0 => OutsideChange::Remove(path),
            _ => OutsideChange::Save(path, format!("person {number}\n")),
        }
    }

    fn step(&mut self) -> Step {
        let path = self.pick(&["one.txt", "two.txt", "d/three.txt"], Author::Turn);
        let number = self.rng.u32(..);
        let mut step = match self.rng.u8(..6) {
            0 | 1 => write(path, &format!("tool {number}\n")),
            2 => bash(&format!("rm -f {path}")),
            3 => bash(&format!("mkdir -p d; echo command {number} > {path}")),
            _ => bash(&format!("mkdir -p d; echo command {number} >> {path}")),
        };
        if self.rng.bool() {
            step.before.push(self.outside(false));
        }
        let is_command = step.call.as_ref().is_some_and(|(name, _)| *name == "bash");
        if is_command && self.rng.u8(..3) == 0 {
            step.during.push(self.outside(true));
        }
        step
    }

    fn is_by(&self, path: &str, wanted: &[Author]) -> bool {
        let authors = self.authors.get(path);
        authors.is_none_or(|authors| authors.iter().all(|author| wanted.contains(author)))
    }
}

/// The paths in a list of changes of the preview.
fn paths_in(preview: &Value, list: &str) -> BTreeSet<String> {
    let changes = preview["output"][list].as_array().unwrap();
    changes.iter().map(|change| change["path"].as_str().unwrap().to_owned()).collect()
}

/// Runs one sequence; gives whether the Turn could be undone without force.
async fn sequence(seed: u64) -> bool {
    let rng = fastrand::Rng::with_seed(seed);
    let mut random = RandomPlan { rng, authors: BTreeMap::new(), sessions: 0 };
    let steps = (0..random.rng.usize(2..6)).map(|_| random.step()).collect();
    let writers = ThreeWriters::new(steps).await;
    for name in ["one.txt", "two.txt", "both.txt", "u1.txt", "s1.txt"] {
        if random.rng.bool() {
            writers.env.write(name, "at first\n");
        }
    }
    let before = writers.files();
    let id = writers.turn();
    let after = writers.files();
    let place = format!("seed {seed}, {:?}", random.authors);

    let preview =
        writers.env.run_pixir(&["undo", &id, "--dry-run", "--json"]).assert_exit_code(0).envelope();
    let plain = paths_in(&preview, "changes");
    let forced = paths_in(&preview, "conflicts");
    for path in &plain {
        let by_others =
            [Author::Between, Author::SessionToolMeanwhile, Author::SessionCommandMeanwhile];
        assert!(!random.is_by(path, &by_others), "{path} is not the Turn's: {place}\n{preview}");
    }
    for path in &forced {
        let is_safe = random.is_by(path, &[Author::Between, Author::SessionToolMeanwhile]);
        assert!(!is_safe, "{path} is not the Turn's: {place}\n{preview}");
    }

    let undone = writers.env.run_pixir(&["undo", "--yes", &id]);
    let is_plain = undone.code == Some(0);
    let differs = |path: &&PathBuf, files: &Files| files.get(*path) != after.get(*path);
    let all: BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    let now = writers.files();
    for path in all.iter().filter(|path| differs(path, &now)) {
        let name = path.to_str().unwrap();
        assert!(is_plain && plain.contains(name), "{name} was lost: {place}\n{}", undone.err);
    }

    if !is_plain {
        writers.env.run_pixir(&["undo", "--yes", &id, "--force"]).assert_exit_code(0);
    }
    let now = writers.files();
    for path in &all {
        let name = path.to_str().unwrap();
        if random.is_by(name, &[Author::Turn]) && random.authors.contains_key(name) {
            assert_eq!(now.get(*path), before.get(*path), "{name} is not back: {place}");
        } else if !plain.contains(name) && !forced.contains(name) {
            assert_eq!(now.get(*path), after.get(*path), "{name} was lost: {place}");
        }
    }
    // Undo restores the content that others wrote before the Turn.
    for (path, content) in writers.of_others.lock().unwrap().iter() {
        if plain.contains(path.to_str().unwrap()) {
            assert_eq!(now.get(path), content.as_ref(), "{}: {place}", path.display());
        }
    }
    check_kept(&writers, &id, &preview, &place);
    writers.env.run_pixir(&["redo", "--yes", &id]).assert_exit_code(0);
    let since = since(&preview);
    let now = writers.files();
    for path in all.iter().filter(|path| differs(path, &now)) {
        assert!(since.contains(path.to_str().unwrap()), "redo, {}: {place}", path.display());
    }
    is_plain
}

/// The files that others changed after the Turn.
fn since(preview: &Value) -> BTreeSet<String> {
    let conflicts = preview["output"]["conflicts"].as_array().unwrap().iter();
    let since = conflicts.filter(|conflict| conflict["changed"] == "since");
    since.map(|conflict| conflict["path"].as_str().unwrap().to_owned()).collect()
}

/// Checks that the Log names content that `--force` overwrote and redo does not restore, and that it is kept.
fn check_kept(writers: &ThreeWriters, id: &str, preview: &Value, place: &str) {
    let workspace = writers.env.workspace();
    let log = workspace.join(".pixir/sessions").join(format!("{id}.ndjson"));
    let log = fs::read_to_string(log).unwrap();
    for conflict in preview["output"]["conflicts"].as_array().unwrap() {
        let Some(hash) = conflict["from"]["file"]["sha256"].as_str() else { continue };
        if conflict["changed"] == "since" {
            assert!(log.contains(hash), "{conflict} is not named: {place}");
        }
        let kept = workspace.join(".pixir/snapshots").join(&hash[..2]).join(hash);
        assert!(kept.is_file(), "{conflict} is not kept: {place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_of_a_person_or_another_session_is_lost_by_undo() {
    let started = Instant::now();
    let seed = torture::seed();
    let count = SuiteSize::from_environment().choose(8, 500);
    let mut plain = 0;
    for number in 0..count as u64 {
        plain += usize::from(sequence(seed.wrapping_mul(1000).wrapping_add(number)).await);
    }
    let is_mixed = (1..count).contains(&plain);
    assert!(is_mixed || count < 500, "{plain} of {count} Turns were taken back without force");
    let seconds = started.elapsed().as_secs_f64();
    torture::print_summary(&format!(
        "undo beside others: {count} of 500 sequences, {plain} taken back without force, nothing of others lost, \
         seed={seed}, {seconds:.1} s"
    ));
}
