//! Workflow templates in a Skill's `workflows/*.json`: reading and checking them. The `workflow` module
//! fills and runs them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::find::{at_most, content, text_of};
use super::place::{Parameter, is_name, strangers};
use super::{Flaw, Skill};
use crate::host::workspace::Workspace;

/// The folder of templates in a package.
const FOLDER: &str = "workflows";
/// The largest template, in bytes.
const LARGEST: u64 = 256 * 1024;
/// How many templates a Skill may have.
const MOST: usize = 100;

/// A Workflow with placeholders for arguments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Template {
    #[serde(skip)]
    pub id: String,
    /// `skill/id`, the id that is used outside of the package.
    #[serde(rename = "template_id")]
    pub full_id: String,
    pub name: String,
    pub description: String,
    /// Relative to the Skill's folder.
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    /// In the order of the file.
    pub parameters: Vec<Parameter>,
    #[serde(skip)]
    workflow: Map<String, Value>,
}

/// The fields of a template file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
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
    pub fn templates(&self) -> (Vec<Template>, Vec<Flaw>) {
        let folder = self.folder.join(FOLDER);
        let (mut templates, mut broken): (Vec<Template>, Vec<Flaw>) = (Vec::new(), Vec::new());
        let Ok(entries) = std::fs::read_dir(&folder) else { return (templates, broken) };
        let is_template = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let paths = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_template);
        for path in at_most(MOST, paths, &folder, &mut broken) {
            let taken = |template: &Template| templates.iter().any(|own| own.id == template.id);
            match self.template(&path) {
                Ok(template) if taken(&template) => {
                    let message = format!("the id `{}` is taken", template.id);
                    broken.push(Flaw::whole(message).in_file(&path));
                }
                Ok(template) => templates.push(template),
                Err(flaw) => broken.push(flaw.in_file(&path)),
            }
        }
        (templates, broken)
    }

    fn template(&self, path: &Path) -> Result<Template, Flaw> {
        let inside = path.strip_prefix(&self.folder).unwrap_or(path);
        let space =
            Workspace::open(&self.folder).map_err(|error| Flaw::whole(error.to_string()))?;
        let bytes = content(&space, inside, LARGEST)?;
        let text = text_of(&bytes)?;
        let written: Written = serde_json::from_str(text)
            .map_err(|error| Flaw::at(error.line(), &error.to_string()))?;
        if !matches!(&written.version, None | Some(Value::Number(_) | Value::String(_)))
            || written.version.as_ref().is_some_and(|own| *own != json!(1) && *own != json!("1"))
        {
            return Err(Flaw::whole("only version 1 is known"));
        }
        let stem = inside.file_stem().unwrap_or_default().to_string_lossy();
        let id = checked_id(&written.id.unwrap_or_else(|| stem.into_owned()))?;
        let parameters = written
            .parameters
            .into_iter()
            .map(|(name, value)| parameter(name, value))
            .collect::<Result<Vec<_>, _>>()?;
        let template = Template {
            full_id: format!("{}/{id}", self.name()),
            name: written.name.unwrap_or_else(|| id.clone()),
            id,
            description: written.description,
            parameters,
            path: inside.to_owned(),
            workflow: written.workflow,
        };
        let workflow = Value::Object(template.workflow.clone());
        if let Some((_, name)) = strangers(&workflow, &template.parameters).first() {
            return Err(Flaw::whole(format!("`{{{{ {name} }}}}` is no parameter")));
        }
        Ok(template)
    }
}

impl Template {
    /// The Workflow with its placeholders.
    pub fn workflow(&self) -> &Map<String, Value> {
        &self.workflow
    }
}

fn parameter(name: String, value: Value) -> Result<Parameter, Flaw> {
    if !is_name(&name) {
        return Err(Flaw::whole(format!("`{name}` cannot be the name of a parameter")));
    }
    let written: Parameter = serde_json::from_value(value)
        .map_err(|error| Flaw::whole(format!("parameter `{name}`: {error}")))?;
    let Parameter { kind, is_required, ref default, .. } = written;
    if default.as_ref().is_some_and(|default| !kind.fits(default)) {
        let message = format!("the default of `{name}` is not of type {}", kind.name());
        return Err(Flaw::whole(message));
    }
    Ok(Parameter { name, is_required: is_required && default.is_none(), ..written })
}

fn checked_id(id: &str) -> Result<String, Flaw> {
    let is_good = id.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && id.len() <= 100;
    if is_good { Ok(id.to_owned()) } else { Err(Flaw::whole(format!("`{id}` cannot be an id"))) }
}
