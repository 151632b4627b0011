//! `pixir workflow list`: the workflows that can be named here, and those that cannot be used.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::source::{read_spec_file, workflow_roots};
use crate::agent::workflow::{SpecContext, SpecDiagnostic, WorkflowSource};
use crate::base::error::Report;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::one_line;
use crate::model::skill;
use crate::model::skill::{ParameterType, Skill, WorkflowTemplate, unknown_placeholders};

/// Most files that are read in one folder.
const MOST_FILES: usize = 200;

pub fn list_workflows(context: &CliContext) -> Result<Exit, Report> {
    let folder = context.current_folder()?;
    let roles = context.roles(&folder)?;
    let limits = context.load_settings(Some(&folder))?.config.subagents;
    let role = |name: &str| roles.find(name).ok();
    let spec_context =
        SpecContext { find_role: &role, role_names: roles.names(), limits, arguments: Map::new() };
    let (mut entries, mut broken): (Vec<Value>, Vec<(PathBuf, String)>) = (Vec::new(), Vec::new());
    for root in workflow_roots(&folder, context)? {
        for path in spec_files(&root.path, root.boundary.as_deref(), &mut broken) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if entries.iter().any(|entry| entry["name"] == name.as_str()) {
                continue;
            }
            match entry_of_file(&path, root.boundary.as_deref(), &name, &spec_context) {
                Ok(entry) => entries.push(entry),
                Err(message) => broken.push((path, message)),
            }
        }
    }
    for skill in context.skills(&folder)?.read_all().skills {
        let (templates, flaws) = usable_templates(&skill, &spec_context);
        broken.extend(flaws.into_iter().map(|flaw| {
            let line = flaw.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            (flaw.path, format!("{line}{}", flaw.message))
        }));
        for template in templates {
            let path = skill.folder.join(&template.path);
            entries.push(json!({
                "name": template.full_id,
                "title": template.name,
                "description": template.description,
                "source": "skill",
                "path": path.to_string_lossy(),
                "trusted": skill.is_trusted,
                "parameters": template.parameters,
            }));
        }
    }
    for (path, message) in &broken {
        context.print_notice(&format!("not used: {}: {message}", path.display()));
    }
    if entries.is_empty() {
        context.print_notice("there are no workflows; see `pixir workflow --help`");
    }
    let output = json!({
        "workflows": entries,
        "broken": broken.iter().map(|(path, message)| json!({ "path": path.to_string_lossy(), "message": message })).collect::<Vec<_>>(),
    });
    context.print_result("workflow", &workflows_text(&entries), output)
}

fn workflows_text(entries: &[Value]) -> String {
    let name = |entry: &Value| entry["name"].as_str().unwrap_or_default().to_owned();
    let width = entries.iter().map(|entry| name(entry).len()).max().unwrap_or(0);
    let mut text = String::new();
    for entry in entries {
        let description = match entry["description"].as_str().filter(|words| !words.is_empty()) {
            Some(words) => words,
            None => entry["title"].as_str().unwrap_or_default(),
        };
        let trust = if entry["trusted"] == false { ", not trusted" } else { "" };
        let source = entry["source"].as_str().unwrap_or_default();
        // Writing to a String cannot fail.
        write!(text, "{:width$}  {}  ({source}{trust})", name(entry), one_line(description, 100))
            .ok();
        text.push('\n');
        for own in entry["parameters"].as_array().into_iter().flatten() {
            writeln!(text, "    {}", parameter_line(own)).ok();
        }
    }
    text
}

/// A parameter on one line: its name, what it must be, and what it is for.
fn parameter_line(own: &Value) -> String {
    let text = |name: &str| own[name].as_str().unwrap_or_default();
    let value = match (&own["default"], own["required"] == true) {
        (Value::Null, true) => ", required".to_owned(),
        (Value::Null, false) => String::new(),
        (default, _) => format!(", default {}", one_line(&default.to_string(), 60)),
    };
    let description = match text("description") {
        "" => String::new(),
        words => format!(": {}", one_line(words, 100)),
    };
    format!("--arg {}= ({}{value}){description}", text("name"), text("type"))
}

fn spec_files(
    root: &Path,
    boundary: Option<&Path>,
    broken: &mut Vec<(PathBuf, String)>,
) -> Vec<PathBuf> {
    let entries = match skill::open_folder_entries(root, boundary) {
        Ok(Some(entries)) => entries,
        Ok(None) => return Vec::new(),
        Err(flaw) => {
            broken.push((flaw.path, flaw.message));
            return Vec::new();
        }
    };
    let is_spec = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(is_spec)
        .take(MOST_FILES)
        .collect();
    paths.sort();
    paths
}

fn entry_of_file(
    path: &Path,
    boundary: Option<&Path>,
    name: &str,
    spec_context: &SpecContext<'_>,
) -> Result<Value, String> {
    let written = WorkflowSource::parse_spec(read_spec_file(path, boundary)?)
        .map_err(|error| error.to_string())?;
    check_spec(&written, spec_context)?;
    let WorkflowSource::Spec(value) = &written else { return Err("it is no spec".to_owned()) };
    Ok(json!({
        "name": name,
        "title": value.get("name").or_else(|| value.get("id")),
        "description": value.get("description").and_then(Value::as_str).unwrap_or_default(),
        "source": "file",
        "path": path.to_string_lossy(),
        "parameters": written.parameters(),
    }))
}

/// The templates of Skills that cannot be used, as far as that can be said without arguments.
pub fn broken_templates(
    skills: &[Arc<Skill>],
    folder: &Path,
    context: &CliContext,
) -> Result<Vec<skill::FileDiagnostic>, Report> {
    let roles = context.roles(folder)?;
    let limits = context.load_settings(Some(folder))?.config.subagents;
    let role = |name: &str| roles.find(name).ok();
    let spec_context =
        SpecContext { find_role: &role, role_names: roles.names(), limits, arguments: Map::new() };
    Ok(skills.iter().flat_map(|skill| usable_templates(skill, &spec_context).1).collect())
}

/// The templates of a Skill that can be used, and what is wrong with the others.
fn usable_templates(
    skill: &Arc<Skill>,
    spec_context: &SpecContext<'_>,
) -> (Vec<WorkflowTemplate>, Vec<skill::FileDiagnostic>) {
    let (mut templates, mut flaws) = skill.read_templates();
    templates.retain(|template| {
        let written = WorkflowSource::Template(Box::new(template.clone()), Arc::clone(skill));
        let wrong = check_spec(&written, spec_context).err();
        let path = skill.folder.join(&template.path);
        let is_usable = wrong.is_none();
        flaws.extend(wrong.map(|message| skill::FileDiagnostic { path, line: None, message }));
        is_usable
    });
    (templates, flaws)
}

/// Checks a workflow without arguments. Required parameters get sample values, and only errors at other places
/// count.
fn check_spec(written: &WorkflowSource, spec_context: &SpecContext<'_>) -> Result<(), String> {
    let mut required = written.parameters();
    required.retain(|own| own.is_required);
    let (text, steps) = match written {
        _ if required.is_empty() => {
            return written.read(spec_context).map(drop).map_err(|error| error.to_string());
        }
        WorkflowSource::Spec(value) => (value.clone(), "/steps"),
        WorkflowSource::Template(template, _) => {
            (json!({ "workflow": template.workflow() }), "/workflow/steps")
        }
    };
    // Steps whose ids are parameters cannot be checked against each other.
    let steps = text.pointer(steps).unwrap_or(&Value::Null);
    let mut ids = steps.as_array().into_iter().flatten().filter_map(|step| step.get("id"));
    if steps.is_string() || ids.any(has_place) {
        return Ok(());
    }
    let arguments = required.iter().map(|own| (own.name.clone(), sample_value(own.kind))).collect();
    let roles = spec_context.role_names.clone();
    let Err(error) = written.read(&SpecContext { role_names: roles, arguments, ..*spec_context })
    else {
        return Ok(());
    };
    let is_certain = |flaw: &&SpecDiagnostic| {
        let Some(value) = text.pointer(&flaw.pointer) else { return false };
        let key = flaw.pointer.rsplit('/').next().unwrap_or_default();
        let is_stray = !flaw.accepted.is_empty() && !flaw.accepted.iter().any(|own| own == key);
        !has_place(value) || (is_stray && !value.is_string())
    };
    error.flaws.iter().find(is_certain).map_or(Ok(()), |flaw| Err(flaw.to_string()))
}

fn has_place(value: &Value) -> bool {
    !unknown_placeholders(value, &[]).is_empty()
}

/// A sample value of a type.
fn sample_value(kind: ParameterType) -> Value {
    match kind {
        ParameterType::String | ParameterType::Any => json!("x"),
        ParameterType::Integer | ParameterType::Number => json!(1),
        ParameterType::Boolean => json!(true),
        ParameterType::Array => json!([]),
        ParameterType::Object => json!({}),
    }
}
