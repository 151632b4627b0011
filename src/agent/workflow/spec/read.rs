//! Reads a spec into a Workflow: fills placeholders, checks keys, adds defaults.
//!
//! Reading continues after a flaw where possible, so that all flaws are reported at once. Flawed values are left out
//! of later checks, so that one mistake is not reported twice.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::check::Checker;
use super::flaw::{Flaw, SpecError, inside, quoted};
use super::json as text;
use super::step::Draft;
use super::written::{LimitsSpec, ParameterSpec, WorkflowSpec};
use super::{Limits, Step, Workflow, graph};
use crate::model::skill::{Filling, Parameter, TemplateError, strangers};
use crate::settings::config::Subagents;
use crate::settings::role::Role;

/// The default time limit of a run, in milliseconds.
const USUAL_RUN: u64 = 3_600_000;

static WORKFLOW: LazyLock<Checker> = LazyLock::new(Checker::of::<WorkflowSpec>);

/// What reading a spec depends on besides the spec: roles, limits and arguments.
pub struct Ground<'a> {
    /// Finds a usable role by name.
    pub role: &'a dyn Fn(&str) -> Option<&'static Role>,
    /// The names of all roles, including unusable ones.
    pub roles: Vec<String>,
    /// The limits of Subagents.
    pub limits: Subagents,
    /// The values of parameters.
    pub arguments: Map<String, Value>,
}

impl Ground<'static> {
    /// A context with the built-in roles and no arguments.
    pub fn of_this_build(limits: Subagents) -> Self {
        let roles = Role::names().into_iter().map(str::to_owned).collect();
        Self { role: &Role::find, roles, limits, arguments: Map::new() }
    }
}

impl Workflow {
    /// Reads a spec; the error has all its flaws.
    pub fn read(spec: impl AsRef<[u8]>, ground: &Ground<'_>) -> Result<Self, SpecError> {
        Self::of(&text::read(spec.as_ref())?, ground)
    }

    /// Reads a spec from JSON that was parsed elsewhere.
    pub fn of(written: &Value, ground: &Ground<'_>) -> Result<Self, SpecError> {
        text::check(written)?;
        let parameters = parameters(written).map_err(|flaws| sorted(flaws, written))?;
        let mut flaws = Vec::new();
        let body = without_parameters(written);
        for (pointer, name) in strangers(&body, &parameters) {
            let names: Vec<&str> = parameters.iter().map(|own| own.name.as_str()).collect();
            let message = format!("`{{{{ {name} }}}}` is no parameter");
            flaws.push(Flaw::new(pointer, message).accepting(&name, &names));
        }
        let filling = match Filling::new(&parameters, &ground.arguments) {
            Ok(filling) if flaws.is_empty() => filling,
            filling => {
                flaws.extend(filling.err().unwrap_or_default().into_iter().map(misfit));
                return Err(sorted(flaws, written));
            }
        };
        let filled = filling.fill(&body).unwrap_or_default();
        Self::filled(&filled, ground).map_err(|error| {
            let flaws = error.moved(|pointer| filling.origin(&body, pointer));
            SpecError { left_out: flaws.left_out, ..sorted(flaws.flaws, written) }
        })
    }

    /// Reads a spec whose placeholders are filled already: what looks like a placeholder is text.
    pub fn filled(value: &Value, ground: &Ground<'_>) -> Result<Self, SpecError> {
        text::check(value)?;
        let Some(fields) = value.as_object() else { return Err(no_object()) };
        let mut reader = Reader::new(ground);
        let workflow = reader.workflow(fields);
        SpecError::of(in_order(reader.flaws, value)).map_or(Ok(workflow), Err)
    }

    /// Builds a Workflow from steps whose fields were checked one by one.
    pub fn of_fields(
        name: &str,
        steps: Vec<Map<String, Value>>,
        ground: &Ground<'_>,
    ) -> Result<Self, SpecError> {
        let mut reader = Reader::new(ground);
        let steps = steps.into_iter().enumerate();
        let drafts = steps.map(|(place, own)| {
            let written = own.clone();
            Draft::read(&mut reader, &written, own, format!("/steps/{place}"))
        });
        let drafts = drafts.collect();
        let spec = WorkflowSpec { name: Some(name.to_owned()), ..WorkflowSpec::default() };
        let workflow = reader.whole(spec, drafts);
        let error = SpecError { flaws: reader.flaws, left_out: 0 };
        if error.flaws.is_empty() { Ok(workflow) } else { Err(error) }
    }
}

fn no_object() -> SpecError {
    SpecError::one(Flaw::new("", "a workflow must be a JSON object"))
}

/// The parameters of a spec, or their flaws.
pub fn parameters(written: &Value) -> Result<Vec<Parameter>, Vec<Flaw>> {
    let Some(fields) = written.as_object() else { return Err(no_object().flaws) };
    let Some(value) = fields.get("parameters") else { return Ok(Vec::new()) };
    let mut checked = WORKFLOW.check(&json!({ "parameters": value }));
    // Only the parameters are checked; the missing `steps` are expected.
    checked.flaws.retain(|flaw| !flaw.pointer.is_empty());
    let mut all = Vec::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        let pointer = inside("/parameters", name);
        let Some(fields) = value.as_object() else { continue };
        let spec: ParameterSpec =
            typed(checked.good(fields, &pointer), &pointer, &mut checked.flaws);
        let kind = spec.kind.unwrap_or_default();
        // A default may be null.
        let default = fields.get("default").cloned();
        if default.as_ref().is_some_and(|default| !kind.fits(default)) {
            let message = format!("the default is not of type {}", kind.name());
            checked.flaws.push(Flaw::new(inside(&pointer, "default"), message));
        }
        let is_required = spec.required == Some(true) && default.is_none();
        let description = spec.description.unwrap_or_default();
        all.push(Parameter { name: name.clone(), kind, is_required, default, description });
    }
    if checked.flaws.is_empty() { Ok(all) } else { Err(checked.flaws) }
}

/// Deserialises checked fields. A failure is reported as a flaw, though the schema should have ruled it out.
pub fn typed<T: DeserializeOwned + Default>(
    good: Map<String, Value>,
    pointer: &str,
    flaws: &mut Vec<Flaw>,
) -> T {
    serde_json::from_value(Value::Object(good)).unwrap_or_else(|error| {
        flaws.push(Flaw::new(pointer, error.to_string()));
        T::default()
    })
}

/// The flaw for an argument that does not fit its parameter.
pub fn misfit(error: TemplateError) -> Flaw {
    match error {
        TemplateError::Unknown { name, known } => {
            let message = format!("there is no parameter {}", quoted(&name));
            Flaw::new("/parameters", message).accepting(&name, &known)
        }
        TemplateError::Missing { name } => {
            let message = format!(
                "the parameter `{name}` needs a value: --arg {name}=..., or `{name}` in `arguments`"
            );
            Flaw::new(inside("/parameters", &name), message)
        }
        TemplateError::Mistyped { name, expected } => {
            let message = format!("the value of `{name}` must be of type {expected}");
            Flaw::new(inside("/parameters", &name), message)
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

fn sorted(flaws: Vec<Flaw>, value: &Value) -> SpecError {
    let told = SpecError::of(in_order(flaws, value));
    told.unwrap_or_else(|| SpecError::one(Flaw::new("", "it cannot be read")))
}

/// Sorts flaws in the order of the file and removes duplicates, because several rules may report the same.
pub fn in_order(mut flaws: Vec<Flaw>, value: &Value) -> Vec<Flaw> {
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
pub struct Reader<'a> {
    pub ground: &'a Ground<'a>,
    pub flaws: Vec<Flaw>,
    roles: HashMap<String, Option<&'static Role>>,
}

impl<'a> Reader<'a> {
    fn new(ground: &'a Ground<'a>) -> Self {
        Self { ground, flaws: Vec::new(), roles: HashMap::new() }
    }

    pub fn wrong(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.flaws.push(Flaw::new(pointer, message));
    }

    /// The role of that name. Its file is read once, however many steps have it.
    pub fn role(&mut self, name: &str, pointer: String) -> Option<&'static Role> {
        let known = self.roles.get(name).copied();
        let found = known.unwrap_or_else(|| (self.ground.role)(name));
        self.roles.insert(name.to_owned(), found);
        if found.is_none() {
            let flaw = if self.ground.roles.iter().any(|own| own == name) {
                let message =
                    format!("the role {} cannot be used, see `pixir agents`", quoted(name));
                Flaw::new(pointer, message)
            } else {
                let message = format!("there is no role {}", quoted(name));
                Flaw::new(pointer, message).accepting(name, &self.ground.roles)
            };
            self.flaws.push(flaw);
        }
        found
    }

    fn workflow(&mut self, fields: &Map<String, Value>) -> Workflow {
        let checked = WORKFLOW.check(&Value::Object(fields.clone()));
        let mut good = checked.good(fields, "");
        self.flaws.clone_from(&checked.flaws);
        // The steps are read one by one, so that a flaw in one does not hide those of the others.
        good.shift_remove("steps");
        let is_list = !checked.flaws.iter().any(|flaw| flaw.pointer == "/steps");
        let steps = fields.get("steps").filter(|_| is_list).and_then(Value::as_array);
        let mut drafts = Vec::new();
        for (place, step) in steps.into_iter().flatten().enumerate() {
            let pointer = format!("/steps/{place}");
            if let Some(fields) = step.as_object() {
                let good = checked.good(fields, &pointer);
                drafts.push(Draft::read(self, fields, good, pointer));
            }
        }
        let spec = typed(good, "", &mut self.flaws);
        self.whole(spec, drafts)
    }

    fn whole(&mut self, spec: WorkflowSpec, drafts: Vec<Draft>) -> Workflow {
        let limits = self.limits(spec.limits.unwrap_or_default());
        let steps = graph::join(self, drafts);
        self.check_children(&steps);
        let name = spec.name.as_deref().map(str::trim);
        let id = spec.id.map_or_else(|| id_of(name.unwrap_or_default()), |id| id.0);
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
        let most = self.ground.limits.max_per_run;
        let count = steps.iter().filter(|step| step.apply.is_none()).count();
        if count > most {
            let message = format!(
                "{count} steps start a Subagent, and a run may start {most}, which is \
                 `subagents.max_per_run` of the config"
            );
            self.wrong("/steps", message);
        }
    }

    fn limits(&mut self, given: LimitsSpec) -> Limits {
        let most = self.ground.limits.max_running;
        if given.max_concurrency.is_some_and(|wanted| wanted > most) {
            let message = format!(
                "it must be from 1 to {most}, which is `subagents.max_running` of the config"
            );
            self.wrong("/limits/max_concurrency", message);
        }
        Limits {
            max_concurrency: given.max_concurrency.unwrap_or(most).max(1),
            timeout_ms: given.timeout_ms.unwrap_or(USUAL_RUN),
        }
    }
}

/// An id derived from a name, for a spec without one.
fn id_of(name: &str) -> String {
    let words: Vec<String> = name
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let id: String = words.join("-").chars().take(64).collect();
    if id.is_empty() { "workflow".to_owned() } else { id }
}
