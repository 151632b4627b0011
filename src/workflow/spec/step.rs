//! One step of a spec: what it says by itself, before anybody asks what the others are.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::flaw::{Flaw, inside};
use super::keys::{NOT_WITH_APPLY, USUAL_CHECK};
use super::output;
use super::read::{Reader, each, flag, text};
use super::{Check, Need, OnFailure, Posture, Step, Workspace};
use crate::bounds::{Bounds, WriteGlobs};
use crate::event::PermissionMode;
use crate::role::Role;
use crate::workflow::glob::Glob;

/// The role of a step that names none.
const USUAL_ROLE: &str = "worker";

/// A step and where it stands.
pub struct Draft {
    pub step: Step,
    pub pointer: String,
    /// The steps that it names: who, and where that is said.
    pub edges: Vec<(String, String)>,
    /// Whether its `output` was stated, also when that is flawed.
    pub states_output: bool,
    /// Whether nothing is known of what it would be.
    pub is_vague: bool,
}

impl Draft {
    /// Reads a step of its good fields; `all` are those that were written.
    pub fn read(
        reader: &mut Reader<'_>,
        all: &Map<String, Value>,
        good: &Map<String, Value>,
        pointer: String,
    ) -> Self {
        let before = reader.flaws.len();
        let at = |key: &str| inside(&pointer, key);
        let applies = all.contains_key("apply");
        if applies {
            for key in NOT_WITH_APPLY.iter().filter(|key| all.contains_key(**key)) {
                let message = format!("a step that applies cannot have `{key}`");
                reader.wrong(at(key), message);
            }
        } else if !all.contains_key("task") {
            reader.wrong(pointer.clone(), "a step needs `task`, or `apply`");
        }
        let name = text(good, "role").map_or(USUAL_ROLE, str::trim);
        let role = if applies { None } else { reader.role(name, at("role")) };
        let posture = posture(reader, good, role, applies, &pointer);
        let workspace = match text(good, "workspace") {
            _ if applies => Workspace::Shared,
            Some("isolated") => Workspace::Isolated,
            Some("worktree") => Workspace::Worktree,
            None if posture == Posture::Write => Workspace::Isolated,
            _ => Workspace::Shared,
        };
        let mut edges: Vec<(String, String)> = Vec::new();
        for (place, value) in each(good, "depends_on") {
            let pointer = place.map_or_else(
                || at("depends_on"),
                |place| inside(&at("depends_on"), &place.to_string()),
            );
            edges.extend(value.as_str().map(|id| (id.to_owned(), pointer)));
        }
        let needs = needs(reader, good, &pointer, &mut edges);
        for key in ["gate", "apply"] {
            edges.extend(text(good, key).map(|id| (id.to_owned(), at(key))));
        }
        let output = good.get("output").filter(|schema| {
            let flaws = output::flaws(schema, &at("output"));
            let is_good = flaws.is_empty();
            reader.flaws.extend(flaws);
            is_good
        });
        let step = Step {
            id: text(all, "id").unwrap_or_default().to_owned(),
            task: text(good, "task").filter(|_| !applies).map(|task| task.trim().to_owned()),
            apply: text(good, "apply").map(str::to_owned),
            role: if applies { USUAL_ROLE.to_owned() } else { name.to_owned() },
            model: text(good, "model").map(|word| word.trim().to_owned()),
            effort: text(good, "effort").map(|word| word.trim().to_owned()),
            depends_on: Vec::new(),
            posture,
            workspace,
            read_set: set(reader, good, "read_set", &pointer).unwrap_or_else(everything),
            write_set: write_set(reader, all, good, posture, &pointer),
            timeout_ms: timeout(reader, good, &pointer),
            retries: good.get("retries").and_then(Value::as_u64).map_or(0, |own| {
                // At most five, as the table says.
                u32::try_from(own).unwrap_or(0)
            }),
            optional: flag(good, "optional"),
            on_failure: match text(good, "on_failure") {
                Some("continue") => OnFailure::Continue,
                Some("abort") => OnFailure::Abort,
                _ => OnFailure::Hold,
            },
            needs,
            output: output.cloned(),
            verify: each(good, "verify")
                .into_iter()
                .filter_map(|(_, value)| check(value))
                .collect(),
            gate: text(good, "gate").map(str::to_owned),
            answer_is_enough: false,
        };
        let is_vague = reader.flaws.len() > before || good.len() < all.len();
        Self { step, pointer, edges, states_output: all.contains_key("output"), is_vague }
    }

    /// Whether what it delivers can say that something is approved.
    pub fn gives_verdict(&self) -> bool {
        match &self.step.output {
            Some(schema) => output::has_verdict(schema),
            None => self.step.apply.is_none() && self.step.role == "reviewer",
        }
    }
}

fn everything() -> Vec<String> {
    vec!["**".to_owned()]
}

/// Whether a role can change anything.
fn may_write(role: &Role) -> bool {
    matches!(role.limit(&PermissionMode::Auto), PermissionMode::Auto | PermissionMode::Ask)
}

fn posture(
    reader: &mut Reader<'_>,
    good: &Map<String, Value>,
    role: Option<&'static Role>,
    applies: bool,
    pointer: &str,
) -> Posture {
    let can_write = applies || role.is_none_or(may_write);
    match text(good, "posture") {
        _ if applies => Posture::Write,
        Some("write") => {
            if let Some(role) = role.filter(|_| !can_write) {
                let message = format!("the role `{}` only reads", role.name);
                reader.wrong(inside(pointer, "posture"), message);
            }
            Posture::Write
        }
        None if can_write => Posture::Write,
        _ => Posture::ReadOnly,
    }
}

fn needs(
    reader: &mut Reader<'_>,
    good: &Map<String, Value>,
    pointer: &str,
    edges: &mut Vec<(String, String)>,
) -> BTreeMap<String, Need> {
    let mut needs = BTreeMap::new();
    for (name, value) in good.get("needs").and_then(Value::as_object).into_iter().flatten() {
        let at = inside(&inside(pointer, "needs"), name);
        let (step, path) = match value {
            Value::String(short) => {
                let short = short.trim();
                let end = short.find('/').unwrap_or(short.len());
                (&short[..end], &short[end..])
            }
            value => {
                let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
                (text("step"), text("pointer"))
            }
        };
        if !output::is_pointer(path) {
            let at = if value.is_string() { at.clone() } else { inside(&at, "pointer") };
            reader.wrong(
                at,
                "this is no JSON pointer: it begins with `/`, and `~` stands only in `~0` and `~1`",
            );
            continue;
        }
        edges.push((step.to_owned(), if value.is_string() { at } else { inside(&at, "step") }));
        needs.insert(name.clone(), Need { step: step.to_owned(), pointer: path.to_owned() });
    }
    needs
}

/// The globs of a set as they are matched; `None` when there are none.
fn set(
    reader: &mut Reader<'_>,
    good: &Map<String, Value>,
    key: &str,
    pointer: &str,
) -> Option<Vec<String>> {
    good.get(key)?;
    let mut globs: Vec<String> = Vec::new();
    for (place, value) in each(good, key) {
        let mut at = inside(pointer, key);
        if let Some(place) = place {
            at = inside(&at, &place.to_string());
        }
        match glob(value.as_str().unwrap_or_default()) {
            Ok(glob) if globs.contains(&glob) => {}
            Ok(glob) => globs.push(glob),
            Err(message) => reader.flaws.push(Flaw::new(at, message)),
        }
    }
    Some(globs)
}

/// A glob without what means nothing in it. A folder, which ends in a slash, is all that is in it.
pub fn glob(written: &str) -> Result<String, String> {
    let written = written.trim();
    let is_whole = !written.starts_with('/') && !written.is_empty();
    let parts: Vec<&str> =
        written.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let mut glob = parts.join("/");
    if glob.is_empty() && is_whole {
        return Ok("**".to_owned());
    }
    let bound = WriteGlobs { allow: vec![written.to_owned()], deny: Vec::new() };
    Bounds::none().narrow(&bound)?;
    if written.ends_with('/') && parts.last().is_some_and(|last| *last != "**") {
        glob.push_str("/**");
    }
    let read = |glob: &str| {
        Glob::new(glob).map_err(|reason| format!("the glob {written:?} cannot be used: {reason}"))
    };
    if !read(&glob)?.meets(&read("**")?) {
        return Err(format!("the glob {written:?} matches no path"));
    }
    Ok(glob)
}

fn write_set(
    reader: &mut Reader<'_>,
    all: &Map<String, Value>,
    good: &Map<String, Value>,
    posture: Posture,
    pointer: &str,
) -> Vec<String> {
    let before = reader.flaws.len();
    let given = set(reader, good, "write_set", pointer);
    let is_clean = reader.flaws.len() == before && !all.contains_key("apply");
    match (posture, given) {
        (Posture::ReadOnly, None) => Vec::new(),
        (Posture::Write, None) => everything(),
        (Posture::ReadOnly, Some(globs)) => {
            if !globs.is_empty() {
                let message = "a step that only reads writes nothing; leave it out, or give it the posture `write`";
                reader.wrong(inside(pointer, "write_set"), message);
            }
            Vec::new()
        }
        (Posture::Write, Some(globs)) => {
            if globs.is_empty() && is_clean {
                let message = "a step that writes must be able to write something; leave it out for everything";
                reader.wrong(inside(pointer, "write_set"), message);
            }
            globs
        }
    }
}

fn timeout(reader: &mut Reader<'_>, good: &Map<String, Value>, pointer: &str) -> Option<u64> {
    let wanted = good.get("timeout_ms").and_then(Value::as_u64)?;
    let most = reader.ground.limits.max_timeout.as_millis();
    if u128::from(wanted) > most {
        let message = format!(
            "it must be from 1 to {most}, which is `subagents.max_timeout_ms` of the config"
        );
        reader.wrong(inside(pointer, "timeout_ms"), message);
    }
    Some(wanted)
}

fn check(value: &Value) -> Option<Check> {
    let timeout = value.get("timeout_ms").and_then(Value::as_u64).unwrap_or(USUAL_CHECK);
    let command = value.as_str().or_else(|| value.get("command").and_then(Value::as_str))?;
    Some(Check { command: command.trim().to_owned(), timeout_ms: timeout })
}
