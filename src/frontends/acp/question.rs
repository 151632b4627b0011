//! Permission requests to the client, and the parser of its answers.

use std::path::Path;

use agent_client_protocol_schema::v1::{
    PermissionOption, PermissionOptionKind, RequestPermissionRequest, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields,
};
use serde_json::Value;

use super::connection::wire_id;
use super::to_acp::diff::FileBefore;
use super::to_acp::{self, call};
use crate::base::id::SessionId;
use crate::host::rpc::RpcError;
use crate::record::event::{
    PermissionAnswer, PermissionRequest, PermissionResponse, find_hidden, spell_hidden,
    split_mcp_name,
};

/// How much of an MCP call's arguments is shown, in bytes.
const MAX_SHOWN_ARGUMENTS: usize = 16 << 10;

/// The command that allows a prefix, which the client is not offered.
const ALLOW_COMMAND: &str = "pixir permissions allow ";

/// The answer of the client to a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAnswer {
    /// The user answered.
    Response(PermissionResponse),
    /// The user cancelled the Turn.
    Cancelled,
}

/// The permission request, with everything that the user needs to decide.
pub fn permission_request(
    id: &SessionId,
    request: &PermissionRequest,
    root: &Path,
) -> RequestPermissionRequest {
    let summary = call::CallSummary::for_call(&request.tool, &request.args, root);
    let is_guest = split_mcp_name(&request.tool).is_some();
    // The summary has the original names of the server and the tool.
    let title = if is_guest { call::bounded_title(&request.summary) } else { summary.title };
    let locations = if request.paths.is_empty() {
        summary.locations
    } else {
        let directory = Path::new(&request.directory);
        let first = request.diff.as_deref().and_then(to_acp::diff::first_line);
        let paths = request.paths.iter().map(|path| directory.join(path));
        paths.map(|path| call::location(path, first)).collect()
    };
    let mut content = match (&request.diff, &request.command) {
        (Some(diff), _) => {
            let is_change = request.summary.starts_with("change ");
            let before = if is_change { FileBefore::Existed } else { FileBefore::Unknown };
            to_acp::diff::diff_content(diff, Path::new(&request.directory), before)
        }
        (None, Some(command)) => {
            vec![call::text_content(&command_text(request, &command.text, &command.parts))]
        }
        (None, None) if is_guest => vec![call::text_content(&mcp_call_text(request))],
        (None, None) => vec![call::text_content(&spell_hidden(&request.summary))],
    };
    if request.diff_is_cut {
        content.push(call::text_content(
            "The diff is too long to be shown whole; the input has all of it.",
        ));
    }
    let hidden = hidden_characters(request);
    if !hidden.is_empty() {
        let words = format!("It contains hidden characters: {}", hidden.join(" "));
        content.push(call::text_content(&words));
    }
    let fields = ToolCallUpdateFields::new()
        .title(to_acp::child::question_title(request, &title))
        .kind(summary.kind)
        .status(ToolCallStatus::Pending)
        .content(content)
        .locations(locations)
        .raw_input(request.args.clone());
    let call = ToolCallUpdate::new(request.call_id.to_string(), fields);
    let options = offered_answers(request).map(|answer| answer_option(answer, request)).collect();
    RequestPermissionRequest::new(wire_id(id), call, options)
}

/// The text for an MCP call: all of its arguments, and that the sandbox does not confine it.
fn mcp_call_text(request: &PermissionRequest) -> String {
    let all = serde_json::to_string_pretty(&request.args).unwrap_or_default();
    let all = spell_hidden(&all);
    let summary = spell_hidden(&request.summary);
    let end = all.floor_char_boundary(MAX_SHOWN_ARGUMENTS);
    let shown = to_acp::fenced(all.get(..end).unwrap_or_default(), "json");
    let rest = if end < all.len() {
        "\n\nThe arguments are too long to be shown whole; the input has all of them."
    } else {
        ""
    };
    format!("{summary}\n\n{shown}{rest}\n\nAn MCP server runs outside the sandbox.")
}

/// The hidden characters of the question, as code points.
fn hidden_characters(request: &PermissionRequest) -> Vec<String> {
    let arguments = request.command.is_none().then(|| request.args.to_string());
    let command = request.command.as_ref().map(|command| command.text.as_str());
    let names = request.paths.iter().map(String::as_str).chain(command).chain(arguments.as_deref());
    find_hidden(names.chain(request.diff.as_deref().into_iter().flat_map(str::lines)))
}

fn command_text(request: &PermissionRequest, text: &str, parts: &[String]) -> String {
    let mut text_shown = to_acp::fenced(&spell_hidden(text), "sh");
    if parts.len() > 1 {
        text_shown.push_str("\n\nIts parts:\n");
        for part in parts {
            text_shown.extend(["- `", &spell_hidden(part).replace('`', "'"), "`\n"]);
        }
    }
    text_shown.extend(["\n\nIn ", &spell_hidden(&request.directory)]);
    if request.network {
        text_shown.push_str(", with the network");
    }
    if request.local_sockets {
        text_shown.push_str(", with the Unix sockets of other programs on this machine");
    }
    if let Some(prefix) = request.prefix.as_deref().map(spell_hidden) {
        let prefix = prefix.as_str();
        text_shown.extend([
            "\n\nTo allow every `",
            prefix,
            " …` in this project: `",
            ALLOW_COMMAND,
            prefix,
            "`",
        ]);
    }
    if request.is_unsandboxed {
        text_shown.push_str("\n\n**The sandbox is off: this command can do whatever you can do.**");
    }
    text_shown
}

/// The answers that the client is offered. Some clients have one "always" and use the last option of
/// that kind for it, so there is one: the narrowest that can cover another call. An edit or an MCP
/// call is hardly ever repeated exactly.
fn offered_answers(request: &PermissionRequest) -> impl Iterator<Item = PermissionAnswer> {
    let is_kind = |answer: &PermissionAnswer| {
        matches!(answer, PermissionAnswer::SessionTool | PermissionAnswer::SessionEdits)
    };
    let kind = request.answers.iter().copied().find(is_kind);
    let is_always =
        move |answer: PermissionAnswer| answer == kind.unwrap_or(PermissionAnswer::Session);
    let is_offered = move |answer: &PermissionAnswer| {
        matches!(answer, PermissionAnswer::Once | PermissionAnswer::No) || is_always(*answer)
    };
    request.answers.iter().copied().filter(is_offered)
}

fn answer_option(answer: PermissionAnswer, request: &PermissionRequest) -> PermissionOption {
    let kind = match answer {
        PermissionAnswer::Once => PermissionOptionKind::AllowOnce,
        PermissionAnswer::No => PermissionOptionKind::RejectOnce,
        _ => PermissionOptionKind::AllowAlways,
    };
    PermissionOption::new(option_id(answer), answer_label(answer, request), kind)
}

/// The label of an answer's button: what it covers, and for how long.
fn answer_label(answer: PermissionAnswer, request: &PermissionRequest) -> String {
    let session = match request.agent {
        Some(_) => "in the session of this subagent",
        None => "in this session",
    };
    match answer {
        PermissionAnswer::Once => "Allow once".to_owned(),
        PermissionAnswer::SessionTool => {
            let (server, tool) = split_mcp_name(&request.tool).unwrap_or_default();
            let (server, tool) = (spell_hidden(server), spell_hidden(tool));
            format!("Always allow the tool {tool} of MCP server {server} {session}")
        }
        PermissionAnswer::SessionEdits => {
            format!(
                "Always allow write, edit and apply_patch to change, create, move and delete files {session}"
            )
        }
        PermissionAnswer::Session | PermissionAnswer::Project | PermissionAnswer::Prefix => {
            format!("Always allow exactly this call {session}")
        }
        PermissionAnswer::No => "Reject".to_owned(),
    }
}

/// The id of an answer on the wire; clients may remember it.
fn option_id(answer: PermissionAnswer) -> &'static str {
    match answer {
        PermissionAnswer::Once => "once",
        PermissionAnswer::Session => "session",
        PermissionAnswer::SessionTool => "session_tool",
        PermissionAnswer::SessionEdits => "session_edits",
        PermissionAnswer::Project => "project",
        PermissionAnswer::Prefix => "prefix",
        PermissionAnswer::No => "reject",
    }
}

/// Parses the client's answer. An invalid one counts as a rejection.
pub fn parse_answer(
    outcome: &Result<Value, RpcError>,
    request: &PermissionRequest,
) -> ClientAnswer {
    let Ok(result) = outcome else { return ClientAnswer::Response(PermissionAnswer::No.into()) };
    let outcome = &result["outcome"];
    if outcome["outcome"] == "cancelled" {
        return ClientAnswer::Cancelled;
    }
    let chosen = outcome["optionId"].as_str().unwrap_or_default();
    let answer = offered_answers(request).find(|answer| option_id(*answer) == chosen);
    let answer = answer.unwrap_or(PermissionAnswer::No);
    let words = (answer == PermissionAnswer::No).then(|| feedback_text(result)).flatten();
    ClientAnswer::Response(PermissionResponse { answer, message: words })
}

/// The user's feedback to the model with a rejection, under the names that clients use.
fn feedback_text(result: &Value) -> Option<String> {
    let metas = [&result["outcome"]["_meta"], &result["_meta"]];
    let names = ["feedback", "message", "reason"];
    let texts = metas.into_iter().flat_map(|meta| names.map(|name| meta[name].as_str()));
    let words = texts.flatten().map(str::trim).find(|words| !words.is_empty());
    words.map(str::to_owned)
}
