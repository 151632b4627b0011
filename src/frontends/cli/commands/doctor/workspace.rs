//! Checks of the Workspace: git, Pixir's state, Logs, instructions and free space.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde_json::json;

use super::home::{folders, room};
use super::{Check, Health, or_well};
use crate::agent::inspect;
use crate::agent::inspect::{Standing, Summary};
use crate::base::error::{Kind, Report};
use crate::base::files::read_regular;
use crate::base::id::SessionId;
use crate::base::paths;
use crate::base::secret::Secrets;
use crate::model::prompt::{Project, Sources};
use crate::record::log;
use crate::record::state_dir;
use crate::record::state_dir::{Resolved, StateRoot};
use crate::settings::config::Config;

/// Checked Logs, newest first.
const LOGS: usize = 50;

/// Largest `.git` file or `.gitignore` that is read.
const LARGEST_TEXT: u64 = 64 << 10;

pub fn workspace(folder: &Path, config: &Config) -> Vec<Check> {
    let state = state_dir::resolve(&config.home, folder);
    let mut checks = log_folder(&state);
    let listed = inspect::list(std::slice::from_ref(&state.root), LOGS);
    let whole = match listed.len() {
        0 => "no Logs yet".to_owned(),
        1 => "the one Log is whole".to_owned(),
        count => format!("the last {count} Logs are whole"),
    };
    checks.extend(or_well(logs(&state.root, &listed), "logs", whole));
    checks.extend(or_well(leftovers(&state.root), "leftovers", "none"));
    let repository = match dot_git(folder) {
        Some(_) => "HEAD is there, and Logs are not committed",
        None => "not a git repository",
    };
    checks.extend(or_well(git(folder), "git", repository));
    checks.extend(folders(&paths::state(folder)));
    checks.extend(instructions(folder, config));
    checks.push(room("workspace_disk", folder));
    checks
}

pub fn writable(id: &'static str, folder: &Path) -> Check {
    let details = json!({ "path": folder.to_string_lossy() });
    match rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Check::new(id, Health::Passed, format!("{} can be written", folder.display()))
            .with(details),
        Err(error) => Check::at(id, folder, format!("cannot be written: {error}"))
            .failing()
            .kind(Kind::WriteFailed)
            .next("make it writable for you, or name another directory with --cwd"),
    }
}

/// Where Sessions are kept, and why it is not the Workspace.
fn log_folder(state: &Resolved) -> Vec<Check> {
    const ID: &str = "log_folder";
    let folder = state.root.sessions();
    let mut checks = Vec::new();
    if let (Some(problem), Some(notice)) = (&state.problem, state.notice()) {
        let check = Check::new(ID, Health::Warning, notice);
        let check = check.with(json!({ "path": problem.path().to_string_lossy() }));
        checks.push(check.kind(problem.kind()).next(&problem.next_action()));
    }
    match folder.open() {
        Ok(None) if checks.is_empty() => {
            return vec![Check::new(ID, Health::Passed, "made with the first Session")];
        }
        Ok(None) => return checks,
        Err(error) => {
            let report = Report::describe(&error);
            checks.push(Check::failed(ID, &report));
            return checks;
        }
        Ok(Some(_)) => {}
    }
    let path = folder.path();
    if fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
        let check = Check::at(ID, &path, "can be looked into by others");
        checks.push(check.kind(Kind::UnsafeStatePath).next("chmod 700 that folder"));
    }
    checks.push(writable(ID, &path));
    checks
}

/// Logs that are damaged, unfinished, or not files.
fn logs(root: &StateRoot, listed: &[Summary]) -> Vec<Check> {
    let mut found = Vec::new();
    let sessions = root.sessions().open().ok().flatten();
    let entries = sessions.and_then(|sessions| sessions.entries().ok()).unwrap_or_default();
    for entry in entries {
        let id = entry.name.to_str().and_then(|name| name.strip_suffix(".ndjson"));
        let is_log = id.is_some_and(|id| SessionId::parse(id).is_ok());
        if is_log && entry.kind != FileType::RegularFile {
            let path = root.sessions().path().join(&entry.name);
            let check = Check::at("logs", &path, "is not a file, and no Session");
            found.push(check.kind(Kind::UnsafeStatePath).next("move it away"));
        }
    }
    for summary in listed {
        let id = &summary.session_id;
        let check = |message: &str| {
            let check = Check::at("logs", &summary.path, message).kind(Kind::LogDamaged);
            check.next(&format!("see `pixir diagnose {id}`"))
        };
        match &summary.standing {
            Standing::Running { .. } => {}
            Standing::Unreadable { message } => {
                found.push(check(&format!("cannot be read: {message}")).failing());
            }
            _ if summary.bytes == 0 => found.push(check("is empty")),
            _ if is_torn(root, id) => found.push(check("ends in the middle of a line")),
            Standing::Open => found.push(check("has an unfinished Turn")),
            Standing::New
            | Standing::Answered
            | Standing::Failed { .. }
            | Standing::Interrupted => {}
        }
    }
    found
}

fn is_torn(root: &StateRoot, id: &SessionId) -> bool {
    let last = || -> io::Result<u8> {
        let mut file = log::open_file(root, id).map_err(io::Error::other)?;
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        Ok(byte[0])
    };
    last().is_ok_and(|byte| byte != b'\n')
}

/// What killed processes left in Pixir's state.
fn leftovers(root: &StateRoot) -> Vec<Check> {
    inspect::leftovers(root)
        .into_iter()
        .map(|path| {
            let check = Check::at("leftovers", &path, "was left by a process that was killed");
            check.kind(Kind::UnsafeStatePath).next("remove it with `pixir gc --apply`")
        })
        .collect()
}

/// The `.git` of the repository that a folder is in.
fn dot_git(workspace: &Path) -> Option<PathBuf> {
    let mut candidates = workspace.ancestors().map(|folder| folder.join(".git"));
    candidates.find(|path| path.symlink_metadata().is_ok())
}

/// A broken repository, and a `.gitignore` that lets Logs be committed.
fn git(workspace: &Path) -> Vec<Check> {
    let Some(dot_git) = dot_git(workspace) else { return Vec::new() };
    let mut found = Vec::new();
    let folder = if dot_git.is_dir() {
        Some(dot_git.clone())
    } else {
        let pointer = small_text(&dot_git);
        let target = pointer.trim().strip_prefix("gitdir:").map(|target| target.trim().to_owned());
        target.zip(dot_git.parent()).map(|(target, parent)| parent.join(target))
    };
    let has_head = folder.is_some_and(|folder| folder.join("HEAD").is_file());
    if !has_head {
        let check = Check::at("git", &dot_git, "is no repository: it has no HEAD");
        found.push(
            check.kind(Kind::NotFound).next("repair the repository, or remove what is left of it"),
        );
    }
    let ignore = paths::state(workspace).join(".gitignore");
    let names = small_text(&ignore);
    let is_kept_out =
        names.lines().any(|line| matches!(line.trim(), "/sessions/" | "sessions/" | "*"));
    let has_sessions = StateRoot::in_workspace(workspace).sessions().open();
    if matches!(has_sessions, Ok(Some(_))) && !is_kept_out {
        let check = Check::at("git", &ignore, "does not keep Logs out of your commits");
        found.push(check.kind(Kind::InvalidConfig).next("put the line /sessions/ into it"));
    }
    found
}

/// The text of a small file; empty when it cannot be read.
fn small_text(path: &Path) -> String {
    let bytes = read_regular(path, LARGEST_TEXT).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// Instruction files that are skipped or cut.
fn instructions(workspace: &Path, config: &Config) -> Vec<Check> {
    let user_file = config.home.agents_md();
    let project = Project::load(&Sources {
        workspace,
        user_file: &user_file,
        limit: config.instructions_limit,
        secrets: &Secrets::default(),
    });
    let check = |notice: &String| {
        let path = notice.split(": ").next().unwrap_or_default();
        Check::new("instructions", Health::Warning, notice)
            .kind(Kind::ReadFailed)
            .with(json!({ "path": path }))
            .next("make it a text file that fits `instructions_limit`")
    };
    let whole = if project.text.is_some() { "AGENTS.md is used whole" } else { "no AGENTS.md" };
    or_well(project.notices.iter().map(check).collect(), "instructions", whole)
}
