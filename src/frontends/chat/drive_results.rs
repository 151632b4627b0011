//! What the loop of the chat does with results: an opened Session, a sent prompt, listed files, a finished command.

use std::time::Instant;

use super::chat_command::CommandOutcome;
use super::drive::ChatDriver;
use super::session_work::WorkResult;
use super::state::ChatPhase;
use crate::agent::conversation::Conversation;
use crate::agent::harness::SessionTarget;
use crate::base::error::Report;
use crate::frontends::relay::{EventRelay, RelayFilter};
use crate::record::event::ListenFrom;

impl ChatDriver {
    /// Handles the result of work that ran beside the screen.
    pub(super) async fn handle_result(&mut self, result: WorkResult, now: Instant) {
        match result {
            WorkResult::Opened { opened, is_resumed } => {
                self.finish_opening(opened, is_resumed).await;
            }
            WorkResult::Sent { sent: Ok(notices), .. } => {
                // The user stopped it before there was a Turn to stop.
                if self.state.is_stopping() {
                    self.interrupt();
                }
                for notice in notices {
                    self.state.feed.push_text(&notice);
                }
            }
            WorkResult::Sent { text, sent: Err(report) } => self.state.fail_prompt(text, &report),
            WorkResult::Files(files) => {
                self.state.sources.files = Some(files);
                self.state.complete_again();
            }
            WorkResult::Command(done) => self.finish_command(done, now).await,
            WorkResult::Delivered => {}
        }
    }

    async fn finish_opening(&mut self, opened: Result<Conversation, Report>, is_resumed: bool) {
        self.is_opening = false;
        let prompt = self.waiting_prompt.take();
        match opened {
            Ok(conversation) => {
                self.adopt(conversation, is_resumed).await;
                if let Some(text) = prompt {
                    if self.state.is_stopping() {
                        self.state.return_prompt(text);
                    } else {
                        self.send(text);
                    }
                } else {
                    let next = self.state.send_next();
                    Box::pin(self.perform(next.into_iter().collect())).await;
                }
            }
            Err(report) => match prompt {
                Some(text) => self.state.fail_prompt(text, &report),
                None => self.state.show_error(&report),
            },
        }
    }

    /// Goes on with an opened Session: its Events are shown from now on.
    async fn adopt(&mut self, conversation: Conversation, is_resumed: bool) {
        let from = if is_resumed { ListenFrom::Now } else { ListenFrom::Start };
        self.relay = Some(EventRelay::start(conversation.subscribe(from), RelayFilter::All));
        self.target = SessionTarget::Resume(conversation.id().clone());
        self.read_settings(&conversation);
        for notice in conversation.notices() {
            self.state.feed.push_text(notice);
        }
        if is_resumed && let Ok(history) = conversation.history().await {
            self.state.show_history(conversation.id(), &history);
        }
        self.conversation = Some(conversation);
    }

    fn read_settings(&mut self, conversation: &Conversation) {
        self.state.facts.read_settings(conversation);
        let models = self.harness.models();
        let sources = &mut self.state.sources;
        sources.models = models.iter().map(|model| model.name.clone()).collect();
        let current = models.iter().find(|model| model.name == conversation.model());
        sources.efforts = current.map(|model| model.efforts.clone()).unwrap_or_default();
    }

    async fn finish_command(&mut self, done: Result<CommandOutcome, Report>, now: Instant) {
        let is_alone = self.state.phase == ChatPhase::Command;
        let words = match done {
            Err(report) => Err(report),
            Ok(outcome) => {
                if let Some(conversation) = outcome.conversation {
                    if self.conversation.is_none() {
                        self.adopt(conversation.clone(), false).await;
                    }
                    self.read_settings(&conversation);
                    self.conversation = Some(conversation);
                }
                if let Some(target) = outcome.session {
                    return self.switch_session(target, now).await;
                }
                self.state.queue_first(outcome.prompt);
                Ok(outcome.words)
            }
        };
        let next = if is_alone {
            self.state.end_command(words)
        } else {
            self.state.show_words(words);
            None
        };
        Box::pin(self.perform(next.into_iter().collect())).await;
    }

    /// Leaves the Session, and goes on with another or with none.
    async fn switch_session(&mut self, target: SessionTarget, now: Instant) {
        self.relay = None;
        if let Some(conversation) = self.conversation.take() {
            self.harness.cancel_children(&conversation).await;
            conversation.close().await;
        }
        self.state.begin_session(now);
        self.target = target;
        if self.target == SessionTarget::New {
            self.state.feed.push_faint("a new Session begins with the next prompt");
        } else {
            self.open_session(None);
        }
    }
}
