//! `read` tool: shows a page of a text file with line numbers, or an image.
//!
//! The file is streamed: memory does not depend on its size.

use std::io::{Read as _, Seek};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::file_page::FilePage;
use super::rewrite::run_file_work;
use crate::base::error::Kind;
use crate::base::id::hex;
use crate::base::secret::StreamRedactor;
use crate::base::text::BOM;
use crate::base::tool_error::ToolError;
use crate::host::workspace::{OpenFile, Workspace, WorkspaceError};
use crate::record::resource::Resources;
use crate::tools::files::image;
use crate::tools::files::read_tracker::{MAX_HASHED_BYTES, ReadFingerprint, ReadTracker};
use crate::tools::tool::arg_aliases::ArgAliases;
use crate::tools::tool::open_spilled_output;
use crate::tools::tool::{CallPlan, Tool, ToolContext, ToolOutput};

/// Bytes of the output limit reserved for the notes after the lines.
const NOTES_RESERVE: usize = 512;
/// How many bytes are searched for a NUL, which makes a file binary.
const SNIFF_BYTES: usize = 8 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;
/// The minimum similarity of a suggested name.
const MIN_SIMILARITY: f64 = 0.75;

/// The `read` tool.
#[derive(Debug)]
pub struct ReadTool {
    /// Records which files were read.
    pub read_tracker: ReadTracker,
    /// Stores images.
    pub resources: Resources,
}

/// The arguments of `read`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// File, relative to the workspace.
    pub path: PathBuf,
    /// First line, from 1.
    #[schemars(range(min = 1))]
    pub offset: Option<u64>,
    /// Number of lines, default 2000.
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
    /// First byte of the first line, from 1; pages through a very long line.
    #[schemars(range(min = 1))]
    pub column: Option<u64>,
}

impl Tool for ReadTool {
    type Args = Args;
    const NAME: &'static str = "read";
    const ARG_ALIASES: ArgAliases = &[("file_path", "path")];
    const DESCRIPTION: &'static str =
        "Shows an image, or a text file; each line has its number and a tab before it.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<CallPlan, ToolError> {
        let path = context.workspace.display(&args.path).to_owned();
        let summary = format!("read {}", path.display());
        Ok(CallPlan::for_read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let (read_tracker, images) = (self.read_tracker.clone(), self.resources.clone());
        run_file_work(move || {
            let mut opened = match open_spilled_output(&context, &args.path) {
                Some(opened) => opened,
                None => open_text_file(&context.workspace, &args.path, &read_tracker)?,
            };
            if let Some(output) = image::read_image(&opened, &images, &read_tracker)? {
                return Ok(output);
            }
            let room = context.output_limit.saturating_sub(NOTES_RESERVE);
            let mut page = FilePage::new(&args, room);
            let path = &args.path;
            let held =
                unsaved_text(&mut opened, &context).map_err(|error| read_error(path, error))?;
            let print = if let Some(text) = held {
                scan_text(text.as_bytes(), path, &mut page, &context)?;
                ReadFingerprint::from_content(text.as_bytes())
            } else {
                let hash = scan_text(&opened.file, path, &mut page, &context)?;
                hash.unwrap_or_else(|| ReadFingerprint::from_stat(&opened.stat))
            };
            page.finish();
            let sha256 = print.sha256();
            read_tracker.record_file(&opened.path, print);
            let mut output = page.into_output(&args, &opened.path)?;
            output.details["sha256"] = sha256.into();
            Ok(output)
        })
        .await
    }
}

fn open_text_file(
    workspace: &Workspace,
    path: &Path,
    read_tracker: &ReadTracker,
) -> Result<OpenFile, ToolError> {
    workspace.open_file(path).map_err(|error| {
        let is_missing = matches!(error, WorkspaceError::Missing { .. });
        let is_irregular = matches!(error, WorkspaceError::NotRegular { .. });
        let explained = ToolError::from(error);
        if is_missing {
            // The model now knows that the file is missing, and may create it again.
            read_tracker.forget_file(&workspace.resolve_missing(path));
            return suggest_similar_names(explained, workspace, path, "read");
        }
        if is_irregular {
            explained.with_next_action("inspect it with bash and ls")
        } else {
            explained
        }
    })
}

/// Adds next actions with up to three similar names in the same folder, the most similar first;
/// `verb` begins each action.
pub fn suggest_similar_names(
    missing: ToolError,
    workspace: &Workspace,
    path: &Path,
    verb: &str,
) -> ToolError {
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let names = workspace.sibling_names(path).into_iter();
    let mut scored: Vec<(f64, String)> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name != "." && name != "..")
        .map(|name| (strsim::jaro_winkler(&name.to_lowercase(), &wanted), name))
        .filter(|(alike, _)| *alike >= MIN_SIMILARITY)
        .collect();
    scored.sort_by(|(one, a), (other, b)| other.total_cmp(one).then_with(|| a.cmp(b)));
    scored.into_iter().take(3).fold(missing, |error, (_, name)| {
        error.with_next_action(format!("{verb} {}", path.with_file_name(name).display()))
    })
}

fn binary_file_error(path: &Path, head: &[u8]) -> ToolError {
    let shown = path.display();
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return ToolError::new(Kind::BinaryFile, format!("{shown} is UTF-16, not UTF-8 text"))
            .with_next_action("convert it with bash and iconv");
    }
    ToolError::new(Kind::BinaryFile, format!("{shown} is a binary file"))
        .with_next_action("inspect it with bash, for example with file or xxd")
}

fn read_error(path: &Path, source: std::io::Error) -> WorkspaceError {
    WorkspaceError::Read { path: path.to_owned(), source }
}

/// The editor's unsaved text of this file.
fn unsaved_text(opened: &mut OpenFile, context: &ToolContext) -> std::io::Result<Option<String>> {
    if !context.editor.may_hold(u64::try_from(opened.stat.st_size).unwrap_or_default()) {
        return Ok(None);
    }
    let mut disk = Vec::new();
    opened.file.read_to_end(&mut disk)?;
    opened.file.rewind()?;
    Ok(context.editor.unsaved_text(&context.workspace.root().join(&opened.path), &disk))
}

/// Streams the whole text through the page; returns its fingerprint, unless it is too large to be
/// hashed. Secrets are removed first, so that no line or page begins inside one.
fn scan_text(
    mut text: impl std::io::Read,
    path: &Path,
    page: &mut FilePage,
    context: &ToolContext,
) -> Result<Option<ReadFingerprint>, ToolError> {
    let mut cleaner = StreamRedactor::for_file(&context.secrets);
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut is_first = true;
    loop {
        let count = match text.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_error(path, error).into()),
        };
        let chunk = &buffer[..count];
        if is_first && memchr::memchr(0, &chunk[..count.min(SNIFF_BYTES)]).is_some() {
            return Err(binary_file_error(path, chunk));
        }
        if context.cancel.is_cancelled() {
            return Err(ToolError::new(Kind::Interrupted, "the read was interrupted"));
        }
        size += count as u64;
        if size <= MAX_HASHED_BYTES {
            hash.update(chunk);
        }
        let bom = is_first && chunk.starts_with(BOM);
        page.has_bom |= bom;
        page.push(&cleaner.push(if bom { &chunk[BOM.len()..] } else { chunk }));
        is_first = false;
    }
    page.push(&cleaner.finish());
    Ok((size <= MAX_HASHED_BYTES).then(|| ReadFingerprint::Content(hex(&hash.finalize()))))
}
