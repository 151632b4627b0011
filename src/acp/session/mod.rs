//! The task of a Session: its prompts one after the other, and everything else at once.
//!
//! It never waits for a Turn. A Turn is something that is listened to, like the client: so a
//! cancel, another mode or a close is heard whatever runs.

mod opening;
mod running;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    LoadSessionResponse, NewSessionResponse, NoticeSeverity, PromptResponse, ResumeSessionResponse,
    SessionUpdate, SetSessionConfigOptionResponse, SetSessionModeResponse, StopReason,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

pub use opening::{Which, open};

use super::ask::{self, Replied};
use super::client::Client;
use super::commands::{self, Order};
use super::content::Prompt;
use super::desk::{Desk, wire_id};
use super::inbox::Inbox;
use super::options::{self, Wish};
use super::ticket::Ticket;
use super::to_acp::{self, Renderer};
use super::{fault, options::model_of};
use crate::config::models::Model;
use crate::conversation::{Conversation, Input};
use crate::error::Report;
use crate::event::{Answer, Heard, PermissionRequest, Said};
use crate::harness::{Change, Harness};
use crate::id::{CallId, EventId, SessionId};
use crate::rpc::Fault;
use running::Running;

/// How many prompts may wait behind a Turn.
const MOST_WAITING: usize = 64;

/// Clients need a moment after the answer before they know the Session that it names.
const SETTLING: Duration = Duration::from_millis(150);

/// What can wake the task.
enum Wake {
    Message(Inbox),
    /// The client is gone, and so is everybody who could ask for anything.
    Alone,
    Heard(Option<Heard>),
    /// `None` when the question was taken back.
    Replied(Option<Reply>),
    Announce,
}

/// An answer to a question: which one, and what was said.
struct Reply {
    call_id: CallId,
    said: Replied,
}

/// A Session that the client has open.
pub struct Actor {
    desk: Arc<Desk>,
    client: Client,
    id: SessionId,
    harness: Arc<Harness>,
    conversation: Conversation,
    renderer: Renderer,
    running: Option<Running>,
    waiting: VecDeque<(Ticket, Prompt)>,
    /// Questions that the client has not answered.
    questions: JoinSet<Reply>,
    /// By these, one that is settled elsewhere is taken back.
    open: Vec<(CallId, AbortHandle)>,
    /// When the client can be told what belongs to the Session.
    announce_at: Option<Instant>,
    /// What the user should know, and was not told yet.
    notes: Vec<String>,
    was_prompted: bool,
}

impl Actor {
    /// The task of a Session that is open.
    pub fn new(
        desk: Arc<Desk>,
        client: Client,
        harness: Arc<Harness>,
        conversation: Conversation,
        mut notes: Vec<String>,
    ) -> Self {
        notes.extend(conversation.notices().iter().cloned());
        let window = model_of(conversation.model(), &harness.models()).window();
        let renderer = Renderer::new(conversation.workspace().to_owned(), client, window);
        Self {
            desk,
            client,
            id: conversation.id().clone(),
            harness,
            conversation,
            renderer,
            running: None,
            waiting: VecDeque::new(),
            questions: JoinSet::new(),
            open: Vec::new(),
            announce_at: None,
            notes,
            was_prompted: false,
        }
    }

    /// Which Session it is.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Answers `session/new`.
    pub async fn introduce(&mut self, ticket: Ticket) {
        let models = self.harness.models();
        let response = NewSessionResponse::new(wire_id(&self.id))
            .modes(options::modes(&self.conversation))
            .config_options(options::options(&self.conversation, &models));
        ticket.answer(Ok(response)).await;
        self.announce_soon();
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
                Wake::Announce => self.announce().await,
            }
        };
        self.end(inbox).await;
        if let Some(closed) = closed {
            closed.send(()).ok();
        }
    }

    async fn next(&mut self, inbox: &mut mpsc::Receiver<Inbox>) -> Wake {
        let heard = async {
            match &mut self.running {
                Some(running) => running.listener.next().await,
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
            () = announce => Wake::Announce,
        }
    }

    /// Does what a message asks for.
    pub async fn handle(&mut self, message: Inbox) {
        match message {
            Inbox::Prompt { ticket, prompt } => self.prompt(ticket, prompt).await,
            Inbox::Cancel => self.cancel().await,
            Inbox::Withdraw { key } => self.withdraw(&key).await,
            Inbox::Set { ticket, wish } => self.set(ticket, wish).await,
            Inbox::Load { ticket } => self.load(ticket).await,
            Inbox::Resume { ticket } => self.resume(ticket).await,
            // The loop has taken it out.
            Inbox::Close { .. } => {}
        }
    }

    /// Ends everything: what runs, what waits, and the Session's hold on its Log.
    async fn end(mut self, mut inbox: mpsc::Receiver<Inbox>) {
        self.desk.dismiss(&self.id);
        inbox.close();
        self.take_back_questions();
        for (ticket, _) in self.waiting.drain(..) {
            ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
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
        self.desk.tell(&self.id, update).await;
    }

    fn announce_soon(&mut self) {
        self.announce_at = Some(Instant::now() + SETTLING);
    }

    /// Tells what belongs to the Session and is no answer to anything.
    async fn announce(&mut self) {
        self.announce_at = None;
        self.tell(commands::update()).await;
        if let Ok(history) = self.conversation.history().await {
            for update in self.renderer.standing(&history) {
                self.tell(update).await;
            }
        }
        if self.client.takes_notices {
            self.tell_notes().await;
        }
    }

    /// Tells the user what they should know: as notices, or as words before the first answer.
    async fn tell_notes(&mut self) {
        for note in std::mem::take(&mut self.notes) {
            let update = if self.client.takes_notices {
                to_acp::notice_update(NoticeSeverity::Warning, "Pixir", &note)
            } else {
                let id = EventId::mint().to_string();
                SessionUpdate::AgentMessageChunk(to_acp::chunk(&id, &format!("\u{26a0} {note}\n")))
            };
            self.tell(update).await;
        }
    }

    async fn load(&mut self, ticket: Ticket) {
        let history = match self.conversation.history().await {
            Ok(history) => history,
            Err(error) => {
                return ticket.answer(Err::<(), _>(fault::of(&Report::from(&error)))).await;
            }
        };
        let mut renderer = Renderer::new(
            self.conversation.workspace().to_owned(),
            self.client,
            self.renderer.window,
        );
        for update in renderer.replay(&history) {
            self.tell(update).await;
        }
        self.renderer = renderer;
        self.tell(commands::update()).await;
        let models = self.harness.models();
        let response = LoadSessionResponse::new()
            .modes(options::modes(&self.conversation))
            .config_options(options::options(&self.conversation, &models));
        ticket.answer(Ok(response)).await;
        self.announce_soon();
    }

    async fn resume(&mut self, ticket: Ticket) {
        if let Ok(history) = self.conversation.history().await {
            self.renderer.catch_up(&history);
        }
        let models = self.harness.models();
        let response = ResumeSessionResponse::new()
            .modes(options::modes(&self.conversation))
            .config_options(options::options(&self.conversation, &models));
        ticket.answer(Ok(response)).await;
        self.announce_soon();
    }

    async fn set(&mut self, ticket: Ticket, wish: Wish) {
        let models = self.harness.models();
        let changed = match wish.change(&self.conversation, &models) {
            Ok(change) => self.change(change, &models).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = changed {
            return ticket.answer(Err::<(), _>(fault)).await;
        }
        match wish {
            Wish::Mode(_) => ticket.answer(Ok(SetSessionModeResponse::new())).await,
            Wish::Model(_) => ticket.answer(Ok(json!({}))).await,
            Wish::Option { .. } => {
                let options = options::options(&self.conversation, &models);
                ticket.answer(Ok(SetSessionConfigOptionResponse::new(options))).await;
            }
        }
        for update in options::updates(&self.conversation, &models) {
            self.tell(update).await;
        }
    }

    async fn change(&mut self, change: Change, models: &[Model]) -> Result<(), Fault> {
        let changed = self.harness.change(&self.conversation, change).await;
        self.conversation = changed.map_err(|error| fault::of(&Report::from(&error)))?;
        self.renderer.window = model_of(self.conversation.model(), models).window();
        Ok(())
    }

    /// Runs a prompt, or puts it behind the one that runs.
    async fn prompt(&mut self, ticket: Ticket, prompt: Prompt) {
        if self.running.is_none() {
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
            self.tell(commands::update()).await;
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
        let context = prompt.context.take();
        let composed = prompt.compose(self.conversation.workspace());
        let running = Running::new(ticket, &self.conversation);
        let input = Input { text: composed.text };
        let sent = self.conversation.send_in(input, composed.attachments, context).await;
        match sent {
            Ok(()) => self.running = Some(running),
            Err(error) => {
                let report = Report::from(&error);
                let id = EventId::mint().to_string();
                self.tell(to_acp::failure(&id, &fault::told(&report))).await;
                running.ticket.answer(Err::<(), _>(fault::of(&report))).await;
            }
        }
    }

    /// Does what a command asks for.
    async fn obey(&mut self, order: Order) -> Obeyed {
        let models = self.harness.models();
        let (wish, rest) = match order {
            Order::Plan { rest } => (Wish::Mode("plan".to_owned()), Some(rest)),
            Order::Model { name } if name.is_empty() => {
                let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                let (current, names) = (self.conversation.model(), names.join(", "));
                return Obeyed::Answer(format!("The model is {current}. There are: {names}."));
            }
            Order::Model { name } => (Wish::Model(name), None),
        };
        let changed = match wish.change(&self.conversation, &models) {
            Ok(change) => self.change(change, &models).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = changed {
            return Obeyed::Answer(format!("\u{26a0} {}", fault.message));
        }
        for update in options::updates(&self.conversation, &models) {
            self.tell(update).await;
        }
        match rest {
            Some(rest) if !rest.is_empty() => Obeyed::Prompt(rest),
            Some(_) => Obeyed::Answer("From now on I plan, and change nothing.".to_owned()),
            None => Obeyed::Answer(format!("The model is {} now.", self.conversation.model())),
        }
    }

    /// Ends the Turn, and every prompt that was sent before this.
    async fn cancel(&mut self) {
        for (ticket, _) in std::mem::take(&mut self.waiting) {
            ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
        self.stop();
    }

    async fn withdraw(&mut self, key: &str) {
        if self.running.as_ref().is_some_and(|running| running.ticket.key() == key) {
            return self.stop();
        }
        let place = self.waiting.iter().position(|(ticket, _)| ticket.key() == key);
        if let Some((ticket, _)) = place.and_then(|place| self.waiting.remove(place)) {
            ticket.answer(Ok(PromptResponse::new(StopReason::Cancelled))).await;
        }
    }

    fn stop(&mut self) {
        if let Some(running) = &mut self.running {
            running.stop(&self.conversation);
        }
    }

    /// Takes in what the Turn does.
    async fn hear(&mut self, heard: Option<Heard>) {
        let Some(running) = &mut self.running else { return };
        let told = running.hear(heard);
        if let Some(event) = &told.event {
            for update in self.renderer.hear(event) {
                self.tell(update).await;
            }
        }
        if let Some(asked) = told.asked {
            self.ask(*asked).await;
        }
        if let Some(call_id) = told.settled {
            self.settle(&call_id);
        }
        if let Some(status) = told.over {
            self.finish(&status).await;
        }
    }

    /// Answers the prompt, after everything that was said about it, and turns to the next.
    async fn finish(&mut self, status: &crate::event::Status) {
        let Some(running) = self.running.take() else { return };
        self.take_back_questions();
        let outcome = running.outcome(status);
        if let (Err(fault), false) = (&outcome, running.is_told()) {
            let id = EventId::mint().to_string();
            self.tell(to_acp::failure(&id, &fault.message)).await;
        }
        running.ticket.answer(outcome.map(PromptResponse::new)).await;
        while self.running.is_none() {
            let Some((ticket, prompt)) = self.waiting.pop_front() else { return };
            self.begin(ticket, prompt).await;
        }
    }

    /// Puts a question to the client; it may take as long as the user does.
    async fn ask(&mut self, asked: PermissionRequest) {
        if self.open.iter().any(|(open, _)| *open == asked.call_id) {
            return;
        }
        let question = ask::question(&self.id, &asked, self.conversation.workspace());
        let answer = self.desk.peer.ask("session/request_permission", &question).await;
        let call_id = asked.call_id.clone();
        // A question that is taken back is a task that is aborted: it drops the answer to come.
        let task = self.questions.spawn(async move {
            let said = ask::replied(&answer.await, &asked);
            Reply { call_id: asked.call_id, said }
        });
        self.open.push((call_id, task));
    }

    async fn reply(&mut self, reply: Reply) {
        let Reply { call_id, said } = reply;
        self.open.retain(|(open, _)| *open != call_id);
        let said = match said {
            Replied::Said(said) => said,
            Replied::Cancelled => {
                self.stop();
                Said::from(Answer::No)
            }
        };
        // It is gone when the Turn was stopped in the meantime.
        if let Err(error) = self.conversation.answer(&call_id, said).await {
            tracing::debug!(%error, "the question was settled elsewhere");
        }
    }

    /// A question that was settled, here or elsewhere, is not asked any more.
    fn settle(&mut self, call_id: &CallId) {
        for (_, task) in self.open.extract_if(.., |(open, _)| open == call_id) {
            task.abort();
        }
    }

    fn take_back_questions(&mut self) {
        self.open.clear();
        self.questions.abort_all();
    }
}

/// What became of a command.
enum Obeyed {
    /// It is done, and this is what there is to say.
    Answer(String),
    /// The rest of it is a prompt.
    Prompt(String),
}
