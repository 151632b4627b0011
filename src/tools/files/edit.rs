//! `edit` tool: replaces exact text in a file and changes no other byte.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::redaction::{
    MaskedFile, TextCorrespondence, cut_marker_error, misplaced_marker_error, refuse_near_markers,
};
use super::replace::{ExpectedCount, ReplacedText, TextReplacement, refuse_wide, replace_text};
use super::rewrite::{FileRewriter, run_file_work};
use crate::base::error::Kind;
use crate::base::secret::{Secrets, find_markers, has_marker};
use crate::base::tool_error::ToolError;
use crate::tools::tool::arg_aliases;
use crate::tools::tool::arg_aliases::ArgMap;
use crate::tools::tool::{CallPlan, Tool, ToolContext, ToolOutput};

/// The `edit` tool.
#[derive(Debug)]
pub struct EditTool(pub FileRewriter);

/// The arguments of `edit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// File, relative to the workspace.
    path: PathBuf,
    /// Applied in order, all or none.
    #[schemars(length(min = 1))]
    edits: Vec<TextEdit>,
}

/// A replacement of one text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TextEdit {
    /// Exact text, without line numbers; must occur once, unless `replace_all`.
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

impl Tool for EditTool {
    type Args = Args;
    const NAME: &'static str = "edit";
    const DESCRIPTION: &'static str = "Replaces exact text in an existing file. Give enough \
        surrounding lines to make each old_string unique.";

    fn normalize_args(args: &mut ArgMap) {
        arg_aliases::normalize_edit(args);
    }

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let change = |old: Option<&[u8]>| apply_edits(args, old, &context.secrets);
        self.0.plan(context, &args.path, args.edits.len(), &change)
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        run_file_work(move || {
            let change = |old: Option<&[u8]>| apply_edits(&args, old, &context.secrets);
            let (done, count) = rewriter.run(&context, &args.path, &change)?;
            let counts = done.difference.change_counts();
            let shown = done.path.display();
            let text = format!("edited {shown}: {count} replaced{counts}{}", done.notes_suffix());
            Ok(ToolOutput::new(true, text, done.details()))
        })
        .await
    }
}

/// Applies all edits; returns the new content and the number of replaced places.
fn apply_edits(
    args: &Args,
    old: Option<&[u8]>,
    secrets: &Secrets,
) -> Result<(Vec<u8>, usize), ToolError> {
    let Some(old) = old else {
        let message = format!("{} does not exist", args.path.display());
        return Err(
            ToolError::new(Kind::NotFound, message).with_next_action("create it with write")
        );
    };
    if args.edits.is_empty() {
        return Err(ToolError::invalid_args("edits is empty"));
    }
    refuse_wide(old)?;
    let mut content = old.to_vec();
    let mut replaced = 0;
    for (index, edit) in args.edits.iter().enumerate() {
        let change = TextReplacement {
            old: &edit.old_string,
            new: &edit.new_string,
            count: if edit.replace_all { ExpectedCount::Any } else { ExpectedCount::Once },
        };
        let next = replace_masked(&content, change, secrets).map_err(|error| {
            let many = args.edits.len();
            if many == 1 {
                return error;
            }
            let message = format!("edit {} of {many}: {}", index + 1, error.message).into();
            ToolError { message, ..error }
                .with_next_action("no edit was applied; repeat all of them")
        })?;
        replaced += next.places.len();
        content = next.bytes;
    }
    // Otherwise edits that undo each other would be reported as a change.
    if content == old {
        return Err(ToolError::invalid_args("nothing would change: the edits undo each other"));
    }
    refuse_near_markers(old, &content, secrets)?;
    Ok((content, replaced))
}

/// Makes one replacement. Redaction markers in the old text match the hidden values of the file,
/// and the new text may repeat markers of the old one.
fn replace_masked(
    content: &[u8],
    change: TextReplacement<'_>,
    secrets: &Secrets,
) -> Result<ReplacedText, ToolError> {
    let new = change.new.as_bytes();
    let is_known = |marker: &[u8]| memchr::memmem::find(change.old.as_bytes(), marker).is_some();
    if let Some(unknown) =
        find_markers(new).iter().find(|marker| !is_known(&new[(*marker).clone()]))
    {
        return Err(misplaced_marker_error(new, unknown));
    }
    if !has_marker(change.old) {
        return replace_text(content, change);
    }
    let masked = MaskedFile::new(content, secrets);
    let replaced = replace_text(masked.text(), change)?;
    if replaced.places.iter().any(|(old, _)| masked.cuts_marker(old)) {
        return Err(cut_marker_error());
    }
    let mut parts = Vec::new();
    let mut old_end = 0;
    let mut new_end = 0;
    for (old, new) in &replaced.places {
        parts.push(TextCorrespondence::one_to_one(old_end..old.start, new_end..new.start));
        parts.push(TextCorrespondence::one_to_one(old.clone(), new.clone()));
        old_end = old.end;
        new_end = new.end;
    }
    let (old_length, new_length) = (masked.text().len(), replaced.bytes.len());
    parts.push(TextCorrespondence::one_to_one(old_end..old_length, new_end..new_length));
    let bytes = masked.restore_values_in_parts(&replaced.bytes, &parts)?;
    Ok(ReplacedText { bytes, places: replaced.places })
}
