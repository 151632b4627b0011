//! `pixir demo`: the whole thing at work, with no account, no key and no network.
//!
//! Only the model is a stand-in: it is scripted and lives in this process. The wire, the Turn, the
//! tools and the Log are the real ones.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::door::{Access, Opened, quoted};
use super::drive::{Driven, Driver, in_runtime};
use super::exit::{self, Exit};
use super::{Context, verify};
use crate::config::{Config, Loaded};
use crate::error::{Kind, Report};
use crate::event::Canonical;
use crate::harness::Which;
use crate::render::{Envelope, Mode, clean};
use crate::scripted::{DEMO_FILES, DEMO_MODEL, DEMO_PROMPT};

/// Watch a real Turn mend a small program, with no account and no network
#[derive(Debug, Args)]
#[command(
    long_about = "Watch a real Turn mend a small program, with no account and no network.\n\n\
    A broken program is copied to a scratch folder. A model that is part of Pixir reads it, mends it, \
    runs its test and answers; then the diff, the Log and its verification are shown, and how to resume."
)]
pub struct DemoArgs {}

pub fn demo(_: &DemoArgs, context: &Context) -> Result<Exit, Report> {
    let workspace = scratch()?;
    in_runtime(async {
        let mut config = Config::new(context.home()?);
        config.model = DEMO_MODEL.to_owned();
        let loaded = Loaded { config, notices: Vec::new() };
        let opened = Opened { loaded, access: Access::Demo };
        let mut driver = Driver::start(workspace.clone(), Which::New, opened, context).await?;
        driver.view.notice(&format!(
            "The Workspace is {}: total.sh is broken, and test.sh proves it.\n\n› {DEMO_PROMPT}\n",
            workspace.display()
        ));
        let driven = driver.turn(DEMO_PROMPT.to_owned()).await?;
        let Driven::Ended(ending) = driven else { return Ok(Exit::Interrupted) };
        let told = evidence(&driver, context).await?;
        match context.mode() {
            Mode::Json(_) => {
                let envelope = Envelope::turn(&ending, context.started.elapsed())
                    .of_session(driver.conversation.id(), driver.resume_command());
                driver.view.answer(&envelope.line()).ok();
            }
            Mode::Text(_) | Mode::Events => driver.view.notice(&told),
        }
        Ok(exit::of_ending(&ending))
    })
}

/// What the Log says about what just happened, and how to go on.
async fn evidence(driver: &Driver<'_>, context: &Context) -> Result<String, Report> {
    let conversation = &driver.conversation;
    let history = conversation.history().await.map_err(|error| Report::from(&error))?;
    let mut told = String::new();
    for fact in history.facts() {
        let Canonical::ToolResult(result) = fact else { continue };
        if let Some(diff) = result.details.get("diff").and_then(serde_json::Value::as_str) {
            told.push_str(&format!("\nThe change:\n{diff}"));
        }
        let ran = result.details.get("exit_code").is_some();
        if let Some(output) = result.output.as_deref().filter(|_| ran) {
            told.push_str(&format!("\nThe test now says:\n{}\n", output.trim_end()));
        }
    }
    let verified = verify::verdict(conversation.workspace(), conversation.id())?;
    told.push_str(&format!(
        "\nEverything that happened is in the Log:\n  {}\n{verified}\nGo on with this Session:\n  {} {}",
        conversation.log_path().display(),
        driver.resume_command(),
        quoted("what did you change?"),
    ));
    let _ = context;
    Ok(clean(&told))
}

/// A fresh folder with the broken program in it; it is kept for the reader to look at.
fn scratch() -> Result<PathBuf, Report> {
    let failed = |path: &Path, error: std::io::Error| {
        Report::new(Kind::WriteFailed, format!("{} cannot be written: {error}", path.display()))
    };
    let base = std::env::temp_dir();
    let base = base.canonicalize().map_err(|error| failed(&base, error))?;
    let folder = loop {
        let folder = base.join(format!("pixir-demo-{:08x}", fastrand::u32(..)));
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => break folder,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&folder, error)),
        }
    };
    for (name, content) in DEMO_FILES {
        let path = folder.join(name);
        fs::write(&path, content).map_err(|error| failed(&path, error))?;
    }
    Ok(folder)
}
