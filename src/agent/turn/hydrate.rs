//! Skill Context Hydration: the sources that an active Skill declares are read for one Turn.
//!
//! Every source passes the checks of any call: plan, bounds, permission, sandbox. It is read only
//! if the Skill is the user's or trusted, and a user or a model requested it. Commands run in a
//! read-only sandbox. The output is bounded, hashed and recorded; the model sees it as late
//! context, in this Turn only.

use serde_json::{Value, json};

use super::execute::PreparedCall;
use super::permission_state::PermissionSnapshot;
use super::{Turn, TurnEnd};
use crate::base::error::{Kind, Report};
use crate::base::id::{CallId, EventId, sha256};
use crate::base::text::bound_text;
use crate::base::tool_error::ToolError;
use crate::host::sandbox::Profile;
use crate::model::skill::{ContextSource, ContextSourceKind, Skill};
use crate::record::event::{Extra, SkillContextHydration, ToolCall};
use crate::tools::tool::ToolOutput;

/// How much of one source the model sees, in bytes.
const MAX_SOURCE_BYTES: usize = 8 * 1024;
/// How many files a source may include.
const MAX_FILES: usize = 8;
/// How long a command may take, in milliseconds.
const COMMAND_TIMEOUT_MS: u64 = 30_000;

/// The output of one source.
struct SourceOutput {
    ok: bool,
    text: String,
    error: Option<Report>,
    tools: Vec<String>,
}

impl Turn {
    /// Reads all sources of a Skill, one after the other, and records each.
    pub(super) async fn read_skill_sources(
        &self,
        skill: &Skill,
        requested_by: &str,
    ) -> Result<(), TurnEnd> {
        if !skill.is_trusted {
            return Ok(());
        }
        for source in &skill.front_matter.sources {
            let read = self.read_source(source).await?;
            let cleaned = self.settings.secrets.redact(&read.text);
            let content = bound_text(&cleaned, MAX_SOURCE_BYTES).into_owned();
            let cut_from = (content.len() < cleaned.len()).then_some(cleaned.len() as u64);
            let request = self.settings.secrets.redact(&source.kind.to_string()).into_owned();
            self.context
                .record(SkillContextHydration {
                    name: skill.name().to_owned(),
                    content_hash: skill.digest.clone(),
                    source: source.id.clone(),
                    kind: source.kind.name().to_owned(),
                    request,
                    tools: read.tools,
                    requested_by: requested_by.to_owned(),
                    mode: self.settings.permission_state.mode().to_string(),
                    ok: read.ok,
                    sha256: sha256(content.as_bytes()),
                    content,
                    cut_from,
                    error: read.error.map(|error| self.redact_report(error)),
                    extra: Extra::new(),
                })
                .await?;
        }
        Ok(())
    }

    async fn read_source(&self, source: &ContextSource) -> Result<SourceOutput, TurnEnd> {
        let command = match &source.kind {
            ContextSourceKind::Files(globs) => return self.read_files(globs).await,
            ContextSourceKind::Git(fact) => fact.command(),
            ContextSourceKind::Command(command) => command.clone(),
        };
        let args = json!({ "command": command, "timeout_ms": COMMAND_TIMEOUT_MS });
        let outcome = self.call_tool("bash", args).await?;
        Ok(SourceOutput::from_outcome(outcome, vec!["bash".to_owned()]))
    }

    async fn read_files(&self, globs: &[String]) -> Result<SourceOutput, TurnEnd> {
        let mut all =
            SourceOutput { ok: true, text: String::new(), error: None, tools: Vec::new() };
        let mut paths: Vec<String> = Vec::new();
        for glob in globs {
            if !glob.contains(['*', '?', '[', '{']) {
                paths.push(glob.clone());
                continue;
            }
            let found = self.call_tool("glob", json!({ "pattern": glob })).await?;
            all.add_tool("glob");
            match found {
                Ok(found) => paths.extend(found.text.lines().map(str::to_owned)),
                Err(error) => return Ok(SourceOutput::from_outcome(Err(error), all.tools)),
            }
        }
        let mut seen: Vec<String> = Vec::new();
        // Notes of `glob` are in brackets.
        let is_note = |path: &String| path.starts_with('[') && path.ends_with(']');
        for path in paths.into_iter().filter(|path| !is_note(path)) {
            if seen.contains(&path) {
                continue;
            }
            if seen.len() == MAX_FILES {
                all.text.push_str("[more files match; they are left out]\n");
                break;
            }
            let outcome = self.call_tool("read", json!({ "path": path })).await?;
            all.add_tool("read");
            let (ok, text) = match outcome {
                Ok(output) => (output.ok, output.text),
                // A missing file is not a failure.
                Err(error) if error.kind == Kind::NotFound => continue,
                Err(error) => (false, format!("[{}]", error.message)),
            };
            all.ok &= ok;
            all.text.extend(["== ", &path, "\n", &bound_text(&text, MAX_SOURCE_BYTES / 2), "\n"]);
            seen.push(path);
        }
        if seen.is_empty() {
            all.text.push_str("(no file matches)");
        }
        Ok(all)
    }

    /// Makes a tool call that no model asked for. Only its permission decision and its output are
    /// recorded.
    async fn call_tool(
        &self,
        tool: &str,
        args: Value,
    ) -> Result<Result<ToolOutput, ToolError>, TurnEnd> {
        if self.context.cancel().is_cancelled() {
            return Err(TurnEnd::Interrupted);
        }
        let call_id = CallId::new(format!("context_{}", EventId::mint()));
        let name = tool.to_owned();
        let fact = ToolCall { call_id, name, args, raw_args: None, extra: Extra::new() };
        let mode = self.settings.permission_state.mode();
        let permission = PermissionSnapshot { mode, sandbox_profile: Profile::ReadOnly };
        let args = Ok(fact.args.clone());
        let prepared = match self.prepare_call_under(fact, args, permission) {
            Ok(prepared) => PreparedCall { is_source: true, ..prepared },
            Err(error) => return Ok(Err(error)),
        };
        match self.check_permission(prepared).await? {
            Err(denied) => Ok(Err(denied)),
            Ok(prepared) => match self.run_permitted(prepared).await? {
                (_, Some(outcome)) => Ok(outcome),
                (_, None) => Err(TurnEnd::Interrupted),
            },
        }
    }
}

impl SourceOutput {
    fn from_outcome(outcome: Result<ToolOutput, ToolError>, tools: Vec<String>) -> Self {
        match outcome {
            Ok(ToolOutput { ok, text, .. }) => Self { ok, text, error: None, tools },
            Err(error) => Self { ok: false, text: String::new(), error: Some(error.into()), tools },
        }
    }

    fn add_tool(&mut self, name: &str) {
        if !self.tools.iter().any(|own| own == name) {
            self.tools.push(name.to_owned());
        }
    }
}
