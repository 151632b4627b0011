//! Reads the JSON of a delegation into a Workflow, or reports all its flaws.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::spec_types::{DelegateLimits, DelegationSpec};
use crate::agent::workflow::spec::check::{CheckedValue, SchemaChecker};
use crate::agent::workflow::spec::{
    SpecContext, SpecDiagnostic, SpecError, StepPosture, Workflow, deserialize_fields, parse,
    sort_flaws,
};
use crate::base::error::{Explain, Explanation, Kind};

static DELEGATION: LazyLock<SchemaChecker> = LazyLock::new(SchemaChecker::new::<DelegationSpec>);

/// The role of a task that only reads, and of one that writes.
const ROLES: [&str; 2] = ["explorer", "worker"];

/// The keys of which a delegation has exactly one.
const SOURCES: [&str; 3] = ["tasks", "workflow", "template"];

/// A delegation, ready to run.
#[derive(Debug, Clone)]
pub struct Delegation {
    pub workflow: Workflow,
    pub source: DelegateSource,
    /// The time limit of children that set none.
    pub child_timeout_ms: Option<u64>,
}

/// The source of a delegation's Workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelegateSource {
    Tasks,
    Workflow,
    Template(String),
}

impl DelegateSource {
    /// The name in the answer.
    pub fn name(&self) -> &'static str {
        match self {
            DelegateSource::Tasks => "tasks",
            DelegateSource::Workflow => "workflow",
            DelegateSource::Template(_) => "template",
        }
    }
}

/// The flaws of a delegation that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", .0.headline("the spec"))]
pub struct DelegationError(pub SpecError);

impl Explain for DelegationError {
    fn explain(&self) -> Explanation {
        Kind::InvalidArgs
            .with_details(self.0.details())
            .with_next_action(
                "correct the listed keys and try again; docs/delegate.md describes every key",
            )
            .with_next_action(
                "check it without calling a model: pixir delegate --spec FILE --dry-run",
            )
    }
}

/// Fills the template of that name with arguments.
pub type FillTemplate<'a> = &'a dyn Fn(&str, Map<String, Value>) -> Result<Workflow, SpecError>;

impl Delegation {
    /// Reads the spec of a delegation. Uses nothing but the spec, the roles and the templates.
    pub fn read(
        text: &[u8],
        context: &SpecContext<'_>,
        templates: FillTemplate<'_>,
    ) -> Result<Self, DelegationError> {
        let written = parse(text).map_err(DelegationError)?;
        let Some(fields) = written.as_object() else {
            let flaw = SpecDiagnostic::new("", "a delegation must be a JSON object");
            return Err(DelegationError(SpecError::single(flaw)));
        };
        let checked = DELEGATION.check(&written);
        let mut reader = DelegationReader { fields, context, flaws: checked.flaws.clone() };
        let read = reader.read_delegation(&checked, templates);
        match (SpecError::from_flaws(sort_flaws(reader.flaws, &written)), read) {
            (None, Some(delegation)) => Ok(delegation),
            (Some(error), _) => Err(DelegationError(error)),
            // Every refusal needs a reason.
            (None, None) => Err(DelegationError(SpecError::single(SpecDiagnostic::new(
                "",
                "it cannot be read",
            )))),
        }
    }

    /// The indices of the children that may change files.
    pub fn writers(&self) -> Vec<usize> {
        let steps = self.workflow.steps.iter().enumerate();
        steps
            .filter(|(_, step)| step.posture == StepPosture::Write)
            .map(|(place, _)| place)
            .collect()
    }
}

struct DelegationReader<'a> {
    fields: &'a Map<String, Value>,
    context: &'a SpecContext<'a>,
    flaws: Vec<SpecDiagnostic>,
}

impl DelegationReader<'_> {
    fn add_flaw(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.flaws.push(SpecDiagnostic::new(pointer, message));
    }

    fn read_delegation(
        &mut self,
        checked: &CheckedValue,
        templates: FillTemplate<'_>,
    ) -> Option<Delegation> {
        // Tasks and the workflow are read piece by piece, so that no flaw hides another.
        let is_wrong = |pointer: &str| checked.flaws.iter().any(|flaw| flaw.pointer == pointer);
        let whole = |key: &str| self.fields.get(key).filter(|_| !is_wrong(&format!("/{key}")));
        let tasks = whole("tasks").and_then(Value::as_array);
        let workflow = whole("workflow");
        let mut good = checked.valid_fields(self.fields, "");
        for key in ["tasks", "workflow"] {
            good.shift_remove(key);
        }
        let spec: DelegationSpec = deserialize_fields(good, "", &mut self.flaws);
        let named: Vec<&str> =
            SOURCES.into_iter().filter(|key| self.fields.contains_key(*key)).collect();
        // A misspelt key is reported as such, not as missing.
        let is_misspelt = self
            .flaws
            .iter()
            .any(|flaw| flaw.suggestion.as_deref().is_some_and(|meant| SOURCES.contains(&meant)));
        match named.as_slice() {
            [_] => {}
            [] if is_misspelt => {}
            [] => self.add_flaw("", "a delegation needs `tasks`, `workflow` or `template`"),
            [_, others @ ..] => {
                for key in others {
                    let message = format!("`{}` is given already; only one is allowed", named[0]);
                    self.add_flaw(format!("/{key}"), message);
                }
            }
        }
        let belongs = |key: &str, to: &[&str]| {
            named.is_empty()
                || !self.fields.contains_key(key)
                || to.iter().any(|own| named.contains(own))
        };
        let (has_defaults, has_arguments) =
            (belongs("defaults", &["tasks"]), belongs("arguments", &["workflow", "template"]));
        if !has_defaults {
            self.add_flaw(
                "/defaults",
                "`defaults` are for `tasks`; a workflow says everything itself",
            );
        }
        if !has_arguments {
            self.add_flaw(
                "/arguments",
                "`arguments` are for `workflow` and `template`; tasks have none",
            );
        }
        let limits = spec.limits.unwrap_or_default();
        self.check_limits(limits);
        let arguments = spec.arguments.unwrap_or_default();
        let template = spec.template.as_deref().map(str::trim);
        let (mut workflow, source) = match (tasks, workflow, template) {
            (Some(tasks), ..) => (self.read_tasks(tasks, checked)?, DelegateSource::Tasks),
            (_, Some(written), _) => {
                (self.read_workflow(written, arguments)?, DelegateSource::Workflow)
            }
            (.., Some(name)) => {
                let filled = templates(name, arguments).map_err(|error| {
                    self.flaws.extend(error.flaws.into_iter().map(template_flaw));
                });
                (filled.ok()?, DelegateSource::Template(name.to_owned()))
            }
            (None, None, None) => return None,
        };
        apply_limits(limits, &mut workflow);
        if let Some(name) = &spec.name {
            name.trim().clone_into(&mut workflow.name);
        }
        workflow.budget = spec.budget.unwrap_or(workflow.budget);
        Some(Delegation { workflow, source, child_timeout_ms: limits.child_timeout_ms })
    }

    fn check_limits(&mut self, wanted: DelegateLimits) {
        let most = self.context.limits.max_running;
        if wanted.max_concurrency.is_some_and(|own| own > most) {
            let message = format!(
                "it must be from 1 to {most}, which is `subagents.max_running` of the config"
            );
            self.add_flaw("/limits/max_concurrency", message);
        }
        let longest = self.context.limits.max_timeout;
        if wanted.child_timeout_ms.is_some_and(|own| Duration::from_millis(own) > longest) {
            let message = format!(
                "it must be from 1 to {}, which is `subagents.max_timeout_ms` of the config",
                longest.as_millis()
            );
            self.add_flaw("/limits/child_timeout_ms", message);
        }
    }

    fn read_workflow(
        &mut self,
        written: &Value,
        arguments: Map<String, Value>,
    ) -> Option<Workflow> {
        let context = SpecContext {
            find_role: self.context.find_role,
            role_names: self.context.role_names.clone(),
            limits: self.context.limits,
            arguments,
        };
        Workflow::from_json(written, &context)
            .map_err(|error| {
                let inner = error.map_pointers(|pointer| format!("/workflow{pointer}"));
                self.flaws.extend(inner.flaws);
            })
            .ok()
    }

    /// Builds a Workflow of independent steps.
    fn read_tasks(&mut self, tasks: &[Value], checked: &CheckedValue) -> Option<Workflow> {
        let defaults = self.fields.get("defaults").and_then(Value::as_object);
        let defaults =
            defaults.map(|own| checked.valid_fields(own, "/defaults")).unwrap_or_default();
        let mut own: Vec<Map<String, Value>> = Vec::new();
        for (place, task) in tasks.iter().enumerate() {
            own.push(match task {
                Value::Object(fields) => checked.valid_fields(fields, &format!("/tasks/{place}")),
                other => Map::from_iter([("task".to_owned(), other.clone())]),
            });
        }
        let taken: HashSet<&str> = own.iter().filter_map(|task| task.get("id")?.as_str()).collect();
        let mut steps = Vec::new();
        for (place, task) in own.iter().enumerate() {
            let mut step = defaults.clone();
            step.extend(task.iter().map(|(key, value)| (key.clone(), value.clone())));
            // A missing task, or one that is not text, is reported already.
            let words = step.get("task").filter(|words| words.is_string()).cloned();
            step.insert("task".to_owned(), words.unwrap_or_default());
            let mut id = format!("task_{}", place + 1);
            while taken.contains(id.as_str()) {
                id.push('_');
            }
            step.entry("id").or_insert_with(|| json!(id));
            let writes = step.get("posture").is_some_and(|posture| posture == "write");
            step.entry("role").or_insert_with(|| json!(ROLES[usize::from(writes)]));
            steps.push(step);
        }
        match Workflow::from_step_fields("delegate", steps, self.context) {
            Ok(mut workflow) => {
                for step in &mut workflow.steps {
                    step.answer_is_enough = true;
                }
                Some(workflow)
            }
            Err(error) => {
                let moved =
                    error.map_pointers(|pointer| map_task_pointer(pointer, tasks, &own, &defaults));
                self.flaws.extend(moved.flaws);
                None
            }
        }
    }
}

/// Moves a flaw of a template to `/template`, because the template's own file is not part of the delegation; flaws
/// of parameters move to `/arguments`.
fn template_flaw(mut flaw: SpecDiagnostic) -> SpecDiagnostic {
    if let Some(rest) = flaw.pointer.strip_prefix("/parameters") {
        flaw.pointer = format!("/arguments{rest}");
    } else {
        if !flaw.pointer.is_empty() {
            flaw.message = format!("in the template at {}: {}", flaw.pointer, flaw.message);
        }
        "/template".clone_into(&mut flaw.pointer);
    }
    flaw
}

/// The pointer in the delegation at which the value of a step was written.
fn map_task_pointer(
    pointer: &str,
    written: &[Value],
    tasks: &[Map<String, Value>],
    defaults: &Map<String, Value>,
) -> String {
    if pointer == "/steps" {
        return "/tasks".to_owned();
    }
    let mut parts = pointer.splitn(5, '/').skip(1);
    let (Some("steps"), Some(place)) = (parts.next(), parts.next()) else {
        return pointer.to_owned();
    };
    let own = place.parse::<usize>().ok();
    let Some((own, task)) = own.and_then(|place| Some((written.get(place)?, tasks.get(place)?)))
    else {
        return "/tasks".to_owned();
    };
    let Some(key) = parts.next().filter(|key| own.is_object() || *key != "task") else {
        return format!("/tasks/{place}");
    };
    let rest = parts.next().map(|rest| format!("/{rest}")).unwrap_or_default();
    if task.contains_key(key) {
        format!("/tasks/{place}/{key}{rest}")
    } else if defaults.contains_key(key) {
        format!("/defaults/{key}{rest}")
    } else {
        format!("/tasks/{place}")
    }
}

/// Applies the limits of a delegation, which override those of its Workflow; a step's own time limit is kept.
fn apply_limits(limits: DelegateLimits, workflow: &mut Workflow) {
    let own = &mut workflow.limits;
    own.max_concurrency = limits.max_concurrency.unwrap_or(own.max_concurrency);
    own.timeout_ms = limits.timeout_ms.unwrap_or(own.timeout_ms);
    for step in workflow.steps.iter_mut().filter(|step| step.task.is_some()) {
        step.timeout_ms = step.timeout_ms.or(limits.child_timeout_ms);
    }
}
