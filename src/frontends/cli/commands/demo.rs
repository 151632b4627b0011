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
use crate::agent::harness::SessionTarget;
use crate::base::error::{Kind, Report};
use crate::base::paths::quote_shell_word;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{SessionRunner, TurnRunOutcome, in_runtime};
use crate::frontends::cli::setup::{ModelAccess, TurnSetup};
use crate::frontends::render::{JsonEnvelope, OutputMode, Surface, ViewStyle, clean};
use crate::record::event::Canonical;
use crate::settings::config::{Config, LoadedConfig, SettingOrigins};
use crate::testing::scripted::{
    DEMO_FILES, DEMO_MODEL, DEMO_PROMPT, EXAMPLE_WORKFLOWS, ExampleWorkflow,
};

/// Watch a Turn fix a small program, without account or network
#[derive(Debug, Args)]
#[command(
    long_about = "Watch a Turn fix a small program, without account or network.\n\n\
    A broken program is copied to a scratch folder. A model that is part of Pixir reads it, fixes it, \
    runs its test and answers. Then Pixir shows the diff, the Log and its verification, how to resume, and how to remove the folder.\n\n\
    With the name of a shipped workflow, that workflow is run instead, on its own files.",
    after_long_help = "Examples:\n  pixir demo\n  pixir demo migrate"
)]
pub struct DemoArgs {
    /// A shipped workflow to run instead of a Turn
    #[arg(value_name = "WORKFLOW", value_parser = EXAMPLE_WORKFLOWS.iter().map(|own| own.name).collect::<Vec<_>>())]
    workflow: Option<String>,
}

pub fn demo(args: &DemoArgs, context: &CliContext) -> Result<Exit, Report> {
    let named = |name: &String| EXAMPLE_WORKFLOWS.iter().find(|own| own.name == name);
    match args.workflow.as_ref().and_then(named) {
        Some(example) => run_demo_workflow(example, context),
        None => run_demo_turn(context),
    }
}

/// The settings of a demo: defaults, the embedded model and no credential.
fn open_demo(context: &CliContext) -> Result<TurnSetup, Report> {
    let mut config = Config::new(context.home()?);
    DEMO_MODEL.clone_into(&mut config.model);
    config.dry_run = context.flags.dry_run;
    let loaded = LoadedConfig { config, notices: Vec::new(), origins: SettingOrigins::default() };
    Ok(TurnSetup { loaded, access: ModelAccess::Demo })
}

/// Runs a shipped workflow on its own files, as `pixir workflow run` would.
fn run_demo_workflow(example: &ExampleWorkflow, context: &CliContext) -> Result<Exit, Report> {
    let file = format!("{}.json", example.name);
    let own = [(file.as_str(), example.spec)];
    let workspace = create_scratch_folder(example.files.iter().chain(&own))?;
    let arguments: Vec<String> =
        example.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let given: Vec<String> =
        arguments.iter().map(|own| format!("--arg {}", quote_shell_word(own))).collect();
    let place = quote_shell_word(&workspace.display().to_string());
    context.print_notice(&format!(
        "› pixir workflow run {file} {} --model {DEMO_MODEL} --cwd {place}\n",
        given.join(" ")
    ));
    let ended =
        run_example(example.spec, &arguments, workspace.clone(), open_demo(context)?, context);
    if context.flags.quiet && matches!(context.display_mode(), OutputMode::Text(_)) {
        // Removed, because its path is not printed with --quiet.
        fs::remove_dir_all(&workspace).map_err(|error| {
            let message = format!("{place} cannot be removed: {error}");
            Report::new(Kind::WriteFailed, message)
        })?;
    } else {
        context.print_notice(&format!("\n{}", removal_hint(&place)));
    }
    ended
}

/// The command that removes the demo's folder, which is kept so that the user can resume the Session.
fn removal_hint(place: &str) -> String {
    format!("Remove its folder when you are done:\n  rm -r {place}")
}

fn run_demo_turn(context: &CliContext) -> Result<Exit, Report> {
    let workspace = create_scratch_folder(DEMO_FILES)?;
    let opened = open_demo(context)?;
    in_runtime(async {
        let mut runner =
            SessionRunner::start(workspace.clone(), SessionTarget::New, opened, context).await?;
        runner.view.print_notice(&format!(
            "The Workspace is {}: total.sh is broken, and test.sh proves it.\n\n› {DEMO_PROMPT}\n",
            workspace.display()
        ));
        let TurnRunOutcome::Ended(ending) = runner.run_turn(DEMO_PROMPT.to_owned()).await? else {
            return Ok(Exit::Interrupted);
        };
        let removal = removal_hint(&quote_shell_word(&workspace.display().to_string()));
        if !matches!(context.display_mode(), OutputMode::Text(_)) {
            context.print_notice(&removal);
        }
        let sections = match context.display_mode() {
            OutputMode::Text(style) => {
                format!("{}\n{removal}\n", evidence_text(&runner, style).await?)
            }
            OutputMode::Json(_) => JsonEnvelope::for_turn(&ending, context.started.elapsed())
                .with_session(runner.conversation.id(), runner.resume_command())
                .to_line(),
            OutputMode::Events => String::new(),
        };
        runner.remember_workspace();
        runner.view.write_answer(&sections).ok();
        Ok(exit::exit_for_turn(&ending))
    })
}

/// What the Log shows: the test before and after, the diff, the verification, and the command to resume.
async fn evidence_text(runner: &SessionRunner<'_>, style: ViewStyle) -> Result<String, Report> {
    let conversation = &runner.conversation;
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
    let is_seen =
        style.answer == style.activity && style.answer == Surface::Terminal && !style.quiet;
    let diffs = results.filter_map(|result| result.diff());
    let mut sections = Vec::new();
    if let [before, ..] = tests.as_slice() {
        sections.push(format!("\nThe test at first:\n{}", indent(before)));
    }
    for diff in diffs.filter(|_| !is_seen) {
        sections.push(format!("The change:\n{}", indent(diff)));
    }
    if let [_, .., after] = tests.as_slice() {
        sections.push(format!("The test now:\n{}", indent(after)));
    }
    let log = conversation.log_path().display();
    sections.push(format!("Everything that happened is in the Log:\n  {log}"));
    let verdict = verify::verdict(conversation.state_root(), conversation.id())?;
    sections.push(format!("Verification of the Log:\n{}", indent(&verdict)));
    let (resume, question) = (runner.resume_command(), quote_shell_word("what did you change?"));
    sections.push(format!("Continue this Session:\n  {resume} {question}\n"));
    Ok(clean(&sections.join("\n\n")))
}

fn indent(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Creates a temporary folder with these files. It is not removed at the end.
fn create_scratch_folder<'f>(
    files: impl IntoIterator<Item = &'f (&'f str, &'f str)>,
) -> Result<PathBuf, Report> {
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
