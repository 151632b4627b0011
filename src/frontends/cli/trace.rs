//! Tracing for developers: off unless asked for, and never on stdout.
#![expect(clippy::disallowed_methods, reason = "the user names the file")]

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use super::{CliContext, bad_argument};
use crate::base::error::{Kind, Report};

/// Turns tracing on when `PIXIR_LOG` or `--log-file` asks for it; otherwise nothing is installed.
pub fn set_up(context: &CliContext) -> Result<(), Report> {
    let wanted = context.environment.text("PIXIR_LOG").filter(|level| !level.is_empty());
    let file = context.flags.log_file.as_deref();
    if wanted.is_none() && file.is_none() {
        return Ok(());
    }
    let filter = trace_filter(wanted.as_deref().unwrap_or("debug"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    // An embedding program may have a subscriber already, which stays.
    match file {
        Some(path) => {
            let file = open_trace_file(path)?;
            builder.with_writer(Mutex::new(file)).try_init().ok();
        }
        None => {
            builder.with_writer(io::stderr).try_init().ok();
        }
    }
    Ok(())
}

/// A bare level is for Pixir alone; other crates may log the content that passes through them.
fn trace_filter(wanted: &str) -> Result<EnvFilter, Report> {
    let is_level = wanted.chars().all(|c| c.is_ascii_alphabetic());
    let directives = if is_level { format!("pixir={wanted}") } else { wanted.to_owned() };
    EnvFilter::try_new(directives).map_err(|error| {
        Report::new(Kind::InvalidConfig, format!("environment variable PIXIR_LOG: {error}"))
            .with_next_actions(vec!["use error, warn, info, debug or trace".into()])
    })
}

fn open_trace_file(path: &Path) -> Result<std::fs::File, Report> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    opened.map_err(|error| {
        bad_argument(format!("--log-file {} cannot be opened: {error}", path.display()))
    })
}
