//! Reports on a patch: its diff and summary, the changes per file, or the errors per file.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::diff::{FileDiff, FileVersions, MAX_DIFF_BYTES};
use super::draft::{DraftFile, PatchDraft};
use crate::base::error::{Kind, counted};
use crate::base::text::bounded::cut_text;
use crate::base::tool_error::ToolError;
use crate::host::workspace::{BatchError, StepRollback};
use crate::tools::files::read_tracker::ReadFingerprint;
use crate::tools::tool::{ToolContext, ToolOutput};

/// How many files are listed in an error.
const MAX_NAMED_ERRORS: usize = 10;

/// The change to one file.
pub struct PatchChange {
    at: usize,
    kind: PatchChangeKind,
    difference: FileDiff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchChangeKind {
    Added,
    Updated,
    Deleted,
    /// Moved from the file with this index in the draft.
    Moved(usize),
}

/// Compares all changed files; a moved file is one change under its new name.
pub fn collect_changes(
    draft: &PatchDraft,
    context: &ToolContext,
    time: Duration,
) -> Vec<PatchChange> {
    let mut changes = Vec::new();
    for (at, file) in draft.files.iter().enumerate().filter(|(_, file)| file.is_changed()) {
        let is_source =
            draft.files.iter().any(|other| other.origin == Some(at) && other.after.is_some());
        let (kind, old) = match (&file.before, &file.after, file.origin) {
            (_, Some(_), Some(origin)) => {
                (PatchChangeKind::Moved(origin), draft.files[origin].old_content())
            }
            (None, _, _) => (PatchChangeKind::Added, file.old_content()),
            (Some(_), Some(_), None) => (PatchChangeKind::Updated, file.old_content()),
            (Some(_), None, _) if is_source => continue,
            (Some(_), None, _) => (PatchChangeKind::Deleted, file.old_content()),
        };
        let path = context.workspace.display(&file.patch_path);
        let old_path = match kind {
            PatchChangeKind::Moved(origin) => {
                Some(context.workspace.display(&draft.files[origin].patch_path))
            }
            PatchChangeKind::Added | PatchChangeKind::Updated | PatchChangeKind::Deleted => None,
        };
        let versions = FileVersions { path, old_path, old, new: file.new_content() };
        // All files together take no longer than `time`.
        let time = time / u32::try_from(draft.files.len()).unwrap_or(u32::MAX).max(1);
        let difference =
            FileDiff::compare(versions, &context.secrets, time.max(Duration::from_millis(5)));
        changes.push(PatchChange { at, kind, difference });
    }
    changes
}

/// A one-line summary of all changes.
pub fn summary(verb: &str, changes: &[PatchChange]) -> String {
    let files = counted(changes.len(), "file");
    let (added, removed) = changes.iter().fold((0, 0), |(added, removed), change| {
        (added + change.difference.added, removed + change.difference.removed)
    });
    format!("{verb} {files} (+{added} -{removed})")
}

/// All diffs joined, and whether they are incomplete.
pub fn join_diffs(changes: &[PatchChange]) -> (String, bool) {
    let all: String = changes.iter().map(|change| change.difference.text.as_str()).collect();
    let is_cut =
        all.len() > MAX_DIFF_BYTES || changes.iter().any(|change| change.difference.is_cut);
    (cut_text(&all, MAX_DIFF_BYTES).into_owned(), is_cut)
}

/// The tool output after everything was written.
pub fn patched_output(
    draft: &PatchDraft,
    changes: &[PatchChange],
    prints: &[Option<ReadFingerprint>],
) -> ToolOutput {
    let mut text = summary("patched", changes);
    let mut files: Vec<Value> = Vec::new();
    for PatchChange { at, kind, difference } in changes {
        let file = &draft.files[*at];
        let path = file.real_path.display();
        let origin = match kind {
            PatchChangeKind::Moved(origin) => Some(&draft.files[*origin]),
            PatchChangeKind::Added | PatchChangeKind::Updated | PatchChangeKind::Deleted => None,
        };
        let (letter, action) = match kind {
            PatchChangeKind::Added => ('A', "added"),
            PatchChangeKind::Updated => ('M', "updated"),
            PatchChangeKind::Deleted => ('D', "deleted"),
            PatchChangeKind::Moved(_) => ('R', "moved"),
        };
        let from = origin.map(|origin| format!("{} -> ", origin.real_path.display()));
        let mut notes = origin.map(|origin| origin.notes.clone()).unwrap_or_default();
        notes.extend(file.notes.iter().cloned());
        notes.dedup();
        let note_text: String = notes.iter().flat_map(|note| ["; ", note]).collect();
        let (from, counts) = (from.unwrap_or_default(), difference.change_counts());
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{letter} {from}{path}{counts}{note_text}");
        let mut facts = json!({
            "path": file.real_path.to_string_lossy(),
            "action": action,
            "added": difference.added,
            "removed": difference.removed,
        });
        match &prints[*at] {
            Some(print) => facts["sha256"] = json!(print.sha256()),
            None => facts["deleted"] = json!(file.after.is_none()),
        }
        if let Some(origin) = origin {
            facts["from"] = json!(origin.real_path.to_string_lossy());
            if origin.after.is_none() {
                let gone = origin.real_path.to_string_lossy();
                files.push(json!({"path": gone, "action": "moved", "deleted": true}));
            }
        }
        if !notes.is_empty() {
            facts["notes"] = json!(notes);
        }
        files.push(facts);
    }
    let details = json!({ "files": files, "diff": join_diffs(changes).0 });
    ToolOutput::new(true, text, details)
}

/// The draft, if no file has an error and at least one changes.
pub fn check_draft(draft: PatchDraft) -> Result<PatchDraft, ToolError> {
    if draft.files.iter().any(|file| file.error.is_some()) {
        return Err(draft_error(&draft));
    }
    if !draft.files.iter().any(DraftFile::is_changed) {
        return Err(ToolError::invalid_args("nothing would change: the sections undo each other"));
    }
    Ok(draft)
}

/// An error that lists the errors of all files.
pub fn draft_error(draft: &PatchDraft) -> ToolError {
    let wrong: Vec<(&DraftFile, &ToolError)> =
        draft.files.iter().filter_map(|file| Some((file, file.error.as_ref()?))).collect();
    let describe = |(file, error): &(&DraftFile, &ToolError)| {
        let path = file.patch_path.display().to_string();
        if error.message.starts_with(&path) {
            error.message.to_string()
        } else {
            format!("{path}: {}", error.message)
        }
    };
    let described: Vec<String> = wrong.iter().take(MAX_NAMED_ERRORS).map(describe).collect();
    let (count, all) = (wrong.len(), draft.files.len());
    let message = if count == 1 {
        described.join("")
    } else {
        format!("{count} of {all} files cannot be patched: {}", described.join("; "))
    };
    let files: Vec<Value> = draft.files.iter().map(file_status).collect();
    let mut refusal =
        ToolError::new(wrong.first().map_or(Kind::InvalidArgs, |(_, e)| e.kind), message)
            .with_details(json!({ "files": files }));
    refusal.is_write_bounds = wrong.iter().any(|(_, error)| error.is_write_bounds);
    for (file, error) in wrong.iter().take(MAX_NAMED_ERRORS) {
        for action in &error.next_actions {
            let named =
                if count == 1 { String::new() } else { format!("{}: ", file.patch_path.display()) };
            refusal = refusal.with_next_action(format!("{named}{action}"));
        }
    }
    refusal.with_next_action("no file was changed; send the whole patch again")
}

fn file_status(file: &DraftFile) -> Value {
    let path = file.patch_path.to_string_lossy();
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
pub fn rollback_error(draft: &PatchDraft, files: &[usize], broken: BatchError) -> ToolError {
    let mut failure = ToolError::from(broken.error);
    let mut states = Vec::new();
    let mut left = Vec::new();
    for (step, (at, rollback)) in files.iter().zip(&broken.rollbacks).enumerate() {
        let path = draft.files[*at].patch_path.to_string_lossy();
        let mut facts = json!({ "path": path, "status": "untouched" });
        match rollback {
            StepRollback::Untouched if step == broken.failed_step => {
                facts["status"] = json!("failed");
            }
            StepRollback::Untouched => {}
            StepRollback::Undone => facts["status"] = json!("put_back"),
            StepRollback::Failed(reason) => {
                facts["status"] = json!("changed");
                facts["message"] = json!(reason);
                left.push(format!("{path} ({reason})"));
            }
        }
        states.push(facts);
    }
    let (outcome, next_action) = if left.is_empty() {
        ("every file is as it was".to_owned(), "fix the cause, then repeat the patch")
    } else {
        let outcome =
            format!("these files are changed and could not be restored: {}", left.join(", "));
        (outcome, "read the changed files before you continue")
    };
    failure.message = format!("{}; {outcome}", failure.message).into();
    failure.with_details(json!({ "files": states })).with_next_action(next_action)
}
