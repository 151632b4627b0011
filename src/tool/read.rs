//! `read`: shows a text file with line numbers, a page at a time, or an image.
//!
//! The file is streamed: its size decides how long a read takes, never how much memory.

use std::io::{Read as _, Seek};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::page::Page;
use super::rewrite::on_disk;
use super::seen::{HASHED_SIZE, Print, Seen};
use super::spelling::Aliases;
use super::write::BOM;
use super::{Plan, Tool, ToolContext, ToolError, ToolOutput, output, picture};
use crate::error::Kind;
use crate::id::hex;
use crate::resource::Shelf;
use crate::secret::Cleaner;
use crate::workspace::{OpenFile, Workspace, WorkspaceError};

/// What the notes after the lines may take of the bound.
const NOTES_ROOM: usize = 512;
/// A NUL in the first bytes makes a file binary.
const SNIFFED: usize = 8 * 1024;
const CHUNK: usize = 64 * 1024;
/// How alike a name must be to be suggested.
const ALIKE: f64 = 0.75;

/// The tool.
#[derive(Debug)]
pub struct Read {
    /// Remembers what was read.
    pub seen: Seen,
    /// Keeps images.
    pub shelf: Shelf,
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

impl Tool for Read {
    type Args = Args;
    const NAME: &'static str = "read";
    const ALIASES: Aliases = &[("file_path", "path")];
    const MANUAL: &'static str =
        "Shows an image, or a text file; each line has its number and a tab before it.";

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let path = context.workspace.display(&args.path).to_owned();
        let summary = format!("read {}", path.display());
        Ok(Plan::read(summary, path))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let (seen, images) = (self.seen.clone(), self.shelf.clone());
        on_disk(move || {
            let mut opened = match output::open_spilled(&context, &args.path) {
                Some(opened) => opened,
                None => open(&context.workspace, &args.path, &seen)?,
            };
            if let Some(output) = picture::read(&opened, &images, &seen)? {
                return Ok(output);
            }
            let room = context.output_limit.saturating_sub(NOTES_ROOM);
            let mut page = Page::new(&args, room);
            let path = &args.path;
            let held = unsaved(&mut opened, &context).map_err(|error| unreadable(path, error))?;
            let print = if let Some(text) = held {
                scan(text.as_bytes(), path, &mut page, &context)?;
                Print::of_text(text.as_bytes())
            } else {
                let hash = scan(&opened.file, path, &mut page, &context)?;
                hash.unwrap_or_else(|| Print::of_large(&opened.stat))
            };
            page.finish();
            let sha256 = print.sha256();
            seen.note(&opened.path, print);
            let mut output = page.told(&args, &opened.path)?;
            output.details["sha256"] = sha256.into();
            Ok(output)
        })
        .await
    }
}

fn open(workspace: &Workspace, path: &Path, seen: &Seen) -> Result<OpenFile, ToolError> {
    workspace.open_file(path).map_err(|error| {
        let is_missing = matches!(error, WorkspaceError::Missing { .. });
        let is_irregular = matches!(error, WorkspaceError::NotRegular { .. });
        let explained = ToolError::from(error);
        if is_missing {
            // Now the model knows, and may write the file anew.
            seen.forget(&workspace.place_of(path));
            return suggest_near(explained, workspace, path, "read");
        }
        if is_irregular { explained.next("look at it with bash and ls") } else { explained }
    })
}

/// Adds a next action for each of up to three names like the one that is missing, the most alike
/// first; `verb` says what to do with it.
pub fn suggest_near(
    missing: ToolError,
    workspace: &Workspace,
    path: &Path,
    verb: &str,
) -> ToolError {
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let names = workspace.names_beside(path).into_iter();
    let mut scored: Vec<(f64, String)> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name != "." && name != "..")
        .map(|name| (strsim::jaro_winkler(&name.to_lowercase(), &wanted), name))
        .filter(|(alike, _)| *alike >= ALIKE)
        .collect();
    scored.sort_by(|(one, a), (other, b)| other.total_cmp(one).then_with(|| a.cmp(b)));
    scored.into_iter().take(3).fold(missing, |error, (_, name)| {
        error.next(format!("{verb} {}", path.with_file_name(name).display()))
    })
}

fn binary(path: &Path, head: &[u8]) -> ToolError {
    let shown = path.display();
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return ToolError::new(Kind::BinaryFile, format!("{shown} is UTF-16, not UTF-8 text"))
            .next("convert it with bash and iconv");
    }
    ToolError::new(Kind::BinaryFile, format!("{shown} is a binary file"))
        .next("look at it with bash, for example with file or xxd")
}

fn unreadable(path: &Path, source: std::io::Error) -> WorkspaceError {
    WorkspaceError::Read { path: path.to_owned(), source }
}

/// What an editor holds in place of this file.
fn unsaved(opened: &mut OpenFile, context: &ToolContext) -> std::io::Result<Option<String>> {
    if !context.desk.may_hold(u64::try_from(opened.stat.st_size).unwrap_or_default()) {
        return Ok(None);
    }
    let mut disk = Vec::new();
    opened.file.read_to_end(&mut disk)?;
    opened.file.rewind()?;
    Ok(context.desk.unsaved(&context.workspace.root().join(&opened.path), &disk))
}

/// Streams the whole text through the page, and answers with what was seen, unless it is too much
/// to be known by its content. Secrets are taken out first, so that no number or page begins
/// inside one.
fn scan(
    mut text: impl std::io::Read,
    path: &Path,
    page: &mut Page,
    context: &ToolContext,
) -> Result<Option<Print>, ToolError> {
    let mut cleaner = Cleaner::of_file(&context.secrets);
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; CHUNK];
    let mut is_first = true;
    loop {
        let count = match text.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(path, error).into()),
        };
        let chunk = &buffer[..count];
        if is_first && memchr::memchr(0, &chunk[..count.min(SNIFFED)]).is_some() {
            return Err(binary(path, chunk));
        }
        if context.cancel.is_cancelled() {
            return Err(ToolError::new(Kind::Interrupted, "the read was interrupted"));
        }
        size += count as u64;
        if size <= HASHED_SIZE {
            hash.update(chunk);
        }
        let bom = is_first && chunk.starts_with(BOM);
        page.has_bom |= bom;
        page.push(&cleaner.push(if bom { &chunk[BOM.len()..] } else { chunk }));
        is_first = false;
    }
    page.push(&cleaner.finish());
    Ok((size <= HASHED_SIZE).then(|| Print::Content(hex(&hash.finalize()))))
}
