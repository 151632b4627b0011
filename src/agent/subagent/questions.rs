//! Forwards permission questions of a child to the user, and the answers back.
//!
//! A question is asked again in the parent's Session, with its own call id and the child's name. A
//! parent that is a child itself forwards it in turn.

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::record::unanswered;
use crate::agent::session::Session;
use crate::base::id::CallId;
use crate::record::event::{PermissionRequest, PermissionResponse};

/// The open questions of one child.
pub struct ForwardedQuestions {
    parent: Session,
    id: String,
    role: String,
    open: Vec<CallId>,
    answers: FuturesUnordered<BoxFuture<'static, (CallId, PermissionResponse)>>,
}

impl ForwardedQuestions {
    pub fn new(parent: Session, id: &str, role: &str) -> Self {
        let (id, role) = (id.to_owned(), role.to_owned());
        Self { parent, id, role, open: Vec::new(), answers: FuturesUnordered::new() }
    }

    /// Whether no question is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Asks in the parent's Session. A repeated request is not asked again.
    pub fn forward(&mut self, request: &PermissionRequest) {
        let inner = request.call_id.clone();
        if self.open.contains(&inner) {
            return;
        }
        let own = format!("{} ({})", self.id, self.role);
        let agent = match &request.agent {
            Some(deeper) => format!("{own} > {deeper}"),
            None => own,
        };
        let call_id = self.parent_call_id(&inner);
        let asked = PermissionRequest { call_id, agent: Some(agent), ..request.clone() };
        self.open.push(inner.clone());
        let parent = self.parent.clone();
        self.answers.push(Box::pin(async move {
            // A closed parent allows nothing.
            let response = parent.ask_user(asked).await.unwrap_or_else(|_| unanswered());
            (inner, response)
        }));
    }

    /// The next answer to an open question; pending forever without one.
    pub async fn next_answer(&mut self) -> (CallId, PermissionResponse) {
        loop {
            match self.answers.next().await {
                Some((inner, response)) if self.open.contains(&inner) => {
                    self.open.retain(|open| *open != inner);
                    return (inner, response);
                }
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Withdraws a question that the child no longer asks.
    pub async fn withdraw(&mut self, inner: &CallId) {
        if self.open.iter().any(|open| open == inner) {
            self.open.retain(|open| open != inner);
            // Answered in the parent too, or front-ends would show it forever.
            self.parent.answer(&self.parent_call_id(inner), unanswered()).await.ok();
        }
    }

    /// Withdraws all open questions.
    pub async fn withdraw_all(&mut self) {
        for inner in std::mem::take(&mut self.open) {
            self.parent.answer(&self.parent_call_id(&inner), unanswered()).await.ok();
        }
    }

    fn parent_call_id(&self, inner: &CallId) -> CallId {
        CallId::new(format!("{}/{inner}", self.id))
    }
}
