//! The stop reason of a Turn, or its error; a prompt is always answered with one of them.

use agent_client_protocol_schema::v1::StopReason;

use super::error;
use crate::base::error::Kind;
use crate::host::rpc::RpcError;
use crate::record::event::{Canonical, SessionStatus, TerminalStatus, TurnFailed};

/// Tracks the Events of a Turn that decide its stop reason.
#[derive(Debug, Default)]
pub struct StopReasonTracker {
    failed: Option<TurnFailed>,
}

impl StopReasonTracker {
    /// Records an Event of the Turn.
    pub fn record_fact(&mut self, fact: &Canonical) {
        if let Canonical::TurnFailed(failed) = fact {
            self.failed = Some(failed.clone());
        }
    }

    /// Whether the Turn recorded a failure, which the user has then seen.
    pub fn is_reported(&self) -> bool {
        self.failed.is_some()
    }

    /// The answer to the prompt when the Turn is over.
    pub fn stop_reason(&self, status: &SessionStatus) -> Result<StopReason, RpcError> {
        match status {
            SessionStatus::Interrupted => return Ok(StopReason::Cancelled),
            SessionStatus::Done => return Ok(StopReason::EndTurn),
            _ => {}
        }
        let Some(failed) = &self.failed else {
            return match status {
                SessionStatus::Error { error, .. } => Err(error::from_report(error)),
                _ => Err(RpcError::internal("the Turn ended without a status")),
            };
        };
        match failed.terminal_status {
            TerminalStatus::Interrupted => Ok(StopReason::Cancelled),
            TerminalStatus::IterationCap => Ok(StopReason::MaxTurnRequests),
            TerminalStatus::Incomplete if failed.error_kind == Kind::ProviderRefusal.name() => {
                Ok(StopReason::Refusal)
            }
            // The server cut the answer, for any reason.
            TerminalStatus::Incomplete if failed.is_cut() => Ok(StopReason::MaxTokens),
            _ => Err(error::from_report(&failed.report())),
        }
    }
}
