//! Tool calls as ACP updates: title, kind, locations, output and result.

use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1::{
    Content, ContentBlock, Meta, SessionUpdate, Terminal, TextContent, ToolCall, ToolCallContent,
    ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use serde_json::{Value, json};

use super::diff::{self, FileBefore};
use super::fenced;
use crate::frontends::acp::capabilities::ClientCapabilities;
use crate::record::event;
use crate::record::event::{ToolResult, describe_mcp_call, spell_hidden, split_mcp_name};

/// The longest title, in characters.
const TITLE_CHARS: usize = 200;

/// How much of a running command's output is shown where there is no terminal, in bytes.
const MAX_SHOWN_OUTPUT: usize = 16 << 10;

/// How each tool is shown: its kind, and the verb before its main argument.
const TOOL_STYLES: &[(&str, ToolKind, &str)] = &[
    ("apply_patch", ToolKind::Edit, "Edit"),
    ("bash", ToolKind::Execute, ""),
    ("bash_input", ToolKind::Execute, "Write to"),
    ("bash_output", ToolKind::Execute, "Output of"),
    ("bash_stop", ToolKind::Execute, "Stop"),
    ("close_agent", ToolKind::Other, "Close"),
    ("edit", ToolKind::Edit, "Edit"),
    ("glob", ToolKind::Search, "Find"),
    ("grep", ToolKind::Search, "Search"),
    ("list", ToolKind::Read, "List"),
    ("list_agents", ToolKind::Read, "List Subagents"),
    ("merge_child", ToolKind::Edit, "Merge changes of"),
    ("read", ToolKind::Read, "Read"),
    ("resource_view", ToolKind::Read, "Look at"),
    ("run_workflow", ToolKind::Think, "Run workflow"),
    ("send_input", ToolKind::Think, "Tell"),
    ("skill_view", ToolKind::Read, "Read skill"),
    ("skills_list", ToolKind::Read, "List skills"),
    ("spawn_agent", ToolKind::Think, "Delegate"),
    ("update_plan", ToolKind::Think, "Plan"),
    ("wait_agent", ToolKind::Think, "Wait for Subagents"),
    ("write", ToolKind::Edit, "Write"),
];

/// The arguments that describe a call best, in this order.
const TITLE_ARGUMENTS: &[&str] = &[
    "command",
    "cmd",
    "path",
    "file_path",
    "pattern",
    "query",
    "url",
    "name",
    "id",
    "handle",
    "task",
];

/// Title, kind and locations of a call, from its arguments.
#[derive(Debug, Clone)]
pub struct CallSummary {
    pub title: String,
    pub kind: ToolKind,
    pub locations: Vec<ToolCallLocation>,
}

impl CallSummary {
    /// Summarises a call of a tool.
    pub fn for_call(tool: &str, args: &Value, root: &Path) -> Self {
        if let Some((server, own)) = split_mcp_name(tool) {
            let title = describe_mcp_call(server, own, args, TITLE_CHARS);
            return Self {
                title: bounded_title(&title),
                kind: ToolKind::Other,
                locations: Vec::new(),
            };
        }
        let known = TOOL_STYLES.iter().find(|(name, ..)| *name == tool);
        let (kind, verb) = known.map_or((ToolKind::Other, tool), |(_, kind, verb)| (*kind, *verb));
        let text = |key: &str| args.get(key).and_then(Value::as_str);
        let patched =
            text("patch").or_else(|| text("input")).map(patched_files).unwrap_or_default();
        let (verb, about) = match tool {
            "run_workflow" => workflow_title(args),
            // Its `path` is relative to the Skill's folder.
            "skill_view" => (verb, text("name").map(str::to_owned)),
            _ => (verb, TITLE_ARGUMENTS.iter().find_map(|key| text(key)).map(str::to_owned)),
        };
        let about = about.or_else(|| (!patched.is_empty()).then(|| patched.join(", ")));
        let title = match (verb, about) {
            ("", Some(about)) => about,
            (verb, Some(about)) => format!("{verb} {about}"),
            ("", None) => tool.to_owned(),
            (verb, None) => verb.to_owned(),
        };
        let line = args.get("offset").and_then(Value::as_u64).filter(|_| tool == "read");
        let line = line.and_then(|line| u32::try_from(line).ok());
        let path = text("path").or_else(|| text("file_path"));
        let path = path.filter(|_| tool != "skill_view").map(str::to_owned);
        let named = path.into_iter().chain(patched);
        let locations = named.map(|path| location(root.join(path), line)).collect();
        Self { title: bounded_title(&title), kind, locations }
    }
}

/// Verb and Workflow of a `run_workflow` call.
fn workflow_title(args: &Value) -> (&'static str, Option<String>) {
    let text = |path: &str| args.pointer(path).and_then(Value::as_str).map(str::to_owned);
    if let Some(run) = text("/resume") {
        return ("Resume workflow", Some(run));
    }
    let is_check = args.get("validate_only") == Some(&Value::Bool(true));
    let verb = if is_check { "Check workflow" } else { "Run workflow" };
    (verb, text("/workflow/name").or_else(|| text("/template")))
}

/// A location in a file.
pub fn location(path: PathBuf, line: Option<u32>) -> ToolCallLocation {
    ToolCallLocation::new(path).line(line)
}

/// The content of a call.
pub type CallContent = ToolCallContent;

/// Text as the content of a call.
pub fn text_content(text: &str) -> ToolCallContent {
    ToolCallContent::Content(Content::new(ContentBlock::Text(TextContent::new(text))))
}

/// The state of a call, from which its updates are built.
#[derive(Debug)]
pub struct ToolCallView {
    call: event::ToolCall,
    summary: CallSummary,
    root: PathBuf,
    /// Whether its output goes to a terminal of the client.
    has_terminal: bool,
    is_started: bool,
    /// What the call waits for: to start, or, after it has run, for a recording.
    wait_reason: Option<String>,
    /// The command's output, as far as it is shown; and how many bytes of it the client has.
    output: String,
    sent_bytes: usize,
}

impl ToolCallView {
    /// The view of a call that was not sent yet.
    pub fn new(call: &event::ToolCall, root: &Path, client: ClientCapabilities) -> Self {
        let summary = CallSummary::for_call(&call.name, &call.args, root);
        let has_terminal = client.shows_terminals && call.name == "bash";
        let (call, root) = (call.clone(), root.to_owned());
        let (output, sent_bytes) = (String::new(), 0);
        Self {
            call,
            summary,
            root,
            has_terminal,
            is_started: false,
            wait_reason: None,
            output,
            sent_bytes,
        }
    }

    /// The first update, when the call begins.
    pub fn begin_update(&mut self) -> SessionUpdate {
        SessionUpdate::ToolCall(self.first_update(ToolCallStatus::Pending))
    }

    fn first_update(&self, status: ToolCallStatus) -> ToolCall {
        let mut meta = Meta::new();
        meta.insert("tool_name".to_owned(), json!(self.call.name));
        let mut call = ToolCall::new(self.call.call_id.to_string(), self.summary.title.clone())
            .name(self.call.name.clone())
            .kind(self.summary.kind)
            .status(status)
            .locations(self.summary.locations.clone())
            .raw_input(self.raw_input());
        if self.has_terminal {
            let info =
                json!({ "terminal_id": self.terminal_id(), "cwd": self.root.to_string_lossy() });
            meta.insert("terminal_info".to_owned(), info);
            call = call.content(vec![ToolCallContent::Terminal(Terminal::new(self.terminal_id()))]);
        }
        call.meta(meta)
    }

    fn raw_input(&self) -> Value {
        match &self.call.raw_args {
            Some(raw) => json!(raw),
            None => self.call.args.clone(),
        }
    }

    /// The update for a call that waits: files are recorded, or no slot is free. A call that has started
    /// stays in progress while files are recorded after it.
    pub fn hold_update(&mut self, reason: &str) -> Option<SessionUpdate> {
        if self.wait_reason.as_deref() == Some(reason) {
            return None;
        }
        self.wait_reason = Some(reason.to_owned());
        Some(self.call_update(self.status_fields(), None))
    }

    /// The update when the call starts to run.
    pub fn start_update(&mut self) -> Option<SessionUpdate> {
        if std::mem::replace(&mut self.is_started, true) {
            return None;
        }
        let fields = ToolCallUpdateFields::new().status(ToolCallStatus::InProgress);
        let fields = self.with_own_title(fields);
        self.wait_reason = None;
        Some(self.call_update(fields, None))
    }

    /// The fields for the status, with what the call waits for in the title.
    fn status_fields(&self) -> ToolCallUpdateFields {
        let fields = ToolCallUpdateFields::new();
        let status =
            if self.is_started { ToolCallStatus::InProgress } else { ToolCallStatus::Pending };
        match &self.wait_reason {
            Some(reason) => {
                let title = format!("{} ({reason})", self.summary.title);
                fields.status(status).title(title)
            }
            None => fields.status(status),
        }
    }

    /// Removes the reason for waiting from the title.
    fn with_own_title(&self, fields: ToolCallUpdateFields) -> ToolCallUpdateFields {
        if self.wait_reason.is_some() { fields.title(self.summary.title.clone()) } else { fields }
    }

    /// The update for new output.
    pub fn output_update(&mut self, piece: &str) -> Option<SessionUpdate> {
        self.output.push_str(piece);
        if self.has_terminal {
            self.sent_bytes += piece.len();
            // Kept for a client that loads the Session again.
            if self.output.len() > 2 * MAX_SHOWN_OUTPUT {
                keep_tail(&mut self.output, MAX_SHOWN_OUTPUT);
            }
            return Some(self.terminal_output(piece));
        }
        // The whole output is sent each time, so it is sent less and less often.
        let news = self.output.len().saturating_sub(self.sent_bytes);
        if news < self.sent_bytes / 8 {
            return None;
        }
        keep_tail(&mut self.output, MAX_SHOWN_OUTPUT);
        self.sent_bytes = self.output.len();
        let content = vec![text_content(&fenced(&self.output, ""))];
        Some(self.call_update(ToolCallUpdateFields::new().content(content), None))
    }

    /// The updates after the first one, for a client that loads the Session again.
    pub fn missed_updates(&self) -> Vec<SessionUpdate> {
        let mut updates = Vec::new();
        if self.is_started || self.wait_reason.is_some() {
            updates.push(self.call_update(self.status_fields(), None));
        }
        if self.output.is_empty() {
            return updates;
        }
        updates.push(if self.has_terminal {
            self.terminal_output(&self.output)
        } else {
            let content = vec![text_content(&fenced(&self.output, ""))];
            self.call_update(ToolCallUpdateFields::new().content(content), None)
        });
        updates
    }

    /// The update that appends output to a terminal of the client.
    fn terminal_output(&self, piece: &str) -> SessionUpdate {
        let data = json!({ "terminal_id": self.terminal_id(), "data": for_terminal(piece) });
        let meta = Meta::from_iter([("terminal_output".to_owned(), data)]);
        self.call_update(ToolCallUpdateFields::new(), Some(meta))
    }

    /// The updates when the call ends; `image` is that of its result.
    pub fn finish_updates(
        self,
        result: &ToolResult,
        image: Option<ContentBlock>,
    ) -> Vec<SessionUpdate> {
        let content = self.content(result, image);
        let raw_output = raw_output(result, &content);
        let fields =
            ToolCallUpdateFields::new().status(result_status(result)).raw_output(raw_output);
        let mut fields = self.with_own_title(fields);
        let locations = self.locations(result);
        if !locations.is_empty() && locations != self.summary.locations {
            fields = fields.locations(locations);
        }
        // The terminal itself was sent before.
        if content.len() > usize::from(self.has_terminal) {
            fields = fields.content(content);
        }
        let meta = self.has_terminal.then(|| self.terminal_end(result));
        vec![self.call_update(fields, meta)]
    }

    /// The whole call with its result, for a replay.
    pub fn replay_updates(
        self,
        result: &ToolResult,
        image: Option<ContentBlock>,
    ) -> Vec<SessionUpdate> {
        let content = self.content(result, image);
        let raw_output = raw_output(result, &content);
        let mut call =
            self.first_update(result_status(result)).raw_output(raw_output).content(content);
        let locations = self.locations(result);
        if !locations.is_empty() {
            call = call.locations(locations);
        }
        if self.has_terminal {
            // The call creates the terminal, and an update fills it.
            let meta = self.terminal_end(result);
            let filled = self.call_update(ToolCallUpdateFields::new(), Some(meta));
            return vec![SessionUpdate::ToolCall(call), filled];
        }
        vec![SessionUpdate::ToolCall(call)]
    }

    fn call_update(&self, fields: ToolCallUpdateFields, meta: Option<Meta>) -> SessionUpdate {
        let update = ToolCallUpdate::new(self.call.call_id.to_string(), fields);
        SessionUpdate::ToolCallUpdate(update.meta(meta))
    }

    fn terminal_id(&self) -> String {
        self.call.call_id.to_string()
    }

    /// The end of a terminal: the output if none was sent, and the exit status.
    fn terminal_end(&self, result: &ToolResult) -> Meta {
        let mut meta = Meta::new();
        let id = self.terminal_id();
        if self.sent_bytes == 0
            && let Some(output) = &result.output
        {
            let data = json!({ "terminal_id": id, "data": for_terminal(output) });
            meta.insert("terminal_output".to_owned(), data);
        }
        let signal = result.signal();
        let is_unknown = signal.is_none() && !result.ok;
        let code = result.exit_code().or(is_unknown.then_some(1));
        let end = json!({ "terminal_id": id, "exit_code": code, "signal": signal });
        meta.insert("terminal_exit".to_owned(), end);
        meta
    }

    /// The content of a result: its text, its image and its notice.
    fn content(&self, result: &ToolResult, image: Option<ContentBlock>) -> Vec<ToolCallContent> {
        let mut content = if self.has_terminal {
            vec![ToolCallContent::Terminal(Terminal::new(self.terminal_id()))]
        } else {
            self.diff_or_text(result)
        };
        content.extend(image.map(|image| ToolCallContent::Content(Content::new(image))));
        let output = result.output.as_deref().unwrap_or_default();
        let is_seen = |notice: &str| !self.has_terminal && output.contains(notice);
        let notice = result.notice().filter(|notice| !is_seen(notice));
        content.extend(notice.map(|notice| text_content(&format!("\u{26a0} {notice}"))));
        content
    }

    /// The diff of a result if it has one, otherwise its text.
    fn diff_or_text(&self, result: &ToolResult) -> Vec<ToolCallContent> {
        if let Some(diff) = result.diff() {
            let was_there = result.details.get("created") == Some(&Value::Bool(false));
            let before = if was_there { FileBefore::Existed } else { FileBefore::Unknown };
            let pieces = diff::diff_content(diff, &self.root, before);
            if !pieces.is_empty() {
                return pieces;
            }
        }
        let output = result.output.as_deref().unwrap_or_default();
        if output.trim().is_empty() {
            return Vec::new();
        }
        let is_plain = matches!(self.summary.kind, ToolKind::Think | ToolKind::Edit);
        vec![if is_plain { text_content(output) } else { text_content(&fenced(output, "")) }]
    }

    /// The locations: from the diff of the result, or else from the arguments.
    fn locations(&self, result: &ToolResult) -> Vec<ToolCallLocation> {
        let hunks = result.diff().map(diff::parse_hunks).unwrap_or_default();
        let mut places: Vec<ToolCallLocation> = Vec::new();
        for hunk in hunks {
            let path = self.root.join(&hunk.path);
            if !places.iter().any(|place| place.path == path) {
                places.push(location(path, Some(hunk.line)));
            }
        }
        if places.is_empty() { self.summary.locations.clone() } else { places }
    }
}

fn result_status(result: &ToolResult) -> ToolCallStatus {
    if result.ok { ToolCallStatus::Completed } else { ToolCallStatus::Failed }
}

/// The result as JSON, without what the content already shows.
fn raw_output(result: &ToolResult, content: &[ToolCallContent]) -> Value {
    let has_diff = content.iter().any(|part| matches!(part, ToolCallContent::Diff(_)));
    let has_words = !content.is_empty() && !has_diff;
    let mut raw = json!({ "ok": result.ok });
    if let Some(output) = result.output.as_ref().filter(|_| !has_words) {
        raw["output"] = json!(output);
    }
    if let Some(error) = &result.error {
        raw["error"] = json!(error);
        let shown = result.output.as_deref().filter(|_| has_words).unwrap_or_default();
        if let Some(fields) =
            raw["error"].as_object_mut().filter(|_| shown.contains(&error.message))
        {
            fields.remove("message");
        }
    }
    let mut details = result.details.clone();
    if let Some(details) = details.as_object_mut() {
        let shown = result.output.as_deref().filter(|_| has_words);
        let is_shown = |name: &str, value: &Value| match name {
            "diff" => has_diff,
            "structured" => shown == Some(value.to_string().as_str()),
            _ => false,
        };
        details.retain(|name, value| !is_shown(name, value));
    }
    if details.as_object().is_none_or(|details| !details.is_empty()) && !details.is_null() {
        raw["details"] = details;
    }
    raw
}

/// Text with CRLF line ends, as a terminal needs them.
fn for_terminal(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

/// Keeps the end of a text, from the start of a line if possible.
fn keep_tail(text: &mut String, most: usize) {
    if text.len() <= most {
        return;
    }
    let mut start = text.len() - most;
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let tail = text.get(start..).unwrap_or_default();
    let start = start + tail.find('\n').map_or(0, |end| end + 1);
    text.replace_range(..start, "");
}

/// The files that a patch names.
fn patched_files(patch: &str) -> Vec<String> {
    let file = |line: &str| Some(line.strip_prefix("*** ")?.split_once(" File: ")?.1.to_owned());
    patch.lines().filter_map(file).collect()
}

/// A title on one line, cut to `TITLE_CHARS`. Only blanks are dropped; hidden characters are spelled.
pub fn bounded_title(title: &str) -> String {
    let mut line = String::new();
    for word in title.split([' ', '\n', '\t']).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        let head: String = word.chars().take(TITLE_CHARS + 1).collect();
        line.push_str(&spell_hidden(&head));
        if let Some((end, _)) = line.char_indices().nth(TITLE_CHARS) {
            line.truncate(end);
            line.push('…');
            break;
        }
    }
    line
}
