//! Composing a prompt: its attachments are decoded, and linked files are opened here or by the client.

use std::time::Duration;

use agent_client_protocol_schema::v1::{PromptResponse, StopReason};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Actor;
use super::running_prompt::RunningPrompt;
use crate::agent::conversation::{Attachment, Conversation, UserInput};
use crate::base::error::Report;
use crate::base::id::EventId;
use crate::frontends::acp::content::{ComposedPrompt, PromptContent};
use crate::frontends::acp::error;
use crate::frontends::acp::responder::Responder;
use crate::frontends::acp::to_acp;
use crate::host::rpc::RpcError;

/// How long the client may take to send the linked files of one prompt.
const LINKED_FILES_TIMEOUT: Duration = Duration::from_secs(6);

/// A prompt that is being composed on a blocking thread.
pub struct ComposingPrompt {
    pub responder: Responder,
    context: Option<String>,
    task: JoinHandle<ComposedPrompt>,
    /// When to stop waiting for files from the client.
    limit: Instant,
    cancel_links: CancellationToken,
}

impl ComposingPrompt {
    fn start(conversation: &Conversation, responder: Responder, mut prompt: PromptContent) -> Self {
        let context = prompt.context.take();
        let context = context.map(|text| format!("Context from the user's editor:\n{text}"));
        let cancel_links = CancellationToken::new();
        let files = conversation.link_resolver(cancel_links.clone());
        let workspace = conversation.workspace().to_owned();
        let compose = move || prompt.compose(&workspace, |path| files.resolve(path));
        let task = tokio::task::spawn_blocking(compose);
        Self {
            responder,
            context,
            task,
            limit: Instant::now() + LINKED_FILES_TIMEOUT,
            cancel_links,
        }
    }

    /// Waits for the result. Cancel-safe.
    pub async fn wait_finished(&mut self) -> Result<ComposedPrompt, JoinError> {
        if let Ok(composed) = tokio::time::timeout_at(self.limit, &mut self.task).await {
            return composed;
        }
        self.cancel_links.cancel();
        (&mut self.task).await
    }

    /// Cancels the prompt before its Turn begins.
    pub async fn cancel(self) {
        self.cancel_links.cancel();
        self.responder.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
    }
}

impl Actor {
    pub(super) fn start_composing(&mut self, responder: Responder, prompt: PromptContent) {
        self.composing = Some(ComposingPrompt::start(&self.conversation, responder, prompt));
    }

    /// Begins the Turn of a composed prompt.
    pub(super) async fn finish_composing(&mut self, composed: Result<ComposedPrompt, JoinError>) {
        let Some(ComposingPrompt { responder, context, .. }) = self.composing.take() else {
            return;
        };
        match composed {
            Ok(composed) => self.send_prompt(responder, composed, context).await,
            Err(error) => {
                let fault = RpcError::internal(format!("the prompt cannot be read: {error}"));
                responder.answer(Err::<(), _>(fault)).await;
            }
        }
        self.begin_next().await;
    }

    /// Starts the Turn of a `session/prompt` request.
    async fn send_prompt(
        &mut self,
        responder: Responder,
        composed: ComposedPrompt,
        context: Option<String>,
    ) {
        if composed.attachments.iter().any(Attachment::is_image) && !self.conversation.sees_images()
        {
            let model = self.conversation.model();
            self.notes.push(format!("{model} takes no images: it only gets descriptions of them"));
            self.send_notices().await;
        }
        let held = self.conversation.recent_history().await;
        let item = held.ok().and_then(|history| history.last_seq());
        let listener = self.idle_listener.take();
        let running = RunningPrompt::new(responder, &self.conversation, listener, item);
        let input = UserInput { text: composed.text };
        let sent = self.conversation.send_with_context(input, composed.attachments, context).await;
        match sent {
            Ok(()) => self.running = Some(running),
            Err(error) => {
                let report = Report::describe(&error);
                let id = EventId::mint().to_string();
                self.send_update(to_acp::failure_update(&id, &error::report_text(&report))).await;
                running.responder.answer(Err::<(), _>(error::from_report(&report))).await;
            }
        }
    }
}
