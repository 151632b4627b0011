//! A page of names, one per line, as many as fit.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use super::{First, Firsts, NOTES_ROOM, Tally, Window, left_out, notes};
use crate::tool::{ToolContext, ToolError, ToolOutput};

/// Names as text.
#[derive(Debug, Default)]
pub struct Names {
    pub text: String,
    pub shown: usize,
}

impl Names {
    /// The names of a window, in at most `room` bytes; the first is shown in any case.
    pub fn of<T>(
        found: &[First<T>],
        window: Window,
        room: usize,
        name: impl Fn(&First<T>) -> String,
    ) -> Self {
        let mut names = Self::default();
        for first in found.iter().skip(window.skip).take(window.limit) {
            let line = name(first);
            if names.shown > 0 && names.text.len() + line.len() >= room {
                break;
            }
            names.text.push_str(&line);
            names.text.push('\n');
            names.shown += 1;
        }
        names
    }
}

/// How the names of a walk are told.
pub struct Telling<'t> {
    pub context: &'t ToolContext,
    /// Where the walk began.
    pub path: &'t Path,
    pub window: Window,
    /// What the names are, for a note: "files".
    pub what: &'t str,
    /// What is said when there are none.
    pub none: &'t str,
    /// Whether names that are left out matter also when others were found.
    pub shows_everything: bool,
}

impl Telling<'_> {
    /// The page of a walk that saw everything, and the notes that belong to it.
    pub fn tell<T>(
        &self,
        found: Vec<Firsts<T>>,
        tally: &Tally,
        name: impl Fn(&First<T>) -> String,
    ) -> Result<ToolOutput, ToolError> {
        let Self { context, window, what, .. } = *self;
        let mut notes = notes(tally, context)?;
        let total = found.iter().map(|found| found.total).sum();
        window.check(total, what)?;
        let room = context.output_limit.saturating_sub(NOTES_ROOM);
        let Names { mut text, shown } = Names::of(&Firsts::merged(found), window, room, name);
        if total == 0 {
            writeln!(text, "{}", self.none).ok();
        }
        if total == 0 || self.shows_everything {
            notes.extend(left_out(tally));
        }
        for note in window.note(shown, Some(total), what).into_iter().chain(notes) {
            writeln!(text, "[{note}]").ok();
        }
        let last = window.skip + shown;
        let details = json!({
            "path": self.path.to_string_lossy(),
            "results": shown,
            "total": total,
            "next_offset": (last < total).then_some(last + 1),
            "left_out": tally.left_out,
        });
        Ok(ToolOutput::new(true, text, details))
    }
}
