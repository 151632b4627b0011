//! Faults: what the client is told when Pixir cannot do what was asked.

use std::path::Path;

use serde_json::json;

use crate::error::{Kind, Report};
use crate::rpc::Fault;

/// Somebody has to sign in.
const SIGN_IN: i64 = -32_000;
/// There is no such Session, or it is not open.
const NOT_FOUND: i64 = -32_002;

/// A Report as the wire has it. Editors show `details` and nothing else where it stands alone.
pub fn of(report: &Report) -> Fault {
    let told = told(report);
    match Kind::from_name(&report.kind) {
        Some(Kind::NotAuthenticated | Kind::AuthRefused) => Fault::new(SIGN_IN, told),
        Some(Kind::InvalidArgs | Kind::WorkspaceRefused | Kind::OutsideWorkspace) => {
            Fault::invalid_params(told)
        }
        _ => Fault::internal(report.message.clone()).with(json!({ "details": told })),
    }
}

/// A Session that nobody knows, or that is not open here.
pub fn unknown_session(id: &str) -> Fault {
    let shown: String = id.chars().filter(|c| !c.is_control()).take(100).collect();
    // What no Session can be called is not repeated whole.
    let named: String = id.chars().take(100).collect();
    Fault::new(NOT_FOUND, format!("there is no open Session {shown}"))
        .with(json!({ "sessionId": named }))
}

/// A Session that is open, but not where the client looks for it.
pub fn elsewhere(id: &str, workspace: &Path) -> Fault {
    let place = workspace.display();
    Fault::new(NOT_FOUND, format!("Session {id} belongs to {place}, not to this `cwd`"))
        .with(json!({ "sessionId": id, "cwd": workspace.to_string_lossy() }))
}

/// The same, for a Report about a Session that should be opened.
pub fn of_session(report: &Report, id: &str) -> Fault {
    match Kind::from_name(&report.kind) {
        Some(Kind::NotFound) => {
            Fault::new(NOT_FOUND, told(report)).with(json!({ "sessionId": id }))
        }
        Some(Kind::SessionBusy) => {
            let holder = report.details.get("pid").cloned().unwrap_or_default();
            let data = json!({ "sessionId": id, "kind": report.kind, "pid": holder });
            Fault::internal(told(report)).with(data)
        }
        _ => of(report),
    }
}

/// What happened and what to do about it, on one line.
pub fn told(report: &Report) -> String {
    let mut text = report.message.clone();
    for action in report.next_actions() {
        text.extend(["; ", &action]);
    }
    text.replace(['\n', '\r'], " ")
}
