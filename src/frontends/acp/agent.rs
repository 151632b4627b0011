//! The agent: routes messages of the client to Sessions and tasks, and never waits for their work.

use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    AuthenticateResponse, CloseSessionResponse, DeleteSessionResponse, LogoutResponse,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::Client;
use super::connection::Connection;
use super::content::Prompt;
use super::inbox::{Inbox, channel};
use super::leaving::Leaving;
use super::listing::{self, Wanted};
use super::options::Wish;
use super::session::{self, Actor, Which};
use super::setup::{Setup, session_id};
use super::ticket::{Flight, Ticket};
use super::{fault, greeting};
use crate::agent::inspect;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::host::rpc::{CANCEL_REQUEST, Fault, Id, Message};

/// How long requests from before the shutdown may take to be answered.
const ANSWERING: Duration = Duration::from_millis(300);

/// How long everything that runs may take to end after the client has disconnected.
const CLOSING: Duration = Duration::from_secs(3);

/// The agent of one connection.
pub struct Agent {
    connection: Arc<Connection>,
    client: Client,
    is_greeted: bool,
    tasks: TaskTracker,
}

impl Agent {
    /// An agent that has not been initialized.
    pub fn new(connection: Arc<Connection>) -> Self {
        let (client, tasks) = (Client::default(), TaskTracker::new());
        Self { connection, client, is_greeted: false, tasks }
    }

    /// Routes a message.
    pub async fn handle(&mut self, message: Message) {
        match message {
            Message::Request { id, method, params } if is_notification(&method) => {
                self.notice(&method, params).await;
                // Some clients send a notification with an empty id.
                if !id.is_blank() {
                    self.connection.peer.answer(&id, Ok(json!({}))).await;
                }
            }
            Message::Request { id, method, params } => {
                let ticket = Ticket::new(&self.connection.peer, id, &self.connection.flights);
                if let Err((ticket, fault)) = self.request(ticket, &method, params).await {
                    ticket.answer(Err::<(), _>(fault)).await;
                }
            }
            Message::Notification { method, params } => self.notice(&method, params).await,
            Message::Response { id, outcome } => self.connection.peer.take(&id, outcome),
            Message::Refused { id, fault } => {
                self.connection.peer.answer(&id, Err::<(), _>(fault)).await;
            }
        }
    }

    /// Ends everything that runs, and waits for it up to `CLOSE_TIMEOUT`.
    pub async fn close(self) {
        let closing = async {
            for handle in self.connection.end() {
                let (closed, _) = oneshot::channel();
                handle.send(Inbox::Close { closed }).await.ok();
            }
            self.tasks.close();
            if tokio::time::timeout(ANSWERING, self.tasks.wait()).await.is_err() {
                // Such as a sign-in that waits for the user.
                self.connection.flights.ground();
                self.tasks.wait().await;
            }
            for harness in self.connection.open_harnesses() {
                harness.settle().await;
            }
        };
        tokio::time::timeout(CLOSING, closing).await.ok();
    }

    async fn notice(&mut self, method: &str, params: Result<Value, Fault>) {
        let Ok(params) = params else { return };
        match method {
            "session/cancel" => {
                let Ok((id, _)) = session_id(&params) else { return };
                if let Some(handle) = self.connection.session(&id) {
                    handle.send(Inbox::Cancel).await.ok();
                }
            }
            CANCEL_REQUEST => {
                let Some(named) = params.get("requestId") else { return };
                let key = Id::key_of(named);
                for flight in self.connection.flights.find(&key) {
                    match flight {
                        Flight::Task(token) => token.cancel(),
                        Flight::Session(id) => {
                            if let Some(handle) = self.connection.session(&id) {
                                handle.send(Inbox::Withdraw { key: key.clone() }).await.ok();
                            }
                        }
                    }
                }
            }
            // Other notifications are ignored.
            _ => {}
        }
    }

    /// Handles a request, or returns it with the error.
    async fn request(
        &mut self,
        ticket: Ticket,
        method: &str,
        params: Result<Value, Fault>,
    ) -> Result<(), (Ticket, Fault)> {
        if !self.is_greeted && method != "initialize" {
            let fault = Fault::invalid_request("the first request must be `initialize`");
            return Err((ticket, fault));
        }
        if !METHODS.contains(&method) {
            return Err((ticket, Fault::method_not_found(method)));
        }
        let params = match params {
            Ok(params) => params,
            Err(fault) => return Err((ticket, fault)),
        };
        match self.take(method, &params) {
            Ok(Taken::Greeting) => self.greet(ticket, &params).await,
            Ok(Taken::Session(id, message)) => self.to_session(&id, ticket, message).await,
            Ok(Taken::New(setup)) => self.open_new(ticket, setup),
            Ok(Taken::Open(id, setup, open)) => self.open_known(ticket, id, setup, open).await,
            Ok(Taken::Fork(id, setup)) => self.fork(ticket, id, setup),
            Ok(Taken::Close(id)) => self.close_one(ticket, id).await,
            Ok(Taken::Delete(id)) => self.delete(ticket, id).await,
            Ok(Taken::Work(work)) => self.spawn(ticket, work),
            Err(fault) => return Err((ticket, fault)),
        }
        Ok(())
    }

    /// Parses a request.
    fn take(&self, method: &str, params: &Value) -> Result<Taken, Fault> {
        let session = |message| session_id(params).map(|(id, _)| Taken::Session(id, message));
        Ok(match method {
            "initialize" => Taken::Greeting,
            "authenticate" => Taken::Work(self.authenticate(params)?),
            "logout" => Taken::Work(self.logout()),
            "session/new" => Taken::New(Setup::read(params)?),
            "session/load" => Taken::Open(session_id(params)?.0, Setup::read(params)?, Open::Load),
            "session/resume" => {
                Taken::Open(session_id(params)?.0, Setup::read(params)?, Open::Resume)
            }
            "session/fork" => Taken::Fork(session_id(params)?.0, Setup::read(params)?),
            "session/list" => Taken::Work(self.list(Wanted::read(params)?)),
            "session/close" => Taken::Close(session_id(params)?.0),
            "session/delete" => {
                let named = params.get("sessionId").and_then(Value::as_str);
                let named =
                    named.ok_or_else(|| Fault::invalid_params("`sessionId` must be a text"))?;
                Taken::Delete(SessionId::parse(named).ok())
            }
            "session/prompt" => session(ForSession::Prompt(Prompt::read(params)?))?,
            "session/set_mode" => session(ForSession::Set(Wish::mode(params)?))?,
            "session/set_model" => session(ForSession::Set(Wish::model(params)?))?,
            "session/set_config_option" => session(ForSession::Set(Wish::option(params)?))?,
            other => return Err(Fault::method_not_found(other)),
        })
    }

    async fn greet(&mut self, ticket: Ticket, params: &Value) {
        self.client = Client::read(params);
        self.is_greeted = true;
        ticket.answer(Ok(greeting::answer(self.client, self.connection.doors.sees_images))).await;
    }

    async fn to_session(&self, id: &SessionId, ticket: Ticket, message: ForSession) {
        let Some(handle) = self.connection.session(id) else {
            return ticket.answer(Err::<(), _>(fault::unknown_session(&id.to_string()))).await;
        };
        ticket.at(Flight::Session(id.clone()));
        let message = match message {
            ForSession::Prompt(prompt) => Inbox::Prompt { ticket, prompt },
            ForSession::Set(wish) => Inbox::Set { ticket, wish },
        };
        if let Err(lost) = handle.send(message).await {
            lost.0.refuse(fault::unknown_session(&id.to_string())).await;
        }
    }

    fn open_new(&self, ticket: Ticket, setup: Setup) {
        let (connection, client) = (Arc::clone(&self.connection), self.client);
        self.tasks.spawn(async move {
            let opened = session::open(Arc::clone(&connection), client, &setup, Which::New).await;
            serve(&connection, opened, ticket).await;
        });
    }

    /// Opens a fork of a Session; the parent stays unchanged.
    fn fork(&self, ticket: Ticket, parent: SessionId, setup: Setup) {
        let (connection, client) = (Arc::clone(&self.connection), self.client);
        let leaving = self.connection.leaving(&parent);
        self.tasks.spawn(async move {
            if let Some(gone) = leaving {
                gone.cancelled().await;
            }
            let opened = match session::branch(&connection, &setup, &parent).await {
                Ok(child) => {
                    let which = Which::Known(child);
                    session::open(Arc::clone(&connection), client, &setup, which).await
                }
                Err(fault) => Err(fault),
            };
            serve(&connection, opened, ticket).await;
        });
    }

    /// Opens an existing Session. It counts as open from now on, so that later requests wait for it.
    async fn open_known(&self, ticket: Ticket, id: SessionId, setup: Setup, open: Open) {
        let message = move |ticket, setup| match open {
            Open::Load => Inbox::Load { ticket, setup },
            Open::Resume => Inbox::Resume { ticket, setup },
        };
        if let Some(handle) = self.connection.session(&id) {
            if let Err(lost) = handle.send(message(ticket, setup)).await {
                lost.0.refuse(fault::unknown_session(&id.to_string())).await;
            }
            return;
        }
        let leaving = self.connection.leaving(&id);
        let (handle, mut inbox) = channel();
        self.connection.admit(&id, handle.clone());
        let (connection, client) = (Arc::clone(&self.connection), self.client);
        self.tasks.spawn(async move {
            if let Some(gone) = leaving {
                gone.cancelled().await;
            }
            let which = Which::Known(id.clone());
            match session::open(Arc::clone(&connection), client, &setup, which).await {
                Ok(mut actor) => {
                    drop(handle);
                    actor.handle(message(ticket, setup)).await;
                    actor.run(inbox).await;
                }
                Err(fault) => {
                    connection.dismiss(&id, &handle);
                    inbox.close();
                    ticket.answer(Err::<(), _>(fault)).await;
                    while let Some(message) = inbox.recv().await {
                        message.refuse(fault::unknown_session(&id.to_string())).await;
                    }
                }
            }
        });
    }

    /// Runs work that belongs to no Session, until it is done or cancelled.
    fn spawn(&self, ticket: Ticket, work: Work) {
        let token = CancellationToken::new();
        ticket.at(Flight::Task(token.clone()));
        self.tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                outcome = work => outcome,
                () = token.cancelled() => Err(Fault::cancelled()),
            };
            ticket.answer(outcome).await;
        });
    }

    fn authenticate(&self, params: &Value) -> Result<Work, Fault> {
        let method = params.get("methodId").and_then(Value::as_str);
        let method = method.ok_or_else(|| Fault::invalid_params("`methodId` must be a text"))?;
        let way = greeting::sign_in(method)
            .ok_or_else(|| Fault::invalid_params("unknown authentication method"))?;
        let connection = Arc::clone(&self.connection);
        Ok(Box::pin(async move {
            (connection.doors.sign_in)(way).await.map_err(|report| fault::of(&report))?;
            connection.forget_harnesses();
            value(AuthenticateResponse::new())
        }))
    }

    fn logout(&self) -> Work {
        let connection = Arc::clone(&self.connection);
        Box::pin(async move {
            (connection.doors.sign_out)().await.map_err(|report| fault::of(&report))?;
            connection.forget_harnesses();
            value(LogoutResponse::new())
        })
    }

    fn list(&self, wanted: Wanted) -> Work {
        let connection = Arc::clone(&self.connection);
        Box::pin(async move { value(on_disk(move || wanted.page(&connection)).await?) })
    }

    /// Closes a Session. This cannot be cancelled: closing starts at once, and only the answer waits.
    async fn close_one(&self, ticket: Ticket, id: SessionId) {
        let mut leaving = Leaving::begin(&self.connection, &id).await;
        self.tasks.spawn(async move {
            let was_open = leaving.is_closed().await;
            drop(leaving);
            let answer = was_open.then(CloseSessionResponse::new);
            ticket.answer(answer.ok_or_else(|| fault::unknown_session(&id.to_string()))).await;
        });
    }

    /// Deletes a Session; succeeds when there is none.
    async fn delete(&self, ticket: Ticket, id: Option<SessionId>) {
        let Some(id) = id else { return ticket.answer(Ok(DeleteSessionResponse::new())).await };
        let mut leaving = Leaving::begin(&self.connection, &id).await;
        let connection = Arc::clone(&self.connection);
        self.tasks.spawn(async move {
            leaving.is_closed().await;
            let deleted = on_disk(move || {
                let Some(root) = listing::find(&connection, &id) else { return Ok(()) };
                match inspect::delete(&root, &id) {
                    Ok(_) => Ok(()),
                    Err(error) => match Report::describe(&error) {
                        report if report.kind == Kind::NotFound.name() => Ok(()),
                        report => Err(fault::of_session(&report, &id.to_string())),
                    },
                }
            });
            let deleted = deleted.await.flatten();
            drop(leaving);
            ticket.answer(deleted.map(|()| DeleteSessionResponse::new())).await;
        });
    }
}

/// The methods that are supported.
pub const METHODS: &[&str] = &[
    "initialize",
    "authenticate",
    "logout",
    "session/new",
    "session/load",
    "session/resume",
    "session/fork",
    "session/list",
    "session/close",
    "session/delete",
    "session/prompt",
    "session/set_mode",
    "session/set_model",
    "session/set_config_option",
];

/// A parsed request.
enum Taken {
    Greeting,
    Session(SessionId, ForSession),
    New(Setup),
    Open(SessionId, Setup, Open),
    Fork(SessionId, Setup),
    Close(SessionId),
    /// `None` when the id cannot be that of a Session.
    Delete(Option<SessionId>),
    Work(Work),
}

/// A request for the task of a Session.
enum ForSession {
    Prompt(Prompt),
    Set(Wish),
}

/// How an existing Session is opened.
#[derive(Clone, Copy)]
enum Open {
    /// With a replay of its history.
    Load,
    /// Without a replay.
    Resume,
}

/// Work that returns the answer of a request.
type Work = futures_util::future::BoxFuture<'static, Result<Value, Fault>>;

/// Answers the request for a new Session, and runs its task.
async fn serve(connection: &Connection, opened: Result<Actor, Fault>, ticket: Ticket) {
    let mut actor = match opened {
        Ok(actor) => actor,
        Err(fault) => return ticket.answer(Err::<(), _>(fault)).await,
    };
    let (handle, inbox) = channel();
    connection.admit(actor.id(), handle);
    actor.introduce(ticket).await;
    actor.run(inbox).await;
}

fn is_notification(method: &str) -> bool {
    matches!(method, "session/cancel" | CANCEL_REQUEST)
}

fn value(result: impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(result).map_err(|error| Fault::internal(error.to_string()))
}

/// Runs blocking work on a thread for it.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Fault::internal(format!("the task panicked: {error}")))
}
