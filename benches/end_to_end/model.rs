//! The scripted model in a separate process, which answers by the words of the prompt.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply, ScriptedServer};
use serde_json::json;

use super::measured_process;

/// The role of the model's process.
pub const ROLE: &str = "__model";

/// Lines of `book.txt` that one call reads.
const PAGE: usize = 120;

/// Serves until the process is killed; writes the bodies of all requests to a folder if one is given.
pub fn serve(folder: Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let count = AtomicUsize::new(0);
        let script = ModelScript::answering(move |request| {
            // The benchmark needs the time of the first byte.
            println!(
                "{}",
                measured_process::now().saturating_sub(request.arrived.elapsed()).as_nanos()
            );
            if let Some(folder) = &folder {
                let number = count.fetch_add(1, Ordering::Relaxed).to_string();
                std::fs::write(Path::new(folder).join(number), &request.body_text).unwrap();
            }
            answer(request)
        });
        let server = ScriptedServer::start(script).await.unwrap();
        println!("{}", server.base_url());
        std::io::stdout().flush().unwrap();
        std::future::pending::<()>().await;
    });
}

fn answer(request: &ReceivedRequest) -> Reply {
    let texts = request.user_texts();
    let mut words = texts.last().copied().unwrap_or_default().split(' ');
    let what = words.next().unwrap_or_default();
    let wanted: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let done = request.outputs().len();
    match what {
        // No two calls are the same, because Pixir would stop them as a doom loop.
        "bash" if done < wanted => Reply::calls("bash", json!({"command": format!("true {done}")})),
        "read" if done < wanted => {
            Reply::calls("read", json!({"path": "file.txt", "offset": done + 1}))
        }
        "pages" if done < wanted => {
            let (offset, limit) = (done * PAGE + 1, PAGE);
            Reply::calls("read", json!({"path": "book.txt", "offset": offset, "limit": limit}))
        }
        "flood" if done == 0 => {
            let command = format!("head -c {wanted} /dev/zero | tr '\\0' x");
            Reply::calls("bash", json!({ "command": command }))
        }
        "deltas" => Reply::new().deltas(wanted, "word "),
        _ => Reply::says("That is all."),
    }
}

/// A running model process, killed on drop.
pub struct Model {
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    pub base_url: String,
}

impl Model {
    pub fn start(keep: Option<&Path>) -> Self {
        let mut command = measured_process::role(ROLE);
        command.args(keep).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let base_url = lines.next().unwrap().unwrap();
        Self { process, lines, base_url }
    }

    /// Arrival times of the next `count` requests.
    pub fn arrivals(&mut self, count: usize) -> Vec<Duration> {
        let lines = self.lines.by_ref().take(count);
        lines.map(|line| Duration::from_nanos(line.unwrap().parse().unwrap())).collect()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
