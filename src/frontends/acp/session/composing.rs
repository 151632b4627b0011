//! Composing a prompt: its attachments are decoded, and linked files are opened here or by the client.

use std::time::Duration;

use agent_client_protocol_schema::v1::{PromptResponse, StopReason};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Actor;
use super::running::Running;
use crate::agent::conversation::{Attachment, Conversation, Input};
use crate::base::error::Report;
use crate::base::id::EventId;
use crate::frontends::acp::content::{Composed, Prompt};
use crate::frontends::acp::fault;
use crate::frontends::acp::ticket::Ticket;
use crate::frontends::acp::to_acp;
use crate::host::rpc::Fault;

/// How long the client may take to send the linked files of one prompt.
const LINKS: Duration = Duration::from_secs(6);

/// A prompt that is being composed on a blocking thread.
pub struct Composing {
    pub ticket: Ticket,
    context: Option<String>,
    task: JoinHandle<Composed>,
    /// When to stop waiting for files from the client.
    limit: Instant,
    late: CancellationToken,
}

impl Composing {
    fn start(conversation: &Conversation, ticket: Ticket, mut prompt: Prompt) -> Self {
        let context = prompt.context.take();
        let context = context.map(|said| format!("Context from the user's editor:\n{said}"));
        let late = CancellationToken::new();
        let files = conversation.linked_files(late.clone());
        let workspace = conversation.workspace().to_owned();
        let compose = move || prompt.compose(&workspace, |path| files.open(path));
        let task = tokio::task::spawn_blocking(compose);
        Self { ticket, context, task, limit: Instant::now() + LINKS, late }
    }

    /// Waits for the result. Cancel-safe.
    pub async fn finished(&mut self) -> Result<Composed, JoinError> {
        if let Ok(composed) = tokio::time::timeout_at(self.limit, &mut self.task).await {
            return composed;
        }
        self.late.cancel();
        (&mut self.task).await
    }

    /// Cancels the prompt before its Turn begins.
    pub async fn cancel(self) {
        self.late.cancel();
        self.ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
    }
}

impl Actor {
    pub(super) fn compose(&mut self, ticket: Ticket, prompt: Prompt) {
        self.composing = Some(Composing::start(&self.conversation, ticket, prompt));
    }

    /// Begins the Turn of a composed prompt.
    pub(super) async fn composed(&mut self, composed: Result<Composed, JoinError>) {
        let Some(Composing { ticket, context, .. }) = self.composing.take() else { return };
        match composed {
            Ok(composed) => self.send(ticket, composed, context).await,
            Err(error) => {
                let fault = Fault::internal(format!("the prompt cannot be read: {error}"));
                ticket.answer(Err::<(), _>(fault)).await;
            }
        }
        self.begin_next().await;
    }

    async fn send(&mut self, ticket: Ticket, composed: Composed, context: Option<String>) {
        if composed.attachments.iter().any(Attachment::is_image) && !self.conversation.sees_images()
        {
            let model = self.conversation.model();
            self.notes.push(format!("{model} takes no images: it only gets descriptions of them"));
            self.tell_notes().await;
        }
        let held = self.conversation.recent().await;
        let heard = held.ok().and_then(|history| history.last_seq());
        let listener = self.lingering.take();
        let running = Running::new(ticket, &self.conversation, listener, heard);
        let input = Input { text: composed.text };
        let sent = self.conversation.send_in(input, composed.attachments, context).await;
        match sent {
            Ok(()) => self.running = Some(running),
            Err(error) => {
                let report = Report::describe(&error);
                let id = EventId::mint().to_string();
                self.tell(to_acp::failure(&id, &fault::told(&report))).await;
                running.ticket.answer(Err::<(), _>(fault::of(&report))).await;
            }
        }
    }
}
