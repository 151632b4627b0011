//! Everything the task of a Session can be told.

use tokio::sync::{mpsc, oneshot};

use super::content::Prompt;
use super::options::Wish;
use super::setup::Setup;
use super::ticket::Ticket;
use crate::rpc::Fault;

/// How many messages may wait for a Session's task; it never works long on one.
const WAITING: usize = 64;

/// A message to the task of a Session.
pub enum Inbox {
    /// Run a Turn, now or when the one before has ended.
    Prompt { ticket: Ticket, prompt: Prompt },
    /// End the Turn, and whatever waits behind it.
    Cancel,
    /// Take one request back.
    Withdraw { key: String },
    /// Change a setting.
    Set { ticket: Ticket, wish: Wish },
    /// Tell what was said so far, and how the Session is set.
    Load { ticket: Ticket, setup: Setup },
    /// Tell how the Session is set.
    Resume { ticket: Ticket, setup: Setup },
    /// End everything, let go of the Session and say so.
    Close { closed: oneshot::Sender<()> },
}

impl Inbox {
    /// Answers whoever waits for an answer.
    pub async fn refuse(self, fault: Fault) {
        match self {
            Inbox::Prompt { ticket, .. }
            | Inbox::Set { ticket, .. }
            | Inbox::Load { ticket, .. }
            | Inbox::Resume { ticket, .. } => ticket.answer(Err::<(), _>(fault)).await,
            // Who waits for a close sees that the Session is gone.
            Inbox::Cancel | Inbox::Withdraw { .. } | Inbox::Close { .. } => {}
        }
    }
}

/// The way to a Session's task; cheap to clone.
pub type Handle = mpsc::Sender<Inbox>;

/// A new way to a task, and the task's end of it.
pub fn channel() -> (Handle, mpsc::Receiver<Inbox>) {
    mpsc::channel(WAITING)
}
