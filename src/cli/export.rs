//! `pixir export`: a Session as a document for others.
#![expect(clippy::disallowed_methods, reason = "the user names the file")]

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::chosen::Chosen;
use super::exit::Exit;
use super::markdown::markdown;
use super::{Context, say};
use crate::error::{Kind, Report};
use crate::projection::transcript;
use crate::render::{Envelope, clean};
use crate::secret::Secrets;

/// Write a Session down for others to read
#[derive(Debug, Args)]
#[command(
    long_about = "Write a Session down for others to read.\n\n\
        Everything that was said and done, Turn by Turn: tool output cut to its head and tail, changes as diffs, \
        attachments by name. Known secrets are not in it. A damaged Log is told as far as it can be read. stdout is the \
        document and nothing else; docs/evidence.md describes the JSON.",
    after_long_help = "Examples:\n  pixir export 20260721T101112-abcdef > session.md\n  \
        pixir export 20260721T101112-abcdef --format json --output session.json"
)]
pub struct ExportArgs {
    #[command(flatten)]
    session: Chosen,
    /// As what
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Markdown)]
    format: Format,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Markdown,
    Json,
}

pub fn export(args: &ExportArgs, context: &Context) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    let folder = root.workspace();
    let told = transcript(&root, &id).map_err(|error| Report::from(&error))?;
    let secrets = context.secrets(folder);
    let mut value = serde_json::to_value(&told)
        .map_err(|error| Report::new(Kind::Internal, error.to_string()))?;
    // The Log has none that were known when it was written; one that is known only now goes too.
    secrets.clean_value(&mut value);
    let document = match args.format {
        Format::Markdown => clean(&secrets.clean(&markdown(&told))),
        Format::Json => {
            let text = serde_json::to_string_pretty(&value).unwrap_or_default();
            format!("{text}\n")
        }
    };
    if told.damaged_lines > 0 {
        let count = told.damaged_lines;
        context.notice(&format!("{count} damaged places are missing; see `pixir diagnose {id}`"));
    }
    let mut output = json!({ "format": match args.format {
        Format::Markdown => "markdown",
        Format::Json => "json",
    }, "bytes": document.len(), "turns": told.turns.len() });
    if let Some(path) = &args.output {
        replace(path, &document).map_err(|error| unwritable(path, &error))?;
        output["file"] = json!(path.to_string_lossy());
        let words = format!("{} bytes in {}", document.len(), path.display());
        if !context.flags.json {
            context.notice(&words);
            return Ok(Exit::Answered);
        }
    } else if !context.flags.json {
        let is_seen = std::io::stdout().is_terminal();
        say(&if is_seen { clean(&document) } else { document });
        return Ok(Exit::Answered);
    } else {
        output["document"] = match args.format {
            Format::Markdown => Value::from(document),
            Format::Json => value,
        };
    }
    let envelope = Envelope::success("export", output, context.started.elapsed());
    say(&envelope.of_session(&id, context.resume_command_of(&id, &root)).line());
    Ok(Exit::Answered)
}

impl Context {
    /// Every secret that is known here: of the environment, and of whoever is signed in.
    fn secrets(&self, folder: &Path) -> Arc<Secrets> {
        let secrets = Arc::new(Secrets::from_environment(self.environment.all()));
        if let Ok(loaded) = self.settings(Some(folder))
            && let Ok(chosen) = self.chosen(&loaded.config)
        {
            chosen.credential.hide_in(&secrets);
        }
        secrets
    }
}

/// Puts a document in place whole, for one pair of eyes.
fn replace(path: &Path, document: &str) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if path.is_dir() {
        return Err(io::Error::other("it is a folder"));
    }
    let temporary = folder.join(format!(".export.{:016x}", fastrand::u64(..)));
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(document.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        fs::remove_file(&temporary).ok();
    })
}

fn unwritable(path: &Path, error: &io::Error) -> Report {
    Report::new(Kind::WriteFailed, format!("{} cannot be written: {error}", path.display()))
        .with_details(json!({ "path": path.to_string_lossy() }))
}
