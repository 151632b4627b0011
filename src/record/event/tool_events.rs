//! Events of a running tool: live notices on the Bus, and facts for the Log.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Bus, Canonical, Ephemeral, SessionStatus};
use crate::base::error::{Kind, Report};
use crate::base::id::CallId;
use crate::base::tool_error::ToolError;

/// Emits the Events of a running tool: live notices, and facts that are recorded between the call and
/// its result.
#[derive(Clone)]
pub struct ToolEvents {
    bus: Option<Bus>,
    recorder: Option<FactRecorder>,
}

/// Appends a tool's fact to the Log.
pub type FactRecorder =
    Arc<dyn Fn(Canonical) -> BoxFuture<'static, Result<(), Report>> + Send + Sync>;

impl ToolEvents {
    /// Sends live notices to the Session's listeners.
    pub fn to_bus(bus: Bus) -> Self {
        Self { bus: Some(bus), recorder: None }
    }
    /// Discards all Events.
    pub fn discard() -> Self {
        Self { bus: None, recorder: None }
    }
    /// Also records facts in the Log.
    #[must_use]
    pub fn with_recorder(self, recorder: FactRecorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }
    /// Emits the status of the Session.
    pub fn emit_status(&self, status: SessionStatus) {
        if let Some(bus) = &self.bus {
            bus.emit(Ephemeral::Status(status));
        }
    }
    /// Emits a piece of the tool's output.
    pub fn emit_output(&self, call_id: &CallId, chunk: String) {
        if let Some(bus) = &self.bus {
            bus.emit(Ephemeral::ToolOutputDelta { call_id: call_id.clone(), chunk });
        }
    }
    /// Records a fact, which must have no Secrets; returns when it is in the Log.
    pub async fn record(&self, fact: Canonical) -> Result<(), ToolError> {
        let Some(recorder) = &self.recorder else { return Ok(()) };
        recorder(fact).await.map_err(|report| {
            let kind = Kind::from_name(&report.kind).unwrap_or(Kind::LogWriteFailed);
            ToolError::new(kind, report.message).with_details(report.details)
        })
    }
}

impl std::fmt::Debug for ToolEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolEvents").field("bus", &self.bus).finish_non_exhaustive()
    }
}
