//! `edit` tool: replaces exact text in a file and changes no other byte.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::redaction::{Correspondence, MaskedFile, half_a_marker, refuse_near_markers, refused};
use super::replace::{Count, Replaced, Replacement, refuse_wide, replace};
use super::rewrite::{Rewriter, on_disk};
use crate::base::error::Kind;
use crate::base::secret::{Secrets, has_marker, markers};
use crate::base::tool_error::ToolError;
use crate::tools::tool::spelling;
use crate::tools::tool::spelling::Arguments;
use crate::tools::tool::{Plan, Tool, ToolContext, ToolOutput};

/// The `edit` tool.
#[derive(Debug)]
pub struct Edit(pub Rewriter);

/// The arguments of `edit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// File, relative to the workspace.
    path: PathBuf,
    /// Applied in order, all or none.
    #[schemars(length(min = 1))]
    edits: Vec<OneEdit>,
}

/// A replacement of one text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneEdit {
    /// Exact text, without line numbers; must occur once, unless `replace_all`.
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

impl Tool for Edit {
    type Args = Args;
    const NAME: &'static str = "edit";
    const MANUAL: &'static str = "Replaces exact text in an existing file. Give enough \
        surrounding lines to make each old_string unique.";

    fn respell(args: &mut Arguments) {
        spelling::edit(args);
    }

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let change = |old: Option<&[u8]>| apply(args, old, &context.secrets);
        self.0.plan(context, &args.path, args.edits.len(), &change)
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        on_disk(move || {
            let change = |old: Option<&[u8]>| apply(&args, old, &context.secrets);
            let (done, count) = rewriter.run(&context, &args.path, &change)?;
            let counts = done.difference.counts();
            let shown = done.path.display();
            let text = format!("edited {shown}: {count} replaced{counts}{}", done.told_notes());
            Ok(ToolOutput::new(true, text, done.facts()))
        })
        .await
    }
}

/// Applies all edits; returns the new content and the number of replaced places.
fn apply(
    args: &Args,
    old: Option<&[u8]>,
    secrets: &Secrets,
) -> Result<(Vec<u8>, usize), ToolError> {
    let Some(old) = old else {
        let message = format!("{} does not exist", args.path.display());
        return Err(ToolError::new(Kind::NotFound, message).next("create it with write"));
    };
    if args.edits.is_empty() {
        return Err(ToolError::invalid("edits is empty"));
    }
    refuse_wide(old)?;
    let mut content = old.to_vec();
    let mut replaced = 0;
    for (index, edit) in args.edits.iter().enumerate() {
        let change = Replacement {
            old: &edit.old_string,
            new: &edit.new_string,
            count: if edit.replace_all { Count::Any } else { Count::Once },
        };
        let next = replace_masked(&content, change, secrets).map_err(|error| {
            let many = args.edits.len();
            if many == 1 {
                return error;
            }
            let message = format!("edit {} of {many}: {}", index + 1, error.message).into();
            ToolError { message, ..error }.next("no edit was applied; repeat all of them")
        })?;
        replaced += next.places.len();
        content = next.bytes;
    }
    // Otherwise edits that undo each other would be reported as a change.
    if content == old {
        return Err(ToolError::invalid("nothing would change: the edits undo each other"));
    }
    refuse_near_markers(old, &content, secrets)?;
    Ok((content, replaced))
}

/// Makes one replacement. Redaction markers in the old text match the hidden values of the file,
/// and the new text may repeat markers of the old one.
fn replace_masked(
    content: &[u8],
    change: Replacement<'_>,
    secrets: &Secrets,
) -> Result<Replaced, ToolError> {
    let new = change.new.as_bytes();
    let is_known = |marker: &[u8]| memchr::memmem::find(change.old.as_bytes(), marker).is_some();
    if let Some(unknown) = markers(new).iter().find(|marker| !is_known(&new[(*marker).clone()])) {
        return Err(refused(new, unknown));
    }
    if !has_marker(change.old) {
        return replace(content, change);
    }
    let masked = MaskedFile::new(content, secrets);
    let replaced = replace(masked.text(), change)?;
    if replaced.places.iter().any(|(old, _)| masked.cuts_a_marker(old)) {
        return Err(half_a_marker());
    }
    let mut parts = Vec::new();
    let mut old_end = 0;
    let mut new_end = 0;
    for (old, new) in &replaced.places {
        parts.push(Correspondence::between(old_end..old.start, new_end..new.start));
        parts.push(Correspondence::between(old.clone(), new.clone()));
        old_end = old.end;
        new_end = new.end;
    }
    let (old_length, new_length) = (masked.text().len(), replaced.bytes.len());
    parts.push(Correspondence::between(old_end..old_length, new_end..new_length));
    let bytes = masked.fill_parts(&replaced.bytes, &parts)?;
    Ok(Replaced { bytes, places: replaced.places })
}
