//! Errors of MCP servers, with next actions for the user.

use std::time::Duration;

use serde_json::json;

use crate::base::error::{Explain, Explanation, Kind};
use crate::host::http::HttpError;
use crate::host::process::{CommandError, CommandExit};

/// The reason why a server cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum McpError {
    /// The server's program cannot be started.
    #[error("its program does not start: {reason}")]
    Start { kind: Kind, reason: String, next: Vec<String> },
    /// The server's program has ended.
    #[error("its program ended {end}{}", last_line(.errors))]
    Ended { end: String, errors: String },
    /// The server's program reads no more input; it is not known yet whether it has ended.
    #[error("its program ended or closed its pipes{}", last_line(.errors))]
    PipesClosed { errors: String },
    /// The server does not answer.
    #[error("it did not answer within {}{}", format_duration(.after), last_line(.errors))]
    TimedOut { after: Duration, errors: String },
    /// The server sends messages that are not valid MCP.
    #[error("it violates the MCP protocol: {reason}")]
    Protocol { reason: String, errors: String },
    /// The server requires authentication.
    #[error("it refused the request: HTTP {status}")]
    Unauthorized { status: u16 },
    /// The server answers with an HTTP error.
    #[error("it answered with HTTP {status}{}", redirect_note(*.status))]
    Http { status: u16 },
    /// The server cannot be reached.
    #[error("it cannot be reached: {reason}")]
    Network { kind: Kind, reason: String },
    /// The server's entry in the settings is invalid.
    #[error("{0}")]
    InvalidSetting(String),
    /// The entry's headers would be sent unencrypted.
    #[error("its address is not protected: headers would be sent over plain http to {0}")]
    Insecure(String),
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
}

impl McpError {
    /// Whether trying again cannot help.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Start { kind, .. } => matches!(kind, Kind::NotFound | Kind::InvalidArgs),
            Self::Unauthorized { .. } | Self::InvalidSetting(_) | Self::Insecure(_) => true,
            Self::Network { kind, .. } => *kind == Kind::InvalidConfig,
            Self::Http { status } => is_redirect(*status),
            Self::Ended { .. }
            | Self::PipesClosed { .. }
            | Self::TimedOut { .. }
            | Self::Protocol { .. }
            | Self::Closed => false,
        }
    }

    /// Adds the end of the program's standard error.
    #[must_use]
    pub fn with_errors(mut self, output: String) -> Self {
        if let Self::Ended { errors, .. }
        | Self::PipesClosed { errors }
        | Self::TimedOut { errors, .. }
        | Self::Protocol { errors, .. } = &mut self
        {
            *errors = output;
        }
        self
    }

    /// The error for a program that has ended, or did not start.
    pub fn from_exit(ending: Result<CommandExit, CommandError>) -> Self {
        let end = match ending {
            Ok(CommandExit::Code(code)) => format!("with exit code {code}"),
            Ok(CommandExit::Signal(signal)) => format!("by signal {signal}"),
            Ok(CommandExit::Unknown) => "for an unknown reason".to_owned(),
            Err(error) => return Self::from(&error),
        };
        Self::Ended { end, errors: String::new() }
    }

    /// The error for an invalid message.
    pub fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol { reason: reason.into(), errors: String::new() }
    }
}

impl From<&CommandError> for McpError {
    fn from(error: &CommandError) -> Self {
        let next = error.next_actions();
        Self::Start { kind: error.kind(), reason: error.to_string(), next }
    }
}

impl From<&HttpError> for McpError {
    fn from(error: &HttpError) -> Self {
        Self::Network { kind: error.kind(), reason: error.to_string() }
    }
}

impl Explain for McpError {
    fn explain(&self) -> Explanation {
        let explained = match self {
            Self::Start { kind, next, .. } => {
                Explanation { next_actions: next.clone(), ..(*kind).into() }
            }
            Self::Network { kind, .. } => {
                kind.with_next_action("check its `url`, and that the server runs")
            }
            Self::Ended { .. } | Self::PipesClosed { .. } => Kind::McpServerFailed
                .with_next_action("run its command by hand, and read its output"),
            Self::TimedOut { .. } => Kind::Timeout.with_next_action(
                "run its command by hand, or raise `mcp.connect_ms` if it is slow",
            ),
            Self::Protocol { .. } => Kind::McpServerFailed
                .with_next_action("check that the command or address is an MCP server"),
            Self::Unauthorized { status } => {
                Kind::AuthRefused.with_details(json!({ "status": status })).with_next_action(
                    "give it an `Authorization` header in `headers`; `${NAME}` takes it from the \
                     environment",
                )
            }
            Self::Http { status } => Kind::McpServerFailed
                .with_details(json!({ "status": status }))
                .with_next_action(if is_redirect(*status) {
                    "set its `url` to the address of the redirect"
                } else {
                    "check its `url`, and the log of the server"
                }),
            Self::InvalidSetting(_) => {
                Kind::InvalidConfig.with_next_action("correct its entry in `mcp_servers`")
            }
            Self::Insecure(_) => {
                Kind::InsecureTransport.with_next_action("use https, or a server on this machine")
            }
            Self::Closed => Kind::McpServerFailed.into(),
        };
        match self {
            Self::Ended { errors, .. }
            | Self::PipesClosed { errors }
            | Self::TimedOut { errors, .. }
            | Self::Protocol { errors, .. }
                if !errors.is_empty() =>
            {
                explained.with_details(json!({ "stderr": errors }))
            }
            _ => explained,
        }
    }
}

fn is_redirect(status: u16) -> bool {
    (300..400).contains(&status)
}

fn redirect_note(status: u16) -> &'static str {
    if is_redirect(status) { ", a redirect, which is not followed" } else { "" }
}

fn format_duration(span: &Duration) -> String {
    if span.as_millis() < 1000 {
        return format!("{} ms", span.as_millis());
    }
    format!("{} s", span.as_secs())
}

/// The last line that is not empty.
fn last_line(errors: &str) -> String {
    let last = errors.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.map(|line| format!(": {}", crate::base::text::truncate_chars(line, 200)))
        .unwrap_or_default()
}
