//! The slash commands of the chat that work on a Session: each calls a service and says what was done.

use std::fmt::Write;
use std::sync::Arc;

use crate::agent::conversation::Conversation;
use crate::agent::harness::{
    Harness, RewindDirection, RewindReport, RewoundFileChange, SessionTarget, SettingsChange,
    StartOptions,
};
use crate::agent::inspect;
use crate::agent::inspect::{SessionSummary, StateRoot};
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::frontends::commands::{CommandId, MODES, find_mode, split_force};
use crate::frontends::render::one_line;
use crate::record::event::Canonical;

/// How many Sessions are listed, and how many are searched for an id.
const LISTED_SESSIONS: usize = 12;
const SEARCHED_SESSIONS: usize = 1_000;

/// How many changed files are named.
const MOST_NAMED_FILES: usize = 30;

/// What a command did.
#[derive(Default)]
pub struct CommandOutcome {
    /// Words for the user.
    pub words: String,
    /// The Conversation, with new settings or newly opened.
    pub conversation: Option<Conversation>,
    /// A prompt to send now.
    pub prompt: Option<String>,
    /// The Session to go on with.
    pub session: Option<SessionTarget>,
}

/// What commands work on.
pub struct CommandContext {
    pub harness: Arc<Harness>,
    pub conversation: Option<Conversation>,
    /// How a Session is opened when a command needs one.
    pub start: StartOptions,
    pub state_roots: Vec<StateRoot>,
}

/// Runs a slash command.
pub async fn run_command(
    id: CommandId,
    rest: String,
    context: CommandContext,
) -> Result<CommandOutcome, Report> {
    match id {
        CommandId::New => {
            Ok(CommandOutcome { session: Some(SessionTarget::New), ..CommandOutcome::default() })
        }
        CommandId::Resume => find_session(&rest, &context.state_roots),
        CommandId::Sessions => Ok(words(list_sessions(&context.state_roots))),
        CommandId::Model if rest.is_empty() => Ok(words(models_text(&context))),
        CommandId::Model => {
            let model = known_model(&rest, &context)?;
            let change = SettingsChange { model: Some(model.clone()), ..SettingsChange::default() };
            context.change(change, format!("the model is {model} from the next Turn on")).await
        }
        CommandId::Effort => {
            let change = SettingsChange {
                effort: Some(known_effort(&rest, &context)?),
                ..SettingsChange::default()
            };
            context.change(change, format!("the effort is {rest} from the next Turn on")).await
        }
        CommandId::Mode => {
            let mode = find_mode(&rest).ok_or_else(|| unknown_mode(&rest))?;
            context.change(mode.to_change(), format!("mode {}", mode.id.replace('_', "-"))).await
        }
        CommandId::Plan => {
            let mode = find_mode("plan").ok_or_else(|| unknown_mode("plan"))?;
            let changed =
                context.change(mode.to_change(), "mode plan: nothing will be changed".to_owned());
            let prompt = Some(rest).filter(|rest| !rest.is_empty());
            Ok(CommandOutcome { prompt, ..changed.await? })
        }
        CommandId::Undo => {
            let (turns, force) = split_force(&rest);
            let count = if turns.is_empty() { Some(1) } else { turns.parse().ok() };
            let count = count.filter(|count| *count > 0);
            let count = count.ok_or_else(|| usage("/undo takes a number of Turns, and --force"))?;
            context.rewind(RewindDirection::Back(count), force).await
        }
        CommandId::Redo => match split_force(&rest) {
            ("", force) => context.rewind(RewindDirection::Forward, force).await,
            _ => Err(usage("/redo takes nothing but --force")),
        },
        CommandId::Compact => context.compact(&rest).await,
        CommandId::Fork => context.fork().await,
        CommandId::Help | CommandId::Status | CommandId::Usage | CommandId::Quit => {
            Ok(CommandOutcome::default())
        }
    }
}

fn words(words: String) -> CommandOutcome {
    CommandOutcome { words, ..CommandOutcome::default() }
}

fn usage(message: &str) -> Report {
    Report::new(Kind::InvalidArgs, message)
}

fn no_session() -> Report {
    Report::new(Kind::NotFound, "there is no Session yet: it begins with the first prompt")
}

impl CommandContext {
    /// Changes settings; opens a Session when there is none.
    async fn change(self, change: SettingsChange, words: String) -> Result<CommandOutcome, Report> {
        let conversation = if let Some(conversation) = self.conversation {
            conversation
        } else {
            let opened = self.harness.start(self.start).await;
            opened.map_err(|error| Report::describe(&error))?
        };
        let changed = self.harness.change_settings(&conversation, change).await;
        let conversation = Some(changed.map_err(|error| Report::describe(&error))?);
        Ok(CommandOutcome { words, conversation, ..CommandOutcome::default() })
    }

    async fn rewind(self, way: RewindDirection, force: bool) -> Result<CommandOutcome, Report> {
        let conversation = self.conversation.ok_or_else(no_session)?;
        let rewound = self.harness.rewind(&conversation, way, force).await?;
        Ok(words(rewind_text(&rewound, way)))
    }

    async fn compact(self, keep: &str) -> Result<CommandOutcome, Report> {
        let conversation = self.conversation.ok_or_else(no_session)?;
        let count = keep.parse().ok().filter(|count: &usize| *count > 0);
        if count.is_none() && !keep.is_empty() {
            return Err(usage("/compact takes the number of Turns to keep, or nothing"));
        }
        let compacted = conversation.compact(count, false).await;
        let compacted = compacted.map_err(|error| Report::describe(&error))?;
        let is_done = compacted
            .is_some_and(|event| matches!(event.fact(), Some(Canonical::HistoryCompaction(_))));
        // What was compacted is shown by its Event.
        Ok(words(if is_done {
            String::new()
        } else {
            "there is nothing to compact yet".to_owned()
        }))
    }

    async fn fork(self) -> Result<CommandOutcome, Report> {
        let conversation = self.conversation.ok_or_else(no_session)?;
        let id = self.harness.fork(conversation.workspace(), conversation.id()).await?;
        Ok(words(format!("Session {id} has branched off from here; /resume {id} goes on with it")))
    }
}

fn models_text(context: &CommandContext) -> String {
    let names: Vec<&str> =
        context.harness.models().iter().map(|model| model.name.as_str()).collect();
    let current = context
        .conversation
        .as_ref()
        .map(|conversation| format!("model {}\n", conversation.model()));
    format!("{}models: {}", current.unwrap_or_default(), names.join(", "))
}

fn known_model(name: &str, context: &CommandContext) -> Result<String, Report> {
    let models = context.harness.models();
    if models.iter().any(|model| model.name == name) {
        return Ok(name.to_owned());
    }
    let message = format!("there is no model `{}`", one_line(name, 60));
    Err(Report::new(Kind::InvalidArgs, message)
        .with_next_actions(vec!["/model lists the models".to_owned()]))
}

fn known_effort(level: &str, context: &CommandContext) -> Result<String, Report> {
    let current = context.conversation.as_ref().map(Conversation::model);
    let models = context.harness.models();
    let model = models.iter().find(|model| current.is_none_or(|current| model.name == current));
    let efforts = model.map(|model| model.efforts.clone()).unwrap_or_default();
    if efforts.iter().any(|known| known == level) {
        return Ok(level.to_owned());
    }
    Err(usage(&format!("the efforts of this model are: {}", efforts.join(", "))))
}

fn unknown_mode(name: &str) -> Report {
    let ids: Vec<String> = MODES.iter().map(|mode| mode.id.replace('_', "-")).collect();
    let ids = ids.join(", ");
    if name.is_empty() {
        return usage(&format!("the modes are: {ids}"));
    }
    usage(&format!("there is no mode `{}`; the modes are: {ids}", one_line(name, 60)))
}

/// The Sessions of this project that a person would go on with, the last used first.
fn own_sessions(roots: &[StateRoot], most: usize) -> Vec<SessionSummary> {
    let mut found = inspect::list_sessions(roots, most);
    found.retain(|summary| summary.origin.as_ref().is_none_or(|origin| origin.kind != "child"));
    found
}

fn list_sessions(roots: &[StateRoot]) -> String {
    let found = own_sessions(roots, LISTED_SESSIONS);
    if found.is_empty() {
        return "there are no Sessions yet".to_owned();
    }
    let mut text = String::new();
    for summary in found {
        let (id, turns) = (&summary.session_id, counted(summary.turns, "Turn"));
        writeln!(text, "{id}  {turns:>9}  {}", one_line(&summary.title, 60)).ok();
    }
    text + "/resume ID goes on with one"
}

fn find_session(part: &str, roots: &[StateRoot]) -> Result<CommandOutcome, Report> {
    if part.is_empty() {
        return Ok(words(list_sessions(roots)));
    }
    let found =
        own_sessions(roots, SEARCHED_SESSIONS).into_iter().map(|summary| summary.session_id);
    let is_meant = |id: &SessionId| id.as_str().starts_with(part) || id.as_str().ends_with(part);
    let found: Vec<SessionId> = found.filter(is_meant).collect();
    match found.as_slice() {
        [id] => Ok(CommandOutcome {
            session: Some(SessionTarget::Resume(id.clone())),
            ..CommandOutcome::default()
        }),
        [] => {
            Err(usage(&format!("there is no Session {}; /sessions lists them", one_line(part, 60))))
        }
        several => Err(usage(&format!("{} Sessions begin or end so", several.len()))),
    }
}

fn rewind_text(rewound: &RewindReport, way: RewindDirection) -> String {
    let done = match way {
        RewindDirection::Back(_) => "taken back",
        RewindDirection::Forward => "brought back",
    };
    let mut text = format!("{} {done}\n", counted(rewound.turns.len(), "Turn"));
    for words in &rewound.turns {
        writeln!(text, "  › {}", one_line(words, 70)).ok();
    }
    for (change, path) in rewound.files.iter().take(MOST_NAMED_FILES) {
        let verb = match change {
            RewoundFileChange::Removed => "removed",
            RewoundFileChange::Created => "made",
            RewoundFileChange::Restored => "restored",
        };
        writeln!(text, "  {verb} {}", path.display()).ok();
    }
    match rewound.files.len() {
        0 => text.push_str("  no file was changed\n"),
        many if many > MOST_NAMED_FILES => {
            writeln!(text, "  and {}", counted(many - MOST_NAMED_FILES, "more file")).ok();
        }
        _ => {}
    }
    for note in &rewound.notes {
        writeln!(text, "  note: {note}").ok();
    }
    if matches!(way, RewindDirection::Back(_)) {
        text.push_str("/redo brings it back, as long as nothing was said since");
    }
    text.trim_end().to_owned()
}
