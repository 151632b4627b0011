//! The handle of a background command: look at it, write to it, stop it.

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
use super::bound::cut;
use super::confined::Needs;
use super::ring::{Glance, Part, Ring};
use super::{ToolError, ToolOutput};
use crate::error::Kind;

/// How long a command that does not read is waited for.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// How long its first words, or its answer to an input, are waited for.
const FIRST_WORDS: Duration = Duration::from_secs(1);
/// How long it must have been silent to be taken for done with speaking.
const QUIET: Duration = Duration::from_millis(150);
/// The same for somebody who has time: a build may pause between two lines.
const PAUSE: Duration = Duration::from_secs(1);
/// What the lines after the output may take of the bound.
const CLOSING_ROOM: usize = 1024;

/// A background command, as its Session knows it.
#[derive(Debug)]
pub struct Handle {
    /// What the model calls it.
    pub id: String,
    /// What it runs.
    pub command: String,
    pub needs: Needs,
    pub ring: Ring,
    /// Cancelled to stop it; also by the interrupt of the Turn that started it.
    pub cancel: CancellationToken,
    is_stopped_by_call: AtomicBool,
    stdin: Mutex<Option<pipe::Sender>>,
}

impl Handle {
    /// Of a command that is about to start.
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

    /// Waits a moment for what it has to say.
    pub async fn listen(&self) {
        self.ring.settle(FIRST_WORDS, QUIET).await;
    }

    /// Waits so long for output that comes to a pause, or for its end.
    pub async fn wait(&self, patience: Duration) {
        self.ring.settle(patience, PAUSE).await;
    }

    /// Ends it, politely first, and waits until everything of it is gone.
    pub async fn stop(&self) {
        if !self.ring.is_over() {
            self.is_stopped_by_call.store(true, Ordering::Relaxed);
        }
        self.cancel.cancel();
        self.ring.ended().await;
    }

    /// Why it was stopped, for its ending.
    pub fn stopped(&self) -> &'static str {
        if self.is_stopped_by_call.load(Ordering::Relaxed) {
            "stopped"
        } else {
            "stopped with the Turn that started it"
        }
    }

    /// Writes to its standard input.
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
                        .next("look what it does with bash_output, and send only the rest"));
                }
            }
        }
        Ok(())
    }

    /// Closes its standard input: it reads to the end, and no more can be written.
    pub async fn close_stdin(&self) {
        self.stdin.lock().await.take();
    }

    /// What there is to see of it, for the model.
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
