//! The demo model's replies for the steps of the shipped Workflows.
//!
//! The replies are computed from the step's task and the outputs of its tools: with other files the
//! findings differ, and only what the outputs show is reported.

use serde_json::{Value, json};

use super::demo::{BUG, FIX, PASSED, repair_step};
use super::{ReceivedRequest, Reply};

const READY: &str = "checkpoint_status: checkpoint_ready";
const PARTIAL: &str = "checkpoint_status: partial";

/// A shipped Workflow, with files to try it on.
#[derive(Debug)]
pub struct ExampleWorkflow {
    /// The id, which is also the file name.
    pub name: &'static str,
    /// The spec.
    pub spec: &'static str,
    /// Values for its parameters that fit the files.
    pub arguments: &'static [(&'static str, &'static str)],
    /// Path and content.
    pub files: &'static [(&'static str, &'static str)],
}

macro_rules! files {
    ($folder:literal: $($path:literal),+) => {
        &[$(($path, include_str!(concat!("../../../examples/", $folder, "/", $path)))),+]
    };
}

/// The shipped Workflows.
pub const EXAMPLE_WORKFLOWS: &[ExampleWorkflow] = &[
    ExampleWorkflow {
        name: "parallel-review",
        spec: include_str!("../../../examples/workflows/parallel-review.json"),
        arguments: &[("subject", "total.sh and its test")],
        files: files!("demo": "total.sh", "test.sh"),
    },
    ExampleWorkflow {
        name: "implement-and-land",
        spec: include_str!("../../../examples/workflows/implement-and-land.json"),
        arguments: &[("goal", "total.sh must add up its numbers")],
        files: files!("demo": "total.sh", "test.sh"),
    },
    ExampleWorkflow {
        name: "migrate",
        spec: include_str!("../../../examples/workflows/migrate.json"),
        arguments: &[("from", "old_name"), ("to", "greeting")],
        files: files!(
            "workflows/names": "src/greet.sh", "src/letter.sh", "src/crowd.sh",
            "tests/run.sh", "tests/greet_test.sh", "tests/letter_test.sh", "tests/crowd_test.sh",
            "docs/guide.md", "docs/reference.md"
        ),
    },
];

/// The next reply of a step's Subagent; `None` when no shipped Workflow has that step.
pub fn play_workflow_step(request: &ReceivedRequest) -> Option<Reply> {
    let context = request.input().iter().find_map(|item| {
        let text = item["content"][0]["text"].as_str()?;
        (item["role"] == "developer" && text.contains("\"step_id\"")).then_some(text)
    })?;
    let task = request.user_texts().first().copied().unwrap_or_default();
    let outputs = request.outputs();
    let step = DemoStep { task, outputs: &outputs, tools: &request.body["tools"] };
    match (
        context_value(context, "workflow_name")?.as_str(),
        context_value(context, "step_id")?.as_str(),
    ) {
        ("Review from several sides", "correctness") => Some(step.look_for_errors()),
        ("Review from several sides", "safety") => Some(step.look_for_danger()),
        ("Review from several sides", "tests") => Some(step.look_for_gaps()),
        ("Review from several sides", "report") => Some(step.report()),
        ("Implement, test, review, land", "implement") => Some(step.implement()),
        ("Implement, test, review, land", "review") => Some(step.review_diff()),
        ("Rename across many files", "inventory") => Some(step.inventory()),
        ("Rename across many files", "code" | "tests" | "docs") => Some(step.rename()),
        ("Rename across many files", "prove") => Some(step.prove()),
        ("Rename across many files", "review") => Some(step.review_names()),
        _ => None,
    }
}

/// The value of a key in a Delegation Context.
fn context_value(context: &str, name: &str) -> Option<String> {
    let line = context.lines().find(|line| line.contains(&format!("\"{name}\": ")))?;
    let (_, text) = line.split_once(": ")?;
    serde_json::from_str(text.trim_end_matches(',')).ok()
}

/// The input of a step's Subagent: its task, tool outputs and tool definitions.
struct DemoStep<'r> {
    task: &'r str,
    outputs: &'r [&'r str],
    tools: &'r Value,
}

impl DemoStep<'_> {
    /// Reads a file first, and then reports on its numbered lines.
    fn read_then_report(&self, path: &str, say: impl Fn(&str) -> Value) -> Reply {
        match self.outputs {
            [] => Reply::calls("read", json!({ "path": path })),
            [.., text] => Reply::says(&say(text).to_string()),
        }
    }

    fn look_for_errors(&self) -> Reply {
        self.read_then_report("total.sh", |text| {
            let what = "each number replaces the total instead of being added to it";
            verdict_json(finding_json("total.sh", text, BUG, what))
        })
    }

    fn look_for_danger(&self) -> Reply {
        self.read_then_report("total.sh", |text| {
            verdict_json(finding_json(
                "total.sh",
                text,
                "in \"$@\"",
                "the arguments are not checked to be numbers",
            ))
        })
    }

    fn look_for_gaps(&self) -> Reply {
        self.read_then_report("test.sh", |text| {
            let checks: Vec<&str> = text.lines().filter(|line| line.contains("check ")).collect();
            let has = |mark: &str| checks.iter().any(|line| line.contains(mark));
            let gaps = [(" -", "negative numbers"), (" x", "arguments that are no numbers")];
            let open = gaps.into_iter().filter(|(mark, _)| !has(mark)).map(|(_, name)| name);
            json!({ "untested": open.collect::<Vec<_>>() })
        })
    }

    fn report(&self) -> Reply {
        let list = |name: &str| {
            let value = self.delivered_value(name);
            value.as_array().cloned().unwrap_or_default()
        };
        let gaps = list("untested");
        let gap = |what: &Value| json!({ "file": "test.sh", "what": format!("no test for {}", what.as_str().unwrap_or("it")) });
        let findings: Vec<Value> = list("correctness")
            .into_iter()
            .chain(list("safety"))
            .chain(gaps.iter().map(gap))
            .collect();
        let summary = format!("{} findings from three sides, most serious first", findings.len());
        Reply::says(&json!({ "summary": summary, "findings": findings }).to_string())
    }

    fn implement(&self) -> Reply {
        match self.outputs {
            [_, _, _, _, ..] => {
                let is_done = self.outputs.last().is_some_and(|last| last.contains(PASSED));
                let state = if is_done { READY } else { PARTIAL };
                let words = if is_done { PASSED } else { "the test does not pass yet" };
                Reply::says(&format!(
                    "total.sh now adds up its numbers; test.sh says: {words}.\n{state}"
                ))
            }
            steps => repair_step(steps.len(), self.tools),
        }
    }

    /// Approves only when the task contains the diff of the fix.
    fn review_diff(&self) -> Reply {
        let has = |sign: char, code: &str| {
            self.task.lines().any(|line| line.starts_with(sign) && line.contains(code))
        };
        let is_good = has('-', BUG) && has('+', FIX);
        let (verdict, words) = if is_good {
            ("approve", "The diff replaces the assignment by an addition.")
        } else {
            ("unclear", "I was given no diff that does this.")
        };
        Reply::says(&format!("{words}\n{}", json!({ "verdict": verdict, "findings": [] })))
    }

    fn inventory(&self) -> Reply {
        let [from] = self.quoted()[..] else { return unknown_step() };
        match self.outputs {
            [] => Reply::calls("grep", grep_arguments(from, "files")),
            [.., found] => {
                let is_path = |line: &&str| {
                    ["src/", "tests/", "docs/"].iter().any(|folder| line.starts_with(folder))
                };
                let files: Vec<&str> = found.lines().filter(is_path).collect();
                Reply::says(&json!({ "files": files }).to_string())
            }
        }
    }

    fn rename(&self) -> Reply {
        let [from, to, ..] = self.quoted()[..] else { return unknown_step() };
        let folder = self.task.split(" in ").nth(1).and_then(|rest| rest.split_once('/'));
        let folder = folder.map(|(name, _)| format!("{name}/")).unwrap_or_default();
        let files = self.delivered_value("files");
        let own: Vec<&str> = files
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .filter(|path| path.starts_with(&folder))
            .collect();
        if self.outputs.is_empty() && !own.is_empty() {
            return own.iter().fold(Reply::new(), |reply, path| {
                let edit = json!({ "old_string": from, "new_string": to, "replace_all": true });
                reply.call("edit", json!({ "path": path, "edits": [edit] }))
            });
        }
        let count = own.len();
        Reply::says(&format!("`{from}` is `{to}` in {count} files of {folder}.\n{READY}"))
    }

    fn prove(&self) -> Reply {
        let [_, _, test] = self.quoted()[..] else { return unknown_step() };
        match self.outputs {
            [] => Reply::calls("bash", json!({ "command": test })),
            [.., output] if output.contains("exit code 0") || output.contains("passed") => {
                Reply::says(&format!("`{test}` passes.\n{READY}"))
            }
            [.., _] => Reply::says(&format!("`{test}` does not pass.\n{PARTIAL}")),
        }
    }

    fn review_names(&self) -> Reply {
        let [from, ..] = self.quoted()[..] else { return unknown_step() };
        match self.outputs {
            [] => Reply::calls("grep", grep_arguments(from, "lines")),
            [.., found] => {
                let is_gone = found.starts_with("no matches");
                let verdict = if is_gone { "approve" } else { "request_changes" };
                Reply::says(&format!(
                    "I searched for `{from}`.\n{}",
                    json!({ "verdict": verdict, "findings": [] })
                ))
            }
        }
    }

    /// The texts in backquotes in the first line of the task.
    fn quoted(&self) -> Vec<&str> {
        let line = self.task.lines().next().unwrap_or_default();
        line.split('`').skip(1).step_by(2).collect()
    }

    /// A value that an earlier step returned.
    fn delivered_value(&self, name: &str) -> Value {
        let start = format!("- {name}: ");
        let line = self.task.lines().find_map(|line| line.strip_prefix(start.as_str()));
        line.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// Arguments of `grep` for a whole word in the example's files.
fn grep_arguments(name: &str, show: &str) -> Value {
    let pattern = format!(r"\b{name}\b");
    json!({ "pattern": pattern, "globs": ["src/**", "tests/**", "docs/**"], "show": show })
}

fn unknown_step() -> Reply {
    Reply::says(&format!("I know this step only as it was shipped.\n{PARTIAL}"))
}

/// A finding about the numbered line that contains `code`; `None` when no line does.
fn finding_json(file: &str, text: &str, code: &str, what: &str) -> Option<Value> {
    let line = text.lines().find(|line| line.contains(code))?;
    let digits: String = line.trim_start().chars().take_while(char::is_ascii_digit).collect();
    Some(json!({ "file": file, "line": digits.parse::<u64>().ok(), "what": what }))
}

fn verdict_json(finding: Option<Value>) -> Value {
    let verdict = if finding.is_some() { "request_changes" } else { "approve" };
    json!({ "verdict": verdict, "findings": finding.into_iter().collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_an_example_is_embedded() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/workflows/names");
        let mut on_disk = Vec::new();
        for sub in ["src", "tests", "docs"] {
            for entry in std::fs::read_dir(folder.join(sub)).unwrap() {
                on_disk.push(format!("{sub}/{}", entry.unwrap().file_name().display()));
            }
        }
        on_disk.sort();
        let mut embedded: Vec<&str> =
            EXAMPLE_WORKFLOWS[2].files.iter().map(|(path, _)| *path).collect();
        embedded.sort_unstable();
        assert_eq!(embedded, on_disk);
    }

    #[test]
    fn what_is_found_is_where_it_stands() {
        let text = "3: total=0\n5:     total=$number\n";
        assert_eq!(finding_json("a", text, BUG, "x").unwrap()["line"], 5);
        assert!(finding_json("a", "1: nothing", BUG, "x").is_none());
        assert_eq!(verdict_json(None)["verdict"], "approve");
    }

    #[test]
    fn a_reviewer_approves_only_what_it_sees() {
        let review = |task: &str| {
            let step = DemoStep { task, outputs: &[], tools: &Value::Null };
            format!("{:?}", step.review_diff().steps)
        };
        let diff = format!("Review.\n-    {BUG}\n+    {FIX}\n");
        assert!(review(&diff).contains("approve"));
        assert!(review("Review. It was fixed, believe me.").contains("unclear"));
    }
}
