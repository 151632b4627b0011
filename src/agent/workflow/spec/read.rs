//! Reads a spec into a Workflow: fills placeholders, checks keys, adds defaults.
//!
//! Reading continues after a flaw where possible, so that all flaws are reported at once. Flawed values are left out
//! of later checks, so that one mistake is not reported twice.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::check::SchemaChecker;
use super::diagnostic::{SpecDiagnostic, SpecError, child_pointer, quoted};
use super::json as text;
use super::spec_types::{LimitsSpec, ParameterSpec, WorkflowSpec};
use super::step::StepDraft;
use super::{RunLimits, Step, Workflow, graph};
use crate::model::skill::{
    TemplateArguments, TemplateError, TemplateParameter, unknown_placeholders,
};
use crate::settings::config::SubagentLimits;
use crate::settings::role::Role;

/// The default time limit of a run, in milliseconds.
const DEFAULT_RUN_MS: u64 = 3_600_000;

static WORKFLOW: LazyLock<SchemaChecker> = LazyLock::new(SchemaChecker::new::<WorkflowSpec>);

/// The context for reading a spec: roles, limits and arguments.
pub struct SpecContext<'a> {
    /// Finds a usable role by name.
    pub find_role: &'a dyn Fn(&str) -> Option<&'static Role>,
    /// The names of all roles, including unusable ones.
    pub role_names: Vec<String>,
    /// The limits of Subagents.
    pub limits: SubagentLimits,
    /// The values of parameters.
    pub arguments: Map<String, Value>,
}

impl SpecContext<'static> {
    /// A context with the built-in roles and no arguments.
    pub fn with_built_in_roles(limits: SubagentLimits) -> Self {
        let role_names = Role::names().into_iter().map(str::to_owned).collect();
        Self { find_role: &Role::find, role_names, limits, arguments: Map::new() }
    }
}

impl Workflow {
    /// Reads a spec; the error has all its flaws.
    pub fn read(spec: impl AsRef<[u8]>, context: &SpecContext<'_>) -> Result<Self, SpecError> {
        Self::from_json(&text::parse(spec.as_ref())?, context)
    }

    /// Reads a spec from JSON that was parsed elsewhere.
    pub fn from_json(written: &Value, context: &SpecContext<'_>) -> Result<Self, SpecError> {
        text::check_strict(written)?;
        let parameters = read_parameters(written).map_err(|flaws| sorted_error(flaws, written))?;
        let mut flaws = Vec::new();
        let body = without_parameters(written);
        for (pointer, name) in unknown_placeholders(&body, &parameters) {
            let names: Vec<&str> = parameters.iter().map(|own| own.name.as_str()).collect();
            let message = format!("`{{{{ {name} }}}}` is no parameter");
            flaws.push(SpecDiagnostic::new(pointer, message).with_accepted(&name, &names));
        }
        let filling = match TemplateArguments::new(&parameters, &context.arguments) {
            Ok(filling) if flaws.is_empty() => filling,
            filling => {
                flaws.extend(filling.err().unwrap_or_default().into_iter().map(argument_flaw));
                return Err(sorted_error(flaws, written));
            }
        };
        let filled = filling.fill_value(&body).unwrap_or_default();
        Self::from_filled(&filled, context).map_err(|error| {
            let flaws = error.map_pointers(|pointer| filling.source_pointer(&body, pointer));
            SpecError { left_out: flaws.left_out, ..sorted_error(flaws.flaws, written) }
        })
    }

    /// Reads a spec whose placeholders are filled already: what looks like a placeholder is text.
    pub fn from_filled(value: &Value, context: &SpecContext<'_>) -> Result<Self, SpecError> {
        text::check_strict(value)?;
        let Some(fields) = value.as_object() else { return Err(not_an_object()) };
        let mut reader = SpecReader::new(context);
        let workflow = reader.read_workflow(fields);
        SpecError::from_flaws(sort_flaws(reader.flaws, value)).map_or(Ok(workflow), Err)
    }

    /// Builds a Workflow from steps whose fields were checked one by one.
    pub fn from_step_fields(
        name: &str,
        steps: Vec<Map<String, Value>>,
        context: &SpecContext<'_>,
    ) -> Result<Self, SpecError> {
        let mut reader = SpecReader::new(context);
        let steps = steps.into_iter().enumerate();
        let drafts = steps.map(|(place, own)| {
            let written = own.clone();
            StepDraft::read(&mut reader, &written, own, format!("/steps/{place}"))
        });
        let drafts = drafts.collect();
        let spec = WorkflowSpec { name: Some(name.to_owned()), ..WorkflowSpec::default() };
        let workflow = reader.build_workflow(spec, drafts);
        let error = SpecError { flaws: reader.flaws, left_out: 0 };
        if error.flaws.is_empty() { Ok(workflow) } else { Err(error) }
    }
}

fn not_an_object() -> SpecError {
    SpecError::single(SpecDiagnostic::new("", "a workflow must be a JSON object"))
}

/// The parameters of a spec, or their flaws.
pub fn read_parameters(written: &Value) -> Result<Vec<TemplateParameter>, Vec<SpecDiagnostic>> {
    let Some(fields) = written.as_object() else { return Err(not_an_object().flaws) };
    let Some(value) = fields.get("parameters") else { return Ok(Vec::new()) };
    let mut checked = WORKFLOW.check(&json!({ "parameters": value }));
    // Only the parameters are checked; the missing `steps` are expected.
    checked.flaws.retain(|flaw| !flaw.pointer.is_empty());
    let mut all = Vec::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        let pointer = child_pointer("/parameters", name);
        let Some(fields) = value.as_object() else { continue };
        let spec: ParameterSpec = deserialize_fields(
            checked.valid_fields(fields, &pointer),
            &pointer,
            &mut checked.flaws,
        );
        let kind = spec.kind.unwrap_or_default();
        // A default may be null.
        let default = fields.get("default").cloned();
        if default.as_ref().is_some_and(|default| !kind.accepts(default)) {
            let message = format!("the default is not of type {}", kind.name());
            checked.flaws.push(SpecDiagnostic::new(child_pointer(&pointer, "default"), message));
        }
        let is_required = spec.required == Some(true) && default.is_none();
        let description = spec.description.unwrap_or_default();
        all.push(TemplateParameter { name: name.clone(), kind, is_required, default, description });
    }
    if checked.flaws.is_empty() { Ok(all) } else { Err(checked.flaws) }
}

/// Deserialises checked fields. A failure is reported as a flaw, though the schema should have ruled it out.
pub fn deserialize_fields<T: DeserializeOwned + Default>(
    good: Map<String, Value>,
    pointer: &str,
    flaws: &mut Vec<SpecDiagnostic>,
) -> T {
    serde_json::from_value(Value::Object(good)).unwrap_or_else(|error| {
        flaws.push(SpecDiagnostic::new(pointer, error.to_string()));
        T::default()
    })
}

/// The flaw for an argument that does not fit its parameter.
pub fn argument_flaw(error: TemplateError) -> SpecDiagnostic {
    match error {
        TemplateError::Unknown { name, known } => {
            let message = format!("there is no parameter {}", quoted(&name));
            SpecDiagnostic::new("/parameters", message).with_accepted(&name, &known)
        }
        TemplateError::Missing { name } => {
            let message = format!(
                "the parameter `{name}` needs a value: --arg {name}=..., or `{name}` in `arguments`"
            );
            SpecDiagnostic::new(child_pointer("/parameters", &name), message)
        }
        TemplateError::Mistyped { name, expected } => {
            let message = format!("the value of `{name}` must be of type {expected}");
            SpecDiagnostic::new(child_pointer("/parameters", &name), message)
        }
    }
}

fn without_parameters(written: &Value) -> Value {
    let mut body = written.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.shift_remove("parameters");
    }
    body
}

fn sorted_error(flaws: Vec<SpecDiagnostic>, value: &Value) -> SpecError {
    let error = SpecError::from_flaws(sort_flaws(flaws, value));
    error.unwrap_or_else(|| SpecError::single(SpecDiagnostic::new("", "it cannot be read")))
}

/// Sorts flaws in the order of the file and removes duplicates, because several rules may report the same.
pub fn sort_flaws(mut flaws: Vec<SpecDiagnostic>, value: &Value) -> Vec<SpecDiagnostic> {
    flaws.sort_by_cached_key(|flaw| {
        let mut at = Some(value);
        let places = flaw.pointer.split('/').skip(1).map(|part| match at {
            Some(Value::Object(fields)) => {
                let key = part.replace("~1", "/").replace("~0", "~");
                let place = fields.keys().position(|own| *own == key);
                at = fields.get(&key);
                place.unwrap_or(fields.len())
            }
            Some(Value::Array(values)) => {
                let place = part.parse().unwrap_or(values.len());
                at = values.get(place);
                place
            }
            _ => 0,
        });
        places.collect::<Vec<usize>>()
    });
    flaws.dedup();
    flaws
}

/// Reads one spec and collects its flaws.
pub struct SpecReader<'a> {
    pub context: &'a SpecContext<'a>,
    pub flaws: Vec<SpecDiagnostic>,
    roles: HashMap<String, Option<&'static Role>>,
}

impl<'a> SpecReader<'a> {
    fn new(context: &'a SpecContext<'a>) -> Self {
        Self { context, flaws: Vec::new(), roles: HashMap::new() }
    }

    pub fn add_flaw(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.flaws.push(SpecDiagnostic::new(pointer, message));
    }

    /// The role of that name. Its file is read once, however many steps have it.
    pub fn find_role(&mut self, name: &str, pointer: String) -> Option<&'static Role> {
        let known = self.roles.get(name).copied();
        let found = known.unwrap_or_else(|| (self.context.find_role)(name));
        self.roles.insert(name.to_owned(), found);
        if found.is_none() {
            let flaw = if self.context.role_names.iter().any(|own| own == name) {
                let message =
                    format!("the role {} cannot be used, see `pixir agents`", quoted(name));
                SpecDiagnostic::new(pointer, message)
            } else {
                let message = format!("there is no role {}", quoted(name));
                SpecDiagnostic::new(pointer, message).with_accepted(name, &self.context.role_names)
            };
            self.flaws.push(flaw);
        }
        found
    }

    fn read_workflow(&mut self, fields: &Map<String, Value>) -> Workflow {
        let checked = WORKFLOW.check(&Value::Object(fields.clone()));
        let mut good = checked.valid_fields(fields, "");
        self.flaws.clone_from(&checked.flaws);
        // The steps are read one by one, so that a flaw in one does not hide those of the others.
        good.shift_remove("steps");
        let is_list = !checked.flaws.iter().any(|flaw| flaw.pointer == "/steps");
        let steps = fields.get("steps").filter(|_| is_list).and_then(Value::as_array);
        let mut drafts = Vec::new();
        for (place, step) in steps.into_iter().flatten().enumerate() {
            let pointer = format!("/steps/{place}");
            if let Some(fields) = step.as_object() {
                let good = checked.valid_fields(fields, &pointer);
                drafts.push(StepDraft::read(self, fields, good, pointer));
            }
        }
        let spec = deserialize_fields(good, "", &mut self.flaws);
        self.build_workflow(spec, drafts)
    }

    fn build_workflow(&mut self, spec: WorkflowSpec, drafts: Vec<StepDraft>) -> Workflow {
        let limits = self.read_limits(spec.limits.unwrap_or_default());
        let steps = graph::join_steps(self, drafts);
        self.check_children(&steps);
        let name = spec.name.as_deref().map(str::trim);
        let id = spec.id.map_or_else(|| id_from_name(name.unwrap_or_default()), |id| id.0);
        Workflow {
            name: name.unwrap_or(&id).to_owned(),
            id,
            description: spec.description.unwrap_or_default().trim().to_owned(),
            limits,
            budget: spec.budget.unwrap_or_default(),
            steps,
        }
    }

    /// Refuses more tasks than the number of Subagents that a run may start.
    fn check_children(&mut self, steps: &[Step]) {
        let most = self.context.limits.max_per_run;
        let count = steps.iter().filter(|step| step.apply.is_none()).count();
        if count > most {
            let message = format!(
                "{count} steps start a Subagent, and a run may start {most}, which is \
                 `subagents.max_per_run` of the config"
            );
            self.add_flaw("/steps", message);
        }
    }

    fn read_limits(&mut self, given: LimitsSpec) -> RunLimits {
        let most = self.context.limits.max_running;
        if given.max_concurrency.is_some_and(|wanted| wanted > most) {
            let message = format!(
                "it must be from 1 to {most}, which is `subagents.max_running` of the config"
            );
            self.add_flaw("/limits/max_concurrency", message);
        }
        RunLimits {
            max_concurrency: given.max_concurrency.unwrap_or(most).max(1),
            timeout_ms: given.timeout_ms.unwrap_or(DEFAULT_RUN_MS),
        }
    }
}

/// An id derived from a name, for a spec without one.
fn id_from_name(name: &str) -> String {
    let words: Vec<String> = name
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let id: String = words.join("-").chars().take(64).collect();
    if id.is_empty() { "workflow".to_owned() } else { id }
}
