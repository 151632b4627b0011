//! Messages to the task of a Session.

use tokio::sync::{mpsc, oneshot};

use super::content::PromptContent;
use super::options::SettingRequest;
use super::responder::Responder;
use super::session_setup::SessionSetup;
use crate::host::rpc::RpcError;

/// How many messages may wait for a Session's task; each is handled quickly.
const INBOX_CAPACITY: usize = 64;

/// A message to the task of a Session.
pub enum Inbox {
    /// Run a Turn, now or after the current one.
    Prompt { responder: Responder, prompt: PromptContent },
    /// Cancel the Turn and all waiting prompts.
    Cancel,
    /// Cancel one request.
    Withdraw { key: String },
    /// Change a setting.
    Set { responder: Responder, setting: SettingRequest },
    /// Send the history and the settings of the Session.
    Load { responder: Responder, setup: SessionSetup },
    /// Send the settings of the Session.
    Resume { responder: Responder, setup: SessionSetup },
    /// End everything, close the Session and confirm that.
    Close { closed: oneshot::Sender<()> },
}

impl Inbox {
    /// Answers the message's request, if it has one, with an error.
    pub async fn refuse(self, fault: RpcError) {
        match self {
            Inbox::Prompt { responder, .. }
            | Inbox::Set { responder, .. }
            | Inbox::Load { responder, .. }
            | Inbox::Resume { responder, .. } => responder.answer(Err::<(), _>(fault)).await,
            // `Close` is confirmed by dropping its sender.
            Inbox::Cancel | Inbox::Withdraw { .. } | Inbox::Close { .. } => {}
        }
    }
}

/// The handle of a Session's task; cheap to clone.
pub type SessionHandle = mpsc::Sender<Inbox>;

/// Creates a handle and the receiver for its task.
pub fn channel() -> (SessionHandle, mpsc::Receiver<Inbox>) {
    mpsc::channel(INBOX_CAPACITY)
}
