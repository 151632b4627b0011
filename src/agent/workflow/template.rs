//! Sources of a Workflow before its arguments are known: a spec, or the template of a Skill.
//!
//! A template is a spec with placeholders, with its parameters next to it. It is filled, gets the template's id and
//! name where it has none, and is then read like any other spec; flaws keep their pointers into the file of the
//! template.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::spec::{
    SpecContext, SpecDiagnostic, SpecError, Workflow, argument_flaw, parse, quoted, read_parameters,
};
use crate::base::error::{Explain, Explanation, Kind};
use crate::model::skill;
use crate::model::skill::{
    ParameterType, Skill, Skills, TemplateArguments, TemplateParameter, WorkflowTemplate,
};

/// The most known templates that the error for an unknown one names.
const MOST_NAMED: usize = 20;

/// The source of a Workflow, before its arguments are known.
#[derive(Debug, Clone)]
pub enum WorkflowSource {
    Spec(Value),
    Template(Box<WorkflowTemplate>, Arc<Skill>),
}

impl WorkflowSource {
    /// Parses the JSON of a spec.
    pub fn parse_spec(text: impl AsRef<[u8]>) -> Result<Self, SpecError> {
        parse(text.as_ref()).map(Self::Spec)
    }

    /// Finds a template by name: `skill/template`, `skill:template`, or its id alone when that is unique.
    pub fn find_template(skills: &Skills, name: &str) -> Result<Self, TemplateLookupError> {
        let mut known = Vec::new();
        let mut found = Vec::new();
        let mut broken = None;
        for skill in skills.read_all().skills {
            let (templates, flaws) = skill.read_templates();
            for template in templates {
                let (own, id) = (skill.name(), &template.id);
                let is_meant = [format!("{own}/{id}"), format!("{own}:{id}"), id.clone()];
                known.push(template.full_id.clone());
                if is_meant.iter().any(|meant| meant == name) {
                    found.push((template, Arc::clone(&skill)));
                }
            }
            let stem = name.rsplit(['/', ':']).next().unwrap_or(name);
            let is_file =
                |flaw: &skill::FileDiagnostic| flaw.path.file_stem().is_some_and(|own| own == stem);
            broken = broken.or_else(|| flaws.into_iter().find(is_file));
        }
        if found.len() > 1 {
            let all = found.iter().map(|(template, _)| template.full_id.clone()).collect();
            return Err(TemplateLookupError::Several { name: name.to_owned(), all });
        }
        match (found.pop(), broken) {
            (Some((template, skill)), _) => Ok(Self::Template(Box::new(template), skill)),
            (None, Some(flaw)) => Err(TemplateLookupError::Broken { name: name.to_owned(), flaw }),
            (None, None) => {
                known.truncate(MOST_NAMED);
                Err(TemplateLookupError::Unknown { name: name.to_owned(), known })
            }
        }
    }

    /// The parameters; flaws in their definitions are reported by `read`.
    pub fn parameters(&self) -> Vec<TemplateParameter> {
        match self {
            Self::Spec(value) => read_parameters(value).unwrap_or_default(),
            Self::Template(template, _) => template.parameters.clone(),
        }
    }

    /// Parses arguments of the form `name=value`. A value is JSON unless its parameter is a string.
    pub fn parse_arguments(&self, typed: &[String]) -> Result<Map<String, Value>, SpecError> {
        let known = self.parameters();
        let (mut arguments, mut flaws) = (Map::new(), Vec::new());
        for pair in typed {
            let Some((name, text)) = pair.split_once('=') else {
                let message = format!("the argument {} has no `=`: name=value", quoted(pair));
                flaws.push(SpecDiagnostic::new("/parameters", message));
                continue;
            };
            let kind = known
                .iter()
                .find(|own| own.name == name)
                .map_or(ParameterType::String, |own| own.kind);
            let value = match (kind, serde_json::from_str::<Value>(text)) {
                (ParameterType::String, _) | (ParameterType::Any, Err(_)) => Value::from(text),
                (_, Ok(value)) => value,
                (kind, Err(_)) => {
                    let (kind, text) = (kind.name(), quoted(text));
                    let message = format!(
                        "the value of `{name}` must be of type {kind}, as JSON, not {text}"
                    );
                    flaws.push(SpecDiagnostic::new(format!("/parameters/{name}"), message));
                    continue;
                }
            };
            if arguments.insert(name.to_owned(), value).is_some() {
                let message = format!("the argument {} is given twice", quoted(name));
                flaws.push(SpecDiagnostic::new("/parameters", message));
            }
        }
        SpecError::from_flaws(flaws).map_or(Ok(arguments), Err)
    }

    /// The id of the template, `skill/template`; `None` for a spec.
    pub fn template_id(&self) -> Option<&str> {
        match self {
            Self::Spec(_) => None,
            Self::Template(template, _) => Some(&template.full_id),
        }
    }

    /// Reads the Workflow with the arguments of `context`.
    pub fn read(&self, context: &SpecContext<'_>) -> Result<Workflow, SpecError> {
        match self {
            Self::Spec(value) => Workflow::from_json(value, context),
            Self::Template(template, _) => fill_template(template, context),
        }
    }

    /// Refuses a template of a Skill that the user has not trusted. It may be shown, but not run.
    pub fn check_trust(&self) -> Result<(), TemplateLookupError> {
        match self {
            Self::Template(template, skill) if !skill.is_trusted => {
                Err(TemplateLookupError::Untrusted {
                    name: template.full_id.clone(),
                    path: skill.path.clone(),
                })
            }
            _ => Ok(()),
        }
    }
}

fn fill_template(
    template: &WorkflowTemplate,
    context: &SpecContext<'_>,
) -> Result<Workflow, SpecError> {
    let written = Value::Object(template.workflow().clone());
    if written.get("parameters").is_some() {
        let message = "the parameters of a template belong next to its `workflow`, not into it";
        return Err(SpecError::single(SpecDiagnostic::new("/workflow/parameters", message)));
    }
    let filling =
        TemplateArguments::new(&template.parameters, &context.arguments).map_err(|wrong| {
            let flaws = wrong.into_iter().map(argument_flaw).collect();
            // There is at least one flaw, or the filling would have succeeded.
            SpecError { flaws, left_out: 0 }
        })?;
    let mut value = filling.fill_value(&written).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        let own = [
            ("id", template.id.replace('.', "-").chars().take(64).collect()),
            ("name", template.name.clone()),
            ("description", template.description.clone()),
        ];
        for (key, text) in own {
            if !fields.contains_key(key) && !text.trim().is_empty() {
                fields.insert(key.to_owned(), text.into());
            }
        }
    }
    Workflow::from_filled(&value, context).map_err(|error| {
        error.map_pointers(|pointer| {
            format!("/workflow{}", filling.source_pointer(&written, pointer))
        })
    })
}

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateLookupError {
    #[error("there is no workflow {}", quoted(name))]
    Unknown { name: String, known: Vec<String> },
    #[error("several skills have a workflow {}", quoted(name))]
    Several { name: String, all: Vec<String> },
    #[error("the workflow {} cannot be used: {flaw}", quoted(name))]
    Broken { name: String, flaw: skill::FileDiagnostic },
    #[error("the workflow `{name}` belongs to a skill that is not trusted")]
    Untrusted { name: String, path: PathBuf },
}

impl TemplateLookupError {
    /// Names of templates that could be meant.
    pub fn known(&self) -> &[String] {
        match self {
            Self::Unknown { known, .. } => known,
            Self::Several { all, .. } => all,
            _ => &[],
        }
    }
}

impl Explain for TemplateLookupError {
    fn explain(&self) -> Explanation {
        match self {
            Self::Unknown { .. } => Kind::NotFound
                .with_details(json!({ "known": self.known() }))
                .with_next_action("name a file, or see `pixir workflow list`"),
            Self::Several { all, .. } => Kind::InvalidArgs
                .with_details(json!({ "known": self.known() }))
                .with_next_action(format!("use one of: {}", all.join(", "))),
            Self::Broken { flaw, .. } => Kind::InvalidSkill
                .with_details(json!({ "path": flaw.path.to_string_lossy(), "line": flaw.line }))
                .with_next_action("correct the file; `pixir skills validate` checks it"),
            Self::Untrusted { path, .. } => Kind::PermissionDenied
                .with_details(json!({ "path": path.to_string_lossy() }))
                .with_next_action("review the skill, then run `pixir trust` in a terminal"),
        }
    }
}
