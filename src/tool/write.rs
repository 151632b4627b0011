//! `write`: gives a file new content, as a whole.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::rewrite::{Rewriter, on_disk};
use super::{Plan, Tool, ToolContext, ToolError, ToolOutput};

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

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        self.0.plan(context, &args.path, &|old| Ok(in_style_of(old, &args.content).bytes))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let rewriter = self.0.clone();
        on_disk(move || {
            let kept = std::cell::RefCell::new(Vec::new());
            let change = |old: Option<&[u8]>| {
                let styled = in_style_of(old, &args.content);
                kept.replace(styled.kept);
                Ok(styled.bytes)
            };
            let done = rewriter.run(&context.workspace, &args.path, &change)?;
            let verb = if done.is_new { "created" } else { "wrote" };
            let counts = done.difference.counts();
            let mut text = format!("{verb} {}, {} bytes{counts}", done.path.display(), done.bytes);
            for note in kept.into_inner() {
                text.push_str("; kept ");
                text.push_str(note);
            }
            Ok(ToolOutput { ok: true, text, details: done.facts() })
        })
        .await
    }
}

struct Styled {
    bytes: Vec<u8>,
    kept: Vec<&'static str>,
}

/// Keeps the old file's CRLF endings and BOM when the new content says nothing about them; its
/// final newline is the content's own.
fn in_style_of(old: Option<&[u8]>, content: &str) -> Styled {
    let mut styled = Styled { bytes: content.as_bytes().to_vec(), kept: Vec::new() };
    let Some(old) = old else { return styled };
    if !content.contains('\r') && content.contains('\n') && is_crlf(old) {
        styled.bytes = content.replace('\n', "\r\n").into_bytes();
        styled.kept.push("CRLF line endings");
    }
    if old.starts_with(BOM) && !styled.bytes.starts_with(BOM) {
        styled.bytes.splice(0..0, BOM.iter().copied());
        styled.kept.push("the byte order mark");
    }
    styled
}

/// Whether every line ends with CRLF, and there is at least one.
pub fn is_crlf(bytes: &[u8]) -> bool {
    let mut ends = memchr::memchr_iter(b'\n', bytes).peekable();
    ends.peek().is_some() && ends.all(|end| end > 0 && bytes[end - 1] == b'\r')
}
