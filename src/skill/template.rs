//! Workflow templates in a Skill's `workflows/*.json`: found, checked and filled; running them is
//! somebody else's business.
//!
//! A string that is nothing but one `{{ name }}` becomes the value itself, with its type; within other
//! text a value stands as text. Keys are never touched.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::find::{content, text_of};
use super::{Flaw, Skill};
use crate::error::{Explain, Kind};
use crate::workspace::Workspace;

/// The folder in a package.
const FOLDER: &str = "workflows";
/// The largest template, in bytes.
const LARGEST: u64 = 256 * 1024;
/// How many templates a Skill may have.
const MOST: usize = 100;

/// A Workflow with places for arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub id: String,
    /// `skill/id`, by which everybody finds it.
    pub full_id: String,
    pub name: String,
    pub description: String,
    /// In the order of the file.
    pub parameters: Vec<Parameter>,
    /// Relative to the Skill's folder.
    pub path: PathBuf,
    workflow: Map<String, Value>,
}

/// An argument of a template.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub kind: Type,
    pub is_required: bool,
    pub default: Option<Value>,
    pub description: String,
}

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
    Array,
    Object,
    Any,
}

impl Type {
    fn fits(self, value: &Value) -> bool {
        match self {
            Type::String => value.is_string(),
            Type::Integer => value.is_i64() || value.is_u64(),
            Type::Number => value.is_number(),
            Type::Boolean => value.is_boolean(),
            Type::Array => value.is_array(),
            Type::Object => value.is_object(),
            Type::Any => true,
        }
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::Array => "array",
            Type::Object => "object",
            Type::Any => "any",
        }
    }
}

/// A template as it is written.
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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenParameter {
    #[serde(rename = "type", default)]
    kind: Type,
    #[serde(default)]
    required: bool,
    default: Option<Value>,
    #[serde(default)]
    description: String,
}

impl Skill {
    /// Its templates by id, and what is wrong with those that are none.
    pub fn templates(&self) -> (Vec<Template>, Vec<Flaw>) {
        let folder = self.folder.join(FOLDER);
        let (mut templates, mut broken): (Vec<Template>, Vec<Flaw>) = (Vec::new(), Vec::new());
        let Ok(entries) = std::fs::read_dir(&folder) else { return (templates, broken) };
        let is_template = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let mut paths: Vec<PathBuf> = entries
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(is_template)
            .take(MOST)
            .collect();
        paths.sort();
        for path in paths {
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
        template.check()?;
        Ok(template)
    }
}

impl Template {
    /// The Workflow with these arguments in it.
    pub fn fill(&self, arguments: &Map<String, Value>) -> Result<Value, TemplateError> {
        if let Some(name) =
            arguments.keys().find(|name| !self.parameters.iter().any(|own| own.name == **name))
        {
            return Err(TemplateError::Unknown { name: name.clone(), known: self.names() });
        }
        let mut values: Vec<(&str, Option<&Value>)> = Vec::new();
        for parameter in &self.parameters {
            let name = parameter.name.as_str();
            let given = arguments.get(name).or(parameter.default.as_ref());
            match given {
                None if parameter.is_required => {
                    return Err(TemplateError::Missing { name: name.to_owned() });
                }
                Some(value) if !parameter.kind.fits(value) => {
                    let expected = parameter.kind.name();
                    return Err(TemplateError::Mistyped { name: name.to_owned(), expected });
                }
                given => values.push((name, given)),
            }
        }
        let look = |name: &str| values.iter().find(|(own, _)| *own == name).and_then(|(_, v)| *v);
        let workflow = Value::Object(self.workflow.clone());
        Ok(filled(&workflow, &look).unwrap_or(Value::Null))
    }

    fn names(&self) -> Vec<String> {
        self.parameters.iter().map(|parameter| parameter.name.clone()).collect()
    }

    /// Every place names a parameter.
    fn check(&self) -> Result<(), Flaw> {
        let mut waiting: Vec<&Value> = self.workflow.values().collect();
        while let Some(value) = waiting.pop() {
            match value {
                Value::Array(values) => waiting.extend(values),
                Value::Object(fields) => waiting.extend(fields.values()),
                Value::String(text) => {
                    for (_, _, name) in places(text) {
                        if !self.parameters.iter().any(|own| own.name == name) {
                            let message = format!("`{{{{ {name} }}}}` is no parameter");
                            return Err(Flaw::whole(message));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A value with arguments in its places; `None` where an argument was not given, so that the field
/// is left out.
fn filled<'v>(value: &Value, look: &impl Fn(&str) -> Option<&'v Value>) -> Option<Value> {
    Some(match value {
        Value::String(text) => {
            let places = places(text);
            match places.as_slice() {
                [] => value.clone(),
                [(0, end, name)] if *end == text.len() => return look(name).cloned(),
                places => {
                    let (mut told, mut from) = (String::new(), 0);
                    for (start, end, name) in places {
                        told.push_str(&text[from..*start]);
                        match look(name) {
                            Some(Value::String(text)) => told.push_str(text),
                            Some(other) => told.push_str(&other.to_string()),
                            None => {}
                        }
                        from = *end;
                    }
                    told.push_str(&text[from..]);
                    Value::String(told)
                }
            }
        }
        Value::Array(values) => {
            values.iter().filter_map(|value| filled(value, look)).collect::<Vec<_>>().into()
        }
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| Some((key.clone(), filled(value, look)?));
            Value::Object(fields.iter().filter_map(field).collect())
        }
        other => other.clone(),
    })
}

/// The places in a text: from, to, name.
fn places(text: &str) -> Vec<(usize, usize, &str)> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(start) = text[from..].find("{{").map(|place| from + place) {
        let Some(end) = text[start..].find("}}").map(|place| start + place) else { break };
        let name = text[start + 2..end].trim();
        let is_name = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if is_name {
            found.push((start, end + 2, name));
        }
        from = end + 2;
    }
    found
}

fn parameter(name: String, value: Value) -> Result<Parameter, Flaw> {
    let is_name = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if !is_name {
        return Err(Flaw::whole(format!("`{name}` cannot be the name of a parameter")));
    }
    let written: WrittenParameter = serde_json::from_value(value)
        .map_err(|error| Flaw::whole(format!("parameter `{name}`: {error}")))?;
    let WrittenParameter { kind, required, default, description } = written;
    if default.as_ref().is_some_and(|default| !kind.fits(default)) {
        let message = format!("the default of `{name}` is not of type {}", kind.name());
        return Err(Flaw::whole(message));
    }
    Ok(Parameter { name, kind, is_required: required && default.is_none(), default, description })
}

fn checked_id(id: &str) -> Result<String, Flaw> {
    let is_good = id.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && id.len() <= 100;
    if is_good { Ok(id.to_owned()) } else { Err(Flaw::whole(format!("`{id}` cannot be an id"))) }
}

/// Why a template was not filled.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TemplateError {
    #[error("the template has no parameter `{name}`")]
    Unknown { name: String, known: Vec<String> },
    #[error("the template needs `{name}`")]
    Missing { name: String },
    #[error("`{name}` must be of type {expected}")]
    Mistyped { name: String, expected: &'static str },
}

impl Explain for TemplateError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgs
    }
    fn details(&self) -> Value {
        match self {
            Self::Unknown { name, known } => json!({ "parameter": name, "known": known }),
            Self::Missing { name } => json!({ "parameter": name }),
            Self::Mistyped { name, expected } => json!({ "parameter": name, "expected": expected }),
        }
    }
}
