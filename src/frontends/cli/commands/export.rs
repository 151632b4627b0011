//! `pixir export`: write a Session as a Markdown or JSON document.
#![expect(clippy::disallowed_methods, reason = "the user names the file")]

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use crate::agent::inspect::{Transcript, open_transcript};
use crate::base::error::{Kind, Report, counted};
use crate::base::secret::Secrets;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_arg::SessionArg;
use crate::frontends::cli::{CliContext, markdown};
use crate::frontends::render::{SignalCount, StdioOutput, StdoutClosed, clean, escape_hidden};
use crate::record::log::LogError;

/// Export a Session as Markdown or JSON
#[derive(Debug, Args)]
#[command(
    long_about = "Export a Session as a document for others to read.\n\n\
        Everything that was said and done, Turn by Turn: tool output cut to its head and tail, changes as diffs, \
        attachments by name. Known secrets are removed. A damaged Log is exported as far as it can be read. stdout is the \
        document and nothing else; docs/evidence.md describes the JSON.",
    after_long_help = "Examples:\n  pixir export 20260721T101112-abcdef > session.md\n  \
        pixir export 20260721T101112-abcdef --format json --output session.json"
)]
pub struct ExportArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Format of the document
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ExportFormat::Markdown)]
    format: ExportFormat,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    Markdown,
    Json,
}

pub fn export(args: &ExportArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    let transcript = open_transcript(&root, &id)?;
    let exported = ExportDocument {
        transcript,
        format: args.format,
        secrets: context.known_secrets(root.workspace()),
    };
    let count = exported.transcript.tail.damaged_lines;
    if count > 0 {
        let places = counted(count, "damaged place");
        context.print_notice(&format!("left out: {places}; see `pixir diagnose {id}`"));
    }
    let mut output = json!({ "format": match args.format {
        ExportFormat::Markdown => "markdown",
        ExportFormat::Json => "json",
    }, "bytes": 0, "turns": exported.transcript.turn_count });
    if let Some(path) = &args.output {
        let bytes = exported.write_file(path).map_err(|error| error.into_report(path))?;
        output["bytes"] = json!(bytes);
        output["file"] = json!(path.to_string_lossy());
        if !context.flags.json {
            context.print_notice(&format!("{bytes} bytes in {}", path.display()));
            return Ok(Exit::Answered);
        }
    } else if !context.flags.json {
        let mut writer = StdoutWriter(StdioOutput::stdio(SignalCount::default()));
        return match exported.write(&mut writer) {
            Ok(()) | Err(ExportError::Write(_)) if !writer.0.has_failed() => Ok(Exit::Answered),
            // A closed stdout is no error; any other failure leaves an incomplete document.
            Ok(()) | Err(ExportError::Write(_)) => {
                Err(Report::new(Kind::Internal, "the document could not be written to stdout"))
            }
            Err(ExportError::Log(error)) => Err(Report::describe(&error)),
        };
    } else {
        let mut document = Vec::new();
        exported.write(&mut document).map_err(|error| error.into_report(Path::new("-")))?;
        output["bytes"] = json!(document.len());
        output["document"] = match args.format {
            ExportFormat::Markdown => Value::from(String::from_utf8_lossy(&document)),
            ExportFormat::Json => serde_json::from_slice(&document).unwrap_or_default(),
        };
    }
    let envelope = context.success_envelope("export", output)?;
    let envelope = envelope.with_session(&id, context.resume_command_of(&id, &root));
    Ok(context.print_envelope(&envelope, ""))
}

/// A document that is written Turn by Turn, so that neither the Log nor the document is held in memory.
struct ExportDocument {
    transcript: Transcript,
    format: ExportFormat,
    secrets: Arc<Secrets>,
}

impl ExportDocument {
    /// Writes the whole document.
    fn write(&self, out: &mut impl Write) -> Result<(), ExportError> {
        match self.format {
            ExportFormat::Markdown => self.write_markdown(out)?,
            ExportFormat::Json => self.write_json(out)?,
        }
        Ok(out.flush()?)
    }

    fn write_markdown(&self, out: &mut impl Write) -> Result<(), ExportError> {
        let Transcript { head, tail, .. } = &self.transcript;
        let text = |page: &str| clean(&self.secrets.redact(page));
        out.write_all(text(&markdown::document_head(head, tail)).as_bytes())?;
        self.transcript.for_each_turn(|turn| {
            Ok(out.write_all(text(&markdown::turn_section(&turn)).as_bytes())?)
        })
    }

    /// The head and the tail are fields of one object around the list of Turns.
    fn write_json(&self, out: &mut impl Write) -> Result<(), ExportError> {
        let head = self.to_clean_json(&self.transcript.head);
        let tail = self.to_clean_json(&self.transcript.tail);
        out.write_all(head.trim_end_matches("\n}").as_bytes())?;
        out.write_all(b",\n  \"turns\": [")?;
        let mut is_first = true;
        self.transcript.for_each_turn(|turn| {
            out.write_all(if is_first { b"\n    " } else { b",\n    " })?;
            is_first = false;
            Ok::<_, ExportError>(
                out.write_all(self.to_clean_json(&turn).replace('\n', "\n    ").as_bytes())?,
            )
        })?;
        out.write_all(if is_first { b"]," } else { b"\n  ]," })?;
        out.write_all(tail.trim_start_matches('{').as_bytes())?;
        Ok(out.write_all(b"\n")?)
    }

    /// A part as JSON. The Log has no secret that was known when it was written; secrets known only now are removed.
    fn to_clean_json(&self, part: &impl Serialize) -> String {
        let mut value = serde_json::to_value(part).unwrap_or_default();
        self.secrets.redact_value(&mut value);
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        escape_hidden(&text).into_owned()
    }

    /// Replaces the file atomically, with mode 0600; returns the size of the document.
    fn write_file(&self, path: &Path) -> Result<u64, ExportError> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if path.is_dir() {
            return Err(io::Error::other("it is a folder").into());
        }
        let temporary = folder.join(format!(".export.{:016x}", fastrand::u64(..)));
        let write = || {
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
            let mut out = BufWriter::new(file);
            self.write(&mut out)?;
            out.get_ref().sync_all()?;
            let bytes = out.get_ref().metadata()?.len();
            fs::rename(&temporary, path)?;
            Ok(bytes)
        };
        write().inspect_err(|_| {
            fs::remove_file(&temporary).ok();
        })
    }
}

/// stdout as a writer.
struct StdoutWriter(StdioOutput);

impl Write for StdoutWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_answer(bytes).map_err(|StdoutClosed| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(self.0.flush().map_err(|StdoutClosed| io::ErrorKind::BrokenPipe)?)
    }
}

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl ExportError {
    fn into_report(self, path: &Path) -> Report {
        match self {
            Self::Log(error) => Report::describe(&error),
            Self::Write(error) => unwritable_error(path, &error),
        }
    }
}

impl CliContext {
    /// All known secrets: those of the environment and of the credential.
    fn known_secrets(&self, folder: &Path) -> Arc<Secrets> {
        let secrets = Arc::new(Secrets::from_environment(self.environment.variables()));
        if let Ok(loaded) = self.load_settings(Some(folder))
            && let Ok(chosen) = self.choose_credential(&loaded.config)
        {
            chosen.credential.register_secrets(&secrets);
        }
        secrets
    }
}

fn unwritable_error(path: &Path, error: &io::Error) -> Report {
    Report::new(Kind::WriteFailed, format!("{} cannot be written: {error}", path.display()))
        .with_details(json!({ "path": path.to_string_lossy() }))
}
