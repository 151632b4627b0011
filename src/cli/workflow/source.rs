//! Where a workflow comes from: a file, stdin, a name, the template of a Skill.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::cli::{Context, bad_argument};
use crate::error::{Kind, Report};
use crate::role::Role;
use crate::roster::Roster;
use crate::workflow::{Ground, SpecError, Workflow, Written};
use crate::workspace::project_folders;

use super::NamedArgs;

/// More than any spec may have; what is larger is refused without reading it to its end.
const LARGEST: u64 = 1_000_001;

/// A workflow that was named, and why it cannot be read if it cannot.
pub struct Named {
    /// Where it was found, as one would name it.
    pub from: String,
    pub read: Result<Workflow, SpecError>,
}

/// Finds what is named and reads it. What is wrong with it is a part of the answer.
pub fn named(args: &NamedArgs, context: &Context) -> Result<Named, Report> {
    let folder = context.folder()?;
    let from = args.what.clone();
    let written = match open(&args.what, &folder, context)? {
        Ok(written) => written,
        Err(error) => return Ok(Named { from, read: Err(error) }),
    };
    let arguments = match written.arguments(&args.arg) {
        Ok(arguments) => arguments,
        Err(error) => return Ok(Named { from, read: Err(error) }),
    };
    let limits = context.settings(Some(&folder))?.config.subagents;
    let roster = context.roster(&folder)?;
    let role = |name: &str| roster.find(name).ok();
    let ground = Ground { role: &role, roles: names(&roster), limits, arguments };
    Ok(Named { from, read: written.read(&ground) })
}

/// The workflow of a file, of stdin, or of a name; a spec that is no JSON is told apart from one that
/// is not there.
pub fn open(
    what: &str,
    folder: &Path,
    context: &Context,
) -> Result<Result<Written, SpecError>, Report> {
    if what == "-" {
        return bytes(std::io::stdin(), what).map(Written::spec);
    }
    let path = context.flags.cwd.as_ref().map_or_else(|| PathBuf::from(what), |cwd| cwd.join(what));
    let of_name = || {
        let is_name = !what.contains(['/', ':']) && !what.is_empty();
        let file = |root: &PathBuf| root.join(format!("{what}.json"));
        let roots = roots(folder, context).ok().filter(|_| is_name).unwrap_or_default();
        roots.iter().map(file).find(|path| path.is_file())
    };
    let file = if path.is_file() { Some(path) } else { of_name() };
    if let Some(path) = file {
        let refuse = |error: std::io::Error| {
            Report::new(Kind::ReadFailed, format!("{} cannot be read: {error}", path.display()))
        };
        return bytes(File::open(&path).map_err(refuse)?, what).map(Written::spec);
    }
    if Path::new(what).extension().is_some_and(|end| end == "json") {
        return Err(Report::new(Kind::NotFound, format!("there is no file {what}"))
            .with_next_actions(vec!["see `pixir workflow list`".to_owned()]));
    }
    Written::template(&context.skills(folder)?, what).map(Ok).map_err(|error| Report::from(&error))
}

fn bytes(from: impl Read, what: &str) -> Result<Vec<u8>, Report> {
    let mut bytes = Vec::new();
    from.take(LARGEST)
        .read_to_end(&mut bytes)
        .map_err(|error| bad_argument(format!("{what} cannot be read: {error}")))?;
    Ok(bytes)
}

/// The folders whose files can be named, the first counts most.
pub fn roots(folder: &Path, context: &Context) -> Result<Vec<PathBuf>, Report> {
    let own = context.home()?.folder().join("workflows");
    let project = project_folders(folder);
    let mut roots: Vec<PathBuf> =
        project.into_iter().rev().map(|folder| folder.join(".pixir/workflows")).collect();
    roots.retain(|root| *root != own);
    roots.push(own);
    Ok(roots)
}

/// The names of all roles, also of those that cannot be used.
pub fn names(roster: &Roster) -> Vec<String> {
    let mut names: Vec<String> = Role::names().into_iter().map(str::to_owned).collect();
    for entry in roster.all().entries {
        if !names.iter().any(|name| name == entry.name()) {
            names.push(entry.name().to_owned());
        }
    }
    names
}
