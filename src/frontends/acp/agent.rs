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

use super::capabilities::ClientCapabilities;
use super::closing::ClosingSession;
use super::connection::ClientConnection;
use super::content::PromptContent;
use super::inbox::{Inbox, channel};
use super::options::SettingRequest;
use super::responder::{RequestOwner, Responder};
use super::session::{self, Actor, OpenTarget};
use super::session_list::{self, SessionListRequest};
use super::session_setup::{SessionSetup, session_id};
use super::{error, initialize};
use crate::agent::inspect;
use crate::base::error::{Kind, Report};
use crate::base::id::SessionId;
use crate::host::rpc::{CANCEL_REQUEST, RpcError, RpcId, RpcMessage};

/// How long requests from before the shutdown may take to be answered.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// How long everything that runs may take to end after the client has disconnected.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The agent of one connection.
pub struct Agent {
    connection: Arc<ClientConnection>,
    client: ClientCapabilities,
    is_initialized: bool,
    tasks: TaskTracker,
}

impl Agent {
    /// An agent that has not been initialized.
    pub fn new(connection: Arc<ClientConnection>) -> Self {
        let (client, tasks) = (ClientCapabilities::default(), TaskTracker::new());
        Self { connection, client, is_initialized: false, tasks }
    }

    /// Routes a message.
    pub async fn handle(&mut self, message: RpcMessage) {
        match message {
            RpcMessage::Request { id, method, params } if is_notification(&method) => {
                self.handle_notification(&method, params).await;
                // Some clients send a notification with an empty id.
                if !id.is_blank() {
                    self.connection.peer.send_response(&id, Ok(json!({}))).await;
                }
            }
            RpcMessage::Request { id, method, params } => {
                let responder =
                    Responder::new(&self.connection.peer, id, &self.connection.in_flight);
                if let Err((responder, fault)) =
                    self.handle_request(responder, &method, params).await
                {
                    responder.answer(Err::<(), _>(fault)).await;
                }
            }
            RpcMessage::Notification { method, params } => {
                self.handle_notification(&method, params).await;
            }
            RpcMessage::Response { id, outcome } => {
                self.connection.peer.handle_response(&id, outcome);
            }
            RpcMessage::Invalid { id, fault } => {
                self.connection.peer.send_response(&id, Err::<(), _>(fault)).await;
            }
        }
    }

    /// Ends everything that runs, and waits for it up to `CLOSE_TIMEOUT`.
    pub async fn close(self) {
        let closing = async {
            for handle in self.connection.begin_shutdown() {
                let (closed, _) = oneshot::channel();
                handle.send(Inbox::Close { closed }).await.ok();
            }
            self.tasks.close();
            if tokio::time::timeout(ANSWER_TIMEOUT, self.tasks.wait()).await.is_err() {
                // Tasks that wait for the user, such as a sign-in.
                self.connection.in_flight.cancel_tasks();
                self.tasks.wait().await;
            }
            for harness in self.connection.open_harnesses() {
                harness.shut_down().await;
            }
        };
        tokio::time::timeout(CLOSE_TIMEOUT, closing).await.ok();
    }

    async fn handle_notification(&mut self, method: &str, params: Result<Value, RpcError>) {
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
                let key = RpcId::key_for_value(named);
                for flight in self.connection.in_flight.find(&key) {
                    match flight {
                        RequestOwner::Task(token) => token.cancel(),
                        RequestOwner::Session(id) => {
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
    async fn handle_request(
        &mut self,
        responder: Responder,
        method: &str,
        params: Result<Value, RpcError>,
    ) -> Result<(), (Responder, RpcError)> {
        if !self.is_initialized && method != "initialize" {
            let fault = RpcError::invalid_request("the first request must be `initialize`");
            return Err((responder, fault));
        }
        if !METHODS.contains(&method) {
            return Err((responder, RpcError::method_not_found(method)));
        }
        let params = match params {
            Ok(params) => params,
            Err(fault) => return Err((responder, fault)),
        };
        match self.parse_request(method, &params) {
            Ok(AgentRequest::Initialize) => self.initialize(responder, &params).await,
            Ok(AgentRequest::Session(id, message)) => {
                self.send_to_session(&id, responder, message).await;
            }
            Ok(AgentRequest::New(setup)) => self.open_new(responder, setup),
            Ok(AgentRequest::Open(id, setup, open)) => {
                self.open_existing(responder, id, setup, open).await;
            }
            Ok(AgentRequest::Fork(id, setup)) => self.fork_session(responder, id, setup),
            Ok(AgentRequest::Close(id)) => self.close_session(responder, id).await,
            Ok(AgentRequest::Delete(id)) => self.delete_session(responder, id).await,
            Ok(AgentRequest::Work(work)) => self.spawn_work(responder, work),
            Err(fault) => return Err((responder, fault)),
        }
        Ok(())
    }

    /// Parses a request.
    fn parse_request(&self, method: &str, params: &Value) -> Result<AgentRequest, RpcError> {
        let session =
            |message| session_id(params).map(|(id, _)| AgentRequest::Session(id, message));
        Ok(match method {
            "initialize" => AgentRequest::Initialize,
            "authenticate" => AgentRequest::Work(self.authenticate(params)?),
            "logout" => AgentRequest::Work(self.logout()),
            "session/new" => AgentRequest::New(SessionSetup::read(params)?),
            "session/load" => AgentRequest::Open(
                session_id(params)?.0,
                SessionSetup::read(params)?,
                OpenMode::Load,
            ),
            "session/resume" => AgentRequest::Open(
                session_id(params)?.0,
                SessionSetup::read(params)?,
                OpenMode::Resume,
            ),
            "session/fork" => {
                AgentRequest::Fork(session_id(params)?.0, SessionSetup::read(params)?)
            }
            "session/list" => {
                AgentRequest::Work(self.list_sessions(SessionListRequest::read(params)?))
            }
            "session/close" => AgentRequest::Close(session_id(params)?.0),
            "session/delete" => {
                let named = params.get("sessionId").and_then(Value::as_str);
                let named =
                    named.ok_or_else(|| RpcError::invalid_params("`sessionId` must be a text"))?;
                AgentRequest::Delete(SessionId::parse(named).ok())
            }
            "session/prompt" => session(SessionRequest::Prompt(PromptContent::read(params)?))?,
            "session/set_mode" => session(SessionRequest::Set(SettingRequest::read_mode(params)?))?,
            "session/set_model" => {
                session(SessionRequest::Set(SettingRequest::read_model(params)?))?
            }
            "session/set_config_option" => {
                session(SessionRequest::Set(SettingRequest::read_option(params)?))?
            }
            other => return Err(RpcError::method_not_found(other)),
        })
    }

    async fn initialize(&mut self, responder: Responder, params: &Value) {
        self.client = ClientCapabilities::read(params);
        self.is_initialized = true;
        responder
            .answer(Ok(initialize::initialize_response(
                self.client,
                self.connection.host.sees_images,
            )))
            .await;
    }

    async fn send_to_session(&self, id: &SessionId, responder: Responder, message: SessionRequest) {
        let Some(handle) = self.connection.session(id) else {
            return responder.answer(Err::<(), _>(error::unknown_session(&id.to_string()))).await;
        };
        responder.register(RequestOwner::Session(id.clone()));
        let message = match message {
            SessionRequest::Prompt(prompt) => Inbox::Prompt { responder, prompt },
            SessionRequest::Set(setting) => Inbox::Set { responder, setting },
        };
        if let Err(lost) = handle.send(message).await {
            lost.0.refuse(error::unknown_session(&id.to_string())).await;
        }
    }

    fn open_new(&self, responder: Responder, setup: SessionSetup) {
        let (connection, client) = (Arc::clone(&self.connection), self.client);
        self.tasks.spawn(async move {
            let opened =
                session::open_session(Arc::clone(&connection), client, &setup, OpenTarget::New)
                    .await;
            serve_session(&connection, opened, responder).await;
        });
    }

    /// Opens a fork of a Session; the parent stays unchanged.
    fn fork_session(&self, responder: Responder, parent: SessionId, setup: SessionSetup) {
        let (connection, client) = (Arc::clone(&self.connection), self.client);
        let closing_session = self.connection.closing(&parent);
        self.tasks.spawn(async move {
            if let Some(gone) = closing_session {
                gone.cancelled().await;
            }
            let opened = match session::fork_session(&connection, &setup, &parent).await {
                Ok(child) => {
                    let which = OpenTarget::Known(child);
                    session::open_session(Arc::clone(&connection), client, &setup, which).await
                }
                Err(fault) => Err(fault),
            };
            serve_session(&connection, opened, responder).await;
        });
    }

    /// Opens an existing Session. It counts as open from now on, so that later requests wait for it.
    async fn open_existing(
        &self,
        responder: Responder,
        id: SessionId,
        setup: SessionSetup,
        open: OpenMode,
    ) {
        let message = move |responder, setup| match open {
            OpenMode::Load => Inbox::Load { responder, setup },
            OpenMode::Resume => Inbox::Resume { responder, setup },
        };
        if let Some(handle) = self.connection.session(&id) {
            if let Err(lost) = handle.send(message(responder, setup)).await {
                lost.0.refuse(error::unknown_session(&id.to_string())).await;
            }
            return;
        }
        let closing_session = self.connection.closing(&id);
        let (handle, mut inbox) = channel();
        self.connection.add_session(&id, handle.clone());
        let (connection, client) = (Arc::clone(&self.connection), self.client);
        self.tasks.spawn(async move {
            if let Some(gone) = closing_session {
                gone.cancelled().await;
            }
            let which = OpenTarget::Known(id.clone());
            match session::open_session(Arc::clone(&connection), client, &setup, which).await {
                Ok(mut actor) => {
                    drop(handle);
                    actor.handle(message(responder, setup)).await;
                    actor.run(inbox).await;
                }
                Err(fault) => {
                    connection.remove_session(&id, &handle);
                    inbox.close();
                    responder.answer(Err::<(), _>(fault)).await;
                    while let Some(message) = inbox.recv().await {
                        message.refuse(error::unknown_session(&id.to_string())).await;
                    }
                }
            }
        });
    }

    /// Runs work that belongs to no Session, until it is done or cancelled.
    fn spawn_work(&self, responder: Responder, work: RequestWork) {
        let token = CancellationToken::new();
        responder.register(RequestOwner::Task(token.clone()));
        self.tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                outcome = work => outcome,
                () = token.cancelled() => Err(RpcError::cancelled()),
            };
            responder.answer(outcome).await;
        });
    }

    fn authenticate(&self, params: &Value) -> Result<RequestWork, RpcError> {
        let method = params.get("methodId").and_then(Value::as_str);
        let method = method.ok_or_else(|| RpcError::invalid_params("`methodId` must be a text"))?;
        let way = initialize::sign_in_method(method)
            .ok_or_else(|| RpcError::invalid_params("unknown authentication method"))?;
        let connection = Arc::clone(&self.connection);
        Ok(Box::pin(async move {
            (connection.host.sign_in)(way).await.map_err(|report| error::from_report(&report))?;
            connection.forget_harnesses();
            to_json(AuthenticateResponse::new())
        }))
    }

    fn logout(&self) -> RequestWork {
        let connection = Arc::clone(&self.connection);
        Box::pin(async move {
            (connection.host.sign_out)().await.map_err(|report| error::from_report(&report))?;
            connection.forget_harnesses();
            to_json(LogoutResponse::new())
        })
    }

    fn list_sessions(&self, wanted: SessionListRequest) -> RequestWork {
        let connection = Arc::clone(&self.connection);
        Box::pin(async move { to_json(run_blocking(move || wanted.page(&connection)).await?) })
    }

    /// Closes a Session. This cannot be cancelled: closing starts at once, and only the answer waits.
    async fn close_session(&self, responder: Responder, id: SessionId) {
        let mut closing_session = ClosingSession::start(&self.connection, &id).await;
        self.tasks.spawn(async move {
            let was_open = closing_session.wait_closed().await;
            drop(closing_session);
            let answer = was_open.then(CloseSessionResponse::new);
            responder.answer(answer.ok_or_else(|| error::unknown_session(&id.to_string()))).await;
        });
    }

    /// Deletes a Session; succeeds when there is none.
    async fn delete_session(&self, responder: Responder, id: Option<SessionId>) {
        let Some(id) = id else { return responder.answer(Ok(DeleteSessionResponse::new())).await };
        let mut closing_session = ClosingSession::start(&self.connection, &id).await;
        let connection = Arc::clone(&self.connection);
        self.tasks.spawn(async move {
            closing_session.wait_closed().await;
            let deleted = run_blocking(move || {
                let Some(root) = session_list::find_session(&connection, &id) else {
                    return Ok(());
                };
                match inspect::delete_session(&root, &id) {
                    Ok(_) => Ok(()),
                    Err(error) => match Report::describe(&error) {
                        report if report.kind == Kind::NotFound.name() => Ok(()),
                        report => Err(error::from_session_report(&report, &id.to_string())),
                    },
                }
            });
            let deleted = deleted.await.flatten();
            drop(closing_session);
            responder.answer(deleted.map(|()| DeleteSessionResponse::new())).await;
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
enum AgentRequest {
    Initialize,
    Session(SessionId, SessionRequest),
    New(SessionSetup),
    Open(SessionId, SessionSetup, OpenMode),
    Fork(SessionId, SessionSetup),
    Close(SessionId),
    /// `None` when the id cannot be that of a Session.
    Delete(Option<SessionId>),
    Work(RequestWork),
}

/// A request for the task of a Session.
enum SessionRequest {
    Prompt(PromptContent),
    Set(SettingRequest),
}

/// How an existing Session is opened.
#[derive(Clone, Copy)]
enum OpenMode {
    /// With a replay of its history.
    Load,
    /// Without a replay.
    Resume,
}

/// Work that returns the answer of a request.
type RequestWork = futures_util::future::BoxFuture<'static, Result<Value, RpcError>>;

/// Answers the request for a new Session, and runs its task.
async fn serve_session(
    connection: &ClientConnection,
    opened: Result<Actor, RpcError>,
    responder: Responder,
) {
    let mut actor = match opened {
        Ok(actor) => actor,
        Err(fault) => return responder.answer(Err::<(), _>(fault)).await,
    };
    let (handle, inbox) = channel();
    connection.add_session(actor.id(), handle);
    actor.answer_new_session(responder).await;
    actor.run(inbox).await;
}

fn is_notification(method: &str) -> bool {
    matches!(method, "session/cancel" | CANCEL_REQUEST)
}

fn to_json(result: impl Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(result).map_err(|error| RpcError::internal(error.to_string()))
}

/// Runs blocking work on a thread for it.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RpcError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| RpcError::internal(format!("the task panicked: {error}")))
}
