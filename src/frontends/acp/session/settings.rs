//! Settings of a Session: what the client is sent when it opens one, and changes later.

use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    CompactionStatus, LoadSessionResponse, NewSessionResponse, NoticeSeverity,
    ResumeSessionResponse, SetSessionConfigOptionResponse, SetSessionModeResponse,
};
use serde_json::json;
use tokio::time::Instant;

use super::Actor;
use crate::agent::harness::SettingsChange;
use crate::base::error::Report;
use crate::frontends::acp::commands;
use crate::frontends::acp::commands::CommandAction;
use crate::frontends::acp::connection::wire_id;
use crate::frontends::acp::error;
use crate::frontends::acp::options;
use crate::frontends::acp::options::SettingRequest;
use crate::frontends::acp::responder::Responder;
use crate::frontends::acp::session_setup::SessionSetup;
use crate::frontends::acp::to_acp;
use crate::frontends::acp::to_acp::{Attachments, UpdateRenderer};
use crate::host::rpc::RpcError;
use crate::record::event::Canonical;

/// The delay before updates of a new Session, because clients need a moment to register its id.
const ANNOUNCE_DELAY: Duration = Duration::from_millis(150);

/// The outcome of a slash command.
pub(super) enum SlashCommandOutcome {
    /// The command is done, with this text for the user.
    Answer(String),
    /// The rest of the text is a prompt.
    Prompt(String),
}

impl Actor {
    /// Applies the setup of a Session: its additional directories replace the earlier ones. The Harness
    /// already has the MCP servers.
    pub(super) fn apply_setup(&mut self, setup: &SessionSetup) {
        let (conversation, notes) =
            self.harness.with_extra_roots(&self.conversation, &setup.directories);
        self.conversation = conversation;
        self.connection.set_directories(&self.id, self.conversation.directories().to_vec());
        self.add_notices(setup.notes.iter().cloned().chain(notes));
    }

    /// Applies the setup when the client opens a Session that is open: the directory must be the same;
    /// the MCP servers change from the next Turn on.
    pub(super) fn reapply_setup(&mut self, setup: &SessionSetup) -> Result<(), RpcError> {
        let workspace = self.conversation.workspace();
        if setup.directory()? != workspace {
            return Err(error::wrong_directory(&self.id.to_string(), workspace));
        }
        if setup.servers.is_some() {
            let servers = setup.to_mcp_servers();
            let (conversation, notes) = self.harness.with_mcp_servers(&self.conversation, servers);
            self.conversation = conversation;
            self.add_notices(notes);
        }
        self.apply_setup(setup);
        Ok(())
    }

    fn add_notices(&mut self, notes: impl IntoIterator<Item = String>) {
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Answers `session/new` or `session/fork`, which have the same answer.
    pub async fn answer_new_session(&mut self, responder: Responder) {
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let response = NewSessionResponse::new(wire_id(&self.id))
            .modes(options::session_modes(&self.conversation))
            .config_options(options::session_options(&self.conversation, models));
        responder.answer(Ok(response)).await;
        self.schedule_session_state();
    }

    pub(super) fn schedule_session_state(&mut self) {
        self.announce_at = Some(Instant::now() + ANNOUNCE_DELAY);
    }

    /// Sends commands, title, usage and notices of the Session.
    pub(super) async fn send_session_state(&mut self) {
        self.announce_at = None;
        self.send_commands().await;
        if let Ok(history) = self.conversation.recent_history().await {
            for update in self.renderer.session_info_updates(&history) {
                self.send_update(update).await;
            }
        }
        if self.client.takes_notices {
            self.send_notices().await;
        }
    }

    /// Sends the current slash commands.
    pub(super) async fn send_commands(&mut self) {
        let named = self.conversation.slash_names().await;
        self.send_update(commands::commands_update(&named)).await;
    }

    /// Sends pending notices: as notices, or as message text where the client shows none.
    pub(super) async fn send_notices(&mut self) {
        self.notes.extend(self.conversation.take_notices());
        self.notes.extend(self.editor_status.take_notice());
        for note in std::mem::take(&mut self.notes) {
            self.send_update(to_acp::note_update(self.client, NoticeSeverity::Warning, &note))
                .await;
        }
    }

    pub(super) async fn load_session(&mut self, responder: Responder) {
        let history = match self.conversation.history().await {
            Ok(history) => history,
            Err(error) => {
                return responder
                    .answer(Err::<(), _>(error::from_report(&Report::describe(&error))))
                    .await;
            }
        };
        let fresh = UpdateRenderer::new(
            self.conversation.workspace().to_owned(),
            self.client,
            self.renderer.window,
        );
        // Events that are recorded but not handled yet follow through the listener.
        let (history, owes_prompt) = match &self.running {
            Some(running) => (history.truncated_at(running.last_seq), !running.is_begun),
            None => (history, false),
        };
        let conversation = self.conversation.clone();
        let replay = move || {
            let mut renderer = fresh;
            let updates = renderer.replay(&history, &Attachments::load(&conversation, &history));
            (renderer, updates)
        };
        // Attachments are read from disk.
        let (renderer, updates) = match tokio::task::spawn_blocking(replay).await {
            Ok(replayed) => replayed,
            Err(error) => {
                let fault = RpcError::internal(format!("the Session cannot be shown: {error}"));
                return responder.answer(Err::<(), _>(fault)).await;
            }
        };
        for update in updates {
            self.send_update(update).await;
        }
        let before = std::mem::replace(&mut self.renderer, renderer);
        for update in self.renderer.continue_from(before, owes_prompt) {
            self.send_update(update).await;
        }
        self.send_commands().await;
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let response = LoadSessionResponse::new()
            .modes(options::session_modes(&self.conversation))
            .config_options(options::session_options(&self.conversation, models));
        responder.answer(Ok(response)).await;
        self.schedule_session_state();
    }

    pub(super) async fn resume_session(&mut self, responder: Responder) {
        if let Ok(history) = self.conversation.history().await {
            self.renderer.catch_up(&history);
        }
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let response = ResumeSessionResponse::new()
            .modes(options::session_modes(&self.conversation))
            .config_options(options::session_options(&self.conversation, models));
        responder.answer(Ok(response)).await;
        self.schedule_session_state();
    }

    pub(super) async fn set_option(&mut self, responder: Responder, setting: SettingRequest) {
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let changed = match setting.to_change(&self.conversation, models) {
            Ok(change) => self.apply_change(change).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = changed {
            return responder.answer(Err::<(), _>(fault)).await;
        }
        match setting {
            SettingRequest::Mode(_) => responder.answer(Ok(SetSessionModeResponse::new())).await,
            SettingRequest::Model(_) => responder.answer(Ok(json!({}))).await,
            SettingRequest::Option { .. } => {
                let options = options::session_options(&self.conversation, models);
                responder.answer(Ok(SetSessionConfigOptionResponse::new(options))).await;
            }
        }
        for update in options::setting_updates(&self.conversation, models) {
            self.send_update(update).await;
        }
    }

    async fn apply_change(&mut self, change: SettingsChange) -> Result<(), RpcError> {
        let changed = self.harness.change_settings(&self.conversation, change).await;
        self.conversation =
            changed.map_err(|error| error::from_report(&Report::describe(&error)))?;
        self.renderer.window = self.conversation.window();
        Ok(())
    }

    /// Runs a slash command.
    pub(super) async fn run_command(&mut self, action: CommandAction) -> SlashCommandOutcome {
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let (setting, rest) = match action {
            CommandAction::Compact { keep } => return self.compact(&keep).await,
            CommandAction::Plan { rest } => (SettingRequest::Mode("plan".to_owned()), Some(rest)),
            CommandAction::Model { name } if name.is_empty() => {
                let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                let (current, names) = (self.conversation.model(), names.join(", "));
                return SlashCommandOutcome::Answer(format!(
                    "The model is {current}. Available models: {names}."
                ));
            }
            CommandAction::Model { name } => (SettingRequest::Model(name), None),
            CommandAction::Undo { turns } => {
                return SlashCommandOutcome::Answer(self.undo(&turns).await);
            }
            CommandAction::Redo { rest } => {
                return SlashCommandOutcome::Answer(self.redo(&rest).await);
            }
            CommandAction::Fork => return SlashCommandOutcome::Answer(self.fork().await),
        };
        let changed = match setting.to_change(&self.conversation, models) {
            Ok(change) => self.apply_change(change).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = changed {
            return SlashCommandOutcome::Answer(format!("\u{26a0} {}", fault.message));
        }
        for update in options::setting_updates(&self.conversation, models) {
            self.send_update(update).await;
        }
        match rest {
            Some(rest) if !rest.is_empty() => SlashCommandOutcome::Prompt(rest),
            Some(_) => {
                SlashCommandOutcome::Answer("Plan mode is on: nothing will be changed.".to_owned())
            }
            None => SlashCommandOutcome::Answer(format!(
                "The model is {} now.",
                self.conversation.model()
            )),
        }
    }

    /// Runs `/compact`.
    async fn compact(&mut self, keep: &str) -> SlashCommandOutcome {
        let count = keep.parse().ok().filter(|count: &usize| *count > 0);
        if count.is_none() && !keep.is_empty() {
            let words = "`/compact` takes the number of Turns to keep, or nothing.";
            return SlashCommandOutcome::Answer(format!("\u{26a0} {words}"));
        }
        for update in self.renderer.begin_compaction() {
            self.send_update(update).await;
        }
        let compacted = self.conversation.compact(count, false).await;
        if !matches!(compacted, Ok(Some(_))) {
            let outcome = match compacted {
                Ok(_) => CompactionStatus::Cancelled,
                Err(_) => CompactionStatus::Failed,
            };
            if let Some(update) = self.renderer.end_compaction(outcome) {
                self.send_update(update).await;
            }
        }
        match compacted {
            Ok(None) => SlashCommandOutcome::Answer("There is nothing to compact yet.".to_owned()),
            Ok(Some(event)) => {
                for update in self.renderer.render_event(&event) {
                    self.send_update(update).await;
                }
                let words = match event.fact() {
                    Some(Canonical::HistoryCompaction(compaction)) => compaction.describe(),
                    _ => String::new(),
                };
                SlashCommandOutcome::Answer(format!("Done: {words}."))
            }
            Err(error) => SlashCommandOutcome::Answer(format!(
                "\u{26a0} {}",
                Report::describe(&error).message
            )),
        }
    }

    /// Switches to a new Harness after a sign-in or sign-out.
    pub(super) async fn refresh_harness(&mut self) -> Result<(), RpcError> {
        let generation = self.connection.generation();
        if generation == self.generation {
            return Ok(());
        }
        let harness = self.connection.harness(self.conversation.workspace()).await;
        let harness = harness.map_err(|report| error::from_report(&report))?;
        self.conversation = harness.adopt_session(&self.conversation, &self.harness);
        self.harness = harness;
        self.generation = generation;
        Ok(())
    }
}
