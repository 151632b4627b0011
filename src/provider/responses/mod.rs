//! Responses: the dialect of OpenAI and of every server that speaks it, over SSE.

mod body;
mod reduce;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use serde_json::Value;

pub use body::body;
pub use reduce::Reducer;

use super::wire::sse::{Answer, Read, Sse};
use super::{ModelEvent, Provider, ProviderError, Request};
use crate::config::Stream;
use crate::config::models::{self, Model};
use crate::credential::{Credential, FieldPolicy, Recovery};
use crate::error::Kind;
use crate::id::SessionId;

/// A model behind `/responses`.
#[derive(Debug, Clone)]
pub struct Responses {
    sse: Arc<Sse>,
}

impl Responses {
    /// Cheap: nothing is loaded or connected before the first call.
    pub fn new(credential: Credential, limits: Stream) -> Self {
        Self { sse: Arc::new(Sse::new(credential, limits)) }
    }

    /// Asks the endpoint which models it has; free, and bounded by the limits.
    pub async fn models(&self, version: &str) -> Result<Vec<Model>, ProviderError> {
        let path = match self.sse.credential().policy() {
            // This catalogue hides what a client of unknown version may not know.
            FieldPolicy::ChatGpt => format!("/models?client_version={version}"),
            FieldPolicy::OpenAi | FieldPolicy::Portable => "/models".to_owned(),
        };
        let credential = self.sse.credential();
        let mut authorization = credential.authorize().await?;
        let mut recovery = Recovery::default();
        let answer = loop {
            let headers = credential.headers(&authorization, "")?;
            let error = match self.sse.get(&path, headers).await {
                Ok(answer) => break answer,
                Err(error) if error.details["status"] != 401 => return Err(error),
                Err(error) => error,
            };
            match credential.recover(&authorization, &mut recovery).await? {
                Some(another) => authorization = another,
                None => return Err(error),
            }
        };
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        models::listed(&answer).ok_or_else(|| {
            let message = "the endpoint answered, but not with a list of models";
            ProviderError::terminal(Kind::InvalidResponse, message)
        })
    }
}

impl Provider for Responses {
    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ProviderError>> {
        let call = Call {
            sse: self.sse.clone(),
            body: Some(body(&request, self.sse.credential().policy()).into()),
            session: request.session,
            answer: None,
            reducer: Reducer::default(),
            ready: VecDeque::new(),
            is_over: false,
        };
        stream::unfold(call, |mut call| async move { call.next().await.map(|event| (event, call)) })
            .boxed()
    }

    fn transport(&self) -> &'static str {
        "sse"
    }
}

/// One call under way.
struct Call {
    sse: Arc<Sse>,
    /// What is still to be sent.
    body: Option<Bytes>,
    session: SessionId,
    answer: Option<Answer>,
    reducer: Reducer,
    ready: VecDeque<Result<ModelEvent, ProviderError>>,
    is_over: bool,
}

impl Call {
    async fn next(&mut self) -> Option<Result<ModelEvent, ProviderError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                if let Some(mut answer) = self.answer.take() {
                    answer.finish();
                }
                return None;
            }
            if let Err(error) = self.advance().await {
                self.ready.push_back(Err(error));
                self.is_over = true;
                self.answer = None;
            }
        }
    }

    /// Sends the body. A refused token is helped at most twice, and only before anything was heard.
    async fn open(&self, body: Bytes) -> Result<Answer, ProviderError> {
        let credential = self.sse.credential();
        let mut authorization = credential.authorize().await?;
        let mut recovery = Recovery::default();
        loop {
            let headers = credential.headers(&authorization, self.session.as_str())?;
            let error = match self.sse.post("/responses", headers, body.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.details["status"] != 401 {
                return Err(error);
            }
            match credential.recover(&authorization, &mut recovery).await? {
                Some(another) => authorization = another,
                None => return Err(error),
            }
        }
    }

    async fn advance(&mut self) -> Result<(), ProviderError> {
        if let Some(body) = self.body.take() {
            self.answer = Some(self.open(body).await?);
        }
        let Some(answer) = &mut self.answer else {
            return Err(ProviderError::terminal(Kind::Internal, "a call that is over was read"));
        };
        let Self { reducer, ready, .. } = self;
        let had_life = reducer.is_alive();
        let read = answer.read(|frame| reducer.take(frame.event, frame.data, ready)).await?;
        if read == Read::End {
            let message = "the stream ended without its last word";
            let error = ProviderError::passing(Kind::InvalidResponse, message);
            return Err(error.with("content_type", answer.content_type()));
        }
        if !had_life {
            reducer.come_alive();
            ready.push_front(Ok(ModelEvent::Alive));
        }
        if reducer.is_over() {
            answer.finish();
            self.is_over = true;
        }
        Ok(())
    }
}
