//! A background command: its output, its standard input, and how to stop it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::background::BackgroundRequest;
use crate::base::error::Kind;
use crate::base::text::bounded::cut_text;
use crate::base::tool_error::ToolError;
use crate::host::process::{OutputBuffer, OutputPart, OutputSnapshot, SandboxNeeds};
use crate::tools::tool::ToolOutput;

/// How long a write waits for a command that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first output, or the answer to an input, is awaited.
const FIRST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause that ends a piece of output, for a caller that should return soon.
const SHORT_PAUSE: Duration = Duration::from_millis(150);
/// The pause for a caller that asked to wait: a build may pause between two lines.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of the output limit reserved for the lines after the output.
const FOOTER_RESERVE: usize = 1024;

/// A background command of a Session, running or ended.
#[derive(Debug)]
pub struct BackgroundCommand {
    /// The id for the model, such as `b1`.
    pub id: String,
    /// The shell text that runs.
    pub command: String,
    pub needs: SandboxNeeds,
    pub output: OutputBuffer,
    /// Cancelled to stop the command; also by the interrupt of the Turn that started it.
    pub cancel: CancellationToken,
    is_stopped_by_call: AtomicBool,
    stdin: Mutex<Option<pipe::Sender>>,
}

impl BackgroundCommand {
    /// A command that is about to start.
    pub fn new(
        id: String,
        request: &BackgroundRequest,
        cancel: CancellationToken,
        stdin: pipe::Sender,
    ) -> Self {
        Self {
            id,
            command: request.command.clone(),
            needs: request.needs,
            output: OutputBuffer::default(),
            cancel,
            is_stopped_by_call: AtomicBool::new(false),
            stdin: Mutex::new(Some(stdin)),
        }
    }

    /// Waits briefly for output that comes to a pause, or for the end.
    pub async fn wait_first_output(&self) {
        self.output.wait_for_pause(FIRST_OUTPUT_TIMEOUT, SHORT_PAUSE).await;
    }

    /// Waits at most `patience` for output that comes to a pause, or for the end.
    pub async fn wait_output(&self, patience: Duration) {
        self.output.wait_for_pause(patience, LONG_PAUSE).await;
    }

    /// Stops the command, with SIGTERM first, and waits until all its processes have ended.
    pub async fn stop(&self) {
        if !self.output.has_ended() {
            self.is_stopped_by_call.store(true, Ordering::Relaxed);
        }
        self.cancel.cancel();
        self.output.wait_ended().await;
    }

    /// Why the command was stopped, for its exit report.
    pub fn stop_reason(&self) -> &'static str {
        if self.is_stopped_by_call.load(Ordering::Relaxed) {
            "stopped"
        } else {
            "stopped with the Turn that started it"
        }
    }

    /// Writes to the standard input.
    pub async fn write_stdin(&self, text: &[u8]) -> Result<(), ToolError> {
        let mut stdin = self.stdin.lock().await;
        let mut written = 0;
        while written < text.len() {
            let Some(pipe) = stdin.as_mut() else {
                let message = format!("the standard input of {} is closed", self.id);
                return Err(ToolError::new(Kind::CommandFailed, message)
                    .with_details(json!({ "written_bytes": written })));
            };
            match timeout(WRITE_TIMEOUT, pipe.write(&text[written..])).await {
                Ok(Ok(count)) => written += count,
                Ok(Err(_)) => *stdin = None,
                Err(_) => {
                    let (id, length) = (&self.id, text.len());
                    let message =
                        format!("{id} does not read: it accepted {written} of {length} bytes");
                    return Err(ToolError::new(Kind::CommandFailed, message)
                        .with_details(json!({ "written_bytes": written }))
                        .with_next_action(
                            "see what it does with bash_output, then send only the rest",
                        ));
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
    pub fn show_output(
        &self,
        part: OutputPart,
        output_limit: usize,
    ) -> Result<ToolOutput, ToolError> {
        let snapshot = self.output.read_part(part);
        let limit = output_limit.saturating_sub(FOOTER_RESERVE);
        let shown = cut_text(&snapshot.text, limit);
        let is_whole = shown.len() == snapshot.text.len() && snapshot.dropped == 0;
        let mut text = String::new();
        if snapshot.dropped > 0 {
            writeln!(text, "[{} bytes before this are no longer kept]", snapshot.dropped).ok();
        }
        text.push_str(if snapshot.text.is_empty() { "(no new output)" } else { &shown });
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let (ok, mut details, programs) = match &snapshot.exit {
            None => {
                if let Some(path) = snapshot.spill.as_ref().filter(|_| !is_whole) {
                    writeln!(text, "[full output so far: {}]", path.display()).ok();
                }
                write!(text, "[{} runs]", self.id).ok();
                (true, running_details(&snapshot), Vec::new())
            }
            Some(Ok(ending)) => {
                text.push_str(&ending.lines);
                (ending.ok, ending.details.clone(), ending.programs.clone())
            }
            Some(Err(error)) => return Err(error.clone()),
        };
        details["background"] = json!(self.id);
        details["running"] = json!(snapshot.exit.is_none());
        details["dropped_bytes"] = json!(snapshot.dropped);
        Ok(ToolOutput { programs, ..ToolOutput::new(ok, text, details) })
    }
}

fn running_details(snapshot: &OutputSnapshot) -> Value {
    let path = snapshot.spill.as_ref().map(|path| path.to_string_lossy());
    json!({ "output_bytes": snapshot.total, "output_path": path })
}
