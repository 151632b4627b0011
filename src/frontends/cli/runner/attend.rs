//! Shows Events, answers questions and handles signals while work runs, such as children after a Turn.

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::{CHILD_OUTPUT_GRACE, SessionRunner, TurnRunOutcome, Wake, subagent_event};
use crate::record::event::{Ephemeral, EventKind, ListenerItem, SessionStatus};

/// How `attend_work` ended.
pub enum AttendOutcome<T> {
    Done {
        value: T,
        was_stopped: bool,
    },
    /// A second signal: leave at once.
    Aborted,
}

/// How `watch_work` ended.
pub(super) enum WatchOutcome<T> {
    Finished {
        /// The result of the work, if it finished.
        done: Option<T>,
        was_stopped: bool,
        /// stdout was closed.
        output_closed: bool,
    },
    /// A second signal: leave at once.
    Aborted,
}

impl SessionRunner<'_> {
    /// Waits for children that outlive the Turn: they end with this process. The first signal cancels them, and the
    /// run counts as interrupted; the second does not wait for that.
    pub(super) async fn wait_for_children(&mut self, outcome: &mut TurnRunOutcome) -> bool {
        let TurnRunOutcome::Ended(ending) = outcome else { return true };
        if !self.has_children {
            return true;
        }
        let settled = self.harness.wait_for_children(&self.conversation);
        let stop = self.harness.cancel_children(&self.conversation);
        let attended = self.attend_work(settled, stop, |item| {
            if let Some(subagent_event) =
                subagent_event(item).filter(|subagent_event| subagent_event.ends_run())
            {
                ending.add_child(subagent_event);
            }
            if let Some(status) = session_failure(item) {
                ending.status = status.clone();
            }
        });
        matches!(attended.await, AttendOutcome::Done { was_stopped: false, .. })
    }

    /// Shows Events and answers questions until `work` is done. The first signal, or a closed stdout, runs `stop`; the
    /// next signal does not wait for that.
    pub async fn attend_work<T>(
        &mut self,
        work: impl Future<Output = T>,
        stop: impl Future<Output = ()> + Send + 'static,
        mut on_event: impl FnMut(&ListenerItem),
    ) -> AttendOutcome<T> {
        self.show_question();
        let watched = self.watch_work(work, stop, |item| {
            on_event(item);
            false
        });
        let watched = watched.await;
        if let WatchOutcome::Finished { .. } = watched {
            self.view.show_children(&[]);
            self.view.finish().ok();
        }
        match watched {
            WatchOutcome::Finished { done: Some(value), was_stopped, .. } => {
                AttendOutcome::Done { value, was_stopped }
            }
            WatchOutcome::Finished { done: None, .. } | WatchOutcome::Aborted => {
                AttendOutcome::Aborted
            }
        }
    }

    /// Like `attend_work`, and also ends when `is_over` is true for an Event.
    pub(super) async fn watch_work<T>(
        &mut self,
        work: impl Future<Output = T>,
        stop: impl Future<Output = ()> + Send + 'static,
        mut is_over: impl FnMut(&ListenerItem) -> bool,
    ) -> WatchOutcome<T> {
        let mut work = std::pin::pin!(work);
        let mut ticker = tokio::time::interval(self.view.tick_interval());
        ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut stop, mut stopping): (_, Option<JoinHandle<()>>) = (Some(stop), None);
        if self.requested_stop.is_some() {
            // The signal came just after the end of the Turn, and applies to the children.
            stopping = stop.take().map(tokio::spawn);
        }
        let (mut done, mut unread) = (None, false);
        loop {
            let wake = tokio::select! {
                wake = self.next_wake(&mut ticker) => wake,
                // Events from before the end of the work are shown first.
                value = &mut work, if done.is_none() => {
                    done = Some(value);
                    ticker = tokio::time::interval_at(tokio::time::Instant::now() + CHILD_OUTPUT_GRACE, CHILD_OUTPUT_GRACE);
                    continue;
                }
            };
            match wake {
                Wake::Received(None) => break,
                Wake::Received(Some(item)) => {
                    unread |= self.view.show(&item).is_err();
                    self.has_children |= subagent_event(&item).is_some();
                    self.track_question(&item);
                    self.track_recording(&item);
                    if is_over(&item) {
                        break;
                    }
                }
                Wake::Typed(line) => self.answer_question(line).await,
                Wake::SkipRecording => self.skip_recording(),
                Wake::Tick if done.is_some() => break,
                Wake::Tick => {
                    self.refresh_children().await;
                    unread |= self.view.tick().is_err();
                }
                Wake::Signal(_) if stopping.is_some() => return WatchOutcome::Aborted,
                Wake::Signal(asked) => {
                    self.requested_stop = Some(asked);
                    // Queued input is dropped, as the kernel does on Ctrl-C with its own queue.
                    self.keyboard.discard_entries();
                    stopping = stop.take().map(tokio::spawn);
                }
            }
            // The result cannot be shown any more, and the work may cost money.
            if unread && done.is_none() && stopping.is_none() {
                self.view.silence();
                stopping = stop.take().map(tokio::spawn);
            }
        }
        WatchOutcome::Finished { done, was_stopped: stopping.is_some(), output_closed: unread }
    }

    pub(super) async fn refresh_children(&mut self) {
        if self.has_children && self.view.draws_children() {
            let children = self.harness.children(&self.conversation).await;
            self.view.show_children(&children);
        }
    }
}

/// The failure of the Session after its Turn: the end of a child could not be recorded.
fn session_failure(item: &ListenerItem) -> Option<&SessionStatus> {
    let ListenerItem::Event(event) = item else { return None };
    match event.kind() {
        EventKind::Ephemeral(Ephemeral::Status(status @ SessionStatus::Error { .. })) => {
            Some(status)
        }
        EventKind::Ephemeral(_) | EventKind::Canonical(_) => None,
    }
}
