//! Role files: TOML in the form that other agents use.
//!
//! ```toml
//! name = "scribe"
//! description = "Writes documentation"
//! developer_instructions = """
//! You write docs, and nothing else.
//! """
//! model = "gpt-5.5"
//! model_reasoning_effort = "high"
//! sandbox_mode = "read-only"     # or "workspace-write"
//! permission_mode = "ask"        # or "auto", "read_only"
//! tools = ["read", "grep", "glob", "list", "write"]
//! ```

use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use super::{RoleFile, RoleOrigin};
use crate::base::id::sha256;
use crate::base::text::on_one_line;
use crate::model::skill::{FileDiagnostic, read_within_boundary, validate_name};
use crate::record::event::PermissionMode;
use crate::settings::role::{CustomRole, stricter_mode};

/// The largest file, in bytes.
const MAX_ROLE_FILE_BYTES: u64 = 64 * 1024;
/// The longest instructions, in bytes: they are in the context of every Turn.
const MAX_INSTRUCTIONS_BYTES: usize = 16 * 1024;
/// The longest description, in characters.
const LONGEST_DESCRIPTION: usize = 500;

/// A role as its file defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleDefinition {
    pub name: String,
    pub instructions: String,
    /// The laxest permission mode of the role.
    pub ceiling: PermissionMode,
    pub custom: CustomRole,
}

/// The fields of a role file.
#[derive(Debug, Deserialize)]
struct RoleFields {
    name: Spanned<String>,
    description: String,
    developer_instructions: Spanned<String>,
    model: Option<Spanned<String>>,
    model_reasoning_effort: Option<Spanned<String>>,
    sandbox_mode: Option<Spanned<String>>,
    permission_mode: Option<Spanned<String>>,
    tools: Option<Spanned<Vec<String>>>,
    #[serde(flatten)]
    rest: toml::Table,
}

/// Reads a role file. A link must not lead out of `boundary`, the project; the user's own files have none.
pub fn read_role_file(
    path: &Path,
    origin: RoleOrigin,
    boundary: Option<&Path>,
) -> Result<RoleFile, FileDiagnostic> {
    let whole = |message: String| FileDiagnostic { path: path.to_owned(), line: None, message };
    if path.file_name().is_some_and(|name| name.to_str().is_none()) {
        return Err(whole("its name is not UTF-8".to_owned()));
    }
    let read = read_within_boundary(path, boundary, MAX_ROLE_FILE_BYTES);
    let (bytes, _) = read.map_err(|flaw| FileDiagnostic { path: path.to_owned(), ..flaw })?;
    let line_of =
        |place: usize| 1 + memchr::memchr_iter(b'\n', &bytes[..place.min(bytes.len())]).count();
    let at = |place: usize, message: String| FileDiagnostic {
        path: path.to_owned(),
        line: Some(line_of(place)),
        message,
    };
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| at(error.valid_up_to(), "it is not UTF-8".to_owned()))?;
    let raw: RoleFields = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        at(place, error.message().trim().to_owned())
    })?;
    let mut warnings = Vec::new();
    for key in raw.rest.keys() {
        warnings.push(whole(format!("unknown key `{}`", printable(key))));
    }
    let name = validate_name(raw.name.get_ref(), line_of(raw.name.span().start))
        .map_err(|flaw| FileDiagnostic { path: path.to_owned(), ..flaw })?;
    let instructions = raw.developer_instructions.get_ref().trim().to_owned();
    let place = raw.developer_instructions.span().start;
    if instructions.is_empty() {
        return Err(at(place, "`developer_instructions` is empty".to_owned()));
    }
    if instructions.len() > MAX_INSTRUCTIONS_BYTES {
        let message =
            format!("`developer_instructions` is longer than {MAX_INSTRUCTIONS_BYTES} bytes");
        return Err(at(place, message));
    }
    let plain =
        |field: &Option<Spanned<String>>, key: &str| -> Result<Option<String>, FileDiagnostic> {
            let Some(value) = field else { return Ok(None) };
            let text = value.get_ref().trim();
            let is_word =
                !text.is_empty() && text.len() <= 100 && text.chars().all(|c| c.is_ascii_graphic());
            if is_word {
                return Ok(Some(text.to_owned()));
            }
            Err(at(value.span().start, format!("`{key}` must be a single word")))
        };
    let mut ceiling = PermissionMode::Auto;
    if let Some(mode) = &raw.sandbox_mode {
        ceiling = match mode.get_ref().as_str() {
            "read-only" => PermissionMode::ReadOnly,
            "workspace-write" => PermissionMode::Auto,
            "danger-full-access" => {
                warnings.push(at(
                    mode.span().start,
                    "a role cannot switch the sandbox off; only the user can".to_owned(),
                ));
                PermissionMode::Auto
            }
            other => {
                let message = format!("`sandbox_mode` is not `{}`", printable(other));
                return Err(at(mode.span().start, message));
            }
        };
    }
    if let Some(mode) = &raw.permission_mode {
        let named = match mode.get_ref().as_str() {
            "auto" => PermissionMode::Auto,
            "ask" => PermissionMode::Ask,
            "read_only" | "read-only" => PermissionMode::ReadOnly,
            other => {
                let message = format!("`permission_mode` is not `{}`", printable(other));
                return Err(at(mode.span().start, message));
            }
        };
        ceiling = stricter_mode(&ceiling, &named);
    }
    let tools = raw.tools.as_ref().map(|tools| tools.get_ref().clone());
    let description = on_one_line(&raw.description);
    let custom = CustomRole {
        description: description.chars().take(LONGEST_DESCRIPTION).collect(),
        model: plain(&raw.model, "model")?,
        effort: plain(&raw.model_reasoning_effort, "model_reasoning_effort")?,
        tools,
    };
    Ok(RoleFile {
        origin,
        path: path.to_owned(),
        digest: sha256(&bytes),
        is_foreign: false,
        is_trusted: false,
        tools_line: raw.tools.as_ref().map(|tools| line_of(tools.span().start)),
        definition: RoleDefinition { name, instructions, ceiling, custom },
        warnings,
    })
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}
