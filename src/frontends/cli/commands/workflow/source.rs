//! Where a workflow comes from: a file, stdin, a name, the template of a Skill.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::agent::workflow::{SpecContext, SpecError, Workflow, WorkflowSource};
use crate::base::error::{Kind, Report};
use crate::base::files::open_regular;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::host::rpc::BlockingStream;
use crate::host::workspace::{Workspace, project_folders};

/// One byte more than any spec may have; a larger file is refused without reading it to its end.
pub const LARGEST_SPEC: u64 = 1_000_001;

#[derive(Debug, Args)]
pub struct SourceArgs {
    /// A file, `-` for stdin, skill/template, or a name of `pixir workflow list`
    #[arg(value_name = "WORKFLOW")]
    pub source: String,
    /// Value of a parameter, as JSON or plain text; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub arg: Vec<String>,
}

/// A workflow that can be run.
pub struct LoadedWorkflow {
    pub workflow: Workflow,
    /// The template that it was made from.
    pub template: Option<String>,
}

/// What the caller will do with a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePurpose {
    /// Read it only; untrusted workflows are allowed.
    Inspect,
    /// Run it; untrusted workflows are refused.
    Run,
}

/// Finds and reads a workflow. If it is invalid, the first error is returned and the others are printed as notices.
pub fn read_workflow(
    args: &SourceArgs,
    workspace: &Path,
    context: &CliContext,
    purpose: SourcePurpose,
) -> Result<LoadedWorkflow, Report> {
    let (template, read) = try_read_workflow(args, workspace, context, purpose)?;
    match read {
        Ok(workflow) => Ok(LoadedWorkflow { workflow, template }),
        Err(error) => {
            for flaw in error.flaws.iter().skip(1) {
                context.print_notice(&flaw.to_line());
            }
            Err(Report::describe(&error))
        }
    }
}

/// Like `read_workflow`, with the errors of the spec as a part of the result.
pub fn try_read_workflow(
    args: &SourceArgs,
    workspace: &Path,
    context: &CliContext,
    purpose: SourcePurpose,
) -> Result<(Option<String>, Result<Workflow, SpecError>), Report> {
    let written = match open_source(&args.source, workspace, context)? {
        Ok(written) => written,
        Err(error) => return Ok((None, Err(error))),
    };
    if purpose == SourcePurpose::Run {
        written.check_trust()?;
    }
    let template = written.template_id().map(str::to_owned);
    let workflow = apply_arguments(&written, &args.arg, workspace, context)?;
    Ok((template, workflow))
}

/// Fills in the parameters of a workflow, and reads it.
pub fn apply_arguments(
    written: &WorkflowSource,
    given: &[String],
    workspace: &Path,
    context: &CliContext,
) -> Result<Result<Workflow, SpecError>, Report> {
    let arguments = match written.parse_arguments(given) {
        Ok(arguments) => arguments,
        Err(error) => return Ok(Err(error)),
    };
    let limits = context.load_settings(Some(workspace))?.config.subagents;
    let roles = context.roles(workspace)?;
    let role = |name: &str| roles.find(name).ok();
    let spec_context =
        SpecContext { find_role: &role, role_names: roles.names(), limits, arguments };
    Ok(written.read(&spec_context))
}

/// Opens a workflow from a file, stdin or a name. The inner error means that it is no JSON, the outer one that it
/// cannot be found.
fn open_source(
    what: &str,
    folder: &Path,
    context: &CliContext,
) -> Result<Result<WorkflowSource, SpecError>, Report> {
    if what == "-" {
        return read_bytes(BlockingStream(std::io::stdin()), what).map(WorkflowSource::parse_spec);
    }
    let path = context.flags.cwd.as_ref().map_or_else(|| PathBuf::from(what), |cwd| cwd.join(what));
    let refuse = |path: &Path, reason: &str| {
        Report::new(Kind::ReadFailed, format!("{} cannot be read: {reason}", path.display()))
            .with_next_actions(vec!["name a regular file of the project, or your own".into()])
    };
    if path.is_file() {
        let file = open_regular(&path).map_err(|error| refuse(&path, &error.to_string()))?;
        return read_bytes(file, what).map(WorkflowSource::parse_spec);
    }
    let is_name = !what.contains(['/', ':']) && !what.is_empty();
    let roots = workflow_roots(folder, context).ok().filter(|_| is_name).unwrap_or_default();
    for WorkflowRoot { path, boundary } in roots {
        let path = path.join(format!("{what}.json"));
        if path.is_file() {
            let read = read_spec_file(&path, boundary.as_deref());
            return Ok(WorkflowSource::parse_spec(read.map_err(|reason| refuse(&path, &reason))?));
        }
    }
    if Path::new(what).extension().is_some_and(|end| end == "json") {
        return Err(Report::new(Kind::NotFound, format!("there is no file {what}"))
            .with_next_actions(vec!["see `pixir workflow list`".to_owned()]));
    }
    WorkflowSource::find_template(&context.skills(folder)?, what).map(Ok).map_err(Report::from)
}

fn read_bytes(from: impl Read, what: &str) -> Result<Vec<u8>, Report> {
    let mut bytes = Vec::new();
    from.take(LARGEST_SPEC)
        .read_to_end(&mut bytes)
        .map_err(|error| bad_argument(format!("{what} cannot be read: {error}")))?;
    Ok(bytes)
}

/// Reads the file of a named spec. A link of a project may lead only to another file inside `boundary`.
pub fn read_spec_file(path: &Path, boundary: Option<&Path>) -> Result<Vec<u8>, String> {
    let file = match boundary {
        Some(root) => {
            let opened = Workspace::open(root).and_then(|space| space.open_file(path));
            opened.map(|open| open.file).map_err(|error| error.to_string())?
        }
        None => open_regular(path).map_err(|error| error.to_string())?,
    };
    let mut bytes = Vec::new();
    file.take(LARGEST_SPEC).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// A folder whose workflows can be named.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkflowRoot {
    pub path: PathBuf,
    /// The root of the project, which no link in it may leave; the user's own may lead anywhere.
    pub boundary: Option<PathBuf>,
}

/// The folders of named workflows; the first one wins.
pub fn workflow_roots(folder: &Path, context: &CliContext) -> Result<Vec<WorkflowRoot>, Report> {
    let own = context.home()?.path().join("workflows");
    let project = project_folders(folder);
    let boundary = project.first().map(|top| top.to_path_buf());
    let inner = project.into_iter().rev().map(|folder| folder.join(".pixir/workflows"));
    let mut roots: Vec<WorkflowRoot> = inner
        .filter(|path| *path != own)
        .map(|path| WorkflowRoot { path, boundary: boundary.clone() })
        .collect();
    roots.push(WorkflowRoot { path: own, boundary: None });
    Ok(roots)
}
