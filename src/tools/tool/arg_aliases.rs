//! Argument aliases: converts argument names and forms of other agents to those of the schema.
//!
//! Only unambiguous arguments are converted; others are left to validation, which reports the error.
//! The schemas that are sent do not mention the aliases, and the Log keeps the arguments as the model
//! wrote them.

use serde_json::{Map, Value};

/// The arguments of a call.
pub type ArgMap = Map<String, Value>;

/// Alias names of arguments, each with its name in the schema.
pub type ArgAliases = &'static [(&'static str, &'static str)];

/// The arguments of one replacement.
const REPLACEMENT_ARGS: [&str; 3] = ["old_string", "new_string", "replace_all"];

/// Properties of a plan step in other agents that Pixir drops.
const UNUSED_STEP_KEYS: [&str; 4] = ["activeForm", "active_form", "id", "priority"];

/// Short names of the two texts of a replacement.
const SHORT_NAMES: ArgAliases = &[("old_str", "old_string"), ("new_str", "new_string")];

/// Renames all aliased arguments.
pub fn rename_args(args: &mut ArgMap, aliases: ArgAliases) {
    for (from, to) in aliases {
        rename_arg(args, from, to);
    }
}

/// Normalises the arguments of `edit`: a replacement outside `edits` becomes a list of one.
pub fn normalize_edit(args: &mut ArgMap) {
    rename_arg(args, "file_path", "path");
    rename_args(args, SHORT_NAMES);
    normalize_boolean(args, "replace_all");
    if let Some(Value::Array(edits)) = args.get_mut("edits") {
        for edit in edits.iter_mut().filter_map(Value::as_object_mut) {
            rename_args(edit, SHORT_NAMES);
            normalize_boolean(edit, "replace_all");
            // Some models write null for an argument that they leave out.
            edit.retain(|_, value| !value.is_null());
        }
        return;
    }
    let is_flat = args.contains_key("old_string") && args.contains_key("new_string");
    if is_flat && !args.contains_key("edits") {
        let parts = REPLACEMENT_ARGS.into_iter().filter_map(|name| args.remove_entry(name));
        let one: ArgMap = parts.collect();
        args.insert("edits".to_owned(), Value::Array(vec![Value::Object(one)]));
    }
}

/// Normalises the arguments of `update_plan`: `entries` or `todos` become `plan`, `content` becomes `step`.
pub fn normalize_plan(args: &mut ArgMap) {
    rename_args(args, &[("entries", "plan"), ("todos", "plan")]);
    let Some(Value::Array(steps)) = args.get_mut("plan") else { return };
    for step in steps.iter_mut().filter_map(Value::as_object_mut) {
        rename_arg(step, "content", "step");
        step.retain(|name, _| !UNUSED_STEP_KEYS.contains(&name.as_str()));
    }
}

/// Converts the strings `true` and `false` to booleans.
fn normalize_boolean(args: &mut ArgMap, name: &str) {
    let Some(value) = args.get_mut(name) else { return };
    match value.as_str() {
        Some("true") => *value = Value::Bool(true),
        Some("false") => *value = Value::Bool(false),
        _ => {}
    }
}

/// Renames an argument, unless both names are given, which is ambiguous.
fn rename_arg(args: &mut ArgMap, from: &str, to: &str) {
    if !args.contains_key(to)
        && let Some(value) = args.remove(from)
    {
        args.insert(to.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tools::files::ApplyPatchTool;
    use crate::tools::shell::BashTool;
    use crate::tools::tool::Tool;

    #[track_caller]
    fn check(respell: fn(&mut ArgMap), written: &Value, expected: &Value) {
        let mut args = written.as_object().unwrap().clone();
        respell(&mut args);
        assert_eq!(Value::Object(args.clone()), *expected, "{written}");
        respell(&mut args);
        assert_eq!(Value::Object(args), *expected, "a second time: {written}");
    }

    #[test]
    fn one_replacement_is_a_list_of_one() {
        let one = json!({"path": "a", "edits": [{"old_string": "x", "new_string": "y"}]});
        check(normalize_edit, &one, &one);
        check(normalize_edit, &json!({"path": "a", "old_string": "x", "new_string": "y"}), &one);
        check(normalize_edit, &json!({"file_path": "a", "old_str": "x", "new_str": "y"}), &one);
        check(
            normalize_edit,
            &json!({"path": "a", "edits": [{"old_str": "x", "new_str": "y"}]}),
            &one,
        );
        check(
            normalize_edit,
            &json!({"path": "a", "old_string": "x", "new_string": "y", "replace_all": true}),
            &json!({"path": "a", "edits": [
                {"old_string": "x", "new_string": "y", "replace_all": true}]}),
        );
    }

    #[test]
    fn a_command_and_a_patch_are_known_by_their_other_names() {
        let own = json!({"command": "ls", "background": true});
        check(BashTool::normalize_args, &own, &own);
        check(BashTool::normalize_args, &json!({"cmd": "ls", "background": true}), &own);
        let both = json!({"cmd": "ls", "command": "pwd"});
        check(BashTool::normalize_args, &both, &both);
        let own = json!({"patch": "*** Begin Patch\n*** End Patch"});
        check(ApplyPatchTool::normalize_args, &own, &own);
        check(
            ApplyPatchTool::normalize_args,
            &json!({"input": "*** Begin Patch\n*** End Patch"}),
            &own,
        );
        let both = json!({"patch": "a", "input": "b"});
        check(ApplyPatchTool::normalize_args, &both, &both);
    }

    #[test]
    fn the_words_true_and_false_are_values() {
        for (written, meant) in [
            (json!("true"), json!(true)),
            (json!("false"), json!(false)),
            (json!(true), json!(true)),
            (json!("yes"), json!("yes")),
            (json!(1), json!(1)),
        ] {
            let one =
                |all: &Value| json!({"old_string": "x", "new_string": "y", "replace_all": all});
            let own = json!({"path": "a", "edits": [one(&meant)]});
            check(normalize_edit, &json!({"path": "a", "edits": [one(&written)]}), &own);
            let mut flat = one(&written);
            flat["path"] = json!("a");
            check(normalize_edit, &flat, &own);
        }
    }

    #[test]
    fn what_could_mean_two_things_stays_as_it_is() {
        for unclear in [
            json!({"path": "a", "old_string": "x"}),
            json!({"path": "a", "replace_all": true, "edits": []}),
            json!({"path": "a", "old_string": "x", "new_string": "y", "edits": []}),
            json!({"path": "a", "file_path": "b", "edits": []}),
        ] {
            check(normalize_edit, &unclear, &unclear);
        }
        let both = json!({"plan": [], "entries": []});
        check(normalize_plan, &both, &both);
        let both = json!({"entries": [], "todos": []});
        check(normalize_plan, &both, &json!({"plan": [], "todos": []}));
    }

    #[test]
    fn a_plan_is_known_by_its_other_names() {
        let own = json!({"plan": [{"step": "look", "status": "pending"}]});
        check(normalize_plan, &own, &own);
        let entry = json!({"content": "look", "status": "pending", "priority": "high"});
        check(normalize_plan, &json!({ "entries": [entry] }), &own);
        let todo =
            json!({"content": "look", "status": "pending", "activeForm": "Looking", "id": "1"});
        check(normalize_plan, &json!({ "todos": [todo] }), &own);
    }
}
