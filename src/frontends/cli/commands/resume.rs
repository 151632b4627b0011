//! `pixir resume`: another Turn in an existing Session.

use clap::Args;

use crate::agent::harness::SessionTarget;
use crate::agent::inspect;
use crate::agent::inspect::SessionSummary;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::{RunRequest, refuse_command_word, run_session};
use crate::frontends::cli::terminal::stdin;
use crate::frontends::cli::terminal::stdin::PromptSource;
use crate::frontends::cli::usage_error::prompt_command;
use crate::record::state_dir::StateRoot;

/// Continue a Session
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir resume [OPTIONS] [<ID>|--last [PROMPT]...]",
    long_about = "Continue a Session.\n\n\
        The Session keeps its model unless --model names another. A Session is named by its id, or by the \
        beginning or end of it, also from another Workspace. Without an id, the last used Session of this \
        Workspace is continued. Without a prompt, on a terminal, its last exchange is shown, and prompts are read until Ctrl-D.",
    after_long_help = "Examples:\n  pixir resume\n  pixir resume --last \"now add a test\"\n  \
        pixir resume 20260721T101112-abcdef\n  pixir resume abcdef \"now add a test\""
)]
pub struct ResumeArgs {
    /// Continue the last used Session of this Workspace
    #[arg(long)]
    last: bool,
    /// The Session's id (unless --last is given), then the prompt
    #[arg(value_name = "ID|PROMPT")]
    words: Vec<String>,
    /// Words of the prompt, even if they look like flags
    #[arg(last = true, value_name = "PROMPT")]
    literal: Vec<String>,
}

pub fn resume(args: &ResumeArgs, context: &CliContext) -> Result<Exit, Report> {
    // A first word is always an id, because a misspelled one must not become a prompt. Without words, the last Session is
    // resumed.
    let named = args.words.split_first().filter(|_| !args.last);
    let words = named.map_or(args.words.as_slice(), |(_, prompt)| prompt);
    let (id, root) = match named {
        None => context.last_session()?,
        Some((id, _)) => {
            context.find_session(id).map_err(|report| with_last_session_hint(report, args))?
        }
    };
    refuse_missing_workspace(&id, &root)?;
    let workspace = root.workspace().to_owned();
    if args.literal.is_empty() {
        let session = if named.is_none() { "--last" } else { id.as_str() };
        let command = format!("pixir resume {session} --");
        refuse_command_word(words, &context.skills(&workspace)?, &command)?;
    }
    let gathered = stdin::gather_prompt(words, &args.literal)?;
    if gathered.prompt == PromptSource::Lines {
        context.refuse_json_in_line_mode()?;
    }
    let attachments = context.read_attachments(&workspace)?;
    let model = inspect::posture_model(&root, &id);
    let opened = context.prepare_turn(&workspace, model.as_deref())?;
    run_session(
        RunRequest { workspace, session: SessionTarget::Resume(id), gathered, opened, attachments },
        context,
    )
}

/// Adds the command to use if the first word was meant as part of a prompt.
fn with_last_session_hint(report: Report, args: &ResumeArgs) -> Report {
    let words = args.words.iter().chain(&args.literal).map(String::as_str);
    let prompt = words.collect::<Vec<_>>().join(" ");
    let command = prompt_command("pixir resume --last --", &prompt);
    let mut actions = report.next_actions();
    actions.push(format!("if these words are a prompt: {command}"));
    report.with_next_actions(actions)
}

/// The Session of this Workspace that was used last.
pub fn find_last_session(context: &CliContext) -> Result<SessionId, Report> {
    let roots = context.state_roots(false)?;
    // Sessions that can be continued are preferred.
    let (read_only, usable): (Vec<StateRoot>, Vec<StateRoot>) =
        roots.into_iter().partition(|root| root.problem().is_some());
    // Children are skipped; a few Sessions are usually enough to find one that is no child.
    let is_own = |summary: &SessionSummary| {
        summary.origin.as_ref().is_none_or(|origin| origin.kind != "child")
    };
    let newest = [(&usable, 8), (&usable, usize::MAX), (&read_only, usize::MAX)]
        .into_iter()
        .find_map(|(roots, limit)| inspect::list_sessions(roots, limit).into_iter().find(is_own));
    let here = context.current_folder()?;
    context.explain_closed_folders(false, newest.is_some())?;
    newest.map(|summary| summary.session_id).ok_or_else(|| {
        Report::new(Kind::NotFound, format!("there are no Sessions in {}", here.display()))
            .with_next_actions(vec!["list all Sessions with `pixir sessions --all`".into()])
    })
}

impl CliContext {
    /// The command line that resumes a Session of this state; `None` when its Workspace is gone.
    pub fn resume_command_of(&self, id: &SessionId, root: &StateRoot) -> Option<String> {
        let workspace = root.workspace();
        workspace.is_dir().then(|| self.resume_command(id, workspace))
    }

    /// A line with the command that resumes a Session, or that exports it when its Workspace is gone.
    pub fn next_command(&self, id: &SessionId, root: &StateRoot) -> String {
        if let Some(command) = self.resume_command_of(id, root) {
            return format!("resume: {command}");
        }
        let workspace = root.workspace().display();
        self.print_notice(&format!(
            "the Workspace is gone: move the folder back to {workspace} to continue"
        ));
        format!("read:   {} export {id}", self.program_name())
    }
}

/// Refuses to work with the files of a Session whose Workspace was moved or removed.
pub fn refuse_missing_workspace(id: &SessionId, root: &StateRoot) -> Result<(), Report> {
    let workspace = root.workspace();
    if workspace.is_dir() {
        return Ok(());
    }
    let message = format!("the Workspace of Session {id} is gone: {}", workspace.display());
    let details = serde_json::json!({ "session_id": id, "path": workspace.to_string_lossy() });
    Err(Report::new(Kind::NotFound, message).with_details(details).with_next_actions(vec![
        "move the folder back, then run this again".into(),
        format!("read the Session with `pixir export {id}`"),
    ]))
}

/// Refuses to change a Session whose state is read-only, where working on a fork does not help.
pub fn refuse_read_only(id: &SessionId, root: &StateRoot) -> Result<(), Report> {
    let Some(problem) = root.problem() else { return Ok(()) };
    let details = serde_json::json!({ "session_id": id, "path": problem.path().to_string_lossy() });
    let action = format!("{}, then run this again", problem.next_action());
    Err(Report::new(problem.kind(), format!("Session {id} can only be read: {problem}"))
        .with_details(details)
        .with_next_actions(vec![action]))
}

pub fn unknown_session(id: &SessionId) -> Report {
    Report::new(Kind::NotFound, format!("there is no Session {id}"))
        .with_details(serde_json::json!({ "session_id": id }))
        .with_next_actions(vec!["list the Sessions with `pixir sessions --all`".into()])
}
