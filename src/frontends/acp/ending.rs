//! The stop reason of a Turn, or its error; a prompt is always answered with one of them.

use agent_client_protocol_schema::v1::StopReason;

use super::fault;
use crate::base::error::Kind;
use crate::host::rpc::Fault;
use crate::record::event::{Canonical, Status, TerminalStatus, TurnFailed};

/// Tracks the Events of a Turn that decide its stop reason.
#[derive(Debug, Default)]
pub struct Ending {
    failed: Option<TurnFailed>,
}

impl Ending {
    /// Records an Event of the Turn.
    pub fn hear(&mut self, fact: &Canonical) {
        if let Canonical::TurnFailed(failed) = fact {
            self.failed = Some(failed.clone());
        }
    }

    /// Whether the Turn recorded a failure, which the user has then seen.
    pub fn is_told(&self) -> bool {
        self.failed.is_some()
    }

    /// The answer to the prompt when the Turn is over.
    pub fn outcome(&self, status: &Status) -> Result<StopReason, Fault> {
        match status {
            Status::Interrupted => return Ok(StopReason::Cancelled),
            Status::Done => return Ok(StopReason::EndTurn),
            _ => {}
        }
        let Some(failed) = &self.failed else {
            return match status {
                Status::Error { error, .. } => Err(fault::of(error)),
                _ => Err(Fault::internal("the Turn ended without a status")),
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
            _ => Err(fault::of(&failed.report())),
        }
    }
}
