//! The task of a Session: runs its prompts one after the other, and handles other messages at once.
//!
//! It never blocks on a Turn: it listens to the Turn's Events and to the client alike, so a cancel, a
//! change of mode or a close is handled while a Turn runs.

mod branching;
mod composing;
mod opening;
mod running;
mod setting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{PromptResponse, SessionUpdate, StopReason};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

pub use opening::{Which, branch, open};

use super::ask::{self, Replied};
use super::client::Client;
use super::commands;
use super::connection::Connection;
use super::content::{Composed, Prompt};
use super::editor::Silence;
use super::fault;
use super::inbox::Inbox;
use super::ticket::Ticket;
use super::to_acp::{self, Renderer};
use crate::agent::conversation::Conversation;
use crate::agent::harness::Harness;
use crate::base::id::{CallId, EventId, SessionId};
use crate::host::rpc::Fault;
use crate::record::event::{
    Answer, Canonical, EventKind, Heard, Listener, PermissionRequest, Said, SharedEvent, Status,
};
use composing::Composing;
use running::Running;
use setting::Obeyed;

/// How many prompts may wait for the current Turn.
const MOST_WAITING: usize = 64;

/// How often the activity of running children is sent.
const LOOK: Duration = Duration::from_secs(1);

/// How long a Turn may take to end when the Session is closed.
const WINDING_UP: Duration = Duration::from_secs(2);

/// What wakes the task.
enum Wake {
    Message(Inbox),
    /// Every handle of the task was dropped.
    Alone,
    Heard(Option<Heard>),
    /// `None` when the question was cancelled.
    Replied(Option<Reply>),
    /// A prompt was composed.
    Composed(Result<Composed, JoinError>),
    Announce,
    /// It is time to send the activity of running children.
    Look,
}

/// The client's answer to a permission question.
struct Reply {
    /// The number of the question's request.
    number: u64,
    said: Replied,
}

/// A permission question that the client has not answered.
struct Open {
    call_id: CallId,
    /// The number of its request, by which it is cancelled.
    number: u64,
    /// Whether a child asks; such a question does not end with the Turn.
    is_childs: bool,
}

/// The actor of a Session that the client has open.
pub struct Actor {
    connection: Arc<Connection>,
    client: Client,
    id: SessionId,
    harness: Arc<Harness>,
    /// The connection's generation when `harness` was opened; a later one means another credential.
    generation: u64,
    conversation: Conversation,
    renderer: Renderer,
    /// The prompt that is being composed; its Turn begins next.
    composing: Option<Composing>,
    running: Option<Running>,
    waiting: VecDeque<(Ticket, Prompt)>,
    /// Settings and loads that arrived after the prompt that is being composed, and are handled after it.
    parked: VecDeque<Inbox>,
    /// Tasks that wait for the answers of the client.
    questions: JoinSet<Reply>,
    /// Open questions, to cancel those that are answered elsewhere.
    open: Vec<Open>,
    /// The listener while no prompt runs, because children may still run.
    lingering: Option<Listener>,
    /// When to send the activity of children next.
    look_at: Option<Instant>,
    /// When to send commands, title and usage of the Session to the client.
    announce_at: Option<Instant>,
    /// Notices for the user that were not sent yet.
    notes: Vec<String>,
    /// Whether the client answers file requests.
    silence: Silence,
    was_prompted: bool,
}

impl Actor {
    /// The actor of an open Session, with its Harness and the generation of that.
    pub fn new(
        connection: Arc<Connection>,
        client: Client,
        (harness, generation): (Arc<Harness>, u64),
        conversation: Conversation,
        silence: Silence,
    ) -> Self {
        let notes = conversation.notices().to_vec();
        let window = conversation.window();
        let renderer = Renderer::new(conversation.workspace().to_owned(), client, window);
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
            parked: VecDeque::new(),
            questions: JoinSet::new(),
            open: Vec::new(),
            lingering: None,
            look_at: None,
            announce_at: None,
            notes,
            silence,
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
                Wake::Alone => break None,
                Wake::Message(message) => self.handle(message).await,
                Wake::Heard(heard) => self.hear(heard).await,
                Wake::Replied(Some(reply)) => self.reply(reply).await,
                Wake::Replied(None) => {}
                Wake::Composed(composed) => self.composed(composed).await,
                Wake::Announce => self.announce().await,
                Wake::Look => self.look().await,
            }
            self.handle_parked().await;
        };
        self.wind_up().await;
        self.end(inbox).await;
        if let Some(closed) = closed {
            closed.send(()).ok();
        }
    }

    async fn next(&mut self, inbox: &mut mpsc::Receiver<Inbox>) -> Wake {
        let heard = async {
            match (&mut self.running, &mut self.lingering) {
                (Some(running), _) => running.listener.next().await,
                (None, Some(listener)) => listener.next().await,
                (None, None) => std::future::pending().await,
            }
        };
        let composed = async {
            match &mut self.composing {
                Some(composing) => composing.finished().await,
                None => std::future::pending().await,
            }
        };
        let look_at = self.look_at;
        let look = async {
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
            message = inbox.recv() => message.map_or(Wake::Alone, Wake::Message),
            Some(reply) = self.questions.join_next() => Wake::Replied(reply.ok()),
            heard = heard => Wake::Heard(heard),
            composed = composed => Wake::Composed(composed),
            () = announce => Wake::Announce,
            () = look => Wake::Look,
        }
    }

    /// Handles a message.
    pub async fn handle(&mut self, message: Inbox) {
        match message {
            Inbox::Prompt { ticket, prompt } => self.prompt(ticket, prompt).await,
            Inbox::Cancel => self.cancel().await,
            Inbox::Withdraw { key } => self.withdraw(&key).await,
            Inbox::Set { .. } | Inbox::Load { .. } | Inbox::Resume { .. } => {
                if self.composing.is_some() {
                    self.park(message).await;
                } else {
                    self.adjust(message).await;
                }
            }
            // Handled by `run`.
            Inbox::Close { .. } => {}
        }
    }

    /// Defers a message until the prompt before it is composed. The task does not wait here, so that it
    /// can handle a cancel meanwhile.
    async fn park(&mut self, message: Inbox) {
        if self.parked.len() == MOST_WAITING {
            let fault = Fault::invalid_request("too many requests wait in this Session");
            return message.refuse(fault).await;
        }
        self.parked.push_back(message);
    }

    /// Handles the messages after a prompt, once that is composed or cancelled.
    async fn handle_parked(&mut self) {
        while self.composing.is_none() {
            let Some(message) = self.parked.pop_front() else { return };
            self.adjust(message).await;
        }
    }

    /// Changes a setting, or answers a load or resume.
    async fn adjust(&mut self, message: Inbox) {
        match message {
            Inbox::Set { ticket, wish } => self.set(ticket, wish).await,
            Inbox::Load { ticket, setup } => match self.set_up_again(&setup) {
                Ok(()) => self.load(ticket).await,
                Err(fault) => ticket.answer(Err::<(), _>(fault)).await,
            },
            Inbox::Resume { ticket, setup } => match self.set_up_again(&setup) {
                Ok(()) => self.resume(ticket).await,
                Err(fault) => ticket.answer(Err::<(), _>(fault)).await,
            },
            Inbox::Prompt { .. } | Inbox::Cancel | Inbox::Withdraw { .. } | Inbox::Close { .. } => {
            }
        }
    }

    /// Cancels the Turn and handles its last Events, so that the client sees how it ended.
    async fn wind_up(&mut self) {
        self.cancel().await;
        let winding_up = async {
            while let Some(running) = &mut self.running {
                let heard = running.listener.next().await;
                self.hear(heard).await;
            }
        };
        tokio::time::timeout(WINDING_UP, winding_up).await.ok();
    }

    /// Ends the running and waiting prompts, and unlocks the Log. The Session has been removed from the
    /// connection before.
    async fn end(mut self, mut inbox: mpsc::Receiver<Inbox>) {
        inbox.close();
        self.connection.widen(&self.id, Vec::new());
        self.take_back_questions().await;
        for (ticket, _) in self.waiting.drain(..) {
            ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        for message in std::mem::take(&mut self.parked) {
            message.refuse(fault::unknown_session(&self.id.to_string())).await;
        }
        let running = self.running.take();
        // The Turn ends and the Log is unlocked before the prompt is answered.
        self.conversation.close().await;
        if let Some(running) = running {
            running.ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        while let Some(message) = inbox.recv().await {
            match message {
                // A second close finds the Session closed.
                Inbox::Close { closed } => drop(closed.send(())),
                other => other.refuse(fault::unknown_session(&self.id.to_string())).await,
            }
        }
    }

    async fn tell(&self, update: SessionUpdate) {
        self.connection.tell(&self.id, update).await;
    }

    /// Runs a prompt, or queues it after the running one.
    async fn prompt(&mut self, ticket: Ticket, prompt: Prompt) {
        if self.running.is_none() && self.composing.is_none() {
            return self.begin(ticket, prompt).await;
        }
        if self.waiting.len() == MOST_WAITING {
            let fault = Fault::invalid_request("too many prompts wait in this Session");
            return ticket.answer(Err::<(), _>(fault)).await;
        }
        self.waiting.push_back((ticket, prompt));
    }

    async fn begin(&mut self, ticket: Ticket, mut prompt: Prompt) {
        if !std::mem::replace(&mut self.was_prompted, true) {
            // A client that was not ready for the list of commands the first time is now.
            self.announce_at = None;
            self.tell_commands().await;
        }
        self.tell_notes().await;
        if let Some(order) = commands::order(prompt.first_text()) {
            match self.obey(order).await {
                Obeyed::Answer(words) => {
                    let id = EventId::mint().to_string();
                    self.tell(SessionUpdate::AgentMessageChunk(to_acp::chunk(&id, &words))).await;
                    return ticket.answer(Ok(PromptResponse::new(StopReason::EndTurn))).await;
                }
                Obeyed::Prompt(rest) => prompt = prompt.beginning_with(&rest),
            }
            if prompt.is_empty() {
                return ticket.answer(Ok(PromptResponse::new(StopReason::EndTurn))).await;
            }
        }
        let expanded = self.conversation.expand(prompt.first_text().to_owned()).await;
        prompt = prompt.beginning_with(&expanded.text);
        self.notes.extend(expanded.notices);
        self.tell_notes().await;
        if let Err(fault) = self.renew().await {
            let id = EventId::mint().to_string();
            self.tell(to_acp::failure(&id, &fault.message)).await;
            return ticket.answer(Err::<(), _>(fault)).await;
        }
        self.conversation = self.harness.afresh(&self.conversation);
        self.compose(ticket, prompt);
    }

    /// Cancels the Turn, and every prompt that was sent before.
    async fn cancel(&mut self) {
        for (ticket, _) in std::mem::take(&mut self.waiting) {
            ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        if let Some(composing) = self.composing.take() {
            composing.cancel().await;
        }
        self.stop();
    }

    async fn withdraw(&mut self, key: &str) {
        if self.running.as_ref().is_some_and(|running| running.ticket.key() == key) {
            self.stop();
        }
        let is_named = |composing: &mut Composing| composing.ticket.key() == key;
        if let Some(composing) = self.composing.take_if(is_named) {
            composing.cancel().await;
        }
        // A client that reuses an id cancels all requests with it.
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (named, others): (VecDeque<_>, VecDeque<_>) =
            waiting.partition(|(ticket, _)| ticket.key() == key);
        self.waiting = others;
        for (ticket, _) in named {
            ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        self.begin_next().await;
    }

    fn stop(&mut self) {
        match &mut self.running {
            Some(running) => running.stop(&self.conversation),
            // Without a Turn, the children that still run are cancelled.
            None => drop(tokio::spawn(self.harness.cancel_children(&self.conversation))),
        }
    }

    /// Handles an Event of the Session.
    async fn hear(&mut self, heard: Option<Heard>) {
        let told = match &mut self.running {
            Some(running) => running.hear(heard),
            None => self.overhear(heard),
        };
        if told.event.as_ref().is_some_and(is_life) {
            self.look_at.get_or_insert_with(|| Instant::now() + LOOK);
        }
        if let Some(event) = &told.event {
            self.load_image(event).await;
            for update in self.renderer.hear(event) {
                self.tell(update).await;
            }
        }
        if let Some(report) = told.failed {
            let id = EventId::mint().to_string();
            self.tell(to_acp::failure(&id, &fault::told(&report))).await;
        }
        if let Some(asked) = told.asked {
            self.ask(*asked).await;
        }
        if let Some(call_id) = told.settled {
            self.settle(&call_id).await;
        }
        if let Some(status) = told.over {
            self.finish(&status).await;
        }
    }

    /// Loads the image of a result for the client.
    async fn load_image(&mut self, event: &SharedEvent) {
        let Some(Canonical::ToolResult(result)) = event.fact() else { return };
        let Some(resource) = to_acp::image_of(result) else { return };
        let conversation = self.conversation.clone();
        let load = move || to_acp::Attached::of_result(&conversation, &resource);
        if let Ok(image) = tokio::task::spawn_blocking(load).await {
            self.renderer.expect_image(image);
        }
    }

    /// Handles an Event while no prompt runs; only children run then.
    fn overhear(&mut self, heard: Option<Heard>) -> running::Told {
        let event = match heard {
            Some(Heard::Event(event)) => event,
            Some(Heard::Missed(_)) => return running::Told::default(),
            None => {
                self.lingering = None;
                return running::Told::default();
            }
        };
        let told = running::Told::of(&event);
        let failed = match &told.over {
            Some(Status::Error { error, .. }) => Some(error.clone()),
            _ => None,
        };
        running::Told { event: Some(event).filter(is_life), over: None, failed, ..told }
    }

    /// Sends the activity of children, and schedules the next time while some run.
    async fn look(&mut self) {
        let children = self.harness.children(&self.conversation).await;
        let is_busy = children.iter().any(|view| !view.record.status.is_over());
        self.look_at = is_busy.then(|| Instant::now() + LOOK);
        for update in self.renderer.look(&children) {
            self.tell(update).await;
        }
    }

    /// Answers the prompt, after all of its updates, and begins the next one.
    async fn finish(&mut self, status: &Status) {
        let Some(mut running) = self.running.take() else { return };
        let over: Vec<Open> = self.open.extract_if(.., |open| !open.is_childs).collect();
        // Questions are cancelled before their prompt is answered.
        for open in over {
            self.connection.peer.take_back(open.number).await;
        }
        // A cancel that is still in flight would hit the next Turn.
        running.stopped().await;
        let outcome = running.outcome(status);
        if let (Err(fault), false) = (&outcome, running.is_told()) {
            let id = EventId::mint().to_string();
            self.tell(to_acp::failure(&id, &fault.message)).await;
        }
        // Notices from this Turn, such as a server that did not start, are sent before its answer.
        self.tell_notes().await;
        self.lingering = Some(running.listener);
        running.ticket.answer(outcome.map(PromptResponse::new)).await;
        self.begin_next().await;
    }

    /// Begins the next waiting prompt, unless one runs.
    async fn begin_next(&mut self) {
        while self.running.is_none() && self.composing.is_none() {
            // Messages that were deferred by the previous prompt are handled first.
            self.handle_parked().await;
            let Some((ticket, prompt)) = self.waiting.pop_front() else { return };
            self.begin(ticket, prompt).await;
        }
    }

    /// Sends a permission question to the client, without a time limit.
    async fn ask(&mut self, asked: PermissionRequest) {
        if self.open.iter().any(|open| open.call_id == asked.call_id) {
            return;
        }
        let is_childs = asked.agent.is_some();
        if is_childs {
            self.tell(to_acp::child::asked(&asked, self.conversation.workspace())).await;
        }
        let question = ask::question(&self.id, &asked, self.conversation.workspace());
        let answer = self.connection.peer.ask("session/request_permission", &question).await;
        let (call_id, number) = (asked.call_id.clone(), answer.number());
        // The task of a cancelled question ends with a reply that is ignored.
        self.questions.spawn(async move {
            let said = ask::replied(&answer.await, &asked);
            Reply { number, said }
        });
        self.open.push(Open { call_id, number, is_childs });
    }

    async fn reply(&mut self, reply: Reply) {
        let Reply { number, said } = reply;
        // An answer to a question of an earlier Turn must not stop the current one.
        let place = self.open.iter().position(|open| open.number == number);
        let Some(place) = place else { return };
        let Open { call_id, is_childs, .. } = self.open.remove(place);
        let said = match said {
            Replied::Said(said) => said,
            Replied::Cancelled => {
                self.stop();
                Said::from(Answer::No)
            }
        };
        if is_childs {
            self.tell(to_acp::child::settled(&call_id, said.answer != Answer::No)).await;
        }
        // The question no longer exists when the Turn was stopped meanwhile.
        if let Err(error) = self.conversation.answer(&call_id, said).await {
            tracing::debug!(%error, "the question was settled elsewhere");
        }
    }

    /// Cancels the question of a call that was answered, here or elsewhere.
    async fn settle(&mut self, call_id: &CallId) {
        let gone: Vec<Open> = self.open.extract_if(.., |open| open.call_id == *call_id).collect();
        for open in gone {
            self.connection.peer.take_back(open.number).await;
            if open.is_childs {
                self.tell(to_acp::child::settled(call_id, false)).await;
            }
        }
    }

    /// Cancels all questions before it returns, so that none outlives its Turn.
    async fn take_back_questions(&mut self) {
        self.open.clear();
        self.questions.shutdown().await;
    }
}

fn is_life(event: &SharedEvent) -> bool {
    matches!(event.kind(), EventKind::Canonical(Canonical::SubagentEvent(_)))
}
