//! Workflow templates in a Skill's `workflows/*.json`: reading and checking them. The `workflow` module
//! fills and runs them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::find::{decode_text, limit_paths, read_limited};
use super::placeholder::{TemplateParameter, is_parameter_name, unknown_placeholders};
use super::{FileDiagnostic, Skill};
use crate::host::workspace::Workspace;

/// The folder of templates in a package.
const FOLDER: &str = "workflows";
/// The largest template, in bytes.
const LARGEST: u64 = 256 * 1024;
/// How many templates a Skill may have.
const MOST: usize = 100;

/// A Workflow with placeholders for arguments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkflowTemplate {
    #[serde(skip)]
    pub id: String,
    /// `skill/id`, the id that is used outside of the package.
    #[serde(rename = "template_id")]
    pub full_id: String,
    pub name: String,
    pub description: String,
    /// The path relative to the Skill's folder.
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    /// The parameters, in the order of the file.
    pub parameters: Vec<TemplateParameter>,
    #[serde(skip)]
    workflow: Map<String, Value>,
}

/// The fields of a template file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateFile {
    id: Option<String>,
    version: Option<Value>,
    name: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    parameters: Map<String, Value>,
    workflow: Map<String, Value>,
}

impl Skill {
    /// Reads the templates of the Skill, and the problems of unusable ones.
    pub fn read_templates(&self) -> (Vec<WorkflowTemplate>, Vec<FileDiagnostic>) {
        let folder = self.folder.join(FOLDER);
        let (mut templates, mut broken): (Vec<WorkflowTemplate>, Vec<FileDiagnostic>) =
            (Vec::new(), Vec::new());
        let Ok(entries) = std::fs::read_dir(&folder) else { return (templates, broken) };
        let is_template = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let paths = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_template);
        for path in limit_paths(MOST, paths, &folder, &mut broken) {
            let taken =
                |template: &WorkflowTemplate| templates.iter().any(|own| own.id == template.id);
            match self.read_template(&path) {
                Ok(template) if taken(&template) => {
                    let message = format!("the id `{}` is taken", template.id);
                    broken.push(FileDiagnostic::whole_file(message).in_file(&path));
                }
                Ok(template) => templates.push(template),
                Err(flaw) => broken.push(flaw.in_file(&path)),
            }
        }
        (templates, broken)
    }

    fn read_template(&self, path: &Path) -> Result<WorkflowTemplate, FileDiagnostic> {
        let inside = path.strip_prefix(&self.folder).unwrap_or(path);
        let space = Workspace::open(&self.folder)
            .map_err(|error| FileDiagnostic::whole_file(error.to_string()))?;
        let bytes = read_limited(&space, inside, LARGEST)?;
        let text = decode_text(&bytes)?;
        let written: TemplateFile = serde_json::from_str(text)
            .map_err(|error| FileDiagnostic::at_line(error.line(), &error.to_string()))?;
        if !matches!(&written.version, None | Some(Value::Number(_) | Value::String(_)))
            || written.version.as_ref().is_some_and(|own| *own != json!(1) && *own != json!("1"))
        {
            return Err(FileDiagnostic::whole_file("only version 1 is known"));
        }
        let stem = inside.file_stem().unwrap_or_default().to_string_lossy();
        let id = validate_id(&written.id.unwrap_or_else(|| stem.into_owned()))?;
        let parameters = written
            .parameters
            .into_iter()
            .map(|(name, value)| read_parameter(name, value))
            .collect::<Result<Vec<_>, _>>()?;
        let template = WorkflowTemplate {
            full_id: format!("{}/{id}", self.name()),
            name: written.name.unwrap_or_else(|| id.clone()),
            id,
            description: written.description,
            parameters,
            path: inside.to_owned(),
            workflow: written.workflow,
        };
        let workflow = Value::Object(template.workflow.clone());
        if let Some((_, name)) = unknown_placeholders(&workflow, &template.parameters).first() {
            return Err(FileDiagnostic::whole_file(format!("`{{{{ {name} }}}}` is no parameter")));
        }
        Ok(template)
    }
}

impl WorkflowTemplate {
    /// The Workflow with its placeholders.
    pub fn workflow(&self) -> &Map<String, Value> {
        &self.workflow
    }
}

fn read_parameter(name: String, value: Value) -> Result<TemplateParameter, FileDiagnostic> {
    if !is_parameter_name(&name) {
        return Err(FileDiagnostic::whole_file(format!(
            "`{name}` cannot be the name of a parameter"
        )));
    }
    let written: TemplateParameter = serde_json::from_value(value)
        .map_err(|error| FileDiagnostic::whole_file(format!("parameter `{name}`: {error}")))?;
    let TemplateParameter { kind, is_required, ref default, .. } = written;
    if default.as_ref().is_some_and(|default| !kind.accepts(default)) {
        let message = format!("the default of `{name}` is not of type {}", kind.name());
        return Err(FileDiagnostic::whole_file(message));
    }
    Ok(TemplateParameter { name, is_required: is_required && default.is_none(), ..written })
}

fn validate_id(id: &str) -> Result<String, FileDiagnostic> {
    let is_good = id.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && id.len() <= 100;
    if is_good {
        Ok(id.to_owned())
    } else {
        Err(FileDiagnostic::whole_file(format!("`{id}` cannot be an id")))
    }
}
