//! The task of a Session: its prompts one after the other, and everything else at once.
//!
//! It never waits for a Turn. A Turn is something that is listened to, like the client: so a
//! cancel, another mode or a close is heard whatever runs.

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
use crate::conversation::Conversation;
use crate::event::{
    Answer, Canonical, EventKind, Heard, Listener, PermissionRequest, Said, SharedEvent, Status,
};
use crate::harness::Harness;
use crate::id::{CallId, EventId, SessionId};
use crate::rpc::Fault;
use composing::Composing;
use running::Running;
use setting::Obeyed;

/// How many prompts may wait behind a Turn.
const MOST_WAITING: usize = 64;

/// How often children that work are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long a Turn may take to end when its Session is closed.
const WINDING_UP: Duration = Duration::from_secs(2);

/// What can wake the task.
enum Wake {
    Message(Inbox),
    /// The client is gone, and so is everybody who could ask for anything.
    Alone,
    Heard(Option<Heard>),
    /// `None` when the question was taken back.
    Replied(Option<Reply>),
    /// A prompt is put together.
    Composed(Result<Composed, JoinError>),
    Announce,
    /// Children are at work: it is time to look at them.
    Look,
}

/// An answer to a question: which one, and what was said.
struct Reply {
    /// Of the question, by which it was asked.
    number: u64,
    said: Replied,
}

/// A question that the client has not answered.
struct Open {
    call_id: CallId,
    /// What to take it back by.
    number: u64,
    /// It is a child's, and not over with the Turn.
    is_childs: bool,
}

/// A Session that the client has open.
pub struct Actor {
    connection: Arc<Connection>,
    client: Client,
    id: SessionId,
    harness: Arc<Harness>,
    /// When that was: who pays may have changed since.
    generation: u64,
    conversation: Conversation,
    renderer: Renderer,
    /// The prompt whose Turn begins next.
    composing: Option<Composing>,
    running: Option<Running>,
    waiting: VecDeque<(Ticket, Prompt)>,
    /// Settings and loads that were sent behind the prompt that is being put together, and come after it.
    parked: VecDeque<Inbox>,
    /// Questions that the client has not answered.
    questions: JoinSet<Reply>,
    /// By these, one that is settled elsewhere is taken back.
    open: Vec<Open>,
    /// Heard while no prompt runs: children go on.
    lingering: Option<Listener>,
    /// When children are looked at.
    look_at: Option<Instant>,
    /// When the client can be told what belongs to the Session.
    announce_at: Option<Instant>,
    /// What the user should know, and was not told yet.
    notes: Vec<String>,
    /// Whether the client answers for its files.
    silence: Silence,
    was_prompted: bool,
}

impl Actor {
    /// The task of a Session that is open, with its Harness and when that was looked up.
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

    /// Which Session it is.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Lives until the Session is closed or nobody is left who could close it.
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

    /// Does what a message asks for.
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
            // The loop has taken it out.
            Inbox::Close { .. } => {}
        }
    }

    /// Keeps a message until the prompt that was sent before it is put together. It is not waited for here,
    /// so that a cancel behind it is heard.
    async fn park(&mut self, message: Inbox) {
        if self.parked.len() == MOST_WAITING {
            let fault = Fault::invalid_request("too many requests wait in this Session");
            return message.refuse(fault).await;
        }
        self.parked.push_back(message);
    }

    /// Does what was sent behind a prompt, once that is put together or given up.
    async fn handle_parked(&mut self) {
        while self.composing.is_none() {
            let Some(message) = self.parked.pop_front() else { return };
            self.adjust(message).await;
        }
    }

    /// Changes a setting, or tells how the Session is set.
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

    /// Ends what runs as a cancel does, so that the client sees how it ended.
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

    /// Ends everything: what runs, what waits, and the Session's hold on its Log. Whoever closed it
    /// has made it unknown to the client before.
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
        // The Turn ends before its prompt is answered, and the Log is free before anybody hears of it.
        self.conversation.close().await;
        if let Some(running) = running {
            running.ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        while let Some(message) = inbox.recv().await {
            match message {
                // Two may want to close it; the second finds it closed.
                Inbox::Close { closed } => drop(closed.send(())),
                other => other.refuse(fault::unknown_session(&self.id.to_string())).await,
            }
        }
    }

    async fn tell(&self, update: SessionUpdate) {
        self.connection.tell(&self.id, update).await;
    }

    /// Runs a prompt, or puts it behind the one that runs.
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
            // Clients that were not ready for the list the first time are now.
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

    /// Ends the Turn, and every prompt that was sent before this.
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
        // A client that gives one id to two requests means both.
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
            // Children that go on after their Turn are what there is to cancel.
            None => drop(tokio::spawn(self.harness.cancel_children(&self.conversation))),
        }
    }

    /// Takes in what the Turn does.
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

    /// Reads the image of a result, which the client is shown.
    async fn load_image(&mut self, event: &SharedEvent) {
        let Some(Canonical::ToolResult(result)) = event.fact() else { return };
        let Some(resource) = to_acp::image_of(result) else { return };
        let conversation = self.conversation.clone();
        let load = move || to_acp::Attached::of_result(&conversation, &resource);
        if let Ok(image) = tokio::task::spawn_blocking(load).await {
            self.renderer.expect_image(image);
        }
    }

    /// Takes in what happens while no prompt runs: only children do anything then.
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

    /// Shows what children do, as long as some work.
    async fn look(&mut self) {
        let children = self.harness.children(&self.conversation).await;
        let is_busy = children.iter().any(|view| !view.record.status.is_over());
        self.look_at = is_busy.then(|| Instant::now() + LOOK);
        for update in self.renderer.look(&children) {
            self.tell(update).await;
        }
    }

    /// Answers the prompt, after everything that was said about it, and turns to the next.
    async fn finish(&mut self, status: &Status) {
        let Some(mut running) = self.running.take() else { return };
        let over: Vec<Open> = self.open.extract_if(.., |open| !open.is_childs).collect();
        // The client hears that they are over before it hears that their Turn is.
        for open in over {
            self.connection.peer.take_back(open.number).await;
        }
        // A cancel that is still on its way would hit the next Turn.
        running.stopped().await;
        let outcome = running.outcome(status);
        if let (Err(fault), false) = (&outcome, running.is_told()) {
            let id = EventId::mint().to_string();
            self.tell(to_acp::failure(&id, &fault.message)).await;
        }
        // What was found out meanwhile, such as a server that did not start, is told with its Turn.
        self.tell_notes().await;
        self.lingering = Some(running.listener);
        running.ticket.answer(outcome.map(PromptResponse::new)).await;
        self.begin_next().await;
    }

    /// Begins with the prompt that waited longest, unless one runs.
    async fn begin_next(&mut self) {
        while self.running.is_none() && self.composing.is_none() {
            // What was sent behind the prompt before this one comes before it.
            self.handle_parked().await;
            let Some((ticket, prompt)) = self.waiting.pop_front() else { return };
            self.begin(ticket, prompt).await;
        }
    }

    /// Puts a question to the client; it may take as long as the user does.
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
        // The task of a question that is taken back ends with a reply that nobody waits for.
        self.questions.spawn(async move {
            let said = ask::replied(&answer.await, &asked);
            Reply { number, said }
        });
        self.open.push(Open { call_id, number, is_childs });
    }

    async fn reply(&mut self, reply: Reply) {
        let Reply { number, said } = reply;
        // What is said to a question of a Turn that is over must not stop the next one.
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
        // It is gone when the Turn was stopped in the meantime.
        if let Err(error) = self.conversation.answer(&call_id, said).await {
            tracing::debug!(%error, "the question was settled elsewhere");
        }
    }

    /// A question that was settled, here or elsewhere, is not asked any more.
    async fn settle(&mut self, call_id: &CallId) {
        let gone: Vec<Open> = self.open.extract_if(.., |open| open.call_id == *call_id).collect();
        for open in gone {
            self.connection.peer.take_back(open.number).await;
            if open.is_childs {
                self.tell(to_acp::child::settled(call_id, false)).await;
            }
        }
    }

    /// They are taken back when this returns, so that no question outlives its Turn.
    async fn take_back_questions(&mut self) {
        self.open.clear();
        self.questions.shutdown().await;
    }
}

fn is_life(event: &SharedEvent) -> bool {
    matches!(event.kind(), EventKind::Canonical(Canonical::SubagentEvent(_)))
}
