//! `bash` tool: runs a command in the Workspace and reports how it ended.

use std::fmt::Write as _;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{BackgroundCommands, BackgroundRequest};
use super::git_notes::{self, GitNotes};
use crate::base::error::Kind;
use crate::base::text::on_one_line;
use crate::base::tool_error::ToolError;
use crate::host::process::{
    CommandRequest, CommandRunner, CommandSlot, ExitReport, ExitReportContext, OutputCollector,
    OutputPart, SandboxNeeds, SandboxedCommands,
};
use crate::host::sandbox::Profile;
use crate::record::event::SessionStatus;
use crate::settings::config;
use crate::tools::tool::arg_aliases::ArgAliases;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// Bytes of the output limit reserved for the lines after the output.
const FOOTER_RESERVE: usize = 1024;

/// The `bash` tool.
#[derive(Debug)]
pub struct BashTool {
    commands: SandboxedCommands,
    limits: config::BashLimits,
    background: BackgroundCommands,
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
    /// True when it needs Unix sockets and an earlier call was refused them.
    local_sockets: Option<bool>,
    /// Return at once with an id for the other bash tools. Runs, with stdin, until it ends, the
    /// session ends, or a deadline that was given passes.
    background: Option<bool>,
}

impl BashTool {
    /// A `bash` that starts its commands through `commands`.
    pub fn new(
        commands: CommandRunner,
        limits: config::BashLimits,
        background: BackgroundCommands,
    ) -> Self {
        let home = commands.sandbox().user_home().map(Into::into);
        let git_notes = GitNotes::new(home);
        Self { commands: SandboxedCommands::new(commands), limits, background, git_notes }
    }

    /// A note about git settings that the sandbox hides, once per Session. Hidden paths are only collected
    /// for a failed command, hence `false`.
    async fn git_note(
        &self,
        command: &str,
        needs: SandboxNeeds,
        context: &ToolContext,
    ) -> Option<String> {
        let settings = self.git_notes.take_settings(command);
        if settings.is_empty() {
            return None;
        }
        let request = command_request("false", self.limits.timeout, context);
        let secrets = context.secrets.clone();
        let mut output = OutputCollector::new(context.output_target(), &secrets, FOOTER_RESERVE);
        let ran = self.commands.run(request, needs, &mut output).await.ok()?;
        git_notes::describe_hidden(&settings, &ran.hidden)
    }

    /// The sandbox needs of a call.
    fn sandbox_needs(&self, args: &Args, context: &ToolContext) -> SandboxNeeds {
        let is_declared =
            args.local_sockets == Some(true) && context.sandbox_profile != Profile::Off;
        SandboxNeeds {
            profile: context.sandbox_profile,
            network: args.network.unwrap_or(false),
            local_sockets: is_declared && self.commands.may_declare_sockets(),
        }
    }

    /// Starts a background command and waits for its first output.
    async fn start_background(
        &self,
        args: Args,
        context: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let request = BackgroundRequest {
            commands: self.commands.clone(),
            needs: self.sandbox_needs(&args, &context),
            command: args.command,
            timeout: args.timeout_ms.map(Duration::from_millis),
        };
        let output_limit = context.output_limit;
        let handle = self.background.start(request, context)?;
        // A call that is dropped or interrupted before it returns the id also stops the command:
        // without the id the model could not stop it.
        let guard = handle.cancel.clone().drop_guard();
        let interrupted = async {
            handle.cancel.cancelled().await;
            handle.output.wait_ended().await;
        };
        tokio::select! {
            () = handle.wait_first_output() => {}
            () = interrupted => {}
        }
        let shown = handle.show_output(OutputPart::New, output_limit)?;
        guard.disarm();
        Ok(shown)
    }
}

impl Tool for BashTool {
    type Args = Args;
    const NAME: &'static str = "bash";
    const ARG_ALIASES: ArgAliases = &[("cmd", "command")];
    const DESCRIPTION: &'static str = "Runs a shell command in the workspace root. No stdin or \
        terminal. Sandboxed: writes only in the workspace and $TMPDIR, no network unless declared. \
        Returns stdout and stderr merged, then the exit code. Everything it started is \
        killed when it ends or after timeout_ms (default 120000, max 600000).";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        refuse_empty(args)?;
        let SandboxNeeds { network, local_sockets, .. } = self.sandbox_needs(args, context);
        if network && !self.commands.may_declare_network() {
            let message = "the user's settings give commands no network";
            return Err(ToolError::new(Kind::PermissionDenied, message).with_next_action(
                "go on without it, or ask the user to change `sandbox.network`",
            ));
        }
        let command = Some(args.command.clone());
        let is_held = context.sandbox_profile == Profile::ReadOnly;
        let local_sockets = local_sockets.then(|| self.commands.socket_rule());
        // A command that reaches other programs may reach the network through them.
        let network = network || local_sockets.is_some();
        let plan = CallPlan::new(CallEffect::Execute, summary(args));
        Ok(CallPlan { network, local_sockets, is_sandboxed_read_only: is_held, command, ..plan })
    }

    /// Acquires a slot, unless the command runs in the background; if the call has to wait, reports
    /// that as the status.
    async fn acquire_slot(
        &self,
        args: &Args,
        context: &ToolContext,
    ) -> Result<Option<CommandSlot<'_>>, ToolError> {
        if args.background == Some(true) {
            return Ok(None);
        }
        let slots = self.commands.slots();
        if let Some(slot) = slots.try_acquire() {
            return Ok(Some(slot));
        }
        context.events.emit_status(SessionStatus::Working {
            call_id: context.call_id.clone(),
            tool: Self::NAME.to_owned(),
            summary: context.secrets.redact(&summary(args)).into_owned(),
            waiting: Some(slots.wait_reason()),
        });
        let slot = context.cancel.run_until_cancelled(slots.acquire()).await.flatten();
        let message = "interrupted while it waited for a free slot; it was not run";
        slot.map(Some).ok_or_else(|| ToolError::new(Kind::Interrupted, message))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        refuse_empty(&args)?;
        if args.background == Some(true) {
            return self.start_background(args, context).await;
        }
        let asked = args.timeout_ms.map_or(self.limits.timeout, Duration::from_millis);
        let timeout = asked.min(self.limits.max_timeout);
        let secrets = context.secrets.clone();
        let limit = context.output_limit.saturating_sub(FOOTER_RESERVE);
        let mut output = OutputCollector::new(context.output_target(), &secrets, limit);
        let request = command_request(&args.command, timeout, &context);
        let needs = self.sandbox_needs(&args, &context);
        let ran = self.commands.run(request, needs, &mut output).await?;
        let collected = output.finish().await;
        let report_context = ExitReportContext {
            directory: context.workspace.root(),
            timeout: Some(timeout),
            needs,
            prefix: "",
            stop_reason: "interrupted",
        };
        let mut ending = ExitReport::new(&ran, &collected, &self.commands, &report_context);
        if let Some(note) = self.git_note(&args.command, needs, &context).await {
            ending.add_note(&note);
        }
        let ExitReport { ok, lines, details, programs } = ending;
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
fn command_request<'a>(
    command: &'a str,
    timeout: Duration,
    context: &'a ToolContext,
) -> CommandRequest<'a> {
    CommandRequest {
        command,
        directory: context.workspace.root(),
        extra_roots: context.workspace.extra_roots(),
        timeout: Some(timeout),
        cancel: &context.cancel,
        stdin: None,
        bounds: context.workspace.bounds(),
        spec: None,
        exit_watch: None,
    }
}

fn summary(args: &Args) -> String {
    let line = on_one_line(&args.command);
    let place = if args.background == Some(true) { " in the background" } else { "" };
    format!("run{place} {}", crate::base::text::truncate_chars(&line, 200))
}

fn refuse_empty(args: &Args) -> Result<(), ToolError> {
    if args.command.trim().is_empty() {
        return Err(ToolError::invalid_args("command is empty"));
    }
    Ok(())
}
