//! Forwards permission questions of a child to the user, and the answers back.
//!
//! A question is asked again in the parent's Session, with a call id of its own and the child's
//! name. If the parent is a child itself, the same happens there.

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::record::nobody;
use crate::agent::session::Session;
use crate::base::id::CallId;
use crate::record::event::{PermissionRequest, Said};

/// The open questions of one child.
pub struct Questions {
    parent: Session,
    id: String,
    role: String,
    open: Vec<CallId>,
    answers: FuturesUnordered<BoxFuture<'static, (CallId, Said)>>,
}

impl Questions {
    pub fn new(parent: Session, id: &str, role: &str) -> Self {
        let (id, role) = (id.to_owned(), role.to_owned());
        Self { parent, id, role, open: Vec::new(), answers: FuturesUnordered::new() }
    }

    /// Whether no question is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Asks in the parent's Session. A repeated request is not asked again.
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
            // A closed parent allows nothing.
            let said = parent.ask_user(asked).await.unwrap_or_else(|_| nobody());
            (inner, said)
        }));
    }

    /// The next answer to an open question; pending forever without one.
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

    /// Withdraws a question that the child no longer asks.
    pub async fn settle(&mut self, inner: &CallId) {
        if self.open.iter().any(|open| open == inner) {
            self.open.retain(|open| open != inner);
            // Answered in the parent too, or front-ends would show it forever.
            self.parent.answer(&self.outer(inner), nobody()).await.ok();
        }
    }

    /// Withdraws all open questions.
    pub async fn settle_all(&mut self) {
        for inner in std::mem::take(&mut self.open) {
            self.parent.answer(&self.outer(&inner), nobody()).await.ok();
        }
    }

    fn outer(&self, inner: &CallId) -> CallId {
        CallId::new(format!("{}/{inner}", self.id))
    }
}
