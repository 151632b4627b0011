//! The text view of a Turn: turns Events into writes to stdout and stderr; pure.
//!
//! stdout gets the answer only, and no text is shown twice. A delta does not tell whether it belongs
//! to the answer or to commentary. On a terminal, where stdout and stderr share one screen, every
//! delta is shown as it arrives. When stdout is a file or a pipe, a message is written when its phase
//! is known: the answer to stdout, commentary and text of a broken stream to stderr.

use std::collections::HashMap;

use super::call_title::{PLAN_TOOL, call_title};
use super::child;
use super::diff;
use super::footnote::footnotes;
use super::live_output::{LiveOutput, show_last_lines};
use super::plan;
use super::sanitise::{Sanitiser, clean, name_on_one_line, one_line};
use super::workflow_view::WorkflowView;
use super::write_queue::WriteQueue;
use crate::base::error::Report;
use crate::base::id::CallId;
use crate::record::event::{
    AssistantMessage, Canonical, Ephemeral, EventKind, ListenerItem, Plan, ProviderRetry,
    RecordedFiles, SessionStatus, TerminalStatus, ToolCall, ToolResult, TurnFailed, UserMessage,
    WAITING_FOR_BUDGET, starting_servers_text,
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
pub struct ViewStyle {
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
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact about the screen")]
pub struct TextView {
    style: ViewStyle,
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
    is_failure_shown: bool,
    titles: HashMap<CallId, String>,
    /// The last call for which it was shown that files are recorded.
    recorded: Option<CallId>,
    /// Output and reasoning as they come, for `--verbose`.
    live: LiveOutput,
    /// The plan that was shown last.
    plan: Option<Plan>,
    /// The Workflow that runs.
    workflow: WorkflowView,
}

impl TextView {
    /// A view that has shown nothing yet.
    pub fn new(style: ViewStyle) -> Self {
        Self { style, ..Self::default() }
    }

    /// The status row of the running Workflow.
    pub fn workflow_row(&self, width: usize) -> Option<String> {
        self.workflow.status_row(width)
    }

    /// Whether the cursor of a terminal is in the middle of a line.
    pub fn is_mid_line(&self) -> bool {
        self.in_text && self.style.answer == Surface::Terminal
    }

    /// Shows an Event, or that some were missed.
    pub fn show(&mut self, item: &ListenerItem, queue: &mut WriteQueue) {
        match item {
            ListenerItem::Missed(_) => {
                self.gap = true;
                self.catching_up = true;
                if self.style.verbose {
                    self.show_activity(
                        "… some live output is missing here; the Log has the results",
                        queue,
                    );
                }
            }
            ListenerItem::Event(event) => match event.kind() {
                EventKind::Canonical(fact) => {
                    self.end_reasoning(queue);
                    self.show_fact(fact, queue);
                }
                EventKind::Ephemeral(notice) => self.show_notice(notice, queue),
            },
        }
    }

    fn show_fact(&mut self, fact: &Canonical, queue: &mut WriteQueue) {
        match fact {
            // A Workflow run from the command line prints a longer report at its end.
            Canonical::AssistantMessage(message) if message.is_report() => {}
            Canonical::AssistantMessage(message) => self.show_message(message, queue),
            Canonical::UserMessage(message) => self.show_attachments(message, queue),
            Canonical::ToolCall(call) => self.remember_title(call),
            Canonical::ToolResult(result) => self.show_result(result, queue),
            Canonical::TurnFailed(failed) => self.show_failure(failed, queue),
            Canonical::Plan(plan) => self.show_plan(plan, queue),
            Canonical::PermissionDecision(decision) => {
                if let Some(notice) = &decision.notice {
                    self.show_activity(&one_line(notice, NOTICE_WIDTH), queue);
                }
            }
            Canonical::HistoryCompaction(compaction) => {
                self.show_activity(&one_line(&compaction.describe(), NOTICE_WIDTH), queue);
            }
            Canonical::SkillActivation(skill) if skill.activated_by == "user" => {
                let line = format!("skill {} ({})", skill.name, skill.path);
                self.show_activity(&one_line(&line, NOTICE_WIDTH), queue);
            }
            Canonical::SkillContextHydration(context) => {
                let how = if context.ok { "" } else { " failed" };
                let line = format!("context {}{how}: {}", context.source, context.request);
                self.show_activity(&one_line(&line, NOTICE_WIDTH), queue);
            }
            // A Subagent of a Workflow is shown by the line of its step.
            Canonical::SubagentEvent(life) if life.extra.contains_key("workflow_id") => {}
            Canonical::SubagentEvent(life) => {
                if let Some(line) = child::end_line(life) {
                    self.show_activity(&line, queue);
                }
            }
            Canonical::WorkflowEvent(event) => {
                if let Some(line) = self.workflow.show_event(event, self.style.activity) {
                    self.show_activity(&line, queue);
                }
            }
            Canonical::LogRepaired(repaired) if !repaired.kept => self.show_activity(
                &format!(
                    "the Log had an incomplete line of {} bytes; it is skipped",
                    repaired.length
                ),
                queue,
            ),
            _ => {}
        }
    }

    fn show_notice(&mut self, notice: &Ephemeral, queue: &mut WriteQueue) {
        match notice {
            Ephemeral::TextDelta(chunk) => self.show_delta(chunk, queue),
            Ephemeral::Status(status) => self.show_status(status, queue),
            Ephemeral::ProviderRetry(retry) => self.show_retry(retry, queue),
            Ephemeral::ContextPressure(pressure) => {
                self.show_activity(&one_line(&pressure.summary(), NOTICE_WIDTH), queue);
            }
            Ephemeral::PermissionRequest(request) => {
                let summary = name_on_one_line(&request.summary, TITLE_WIDTH);
                self.show_activity(&format!("asked for permission: {summary}"), queue);
            }
            Ephemeral::ReasoningDelta(chunk) if self.style.verbose => {
                let lines = self.live.push_reasoning(chunk);
                self.show_live_lines(&lines, queue);
            }
            Ephemeral::ToolOutputDelta { call_id, chunk } if self.style.verbose => {
                let title = self.titles.get(call_id).map_or("tool", String::as_str);
                let lines = self.live.push_output(call_id, title, chunk);
                self.show_live_lines(&lines, queue);
            }
            Ephemeral::ReasoningDelta(_)
            | Ephemeral::ToolOutputDelta { .. }
            | Ephemeral::PermissionResolved { .. } => {}
        }
    }

    /// Shows the incomplete last line of reasoning.
    fn end_reasoning(&mut self, queue: &mut WriteQueue) {
        let lines = self.live.end_reasoning();
        self.show_live_lines(&lines, queue);
    }

    fn show_live_lines(&mut self, lines: &[String], queue: &mut WriteQueue) {
        for line in lines {
            self.show_activity(line, queue);
        }
        self.behind_activity |= !lines.is_empty();
    }

    fn show_delta(&mut self, chunk: &str, queue: &mut WriteQueue) {
        if self.style.answer != Surface::Terminal || self.gap || chunk.is_empty() {
            return;
        }
        self.end_reasoning(queue);
        self.shown.push_str(chunk);
        self.write_text(chunk, queue);
    }

    /// Writes text to the stdout of a terminal.
    fn write_text(&mut self, chunk: &str, queue: &mut WriteQueue) {
        if std::mem::take(&mut self.behind_activity) && self.style.activity == Surface::Terminal {
            queue.push_line("");
        }
        let answer = queue.answer_text();
        let before = answer.len();
        self.sanitiser.push(chunk, answer);
        if answer.len() > before {
            self.in_text = !answer.ends_with('\n');
        }
    }

    fn show_message(&mut self, message: &AssistantMessage, queue: &mut WriteQueue) {
        match self.style.answer {
            Surface::Terminal => self.show_message_on_terminal(&message.text, queue),
            Surface::Plain if message.is_final() || message.truncation().is_some() => {
                let text = clean(&message.text);
                let answer = queue.answer_text();
                answer.push_str(&text);
                if !text.ends_with('\n') {
                    answer.push('\n');
                }
            }
            Surface::Hidden if message.truncation().is_some() => {}
            Surface::Plain | Surface::Hidden if !message.is_final() => {
                self.show_activity(clean(&message.text).trim_end(), queue);
            }
            Surface::Plain | Surface::Hidden => {}
        }
        for footnote in footnotes(message) {
            self.show_activity(&footnote, queue);
        }
        self.show_end_notice(message.notice(), queue);
    }

    fn show_message_on_terminal(&mut self, text: &str, queue: &mut WriteQueue) {
        if self.shown.starts_with(text) {
            // The response has several messages: text of the later ones stays in `shown`.
            self.shown.drain(..text.len());
            if self.shown.is_empty() {
                self.close_line(queue);
            }
            return;
        }
        if let Some(missing) = text.strip_prefix(self.shown.as_str()) {
            self.write_text(missing, queue);
        } else {
            // The shown text differs from the message, so the whole message is shown.
            self.close_line(queue);
            self.write_text(text, queue);
        }
        self.shown.clear();
        self.close_line(queue);
    }

    fn close_line(&mut self, queue: &mut WriteQueue) {
        self.sanitiser = Sanitiser::default();
        if self.is_mid_line() {
            queue.answer_text().push('\n');
        }
        self.in_text = false;
    }

    fn show_attachments(&mut self, message: &UserMessage, queue: &mut WriteQueue) {
        for resource in message.descriptors() {
            self.show_activity(
                &format!("attached {}", one_line(&resource.summary(), TITLE_WIDTH)),
                queue,
            );
        }
    }

    fn remember_title(&mut self, call: &ToolCall) {
        self.titles.insert(call.call_id.clone(), call_title(call, TITLE_WIDTH));
    }

    fn show_result(&mut self, result: &ToolResult, queue: &mut WriteQueue) {
        let mut name = self.titles.remove(&result.call_id).unwrap_or_else(|| "tool".to_owned());
        // The plan was shown when it was recorded.
        if self.style.quiet || (name == PLAN_TOOL && result.ok) {
            return;
        }
        let about = name.split_once(' ').map(|(_, about)| about);
        if let Some(handle) = background_handle(result).filter(|handle| about != Some(handle)) {
            name = format!("{name} → {handle}");
        }
        let (rest, is_streamed) = self.live.end_output(&result.call_id);
        self.show_live_lines(&rest, queue);
        let outcome = failure_text(result);
        let line = match (self.style.activity, &outcome) {
            (Surface::Terminal, None) => format!("• {name} {}", self.paint(GREEN, "✓")),
            (Surface::Terminal, Some(trouble)) => {
                format!("• {name} {}", self.paint(RED, &format!("✗ {trouble}")))
            }
            (_, None) => format!("{name}: ok"),
            (_, Some(trouble)) => format!("{name}: {trouble}"),
        };
        self.show_activity(&line, queue);
        if outcome.is_some() && !is_streamed && result.is_command() {
            let output = result.output.as_deref().unwrap_or_default();
            show_last_lines(output, |line| self.show_activity(line, queue));
        }
        if let Some(notice) = result.notice() {
            self.show_activity(&one_line(notice, END_WIDTH), queue);
        }
        if let Some(diff) = result.diff() {
            let colour = self.style.colour;
            diff::show_diff(diff, colour, diff::MAX_RESULT_LINES, |line| queue.push_line(line));
        }
        self.behind_activity = true;
    }

    /// Shows the model's plan.
    pub fn show_plan(&mut self, plan: &Plan, queue: &mut WriteQueue) {
        if self.style.quiet || self.plan.as_ref() == Some(plan) {
            return;
        }
        self.plan = Some(plan.clone());
        self.close_line(queue);
        plan::show_plan(plan, self.style.activity, |line| queue.push_line(line));
        self.behind_activity = true;
    }

    /// Shows the notice of a Turn that has ended.
    fn show_end_notice(&mut self, notice: Option<&str>, queue: &mut WriteQueue) {
        if let Some(notice) = notice {
            self.show_activity(&one_line(notice, END_WIDTH), queue);
        }
    }

    fn show_failure(&mut self, failed: &TurnFailed, queue: &mut WriteQueue) {
        self.close_line(queue);
        self.shown.clear();
        self.show_end_notice(failed.notice(), queue);
        if failed.terminal_status == TerminalStatus::Interrupted {
            self.show_activity("interrupted", queue);
            return;
        }
        let report = Report {
            kind: failed.error_kind.clone(),
            message: failed.error_message.clone(),
            details: failed.details.clone(),
        };
        self.show_error(&report, failed.terminal_status.as_str(), queue);
    }

    fn show_error(&mut self, report: &Report, otherwise: &str, queue: &mut WriteQueue) {
        self.is_failure_shown = true;
        self.close_line(queue);
        let message = clean(&report.message);
        let message = if message.is_empty() { otherwise } else { &message };
        queue.push_line(&format!("{} {message}", self.paint(RED, "error:")));
        for action in report.next_actions() {
            queue.push_line(&format!("  try: {}", clean(&action)));
        }
    }

    fn show_status(&mut self, status: &SessionStatus, queue: &mut WriteQueue) {
        if std::mem::take(&mut self.catching_up) && !status.is_terminal() {
            return;
        }
        match status {
            SessionStatus::Thinking { .. } => {
                self.gap = false;
                self.shown.clear();
                self.close_line(queue);
            }
            // A failure that could not be written to the Log is reported only here.
            SessionStatus::Error { terminal_status, error } if !self.is_failure_shown => {
                self.show_error(error, terminal_status, queue);
            }
            // On a terminal, the status line shows this.
            SessionStatus::Starting { servers } if self.style.activity == Surface::Plain => {
                self.show_activity(&one_line(&starting_servers_text(servers), TITLE_WIDTH), queue);
            }
            SessionStatus::Working { tool, waiting: Some(reason), .. }
                if self.style.activity == Surface::Plain =>
            {
                self.show_activity(
                    &one_line(&format!("{tool} waits {reason}"), TITLE_WIDTH),
                    queue,
                );
            }
            // Once per call; the status line shows the numbers.
            SessionStatus::Recording { call_id, .. }
                if self.style.activity == Surface::Plain
                    && self.recorded.as_ref() != Some(call_id) =>
            {
                self.recorded = Some(call_id.clone());
                self.show_activity(&RecordedFiles::progress_text(None), queue);
            }
            SessionStatus::WaitingForBudget { .. } if self.style.activity == Surface::Plain => {
                self.show_activity(WAITING_FOR_BUDGET, queue);
            }
            SessionStatus::Idle
            | SessionStatus::WaitingForBudget { .. }
            | SessionStatus::Starting { .. }
            | SessionStatus::Compacting { .. }
            | SessionStatus::Recording { .. }
            | SessionStatus::Working { .. }
            | SessionStatus::Done
            | SessionStatus::Error { .. }
            | SessionStatus::Interrupted => {}
        }
        if status.is_terminal() {
            self.is_failure_shown = false;
        }
    }

    fn show_retry(&mut self, retry: &ProviderRetry, queue: &mut WriteQueue) {
        let ProviderRetry { attempt, max_attempts, delay_ms, error } = retry;
        let seconds = std::time::Duration::from_millis(*delay_ms).as_secs_f64();
        let reason = one_line(&error.message, TITLE_WIDTH);
        self.show_activity(
            &format!("{reason}; attempt {attempt} of {max_attempts} in {seconds:.1} s"),
            queue,
        );
    }

    /// Ends a line in progress, so that something else can be shown.
    pub fn break_line(&mut self, queue: &mut WriteQueue) {
        self.close_line(queue);
    }

    /// Writes a line to stderr that `--quiet` hides.
    pub fn show_activity(&mut self, text: &str, queue: &mut WriteQueue) {
        if self.style.quiet || text.is_empty() {
            return;
        }
        self.close_line(queue);
        queue.push_line(text);
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.style.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The widest notice of a tool, in cells.
const NOTICE_WIDTH: usize = 300;
/// The widest notice at the end of a Turn, which names files, in cells.
const END_WIDTH: usize = 1000;
const GREEN: &str = "32";
const RED: &str = "31";

/// The handle of a background command, as long as it runs.
fn background_handle(result: &ToolResult) -> Option<String> {
    let (handle, is_running) = result.background()?;
    (is_running == Some(true)).then(|| one_line(handle, 20))
}

/// Why a call went wrong, in a few words; `None` when it went well.
fn failure_text(result: &ToolResult) -> Option<String> {
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
