//! `write` tool: creates a file or replaces its whole content.

use crate::base::text::BOM;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::redaction::{MaskedFile, refuse_markers, refuse_near_markers};
use super::replace::is_wide;
use super::rewrite::{FileRewriter, run_file_work};
use crate::base::secret::{Secrets, has_marker};
use crate::base::tool_error::ToolError;
use crate::tools::tool::arg_aliases::ArgAliases;
use crate::tools::tool::{CallPlan, Tool, ToolContext, ToolOutput};

/// The `write` tool.
#[derive(Debug)]
pub struct WriteTool(pub FileRewriter);

/// The arguments of `write`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// File, relative to the workspace.
    path: PathBuf,
    /// The whole new content.
    content: String,
}

impl Tool for WriteTool {
    type Args = Args;
    const NAME: &'static str = "write";
    const ARG_ALIASES: ArgAliases = &[("file_path", "path")];
    const DESCRIPTION: &'static str = "Creates or overwrites a file, making parent folders. To change \
        parts of a file use edit.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let change = |old: Option<&[u8]>| content_to_write(old, &args.content, &context.secrets);
        self.0.plan(context, &args.path, 1, &change)
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        run_file_work(move || {
            let change =
                |old: Option<&[u8]>| content_to_write(old, &args.content, &context.secrets);
            let (mut done, notes) = rewriter.run(&context, &args.path, &change)?;
            done.notes.splice(0..0, notes);
            let verb = if done.is_new { "created" } else { "wrote" };
            let counts = done.difference.change_counts();
            let (shown, bytes, notes) = (done.path.display(), done.bytes, done.notes_suffix());
            let text = format!("{verb} {shown}, {bytes} bytes{counts}{notes}");
            Ok(ToolOutput::new(true, text, done.details()))
        })
        .await
    }
}

/// The bytes to write for a content, and notes: with line endings and byte order mark of the old file,
/// and with hidden values in place of redaction markers.
pub fn content_to_write(
    old: Option<&[u8]>,
    content: &str,
    secrets: &Secrets,
) -> Result<(Vec<u8>, Vec<String>), ToolError> {
    let (mut bytes, notes) = match_style(old, content);
    match old {
        None => refuse_markers(&bytes)?,
        Some(old) => {
            if has_marker(content) {
                bytes = MaskedFile::new(old, secrets).restore_values(&bytes)?;
            }
            refuse_near_markers(old, &bytes, secrets)?;
        }
    }
    Ok((bytes, notes))
}

/// Keeps the old file's line endings and BOM if the new content does not determine them; a script
/// gets neither, because the kernel would not find its interpreter. The final newline is not adapted.
fn match_style(old: Option<&[u8]>, content: &str) -> (Vec<u8>, Vec<String>) {
    let mut bytes = content.as_bytes().to_vec();
    let mut notes = Vec::new();
    let Some(old) = old else { return (bytes, notes) };
    let is_script = content.starts_with("#!");
    let ending = file_ending(old);
    let says_nothing = content.contains('\n') && !content.contains('\r');
    // In UTF-16 and UTF-32, a CR byte is not a line ending.
    if ending != "\n" && says_nothing && !is_script && !is_wide(old) {
        bytes = content.replace('\n', ending).into_bytes();
        let name = if ending == "\r" { "CR" } else { "CRLF" };
        notes.push(format!("kept {name} line endings"));
    }
    if old.starts_with(BOM) && !bytes.starts_with(BOM) && !is_script {
        bytes.splice(0..0, BOM.iter().copied());
        notes.push("kept the byte order mark".to_owned());
    }
    if std::str::from_utf8(old).is_err() {
        notes.push("the file was not UTF-8, and is now".to_owned());
    }
    let ends = |bytes: &[u8]| matches!(bytes.last(), Some(b'\n' | b'\r'));
    if ends(old) && !content.is_empty() && !ends(&bytes) {
        notes.push("the file no longer ends with a newline".to_owned());
    }
    (bytes, notes)
}

/// The line ending that every line of the file has; LF for mixed endings.
pub fn file_ending(content: &[u8]) -> &'static str {
    let has = |byte| memchr::memchr(byte, content).is_some();
    if is_crlf(content) {
        "\r\n"
    } else if has(b'\r') && !has(b'\n') {
        "\r"
    } else {
        "\n"
    }
}

/// Whether every line ends with CRLF, and there is at least one.
fn is_crlf(bytes: &[u8]) -> bool {
    let mut ends = memchr::memchr_iter(b'\n', bytes).peekable();
    ends.peek().is_some() && ends.all(|end| end > 0 && bytes[end - 1] == b'\r')
}
