//! From what another program wrote to a Workflow, or everything that is wrong with it.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::keys::{DEFAULTS, DELEGATION, ONE_TASK};
use crate::error::{Explain, Kind};
use crate::workflow::spec::shape::Shape;
use crate::workflow::spec::{Budget, Flaw, Ground, Posture, SpecError, Workflow, in_order, parse};

/// The role of a task that only reads, and of one that writes.
const ROLES: [&str; 2] = ["explorer", "worker"];

/// What there is to do; one of them must be there.
const SOURCES: [&str; 3] = ["tasks", "workflow", "template"];

/// What somebody hands over, ready to run.
#[derive(Debug, Clone)]
pub struct Delegation {
    pub workflow: Workflow,
    pub source: Source,
    /// How long a child may work that has no time of its own, if somebody said so.
    pub child_timeout_ms: Option<u64>,
}

/// What it was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Tasks,
    Workflow,
    Template(String),
}

impl Source {
    /// The word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Source::Tasks => "tasks",
            Source::Workflow => "workflow",
            Source::Template(_) => "template",
        }
    }
}

/// A delegation that cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct BadSpec(pub SpecError);

impl std::fmt::Display for BadSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let more = self.0.flaws.len() + self.0.left_out - 1;
        f.write_str("the spec cannot be used")?;
        if let Some(first) = self.0.flaws.first() {
            write!(f, ": {first}")?;
        }
        if more > 0 { write!(f, " (and {more} more)") } else { Ok(()) }
    }
}

impl std::error::Error for BadSpec {}

impl Explain for BadSpec {
    fn kind(&self) -> Kind {
        Kind::InvalidArgs
    }

    fn details(&self) -> Value {
        self.0.details()
    }

    fn next_actions(&self) -> Vec<String> {
        vec![
            "correct what is named and try again; docs/delegate.md has every key".to_owned(),
            "try it without paying: pixir delegate --spec FILE --dry-run".to_owned(),
        ]
    }
}

/// Fills a template.
pub type Templates<'a> = &'a dyn Fn(&str, Map<String, Value>) -> Result<Workflow, SpecError>;

impl Delegation {
    /// Reads a spec. Nothing is looked at but the spec, the roles and the templates.
    pub fn read(
        text: &[u8],
        ground: &Ground<'_>,
        templates: Templates<'_>,
    ) -> Result<Self, BadSpec> {
        let written = parse(text).map_err(BadSpec)?;
        let Some(fields) = written.as_object() else {
            let flaw = Flaw::new("", "a delegation must be a JSON object");
            return Err(BadSpec(SpecError::one(flaw)));
        };
        let mut reader = Reader { fields, ground, flaws: Vec::new() };
        let read = reader.delegation(templates);
        let mut told = HashSet::new();
        reader.flaws.retain(|flaw| told.insert((flaw.pointer.clone(), flaw.message.clone())));
        match (SpecError::of(in_order(reader.flaws, &written)), read) {
            (None, Some(delegation)) => Ok(delegation),
            (Some(error), _) => Err(BadSpec(error)),
            // Nothing is refused without a reason.
            (None, None) => Err(BadSpec(SpecError::one(Flaw::new("", "it cannot be read")))),
        }
    }

    /// The children that may change something, by place.
    pub fn writers(&self) -> Vec<usize> {
        let steps = self.workflow.steps.iter().enumerate();
        steps.filter(|(_, step)| step.posture == Posture::Write).map(|(place, _)| place).collect()
    }
}

struct Reader<'a> {
    fields: &'a Map<String, Value>,
    ground: &'a Ground<'a>,
    flaws: Vec<Flaw>,
}

impl Reader<'_> {
    fn wrong(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.flaws.push(Flaw::new(pointer, message));
    }

    fn delegation(&mut self, templates: Templates<'_>) -> Option<Delegation> {
        // What is made of steps is looked at piece by piece, so that no flaw hides another.
        let mut rest = self.fields.clone();
        let is_whole = |key: &str| match (key, self.fields.get(key)) {
            ("tasks", Some(Value::Array(tasks))) => {
                DELEGATION.key("tasks").is_some_and(|key| match &key.shape {
                    Shape::List(_, least, most) => (*least..=*most).contains(&tasks.len()),
                    _ => false,
                })
            }
            ("workflow", Some(Value::Object(_))) => true,
            _ => false,
        };
        let whole: Vec<&str> =
            ["tasks", "workflow"].into_iter().filter(|key| is_whole(key)).collect();
        for key in &whole {
            rest.shift_remove(*key);
        }
        let good = DELEGATION.good(&rest, "", &mut self.flaws);
        let named: Vec<&str> =
            SOURCES.into_iter().filter(|key| self.fields.contains_key(*key)).collect();
        // Who misspelt it is told so, and not that it is missing.
        let is_misspelt = self
            .flaws
            .iter()
            .any(|flaw| flaw.meant.as_deref().is_some_and(|meant| SOURCES.contains(&meant)));
        match named.as_slice() {
            [_] => {}
            [] if is_misspelt => {}
            [] => self.wrong("", "a delegation needs `tasks`, `workflow` or `template`"),
            [_, others @ ..] => {
                for key in others {
                    let message = format!("`{}` is there already; give one of them", named[0]);
                    self.wrong(format!("/{key}"), message);
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
            self.wrong(
                "/defaults",
                "`defaults` are for `tasks`; a workflow says everything itself",
            );
        }
        if !has_arguments {
            self.wrong(
                "/arguments",
                "`arguments` are for `workflow` and `template`; tasks have none",
            );
        }
        let limits = self.limits(&good);
        let arguments =
            good.get("arguments").and_then(Value::as_object).cloned().unwrap_or_default();
        let read = if whole.contains(&"tasks") {
            self.tasks(&good).map(|own| (own, Source::Tasks))
        } else if whole.contains(&"workflow") {
            self.workflow(arguments).map(|own| (own, Source::Workflow))
        } else if let Some(name) = good.get("template").and_then(Value::as_str) {
            match templates(name.trim(), arguments) {
                Ok(workflow) => Some((workflow, Source::Template(name.trim().to_owned()))),
                Err(error) => {
                    self.flaws.extend(error.flaws.into_iter().map(of_template));
                    None
                }
            }
        } else {
            None
        };
        let (mut workflow, source) = read?;
        limits.apply(&mut workflow);
        if let Some(name) = good.get("name").and_then(Value::as_str) {
            name.trim().clone_into(&mut workflow.name);
        }
        if let Some(budget) = good.get("budget") {
            workflow.budget = Budget {
                tokens: budget.get("tokens").and_then(Value::as_u64),
                cost_usd: budget.get("cost_usd").and_then(Value::as_f64),
            };
        }
        Some(Delegation { workflow, source, child_timeout_ms: limits.child_timeout_ms })
    }

    fn limits(&mut self, good: &Map<String, Value>) -> Wanted {
        let given = good.get("limits");
        let number = |name: &str| given.and_then(|own| own.get(name)).and_then(Value::as_u64);
        let wanted = Wanted {
            max_concurrency: number("max_concurrency").and_then(|own| usize::try_from(own).ok()),
            timeout_ms: number("timeout_ms"),
            child_timeout_ms: number("child_timeout_ms"),
        };
        let most = self.ground.limits.max_running;
        if wanted.max_concurrency.is_some_and(|own| own > most) {
            let message = format!(
                "it must be from 1 to {most}, which is `subagents.max_running` of the config"
            );
            self.wrong("/limits/max_concurrency", message);
        }
        let longest = self.ground.limits.max_timeout;
        if wanted.child_timeout_ms.is_some_and(|own| Duration::from_millis(own) > longest) {
            let message = format!(
                "it must be from 1 to {}, which is `subagents.max_timeout_ms` of the config",
                longest.as_millis()
            );
            self.wrong("/limits/child_timeout_ms", message);
        }
        wanted
    }

    fn workflow(&mut self, arguments: Map<String, Value>) -> Option<Workflow> {
        let written = self.fields.get("workflow")?;
        let ground = Ground {
            role: self.ground.role,
            roles: self.ground.roles.clone(),
            limits: self.ground.limits,
            arguments,
        };
        match Workflow::of(written, &ground) {
            Ok(workflow) => Some(workflow),
            Err(error) => {
                let inner = error.moved(|pointer| format!("/workflow{pointer}"));
                self.flaws.extend(inner.flaws);
                None
            }
        }
    }

    /// A Workflow of steps that do not know each other.
    fn tasks(&mut self, good: &Map<String, Value>) -> Option<Workflow> {
        let empty = Map::new();
        // A flaw in one default must not hide the others, nor those of the tasks.
        let defaults = match self.fields.get("defaults") {
            Some(Value::Object(fields)) => DEFAULTS.good(fields, "/defaults", &mut Vec::new()),
            _ => empty.clone(),
        };
        let tasks = self.fields.get("tasks")?.as_array()?;
        let mut own: Vec<Map<String, Value>> = Vec::new();
        for (place, task) in tasks.iter().enumerate() {
            let pointer = format!("/tasks/{place}");
            own.push(match task {
                Value::Object(fields) => ONE_TASK.good(fields, &pointer, &mut self.flaws),
                other => {
                    if let Some(key) = ONE_TASK.key("task") {
                        let before = self.flaws.len();
                        key.shape.check(other, &pointer, &mut self.flaws);
                        if !other.is_string() {
                            self.flaws.truncate(before);
                            self.wrong(pointer, "a task must be text, or an object");
                        }
                    }
                    Map::from_iter([("task".to_owned(), other.clone())])
                }
            });
        }
        let taken: HashSet<String> =
            own.iter().filter_map(|task| task.get("id")?.as_str().map(str::to_owned)).collect();
        let mut steps = Vec::new();
        for (place, task) in own.iter().enumerate() {
            let mut step = defaults.clone();
            step.extend(task.iter().map(|(key, value)| (key.clone(), value.clone())));
            // What is wrong with it is told already.
            let words = step.get("task").and_then(Value::as_str).unwrap_or_default();
            if words.trim().is_empty() {
                step.insert("task".to_owned(), json!("-"));
            }
            let mut id = format!("task_{}", place + 1);
            while taken.contains(&id) {
                id.push('_');
            }
            step.entry("id").or_insert_with(|| json!(id));
            let writes = step.get("posture").is_some_and(|posture| posture == "write");
            step.entry("role").or_insert_with(|| json!(ROLES[usize::from(writes)]));
            steps.push(Value::Object(step));
        }
        let name = good.get("name").and_then(Value::as_str).unwrap_or("delegate");
        let written = json!({ "id": "delegate", "name": name, "steps": steps });
        match Workflow::filled(&written, self.ground) {
            Ok(mut workflow) => {
                for step in &mut workflow.steps {
                    step.answer_is_enough = true;
                }
                Some(workflow)
            }
            Err(error) => {
                let is_told = |pointer: &str| self.flaws.iter().any(|flaw| flaw.pointer == pointer);
                let told: HashSet<String> = error
                    .flaws
                    .iter()
                    .map(|flaw| origin(&flaw.pointer, tasks, &own, &defaults))
                    .filter(|pointer| is_told(pointer))
                    .collect();
                let moved = error.moved(|pointer| origin(pointer, tasks, &own, &defaults));
                self.flaws
                    .extend(moved.flaws.into_iter().filter(|flaw| !told.contains(&flaw.pointer)));
                None
            }
        }
    }
}

/// What is wrong with a template, told where it is named: its own file is not here. Its parameters
/// are what `arguments` are for.
fn of_template(mut flaw: Flaw) -> Flaw {
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

/// Where the value of a step was written.
fn origin(
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

/// The limits that were named.
#[derive(Clone, Copy)]
struct Wanted {
    max_concurrency: Option<usize>,
    timeout_ms: Option<u64>,
    child_timeout_ms: Option<u64>,
}

impl Wanted {
    /// They count more than those of the Workflow; a step's own time counts more than that of all.
    fn apply(self, workflow: &mut Workflow) {
        if let Some(most) = self.max_concurrency {
            workflow.limits.max_concurrency = most;
        }
        if let Some(timeout) = self.timeout_ms {
            workflow.limits.timeout_ms = timeout;
        }
        for step in workflow.steps.iter_mut().filter(|step| step.task.is_some()) {
            step.timeout_ms = step.timeout_ms.or(self.child_timeout_ms);
        }
    }
}
