//! JSON-RPC errors for the client, from Reports.

use std::path::Path;

use serde_json::json;

use crate::base::error::{Kind, Report};
use crate::host::rpc::RpcError;

/// The code for a missing or refused credential.
const SIGN_IN: i64 = -32_000;
/// The code for a Session that does not exist or is not open.
const NOT_FOUND: i64 = -32_002;

/// The JSON-RPC error of a Report. Some editors show nothing but `details`, so it has the whole text.
pub fn from_report(report: &Report) -> RpcError {
    let text = report_text(report);
    match Kind::from_name(&report.kind) {
        Some(Kind::NotAuthenticated | Kind::AuthRefused) => RpcError::new(SIGN_IN, text),
        Some(Kind::InvalidArgs | Kind::WorkspaceRefused | Kind::OutsideWorkspace) => {
            RpcError::invalid_params(text)
        }
        _ => RpcError::internal(report.message.clone()).with_data(json!({ "details": text })),
    }
}

/// The error for a Session that does not exist or is not open here.
pub fn unknown_session(id: &str) -> RpcError {
    let shown: String = id.chars().filter(|c| !c.is_control()).take(100).collect();
    // The id may be invalid and long, so it is cut.
    let named: String = id.chars().take(100).collect();
    RpcError::new(NOT_FOUND, format!("there is no open Session {shown}"))
        .with_data(json!({ "sessionId": named }))
}

/// The error for a Session that is open in another directory than the client names.
pub fn wrong_directory(id: &str, workspace: &Path) -> RpcError {
    let place = workspace.display();
    RpcError::new(NOT_FOUND, format!("Session {id} belongs to {place}, not to this `cwd`"))
        .with_data(json!({ "sessionId": id, "cwd": workspace.to_string_lossy() }))
}

/// The JSON-RPC error of a Report about a Session that was to be opened.
pub fn from_session_report(report: &Report, id: &str) -> RpcError {
    match Kind::from_name(&report.kind) {
        Some(Kind::NotFound) => {
            RpcError::new(NOT_FOUND, report_text(report)).with_data(json!({ "sessionId": id }))
        }
        Some(Kind::SessionBusy) => {
            let holder = report.details.get("pid").cloned().unwrap_or_default();
            let data = json!({ "sessionId": id, "kind": report.kind, "pid": holder });
            RpcError::internal(report_text(report)).with_data(data)
        }
        _ => from_report(report),
    }
}

/// The message and the next actions of a Report, on one line.
pub fn report_text(report: &Report) -> String {
    let mut text = report.message.clone();
    for action in report.next_actions() {
        text.extend(["; ", &action]);
    }
    text.replace(['\n', '\r'], " ")
}
