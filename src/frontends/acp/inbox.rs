//! Messages to the task of a Session.

use tokio::sync::{mpsc, oneshot};

use super::content::Prompt;
use super::options::Wish;
use super::setup::Setup;
use super::ticket::Ticket;
use crate::host::rpc::Fault;

/// How many messages may wait for a Session's task; each is handled quickly.
const WAITING: usize = 64;

/// A message to the task of a Session.
pub enum Inbox {
    /// Run a Turn, now or after the current one.
    Prompt { ticket: Ticket, prompt: Prompt },
    /// Cancel the Turn and all waiting prompts.
    Cancel,
    /// Cancel one request.
    Withdraw { key: String },
    /// Change a setting.
    Set { ticket: Ticket, wish: Wish },
    /// Send the history and the settings of the Session.
    Load { ticket: Ticket, setup: Setup },
    /// Send the settings of the Session.
    Resume { ticket: Ticket, setup: Setup },
    /// End everything, close the Session and confirm that.
    Close { closed: oneshot::Sender<()> },
}

impl Inbox {
    /// Answers the message's request, if it has one, with an error.
    pub async fn refuse(self, fault: Fault) {
        match self {
            Inbox::Prompt { ticket, .. }
            | Inbox::Set { ticket, .. }
            | Inbox::Load { ticket, .. }
            | Inbox::Resume { ticket, .. } => ticket.answer(Err::<(), _>(fault)).await,
            // `Close` is confirmed by dropping its sender.
            Inbox::Cancel | Inbox::Withdraw { .. } | Inbox::Close { .. } => {}
        }
    }
}

/// The handle of a Session's task; cheap to clone.
pub type Handle = mpsc::Sender<Inbox>;

/// Creates a handle and the receiver for its task.
pub fn channel() -> (Handle, mpsc::Receiver<Inbox>) {
    mpsc::channel(WAITING)
}
