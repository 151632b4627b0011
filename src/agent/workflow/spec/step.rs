//! Reads one step of a spec by itself; `graph` then resolves its references to other steps.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::diagnostic::{SpecDiagnostic, child_pointer};
use super::output;
use super::read::{SpecReader, deserialize_fields};
use super::spec_types::{
    CheckSpec, DEFAULT_CHECK_MS, GlobSpec, MOST_GLOBS, NeedSpec, OneOrMore, StepSpec,
};
use super::{CheckCommand, Need, Step, StepPosture, WorkspaceMode};
use crate::agent::workflow::glob::GlobAutomaton;
use crate::record::event::PermissionMode;
use crate::settings::bounds::{WriteBounds, WriteGlobs};
use crate::settings::role::Role;

/// The role of a step that names none.
const DEFAULT_ROLE: &str = "worker";

/// The keys that a step with `apply` cannot have.
const NOT_WITH_APPLY: [&str; 11] = [
    "task",
    "role",
    "model",
    "effort",
    "posture",
    "workspace",
    "read_set",
    "write_set",
    "retries",
    "needs",
    "output",
];

/// A step that was read by itself, and its pointer in the spec.
pub struct StepDraft {
    pub step: Step,
    pub pointer: String,
    /// The steps that it refers to: id, and pointer to the reference.
    pub edges: Vec<(String, String)>,
    /// Whether it has the key `output`, even a flawed one.
    pub has_output_key: bool,
    /// Whether flaws make its values unreliable, so that later checks skip it.
    pub is_unreliable: bool,
}

impl StepDraft {
    /// Reads a step from its valid fields; `all` are the fields as written.
    pub fn read(
        reader: &mut SpecReader<'_>,
        all: &Map<String, Value>,
        good: Map<String, Value>,
        pointer: String,
    ) -> Self {
        let before = reader.flaws.len();
        let is_cut = good.len() < all.len();
        let spec: StepSpec = deserialize_fields(good, &pointer, &mut reader.flaws);
        let at = |key: &str| child_pointer(&pointer, key);
        let applies = all.contains_key("apply");
        if applies {
            for key in NOT_WITH_APPLY.iter().filter(|key| all.contains_key(**key)) {
                let message = format!("a step that applies cannot have `{key}`");
                reader.add_flaw(at(key), message);
            }
        } else if !all.contains_key("task") {
            reader.add_flaw(pointer.clone(), "a step needs `task`, or `apply`");
        }
        let name = spec.role.as_deref().map_or(DEFAULT_ROLE, str::trim);
        let role = if applies { None } else { reader.find_role(name, at("role")) };
        let posture = resolve_posture(reader, spec.posture, role, applies, &at("posture"));
        let workspace = match spec.workspace {
            _ if applies => WorkspaceMode::Shared,
            Some(own) => own,
            None if posture == StepPosture::Write => WorkspaceMode::Isolated,
            None => WorkspaceMode::Shared,
        };
        let named =
            spec.depends_on.map(|own| own.with_pointers(&at("depends_on"))).unwrap_or_default();
        let mut edges: Vec<(String, String)> =
            named.into_iter().map(|(pointer, id)| (id.0, pointer)).collect();
        let needs = read_needs(reader, spec.needs.unwrap_or_default(), &at("needs"), &mut edges);
        let gate = spec.gate.map(|id| id.0);
        let apply = spec.apply.map(|id| id.0);
        edges.extend(gate.clone().map(|id| (id, at("gate"))));
        edges.extend(apply.clone().map(|id| (id, at("apply"))));
        let output = spec.output.map(Value::Object).filter(|schema| {
            let flaws = output::check_output_schema(schema, &at("output"));
            let is_good = flaws.is_empty();
            reader.flaws.extend(flaws);
            is_good
        });
        let trimmed = |text: String| text.trim().to_owned();
        let checks = spec.verify.map(|own| own.with_pointers("")).unwrap_or_default();
        let step = Step {
            // An invalid id is kept, so that references to it are not reported as well.
            id: all.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            task: spec.task.filter(|_| !applies).map(trimmed),
            apply,
            role: if applies { DEFAULT_ROLE.to_owned() } else { name.to_owned() },
            model: spec.model.map(trimmed),
            effort: spec.effort.map(trimmed),
            depends_on: Vec::new(),
            posture,
            workspace,
            read_set: spec
                .read_set
                .map_or_else(all_paths, |globs| read_globs(reader, globs, &at("read_set"))),
            write_set: read_write_set(reader, spec.write_set, posture, applies, &at("write_set")),
            timeout_ms: check_timeout(reader, spec.timeout_ms, at("timeout_ms")),
            retries: spec.retries.unwrap_or_default(),
            optional: spec.optional.unwrap_or_default(),
            on_failure: spec.on_failure.unwrap_or_default(),
            needs,
            output,
            verify: checks.into_iter().map(|(_, own)| read_check(own)).collect(),
            gate,
            answer_is_enough: false,
        };
        let is_unreliable = is_cut || reader.flaws.len() > before;
        Self { step, pointer, edges, has_output_key: all.contains_key("output"), is_unreliable }
    }

    /// Whether its output can have the verdict `approve`.
    pub fn can_approve(&self) -> bool {
        match &self.step.output {
            Some(schema) => output::has_verdict(schema),
            None => self.step.apply.is_none() && self.step.role == "reviewer",
        }
    }
}

fn all_paths() -> Vec<String> {
    vec!["**".to_owned()]
}

/// Whether a role may change files.
fn may_write(role: &Role) -> bool {
    matches!(role.limit_mode(&PermissionMode::Auto), PermissionMode::Auto | PermissionMode::Ask)
}

fn resolve_posture(
    reader: &mut SpecReader<'_>,
    wanted: Option<StepPosture>,
    role: Option<&'static Role>,
    applies: bool,
    pointer: &str,
) -> StepPosture {
    let can_write = applies || role.is_none_or(may_write);
    match wanted {
        _ if applies => StepPosture::Write,
        Some(StepPosture::Write) => {
            if let Some(role) = role.filter(|_| !can_write) {
                reader.add_flaw(pointer, format!("the role `{}` only reads", role.name));
            }
            StepPosture::Write
        }
        None if can_write => StepPosture::Write,
        _ => StepPosture::ReadOnly,
    }
}

fn read_needs(
    reader: &mut SpecReader<'_>,
    written: BTreeMap<String, NeedSpec>,
    pointer: &str,
    edges: &mut Vec<(String, String)>,
) -> BTreeMap<String, Need> {
    let mut needs = BTreeMap::new();
    for (name, need) in written {
        let at = child_pointer(pointer, &name);
        let (need, step_at, path_at) = match need {
            NeedSpec::Short(short) => {
                let short = short.trim();
                let (step, path) = short.split_at(short.find('/').unwrap_or(short.len()));
                (Need { step: step.to_owned(), pointer: path.to_owned() }, at.clone(), at)
            }
            NeedSpec::Full(need) => {
                (need, child_pointer(&at, "step"), child_pointer(&at, "pointer"))
            }
        };
        if !output::is_pointer(&need.pointer) {
            reader.add_flaw(
                path_at,
                "this is not a JSON pointer: a pointer begins with `/`, and `~` occurs only in `~0` and `~1`",
            );
            continue;
        }
        edges.push((need.step.clone(), step_at));
        needs.insert(name, need);
    }
    needs
}

/// Reads the globs of a set, normalised and without duplicates.
fn read_globs(
    reader: &mut SpecReader<'_>,
    written: OneOrMore<GlobSpec, MOST_GLOBS>,
    pointer: &str,
) -> Vec<String> {
    let mut globs: Vec<String> = Vec::new();
    for (at, written) in written.with_pointers(pointer) {
        match normalize_glob(&written.0) {
            Ok(glob) if globs.contains(&glob) => {}
            Ok(glob) => globs.push(glob),
            Err(message) => reader.flaws.push(SpecDiagnostic::new(at, message)),
        }
    }
    globs
}

/// Normalises a glob: removes empty and `.` parts. A folder, which ends in a slash, means everything in it.
pub fn normalize_glob(written: &str) -> Result<String, String> {
    let written = written.trim();
    let is_whole = !written.starts_with('/') && !written.is_empty();
    let parts: Vec<&str> =
        written.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let mut glob = parts.join("/");
    if glob.is_empty() && is_whole {
        return Ok("**".to_owned());
    }
    let bound = WriteGlobs { allow: vec![written.to_owned()], deny: Vec::new() };
    WriteBounds::none().add_globs(&bound)?;
    if written.ends_with('/') && parts.last().is_some_and(|last| *last != "**") {
        glob.push_str("/**");
    }
    let read = |glob: &str| {
        GlobAutomaton::new(glob)
            .map_err(|reason| format!("the glob {written:?} cannot be used: {reason}"))
    };
    if !read(&glob)?.intersects(&read("**")?) {
        return Err(format!("the glob {written:?} matches no path"));
    }
    Ok(glob)
}

fn read_write_set(
    reader: &mut SpecReader<'_>,
    written: Option<OneOrMore<GlobSpec, MOST_GLOBS>>,
    posture: StepPosture,
    applies: bool,
    pointer: &str,
) -> Vec<String> {
    let before = reader.flaws.len();
    let given = written.map(|globs| read_globs(reader, globs, pointer));
    let is_clean = reader.flaws.len() == before && !applies;
    match (posture, given) {
        (StepPosture::ReadOnly, None) => Vec::new(),
        (StepPosture::Write, None) => all_paths(),
        (StepPosture::ReadOnly, Some(globs)) => {
            if !globs.is_empty() {
                let message = "a step that only reads has no write set; leave it out, or use the posture `write`";
                reader.add_flaw(pointer, message);
            }
            Vec::new()
        }
        (StepPosture::Write, Some(globs)) => {
            if globs.is_empty() && is_clean {
                let message = "a step that writes must be able to write something; leave it out for everything";
                reader.add_flaw(pointer, message);
            }
            globs
        }
    }
}

fn check_timeout(reader: &mut SpecReader<'_>, wanted: Option<u64>, pointer: String) -> Option<u64> {
    let most = reader.context.limits.max_timeout.as_millis();
    if wanted.is_some_and(|wanted| u128::from(wanted) > most) {
        let message = format!(
            "it must be from 1 to {most}, which is `subagents.max_timeout_ms` of the config"
        );
        reader.add_flaw(pointer, message);
    }
    wanted
}

fn read_check(written: CheckSpec) -> CheckCommand {
    let check = match written {
        CheckSpec::Short(command) => CheckCommand { command, timeout_ms: DEFAULT_CHECK_MS },
        CheckSpec::Full(check) => check,
    };
    CheckCommand { command: check.command.trim().to_owned(), ..check }
}
