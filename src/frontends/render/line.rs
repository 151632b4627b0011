//! The text view of a Turn: turns Events into writes to stdout and stderr; pure.
//!
//! stdout gets the answer only, and no text is shown twice. A delta does not tell whether it belongs
//! to the answer or to commentary. On a terminal, where stdout and stderr share one screen, every
//! delta is shown as it arrives. When stdout is a file or a pipe, a message is written when its phase
//! is known: the answer to stdout, commentary and text of a broken stream to stderr.

use std::collections::HashMap;

use super::child;
use super::diff;
use super::footnote::footnotes;
use super::graph::Graph;
use super::live_output::{LiveOutput, last_lines};
use super::plan;
use super::sanitise::{Sanitiser, clean, name_on_one_line, one_line};
use super::sheet::Sheet;
use super::title::{PLANNING, title};
use crate::base::error::Report;
use crate::base::id::CallId;
use crate::record::event::{
    AssistantMessage, Canonical, Ephemeral, EventKind, Heard, Plan, ProviderRetry, RecordedFiles,
    Status, TerminalStatus, ToolCall, ToolResult, TurnFailed, UserMessage, WAITING_FOR_BUDGET,
    still_starting,
};

/// The widest tool line; wider ones are cut, because they would wrap.
const TITLE_WIDTH: usize = 100;

/// Where a standard stream leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Surface {
    /// A terminal.
    Terminal,
    /// A file or a pipe.
    Plain,
    /// Not used for text, because the stream carries something else.
    #[default]
    Hidden,
}

/// Style of the text view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    pub answer: Surface,
    pub activity: Surface,
    /// Whether stderr may be coloured.
    pub colour: bool,
    /// Only the answer and errors.
    pub quiet: bool,
    /// Also all output of commands and the model's reasoning.
    pub verbose: bool,
}

/// Shows a Turn as text; keeps what has been shown so far.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact about the screen of its own")]
pub struct Line {
    look: Look,
    sanitiser: Sanitiser,
    /// Raw text of the current response that is already on the screen.
    shown: String,
    /// Whether the cursor of stdout is behind text.
    in_text: bool,
    /// Deltas were lost: later ones are not shown until the whole message arrives.
    gap: bool,
    /// The next status repeats the state after lost Events, and is ignored.
    catching_up: bool,
    /// Whether tool lines were written since the last text.
    behind_activity: bool,
    /// Whether the Turn's failure has been shown.
    told: bool,
    titles: HashMap<CallId, String>,
    /// Output and reasoning as they come, for `--verbose`.
    live: LiveOutput,
    /// The plan that was shown last.
    plan: Option<Plan>,
    /// The Workflow that runs.
    graph: Graph,
}

impl Line {
    /// A view that has shown nothing yet.
    pub fn new(look: Look) -> Self {
        Self { look, ..Self::default() }
    }

    /// The status row of the running Workflow.
    pub fn graph_row(&self, width: usize) -> Option<String> {
        self.graph.row(width)
    }

    /// Whether the cursor of a terminal is in the middle of a line.
    pub fn is_mid_line(&self) -> bool {
        self.in_text && self.look.answer == Surface::Terminal
    }

    /// Shows an Event, or that some were missed.
    pub fn hear(&mut self, heard: &Heard, sheet: &mut Sheet) {
        match heard {
            Heard::Missed(_) => {
                self.gap = true;
                self.catching_up = true;
                if self.look.verbose {
                    self.activity(
                        "… some live output is missing here; the Log has the results",
                        sheet,
                    );
                }
            }
            Heard::Event(event) => match event.kind() {
                EventKind::Canonical(fact) => {
                    self.end_reasoning(sheet);
                    self.fact(fact, sheet);
                }
                EventKind::Ephemeral(notice) => self.notice(notice, sheet),
            },
        }
    }

    fn fact(&mut self, fact: &Canonical, sheet: &mut Sheet) {
        match fact {
            // A Workflow run from the command line prints a longer report at its end.
            Canonical::AssistantMessage(message) if message.is_report() => {}
            Canonical::AssistantMessage(message) => self.message(message, sheet),
            Canonical::UserMessage(message) => self.attached(message, sheet),
            Canonical::ToolCall(call) => self.remember(call),
            Canonical::ToolResult(result) => self.result(result, sheet),
            Canonical::TurnFailed(failed) => self.failure(failed, sheet),
            Canonical::Plan(plan) => self.plan(plan, sheet),
            Canonical::PermissionDecision(decision) => {
                if let Some(notice) = &decision.notice {
                    self.activity(&one_line(notice, NOTICE_WIDTH), sheet);
                }
            }
            Canonical::HistoryCompaction(compaction) => {
                self.activity(&one_line(&compaction.words(), NOTICE_WIDTH), sheet);
            }
            Canonical::SkillActivation(skill) if skill.activated_by == "user" => {
                let line = format!("skill {} ({})", skill.name, skill.path);
                self.activity(&one_line(&line, NOTICE_WIDTH), sheet);
            }
            Canonical::SkillContextHydration(context) => {
                let how = if context.ok { "" } else { " failed" };
                let line = format!("context {}{how}: {}", context.source, context.request);
                self.activity(&one_line(&line, NOTICE_WIDTH), sheet);
            }
            // A Subagent of a Workflow is shown by the line of its step.
            Canonical::SubagentEvent(life) if life.extra.contains_key("workflow_id") => {}
            Canonical::SubagentEvent(life) => {
                if let Some(line) = child::line(life) {
                    self.activity(&line, sheet);
                }
            }
            Canonical::WorkflowEvent(event) => {
                if let Some(line) = self.graph.hear(event, self.look.activity) {
                    self.activity(&line, sheet);
                }
            }
            Canonical::LogRepaired(repaired) if !repaired.kept => self.activity(
                &format!(
                    "the Log had an incomplete line of {} bytes; it is skipped",
                    repaired.length
                ),
                sheet,
            ),
            _ => {}
        }
    }

    fn notice(&mut self, notice: &Ephemeral, sheet: &mut Sheet) {
        match notice {
            Ephemeral::TextDelta(chunk) => self.delta(chunk, sheet),
            Ephemeral::Status(status) => self.status(status, sheet),
            Ephemeral::ProviderRetry(retry) => self.retry(retry, sheet),
            Ephemeral::ContextPressure(pressure) => {
                self.activity(&one_line(&pressure.words(), NOTICE_WIDTH), sheet);
            }
            Ephemeral::PermissionRequest(request) => {
                let summary = name_on_one_line(&request.summary, TITLE_WIDTH);
                self.activity(&format!("asked for permission: {summary}"), sheet);
            }
            Ephemeral::ReasoningDelta(chunk) if self.look.verbose => {
                let lines = self.live.reasoning(chunk);
                self.live_lines(&lines, sheet);
            }
            Ephemeral::ToolOutputDelta { call_id, chunk } if self.look.verbose => {
                let title = self.titles.get(call_id).map_or("tool", String::as_str);
                let lines = self.live.output(call_id, title, chunk);
                self.live_lines(&lines, sheet);
            }
            Ephemeral::ReasoningDelta(_)
            | Ephemeral::ToolOutputDelta { .. }
            | Ephemeral::PermissionResolved { .. } => {}
        }
    }

    /// Shows the incomplete last line of reasoning.
    fn end_reasoning(&mut self, sheet: &mut Sheet) {
        let lines = self.live.end_reasoning();
        self.live_lines(&lines, sheet);
    }

    fn live_lines(&mut self, lines: &[String], sheet: &mut Sheet) {
        for line in lines {
            self.activity(line, sheet);
        }
        self.behind_activity |= !lines.is_empty();
    }

    fn delta(&mut self, chunk: &str, sheet: &mut Sheet) {
        if self.look.answer != Surface::Terminal || self.gap || chunk.is_empty() {
            return;
        }
        self.end_reasoning(sheet);
        self.shown.push_str(chunk);
        self.text(chunk, sheet);
    }

    /// Writes text to the stdout of a terminal.
    fn text(&mut self, chunk: &str, sheet: &mut Sheet) {
        if std::mem::take(&mut self.behind_activity) && self.look.activity == Surface::Terminal {
            sheet.line("");
        }
        let answer = sheet.answer();
        let before = answer.len();
        self.sanitiser.push(chunk, answer);
        if answer.len() > before {
            self.in_text = !answer.ends_with('\n');
        }
    }

    fn message(&mut self, message: &AssistantMessage, sheet: &mut Sheet) {
        match self.look.answer {
            Surface::Terminal => self.message_on_terminal(&message.text, sheet),
            Surface::Plain if message.is_final() || message.truncation().is_some() => {
                let text = clean(&message.text);
                let answer = sheet.answer();
                answer.push_str(&text);
                if !text.ends_with('\n') {
                    answer.push('\n');
                }
            }
            Surface::Hidden if message.truncation().is_some() => {}
            Surface::Plain | Surface::Hidden if !message.is_final() => {
                self.activity(clean(&message.text).trim_end(), sheet);
            }
            Surface::Plain | Surface::Hidden => {}
        }
        for footnote in footnotes(message) {
            self.activity(&footnote, sheet);
        }
        self.told_at_end(message.notice(), sheet);
    }

    fn message_on_terminal(&mut self, text: &str, sheet: &mut Sheet) {
        if self.shown.starts_with(text) {
            // The response has several messages: text of the later ones stays in `shown`.
            self.shown.drain(..text.len());
            if self.shown.is_empty() {
                self.close_line(sheet);
            }
            return;
        }
        if let Some(missing) = text.strip_prefix(self.shown.as_str()) {
            self.text(missing, sheet);
        } else {
            // The shown text differs from the message, so the whole message is shown.
            self.close_line(sheet);
            self.text(text, sheet);
        }
        self.shown.clear();
        self.close_line(sheet);
    }

    fn close_line(&mut self, sheet: &mut Sheet) {
        self.sanitiser = Sanitiser::default();
        if self.is_mid_line() {
            sheet.answer().push('\n');
        }
        self.in_text = false;
    }

    fn attached(&mut self, message: &UserMessage, sheet: &mut Sheet) {
        for resource in message.descriptors() {
            self.activity(
                &format!("attached {}", one_line(&resource.summary(), TITLE_WIDTH)),
                sheet,
            );
        }
    }

    fn remember(&mut self, call: &ToolCall) {
        self.titles.insert(call.call_id.clone(), title(call, TITLE_WIDTH));
    }

    fn result(&mut self, result: &ToolResult, sheet: &mut Sheet) {
        let mut name = self.titles.remove(&result.call_id).unwrap_or_else(|| "tool".to_owned());
        // The plan was shown when it was recorded.
        if self.look.quiet || (name == PLANNING && result.ok) {
            return;
        }
        let about = name.split_once(' ').map(|(_, about)| about);
        if let Some(handle) = handle(result).filter(|handle| about != Some(handle)) {
            name = format!("{name} → {handle}");
        }
        let (rest, is_streamed) = self.live.end_output(&result.call_id);
        self.live_lines(&rest, sheet);
        let outcome = outcome(result);
        let line = match (self.look.activity, &outcome) {
            (Surface::Terminal, None) => format!("• {name} {}", self.paint(GREEN, "✓")),
            (Surface::Terminal, Some(trouble)) => {
                format!("• {name} {}", self.paint(RED, &format!("✗ {trouble}")))
            }
            (_, None) => format!("{name}: ok"),
            (_, Some(trouble)) => format!("{name}: {trouble}"),
        };
        self.activity(&line, sheet);
        if outcome.is_some() && !is_streamed && result.is_command() {
            let output = result.output.as_deref().unwrap_or_default();
            last_lines(output, |line| self.activity(line, sheet));
        }
        if let Some(notice) = result.notice() {
            self.activity(&one_line(notice, END_WIDTH), sheet);
        }
        if let Some(diff) = result.diff() {
            let colour = self.look.colour;
            diff::show(diff, colour, diff::SHORT, |line| sheet.line(line));
        }
        self.behind_activity = true;
    }

    /// Shows the model's plan.
    pub fn plan(&mut self, plan: &Plan, sheet: &mut Sheet) {
        if self.look.quiet || self.plan.as_ref() == Some(plan) {
            return;
        }
        self.plan = Some(plan.clone());
        self.close_line(sheet);
        plan::show(plan, self.look.activity, |line| sheet.line(line));
        self.behind_activity = true;
    }

    /// Shows the notice of a Turn that has ended.
    fn told_at_end(&mut self, notice: Option<&str>, sheet: &mut Sheet) {
        if let Some(notice) = notice {
            self.activity(&one_line(notice, END_WIDTH), sheet);
        }
    }

    fn failure(&mut self, failed: &TurnFailed, sheet: &mut Sheet) {
        self.close_line(sheet);
        self.shown.clear();
        self.told_at_end(failed.notice(), sheet);
        if failed.terminal_status == TerminalStatus::Interrupted {
            self.activity("interrupted", sheet);
            return;
        }
        let report = Report {
            kind: failed.error_kind.clone(),
            message: failed.error_message.clone(),
            details: failed.details.clone(),
        };
        self.error(&report, failed.terminal_status.as_str(), sheet);
    }

    fn error(&mut self, report: &Report, otherwise: &str, sheet: &mut Sheet) {
        self.told = true;
        self.close_line(sheet);
        let message = clean(&report.message);
        let message = if message.is_empty() { otherwise } else { &message };
        sheet.line(&format!("{} {message}", self.paint(RED, "error:")));
        for action in report.next_actions() {
            sheet.line(&format!("  try: {}", clean(&action)));
        }
    }

    fn status(&mut self, status: &Status, sheet: &mut Sheet) {
        if std::mem::take(&mut self.catching_up) && !status.is_terminal() {
            return;
        }
        match status {
            Status::Thinking { .. } => {
                self.gap = false;
                self.shown.clear();
                self.close_line(sheet);
            }
            // A failure that could not be written to the Log is reported only here.
            Status::Error { terminal_status, error } if !self.told => {
                self.error(error, terminal_status, sheet);
            }
            // On a terminal, the status line shows this.
            Status::Starting { servers } if self.look.activity == Surface::Plain => {
                self.activity(&one_line(&still_starting(servers), TITLE_WIDTH), sheet);
            }
            Status::Working { tool, waiting: Some(reason), .. }
                if self.look.activity == Surface::Plain =>
            {
                self.activity(&one_line(&format!("{tool} waits {reason}"), TITLE_WIDTH), sheet);
            }
            // Once per call; the status line shows the numbers.
            Status::Recording { files: None, .. } if self.look.activity == Surface::Plain => {
                self.activity(&RecordedFiles::words(None), sheet);
            }
            Status::WaitingForBudget { .. } if self.look.activity == Surface::Plain => {
                self.activity(WAITING_FOR_BUDGET, sheet);
            }
            Status::Idle
            | Status::WaitingForBudget { .. }
            | Status::Starting { .. }
            | Status::Compacting { .. }
            | Status::Recording { .. }
            | Status::Working { .. }
            | Status::Done
            | Status::Error { .. }
            | Status::Interrupted => {}
        }
        if status.is_terminal() {
            self.told = false;
        }
    }

    fn retry(&mut self, retry: &ProviderRetry, sheet: &mut Sheet) {
        let ProviderRetry { attempt, max_attempts, delay_ms, error } = retry;
        let seconds = std::time::Duration::from_millis(*delay_ms).as_secs_f64();
        let reason = one_line(&error.message, TITLE_WIDTH);
        self.activity(
            &format!("{reason}; attempt {attempt} of {max_attempts} in {seconds:.1} s"),
            sheet,
        );
    }

    /// Ends a line in progress, so that something else can be shown.
    pub fn break_line(&mut self, sheet: &mut Sheet) {
        self.close_line(sheet);
    }

    /// Writes a line to stderr that `--quiet` hides.
    pub fn activity(&mut self, text: &str, sheet: &mut Sheet) {
        if self.look.quiet || text.is_empty() {
            return;
        }
        self.close_line(sheet);
        sheet.line(text);
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.look.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The widest notice of a tool, in cells.
const NOTICE_WIDTH: usize = 300;
/// The widest notice at the end of a Turn, which names files, in cells.
const END_WIDTH: usize = 1000;
const GREEN: &str = "32";
const RED: &str = "31";

/// The handle of a background command, as long as it runs.
fn handle(result: &ToolResult) -> Option<String> {
    let (handle, is_running) = result.background()?;
    (is_running == Some(true)).then(|| one_line(handle, 20))
}

/// Why a call went wrong, in a few words; `None` when it went well.
fn outcome(result: &ToolResult) -> Option<String> {
    if result.ok {
        return None;
    }
    if let Some(signal) = result.signal() {
        return Some(format!("signal {}", one_line(&signal, 20)));
    }
    if let Some(code) = result.exit_code() {
        return Some(format!("exit {code}"));
    }
    let message = result.error.as_ref().map_or("failed", |error| error.message.as_str());
    Some(name_on_one_line(message, TITLE_WIDTH))
}
