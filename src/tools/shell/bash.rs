//! `bash` tool: runs a command in the Workspace and reports how it ended.

use std::fmt::Write as _;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{Background, Errand};
use super::git_notes::{self, GitNotes};
use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::process::{Commands, Confined, Ending, Job, Needs, Output, Part, Slot, Telling};
use crate::host::sandbox::Profile;
use crate::record::event::Status;
use crate::settings::config;
use crate::tools::tool::spelling::Aliases;
use crate::tools::tool::{Effect, Plan, Tool, ToolContext, ToolOutput};

/// Bytes of the output limit reserved for the lines after the output.
const CLOSING_ROOM: usize = 1024;

/// The `bash` tool.
#[derive(Debug)]
pub struct Bash {
    commands: Confined,
    limits: config::Bash,
    background: Background,
    git_notes: GitNotes,
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
    /// True when it needs Unix sockets and was refused them.
    local_sockets: Option<bool>,
    /// Return at once with an id for the other bash tools. Runs, with stdin, until it ends, the
    /// session ends, or a deadline that was given passes.
    background: Option<bool>,
}

impl Bash {
    /// A `bash` that starts its commands through `commands`.
    pub fn new(commands: Commands, limits: config::Bash, background: Background) -> Self {
        let home = commands.sandbox().user_home().map(Into::into);
        let git_notes = GitNotes::new(home);
        Self { commands: Confined::new(commands), limits, background, git_notes }
    }

    /// A note about git settings that the sandbox hides, once per Session. Hidden paths are only collected
    /// for a failed command, hence `false`.
    async fn git_note(&self, command: &str, needs: Needs, context: &ToolContext) -> Option<String> {
        let settings = self.git_notes.take_settings(command);
        if settings.is_empty() {
            return None;
        }
        let job = job("false", self.limits.timeout, context);
        let secrets = context.secrets.clone();
        let mut output = Output::new(context.output_target(), &secrets, CLOSING_ROOM);
        let ran = self.commands.run(job, needs, &mut output).await.ok()?;
        git_notes::describe(&settings, &ran.hidden)
    }

    /// Acquires a slot; if it has to wait, reports that as the status.
    async fn slot(&self, args: &Args, context: &ToolContext) -> Result<Slot<'_>, ToolError> {
        let slots = self.commands.slots();
        if let Some(slot) = slots.take() {
            return Ok(slot);
        }
        let working = |waiting: Option<String>| {
            context.signals.status(Status::Working {
                call_id: context.call_id.clone(),
                tool: Self::NAME.to_owned(),
                summary: context.secrets.clean(&summary(args)).into_owned(),
                waiting,
            });
        };
        working(Some(slots.reason()));
        let slot = context.cancel.run_until_cancelled(slots.wait()).await.flatten();
        let message = "interrupted while it waited for a free slot; it was not run";
        let slot = slot.ok_or_else(|| ToolError::new(Kind::Interrupted, message))?;
        working(None);
        Ok(slot)
    }

    /// The sandbox needs of a call.
    fn needs(&self, args: &Args, context: &ToolContext) -> Needs {
        let is_declared = args.local_sockets == Some(true) && context.confinement != Profile::Off;
        Needs {
            profile: context.confinement,
            network: args.network.unwrap_or(false),
            local_sockets: is_declared && self.commands.may_declare_sockets(),
        }
    }

    /// Starts a background command and waits for its first output.
    async fn start(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let errand = Errand {
            commands: self.commands.clone(),
            needs: self.needs(&args, &context),
            command: args.command,
            timeout: args.timeout_ms.map(Duration::from_millis),
        };
        let output_limit = context.output_limit;
        let handle = self.background.start(errand, context)?;
        // A call that is dropped or interrupted before it returns the id also stops the command:
        // without the id the model could not stop it.
        let guard = handle.cancel.clone().drop_guard();
        let interrupted = async {
            handle.cancel.cancelled().await;
            handle.ring.ended().await;
        };
        tokio::select! {
            () = handle.listen() => {}
            () = interrupted => {}
        }
        let shown = handle.show(Part::New, output_limit)?;
        guard.disarm();
        Ok(shown)
    }
}

impl Tool for Bash {
    type Args = Args;
    const NAME: &'static str = "bash";
    const ALIASES: Aliases = &[("cmd", "command")];
    const MANUAL: &'static str = "Runs a shell command in the workspace root. No stdin or \
        terminal. Sandboxed: writes only in the workspace and $TMPDIR, no network unless declared. \
        Returns stdout and stderr merged, then the exit code. Everything it started is \
        killed when it ends or after timeout_ms (default 120000, max 600000).";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        refuse_empty(args)?;
        let Needs { network, local_sockets, .. } = self.needs(args, context);
        if network && !self.commands.may_declare_network() {
            let message = "the user's settings give commands no network";
            return Err(ToolError::new(Kind::PermissionDenied, message)
                .next("go on without it, or ask the user to change `sandbox.network`"));
        }
        let command = Some(args.command.clone());
        let is_held = context.confinement == Profile::ReadOnly;
        let local_sockets = local_sockets.then(|| self.commands.socket_rule());
        // A command that reaches other programs may reach the network through them.
        let network = network || local_sockets.is_some();
        let plan = Plan::new(Effect::Execute, summary(args));
        Ok(Plan { network, local_sockets, is_held, command, ..plan })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        refuse_empty(&args)?;
        if args.background == Some(true) {
            return self.start(args, context).await;
        }
        let _slot = self.slot(&args, &context).await?;
        let asked = args.timeout_ms.map_or(self.limits.timeout, Duration::from_millis);
        let timeout = asked.min(self.limits.max_timeout);
        let secrets = context.secrets.clone();
        let limit = context.output_limit.saturating_sub(CLOSING_ROOM);
        let mut output = Output::new(context.output_target(), &secrets, limit);
        let job = job(&args.command, timeout, &context);
        let needs = self.needs(&args, &context);
        let ran = self.commands.run(job, needs, &mut output).await?;
        let collected = output.finish().await;
        let telling = Telling {
            directory: context.workspace.root(),
            timeout: Some(timeout),
            needs,
            prefix: "",
            stopped: "interrupted",
        };
        let mut ending = Ending::of(&ran, &collected, &self.commands, &telling);
        if let Some(note) = self.git_note(&args.command, needs, &context).await {
            ending.add_note(&note);
        }
        let Ending { ok, lines, details, programs } = ending;
        let mut text = collected.bounded.text;
        if text.is_empty() {
            text.push_str("(no output)");
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&lines);
        if asked > timeout {
            let max = timeout.as_millis();
            write!(text, "\n[timeout_ms was lowered to the maximum of {max}]").ok();
        }
        Ok(ToolOutput { programs, ..ToolOutput::new(ok, text, details) })
    }
}

/// A command request of this call, in its Workspace.
fn job<'a>(command: &'a str, timeout: Duration, context: &'a ToolContext) -> Job<'a> {
    Job {
        command,
        directory: context.workspace.root(),
        further: context.workspace.further(),
        timeout: Some(timeout),
        cancel: &context.cancel,
        stdin: None,
        bounds: context.workspace.bounds(),
        spec: None,
        witness: None,
    }
}

fn summary(args: &Args) -> String {
    let line: String = args.command.split_whitespace().collect::<Vec<_>>().join(" ");
    let place = if args.background == Some(true) { " in the background" } else { "" };
    format!("run{place} {}", crate::base::text::first_chars(&line, 200))
}

fn refuse_empty(args: &Args) -> Result<(), ToolError> {
    if args.command.trim().is_empty() {
        return Err(ToolError::invalid("command is empty"));
    }
    Ok(())
}
