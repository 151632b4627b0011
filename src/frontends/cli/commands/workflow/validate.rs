//! `pixir workflow validate`: all errors of a workflow at once.

use std::fmt::Write;

use serde_json::json;

use super::source::{SourceArgs, SourcePurpose, try_read_workflow};
use crate::agent::workflow::{SpecDiagnostic, WorkflowPlan, lint_workflow};
use crate::base::error::{Report, counted};
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::one_line;

pub fn validate(args: &SourceArgs, context: &CliContext) -> Result<Exit, Report> {
    let (_, read) =
        try_read_workflow(args, &context.current_folder()?, context, SourcePurpose::Inspect)?;
    let error = match read {
        Ok(workflow) => {
            let plan = WorkflowPlan::new(&workflow);
            let warnings = lint_workflow(&workflow, &plan);
            let mut text = String::new();
            for flaw in &warnings {
                // Writing to a String cannot fail.
                writeln!(text, "warning: {}", one_line(&flaw.to_string(), 500)).ok();
            }
            let (steps, waves) = (workflow.steps.len(), plan.waves.len());
            let verdict = format!(
                "{}, nothing is wrong",
                [counted(steps, "step"), counted(waves, "wave")].join(" in ")
            );
            writeln!(text, "{}: {verdict}", workflow.id).ok();
            let output = json!({
                "valid": true,
                "id": workflow.id,
                "hash": workflow.hash(),
                "steps": steps,
                "waves": waves,
                "flaws": [],
                "warnings": warnings.iter().map(SpecDiagnostic::to_json).collect::<Vec<_>>(),
            });
            return context.print_result("workflow", &text, output);
        }
        Err(error) => error,
    };
    let mut text = String::new();
    for flaw in &error.flaws {
        writeln!(text, "error: {}", one_line(&flaw.to_line(), 1_000)).ok();
    }
    let count = error.flaws.len() + error.left_out;
    writeln!(text, "{}: {}", one_line(&args.source, 200), counted(count, "error")).ok();
    let flaws: Vec<_> = error.flaws.iter().map(SpecDiagnostic::to_json).collect();
    let output = json!({ "valid": false, "flaws": flaws, "left_out": error.left_out });
    let envelope =
        context.success_envelope("workflow", output)?.with_error(Some(Report::describe(&error)));
    context.print_envelope(&envelope, &text);
    Ok(Exit::Usage)
}
