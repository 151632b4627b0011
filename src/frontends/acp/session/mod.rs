//! The task of a Session: runs its prompts one after the other, and handles other messages at once.
//!
//! It never blocks on a Turn: it listens to the Turn's Events and to the client alike, so a cancel, a
//! change of mode or a close is handled while a Turn runs.

mod composing_prompt;
mod opening;
mod rewind_and_fork;
mod running_prompt;
mod settings;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{PromptResponse, SessionUpdate, StopReason};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

pub use opening::{OpenTarget, fork_session, open_session};

use super::capabilities::ClientCapabilities;
use super::client_files::EditorStatus;
use super::commands;
use super::connection::ClientConnection;
use super::content::{ComposedPrompt, PromptContent};
use super::error;
use super::inbox::Inbox;
use super::question::{self, ClientAnswer};
use super::responder::Responder;
use super::to_acp::{self, UpdateRenderer};
use crate::agent::conversation::Conversation;
use crate::agent::harness::Harness;
use crate::base::id::{CallId, EventId, SessionId};
use crate::host::rpc::RpcError;
use crate::record::event::{
    Canonical, EventKind, Listener, ListenerItem, PermissionAnswer, PermissionRequest,
    PermissionResponse, SessionStatus, SharedEvent,
};
use composing_prompt::ComposingPrompt;
use running_prompt::RunningPrompt;
use settings::SlashCommandOutcome;

/// How many prompts may wait for the current Turn.
const MOST_WAITING: usize = 64;

/// How often the activity of running children is sent.
const CHILDREN_INTERVAL: Duration = Duration::from_secs(1);

/// How long a Turn may take to end when the Session is closed.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// What wakes the task.
enum Wake {
    Message(Inbox),
    /// Every handle of the task was dropped.
    Disconnected,
    Item(Option<ListenerItem>),
    /// `None` when the question was cancelled.
    Replied(Option<QuestionReply>),
    /// A prompt was composed.
    Composed(Result<ComposedPrompt, JoinError>),
    Announce,
    /// It is time to send the activity of running children.
    ShowChildren,
}

/// The client's answer to a permission question.
struct QuestionReply {
    /// The number of the question's request.
    number: u64,
    answer: ClientAnswer,
}

/// A permission question that the client has not answered.
struct ClientQuestion {
    call_id: CallId,
    /// The number of its request, by which it is cancelled.
    number: u64,
    /// Whether a child asks; such a question does not end with the Turn.
    is_childs: bool,
}

/// The actor of a Session that the client has open.
pub struct Actor {
    connection: Arc<ClientConnection>,
    client: ClientCapabilities,
    id: SessionId,
    harness: Arc<Harness>,
    /// The connection's generation when `harness` was opened; a later one means another credential.
    generation: u64,
    conversation: Conversation,
    renderer: UpdateRenderer,
    /// The prompt that is being composed; its Turn begins next.
    composing: Option<ComposingPrompt>,
    running: Option<RunningPrompt>,
    waiting: VecDeque<(Responder, PromptContent)>,
    /// Settings and loads that arrived after the prompt that is being composed, and are handled after it.
    deferred: VecDeque<Inbox>,
    /// Tasks that wait for the answers of the client.
    questions: JoinSet<QuestionReply>,
    /// Open questions, to cancel those that are answered elsewhere.
    open_questions: Vec<ClientQuestion>,
    /// The listener while no prompt runs, because children may still run.
    idle_listener: Option<Listener>,
    /// When to send the activity of children next.
    show_children_at: Option<Instant>,
    /// When to send commands, title and usage of the Session to the client.
    announce_at: Option<Instant>,
    /// Notices for the user that were not sent yet.
    notes: Vec<String>,
    /// Whether the client answers file requests.
    editor_status: EditorStatus,
    was_prompted: bool,
}

impl Actor {
    /// The actor of an open Session, with its Harness and the generation in which that was opened.
    pub fn new(
        connection: Arc<ClientConnection>,
        client: ClientCapabilities,
        (harness, generation): (Arc<Harness>, u64),
        conversation: Conversation,
        editor_status: EditorStatus,
    ) -> Self {
        let notes = conversation.notices().to_vec();
        let window = conversation.window();
        let renderer = UpdateRenderer::new(conversation.workspace().to_owned(), client, window);
        Self {
            generation,
            connection,
            client,
            id: conversation.id().clone(),
            harness,
            conversation,
            renderer,
            composing: None,
            running: None,
            waiting: VecDeque::new(),
            deferred: VecDeque::new(),
            questions: JoinSet::new(),
            open_questions: Vec::new(),
            idle_listener: None,
            show_children_at: None,
            announce_at: None,
            notes,
            editor_status,
            was_prompted: false,
        }
    }

    /// The id of the Session.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Runs until the Session is closed or every handle was dropped.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Inbox>) {
        let closed = loop {
            match self.next(&mut inbox).await {
                Wake::Message(Inbox::Close { closed }) => break Some(closed),
                Wake::Disconnected => break None,
                Wake::Message(message) => self.handle(message).await,
                Wake::Item(item) => self.handle_event(item).await,
                Wake::Replied(Some(reply)) => self.handle_reply(reply).await,
                Wake::Replied(None) => {}
                Wake::Composed(composed) => self.finish_composing(composed).await,
                Wake::Announce => self.send_session_state().await,
                Wake::ShowChildren => self.show_children().await,
            }
            self.handle_deferred().await;
        };
        self.cancel_and_drain().await;
        self.shut_down(inbox).await;
        if let Some(closed) = closed {
            closed.send(()).ok();
        }
    }

    async fn next(&mut self, inbox: &mut mpsc::Receiver<Inbox>) -> Wake {
        let item = async {
            match (&mut self.running, &mut self.idle_listener) {
                (Some(running), _) => running.listener.next().await,
                (None, Some(listener)) => listener.next().await,
                (None, None) => std::future::pending().await,
            }
        };
        let composed = async {
            match &mut self.composing {
                Some(composing) => composing.wait_finished().await,
                None => std::future::pending().await,
            }
        };
        let look_at = self.show_children_at;
        let children_tick = async {
            match look_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let announce_at = self.announce_at;
        let announce = async {
            match announce_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            message = inbox.recv() => message.map_or(Wake::Disconnected, Wake::Message),
            Some(reply) = self.questions.join_next() => Wake::Replied(reply.ok()),
            item = item => Wake::Item(item),
            composed = composed => Wake::Composed(composed),
            () = announce => Wake::Announce,
            () = children_tick => Wake::ShowChildren,
        }
    }

    /// Handles a message.
    pub async fn handle(&mut self, message: Inbox) {
        match message {
            Inbox::Prompt { responder, prompt } => {
                self.run_or_queue_prompt(responder, prompt).await;
            }
            Inbox::Cancel => self.cancel().await,
            Inbox::Withdraw { key } => self.withdraw_request(&key).await,
            Inbox::Set { .. } | Inbox::Load { .. } | Inbox::Resume { .. } => {
                if self.composing.is_some() {
                    self.defer(message).await;
                } else {
                    self.apply_message(message).await;
                }
            }
            // Handled by `run`.
            Inbox::Close { .. } => {}
        }
    }

    /// Defers a message until the prompt before it is composed. The task does not wait here, so that it
    /// can handle a cancel meanwhile.
    async fn defer(&mut self, message: Inbox) {
        if self.deferred.len() == MOST_WAITING {
            let fault = RpcError::invalid_request("too many requests wait in this Session");
            return message.refuse(fault).await;
        }
        self.deferred.push_back(message);
    }

    /// Handles the messages after a prompt, once that is composed or cancelled.
    async fn handle_deferred(&mut self) {
        while self.composing.is_none() {
            let Some(message) = self.deferred.pop_front() else { return };
            self.apply_message(message).await;
        }
    }

    /// Changes a setting, or answers a load or resume.
    async fn apply_message(&mut self, message: Inbox) {
        match message {
            Inbox::Set { responder, setting } => self.set_option(responder, setting).await,
            Inbox::Load { responder, setup } => match self.reapply_setup(&setup) {
                Ok(()) => self.load_session(responder).await,
                Err(fault) => responder.answer(Err::<(), _>(fault)).await,
            },
            Inbox::Resume { responder, setup } => match self.reapply_setup(&setup) {
                Ok(()) => self.resume_session(responder).await,
                Err(fault) => responder.answer(Err::<(), _>(fault)).await,
            },
            Inbox::Prompt { .. } | Inbox::Cancel | Inbox::Withdraw { .. } | Inbox::Close { .. } => {
            }
        }
    }

    /// Cancels the Turn and handles its last Events, so that the client sees how it ended.
    async fn cancel_and_drain(&mut self) {
        self.cancel().await;
        let winding_up = async {
            while let Some(running) = &mut self.running {
                let item = running.listener.next().await;
                self.handle_event(item).await;
            }
        };
        tokio::time::timeout(CLOSE_GRACE, winding_up).await.ok();
    }

    /// Ends the running and waiting prompts, and unlocks the Log. The Session has been removed from the
    /// connection before.
    async fn shut_down(mut self, mut inbox: mpsc::Receiver<Inbox>) {
        inbox.close();
        self.connection.set_directories(&self.id, Vec::new());
        self.take_back_questions().await;
        for (responder, _) in self.waiting.drain(..) {
            responder.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        for message in std::mem::take(&mut self.deferred) {
            message.refuse(error::unknown_session(&self.id.to_string())).await;
        }
        let running = self.running.take();
        // The Turn ends and the Log is unlocked before the prompt is answered.
        self.conversation.close().await;
        if let Some(running) = running {
            running.responder.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        while let Some(message) = inbox.recv().await {
            match message {
                // A second close finds the Session closed.
                Inbox::Close { closed } => drop(closed.send(())),
                other => other.refuse(error::unknown_session(&self.id.to_string())).await,
            }
        }
    }

    async fn send_update(&self, update: SessionUpdate) {
        self.connection.send_update(&self.id, update).await;
    }

    /// Runs a prompt, or queues it after the running one.
    async fn run_or_queue_prompt(&mut self, responder: Responder, prompt: PromptContent) {
        if self.running.is_none() && self.composing.is_none() {
            return self.begin_prompt(responder, prompt).await;
        }
        if self.waiting.len() == MOST_WAITING {
            let fault = RpcError::invalid_request("too many prompts wait in this Session");
            return responder.answer(Err::<(), _>(fault)).await;
        }
        self.waiting.push_back((responder, prompt));
    }

    async fn begin_prompt(&mut self, responder: Responder, mut prompt: PromptContent) {
        if !std::mem::replace(&mut self.was_prompted, true) {
            // A client that was not ready for the list of commands the first time is now.
            self.announce_at = None;
            self.send_commands().await;
        }
        self.send_notices().await;
        if let Some(action) = commands::parse_command(prompt.first_text()) {
            match self.run_command(action).await {
                SlashCommandOutcome::Answer(words) => {
                    let id = EventId::mint().to_string();
                    self.send_update(SessionUpdate::AgentMessageChunk(to_acp::chunk(&id, &words)))
                        .await;
                    return responder.answer(Ok(PromptResponse::new(StopReason::EndTurn))).await;
                }
                SlashCommandOutcome::Prompt(rest) => prompt = prompt.beginning_with(&rest),
            }
            if prompt.is_empty() {
                return responder.answer(Ok(PromptResponse::new(StopReason::EndTurn))).await;
            }
        }
        let expanded = self.conversation.expand(prompt.first_text().to_owned()).await;
        prompt = prompt.beginning_with(&expanded.text);
        self.notes.extend(expanded.notices);
        self.send_notices().await;
        if let Err(fault) = self.refresh_harness().await {
            let id = EventId::mint().to_string();
            self.send_update(to_acp::failure_update(&id, &fault.message)).await;
            return responder.answer(Err::<(), _>(fault)).await;
        }
        self.conversation = self.harness.with_new_budget(&self.conversation);
        self.start_composing(responder, prompt);
    }

    /// Cancels the Turn, and every prompt that was sent before.
    async fn cancel(&mut self) {
        for (responder, _) in std::mem::take(&mut self.waiting) {
            responder.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        if let Some(composing) = self.composing.take() {
            composing.cancel().await;
        }
        self.stop_turn();
    }

    async fn withdraw_request(&mut self, key: &str) {
        if self.running.as_ref().is_some_and(|running| running.responder.key() == key) {
            self.stop_turn();
        }
        let is_named = |composing: &mut ComposingPrompt| composing.responder.key() == key;
        if let Some(composing) = self.composing.take_if(is_named) {
            composing.cancel().await;
        }
        // A client that reuses an id cancels all requests with it.
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (named, others): (VecDeque<_>, VecDeque<_>) =
            waiting.partition(|(responder, _)| responder.key() == key);
        self.waiting = others;
        for (responder, _) in named {
            responder.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        self.begin_next().await;
    }

    fn stop_turn(&mut self) {
        match &mut self.running {
            Some(running) => running.stop(&self.conversation),
            // Without a Turn, the children that still run are cancelled.
            None => drop(tokio::spawn(self.harness.cancel_children(&self.conversation))),
        }
    }

    /// Handles an Event of the Session.
    async fn handle_event(&mut self, item: Option<ListenerItem>) {
        let actions = match &mut self.running {
            Some(running) => running.handle_event(item),
            None => self.handle_idle_event(item),
        };
        if actions.event.as_ref().is_some_and(is_subagent_event) {
            self.show_children_at.get_or_insert_with(|| Instant::now() + CHILDREN_INTERVAL);
        }
        if let Some(event) = &actions.event {
            self.load_image(event).await;
            for update in self.renderer.render_event(event) {
                self.send_update(update).await;
            }
        }
        if let Some(report) = actions.failed {
            let id = EventId::mint().to_string();
            self.send_update(to_acp::failure_update(&id, &error::report_text(&report))).await;
        }
        if let Some(request) = actions.request {
            self.ask_client(*request).await;
        }
        if let Some(call_id) = actions.settled {
            self.close_question(&call_id).await;
        }
        if let Some(status) = actions.over {
            self.finish_prompt(&status).await;
        }
    }

    /// Loads the image of a result for the client.
    async fn load_image(&mut self, event: &SharedEvent) {
        let Some(Canonical::ToolResult(result)) = event.fact() else { return };
        let Some(resource) = to_acp::image_of(result) else { return };
        let conversation = self.conversation.clone();
        let load = move || to_acp::Attachments::load_result_image(&conversation, &resource);
        if let Ok(image) = tokio::task::spawn_blocking(load).await {
            self.renderer.expect_image(image);
        }
    }

    /// Handles an Event while no prompt runs; only children run then.
    fn handle_idle_event(&mut self, item: Option<ListenerItem>) -> running_prompt::EventActions {
        let event = match item {
            Some(ListenerItem::Event(event)) => event,
            Some(ListenerItem::Missed(_)) => return running_prompt::EventActions::default(),
            None => {
                self.idle_listener = None;
                return running_prompt::EventActions::default();
            }
        };
        let actions = running_prompt::EventActions::from_event(&event);
        let failed = match &actions.over {
            Some(SessionStatus::Error { error, .. }) => Some(error.clone()),
            _ => None,
        };
        running_prompt::EventActions {
            event: Some(event).filter(is_subagent_event),
            over: None,
            failed,
            ..actions
        }
    }

    /// Sends the activity of children, and schedules the next time while some run.
    async fn show_children(&mut self) {
        let children = self.harness.children(&self.conversation).await;
        let is_busy = children.iter().any(|view| !view.record.status.is_over());
        self.show_children_at = is_busy.then(|| Instant::now() + CHILDREN_INTERVAL);
        for update in self.renderer.render_children(&children) {
            self.send_update(update).await;
        }
    }

    /// Answers the prompt, after all of its updates, and begins the next one.
    async fn finish_prompt(&mut self, status: &SessionStatus) {
        let Some(mut running) = self.running.take() else { return };
        let over: Vec<ClientQuestion> =
            self.open_questions.extract_if(.., |open| !open.is_childs).collect();
        // Questions are cancelled before their prompt is answered.
        for open in over {
            self.connection.peer.cancel_request(open.number).await;
        }
        // A cancel that is still in flight would hit the next Turn.
        running.wait_stopped().await;
        let outcome = running.stop_reason(status);
        if let (Err(fault), false) = (&outcome, running.is_reported()) {
            let id = EventId::mint().to_string();
            self.send_update(to_acp::failure_update(&id, &fault.message)).await;
        }
        // Notices from this Turn, such as a server that did not start, are sent before its answer.
        self.send_notices().await;
        self.idle_listener = Some(running.listener);
        running.responder.answer(outcome.map(PromptResponse::new)).await;
        self.begin_next().await;
    }

    /// Begins the next waiting prompt, unless one runs.
    async fn begin_next(&mut self) {
        while self.running.is_none() && self.composing.is_none() {
            // Messages that were deferred by the previous prompt are handled first.
            self.handle_deferred().await;
            let Some((responder, prompt)) = self.waiting.pop_front() else { return };
            self.begin_prompt(responder, prompt).await;
        }
    }

    /// Sends a permission question to the client, without a time limit.
    async fn ask_client(&mut self, request: PermissionRequest) {
        if self.open_questions.iter().any(|open| open.call_id == request.call_id) {
            return;
        }
        let is_childs = request.agent.is_some();
        if is_childs {
            self.send_update(to_acp::child::question_call(&request, self.conversation.workspace()))
                .await;
        }
        let question =
            question::permission_request(&self.id, &request, self.conversation.workspace());
        let answer =
            self.connection.peer.send_request("session/request_permission", &question).await;
        let (call_id, number) = (request.call_id.clone(), answer.number());
        // The task of a cancelled question ends with a reply that is ignored.
        self.questions.spawn(async move {
            let answer = question::parse_answer(&answer.await, &request);
            QuestionReply { number, answer }
        });
        self.open_questions.push(ClientQuestion { call_id, number, is_childs });
    }

    async fn handle_reply(&mut self, reply: QuestionReply) {
        let QuestionReply { number, answer } = reply;
        // An answer to a question of an earlier Turn must not stop the current one.
        let place = self.open_questions.iter().position(|open| open.number == number);
        let Some(place) = place else { return };
        let ClientQuestion { call_id, is_childs, .. } = self.open_questions.remove(place);
        let response = match answer {
            ClientAnswer::Response(response) => response,
            ClientAnswer::Cancelled => {
                self.stop_turn();
                PermissionResponse::from(PermissionAnswer::No)
            }
        };
        if is_childs {
            self.send_update(to_acp::child::settled_update(
                &call_id,
                response.answer != PermissionAnswer::No,
            ))
            .await;
        }
        // The question no longer exists when the Turn was stopped meanwhile.
        if let Err(error) = self.conversation.answer(&call_id, response).await {
            tracing::debug!(%error, "the question was settled elsewhere");
        }
    }

    /// Cancels the question of a call that was answered, here or elsewhere.
    async fn close_question(&mut self, call_id: &CallId) {
        let gone: Vec<ClientQuestion> =
            self.open_questions.extract_if(.., |open| open.call_id == *call_id).collect();
        for open in gone {
            self.connection.peer.cancel_request(open.number).await;
            if open.is_childs {
                self.send_update(to_acp::child::settled_update(call_id, false)).await;
            }
        }
    }

    /// Cancels all questions before it returns, so that none outlives its Turn.
    async fn take_back_questions(&mut self) {
        self.open_questions.clear();
        self.questions.shutdown().await;
    }
}

fn is_subagent_event(event: &SharedEvent) -> bool {
    matches!(event.kind(), EventKind::Canonical(Canonical::SubagentEvent(_)))
}
