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
use crate::agent::harness::Change;
use crate::base::error::Report;
use crate::frontends::acp::commands;
use crate::frontends::acp::commands::Order;
use crate::frontends::acp::connection::wire_id;
use crate::frontends::acp::fault;
use crate::frontends::acp::options;
use crate::frontends::acp::options::Wish;
use crate::frontends::acp::setup::Setup;
use crate::frontends::acp::ticket::Ticket;
use crate::frontends::acp::to_acp;
use crate::frontends::acp::to_acp::{Attached, Renderer};
use crate::host::rpc::Fault;
use crate::record::event::Canonical;

/// The delay before updates of a new Session, because clients need a moment to register its id.
const SETTLING: Duration = Duration::from_millis(150);

/// The outcome of a slash command.
pub(super) enum Obeyed {
    /// The command is done, with this text for the user.
    Answer(String),
    /// The rest of the text is a prompt.
    Prompt(String),
}

impl Actor {
    /// Applies the setup of a Session: its additional directories replace the earlier ones. The Harness
    /// already has the MCP servers.
    pub(super) fn set_up(&mut self, setup: &Setup) {
        let (conversation, notes) = self.harness.widen(&self.conversation, &setup.directories);
        self.conversation = conversation;
        self.connection.widen(&self.id, self.conversation.directories().to_vec());
        self.note(setup.notes.iter().cloned().chain(notes));
    }

    /// Applies the setup when the client opens a Session that is open: the directory must be the same;
    /// the MCP servers change from the next Turn on.
    pub(super) fn set_up_again(&mut self, setup: &Setup) -> Result<(), Fault> {
        let workspace = self.conversation.workspace();
        if setup.directory()? != workspace {
            return Err(fault::elsewhere(&self.id.to_string(), workspace));
        }
        if setup.servers.is_some() {
            let servers = setup.handed_over();
            let (conversation, notes) = self.harness.connect(&self.conversation, servers);
            self.conversation = conversation;
            self.note(notes);
        }
        self.set_up(setup);
        Ok(())
    }

    fn note(&mut self, notes: impl IntoIterator<Item = String>) {
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Answers `session/new` or `session/fork`, which have the same answer.
    pub async fn introduce(&mut self, ticket: Ticket) {
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let response = NewSessionResponse::new(wire_id(&self.id))
            .modes(options::modes(&self.conversation))
            .config_options(options::options(&self.conversation, models));
        ticket.answer(Ok(response)).await;
        self.announce_soon();
    }

    pub(super) fn announce_soon(&mut self) {
        self.announce_at = Some(Instant::now() + SETTLING);
    }

    /// Sends commands, title, usage and notices of the Session.
    pub(super) async fn announce(&mut self) {
        self.announce_at = None;
        self.tell_commands().await;
        if let Ok(history) = self.conversation.recent().await {
            for update in self.renderer.standing(&history) {
                self.tell(update).await;
            }
        }
        if self.client.takes_notices {
            self.tell_notes().await;
        }
    }

    /// Sends the current slash commands.
    pub(super) async fn tell_commands(&mut self) {
        let named = self.conversation.named().await;
        self.tell(commands::update(&named)).await;
    }

    /// Sends pending notices: as notices, or as message text where the client shows none.
    pub(super) async fn tell_notes(&mut self) {
        self.notes.extend(self.conversation.take_notices());
        self.notes.extend(self.silence.take_note());
        for note in std::mem::take(&mut self.notes) {
            self.tell(to_acp::note_update(self.client, NoticeSeverity::Warning, &note)).await;
        }
    }

    pub(super) async fn load(&mut self, ticket: Ticket) {
        let history = match self.conversation.history().await {
            Ok(history) => history,
            Err(error) => {
                return ticket.answer(Err::<(), _>(fault::of(&Report::describe(&error)))).await;
            }
        };
        let fresh = Renderer::new(
            self.conversation.workspace().to_owned(),
            self.client,
            self.renderer.window,
        );
        // Events that are recorded but not handled yet follow through the listener.
        let (history, owes_prompt) = match &self.running {
            Some(running) => (history.up_to(running.heard), !running.is_begun),
            None => (history, false),
        };
        let conversation = self.conversation.clone();
        let replay = move || {
            let mut renderer = fresh;
            let updates = renderer.replay(&history, &Attached::of(&conversation, &history));
            (renderer, updates)
        };
        // Attachments are read from disk.
        let (renderer, updates) = match tokio::task::spawn_blocking(replay).await {
            Ok(replayed) => replayed,
            Err(error) => {
                let fault = Fault::internal(format!("the Session cannot be shown: {error}"));
                return ticket.answer(Err::<(), _>(fault)).await;
            }
        };
        for update in updates {
            self.tell(update).await;
        }
        let before = std::mem::replace(&mut self.renderer, renderer);
        for update in self.renderer.go_on_from(before, owes_prompt) {
            self.tell(update).await;
        }
        self.tell_commands().await;
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let response = LoadSessionResponse::new()
            .modes(options::modes(&self.conversation))
            .config_options(options::options(&self.conversation, models));
        ticket.answer(Ok(response)).await;
        self.announce_soon();
    }

    pub(super) async fn resume(&mut self, ticket: Ticket) {
        if let Ok(history) = self.conversation.history().await {
            self.renderer.catch_up(&history);
        }
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let response = ResumeSessionResponse::new()
            .modes(options::modes(&self.conversation))
            .config_options(options::options(&self.conversation, models));
        ticket.answer(Ok(response)).await;
        self.announce_soon();
    }

    pub(super) async fn set(&mut self, ticket: Ticket, wish: Wish) {
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let changed = match wish.change(&self.conversation, models) {
            Ok(change) => self.change(change).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = changed {
            return ticket.answer(Err::<(), _>(fault)).await;
        }
        match wish {
            Wish::Mode(_) => ticket.answer(Ok(SetSessionModeResponse::new())).await,
            Wish::Model(_) => ticket.answer(Ok(json!({}))).await,
            Wish::Option { .. } => {
                let options = options::options(&self.conversation, models);
                ticket.answer(Ok(SetSessionConfigOptionResponse::new(options))).await;
            }
        }
        for update in options::updates(&self.conversation, models) {
            self.tell(update).await;
        }
    }

    async fn change(&mut self, change: Change) -> Result<(), Fault> {
        let changed = self.harness.change(&self.conversation, change).await;
        self.conversation = changed.map_err(|error| fault::of(&Report::describe(&error)))?;
        self.renderer.window = self.conversation.window();
        Ok(())
    }

    /// Runs a slash command.
    pub(super) async fn obey(&mut self, order: Order) -> Obeyed {
        let harness = Arc::clone(&self.harness);
        let models = harness.models();
        let (wish, rest) = match order {
            Order::Compact { keep } => return self.compact(&keep).await,
            Order::Plan { rest } => (Wish::Mode("plan".to_owned()), Some(rest)),
            Order::Model { name } if name.is_empty() => {
                let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                let (current, names) = (self.conversation.model(), names.join(", "));
                return Obeyed::Answer(format!(
                    "The model is {current}. Available models: {names}."
                ));
            }
            Order::Model { name } => (Wish::Model(name), None),
            Order::Undo { turns } => return Obeyed::Answer(self.undo(&turns).await),
            Order::Redo { rest } => return Obeyed::Answer(self.redo(&rest).await),
            Order::Fork => return Obeyed::Answer(self.fork().await),
        };
        let changed = match wish.change(&self.conversation, models) {
            Ok(change) => self.change(change).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = changed {
            return Obeyed::Answer(format!("\u{26a0} {}", fault.message));
        }
        for update in options::updates(&self.conversation, models) {
            self.tell(update).await;
        }
        match rest {
            Some(rest) if !rest.is_empty() => Obeyed::Prompt(rest),
            Some(_) => Obeyed::Answer("Plan mode is on: nothing will be changed.".to_owned()),
            None => Obeyed::Answer(format!("The model is {} now.", self.conversation.model())),
        }
    }

    /// Runs `/compact`.
    async fn compact(&mut self, keep: &str) -> Obeyed {
        let count = keep.parse().ok().filter(|count: &usize| *count > 0);
        if count.is_none() && !keep.is_empty() {
            let words = "`/compact` takes the number of Turns to keep, or nothing.";
            return Obeyed::Answer(format!("\u{26a0} {words}"));
        }
        for update in self.renderer.begin_compaction() {
            self.tell(update).await;
        }
        let compacted = self.conversation.compact(count, false).await;
        if !matches!(compacted, Ok(Some(_))) {
            let outcome = match compacted {
                Ok(_) => CompactionStatus::Cancelled,
                Err(_) => CompactionStatus::Failed,
            };
            if let Some(update) = self.renderer.end_compaction(outcome) {
                self.tell(update).await;
            }
        }
        match compacted {
            Ok(None) => Obeyed::Answer("There is nothing to compact yet.".to_owned()),
            Ok(Some(event)) => {
                for update in self.renderer.hear(&event) {
                    self.tell(update).await;
                }
                let words = match event.fact() {
                    Some(Canonical::HistoryCompaction(compaction)) => compaction.words(),
                    _ => String::new(),
                };
                Obeyed::Answer(format!("Done: {words}."))
            }
            Err(error) => Obeyed::Answer(format!("\u{26a0} {}", Report::describe(&error).message)),
        }
    }

    /// Switches to a new Harness after a sign-in or sign-out.
    pub(super) async fn renew(&mut self) -> Result<(), Fault> {
        let generation = self.connection.generation();
        if generation == self.generation {
            return Ok(());
        }
        let harness = self.connection.harness(self.conversation.workspace()).await;
        let harness = harness.map_err(|report| fault::of(&report))?;
        self.conversation = harness.adopt(&self.conversation, &self.harness);
        self.harness = harness;
        self.generation = generation;
        Ok(())
    }
}
