//! Shows Events, answers questions and handles signals while work runs, such as children after a Turn.

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::{Driven, Driver, LAST_WORDS, Wake, life_of};
use crate::record::event::{Ephemeral, EventKind, Heard, Status};

/// How `attend_work` ended.
pub enum Attended<T> {
    Done {
        value: T,
        was_stopped: bool,
    },
    /// A second signal: leave at once.
    Abandoned,
}

/// How `watch_work` ended.
pub(super) enum Watched<T> {
    Over {
        /// The result of the work, if it finished.
        done: Option<T>,
        was_stopped: bool,
        /// stdout was closed.
        unread: bool,
    },
    /// A second signal: leave at once.
    Abandoned,
}

impl Driver<'_> {
    /// Waits for children that outlive the Turn: they end with this process. The first signal cancels them, and the
    /// run counts as interrupted; the second does not wait for that.
    pub(super) async fn attend_children(&mut self, driven: &mut Driven) -> bool {
        let Driven::Ended(ending) = driven else { return true };
        if !self.has_children {
            return true;
        }
        let settled = self.harness.children_settled(&self.conversation);
        let stop = self.harness.cancel_children(&self.conversation);
        let attended = self.attend(settled, stop, |heard| {
            if let Some(life) = life_of(heard).filter(|life| life.ends_run()) {
                ending.add_child(life);
            }
            if let Some(status) = failure_of(heard) {
                ending.status = status.clone();
            }
        });
        matches!(attended.await, Attended::Done { was_stopped: false, .. })
    }

    /// Shows Events and answers questions until `work` is done. The first signal, or a closed stdout, runs `stop`; the
    /// next signal does not wait for that.
    pub async fn attend<T>(
        &mut self,
        work: impl Future<Output = T>,
        stop: impl Future<Output = ()> + Send + 'static,
        mut hear: impl FnMut(&Heard),
    ) -> Attended<T> {
        self.show_question();
        let watched = self.watch(work, stop, |heard| {
            hear(heard);
            false
        });
        let watched = watched.await;
        if let Watched::Over { .. } = watched {
            self.view.children(&[]);
            self.view.finish().ok();
        }
        match watched {
            Watched::Over { done: Some(value), was_stopped, .. } => {
                Attended::Done { value, was_stopped }
            }
            Watched::Over { done: None, .. } | Watched::Abandoned => Attended::Abandoned,
        }
    }

    /// Like `attend_work`, and also ends when `is_over` is true for an Event.
    pub(super) async fn watch<T>(
        &mut self,
        work: impl Future<Output = T>,
        stop: impl Future<Output = ()> + Send + 'static,
        mut is_over: impl FnMut(&Heard) -> bool,
    ) -> Watched<T> {
        let mut work = std::pin::pin!(work);
        let mut ticker = tokio::time::interval(self.view.tick_every());
        ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut stop, mut stopping): (_, Option<JoinHandle<()>>) = (Some(stop), None);
        if self.asked.is_some() {
            // The signal came just after the end of the Turn, and applies to the children.
            stopping = stop.take().map(tokio::spawn);
        }
        let (mut done, mut unread) = (None, false);
        loop {
            let wake = tokio::select! {
                wake = self.next(&mut ticker) => wake,
                // Events from before the end of the work are shown first.
                value = &mut work, if done.is_none() => {
                    done = Some(value);
                    ticker = tokio::time::interval_at(tokio::time::Instant::now() + LAST_WORDS, LAST_WORDS);
                    continue;
                }
            };
            match wake {
                Wake::Heard(None) => break,
                Wake::Heard(Some(heard)) => {
                    unread |= self.view.hear(&heard).is_err();
                    self.has_children |= life_of(&heard).is_some();
                    self.note_question(&heard);
                    self.note_recording(&heard);
                    if is_over(&heard) {
                        break;
                    }
                }
                Wake::Typed(line) => self.reply(line).await,
                Wake::SkipRecording => self.skip_recording(),
                Wake::Tick if done.is_some() => break,
                Wake::Tick => {
                    self.look_at_children().await;
                    unread |= self.view.tick().is_err();
                }
                Wake::Signal(_) if stopping.is_some() => return Watched::Abandoned,
                Wake::Signal(asked) => {
                    self.asked = Some(asked);
                    // Queued input is dropped, as the kernel does on Ctrl-C with its own queue.
                    self.keyboard.forget_entries();
                    stopping = stop.take().map(tokio::spawn);
                }
            }
            // The result cannot be shown any more, and the work may cost money.
            if unread && done.is_none() && stopping.is_none() {
                self.view.fall_silent();
                stopping = stop.take().map(tokio::spawn);
            }
        }
        Watched::Over { done, was_stopped: stopping.is_some(), unread }
    }

    pub(super) async fn look_at_children(&mut self) {
        if self.has_children && self.view.draws_children() {
            let children = self.harness.children(&self.conversation).await;
            self.view.children(&children);
        }
    }
}

/// The failure of the Session after its Turn: the end of a child could not be recorded.
fn failure_of(heard: &Heard) -> Option<&Status> {
    let Heard::Event(event) = heard else { return None };
    match event.kind() {
        EventKind::Ephemeral(Ephemeral::Status(status @ Status::Error { .. })) => Some(status),
        EventKind::Ephemeral(_) | EventKind::Canonical(_) => None,
    }
}
