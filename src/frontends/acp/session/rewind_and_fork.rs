//! The slash commands `/undo`, `/redo` and `/fork`.

use std::fmt::Write;

use super::Actor;
use crate::agent::harness::{RewindDirection, RewindReport, RewoundFileChange};
use crate::frontends::acp::error;
use crate::frontends::acp::to_acp::title_text;
use crate::frontends::commands::split_force;

/// How many changed files are named.
const MAX_NAMED_FILES: usize = 50;

impl Actor {
    /// Runs `/undo`, and returns the text for the user.
    pub(super) async fn undo(&mut self, rest: &str) -> String {
        let (turns, force) = split_force(rest);
        let count = if turns.is_empty() { Some(1) } else { turns.parse().ok() };
        match count.filter(|count| *count > 0) {
            Some(count) => self.rewind(RewindDirection::Back(count), force).await,
            None => "\u{26a0} `/undo` takes a number of Turns, or nothing for the last one, and `--force`."
                .to_owned(),
        }
    }

    pub(super) async fn redo(&mut self, rest: &str) -> String {
        match split_force(rest) {
            ("", force) => self.rewind(RewindDirection::Forward, force).await,
            _ => "\u{26a0} `/redo` takes nothing but `--force`.".to_owned(),
        }
    }

    async fn rewind(&mut self, way: RewindDirection, force: bool) -> String {
        match self.harness.rewind(&self.conversation, way, force).await {
            Ok(rewound) => rewind_summary(&rewound, way),
            Err(report) => {
                let command = match way {
                    RewindDirection::Back(_) => "undo",
                    RewindDirection::Forward => "redo",
                };
                let files = report.details.get("files").and_then(|files| files.as_array());
                let mut words = format!("\u{26a0} Nothing was changed: {}.", report.message);
                if files.is_some_and(|files| !files.is_empty()) {
                    let id = &self.id;
                    write!(words, " In a terminal, `pixir {command} {id} --dry-run` shows more.")
                        .ok();
                    let may_be_forced = |file: &serde_json::Value| file.get("changed").is_some();
                    if files.is_some_and(|files| files.iter().any(may_be_forced)) {
                        write!(words, " `/{command}` with `--force` changes these too.").ok();
                    }
                }
                words
            }
        }
    }

    pub(super) async fn fork(&mut self) -> String {
        let branch = self.harness.fork(self.conversation.workspace(), &self.id).await;
        let id = match branch {
            Ok(id) => id,
            Err(report) => return format!("\u{26a0} {}", error::report_text(&report)),
        };
        let history = self.conversation.recent_history().await.unwrap_or_default();
        let title =
            history.first_user_message().map(|words| title_text(&words.text)).unwrap_or_default();
        format!(
            "Session {id} (\u{201c}{title}\u{201d}) has branched off from here. Open it from the list of Sessions, \
             or with `pixir resume {id}`; this one stays unchanged."
        )
    }
}

fn rewind_summary(rewound: &RewindReport, way: RewindDirection) -> String {
    let count = rewound.turns.len();
    let turns = if count == 1 { "Turn" } else { "Turns" };
    let mut text = match way {
        RewindDirection::Back(_) => format!("{count} {turns} taken back:\n\n"),
        RewindDirection::Forward => format!("{count} {turns} brought back:\n\n"),
    };
    for words in &rewound.turns {
        writeln!(text, "- \u{201c}{}\u{201d}", title_text(words)).ok();
    }
    text.push('\n');
    for (done, path) in rewound.files.iter().take(MAX_NAMED_FILES) {
        let done = match done {
            RewoundFileChange::Removed => "removed",
            RewoundFileChange::Created => "made",
            RewoundFileChange::Restored => "restored",
        };
        writeln!(text, "- {done} `{}`", path.display()).ok();
    }
    match rewound.files.len() {
        0 => text.push_str("No file was changed.\n"),
        many if many > MAX_NAMED_FILES => {
            writeln!(text, "- and {} more files", many - MAX_NAMED_FILES).ok();
        }
        _ => {}
    }
    for note in &rewound.notes {
        writeln!(text, "\n\u{26a0} {note}").ok();
    }
    text.push_str(match way {
        RewindDirection::Back(_) => "\n`/redo` brings it back, as long as no prompt followed.",
        RewindDirection::Forward => "",
    });
    text.trim_end().to_owned()
}
