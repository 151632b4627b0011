//! Exit report of a command: lines for the model, and details for presenters and audits.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::command::{CommandExit, LeftoverProcess, ProcessOutcome, StopCause};
use super::denial::{self, DeclarableRights};
use super::limit_notes;
use super::output::CapturedOutput;
use super::sandboxed::{CompletedCommand, SandboxNeeds, SandboxedCommands};
use crate::host::process::post_run::PostRunFindings;
use crate::host::sandbox::{ASIDE_SUFFIX, EnforcementLevel, LocalSockets};

/// The maximum number of leftover processes that are named to the model.
const MAX_NAMED_LEFTOVERS: usize = 5;

/// The maximum number of paths that are named in one warning.
const MAX_NAMED_PATHS: usize = 20;

/// The report on how a command ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ExitReport {
    pub ok: bool,
    /// The lines after the output, without a final newline.
    pub lines: String,
    pub details: Value,
    /// Files that programs outside the sandbox execute, and that the command created or changed.
    pub programs: Vec<PathBuf>,
}

/// The context of an exit report: the settings and wording of the call.
#[derive(Debug, Clone, Copy)]
pub struct ExitReportContext<'a> {
    /// The working directory.
    pub directory: &'a Path,
    /// The deadline.
    pub timeout: Option<Duration>,
    pub needs: SandboxNeeds,
    /// Text before the exit status, such as the id of a background command.
    pub prefix: &'a str,
    /// The reason why the command was stopped, if not by its deadline.
    pub stop_reason: &'a str,
}

impl ExitReport {
    /// Adds a note for the model and the user.
    pub fn add_note(&mut self, note: &str) {
        write!(self.lines, "\n[{note}]").ok();
        let earlier = self.details.get("notice").and_then(Value::as_str);
        let notice =
            earlier.map_or_else(|| note.to_owned(), |earlier| format!("{earlier}; {note}"));
        self.details["notice"] = json!(notice);
    }

    /// The report on a command that has ended.
    pub fn new(
        ran: &CompletedCommand,
        collected: &CapturedOutput,
        commands: &SandboxedCommands,
        context: &ExitReportContext<'_>,
    ) -> Self {
        let CompletedCommand { outcome, findings, hidden, limits } = ran;
        let mut lines = closing_lines(outcome, collected, context);
        let warnings = check_warnings(outcome, findings);
        for warning in &warnings {
            write!(lines, "\n[{warning}]").ok();
        }
        let ok = outcome.is_success();
        let mut for_user = Vec::new();
        if !ok && outcome.level != EnforcementLevel::Off {
            let may_declare = DeclarableRights {
                network: commands.may_declare_network(),
                sockets: commands.may_declare_sockets()
                    && outcome.sockets == LocalSockets::OnDeclaration,
            };
            let output = &collected.bounded.text;
            let needs = context.needs;
            for denial in
                denial::explain_denials(output, needs, may_declare, hidden, context.directory)
            {
                write!(lines, "\n[{}]", denial.text).ok();
                for_user.extend(denial.is_for_user.then_some(denial.text));
            }
        }
        let text = &collected.bounded.text;
        for line in limit_notes::explain_limits(text, outcome, limits.as_ref()) {
            write!(lines, "\n[{line}]").ok();
        }
        let mut details = exit_details(outcome, collected);
        let lists = [
            ("mended", &findings.restored),
            ("neutralised", &findings.nested.neutralised),
            ("uncovered", &outcome.uncovered),
            ("run_outside", &findings.nested.programs),
        ];
        for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            details[name] =
                json!(list.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>());
        }
        let notices = commands.take_notices(outcome).into_iter().map(str::to_owned);
        let mut notices: Vec<String> = notices.collect();
        notices.extend(warnings);
        notices.extend(for_user);
        if !notices.is_empty() {
            details["notice"] = json!(notices.join("; "));
        }
        Self { ok, lines, details, programs: findings.nested.programs.clone() }
    }
}

/// Warnings for the model and the user about what the integrity check found.
fn check_warnings(outcome: &ProcessOutcome, findings: &PostRunFindings) -> Vec<String> {
    let named = |paths: &[PathBuf]| {
        let shown = paths.iter().take(MAX_NAMED_PATHS).map(|path| path.display().to_string());
        let more = paths.len().saturating_sub(MAX_NAMED_PATHS);
        let more = (more > 0).then(|| format!("{more} more"));
        shown.chain(more).collect::<Vec<_>>().join(", ")
    };
    let mut warnings = Vec::new();
    if !outcome.uncovered.is_empty() {
        let paths = named(&outcome.uncovered);
        warnings.push(format!(
            "the sandbox no longer covered {paths}, because it was replaced outside while the \
             command ran; the command may have read or changed it, so check it, then run the \
             command again"
        ));
    }
    if !findings.restored.is_empty() {
        let paths = named(&findings.restored);
        warnings.push(format!("it changed protected files, which were restored: {paths}"));
    }
    if !findings.nested.neutralised.is_empty() {
        let paths = named(&findings.nested.neutralised);
        warnings.push(format!(
            "git would run programs outside the sandbox because of {paths}, so that was removed; \
             the original was renamed to *{ASIDE_SUFFIX}, and only the user can restore it"
        ));
    }
    warnings
}

fn closing_lines(
    outcome: &ProcessOutcome,
    collected: &CapturedOutput,
    context: &ExitReportContext<'_>,
) -> String {
    let mut text = String::new();
    for note in collected.file_notes() {
        writeln!(text, "{note}").ok();
    }
    if !outcome.leftovers.is_empty() {
        let (count, listed) = (outcome.leftovers.len(), name_processes(&outcome.leftovers));
        writeln!(text, "[{count} background processes were killed: {listed}]").ok();
    }
    if !outcome.survivors.is_empty() {
        let (count, listed) = (outcome.survivors.len(), name_processes(&outcome.survivors));
        writeln!(text, "[{count} processes could not be killed: {listed}]").ok();
    }
    let ended = match outcome.exit {
        CommandExit::Code(code) => format!("exit code {code}"),
        CommandExit::Signal(signal) => format!("killed by signal {signal}"),
        CommandExit::Unknown => "killed".to_owned(),
    };
    let ExitReportContext { prefix, stop_reason: stopped, .. } = context;
    match outcome.stopped {
        None => write!(text, "[{prefix}{ended}]"),
        Some(StopCause::TimedOut) => {
            let after = context.timeout.unwrap_or_default().as_millis();
            write!(text, "[{prefix}timed out after {after} ms, {ended}]")
        }
        Some(StopCause::Interrupted) => write!(text, "[{prefix}{stopped}, {ended}]"),
        Some(StopCause::Uncovered) => write!(text, "[{prefix}stopped by the sandbox, {ended}]"),
    }
    .ok();
    text
}

fn name_processes(processes: &[LeftoverProcess]) -> String {
    let named = processes.iter().take(MAX_NAMED_LEFTOVERS);
    named.map(|left| format!("{} {}", left.pid, left.name)).collect::<Vec<_>>().join(", ")
}

fn exit_details(outcome: &ProcessOutcome, collected: &CapturedOutput) -> Value {
    let (exit_code, signal) = match outcome.exit {
        CommandExit::Code(code) => (Some(code), None),
        CommandExit::Signal(signal) => (None, Some(signal)),
        CommandExit::Unknown => (None, None),
    };
    json!({
        "exit_code": exit_code,
        "signal": signal,
        "timed_out": outcome.stopped == Some(StopCause::TimedOut),
        "interrupted": outcome.stopped == Some(StopCause::Interrupted),
        "duration_ms": u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
        "leftovers": outcome.leftovers,
        "survivors": outcome.survivors,
        "output_path": collected.spill.as_ref().map(|path| path.to_string_lossy()),
        "output_bytes": collected.total_bytes,
        "containment": outcome.containment,
        "sandbox": outcome.level.name(),
    })
}
