//! A background command: read its output, write to its standard input, stop it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::background::Errand;
use crate::base::error::Kind;
use crate::base::text::bounded::cut;
use crate::base::tool_error::ToolError;
use crate::host::process::{Glance, Needs, Part, Ring};
use crate::tools::tool::ToolOutput;

/// How long a write waits for a command that does not read.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the first output, or the answer to an input, is awaited.
const FIRST_WORDS: Duration = Duration::from_secs(1);
/// The pause that ends a piece of output, for a caller that should return soon.
const QUIET: Duration = Duration::from_millis(150);
/// The pause for a caller that asked to wait: a build may pause between two lines.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes of the output limit reserved for the lines after the output.
const CLOSING_ROOM: usize = 1024;

/// A background command of a Session, running or ended.
#[derive(Debug)]
pub struct Handle {
    /// The id for the model, such as `b1`.
    pub id: String,
    /// The shell text that it runs.
    pub command: String,
    pub needs: Needs,
    pub ring: Ring,
    /// Cancelled to stop the command; also by the interrupt of the Turn that started it.
    pub cancel: CancellationToken,
    is_stopped_by_call: AtomicBool,
    stdin: Mutex<Option<pipe::Sender>>,
}

impl Handle {
    /// A command that is about to start.
    pub fn new(
        id: String,
        errand: &Errand,
        cancel: CancellationToken,
        stdin: pipe::Sender,
    ) -> Self {
        Self {
            id,
            command: errand.command.clone(),
            needs: errand.needs,
            ring: Ring::default(),
            cancel,
            is_stopped_by_call: AtomicBool::new(false),
            stdin: Mutex::new(Some(stdin)),
        }
    }

    /// Waits briefly for output that comes to a pause, or for the end.
    pub async fn listen(&self) {
        self.ring.settle(FIRST_WORDS, QUIET).await;
    }

    /// Waits at most `patience` for output that comes to a pause, or for the end.
    pub async fn wait(&self, patience: Duration) {
        self.ring.settle(patience, PAUSE).await;
    }

    /// Stops the command, with SIGTERM first, and waits until all its processes have ended.
    pub async fn stop(&self) {
        if !self.ring.is_over() {
            self.is_stopped_by_call.store(true, Ordering::Relaxed);
        }
        self.cancel.cancel();
        self.ring.ended().await;
    }

    /// Why the command was stopped, for its exit report.
    pub fn stopped(&self) -> &'static str {
        if self.is_stopped_by_call.load(Ordering::Relaxed) {
            "stopped"
        } else {
            "stopped with the Turn that started it"
        }
    }

    /// Writes to the standard input.
    pub async fn write(&self, text: &[u8]) -> Result<(), ToolError> {
        let mut stdin = self.stdin.lock().await;
        let mut written = 0;
        while written < text.len() {
            let Some(pipe) = stdin.as_mut() else {
                let message = format!("the standard input of {} is closed", self.id);
                return Err(ToolError::new(Kind::CommandFailed, message)
                    .details(json!({ "written_bytes": written })));
            };
            match timeout(WRITE_PATIENCE, pipe.write(&text[written..])).await {
                Ok(Ok(count)) => written += count,
                Ok(Err(_)) => *stdin = None,
                Err(_) => {
                    let (id, length) = (&self.id, text.len());
                    let message =
                        format!("{id} does not read: it took {written} of {length} bytes");
                    return Err(ToolError::new(Kind::CommandFailed, message)
                        .details(json!({ "written_bytes": written }))
                        .next("see what it does with bash_output, then send only the rest"));
                }
            }
        }
        Ok(())
    }

    /// Closes the standard input: the command reads end of file, and nothing more can be written.
    pub async fn close_stdin(&self) {
        self.stdin.lock().await.take();
    }

    /// The tool output with this part of the output, and the state of the command.
    pub fn show(&self, part: Part, output_limit: usize) -> Result<ToolOutput, ToolError> {
        let glance = self.ring.look(part);
        let limit = output_limit.saturating_sub(CLOSING_ROOM);
        let shown = cut(&glance.text, limit);
        let is_whole = shown.len() == glance.text.len() && glance.dropped == 0;
        let mut text = String::new();
        if glance.dropped > 0 {
            writeln!(text, "[{} bytes before this are no longer kept]", glance.dropped).ok();
        }
        text.push_str(if glance.text.is_empty() { "(no new output)" } else { &shown });
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let (ok, mut details, programs) = match &glance.over {
            None => {
                if let Some(path) = glance.spill.as_ref().filter(|_| !is_whole) {
                    writeln!(text, "[full output so far: {}]", path.display()).ok();
                }
                write!(text, "[{} runs]", self.id).ok();
                (true, running_facts(&glance), Vec::new())
            }
            Some(Ok(ending)) => {
                text.push_str(&ending.lines);
                (ending.ok, ending.details.clone(), ending.programs.clone())
            }
            Some(Err(error)) => return Err(error.clone()),
        };
        details["background"] = json!(self.id);
        details["running"] = json!(glance.over.is_none());
        details["dropped_bytes"] = json!(glance.dropped);
        Ok(ToolOutput { programs, ..ToolOutput::new(ok, text, details) })
    }
}

fn running_facts(glance: &Glance) -> Value {
    let path = glance.spill.as_ref().map(|path| path.to_string_lossy());
    json!({ "output_bytes": glance.total, "output_path": path })
}
