//! Permission requests to the client, and the parser of its answers.

use std::path::Path;

use agent_client_protocol_schema::v1::{
    PermissionOption, PermissionOptionKind, RequestPermissionRequest, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields,
};
use serde_json::Value;

use super::connection::wire_id;
use super::to_acp::diff::Before;
use super::to_acp::{self, call};
use crate::base::id::SessionId;
use crate::host::rpc::Fault;
use crate::record::event::{Answer, PermissionRequest, Said, guest, hidden_in, spell_hidden};

/// How much of an MCP call's arguments is shown, in bytes.
const SHOWN_ARGUMENTS: usize = 16 << 10;

/// The command that allows a prefix, which the client is not offered.
const WIDER: &str = "pixir permissions allow ";

/// The answer of the client to a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replied {
    /// The user answered.
    Said(Said),
    /// The user cancelled the Turn.
    Cancelled,
}

/// The permission request, with everything that the user needs to decide.
pub fn question(
    id: &SessionId,
    asked: &PermissionRequest,
    root: &Path,
) -> RequestPermissionRequest {
    let look = call::Look::of(&asked.tool, &asked.args, root);
    let is_guest = guest(&asked.tool).is_some();
    // The summary has the original names of the server and the tool.
    let title = if is_guest { call::bounded(&asked.summary) } else { look.title };
    let locations = if asked.paths.is_empty() {
        look.locations
    } else {
        let directory = Path::new(&asked.directory);
        let first = asked.diff.as_deref().and_then(to_acp::diff::first_line);
        let paths = asked.paths.iter().map(|path| directory.join(path));
        paths.map(|path| call::location(path, first)).collect()
    };
    let mut content = match (&asked.diff, &asked.command) {
        (Some(diff), _) => {
            let is_change = asked.summary.starts_with("change ");
            let before = if is_change { Before::There } else { Before::Unknown };
            to_acp::diff::content(diff, Path::new(&asked.directory), before)
        }
        (None, Some(command)) => {
            vec![call::text(&command_text(asked, &command.text, &command.parts))]
        }
        (None, None) if is_guest => vec![call::text(&guest_text(asked))],
        (None, None) => vec![call::text(&spell_hidden(&asked.summary))],
    };
    if asked.diff_is_cut {
        content
            .push(call::text("The diff is too long to be shown whole; the input has all of it."));
    }
    let hidden = hidden_characters(asked);
    if !hidden.is_empty() {
        let words = format!("It contains hidden characters: {}", hidden.join(" "));
        content.push(call::text(&words));
    }
    let fields = ToolCallUpdateFields::new()
        .title(to_acp::child::asked_title(asked, &title))
        .kind(look.kind)
        .status(ToolCallStatus::Pending)
        .content(content)
        .locations(locations)
        .raw_input(asked.args.clone());
    let call = ToolCallUpdate::new(asked.call_id.to_string(), fields);
    let options = offered(asked).map(|answer| option(answer, asked)).collect();
    RequestPermissionRequest::new(wire_id(id), call, options)
}

/// The text for an MCP call: all of its arguments, and that the sandbox does not confine it.
fn guest_text(asked: &PermissionRequest) -> String {
    let all = serde_json::to_string_pretty(&asked.args).unwrap_or_default();
    let all = spell_hidden(&all);
    let summary = spell_hidden(&asked.summary);
    let end = all.floor_char_boundary(SHOWN_ARGUMENTS);
    let shown = to_acp::fenced(all.get(..end).unwrap_or_default(), "json");
    let rest = if end < all.len() {
        "\n\nThe arguments are too long to be shown whole; the input has all of them."
    } else {
        ""
    };
    format!("{summary}\n\n{shown}{rest}\n\nAn MCP server runs outside the sandbox.")
}

/// The hidden characters of the question, as code points.
fn hidden_characters(asked: &PermissionRequest) -> Vec<String> {
    let arguments = asked.command.is_none().then(|| asked.args.to_string());
    let command = asked.command.as_ref().map(|command| command.text.as_str());
    let names = asked.paths.iter().map(String::as_str).chain(command).chain(arguments.as_deref());
    hidden_in(names.chain(asked.diff.as_deref().into_iter().flat_map(str::lines)))
}

fn command_text(asked: &PermissionRequest, text: &str, parts: &[String]) -> String {
    let mut told = to_acp::fenced(&spell_hidden(text), "sh");
    if parts.len() > 1 {
        told.push_str("\n\nIts parts:\n");
        for part in parts {
            told.extend(["- `", &spell_hidden(part).replace('`', "'"), "`\n"]);
        }
    }
    told.extend(["\n\nIn ", &spell_hidden(&asked.directory)]);
    if asked.network {
        told.push_str(", with the network");
    }
    if asked.local_sockets {
        told.push_str(", with the Unix sockets of other programs on this machine");
    }
    if let Some(prefix) = asked.prefix.as_deref().map(spell_hidden) {
        let prefix = prefix.as_str();
        told.extend(["\n\nTo allow every `", prefix, " …` in this project: `", WIDER, prefix, "`"]);
    }
    if asked.is_unsandboxed {
        told.push_str("\n\n**The sandbox is off: this command can do whatever you can do.**");
    }
    told
}

/// The answers that the client is offered. Some clients have one "always" and use the last option of
/// that kind for it, so there is one: the narrowest that can cover another call. An edit or an MCP
/// call is hardly ever repeated exactly.
fn offered(asked: &PermissionRequest) -> impl Iterator<Item = Answer> {
    let is_kind = |answer: &Answer| matches!(answer, Answer::SessionTool | Answer::SessionEdits);
    let kind = asked.answers.iter().copied().find(is_kind);
    let is_always = move |answer: Answer| answer == kind.unwrap_or(Answer::Session);
    let is_offered =
        move |answer: &Answer| matches!(answer, Answer::Once | Answer::No) || is_always(*answer);
    asked.answers.iter().copied().filter(is_offered)
}

fn option(answer: Answer, asked: &PermissionRequest) -> PermissionOption {
    let kind = match answer {
        Answer::Once => PermissionOptionKind::AllowOnce,
        Answer::No => PermissionOptionKind::RejectOnce,
        _ => PermissionOptionKind::AllowAlways,
    };
    PermissionOption::new(option_id(answer), label(answer, asked), kind)
}

/// The label of an answer's button: what it covers, and for how long.
fn label(answer: Answer, asked: &PermissionRequest) -> String {
    let session = match asked.agent {
        Some(_) => "in the session of this subagent",
        None => "in this session",
    };
    match answer {
        Answer::Once => "Allow once".to_owned(),
        Answer::SessionTool => {
            let (server, tool) = guest(&asked.tool).unwrap_or_default();
            let (server, tool) = (spell_hidden(server), spell_hidden(tool));
            format!("Always allow the tool {tool} of MCP server {server} {session}")
        }
        Answer::SessionEdits => {
            format!(
                "Always allow write, edit and apply_patch to change, create, move and delete files {session}"
            )
        }
        Answer::Session | Answer::Project | Answer::Prefix => {
            format!("Always allow exactly this call {session}")
        }
        Answer::No => "Reject".to_owned(),
    }
}

/// The id of an answer on the wire; clients may remember it.
fn option_id(answer: Answer) -> &'static str {
    match answer {
        Answer::Once => "once",
        Answer::Session => "session",
        Answer::SessionTool => "session_tool",
        Answer::SessionEdits => "session_edits",
        Answer::Project => "project",
        Answer::Prefix => "prefix",
        Answer::No => "reject",
    }
}

/// Parses the client's answer. An invalid one counts as a rejection.
pub fn replied(outcome: &Result<Value, Fault>, asked: &PermissionRequest) -> Replied {
    let Ok(result) = outcome else { return Replied::Said(Answer::No.into()) };
    let outcome = &result["outcome"];
    if outcome["outcome"] == "cancelled" {
        return Replied::Cancelled;
    }
    let chosen = outcome["optionId"].as_str().unwrap_or_default();
    let answer = offered(asked).find(|answer| option_id(*answer) == chosen);
    let answer = answer.unwrap_or(Answer::No);
    let words = (answer == Answer::No).then(|| words(result)).flatten();
    Replied::Said(Said { answer, words })
}

/// The user's feedback to the model with a rejection, under the names that clients use.
fn words(result: &Value) -> Option<String> {
    let metas = [&result["outcome"]["_meta"], &result["_meta"]];
    let names = ["feedback", "message", "reason"];
    let said = metas.into_iter().flat_map(|meta| names.map(|name| meta[name].as_str()));
    let words = said.flatten().map(str::trim).find(|words| !words.is_empty());
    words.map(str::to_owned)
}
