//! The demo model `pixir-demo`: an embedded script for one prompt and the shipped Workflows.
//!
//! The script repairs a small shell program with real tools in a real Turn, and plays the steps of the
//! shipped Workflows. To any other prompt it answers that it is a demo model.

use serde_json::{Value, json};

use super::demo_workflows::play_workflow_step;
use super::{ModelScript, ReceivedRequest, Reply};

/// The name of the embedded model.
pub const DEMO_MODEL: &str = "pixir-demo";

/// The one prompt that the demo model answers.
pub const DEMO_PROMPT: &str =
    "The test of total.sh fails. Find the bug, fix it, and run test.sh to prove it.";

/// The broken program and its test: file name and content.
pub const DEMO_FILES: &[(&str, &str)] = &[
    ("total.sh", include_str!("../../../examples/demo/total.sh")),
    ("test.sh", include_str!("../../../examples/demo/test.sh")),
];

pub const BUG: &str = "total=$number";
pub const FIX: &str = "total=$((total + number))";
/// The output of a passing test.
pub const PASSED: &str = "all 4 checks passed";

/// The script of the embedded model.
pub fn demo_model() -> ModelScript {
    ModelScript::answering(demo_answer)
}

/// The demo model's reply to a request.
pub fn demo_answer(request: &ReceivedRequest) -> Reply {
    let seen = request.body_text.len() as u64 / 4;
    let reply = play_workflow_step(request).unwrap_or_else(|| answer(request));
    reply.usage(seen, seen / 2, 60)
}

fn answer(request: &ReceivedRequest) -> Reply {
    let users = request.user_texts();
    let outputs = request.outputs();
    if users.last().copied() != Some(DEMO_PROMPT) {
        return introduction(users.len().saturating_sub(1));
    }
    // Steps are counted by outputs, so that a failed tool does not repeat a step for ever.
    match outputs.as_slice() {
        [.., last] if outputs.len() > 3 => Reply::says(&summary(last)),
        steps => repair_step(steps.len(), &request.body["tools"]),
    }
}

/// The steps of the repair, from 0: run the failing test, read, change one line, test again.
pub fn repair_step(step: usize, tools: &Value) -> Reply {
    match step {
        0 => Reply::new()
            .commentary("First I'll see the test fail.")
            .call("bash", json!({"command": "sh test.sh"})),
        1 => Reply::new()
            .reasoning(
                "The test says the total is wrong. I should read the program before guessing.",
            )
            .commentary("Now the program itself.")
            .call("read", json!({"path": "total.sh"})),
        2 => Reply::new()
            .reasoning("The loop overwrites the total with each number instead of adding it.")
            .commentary(
                "Found it: the loop assigns each number instead of adding it. One line to change.",
            )
            .call("edit", edit_arguments(tools)),
        _ => Reply::new()
            .commentary("And the test again.")
            .call("bash", json!({"command": "sh test.sh"})),
    }
}

fn summary(test: &str) -> String {
    if test.contains(PASSED) {
        return format!(
            "Fixed. `total.sh` set the total to each number in turn, so it always printed the last one; \
             it now adds them up (`{FIX}`). `sh test.sh` says: {PASSED}."
        );
    }
    let words = test.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    format!(
        "I tried to fix `total.sh`, but its test does not pass yet. Its last words were: {words}"
    )
}

fn introduction(earlier_turns: usize) -> Reply {
    let turns = match earlier_turns {
        0 => "no earlier turn".to_owned(),
        1 => "1 earlier turn".to_owned(),
        many => format!("{many} earlier turns"),
    };
    Reply::says(&format!(
        "I am Pixir's embedded demo model: I can fix total.sh and play the shipped Workflows. I see {turns} of this \
         Session, but I cannot answer this. For a real model, run `pixir login` or set OPENAI_API_KEY, \
         and resume this Session with `--model`."
    ))
}

/// Arguments for `edit`, with the field names of its current schema.
fn edit_arguments(tools: &Value) -> Value {
    let tools = tools.as_array().into_iter().flatten();
    let manual =
        tools.filter(|tool| tool["name"] == "edit").map(ToString::to_string).collect::<String>();
    let named = |names: [&'static str; 3]| {
        names.into_iter().find(|name| manual.contains(&format!("\"{name}\":"))).unwrap_or(names[0])
    };
    let (old, new) =
        (named(["old_string", "old_text", "old"]), named(["new_string", "new_text", "new"]));
    if manual.contains("\"edits\":") {
        return json!({"path": "total.sh", "edits": [{old: BUG, new: FIX}]});
    }
    json!({"path": "total.sh", old: BUG, new: FIX})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(input: &Value, edit_schema: &Value) -> ReceivedRequest {
        let body = json!({"input": input, "tools": [{"name": "edit", "parameters": edit_schema}]});
        ReceivedRequest {
            method: "POST".to_owned(),
            path: "/v1/responses".to_owned(),
            headers: Vec::new(),
            body_text: body.to_string(),
            context: input.as_array().cloned().unwrap_or_default(),
            transport: "sse",
            body,
            arrived: std::time::Instant::now(),
        }
    }

    fn answer_text(input: &Value) -> String {
        format!("{:?}", answer(&request(input, &json!({}))).steps)
    }

    fn user(text: &str) -> Value {
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
    }

    fn output(text: &str) -> Value {
        json!({"type": "function_call_output", "call_id": "c", "output": text})
    }

    #[test]
    fn the_demo_has_five_steps_even_when_tools_fail() {
        let mut input = vec![user(DEMO_PROMPT)];
        for (word, result) in [
            ("\"bash\"", "2 of 4 checks failed"),
            ("\"read\"", "1: x"),
            ("\"edit\"", "error no_match"),
            ("\"bash\"", "1 of 4 checks failed"),
        ] {
            assert!(answer_text(&json!(input)).contains(word), "{word}");
            input.push(output(result));
        }
        assert!(answer_text(&json!(input)).contains("does"));
        input.pop();
        input.push(output("…\nall 4 checks passed\nexit code 0"));
        assert!(answer_text(&json!(input)).contains("Fixed."));
    }

    #[test]
    fn other_prompts_get_the_truth() {
        let input = json!([user(DEMO_PROMPT), output("x"), user("what now?")]);
        let Reply { steps, .. } = answer(&request(&input, &json!({})));
        let text = format!("{steps:?}").replace("\", \"", "");
        for words in ["demo model", "1 earlier turn", "pixir login"] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }

    #[test]
    fn the_edit_fits_the_schema_it_is_given() {
        let flat = edit_arguments(
            &json!([{"name": "edit", "parameters": {"properties": {"old_string": {}, "new_string": {}}}}]),
        );
        assert_eq!(flat["old_string"], BUG);
        let listed = edit_arguments(
            &json!([{"name": "edit", "parameters": {"properties": {"edits": {"items": {"old_text": 1, "new_text": 1}}}}}]),
        );
        assert_eq!(listed["edits"][0]["new_text"], FIX);
    }

    #[test]
    fn the_program_has_exactly_one_bug_to_find() {
        let (_, program) = DEMO_FILES[0];
        assert_eq!(program.matches(BUG).count(), 1);
        assert!(DEMO_FILES[1].1.contains(PASSED));
    }
}
