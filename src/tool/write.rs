//! `write`: gives a file new content, as a whole.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::redaction::{MaskedFile, refuse_markers, refuse_near_markers};
use super::replace::is_wide;
use super::rewrite::{Rewriter, on_disk};
use super::spelling::{self, Arguments};
use super::{Plan, Tool, ToolContext, ToolError, ToolOutput};
use crate::secret::{Secrets, has_marker};

/// The mark that some editors put before UTF-8.
pub const BOM: &[u8] = b"\xef\xbb\xbf";

/// The tool.
#[derive(Debug)]
pub struct Write(Rewriter);

/// The arguments of `write`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// File, relative to the workspace.
    path: PathBuf,
    /// The whole new content.
    content: String,
}

impl Write {
    /// A `write` that knows what the Session has seen.
    pub fn new(rewriter: Rewriter) -> Self {
        Self(rewriter)
    }
}

impl Tool for Write {
    type Args = Args;
    const NAME: &'static str = "write";
    const MANUAL: &'static str = "Creates or overwrites a file, making parent folders. To change \
        parts of a file use edit.";

    fn respell(args: &mut Arguments) {
        spelling::path(args);
    }

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        self.0.plan(context, &args.path, 1, &|old| {
            Ok(restored(old, &args.content, &context.secrets)?.bytes)
        })
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        on_disk(move || {
            let notes = std::cell::RefCell::new(Vec::new());
            let change = |old: Option<&[u8]>| {
                let styled = restored(old, &args.content, &context.secrets)?;
                notes.replace(styled.notes);
                Ok(styled.bytes)
            };
            let mut done = rewriter.run(&context, &args.path, &change)?;
            done.notes.splice(0..0, notes.into_inner());
            let verb = if done.is_new { "created" } else { "wrote" };
            let counts = done.difference.counts();
            let (shown, bytes, notes) = (done.path.display(), done.bytes, done.told_notes());
            let text = format!("{verb} {shown}, {bytes} bytes{counts}{notes}");
            Ok(ToolOutput::new(true, text, done.facts()))
        })
        .await
    }
}

/// Content in the style of the file that it replaces.
pub struct Styled {
    pub bytes: Vec<u8>,
    pub notes: Vec<String>,
}

/// The content as it is written: in the style of the old file, with the hidden values that its
/// redaction markers stand for.
pub fn restored(old: Option<&[u8]>, content: &str, secrets: &Secrets) -> Result<Styled, ToolError> {
    let mut styled = in_style_of(old, content);
    match old {
        None => refuse_markers(&styled.bytes)?,
        Some(old) => {
            if has_marker(content) {
                styled.bytes = MaskedFile::new(old, secrets).fill(&styled.bytes)?;
            }
            refuse_near_markers(old, &styled.bytes, secrets)?;
        }
    }
    Ok(styled)
}

/// Keeps the old file's endings and BOM when the new content says nothing about them; a script
/// gets neither, because the kernel would not find its interpreter. The final newline is the
/// content's own.
fn in_style_of(old: Option<&[u8]>, content: &str) -> Styled {
    let mut styled = Styled { bytes: content.as_bytes().to_vec(), notes: Vec::new() };
    let Some(old) = old else { return styled };
    let is_script = content.starts_with("#!");
    let ending = file_ending(old);
    let says_nothing = content.contains('\n') && !content.contains('\r');
    // In wide characters, the bytes of a CR are no line ending.
    if ending != "\n" && says_nothing && !is_script && !is_wide(old) {
        styled.bytes = content.replace('\n', ending).into_bytes();
        let name = if ending == "\r" { "CR" } else { "CRLF" };
        styled.notes.push(format!("kept {name} line endings"));
    }
    if old.starts_with(BOM) && !styled.bytes.starts_with(BOM) && !is_script {
        styled.bytes.splice(0..0, BOM.iter().copied());
        styled.notes.push("kept the byte order mark".to_owned());
    }
    if std::str::from_utf8(old).is_err() {
        styled.notes.push("it was not UTF-8, and is now".to_owned());
    }
    let ends = |bytes: &[u8]| matches!(bytes.last(), Some(b'\n' | b'\r'));
    if ends(old) && !content.is_empty() && !ends(&styled.bytes) {
        styled.notes.push("there is no newline at its end any more".to_owned());
    }
    styled
}

/// The ending that every line of the file has; a mixed file takes new text as it is.
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
