//! Questions of a child, on their way to the human and back.
//!
//! A child's question is asked anew in its parent's Session, under a name of its own and with the
//! child's. When the parent is a child itself, the same happens there.

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::record::nobody;
use crate::event::{PermissionRequest, Said};
use crate::id::CallId;
use crate::session::Session;

/// The open questions of one child.
pub struct Questions {
    parent: Session,
    id: String,
    role: String,
    open: Vec<CallId>,
    answers: FuturesUnordered<BoxFuture<'static, (CallId, Said)>>,
}

impl Questions {
    /// No question yet.
    pub fn new(parent: Session, id: &str, role: &str) -> Self {
        let (id, role) = (id.to_owned(), role.to_owned());
        Self { parent, id, role, open: Vec::new(), answers: FuturesUnordered::new() }
    }

    /// Whether nobody is asked.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Asks the parent's human. One that is told again is not asked again.
    pub fn ask(&mut self, request: &PermissionRequest) {
        let inner = request.call_id.clone();
        if self.open.contains(&inner) {
            return;
        }
        let own = format!("{} ({})", self.id, self.role);
        let agent = match &request.agent {
            Some(deeper) => format!("{own} > {deeper}"),
            None => own,
        };
        let call_id = self.outer(&inner);
        let asked = PermissionRequest { call_id, agent: Some(agent), ..request.clone() };
        self.open.push(inner.clone());
        let parent = self.parent.clone();
        self.answers.push(Box::pin(async move {
            // A parent that is gone allows nothing.
            let said = parent.ask_user(asked).await.unwrap_or_else(|_| nobody());
            (inner, said)
        }));
    }

    /// The next answer that somebody still waits for; never without an open question.
    pub async fn answered(&mut self) -> (CallId, Said) {
        loop {
            match self.answers.next().await {
                Some((inner, said)) if self.open.contains(&inner) => {
                    self.open.retain(|open| *open != inner);
                    return (inner, said);
                }
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// The child does not want to know any more.
    pub async fn settle(&mut self, inner: &CallId) {
        if self.open.iter().any(|open| open == inner) {
            self.open.retain(|open| open != inner);
            // Settled for everybody, or it would stay on a screen for ever.
            self.parent.answer(&self.outer(inner), nobody()).await.ok();
        }
    }

    /// Nobody wants to know anything any more.
    pub async fn settle_all(&mut self) {
        for inner in std::mem::take(&mut self.open) {
            self.parent.answer(&self.outer(&inner), nobody()).await.ok();
        }
    }

    fn outer(&self, inner: &CallId) -> CallId {
        CallId::new(format!("{}/{inner}", self.id))
    }
}
