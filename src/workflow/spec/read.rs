//! From a written spec to a whole one: places filled, keys checked, defaults put in.
//!
//! Reading goes on behind a flaw wherever it can, so that one look tells everything. What is flawed
//! already is left out of later checks, so that one mistake is not told twice.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::flaw::{Flaw, SpecError, inside, quoted};
use super::keys::{MOST_STEPS, PARAMETER, STEP, USUAL_RUN, WORKFLOW};
use super::step::Draft;
use super::{Budget, Limits, Step, Workflow, graph, json};
use crate::config::Subagents;
use crate::role::Role;
use crate::skill::{Filling, Parameter, TemplateError, Type, strangers};

/// What must be known besides the spec.
pub struct Ground<'a> {
    /// The role of a name, if it can be used.
    pub role: &'a dyn Fn(&str) -> Option<&'static Role>,
    /// The names of all roles, also of those that cannot be used.
    pub roles: Vec<String>,
    /// What Subagents may do.
    pub limits: Subagents,
    /// The values of parameters.
    pub arguments: Map<String, Value>,
}

impl Ground<'static> {
    /// The roles of this build, and no arguments.
    pub fn of_this_build(limits: Subagents) -> Self {
        let roles = Role::names().into_iter().map(str::to_owned).collect();
        Self { role: &Role::find, roles, limits, arguments: Map::new() }
    }
}

impl Workflow {
    /// Reads a spec, or says everything that is wrong with it.
    pub fn read(text: impl AsRef<[u8]>, ground: &Ground<'_>) -> Result<Self, SpecError> {
        Self::of(&json::read(text.as_ref())?, ground)
    }

    /// The same, of JSON that somebody else has read.
    pub fn of(written: &Value, ground: &Ground<'_>) -> Result<Self, SpecError> {
        json::check(written)?;
        let mut flaws = Vec::new();
        let parameters = parameters(written, &mut flaws);
        if parameters.is_none() {
            return Err(sorted(flaws, written));
        }
        let parameters = parameters.unwrap_or_default();
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

    /// Reads a spec whose places are filled already: whatever looks like one is text.
    pub fn filled(value: &Value, ground: &Ground<'_>) -> Result<Self, SpecError> {
        json::check(value)?;
        let mut reader = Reader { ground, flaws: Vec::new(), roles: HashMap::new() };
        let read = reader.workflow(value);
        match (SpecError::of(in_order(reader.flaws, value)), read) {
            (None, Some(workflow)) => Ok(workflow),
            (Some(error), _) => Err(error),
            // Nothing is refused without a reason.
            (None, None) => Err(SpecError::one(Flaw::new("", "it cannot be read"))),
        }
    }
}

/// The parameters of a spec; `None` when they, or the whole spec, cannot be read at all.
pub fn parameters(written: &Value, flaws: &mut Vec<Flaw>) -> Option<Vec<Parameter>> {
    let Some(fields) = written.as_object() else {
        flaws.push(Flaw::new("", "a workflow must be a JSON object"));
        return None;
    };
    let Some(value) = fields.get("parameters") else { return Some(Vec::new()) };
    if let Some(key) = WORKFLOW.key("parameters") {
        key.shape.check(value, "/parameters", flaws);
    }
    let mut all = Vec::new();
    for (name, value) in value.as_object()? {
        let pointer = inside("/parameters", name);
        let Some(fields) = value.as_object() else { continue };
        let good = PARAMETER.good(fields, &pointer, &mut Vec::new());
        let kind = text(&good, "type").and_then(Type::named).unwrap_or_default();
        let default = good.get("default").cloned();
        if default.as_ref().is_some_and(|default| !kind.fits(default)) {
            let message = format!("the default is not of type {}", kind.name());
            flaws.push(Flaw::new(inside(&pointer, "default"), message));
        }
        let is_required = flag(&good, "required") && default.is_none();
        let description = text(&good, "description").unwrap_or_default().to_owned();
        all.push(Parameter { name: name.clone(), kind, is_required, default, description });
    }
    flaws.is_empty().then_some(all)
}

/// An argument that does not fit, told at its parameter.
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

/// Flaws in the order of the file.
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
    flaws
}

/// Reads one spec.
pub struct Reader<'a> {
    pub ground: &'a Ground<'a>,
    pub flaws: Vec<Flaw>,
    roles: HashMap<String, Option<&'static Role>>,
}

impl Reader<'_> {
    pub fn wrong(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.flaws.push(Flaw::new(pointer, message));
    }

    /// The role of that name. Its file is looked at once, however many steps have it.
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

    fn workflow(&mut self, value: &Value) -> Option<Workflow> {
        let Some(fields) = value.as_object() else {
            self.wrong("", "a workflow must be a JSON object");
            return None;
        };
        // The steps are looked at one by one, so that a flaw in one does not hide the others.
        let mut rest = fields.clone();
        let steps = match rest.get("steps") {
            Some(Value::Array(steps)) if (1..=MOST_STEPS).contains(&steps.len()) => {
                let steps = steps.clone();
                rest.shift_remove("steps");
                rest.insert("steps".to_owned(), Value::Array(Vec::new()));
                Some(steps)
            }
            _ => None,
        };
        let mut flaws = Vec::new();
        let good = WORKFLOW.good(&rest, "", &mut flaws);
        // The empty list stands in for the steps.
        flaws.retain(|flaw| steps.is_none() || flaw.pointer != "/steps");
        self.flaws.append(&mut flaws);
        let limits = self.limits(good.get("limits"));
        let budget = good.get("budget");
        let budget = Budget {
            tokens: budget.and_then(|own| own.get("tokens")).and_then(Value::as_u64),
            cost_usd: budget.and_then(|own| own.get("cost_usd")).and_then(Value::as_f64),
        };
        let mut drafts = Vec::new();
        for (place, step) in steps?.iter().enumerate() {
            let pointer = format!("/steps/{place}");
            match step.as_object() {
                Some(fields) => {
                    let good = STEP.good(fields, &pointer, &mut self.flaws);
                    drafts.push(Draft::read(self, fields, &good, pointer));
                }
                None => self.wrong(pointer, "a step must be an object"),
            }
        }
        let steps = graph::join(self, drafts);
        self.check_children(&steps);
        let name = text(&good, "name").map(str::trim);
        let id = text(&good, "id").map_or_else(|| id_of(name.unwrap_or_default()), str::to_owned);
        Some(Workflow {
            name: name.unwrap_or(&id).to_owned(),
            id,
            description: text(&good, "description").unwrap_or_default().trim().to_owned(),
            limits,
            budget,
            steps,
        })
    }

    /// Refuses more steps than a run may start Subagents.
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

    fn limits(&mut self, given: Option<&Value>) -> Limits {
        let number = |name: &str| given.and_then(|own| own.get(name)).and_then(Value::as_u64);
        let most = self.ground.limits.max_running;
        let wanted =
            number("max_concurrency").map(|own| usize::try_from(own).unwrap_or(usize::MAX));
        if wanted.is_some_and(|wanted| wanted > most) {
            let message = format!(
                "it must be from 1 to {most}, which is `subagents.max_running` of the config"
            );
            self.wrong("/limits/max_concurrency", message);
        }
        Limits {
            max_concurrency: wanted.unwrap_or(most).max(1),
            timeout_ms: number("timeout_ms").unwrap_or(USUAL_RUN),
        }
    }
}

/// An id made of a name, for a spec that has none.
fn id_of(name: &str) -> String {
    let words: Vec<String> = name
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let id: String = words.join("-").chars().take(64).collect();
    if id.is_empty() { "workflow".to_owned() } else { id }
}

/// The text behind a key.
pub fn text<'v>(fields: &'v Map<String, Value>, key: &str) -> Option<&'v str> {
    fields.get(key).and_then(Value::as_str)
}

/// Whether a switch is on.
pub fn flag(fields: &Map<String, Value>, key: &str) -> bool {
    fields.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// The values behind a key where one may stand for a list.
pub fn each<'v>(fields: &'v Map<String, Value>, key: &str) -> Vec<(Option<usize>, &'v Value)> {
    match fields.get(key) {
        None => Vec::new(),
        Some(Value::Array(values)) => {
            values.iter().enumerate().map(|(place, value)| (Some(place), value)).collect()
        }
        Some(value) => vec![(None, value)],
    }
}
