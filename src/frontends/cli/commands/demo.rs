//! `pixir demo`: a Turn or a workflow with the embedded model, without account, key or network.
//!
//! Only the model is a stand-in: it is scripted and runs in this process. The wire, the Turn, the
//! tools and the Log are the real ones.
#![expect(clippy::disallowed_methods, reason = "the example is a folder that the user works in")]

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::verify;
use super::workflow::run_example;
use crate::agent::harness::Which;
use crate::base::error::{Kind, Report};
use crate::base::paths::shell_word;
use crate::frontends::cli::Context;
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{Driven, Driver, in_runtime};
use crate::frontends::cli::setup::{Access, Opened};
use crate::frontends::render::{Envelope, Look, Mode, Surface, clean};
use crate::record::event::Canonical;
use crate::settings::config::{Config, Loaded, Origins};
use crate::testing::scripted::{DEMO_FILES, DEMO_MODEL, DEMO_PROMPT, EXAMPLES, Example};

/// Watch a real Turn fix a small program, without account or network
#[derive(Debug, Args)]
#[command(
    long_about = "Watch a real Turn fix a small program, without account or network.\n\n\
    A broken program is copied to a scratch folder. A model that is part of Pixir reads it, fixes it, \
    runs its test and answers. Then Pixir shows the diff, the Log and its verification, how to resume, and how to remove the folder.\n\n\
    With the name of a shipped workflow, that workflow is run instead, on its own files.",
    after_long_help = "Examples:\n  pixir demo\n  pixir demo migrate"
)]
pub struct DemoArgs {
    /// A shipped workflow to run instead of a Turn
    #[arg(value_name = "WORKFLOW", value_parser = EXAMPLES.iter().map(|own| own.name).collect::<Vec<_>>())]
    workflow: Option<String>,
}

pub fn demo(args: &DemoArgs, context: &Context) -> Result<Exit, Report> {
    let named = |name: &String| EXAMPLES.iter().find(|own| own.name == name);
    match args.workflow.as_ref().and_then(named) {
        Some(example) => workflow(example, context),
        None => turn(context),
    }
}

/// The settings of a demo: defaults, the embedded model and no credential.
fn opened(context: &Context) -> Result<Opened, Report> {
    let mut config = Config::new(context.home()?);
    DEMO_MODEL.clone_into(&mut config.model);
    config.dry_run = context.flags.dry_run;
    let loaded = Loaded { config, notices: Vec::new(), origins: Origins::default() };
    Ok(Opened { loaded, access: Access::Demo })
}

/// Runs a shipped workflow on its own files, as `pixir workflow run` would.
fn workflow(example: &Example, context: &Context) -> Result<Exit, Report> {
    let file = format!("{}.json", example.name);
    let own = [(file.as_str(), example.spec)];
    let workspace = scratch(example.files.iter().chain(&own))?;
    let arguments: Vec<String> =
        example.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let given: Vec<String> =
        arguments.iter().map(|own| format!("--arg {}", shell_word(own))).collect();
    let place = shell_word(&workspace.display().to_string());
    context.notice(&format!(
        "› pixir workflow run {file} {} --model {DEMO_MODEL} --cwd {place}\n",
        given.join(" ")
    ));
    let ended = run_example(example.spec, &arguments, workspace.clone(), opened(context)?, context);
    if context.flags.quiet && matches!(context.mode(), Mode::Text(_)) {
        // Removed, because its path is not printed with --quiet.
        fs::remove_dir_all(&workspace).map_err(|error| {
            let message = format!("{place} cannot be removed: {error}");
            Report::new(Kind::WriteFailed, message)
        })?;
    } else {
        context.notice(&format!("\n{}", removal(&place)));
    }
    ended
}

/// The command that removes the demo's folder, which is kept so that the user can resume the Session.
fn removal(place: &str) -> String {
    format!("Remove its folder when you are done:\n  rm -r {place}")
}

fn turn(context: &Context) -> Result<Exit, Report> {
    let workspace = scratch(DEMO_FILES)?;
    let opened = opened(context)?;
    in_runtime(async {
        let mut driver = Driver::start(workspace.clone(), Which::New, opened, context).await?;
        driver.view.notice(&format!(
            "The Workspace is {}: total.sh is broken, and test.sh proves it.\n\n› {DEMO_PROMPT}\n",
            workspace.display()
        ));
        let Driven::Ended(ending) = driver.turn(DEMO_PROMPT.to_owned()).await? else {
            return Ok(Exit::Interrupted);
        };
        let removal = removal(&shell_word(&workspace.display().to_string()));
        if !matches!(context.mode(), Mode::Text(_)) {
            context.notice(&removal);
        }
        let told = match context.mode() {
            Mode::Text(look) => format!("{}\n{removal}\n", evidence(&driver, look).await?),
            Mode::Json(_) => Envelope::turn(&ending, context.started.elapsed())
                .of_session(driver.conversation.id(), driver.resume_command())
                .line(),
            Mode::Events => String::new(),
        };
        driver.remember();
        driver.view.answer(&told).ok();
        Ok(exit::of_ending(&ending))
    })
}

/// What the Log shows: the test before and after, the diff, the verification, and the command to resume.
async fn evidence(driver: &Driver<'_>, look: Look) -> Result<String, Report> {
    let conversation = &driver.conversation;
    let history = conversation.history().await?;
    let results = history.facts().filter_map(|fact| match fact {
        Canonical::ToolResult(result) => Some(result),
        _ => None,
    });
    let tests: Vec<&str> = results
        .clone()
        .filter(|result| result.is_command())
        .filter_map(|result| result.output.as_deref())
        .collect();
    // The diff is already on the terminal, with the tool lines.
    let is_seen = look.answer == look.activity && look.answer == Surface::Terminal && !look.quiet;
    let diffs = results.filter_map(|result| result.diff());
    let mut told = Vec::new();
    if let [before, ..] = tests.as_slice() {
        told.push(format!("\nThe test at first:\n{}", indented(before)));
    }
    for diff in diffs.filter(|_| !is_seen) {
        told.push(format!("The change:\n{}", indented(diff)));
    }
    if let [_, .., after] = tests.as_slice() {
        told.push(format!("The test now:\n{}", indented(after)));
    }
    let log = conversation.log_path().display();
    told.push(format!("Everything that happened is in the Log:\n  {log}"));
    let verdict = verify::verdict(conversation.state_root(), conversation.id())?;
    told.push(format!("Does the Log prove it?\n{}", indented(&verdict)));
    let (resume, question) = (driver.resume_command(), shell_word("what did you change?"));
    told.push(format!("Go on with this Session:\n  {resume} {question}\n"));
    Ok(clean(&told.join("\n\n")))
}

fn indented(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Creates a temporary folder with these files. It is not removed at the end.
fn scratch<'f>(files: impl IntoIterator<Item = &'f (&'f str, &'f str)>) -> Result<PathBuf, Report> {
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
    for (name, content) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        }
        fs::write(&path, content).map_err(|error| failed(&path, error))?;
    }
    Ok(folder)
}
