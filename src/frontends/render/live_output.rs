//! Live output for `--verbose`: command output and reasoning as they arrive; and the last lines of a failed command.

use std::collections::HashMap;

use super::sanitise::clean;
use crate::base::error::counted;
use crate::base::id::CallId;

/// How many lines of a failed command are shown.
const LAST_LINES: usize = 8;

/// How much of each of these lines is shown, in characters.
const LAST_WIDTH: usize = 160;

/// The longest incomplete line that is kept before it is shown, in bytes.
const LONGEST_PIECE: usize = 8 * 1024;

/// Incomplete lines of command output and reasoning.
#[derive(Debug, Default)]
pub struct LiveOutput {
    /// The incomplete line of each call.
    calls: HashMap<CallId, String>,
    /// The call whose output was shown last.
    last_call: Option<CallId>,
    reasoning: String,
    /// Whether the heading of the current reasoning was shown.
    is_reasoning: bool,
}

impl LiveOutput {
    /// Adds a piece of output; returns the lines to show, under a heading where the call changes.
    pub fn push_output(&mut self, call_id: &CallId, title: &str, chunk: &str) -> Vec<String> {
        let piece = self.calls.entry(call_id.clone()).or_default();
        piece.push_str(chunk);
        let complete = take_lines(piece);
        if complete.is_empty() {
            return complete;
        }
        let mut lines: Vec<String> = complete.iter().map(|line| format!("  | {line}")).collect();
        if self.last_call.as_ref() != Some(call_id) {
            lines.insert(0, format!("{title}:"));
            self.last_call = Some(call_id.clone());
        }
        lines
    }

    /// Ends a call; returns the rest of its output, and whether it had any live output.
    pub fn end_output(&mut self, call_id: &CallId) -> (Vec<String>, bool) {
        let Some(rest) = self.calls.remove(call_id) else { return (Vec::new(), false) };
        self.last_call = None;
        let rest = clean(&rest);
        let lines = rest.lines().map(|line| format!("  | {line}")).collect();
        (lines, true)
    }

    /// Adds a piece of reasoning; returns the lines to show.
    pub fn push_reasoning(&mut self, chunk: &str) -> Vec<String> {
        self.reasoning.push_str(chunk);
        let complete = take_lines(&mut self.reasoning);
        complete.into_iter().filter_map(|line| self.reasoning_line(&line)).collect()
    }

    /// Ends the reasoning; returns the rest of its lines.
    pub fn end_reasoning(&mut self) -> Vec<String> {
        let rest = std::mem::take(&mut self.reasoning);
        let lines = clean(&rest).lines().filter_map(|line| self.reasoning_line(line)).collect();
        self.is_reasoning = false;
        lines
    }

    fn reasoning_line(&mut self, line: &str) -> Option<String> {
        if line.trim().is_empty() {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.is_reasoning, true);
        Some(if is_first { format!("thinking: {line}") } else { format!("  {line}") })
    }
}

/// Takes complete lines out of a text, sanitised. A piece that is too long counts as a line.
fn take_lines(text: &mut String) -> Vec<String> {
    let end = match text.rfind('\n') {
        Some(end) => end + 1,
        None if text.len() > LONGEST_PIECE => text.len(),
        None => return Vec::new(),
    };
    let complete: String = text.drain(..end).collect();
    clean(&complete).lines().map(str::to_owned).collect()
}

/// Passes the last output lines of a failed command to `show`, without the exit line, which is shown elsewhere.
pub fn show_last_lines(output: &str, mut show: impl FnMut(&str)) {
    let output = clean(output);
    let is_shown = |line: &&str| {
        let is_end = line.starts_with("[exit code ") || line.starts_with("[killed by signal ");
        !line.trim().is_empty() && !is_end && *line != "(no output)"
    };
    let lines: Vec<&str> = output.lines().filter(is_shown).collect();
    let hidden = lines.len().saturating_sub(LAST_LINES);
    if hidden > 0 {
        let earlier = counted(hidden, "earlier line");
        show(&format!("  | … {earlier}; --verbose shows all"));
    }
    for line in &lines[hidden..] {
        let is_long = line.chars().count() > LAST_WIDTH;
        let cut: String = line.chars().take(LAST_WIDTH).collect();
        show(&format!("  | {cut}{}", if is_long { "…" } else { "" }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_failure_are_shown_without_its_ending() {
        let lines: Vec<String> = (1..=20).map(|number| format!("line {number}\n\n")).collect();
        let output = lines.concat();
        let mut shown = Vec::new();
        show_last_lines(&format!("{output}    \u{1b}[31mbad\u{1b}[0m\n[exit code 3]"), |line| {
            shown.push(line.to_owned());
        });
        assert_eq!(shown.len(), LAST_LINES + 1);
        assert_eq!(shown[0], "  | … 13 earlier lines; --verbose shows all");
        assert_eq!(shown.last().unwrap(), "  |     bad", "indentation is kept");
        show_last_lines("(no output)\n[exit code 3]", |line| panic!("{line}"));
    }

    #[test]
    fn output_is_shown_in_whole_lines_with_a_heading_where_the_call_changes() {
        let mut live = LiveOutput::default();
        let one = CallId::new("1");
        let two = CallId::new("2");
        assert!(live.push_output(&one, "bash make", "a").is_empty());
        assert_eq!(live.push_output(&one, "bash make", "b\nc"), ["bash make:", "  | ab"]);
        assert_eq!(live.push_output(&two, "bash test", "x\n"), ["bash test:", "  | x"]);
        assert_eq!(
            live.push_output(&one, "bash make", "d\ne\n"),
            ["bash make:", "  | cd", "  | e"]
        );
        assert_eq!(live.end_output(&one), (Vec::new(), true));
        assert_eq!(live.end_output(&CallId::new("3")), (Vec::new(), false));
        assert_eq!(live.push_reasoning("**Look**\n\nfirst "), ["thinking: **Look**"]);
        assert_eq!(live.end_reasoning(), ["  first "]);
    }
}
