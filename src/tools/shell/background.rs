//! Background commands: commands of a Session that outlive the call that started them.
//!
//! Each has a task that runs it like the command of a call: same supervisor, same sandbox, same
//! cleaning of its output. Tasks and commands end with the Session.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::handle::Handle;
use crate::base::blocking;
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::process::{CommandError, Confined, Ending, Job, Needs, Output, Stdin, Telling};
use crate::host::sandbox::Profile;
use crate::host::snapshot::{RunningCommand, Tracker};
use crate::record::event::Canonical;
use crate::record::event::Signals;
use crate::record::history::History;
use crate::tools::tool::{ToolContext, ToolOutput};

/// How many ended commands are kept with their output.
const REMEMBERED: usize = 16;
/// How many ids are listed when an unknown one was asked for.
const NAMED: usize = 10;

/// The background commands of one Session; cheap to clone. Dropping the last clone kills them.
#[derive(Debug, Clone)]
pub struct Background(Arc<Table>);

/// A weak handle of [`BackgroundCommands`].
#[derive(Debug, Clone)]
pub struct WeakBackground(Weak<Table>);

impl WeakBackground {
    /// The commands, if their Session still exists.
    pub fn upgrade(&self) -> Option<Background> {
        self.0.upgrade().map(Background)
    }
}

#[derive(Debug)]
struct Table {
    most: usize,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// The last number that was assigned.
    last: u64,
    commands: BTreeMap<u64, Attended>,
    /// How the commands ended whose output was discarded, by id.
    past: HashMap<String, String>,
}

#[derive(Debug)]
struct Attended {
    handle: Arc<Handle>,
    /// Aborted when the table is dropped, which kills the command.
    _task: AbortOnDropHandle<()>,
}

/// The result of looking up an id.
#[derive(Debug)]
pub enum Found {
    Here(Arc<Handle>),
    /// The command has ended and its output was discarded; the text says how it ended.
    Past(String),
}

/// A command to run in the background.
#[derive(Debug)]
pub struct Errand {
    pub commands: Confined,
    pub command: String,
    /// `None` when it may run as long as the Session does.
    pub timeout: Option<Duration>,
    pub needs: Needs,
}

impl Background {
    /// At most `most` run at once. Commands of earlier processes are listed from `history` as ended.
    pub fn new(most: usize, history: &History) -> Self {
        let past = past_of(history);
        let last = past.keys().filter_map(|id| number_of(id)).max().unwrap_or(0);
        let known = Known { last, commands: BTreeMap::new(), past };
        Self(Arc::new(Table { most, known: Mutex::new(known) }))
    }

    /// A handle that does not keep the commands alive.
    pub fn downgrade(&self) -> WeakBackground {
        WeakBackground(Arc::downgrade(&self.0))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command, unless too many are running.
    pub fn start(&self, errand: Errand, context: ToolContext) -> Result<Arc<Handle>, ToolError> {
        let mut known = self.known();
        known.refuse_more_than(self.0.most)?;
        let (sender, stdin) =
            Stdin::piped().map_err(|error| ToolError::from(CommandError::Start(error)))?;
        known.last += 1;
        let (number, id) = (known.last, format!("b{}", known.last));
        let handle = Arc::new(Handle::new(id, &errand, context.cancel.child_token(), sender));
        let tracker = context.tracker.as_ref();
        let tracker = tracker.filter(|_| context.confinement != Profile::ReadOnly);
        let running = tracker.map(Tracker::command_started);
        let task = tokio::spawn(attend(errand, context, stdin, Arc::clone(&handle), running));
        let attended =
            Attended { handle: Arc::clone(&handle), _task: AbortOnDropHandle::new(task) };
        known.commands.insert(number, attended);
        known.forget_the_oldest();
        Ok(handle)
    }

    /// Looks up a command by id.
    pub fn find(&self, id: &str) -> Result<Found, ToolError> {
        let known = self.known();
        let here = number_of(id).and_then(|number| known.commands.get(&number));
        if let Some(attended) = here {
            return Ok(Found::Here(Arc::clone(&attended.handle)));
        }
        if let Some(end) = known.past.get(id) {
            return Ok(Found::Past(end.clone()));
        }
        let message = format!("there is no background command `{id}`");
        let names: Vec<&str> =
            known.commands.values().rev().take(NAMED).map(|one| one.handle.id.as_str()).collect();
        let error = ToolError::new(Kind::NotFound, message);
        Err(if names.is_empty() {
            error.next("start one with bash and background: true")
        } else {
            error.next(format!("use one of: {}", names.join(", ")))
        })
    }

    /// Waits until all commands that are being stopped have ended.
    pub async fn settle(&self) {
        let leaving: Vec<Arc<Handle>> = {
            let known = self.known();
            let handles = known.commands.values().map(|attended| &attended.handle);
            handles.filter(|handle| handle.cancel.is_cancelled()).cloned().collect()
        };
        for handle in leaving {
            handle.ring.ended().await;
        }
    }
}

/// The tool output for a command whose output was discarded.
pub fn show_past(id: &str, end: &str) -> ToolOutput {
    ToolOutput::new(
        true,
        format!("(its output is no longer kept)\n[{end}]"),
        json!({ "background": id, "running": false }),
    )
}

impl Known {
    fn refuse_more_than(&self, most: usize) -> Result<(), ToolError> {
        let running = self.commands.values().filter(|attended| !attended.handle.ring.is_over());
        let names: Vec<&str> = running.map(|attended| attended.handle.id.as_str()).collect();
        if names.len() < most {
            return Ok(());
        }
        let message =
            format!("{} background commands are running, which is the maximum", names.len());
        Err(ToolError::new(Kind::CommandFailed, message)
            .details(json!({ "running": names }))
            .next(format!("stop one with bash_stop: {}", names.join(", "))))
    }

    fn forget_the_oldest(&mut self) {
        let ended = |attended: &Attended| attended.handle.ring.is_over();
        while self.commands.values().filter(|attended| ended(attended)).count() > REMEMBERED {
            let oldest = self.commands.iter().find(|(_, attended)| ended(attended));
            let Some(number) = oldest.map(|(number, _)| *number) else { return };
            if let Some(gone) = self.commands.remove(&number) {
                let id = gone.handle.id.clone();
                self.past.insert(id.clone(), format!("{id} ended long ago"));
            }
        }
    }
}

/// Runs a command to its end and stores how it ended.
async fn attend(
    errand: Errand,
    context: ToolContext,
    stdin: Stdin,
    handle: Arc<Handle>,
    running: Option<RunningCommand>,
) {
    let farewell = Farewell(handle);
    let handle = &farewell.0;
    // The call ends soon; a task that holds the Bus would keep its listeners waiting.
    let context = ToolContext { signals: Signals::nowhere(), ..context };
    let secrets = Arc::clone(&context.secrets);
    let mut output =
        Output::tapped(context.output_target(), &secrets, context.output_limit, &handle.ring);
    let job = Job {
        command: &errand.command,
        directory: context.workspace.root(),
        further: context.workspace.further(),
        timeout: errand.timeout,
        cancel: &handle.cancel,
        stdin: Some(&stdin),
        bounds: context.workspace.bounds(),
        spec: None,
        witness: None,
    };
    let ran = {
        let mut running = pin!(errand.commands.run(job, errand.needs, &mut output));
        tokio::select! {
            ran = &mut running => ran,
            () = errand.commands.closing() => {
                handle.cancel.cancel();
                running.await
            }
        }
    };
    let collected = output.finish().await;
    handle.close_stdin().await;
    if let (Some(tracker), Some(running)) = (context.tracker.clone(), running)
        && let Ok(Err(error)) = blocking::work(move || {
            drop(running);
            tracker.after_command()
        })
        .await
    {
        tracing::warn!(%error, "cannot snapshot files after a background command");
    }
    handle.ring.end(match ran {
        Ok(ran) => {
            let telling = Telling {
                directory: context.workspace.root(),
                timeout: errand.timeout,
                needs: errand.needs,
                prefix: &format!("{} ended: ", handle.id),
                stopped: handle.stopped(),
            };
            Ok(Ending::of(&ran, &collected, &errand.commands, &telling))
        }
        Err(error) => Err(ToolError::from(error)),
    });
}

/// Marks a command as ended when its task is dropped, so that waiting for it always finishes.
struct Farewell(Arc<Handle>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.ring.end(Err(ToolError::from(CommandError::Lost)));
    }
}

fn number_of(id: &str) -> Option<u64> {
    let digits = id.strip_prefix('b').filter(|digits| !digits.starts_with(['0', '+']))?;
    digits.parse().ok()
}

/// The background commands in a History, and how each of them ended.
fn past_of(history: &History) -> HashMap<String, String> {
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
