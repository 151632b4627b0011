//! `bash`: runs a command in the Workspace and says how it ended.

use std::fmt::Write as _;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::command::{Commands, End, Job, Leftover, Outcome, Stop};
use super::confined::{Confined, Needs, Ran};
use super::denial;
use super::output::{Collected, Output};
use super::{Effect, Plan, Tool, ToolContext, ToolError, ToolOutput};
use crate::config;
use crate::error::Kind;
use crate::sandbox::{Level, Profile};

/// What the lines after the output may take of the bound.
const CLOSING_ROOM: usize = 1024;

/// How many leftovers are named to the model.
const NAMED_LEFTOVERS: usize = 5;

/// The tool.
#[derive(Debug)]
pub struct Bash {
    commands: Confined,
    limits: config::Bash,
}

/// The arguments of `bash`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Shell command; state such as `cd` does not last beyond the call.
    command: String,
    /// Deadline in milliseconds.
    #[schemars(range(min = 1))]
    timeout_ms: Option<u64>,
    /// True when it needs the internet.
    network: Option<bool>,
}

impl Bash {
    /// A `bash` that starts its commands through `commands`.
    pub fn new(commands: Commands, limits: config::Bash) -> Self {
        Self { commands: Confined::new(commands), limits }
    }
}

impl Tool for Bash {
    type Args = Args;
    const NAME: &'static str = "bash";
    const MANUAL: &'static str = "Runs a shell command in the workspace root. No stdin or \
        terminal. Sandboxed: writes only in the workspace and $TMPDIR, no network unless declared. \
        Returns stdout and stderr merged, then the exit code. Everything it started is \
        killed when it ends or after timeout_ms (default 120000, max 600000).";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        refuse_empty(args)?;
        let network = args.network.unwrap_or(false);
        if network && !self.commands.may_declare_network() {
            let message = "the user's settings give commands no network";
            return Err(ToolError::new(Kind::PermissionDenied, message)
                .next("go on without it, or ask the user to change `sandbox.network`"));
        }
        let line: String = args.command.split_whitespace().collect::<Vec<_>>().join(" ");
        let summary = format!("run {}", super::first_chars(&line, 200));
        let command = Some(args.command.clone());
        let is_held = context.confinement == Profile::ReadOnly;
        Ok(Plan { network, is_held, command, ..Plan::new(Effect::Execute, summary) })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        refuse_empty(&args)?;
        let asked = args.timeout_ms.map_or(self.limits.timeout, Duration::from_millis);
        let timeout = asked.min(self.limits.max_timeout);
        let secrets = context.secrets.clone();
        let limit = context.output_limit.saturating_sub(CLOSING_ROOM);
        let mut output = Output::new(&context, &secrets, limit);
        let job = Job {
            command: &args.command,
            directory: context.workspace.root(),
            timeout,
            cancel: &context.cancel,
            bounds: context.workspace.bounds(),
            spec: None,
        };
        let needs = Needs { profile: context.confinement, network: args.network.unwrap_or(false) };
        let ran = self.commands.run(job, needs, &mut output).await;
        let Ran { outcome, mended, hidden } = ran.map_err(|error| ToolError::from(&error))?;
        let collected = output.finish().await;
        let mut text = told(&outcome, &collected, timeout);
        if asked > timeout {
            let max = timeout.as_millis();
            write!(text, "\n[timeout_ms was lowered to the maximum of {max}]").ok();
        }
        if !mended.is_empty() {
            let paths: Vec<_> = mended.iter().map(|path| path.display().to_string()).collect();
            write!(
                text,
                "\n[it changed what it must not, which was put back: {}]",
                paths.join(", ")
            )
            .ok();
        }
        let ok = outcome.end == End::Code(0) && outcome.stopped.is_none();
        if !ok && outcome.level != Level::Off {
            let may_declare = self.commands.may_declare_network();
            let said = &collected.bounded.text;
            for line in denial::explain(said, needs, may_declare, &hidden) {
                write!(text, "\n[{line}]").ok();
            }
        }
        let mut details = facts(&outcome, &collected);
        if !mended.is_empty() {
            details["mended"] = json!(mended);
        }
        if let Some(notice) = self.commands.notice(outcome.level) {
            details["notice"] = json!(notice);
        }
        Ok(ToolOutput { ok, text, details })
    }
}

fn refuse_empty(args: &Args) -> Result<(), ToolError> {
    if args.command.trim().is_empty() {
        return Err(ToolError::invalid("command is empty"));
    }
    Ok(())
}

/// The output, and after it how the command ended.
fn told(outcome: &Outcome, collected: &Collected, timeout: Duration) -> String {
    let mut text = collected.bounded.text.clone();
    if text.is_empty() {
        text.push_str("(no output)");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if let Some(path) = &collected.spill {
        let bytes = collected.total_bytes;
        writeln!(text, "[full output, {bytes} bytes: {}]", path.display()).ok();
    }
    if let Some(note) = &collected.spill_note {
        writeln!(text, "[{note}]").ok();
    }
    if !outcome.leftovers.is_empty() {
        let (count, told) = (outcome.leftovers.len(), named(&outcome.leftovers));
        writeln!(text, "[{count} background processes were killed: {told}]").ok();
    }
    if !outcome.survivors.is_empty() {
        let (count, told) = (outcome.survivors.len(), named(&outcome.survivors));
        writeln!(text, "[{count} processes could not be killed: {told}]").ok();
    }
    let ended = match outcome.end {
        End::Code(code) => format!("exit code {code}"),
        End::Signal(signal) => format!("killed by signal {signal}"),
        End::Unknown => "killed".to_owned(),
    };
    match outcome.stopped {
        None => write!(text, "[{ended}]"),
        Some(Stop::TimedOut) => {
            write!(text, "[timed out after {} ms, {ended}]", timeout.as_millis())
        }
        Some(Stop::Interrupted) => write!(text, "[interrupted, {ended}]"),
    }
    .ok();
    text
}

fn named(processes: &[Leftover]) -> String {
    let told = processes.iter().take(NAMED_LEFTOVERS);
    told.map(|left| format!("{} {}", left.pid, left.name)).collect::<Vec<_>>().join(", ")
}

fn facts(outcome: &Outcome, collected: &Collected) -> Value {
    let (exit_code, signal) = match outcome.end {
        End::Code(code) => (Some(code), None),
        End::Signal(signal) => (None, Some(signal)),
        End::Unknown => (None, None),
    };
    let listed = |processes: &[Leftover]| -> Vec<Value> {
        let fact = |process: &Leftover| json!({"pid": process.pid, "name": process.name});
        processes.iter().map(fact).collect()
    };
    json!({
        "exit_code": exit_code,
        "signal": signal,
        "timed_out": outcome.stopped == Some(Stop::TimedOut),
        "interrupted": outcome.stopped == Some(Stop::Interrupted),
        "duration_ms": u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
        "leftovers": listed(&outcome.leftovers),
        "survivors": listed(&outcome.survivors),
        "output_path": collected.spill.as_ref().map(|path| path.to_string_lossy()),
        "output_bytes": collected.total_bytes,
        "containment": outcome.containment,
        "sandbox": outcome.level.name(),
    })
}
