//! Recording of files for undo around the commands of a Turn, with its status and its early end.

use std::io;
use std::pin::pin;
use std::time::Duration;

use super::{Turn, TurnEnd};
use crate::base::blocking;
use crate::base::id::CallId;
use crate::host::snapshot::{RunningCommand, TurnRecord, TurnTracker};
use crate::record::event::{Ephemeral, RecordedFiles, SessionStatus};

/// Interval of progress Events while files are recorded.
const RECORDING_TICK: Duration = Duration::from_millis(100);

/// Interval at which a recording is stopped again until it has ended, because it may not have begun.
const STOP_TICK: Duration = Duration::from_millis(5);

/// The reason in the Record of a Turn whose file changes are not recorded.
const RECORDING_IS_OFF: &str = "the setting undo.enabled was false";

impl Turn {
    /// Records all files before a command. An interrupt ends the recording and the Turn.
    pub(super) async fn survey_before(
        &self,
        call_id: &CallId,
    ) -> Result<Option<RunningCommand>, TurnEnd> {
        let Some(tracker) = &self.settings.tracker else { return Ok(None) };
        let running = tracker.command_started();
        if tracker.try_before_command() {
            return Ok(Some(running));
        }
        let stop = self.context.cancel().cancelled();
        let surveyed = watch_survey(tracker, TurnTracker::before_command, stop, |files| {
            self.emit_recording(call_id, files);
        });
        if let Err(error) = Box::pin(surveyed).await {
            tracing::warn!(%error, "files are not recorded before a command");
        }
        if self.context.cancel().is_cancelled() {
            return Err(TurnEnd::Interrupted);
        }
        Ok(Some(running))
    }

    /// Records all files again after a command: changes before the next command are not the Turn's. The
    /// recording ends early at `stop`, and the result of the command is kept.
    pub(super) async fn survey_after(
        &self,
        call_id: &CallId,
        running: Option<RunningCommand>,
        stop: impl Future<Output = ()>,
    ) {
        let (Some(tracker), Some(running)) = (&self.settings.tracker, running) else { return };
        drop(running);
        if tracker.try_after_command() {
            return;
        }
        let surveyed = watch_survey(tracker, TurnTracker::after_command, stop, |files| {
            self.emit_recording(call_id, files);
        });
        if let Err(error) = Box::pin(surveyed).await {
            tracing::warn!(%error, "file changes of a command are not recorded");
        }
    }

    /// Records the files that commands of this Turn changed, so that it can be undone. An interrupt
    /// leaves the recording a short time.
    pub(super) async fn record_file_changes(&self) {
        let Some(tracker) = &self.settings.tracker else { return };
        let stop = async {
            self.context.cancel().cancelled().await;
            tokio::time::sleep(self.settings.tool_grace / 4).await;
        };
        match Box::pin(watch_survey(tracker, TurnTracker::end_turn, stop, |_| {})).await {
            Ok(None) => {}
            Ok(Some(reason)) => tracing::info!(reason, "undo covers file tools only"),
            Err(error) => tracing::warn!(%error, "file changes of commands are not recorded"),
        }
    }

    /// Records that the file changes of this Turn are not recorded, because the user turned that off.
    pub(super) async fn record_missing_tracker(&self) {
        let Some(turn) = self.seq.get().copied() else { return };
        let (workspace, folder) =
            (self.settings.workspace.clone(), self.settings.session_folder.clone());
        let written = blocking::run_blocking(move || {
            TurnRecord::save_reason(&workspace, &folder, turn, RECORDING_IS_OFF)
        });
        if let Ok(Err(error)) = written.await {
            tracing::warn!(%error, "it is not recorded that recording is off");
        }
    }

    fn emit_recording(&self, call_id: &CallId, files: Option<RecordedFiles>) {
        let call_id = call_id.clone();
        self.context.emit(Ephemeral::Status(SessionStatus::Recording { call_id, files }));
    }
}

/// Runs a survey on a thread and reports its progress if it takes long; it ends early at `stop`. The future is large,
/// so callers put it on the heap.
async fn watch_survey<T: Send + 'static>(
    tracker: &TurnTracker,
    survey: fn(&TurnTracker) -> io::Result<T>,
    stop: impl Future<Output = ()>,
    report: impl Fn(Option<RecordedFiles>),
) -> io::Result<T> {
    let surveying = tracker.clone();
    let mut surveyed = blocking::run_blocking(move || survey(&surveying));
    let mut stop = pin!(stop);
    let mut is_stopped = false;
    let mut reported = None;
    loop {
        let tick = if is_stopped { STOP_TICK } else { RECORDING_TICK };
        tokio::select! {
            biased;
            done = &mut surveyed => return done.map_err(io::Error::other)?,
            () = &mut stop, if !is_stopped => is_stopped = true,
            () = tokio::time::sleep(tick) => {}
        }
        let progress = tracker.progress();
        if is_stopped {
            progress.inspect(|progress| progress.stop().request());
            continue;
        }
        // The first report has no numbers, for front-ends that show it only once.
        let files = progress.filter(|_| reported.is_some()).and_then(|progress| progress.files());
        let files =
            files.map(|(done, total)| RecordedFiles { done: done as u64, total: total as u64 });
        if reported.replace(files) != Some(files) {
            report(files);
        }
    }
}
