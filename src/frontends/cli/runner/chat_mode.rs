//! The chat from the command line: its settings, and what is left to do after it.

use std::path::Path;

use tokio::sync::oneshot;

use super::{RunRequest, in_runtime};
use crate::agent::harness::{Harness, SessionTarget};
use crate::agent::inspect;
use crate::agent::inspect::StateRoot;
use crate::agent::workflow;
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::frontends::chat::{ChatOptions, ProjectFacts, SessionFacts, run_chat};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::setup::display_folder;
use crate::frontends::render::{OutputMode, Surface, ViewStyle};
use crate::frontends::signals::SignalListener;
use crate::model::prompt;
use crate::model::skill::Skills;
use crate::record::log::Log;
use crate::settings::config::Config;

/// Runs a chat in a new runtime, until the user leaves.
pub fn run_chat_session(run_request: RunRequest, context: &CliContext) -> Result<Exit, Report> {
    in_runtime(async { Box::pin(run_chat_mode(run_request, context)).await })
}

async fn run_chat_mode(run_request: RunRequest, context: &CliContext) -> Result<Exit, Report> {
    let RunRequest { workspace, session, gathered, opened, attachments } = run_request;
    let facts = session_facts(&opened.loaded.config, &workspace);
    let mut notices = opened.loaded.notices.clone();
    notices.extend(gathered.notices);
    let state_roots = context.state_roots(false)?;
    if let SessionTarget::Resume(id) = &session
        && let Some(root) = state_roots.iter().find(|root| root.has_log(id))
    {
        notices.extend(interrupted_workflow(root, id));
    }
    let project = read_project(context.skills(&workspace)?, state_roots.clone());
    let (credential, _demo) = opened.access.connect().await?;
    let harness = Harness::open(context.harness_options(opened.loaded.config, credential)?);
    let options = ChatOptions {
        harness,
        workspace,
        session,
        attachments,
        notices,
        style: chat_style(context),
        facts,
        state_roots,
        project,
        external_editor: context.external_editor(),
        reflows: context.terminal_reflows(),
    };
    let outcome = Box::pin(run_chat(options, SignalListener::listen())).await?;
    if let Some(conversation) = &outcome.conversation {
        if let Ok(home) = context.home() {
            inspect::remember_workspace(&home, conversation.workspace());
        }
        let command = context.resume_command(conversation.id(), conversation.workspace());
        context.print_notice(&format!("resume: {command}"));
    }
    Ok(match (outcome.last_turn, outcome.stopped_by) {
        (Some(ending), _) => exit::exit_for_turn(&ending),
        (None, Some(_)) => Exit::Interrupted,
        (None, None) => Exit::Answered,
    })
}

fn session_facts(config: &Config, workspace: &Path) -> SessionFacts {
    let mode = config.role.map(|role| role.limit_mode(&config.permission_mode));
    let mode = mode.as_ref().unwrap_or(&config.permission_mode);
    SessionFacts {
        model: config.model.clone(),
        effort: config.effort.clone(),
        mode: mode.as_str().to_owned(),
        folder: display_folder(workspace),
        branch: prompt::git_branch(workspace),
        ..SessionFacts::default()
    }
}

/// Reads prompts, Skills and earlier input beside the first drawing.
fn read_project(skills: Skills, roots: Vec<StateRoot>) -> oneshot::Receiver<ProjectFacts> {
    let (sender, facts) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let slash_names = skills.list_slash_names();
        let earlier_prompts = inspect::earlier_prompts(&roots);
        // The chat may have ended meanwhile.
        sender.send(ProjectFacts { slash_names, earlier_prompts }).ok();
    });
    facts
}

/// Everything is shown on one screen, in the order in which it happens.
fn chat_style(context: &CliContext) -> ViewStyle {
    let style = match context.display_mode() {
        OutputMode::Text(style) | OutputMode::Json(style) => style,
        OutputMode::Events => ViewStyle::default(),
    };
    ViewStyle { answer: Surface::Terminal, activity: Surface::Terminal, ..style }
}

/// The offer to go on with a Workflow run that was cut off.
fn interrupted_workflow(root: &StateRoot, id: &SessionId) -> Option<String> {
    let history = Log::open_reader(root, id).ok()?.read(None).ok()?;
    workflow::interrupted_run_notice(history.facts())
}
