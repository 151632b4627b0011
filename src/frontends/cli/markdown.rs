//! A transcript as Markdown. No text of the Session can change the structure of the document: fences
//! are longer than any inside, and text that could run into what follows is quoted.

use std::fmt::Write;

use crate::agent::inspect::{
    Exported, ExportedTurn, TranscriptCall, TranscriptEntry, TranscriptHead, TranscriptTail,
};
use crate::base::error::counted;

/// The document up to its first Turn.
pub fn document_head(head: &TranscriptHead, tail: &TranscriptTail) -> String {
    let mut page = format!("# Session {}\n\n", head.session_id);
    let facts = [
        ("Workspace", Some(head.workspace.display().to_string())),
        ("Started", head.started.clone()),
        ("Model", head.model.clone()),
        ("Role", head.role.clone()),
        ("Permission mode", head.permission_mode.clone()),
        ("Branched off from", head.parent_session_id.clone()),
    ];
    for (name, value) in facts {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            // Writing to a String cannot fail.
            writeln!(page, "- {name}: {}", inline_code(&value)).ok();
        }
    }
    if tail.damaged_lines + tail.unknown_events > 0 {
        let damaged = counted(tail.damaged_lines, "damaged place");
        let unknown = counted(tail.unknown_events, "unknown Event");
        writeln!(page, "- Missing: {damaged}, {unknown}").ok();
    }
    page
}

/// One Turn of the document.
pub fn turn_section(turn: &ExportedTurn) -> String {
    let undone = if turn.is_undone { ", taken back" } else { "" };
    let mut page = format!("\n## Turn {} ({}{undone})\n", turn.number, plain_word(&turn.status));
    for entry in &turn.entries {
        page.push('\n');
        write_entry(&mut page, entry);
    }
    page
}

fn write_entry(page: &mut String, entry: &TranscriptEntry) {
    match entry {
        TranscriptEntry::User { text, attachments } => {
            page.push_str("### You\n\n");
            page.push_str(&quoted(text));
            write_attachments(page, attachments);
        }
        TranscriptEntry::Assistant { text, phase } => {
            let title = match *phase {
                "final" => "### Answer\n\n",
                "partial" => "### Broken off\n\n",
                _ => "",
            };
            page.push_str(title);
            page.push_str(&assistant_text(text));
        }
        TranscriptEntry::Reasoning { summary } => {
            page.push_str("*Thought:*\n\n");
            page.push_str(&quoted(summary));
        }
        TranscriptEntry::Tool(call) => write_call(page, call),
        TranscriptEntry::Plan { entries } => {
            page.push_str("**Plan**\n\n");
            for step in entries {
                let mark = if step.status == "completed" { "x" } else { " " };
                writeln!(page, "- [{mark}] {}", inline_code(&step.content)).ok();
            }
        }
        TranscriptEntry::Compaction { turns, trigger, .. } => {
            let what = match turns {
                Some((first, last)) => {
                    let turns: Vec<usize> = (*first..=*last).collect();
                    format!("Summarized from here on: {}", turn_numbers(&turns))
                }
                None => "Left out from here on: old tool outputs".to_owned(),
            };
            writeln!(page, "*{what} ({}).*", plain_word(trigger)).ok();
        }
        TranscriptEntry::Rewound { direction, turns, .. } => {
            let what = if *direction == "redo" { "Brought back" } else { "Taken back" };
            writeln!(page, "*{what}: {}.*", turn_numbers(turns)).ok();
        }
        TranscriptEntry::Failure { terminal_status, error_kind, message } => {
            let (status, kind) = (plain_word(terminal_status), plain_word(error_kind));
            writeln!(page, "### Ended without an answer: {status} ({kind})\n").ok();
            page.push_str(&quoted(message));
        }
    }
}

/// Turns by their numbers: `Turn 3`, `Turns 2, 4`, `Turns 1 to 9`.
fn turn_numbers(turns: &[usize]) -> String {
    let is_run = turns.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    match turns {
        [] => "no Turn".to_owned(),
        [only] => format!("Turn {only}"),
        [first, .., last] if is_run => format!("Turns {first} to {last}"),
        several => {
            let named: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("Turns {}", named.join(", "))
        }
    }
}

fn write_call(page: &mut String, call: &TranscriptCall) {
    let verdict = match call.ok {
        Some(true) => "",
        Some(false) => ", failed",
        None => ", no result",
    };
    writeln!(page, "**{}**{verdict}\n", inline_code(&call.name)).ok();
    let command = call.args.get("command").and_then(|command| command.as_str());
    match command {
        Some(command) => page.push_str(&fenced("sh", command)),
        None if call.diff.is_some() => {
            let path = call.args.get("path").or_else(|| call.args.get("file_path"));
            let path = path.and_then(|path| path.as_str());
            if let Some(path) = path {
                writeln!(page, "{}\n", inline_code(path)).ok();
            }
        }
        None => {
            let args = serde_json::to_string_pretty(&call.args).unwrap_or_default();
            page.push_str(&fenced("json", &args));
        }
    }
    if let Some(diff) = &call.diff {
        page.push_str(&fenced("diff", diff));
    } else if !call.output.is_empty() {
        page.push('\n');
        page.push_str(&fenced("text", &call.output));
    }
    write_attachments(page, &call.attachments);
}

fn write_attachments(page: &mut String, attachments: &[Exported]) {
    for own in attachments {
        let (name, kind, bytes) = (inline_code(&own.name), plain_word(&own.media_type), own.bytes);
        writeln!(page, "\nAttached: {name} ({kind}, {bytes} bytes)").ok();
    }
}

/// The longest run of a character.
fn longest_run(text: &str, wanted: char) -> usize {
    let runs = text.split(|c| c != wanted).map(str::len);
    runs.max().unwrap_or(0)
}

/// A block that no content can end.
fn fenced(language: &str, text: &str) -> String {
    let fence = "`".repeat((longest_run(text, '`') + 1).max(3));
    let gap = if text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{gap}{fence}\n")
}

/// A piece of code on one line.
fn inline_code(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let fence = "`".repeat(longest_run(&line, '`') + 1);
    let pad = if line.starts_with('`') || line.ends_with('`') { " " } else { "" };
    if line.is_empty() { "(empty)".to_owned() } else { format!("{fence}{pad}{line}{pad}{fence}") }
}

/// A word from a Log, reduced to characters that mean nothing in Markdown.
fn plain_word(text: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_-./+ ".contains(*c);
    text.chars().filter(is_plain).take(100).collect()
}

/// A block quote, which ends everything that is open inside it.
fn quoted(text: &str) -> String {
    let mut page = String::with_capacity(text.len() + 64);
    for line in text.lines() {
        page.push_str(if line.is_empty() { ">" } else { "> " });
        page.push_str(line);
        page.push('\n');
    }
    page
}

/// Markdown of the model: unchanged if it closes everything that it opens, else quoted.
fn assistant_text(text: &str) -> String {
    if !is_closed(text) {
        return quoted(text);
    }
    let gap = if text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{gap}")
}

/// Whether every fence is closed, no HTML begins, and no heading or reference joins ours.
fn is_closed(text: &str) -> bool {
    let mut open: Option<(char, usize)> = None;
    for line in text.lines() {
        let bare = line.trim_start();
        let mark = bare.chars().next().filter(|c| matches!(c, '`' | '~'));
        let length = mark.map_or(0, |mark| bare.chars().take_while(|c| *c == mark).count());
        match (open, mark) {
            (None, Some(mark)) if length >= 3 => {
                let info: String = bare.chars().skip(length).collect();
                let is_code_span = mark == '`' && info.contains('`');
                // An indented fence may belong to a list; then its end is ambiguous.
                if !is_code_span {
                    if line.len() - bare.len() > 3 {
                        return false;
                    }
                    open = Some((mark, length));
                }
            }
            (Some((own, least)), Some(mark))
                if own == mark
                    && length >= least
                    && bare.chars().skip(length).all(char::is_whitespace) =>
            {
                if line.len() - bare.len() > 3 {
                    return false;
                }
                open = None;
            }
            (None, _) => {
                let joins = bare.starts_with('#')
                    || bare.starts_with('[')
                    || bare.starts_with("===")
                    || bare.contains('<');
                if joins {
                    return false;
                }
            }
            _ => {}
        }
    }
    open.is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_fence_is_longer_than_any_inside() {
        assert_eq!(fenced("text", "a\n```\nb"), "````text\na\n```\nb\n````\n");
        assert_eq!(fenced("sh", "x\n"), "```sh\nx\n```\n");
        assert_eq!(inline_code("a`b"), "``a`b``");
        assert_eq!(inline_code("`"), "`` ` ``");
    }

    #[test]
    fn turns_are_named_by_their_numbers() {
        for (turns, expected) in [
            (&[][..], "no Turn"),
            (&[3], "Turn 3"),
            (&[3, 4], "Turns 3 to 4"),
            (&[1, 2, 3, 4], "Turns 1 to 4"),
            (&[2, 4], "Turns 2, 4"),
        ] {
            assert_eq!(turn_numbers(turns), expected);
        }
    }

    #[test]
    fn what_does_not_close_is_quoted() {
        assert!(is_closed("fine\n\n```rust\nlet a = \"<b>\";\n# no heading\n```\n- a list"));
        assert!(is_closed("``` `not a fence` ```"));
        for text in [
            "```\nopen",
            "<!-- ",
            "text <script>",
            "# Turn 9",
            "~~~\n```",
            "    ```\nx",
            "[a]: http://x",
            "Title\n===",
        ] {
            assert!(!is_closed(text), "{text}");
            assert!(assistant_text(text).starts_with('>'), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_content_ends_its_fence(text in "[`~a\n]{0,60}") {
            let block = fenced("text", &text);
            let fence = block.split("text\n").next().unwrap_or_default();
            let inner: Vec<&str> = block.lines().skip(1).collect();
            let ends = inner.iter().position(|line| line.trim().starts_with(fence));
            prop_assert_eq!(ends, Some(inner.len() - 1));
        }

        #[test]
        fn every_line_of_a_quotation_is_quoted(text in "\\PC{0,80}") {
            prop_assert!(quoted(&text).lines().all(|line| line.starts_with('>')));
        }
    }
}
