//! `read`: shows a text file with line numbers, a page at a time, or an image.
//!
//! The file is streamed: its size decides how long a read takes, never how much memory.

use std::ffi::OsString;
use std::io::{Read as _, Seek};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::page::Page;
use super::rewrite::on_disk;
use super::seen::{HASHED_SIZE, Print, Seen};
use super::spelling::{self, Arguments};
use super::write::BOM;
use super::{Effect, Plan, Tool, ToolContext, ToolError, ToolOutput, output, picture};
use crate::error::Kind;
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
    seen: Seen,
    shelf: Shelf,
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

impl Read {
    /// A `read` that remembers what was seen, and keeps images.
    pub fn new(seen: Seen, shelf: Shelf) -> Self {
        Self { seen, shelf }
    }
}

impl Tool for Read {
    type Args = Args;
    const NAME: &'static str = "read";
    const MANUAL: &'static str =
        "Shows an image, or a text file; each line has its number and a tab before it.";

    fn respell(args: &mut Arguments) {
        spelling::path(args);
    }

    fn plan(&self, args: &Args, context: &ToolContext) -> Result<Plan, ToolError> {
        let path = context.workspace.display(&args.path).to_owned();
        let summary = format!("read {}", path.display());
        Ok(Plan { paths: vec![path], ..Plan::new(Effect::Read, summary) })
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
            let print = match unsaved(&mut opened, &context) {
                Ok(Some(text)) => scan(text.as_bytes(), &mut page, &context)
                    .map(|_| Print::of_text(text.as_bytes())),
                Ok(None) => scan(&opened.file, &mut page, &context)
                    .map(|hash| hash.unwrap_or_else(|| Print::of_large(&opened.stat))),
                Err(error) => Err(ScanError::Io(error)),
            };
            let print = print.map_err(|error| error.explained(&args.path))?;
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
        let explained = ToolError::from(&error);
        match error {
            WorkspaceError::Missing { .. } => {
                // Now the model knows, and may write the file anew.
                seen.forget(&workspace.place_of(path));
                let near = near_names(path, workspace.names_beside(path));
                near.into_iter().fold(explained, |error, name| {
                    error.next(format!("read {}", path.with_file_name(name).display()))
                })
            }
            WorkspaceError::NotRegular { .. } => explained.next("look at it with bash and ls"),
            _ => explained,
        }
    })
}

/// Up to three names like the one that is missing, the most alike first.
pub fn near_names(path: &Path, names: Vec<OsString>) -> Vec<String> {
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mut scored: Vec<(f64, String)> = names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name != "." && name != "..")
        .map(|name| (strsim::jaro_winkler(&name.to_lowercase(), &wanted), name))
        .filter(|(alike, _)| *alike >= ALIKE)
        .collect();
    scored.sort_by(|(one, a), (other, b)| other.total_cmp(one).then_with(|| a.cmp(b)));
    scored.into_iter().take(3).map(|(_, name)| name).collect()
}

enum ScanError {
    Binary { utf16: bool },
    Cancelled,
    Io(std::io::Error),
}

impl ScanError {
    fn explained(self, path: &Path) -> ToolError {
        let shown = path.display();
        match self {
            Self::Binary { utf16: true } => {
                ToolError::new(Kind::BinaryFile, format!("{shown} is UTF-16, not UTF-8 text"))
                    .next("convert it with bash and iconv")
            }
            Self::Binary { utf16: false } => {
                ToolError::new(Kind::BinaryFile, format!("{shown} is a binary file"))
                    .next("look at it with bash, for example with file or xxd")
            }
            Self::Cancelled => ToolError::new(Kind::Interrupted, "the read was interrupted"),
            Self::Io(source) => {
                ToolError::from(&WorkspaceError::Read { path: path.to_owned(), source })
            }
        }
    }
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
    page: &mut Page,
    context: &ToolContext,
) -> Result<Option<Print>, ScanError> {
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
            Err(error) => return Err(ScanError::Io(error)),
        };
        let chunk = &buffer[..count];
        if is_first && memchr::memchr(0, &chunk[..count.min(SNIFFED)]).is_some() {
            let utf16 = chunk.starts_with(b"\xff\xfe") || chunk.starts_with(b"\xfe\xff");
            return Err(ScanError::Binary { utf16 });
        }
        if context.cancel.is_cancelled() {
            return Err(ScanError::Cancelled);
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
    Ok((size <= HASHED_SIZE).then(|| Print::Content(hash.finalize().into())))
}
