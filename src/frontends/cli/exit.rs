//! Exit codes: the one table that scripts can rely on.

use std::process::ExitCode;

use crate::base::error::{Kind, Report};
use crate::frontends::render::TurnOutcome;
use crate::record::event::{SessionStatus, TerminalStatus};

/// The exit code of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// A final answer, or a command that did its work.
    Answered = 0,
    /// Something went wrong.
    Error = 1,
    /// Bad arguments or settings, or an unknown Session.
    Usage = 2,
    /// A permission was denied, so the run could not start or has no answer.
    Denied = 3,
    /// Not signed in, or the Provider refused the credential.
    NotSignedIn = 4,
    /// The Session is open in another process.
    Busy = 5,
    /// Ended without a complete answer.
    NoAnswer = 6,
    /// The Log cannot be written.
    LogUnwritable = 7,
    /// A deadline passed.
    TimedOut = 124,
    /// Stopped by a signal, or because stdout was closed.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// The status word in the envelope of a workflow or a delegation.
pub fn exit_status_word(exit: Exit) -> &'static str {
    match exit {
        Exit::Answered => "completed",
        Exit::TimedOut => "timed_out",
        Exit::Interrupted => "interrupted",
        Exit::NotSignedIn => "error",
        _ => "incomplete",
    }
}

/// The exit code of an error outside a Turn.
pub fn exit_for_report(report: &Report) -> Exit {
    Kind::from_name(&report.kind).map_or(Exit::Error, exit_for_kind)
}

/// The exit code of a Turn.
pub fn exit_for_turn(ending: &TurnOutcome) -> Exit {
    if ending.status == SessionStatus::Done {
        return if ending.is_completed() { Exit::Answered } else { Exit::NoAnswer };
    }
    let kind = ending.error().and_then(|error| Kind::from_name(&error.kind));
    let by_kind = kind.map_or(Exit::Error, exit_for_kind);
    match ending.terminal_status() {
        Some(TerminalStatus::Interrupted) => Exit::Interrupted,
        Some(TerminalStatus::TimedOut) => Exit::TimedOut,
        // A Turn that is incomplete because calls were denied counts as denied.
        Some(TerminalStatus::Incomplete) if ending.has_denied_call => Exit::Denied,
        Some(
            TerminalStatus::IterationCap
            | TerminalStatus::DoomLoop
            | TerminalStatus::BudgetExceeded
            | TerminalStatus::Incomplete,
        ) => Exit::NoAnswer,
        Some(
            TerminalStatus::ProviderError
            | TerminalStatus::ConfigurationError
            | TerminalStatus::ToolError
            | TerminalStatus::Crashed
            | TerminalStatus::Other(_),
        )
        | None => match by_kind {
            // Inside a Turn these kinds are not about the arguments or the time limit of the run.
            Exit::Usage | Exit::TimedOut => Exit::Error,
            exit => exit,
        },
    }
}

fn exit_for_kind(kind: Kind) -> Exit {
    match kind {
        Kind::InvalidArgs
        | Kind::InvalidConfig
        | Kind::InsecureTransport
        | Kind::NotFound
        | Kind::NoPrompt
        | Kind::OutsideWorkspace
        | Kind::WorkspaceRefused => Exit::Usage,
        Kind::PermissionDenied => Exit::Denied,
        Kind::NotAuthenticated | Kind::AuthRefused => Exit::NotSignedIn,
        Kind::SessionBusy => Exit::Busy,
        Kind::LogWriteFailed => Exit::LogUnwritable,
        Kind::Interrupted => Exit::Interrupted,
        Kind::Timeout => Exit::TimedOut,
        Kind::DoomLoop
        | Kind::IterationCap
        | Kind::Incomplete
        | Kind::ProviderRefusal
        | Kind::SchemaMismatch
        | Kind::BudgetExceeded => Exit::NoAnswer,
        _ => Exit::Error,
    }
}
