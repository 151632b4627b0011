//! Endings: how a Turn ended, as a stop reason or as an error; never as nothing.

use agent_client_protocol_schema::v1::StopReason;

use super::fault;
use crate::error::Kind;
use crate::event::{Canonical, Status, TerminalStatus, TurnFailed};
use crate::rpc::Fault;

/// What is known of how a Turn goes.
#[derive(Debug, Default)]
pub struct Ending {
    failed: Option<TurnFailed>,
}

impl Ending {
    /// Takes in a fact of the Turn.
    pub fn hear(&mut self, fact: &Canonical) {
        if let Canonical::TurnFailed(failed) = fact {
            self.failed = Some(failed.clone());
        }
    }

    /// Whether the Log says how it failed; then the user has seen it.
    pub fn is_told(&self) -> bool {
        self.failed.is_some()
    }

    /// What the prompt is answered with when the Turn is over.
    pub fn outcome(&self, status: &Status) -> Result<StopReason, Fault> {
        match status {
            Status::Interrupted => return Ok(StopReason::Cancelled),
            Status::Done => return Ok(StopReason::EndTurn),
            _ => {}
        }
        let Some(failed) = &self.failed else {
            return match status {
                Status::Error { error, .. } => Err(fault::of(error)),
                _ => Err(Fault::internal("the Turn ended without saying how")),
            };
        };
        match failed.terminal_status {
            TerminalStatus::Interrupted => Ok(StopReason::Cancelled),
            TerminalStatus::IterationCap => Ok(StopReason::MaxTurnRequests),
            TerminalStatus::Incomplete if failed.error_kind == Kind::ProviderRefusal.name() => {
                Ok(StopReason::Refusal)
            }
            // The server cut the answer, with whatever reason or none.
            TerminalStatus::Incomplete if failed.is_cut() => Ok(StopReason::MaxTokens),
            _ => Err(fault::of(&failed.report())),
        }
    }
}
