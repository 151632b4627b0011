//! Background commands: commands of a Session that outlive the call that started them.
//!
//! Each has a task that runs it like the command of a call, with the same supervision, sandbox and
//! redaction of output. Tasks and commands end with the Session.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::background_command::BackgroundCommand;
use crate::base::blocking;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::process::{
    CommandError, CommandPipes, CommandRequest, ExitReport, ExitReportContext, OutputCollector,
    SandboxNeeds, SandboxedCommands,
};
use crate::host::sandbox::Profile;
use crate::host::snapshot::{RunningCommand, TurnTracker};
use crate::record::event::Canonical;
use crate::record::event::ToolEvents;
use crate::record::history::History;
use crate::tools::tool::{ToolContext, ToolOutput};

/// How many ended commands are kept with their output.
const MAX_ENDED: usize = 16;
/// How many ids are listed when an unknown one was asked for.
const MAX_NAMED: usize = 10;

/// The background commands of one Session; cheap to clone. Dropping the last clone kills them.
#[derive(Debug, Clone)]
pub struct BackgroundCommands(Arc<BackgroundTable>);

/// A weak handle of [`BackgroundCommands`].
#[derive(Debug, Clone)]
pub struct WeakBackgroundCommands(Weak<BackgroundTable>);

impl WeakBackgroundCommands {
    /// The commands, if their Session still exists.
    pub fn upgrade(&self) -> Option<BackgroundCommands> {
        self.0.upgrade().map(BackgroundCommands)
    }
}

#[derive(Debug)]
struct BackgroundTable {
    max_running: usize,
    state: Mutex<BackgroundState>,
}

#[derive(Debug)]
struct BackgroundState {
    /// The last number that was assigned.
    last_number: u64,
    commands: BTreeMap<u64, BackgroundEntry>,
    /// How each command ended whose output was discarded, by id.
    ended: HashMap<String, String>,
}

#[derive(Debug)]
struct BackgroundEntry {
    command: Arc<BackgroundCommand>,
    /// Aborted when the table is dropped, which kills the command.
    _task: AbortOnDropHandle<()>,
}

/// The result of looking up an id.
#[derive(Debug)]
pub enum BackgroundLookup {
    Retained(Arc<BackgroundCommand>),
    /// The command has ended and its output was discarded; the text says how it ended.
    Discarded(String),
}

/// A command to run in the background.
#[derive(Debug)]
pub struct BackgroundRequest {
    pub commands: SandboxedCommands,
    pub command: String,
    /// `None` when the command may run as long as the Session.
    pub timeout: Option<Duration>,
    pub needs: SandboxNeeds,
}

impl BackgroundCommands {
    /// A table with at most `most` running commands. Those of earlier processes, from `history`, have ended.
    pub fn new(most: usize, history: &History) -> Self {
        let past = ended_in_history(history);
        let last = past.keys().filter_map(|id| parse_id(id)).max().unwrap_or(0);
        let known = BackgroundState { last_number: last, commands: BTreeMap::new(), ended: past };
        Self(Arc::new(BackgroundTable { max_running: most, state: Mutex::new(known) }))
    }

    /// A handle that does not keep the commands alive.
    pub fn downgrade(&self) -> WeakBackgroundCommands {
        WeakBackgroundCommands(Arc::downgrade(&self.0))
    }

    /// Starts a command, unless too many are running.
    pub fn start(
        &self,
        request: BackgroundRequest,
        context: ToolContext,
    ) -> Result<Arc<BackgroundCommand>, ToolError> {
        let mut known = self.0.state.lock();
        known.check_limit(self.0.max_running)?;
        let (sender, stdin) = CommandPipes::with_stdin()
            .map_err(|error| ToolError::from(CommandError::StartSupervisor(error)))?;
        known.last_number += 1;
        let (number, id) = (known.last_number, format!("b{}", known.last_number));
        let handle =
            Arc::new(BackgroundCommand::new(id, &request, context.cancel.child_token(), sender));
        let tracker = context.tracker.as_ref();
        let tracker = tracker.filter(|_| context.sandbox_profile != Profile::ReadOnly);
        let running = tracker.map(TurnTracker::command_started);
        let task = tokio::spawn(run_to_end(request, context, stdin, Arc::clone(&handle), running));
        let entry =
            BackgroundEntry { command: Arc::clone(&handle), _task: AbortOnDropHandle::new(task) };
        known.commands.insert(number, entry);
        known.evict_oldest();
        Ok(handle)
    }

    /// Looks up a command by id.
    pub fn find(&self, id: &str) -> Result<BackgroundLookup, ToolError> {
        let known = self.0.state.lock();
        let here = parse_id(id).and_then(|number| known.commands.get(&number));
        if let Some(entry) = here {
            return Ok(BackgroundLookup::Retained(Arc::clone(&entry.command)));
        }
        if let Some(end) = known.ended.get(id) {
            return Ok(BackgroundLookup::Discarded(end.clone()));
        }
        let message = format!("there is no background command `{id}`");
        let names: Vec<&str> = known
            .commands
            .values()
            .rev()
            .take(MAX_NAMED)
            .map(|one| one.command.id.as_str())
            .collect();
        let error = ToolError::new(Kind::NotFound, message);
        Err(if names.is_empty() {
            error.with_next_action("start one with bash and background: true")
        } else {
            error.with_next_action(format!("use one of: {}", names.join(", ")))
        })
    }

    /// Waits until all commands that are being stopped have ended.
    pub async fn wait_stopping(&self) {
        let leaving: Vec<Arc<BackgroundCommand>> = {
            let known = self.0.state.lock();
            let handles = known.commands.values().map(|entry| &entry.command);
            handles.filter(|handle| handle.cancel.is_cancelled()).cloned().collect()
        };
        for handle in leaving {
            handle.output.wait_ended().await;
        }
    }
}

/// The tool output for a command whose output was discarded.
pub fn show_discarded(id: &str, end: &str) -> ToolOutput {
    ToolOutput::new(
        true,
        format!("(its output is no longer kept)\n[{end}]"),
        json!({ "background": id, "running": false }),
    )
}

impl BackgroundState {
    fn check_limit(&self, most: usize) -> Result<(), ToolError> {
        let running = self.commands.values().filter(|entry| !entry.command.output.has_ended());
        let names: Vec<&str> = running.map(|entry| entry.command.id.as_str()).collect();
        if names.len() < most {
            return Ok(());
        }
        let message =
            format!("{} background commands are running, which is the maximum", names.len());
        Err(ToolError::new(Kind::CommandFailed, message)
            .with_details(json!({ "running": names }))
            .with_next_action(format!("stop one with bash_stop: {}", names.join(", "))))
    }

    fn evict_oldest(&mut self) {
        let ended = |entry: &BackgroundEntry| entry.command.output.has_ended();
        while self.commands.values().filter(|entry| ended(entry)).count() > MAX_ENDED {
            let oldest = self.commands.iter().find(|(_, entry)| ended(entry));
            let Some(number) = oldest.map(|(number, _)| *number) else { return };
            if let Some(gone) = self.commands.remove(&number) {
                let id = gone.command.id.clone();
                self.ended.insert(id.clone(), format!("{id} ended long ago"));
            }
        }
    }
}

/// Runs a command to its end and stores how it ended.
async fn run_to_end(
    request: BackgroundRequest,
    context: ToolContext,
    stdin: CommandPipes,
    handle: Arc<BackgroundCommand>,
    running: Option<RunningCommand>,
) {
    let end_guard = EndOnDrop(handle);
    let handle = &end_guard.0;
    // The call ends soon; a task that holds the Bus would keep its listeners waiting.
    let context = ToolContext { events: ToolEvents::discard(), ..context };
    let secrets = Arc::clone(&context.secrets);
    let mut output = OutputCollector::with_buffer(
        context.output_target(),
        &secrets,
        context.output_limit,
        &handle.output,
    );
    let command_request = CommandRequest {
        command: &request.command,
        directory: context.workspace.root(),
        extra_roots: context.workspace.extra_roots(),
        timeout: request.timeout,
        cancel: &handle.cancel,
        stdin: Some(&stdin),
        bounds: context.workspace.bounds(),
        spec: None,
        exit_watch: None,
    };
    let ran = {
        let mut running = pin!(request.commands.run(command_request, request.needs, &mut output));
        tokio::select! {
            ran = &mut running => ran,
            () = request.commands.wait_closing() => {
                handle.cancel.cancel();
                running.await
            }
        }
    };
    let collected = output.finish().await;
    handle.close_stdin().await;
    if let (Some(tracker), Some(running)) = (context.tracker.clone(), running)
        && let Ok(Err(error)) = blocking::run_blocking(move || {
            drop(running);
            tracker.after_command()
        })
        .await
    {
        tracing::warn!(%error, "cannot snapshot files after a background command");
    }
    handle.output.set_exit(match ran {
        Ok(ran) => {
            let telling = ExitReportContext {
                directory: context.workspace.root(),
                timeout: request.timeout,
                needs: request.needs,
                prefix: &format!("{} ended: ", handle.id),
                stop_reason: handle.stop_reason(),
            };
            Ok(ExitReport::new(&ran, &collected, &request.commands, &telling))
        }
        Err(error) => Err(ToolError::from(error)),
    });
}

/// Marks a command as ended when its task is dropped, so that waiting for it always finishes.
struct EndOnDrop(Arc<BackgroundCommand>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.output.set_exit(Err(ToolError::from(CommandError::SupervisorLost)));
    }
}

fn parse_id(id: &str) -> Option<u64> {
    let digits = id.strip_prefix('b').filter(|digits| !digits.starts_with(['0', '+']))?;
    digits.parse().ok()
}

/// The background commands in a History, and how each of them ended.
fn ended_in_history(history: &History) -> HashMap<String, String> {
    let mut past = HashMap::new();
    for fact in history.facts() {
        let Canonical::ToolResult(result) = fact else { continue };
        let Some((id, is_running)) = result.background() else { continue };
        let end = match (is_running, result.exit_code(), result.signal()) {
            (Some(false), Some(code), _) => format!("{id} ended: exit code {code}"),
            (Some(false), None, Some(signal)) => format!("{id} ended: killed by signal {signal}"),
            _ => format!("{id} ended with the process that ran it"),
        };
        past.insert(id.to_owned(), end);
    }
    past
}
