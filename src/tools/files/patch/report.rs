//! Reports on a patch: its diff and summary, the changes per file, or the errors per file.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::difference::{DIFF_LIMIT, Difference, Versions};
use super::draft::{Draft, Drafted};
use crate::base::error::{Kind, counted};
use crate::base::text::bounded::cut;
use crate::base::tool_error::ToolError;
use crate::host::workspace::{Broken, Fate};
use crate::tools::files::read_tracker::Print;
use crate::tools::tool::{ToolContext, ToolOutput};

/// How many files are listed in an error.
const TOLD_ERRORS: usize = 10;

/// The change to one file.
pub struct Change {
    at: usize,
    deed: Deed,
    difference: Difference,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Added,
    Updated,
    Deleted,
    /// Moved from the file with this index in the draft.
    Moved(usize),
}

/// Compares all changed files; a moved file is one change under its new name.
pub fn changes(draft: &Draft, context: &ToolContext, time: Duration) -> Vec<Change> {
    let mut changes = Vec::new();
    for (at, file) in draft.files.iter().enumerate().filter(|(_, file)| file.is_changed()) {
        let is_source =
            draft.files.iter().any(|other| other.origin == Some(at) && other.after.is_some());
        let (deed, old) = match (&file.before, &file.after, file.origin) {
            (_, Some(_), Some(origin)) => (Deed::Moved(origin), draft.files[origin].old()),
            (None, _, _) => (Deed::Added, file.old()),
            (Some(_), Some(_), None) => (Deed::Updated, file.old()),
            (Some(_), None, _) if is_source => continue,
            (Some(_), None, _) => (Deed::Deleted, file.old()),
        };
        let path = context.workspace.display(&file.given);
        let old_path = match deed {
            Deed::Moved(origin) => Some(context.workspace.display(&draft.files[origin].given)),
            Deed::Added | Deed::Updated | Deed::Deleted => None,
        };
        let versions = Versions { path, old_path, old, new: file.fresh() };
        // All files together take no longer than `time`.
        let time = time / u32::try_from(draft.files.len()).unwrap_or(u32::MAX).max(1);
        let difference =
            Difference::between(versions, &context.secrets, time.max(Duration::from_millis(5)));
        changes.push(Change { at, deed, difference });
    }
    changes
}

/// A one-line summary of all changes.
pub fn summary(verb: &str, changes: &[Change]) -> String {
    let files = counted(changes.len(), "file");
    let (added, removed) = changes.iter().fold((0, 0), |(added, removed), change| {
        (added + change.difference.added, removed + change.difference.removed)
    });
    format!("{verb} {files} (+{added} -{removed})")
}

/// All diffs joined, and whether they are incomplete.
pub fn diff(changes: &[Change]) -> (String, bool) {
    let all: String = changes.iter().map(|change| change.difference.text.as_str()).collect();
    let is_cut = all.len() > DIFF_LIMIT || changes.iter().any(|change| change.difference.is_cut);
    (cut(&all, DIFF_LIMIT).into_owned(), is_cut)
}

/// The tool output after everything was written.
pub fn told(draft: &Draft, changes: &[Change], prints: &[Option<Print>]) -> ToolOutput {
    let mut text = summary("patched", changes);
    let mut files: Vec<Value> = Vec::new();
    for Change { at, deed, difference } in changes {
        let file = &draft.files[*at];
        let path = file.real.display();
        let origin = match deed {
            Deed::Moved(origin) => Some(&draft.files[*origin]),
            Deed::Added | Deed::Updated | Deed::Deleted => None,
        };
        let (letter, action) = match deed {
            Deed::Added => ('A', "added"),
            Deed::Updated => ('M', "updated"),
            Deed::Deleted => ('D', "deleted"),
            Deed::Moved(_) => ('R', "moved"),
        };
        let from = origin.map(|origin| format!("{} -> ", origin.real.display()));
        let mut notes = origin.map(|origin| origin.notes.clone()).unwrap_or_default();
        notes.extend(file.notes.iter().cloned());
        notes.dedup();
        let told_notes: String = notes.iter().flat_map(|note| ["; ", note]).collect();
        let (from, counts) = (from.unwrap_or_default(), difference.counts());
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{letter} {from}{path}{counts}{told_notes}");
        let mut facts = json!({
            "path": file.real.to_string_lossy(),
            "action": action,
            "added": difference.added,
            "removed": difference.removed,
        });
        match &prints[*at] {
            Some(print) => facts["sha256"] = json!(print.sha256()),
            None => facts["deleted"] = json!(file.after.is_none()),
        }
        if let Some(origin) = origin {
            facts["from"] = json!(origin.real.to_string_lossy());
            if origin.after.is_none() {
                let gone = origin.real.to_string_lossy();
                files.push(json!({"path": gone, "action": "moved", "deleted": true}));
            }
        }
        if !notes.is_empty() {
            facts["notes"] = json!(notes);
        }
        files.push(facts);
    }
    let details = json!({ "files": files, "diff": diff(changes).0 });
    ToolOutput::new(true, text, details)
}

/// The draft, if no file has an error and at least one changes.
pub fn sound(draft: Draft) -> Result<Draft, ToolError> {
    if draft.files.iter().any(|file| file.error.is_some()) {
        return Err(refusal(&draft));
    }
    if !draft.files.iter().any(Drafted::is_changed) {
        return Err(ToolError::invalid("nothing would change: the sections undo each other"));
    }
    Ok(draft)
}

/// An error that lists the errors of all files.
pub fn refusal(draft: &Draft) -> ToolError {
    let wrong: Vec<(&Drafted, &ToolError)> =
        draft.files.iter().filter_map(|file| Some((file, file.error.as_ref()?))).collect();
    let said = |(file, error): &(&Drafted, &ToolError)| {
        let path = file.given.display().to_string();
        if error.message.starts_with(&path) {
            error.message.to_string()
        } else {
            format!("{path}: {}", error.message)
        }
    };
    let told: Vec<String> = wrong.iter().take(TOLD_ERRORS).map(said).collect();
    let (count, all) = (wrong.len(), draft.files.len());
    let message = if count == 1 {
        told.join("")
    } else {
        format!("{count} of {all} files cannot be patched: {}", told.join("; "))
    };
    let files: Vec<Value> = draft.files.iter().map(state).collect();
    let mut refusal =
        ToolError::new(wrong.first().map_or(Kind::InvalidArgs, |(_, e)| e.kind), message)
            .details(json!({ "files": files }));
    refusal.is_write_bounds = wrong.iter().any(|(_, error)| error.is_write_bounds);
    for (file, error) in wrong.iter().take(TOLD_ERRORS) {
        for action in &error.next_actions {
            let named =
                if count == 1 { String::new() } else { format!("{}: ", file.given.display()) };
            refusal = refusal.next(format!("{named}{action}"));
        }
    }
    refusal.next("no file was changed; send the whole patch again")
}

fn state(file: &Drafted) -> Value {
    let path = file.given.to_string_lossy();
    match &file.error {
        None => json!({"path": path, "status": "untouched"}),
        Some(error) => json!({
            "path": path,
            "status": "refused",
            "kind": error.kind.name(),
            "message": &*error.message,
            "details": error.details,
        }),
    }
}

/// The error of a batch that failed midway, with the state of each file.
pub fn broken(draft: &Draft, files: &[usize], broken: Broken) -> ToolError {
    let mut failure = ToolError::from(broken.error);
    let mut states = Vec::new();
    let mut left = Vec::new();
    for (step, (at, fate)) in files.iter().zip(&broken.fates).enumerate() {
        let path = draft.files[*at].given.to_string_lossy();
        let mut facts = json!({ "path": path, "status": "untouched" });
        match fate {
            Fate::Untouched if step == broken.at => facts["status"] = json!("failed"),
            Fate::Untouched => {}
            Fate::PutBack => facts["status"] = json!("put_back"),
            Fate::Left(reason) => {
                facts["status"] = json!("changed");
                facts["message"] = json!(reason);
                left.push(format!("{path} ({reason})"));
            }
        }
        states.push(facts);
    }
    let (said, told) = if left.is_empty() {
        ("every file is as it was".to_owned(), "repeat the patch when the cause is gone")
    } else {
        let said =
            format!("these files are changed and could not be put back: {}", left.join(", "));
        (said, "read the changed files before going on")
    };
    failure.message = format!("{}; {said}", failure.message).into();
    failure.details(json!({ "files": states })).next(told)
}
